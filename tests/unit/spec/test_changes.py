from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_kcr.protocol import rules
from airflow_kcr.protocol.rules import LATEST, Assignor, Delivery, GroupProtocol, OutOfRangePolicy, RetentionRules
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.spec import (
    FOREVER,
    BatchSpec,
    CheckpointSpec,
    Difference,
    GroupSpec,
    HistorySpec,
    TakesEffect,
    differences,
    split,
)
from tests.unit.spec.examples import group, small

AT_ONCE, NEXT_CHECKPOINT, REFUSED = TakesEffect.AT_ONCE, TakesEffect.NEXT_CHECKPOINT, TakesEffect.REFUSED


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def changed(*groups: GroupSpec, **fields: Any) -> list[Difference]:  # noqa: ANN401 (each field has its own type)
    """What differs between a small region and one with these groups or fields."""
    return differences(small(), small(*groups, **fields))


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"checkpoint": CheckpointSpec(every=seconds(60))}, "checkpoint.every"),
        ({"checkpoint": CheckpointSpec(records=5)}, "checkpoint.records"),
        ({"checkpoint": CheckpointSpec(grace=seconds(3))}, "checkpoint.grace"),
        ({"checkpoint": CheckpointSpec(catchup=True)}, "checkpoint.catchup"),
        ({"batch": BatchSpec(target=seconds(3))}, "batch.target"),
        ({"batch": BatchSpec(timeout=seconds(60))}, "batch.timeout"),
        ({"timeouts": Timeouts(drain=seconds(200))}, "timeouts.drain"),
        ({"timeouts": Timeouts(commit=seconds(20))}, "timeouts.commit"),
        ({"timeouts": Timeouts(accept_aborted_drain=True)}, "timeouts.accept_aborted_drain"),
        ({"max_failures": 6}, "max_failures"),
        ({"foreign_consumers": rules.ForeignConsumerPolicy.WARN}, "foreign_consumers"),
        ({"out_of_range": OutOfRangePolicy.LATEST}, "out_of_range"),
        ({"beyond_end": OutOfRangePolicy.LATEST}, "beyond_end"),
        ({"retention": RetentionRules(keep=5)}, "retention.keep"),
        ({"retention": RetentionRules(max_age=seconds(5))}, "retention.for"),
        ({"history": HistorySpec(keep=FOREVER)}, "history.keep"),
    ],
)
def test_checkpoints_batches_times_retention_and_policies_change_at_once(fields: dict[str, Any], path: str) -> None:
    assert changed(**fields) == [(path, AT_ONCE)]


@pytest.mark.parametrize(
    ("fields", "paths"),
    [
        ({"topics": ("t", "u")}, ["topics"]),
        ({"topics": (), "pattern": "^t"}, ["topics", "pattern"]),
        ({"members": 2}, ["members"]),
        ({"pipeline": "jobs:other"}, ["pipeline"]),
        ({"delivery": Delivery.AT_MOST_ONCE}, ["delivery"]),
        ({"start": LATEST}, ["start"]),
        ({"assignor": Assignor.ROUNDROBIN}, ["assignor"]),
        ({"protocol": GroupProtocol.CONSUMER}, ["protocol"]),
    ],
)
def test_what_a_member_is_built_from_changes_at_the_next_checkpoint(fields: dict[str, Any], paths: list[str]) -> None:
    assert sorted(changed(group(**fields))) == sorted((f"groups[g].{path}", NEXT_CHECKPOINT) for path in paths)


def test_a_time_counts_at_once_but_what_follows_from_it_for_the_client_does_not() -> None:
    assert changed(timeouts=Timeouts(reset=seconds(400))) == [
        ("timeouts.reset", AT_ONCE),
        ("timeouts.max_poll_interval", NEXT_CHECKPOINT),
    ]
    assert changed(timeouts=Timeouts(relaunch=seconds(150))) == [
        ("timeouts.relaunch", AT_ONCE),
        ("timeouts.session", NEXT_CHECKPOINT),
    ]


def test_the_region_is_its_name() -> None:
    assert changed(region="s") == [("region", REFUSED)]


def test_groups_may_come_or_go() -> None:
    both = small(group("g"), group("h"))
    assert differences(small(), both) == [("groups[h]", NEXT_CHECKPOINT)]
    assert differences(both, small()) == [("groups[h]", NEXT_CHECKPOINT)]


def test_groups_may_not_come_and_go_as_that_may_be_a_new_id() -> None:
    assert changed(group("h")) == [("groups[g].group_id", REFUSED), ("groups[h].group_id", REFUSED)]


def test_the_order_of_groups_is_no_difference() -> None:
    assert differences(small(group("g"), group("h")), small(group("h"), group("g"))) == []


class TestClusters:
    def test_are_refused_where_no_address_is_shared(self) -> None:
        assert changed(kafka={"bootstrap.servers": "other:9092"}) == [("kafka.bootstrap.servers", REFUSED)]

    def test_may_have_more_addresses(self) -> None:
        more = {"bootstrap.servers": "other:9092, localhost:9092"}
        assert changed(kafka=more) == [("kafka.bootstrap.servers", NEXT_CHECKPOINT)]

    def test_are_refused_behind_another_connection(self) -> None:
        assert changed(kafka=None, kafka_conn_id="c") == [("kafka_conn_id", REFUSED)]

    def test_may_have_other_settings_which_are_not_shown(self) -> None:
        other = {"bootstrap.servers": "localhost:9092", "sasl.username": "hunter2"}
        assert changed(kafka=other) == [("kafka.sasl.username", NEXT_CHECKPOINT)]

    def test_are_named_once_for_the_region_and_by_the_group_that_has_its_own(self) -> None:
        own = group("c", kafka={"bootstrap.servers": "x"})
        old = small(group("a"), group("b"), own)
        new = replace(
            old,
            kafka={"bootstrap.servers": "localhost:9092", "client.id": "i"},
            groups=(group("a"), group("b"), group("c", kafka={"bootstrap.servers": "y"})),
        )
        assert differences(old, new) == [
            ("kafka.client.id", NEXT_CHECKPOINT),
            ("groups[c].kafka.bootstrap.servers", REFUSED),
        ]

    def test_are_the_same_wherever_the_file_says_so(self) -> None:
        assert changed(group(kafka={"bootstrap.servers": "localhost:9092"})) == []


class TestSplit:
    def test_keeps_the_groups_until_the_next_checkpoint(self) -> None:
        old, new = small(), small(group(members=2), max_failures=6)
        assert split(old, new) == (small(max_failures=6), new)

    def test_waits_as_a_whole_where_the_rest_makes_no_sense_without_the_groups(self) -> None:
        old = small(group(members=2))
        new = small(group(static_membership=False), timeouts=Timeouts(session=seconds(20), relaunch=seconds(30)))
        assert split(old, new) == (old, new)

    def test_waits_for_new_clients_even_where_every_field_counts_at_once(self) -> None:
        new = small(timeouts=Timeouts(reset=seconds(400)))
        assert split(small(), new) == (new, new)
