from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_kcr.errors import SpecError
from airflow_kcr.protocol.rules import (
    Assignor,
    CheckpointMode,
    Delivery,
    GroupProtocol,
    OutOfRangePolicy,
    RetentionRules,
)
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import GroupId, TopicName
from airflow_kcr.schedules import CronSchedule, Every
from airflow_kcr.spec import BatchSpec, CheckpointSpec, GroupSpec, HistorySpec, RegionSpec
from tests.unit.spec.examples import group, small


def refused(**fields: Any) -> list[str]:  # noqa: ANN401 (each field has its own type)
    """The paths of what is wrong with a small spec with these fields."""
    with pytest.raises(SpecError) as raised:
        small(*fields.pop("groups", ()), **fields)
    return [path for path, _ in raised.value.findings]


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


class TestNames:
    @pytest.mark.parametrize("name", ["", "Flights", "a b", "a" * 101])
    def test_of_regions_are_kept_simple(self, name: str) -> None:
        assert refused(region=name) == ["region"]

    def test_of_groups_are_each_there_once_on_another_cluster_too(self) -> None:
        other = group("a", kafka={"bootstrap.servers": "other:9092"})
        assert refused(groups=(group("a"), other)) == ["groups[1].group_id"]

    def test_of_topics_are_those_that_kafka_takes(self) -> None:
        assert refused(groups=(group(topics=("a", "b/c", "..")),)) == ["groups[0].topics[1]", "groups[0].topics[2]"]

    def test_that_the_store_cannot_hold_are_refused_and_not_shown(self) -> None:
        assert refused(groups=(group("a\ud800"),)) == ["groups[0].group_id"]
        assert refused(groups=(group(topics=(), pattern="^\0"),)) == ["groups[0].pattern"]
        assert refused(kafka={"bootstrap.servers": "x", "a\ud800": "y"}) == ["kafka.a\\ud800"]
        assert refused(kafka={"bootstrap.servers": "x", "ssl.ca.pem": "\0"}) == ["kafka.ssl.ca.pem"]


class TestSubscriptions:
    def test_are_topics_or_a_pattern(self) -> None:
        assert refused(groups=(group(pattern="^t"),)) == ["groups[0]"]
        assert refused(groups=(group(topics=()),)) == ["groups[0]"]

    def test_have_each_topic_once(self) -> None:
        assert refused(groups=(group(topics=("a", "b", "a")),)) == ["groups[0].topics[2]"]

    def test_by_a_pattern_begin_with_a_caret_and_compile(self) -> None:
        assert refused(groups=(group(topics=(), pattern="t.*"),)) == ["groups[0].pattern"]
        assert refused(groups=(group(topics=(), pattern="^t("),)) == ["groups[0].pattern"]
        assert refused(groups=(group(topics=(), pattern=""),)) == ["groups[0].pattern"]

    @pytest.mark.parametrize(
        ("fields", "path"),
        [
            ({"exclude": ("t",)}, "groups[0].exclude"),
            ({"topics": (), "pattern": "^t", "exclude": ("t1", "u")}, "groups[0].exclude[1]"),
            ({"topics": (), "pattern": "^t", "exclude": ("t1", "t1")}, "groups[0].exclude[1]"),
            ({"topics": (), "pattern": "^t", "exclude": "t/1"}, "groups[0].exclude[0]"),
        ],
    )
    def test_exclude_topics_by_name_that_their_pattern_matches(self, fields: dict[str, Any], path: str) -> None:
        assert refused(groups=(group(**fields),)) == [path]

    def test_without_excluded_topics_are_stored_as_ever(self) -> None:
        plain = small(group(topics=(), pattern="^t"))
        assert "exclude" not in plain.to_json_text()
        excluding = small(group(topics=(), pattern="^t", exclude="t1"))
        assert RegionSpec.from_json(excluding.to_json()) == excluding
        assert excluding.groups[0].rules().exclude == ("t1",)

    def test_of_a_lone_text_are_that_topic(self) -> None:
        assert group(topics="flights").topics == ("flights",)


class TestGroups:
    def test_have_no_more_than_a_listing_can_show_and_a_group_can_hold(self) -> None:
        assert refused(groups=(group(members=200_000),)) == ["groups[0].members"]
        assert refused(groups=(group("a", members=600), group("b", members=401))) == ["groups"]
        assert small(group(members=1000)).rules().groups

    @pytest.mark.parametrize("pipeline", ["m:f", "a.b_c.d:f_1", "f.py:f", "path/to/file.py:f", "/abs/ü p.py:f"])
    def test_have_pipelines_that_name_a_function(self, pipeline: str) -> None:
        assert small(group(pipeline=pipeline)).groups[0].pipeline == pipeline

    @pytest.mark.parametrize(
        "pipeline",
        ["", "m", "m:", ":f", "m:f:g", "m.:f", "path/to/file:f", "m:f()", "m:a.b", "m f:f", ".py:f", "m:f\n"],
    )
    def test_have_no_other_pipelines(self, pipeline: str) -> None:
        assert refused(groups=(group(pipeline=pipeline),)) == ["groups[0].pipeline"]

    def test_cannot_consume_with_the_sticky_assignor(self) -> None:
        assert refused(groups=(group(assignor=Assignor.STICKY),)) == ["groups[0].assignor"]
        assert refused(groups=(group(assignor=Assignor.UNIFORM),)) == ["groups[0].assignor"]

    def test_of_the_brokers_protocol_have_the_brokers_assignor_and_expressions(self) -> None:
        def consumer(**fields: Any) -> GroupSpec:  # noqa: ANN401 (each field has its own type)
            return group(protocol=GroupProtocol.CONSUMER, **fields)

        assert consumer().effective_assignor is Assignor.UNIFORM
        rules = small(consumer(assignor=Assignor.RANGE)).rules().groups[GroupId("g")]
        assert (rules.protocol, rules.assignor) == (GroupProtocol.CONSUMER, Assignor.RANGE)
        for assignor in (Assignor.ROUNDROBIN, Assignor.STICKY):
            assert refused(groups=(consumer(assignor=assignor),)) == ["groups[0].assignor"]
        whole = consumer(topics=(), pattern="^flights").rules()
        assert [whole.subscribes(TopicName(name)) for name in ("flights", "flights.eu")] == [True, False]
        assert refused(groups=(consumer(topics=(), pattern="^a.*", exclude=("ab",)),)) == ["groups[0].exclude"]
        # The client compiles it too, though the broker is who matches.
        for pattern in ("^(?!a).*", "^(?<=a)b", r"^(a)\1", "^(?>a)", "^a*+", "^(?:a|b)c", r"^a\d"):
            assert refused(groups=(consumer(topics=(), pattern=pattern),)) == ["groups[0].pattern"], pattern
        assert small(consumer(topics=(), pattern=r"^(a|b)+\.[0-9]{1,3}$")).groups

    def test_of_the_brokers_protocol_leave_the_brokers_times_to_it(self) -> None:
        hurried = {"bootstrap.servers": "x", "heartbeat.interval.ms": "500"}
        ours = group(protocol=GroupProtocol.CONSUMER)
        assert refused(kafka=hurried, groups=(ours,)) == ["kafka.heartbeat.interval.ms"]
        own = group(protocol=GroupProtocol.CONSUMER, kafka=hurried)
        assert refused(groups=(own,)) == ["groups[0].kafka.heartbeat.interval.ms"]
        assert RegionSpec(region="r", kafka=hurried, groups=(group(),)).groups

    def test_spread_one_topic_by_range_and_more_than_one_round_robin(self) -> None:
        assert group().effective_assignor is Assignor.RANGE
        assert group(topics=("a", "b")).effective_assignor is Assignor.ROUNDROBIN
        assert group(topics=(), pattern="^a").effective_assignor is Assignor.ROUNDROBIN
        assert group(topics=("a", "b"), assignor=Assignor.RANGE).effective_assignor is Assignor.RANGE


class TestClusters:
    def test_are_reached_by_settings_or_by_a_connection(self) -> None:
        assert refused(kafka_conn_id="c") == ["kafka_conn_id"]
        assert refused(groups=(group(kafka={"bootstrap.servers": "x"}, kafka_conn_id="c"),)) == [
            "groups[0].kafka_conn_id"
        ]
        assert refused(kafka=None, kafka_conn_id=" ") == ["kafka_conn_id"]

    def test_are_missing_where_neither_the_region_nor_the_group_has_one(self) -> None:
        assert refused(kafka=None, groups=(group("a", kafka_conn_id="c"), group("b"))) == ["groups[1]"]
        assert small(group(kafka_conn_id="c"), kafka=None).cluster_of("g") == (None, "c")

    def test_have_an_address(self) -> None:
        assert refused(kafka={"client.id": "x"}) == ["kafka.bootstrap.servers"]
        assert refused(kafka={"bootstrap.servers": " "}) == ["kafka.bootstrap.servers"]

    def test_have_no_settings_that_are_the_regions_own(self) -> None:
        own = {"bootstrap.servers": "x", "group.id": "g", "enable.auto.commit": "true"}
        assert refused(kafka=own) == ["kafka.enable.auto.commit", "kafka.group.id"]
        assert refused(groups=(group(kafka=own),)) == [
            "groups[0].kafka.enable.auto.commit",
            "groups[0].kafka.group.id",
        ]

    def test_have_no_secret_written_out_and_no_broken_reference(self) -> None:
        settings = {"bootstrap.servers": "${HOST", "sasl.password": "hunter2"}
        with pytest.raises(SpecError) as raised:
            small(kafka=settings)
        assert {path for path, _ in raised.value.findings} == {"kafka.sasl.password", "kafka.bootstrap.servers"}
        assert "hunter2" not in str(raised.value)

    def test_have_settings_whose_values_no_representation_shows(self) -> None:
        spec = small(kafka={"bootstrap.servers": "x", "sasl.username": "hunter2"})
        assert "hunter2" not in repr(spec)


class TestCheckpoints:
    @pytest.mark.parametrize(
        "checkpoint",
        [
            CheckpointSpec(every=seconds(5), cron="@daily"),
            CheckpointSpec(every=seconds(5), records=5),
            CheckpointSpec(cron="@daily", records=5),
            CheckpointSpec(every=seconds(5), cron="@daily", records=5),
        ],
    )
    def test_have_one_occasion(self, checkpoint: CheckpointSpec) -> None:
        assert refused(checkpoint=checkpoint) == ["checkpoint"]

    @pytest.mark.parametrize("records", [0, -1, 2**63])
    def test_by_count_are_of_a_number_that_the_store_can_hold(self, records: int) -> None:
        assert refused(checkpoint=CheckpointSpec(records=records)) == ["checkpoint.records"]

    def test_by_dag_runs_need_a_schedule(self) -> None:
        assert refused(checkpoint=CheckpointSpec(request=CheckpointMode.DAG_RUN)) == ["checkpoint.request"]
        assert refused(checkpoint=CheckpointSpec(request=CheckpointMode.DAG_RUN, records=5)) == ["checkpoint.request"]
        assert (
            small(checkpoint=CheckpointSpec(request=CheckpointMode.DAG_RUN, every=seconds(60))).checkpoint.request
            is CheckpointMode.DAG_RUN
        )

    def test_have_sound_schedules(self) -> None:
        assert refused(checkpoint=CheckpointSpec(every=seconds(0))) == ["checkpoint.every"]
        assert refused(checkpoint=CheckpointSpec(cron="every day")) == ["checkpoint.cron"]
        assert refused(checkpoint=CheckpointSpec(cron="0 0 30 2 *")) == ["checkpoint.cron"]
        assert refused(checkpoint=CheckpointSpec(cron="@daily", timezone="Mars/Olympus")) == ["checkpoint.timezone"]
        assert refused(checkpoint=CheckpointSpec(grace=seconds(-1))) == ["checkpoint.grace"]

    def test_have_a_time_zone_only_where_it_means_something(self) -> None:
        assert refused(checkpoint=CheckpointSpec(every=seconds(60), timezone="Europe/Berlin")) == [
            "checkpoint.timezone"
        ]

    def test_have_a_schedule_made_of_their_fields(self) -> None:
        assert CheckpointSpec().schedule is None
        assert CheckpointSpec(every=seconds(5)).schedule == Every(seconds(5))
        assert CheckpointSpec(cron="@daily", timezone="Europe/Berlin").schedule == CronSchedule(
            "@daily", "Europe/Berlin"
        )


class TestTimes:
    def test_are_checked_together(self) -> None:
        assert refused(timeouts=Timeouts(drain=seconds(100))) == ["batch.timeout"]
        assert refused(timeouts=Timeouts(renew=seconds(5))) == ["timeouts.renew"]
        fitting = small(timeouts=Timeouts(drain=seconds(100)), batch=BatchSpec(timeout=seconds(90)))
        assert fitting.timeouts.drain == seconds(100)

    def test_are_checked_for_each_kind_of_membership_that_there_is(self) -> None:
        short = Timeouts(reset=seconds(100), session=None)
        assert any("session" in path for path in refused(timeouts=short))
        assert small(group(static_membership=False), timeouts=short).timeouts == short
        assert any("session" in path for path in refused(timeouts=short, groups=(group("a"), group("b"))))

    def test_that_clash_for_both_kinds_are_said_once(self) -> None:
        both = (group("a"), group("b", static_membership=False))
        assert refused(timeouts=Timeouts(renew=seconds(5)), groups=both) == ["timeouts.renew"]

    def test_of_a_batch_given_twice_are_refused_if_they_differ(self) -> None:
        assert refused(timeouts=Timeouts(batch=seconds(70))) == ["timeouts.batch"]
        assert refused(batch=BatchSpec(timeout=seconds(60)), timeouts=Timeouts(batch=seconds(70))) == ["timeouts.batch"]


class TestBatches:
    def test_have_limits_in_order(self) -> None:
        assert refused(batch=BatchSpec(min_records=0)) == ["batch.min_records"]
        assert refused(batch=BatchSpec(min_records=6, max_records=5)) == ["batch.min_records"]
        assert refused(batch=BatchSpec(max_records=2**63)) == ["batch.max_records"]

    def test_aim_at_less_than_their_timeout(self) -> None:
        assert refused(batch=BatchSpec(target=seconds(0))) == ["batch.target"]
        assert refused(batch=BatchSpec(target=seconds(120))) == ["batch.target"]


class TestPolicies:
    def test_have_limits(self) -> None:
        assert refused(max_failures=-1) == ["max_failures"]
        assert refused(retention=RetentionRules(keep=0)) == ["retention.keep"]
        assert refused(retention=RetentionRules(max_age=seconds(0))) == ["retention.for"]
        assert refused(history=HistorySpec(keep=seconds(0))) == ["history.keep"]
        assert small(max_failures=0).max_failures == 0


class TestRules:
    def test_are_what_the_spec_says(self) -> None:
        rules = small(
            group("a", topics=("t", "u"), members=2, delivery=Delivery.ALMOST_ONCE),
            group("b", topics=(), pattern="^t.*", static_membership=False),
            checkpoint=CheckpointSpec(cron="0 * * * *", grace=seconds(3), catchup=True),
            out_of_range=OutOfRangePolicy.LATEST,
        ).rules()
        a, b = rules.groups[GroupId("a")], rules.groups[GroupId("b")]
        assert (a.members, a.delivery, a.assignor) == (2, Delivery.ALMOST_ONCE, Assignor.ROUNDROBIN)
        assert (b.pattern, b.static_membership) == ("^t.*", False)
        assert rules.subscribes(GroupId("b"), TopicName("tt"))
        assert rules.checkpoint.schedule is not None
        assert rules.checkpoint.schedule.after(datetime(2026, 1, 1, tzinfo=UTC)) == datetime(2026, 1, 1, 1, tzinfo=UTC)
        assert (rules.checkpoint.grace, rules.checkpoint.catchup) == (seconds(3), True)
        assert (rules.out_of_range, rules.beyond_end) == (OutOfRangePolicy.LATEST, OutOfRangePolicy.FAIL)
