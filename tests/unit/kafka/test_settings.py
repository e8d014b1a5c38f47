from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kcr.cli.endings import exit_status
from airflow_kcr.errors import ConfigurationError
from airflow_kcr.kafka.settings import (
    LONGEST_ID,
    admin_settings,
    client_id,
    instance_id,
    member_settings,
    subscription,
    without_secrets,
)
from airflow_kcr.protocol.rules import Assignor, GroupProtocol, GroupRules
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import GroupId, MemberId, RegionName, TopicName
from airflow_kcr.settings import KafkaSettings

REGION = RegionName("flights")
GROUP = GroupId("delays")
USER = {"bootstrap.servers": "a:1,b:2"}


def settings(user: dict[str, str] | None = None, timeouts: Timeouts | None = None, **rules: object) -> KafkaSettings:
    group = GroupRules(group_id=GROUP, **rules)  # type: ignore[arg-type]
    return member_settings(
        user or USER, region=REGION, member=MemberId(GROUP, 3), rules=group, timeouts=timeouts or Timeouts()
    )


def test_a_member_is_named_after_region_group_and_index() -> None:
    built = settings()
    assert built["group.id"] == "delays"
    assert built["group.instance.id"] == built["client.id"] == "kcr.flights.delays.0003"


def test_a_dynamic_member_has_no_instance_id_and_a_shorter_session() -> None:
    built = settings(static_membership=False)
    assert "group.instance.id" not in built
    assert built["session.timeout.ms"] == "20000"
    assert settings()["session.timeout.ms"] == "120000"


def test_times_are_those_of_the_region() -> None:
    built = settings(timeouts=Timeouts(session=timedelta(seconds=9), metadata_refresh=timedelta(milliseconds=1500)))
    assert built["session.timeout.ms"] == "9000"
    assert built["max.poll.interval.ms"] == "900000"
    assert built["topic.metadata.refresh.interval.ms"] == "1500"


@pytest.mark.parametrize("session", [1, 3, 6, 20, 120])
def test_three_heartbeats_fit_into_a_session(session: int) -> None:
    built = settings(timeouts=Timeouts(session=timedelta(seconds=session)))
    assert 3 * int(built["heartbeat.interval.ms"]) <= session * 1000


def test_what_only_the_region_may_do_is_off() -> None:
    built = settings()
    assert built["enable.auto.commit"] == "false"
    assert built["enable.auto.offset.store"] == "false"
    assert built["auto.offset.reset"] == "error"
    assert built["isolation.level"] == "read_committed"
    assert built["group.protocol"] == "classic"
    assert settings(assignor=Assignor.ROUNDROBIN)["partition.assignment.strategy"] == "roundrobin,range"


def test_where_the_broker_decides_it_has_the_assignor_and_the_times() -> None:
    built = settings(protocol=GroupProtocol.CONSUMER, assignor=Assignor.UNIFORM)
    assert (built["group.protocol"], built["group.remote.assignor"]) == ("consumer", "uniform")
    assert not built.keys() & {"session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy"}
    assert settings(protocol=GroupProtocol.CONSUMER)["group.remote.assignor"] == "range"


def test_what_only_the_broker_may_say_there_is_refused_with_the_brokers_setting() -> None:
    with pytest.raises(ConfigurationError, match=r"heartbeat\.interval\.ms .*consumer\.heartbeat\.interval\.ms"):
        settings(user={**USER, "heartbeat.interval.ms": "500"}, protocol=GroupProtocol.CONSUMER)
    with pytest.raises(ConfigurationError, match="the broker has no roundrobin assignor; write assignor: uniform"):
        settings(protocol=GroupProtocol.CONSUMER, assignor=Assignor.ROUNDROBIN)
    with pytest.raises(ConfigurationError, match="knows nothing of exclude"):
        settings(protocol=GroupProtocol.CONSUMER, pattern="^a.*", exclude=("ab",))
    with pytest.raises(ConfigurationError, match="no eager uniform assignor"):
        settings(assignor=Assignor.UNIFORM)


@pytest.mark.parametrize(
    ("client", "is_refused"),
    [("2.3.0", True), ("2.11.1", True), ("2.12.0", False), ("2.12.0-RC1", False), ("3.0", False)],
)
def test_a_client_that_is_too_old_for_the_brokers_protocol_is_refused_with_what_to_change(
    monkeypatch: pytest.MonkeyPatch, client: str, is_refused: bool
) -> None:
    monkeypatch.setattr("airflow_kcr.kafka.settings.libversion", lambda: (client, 0))
    assert settings()["group.protocol"] == "classic"
    if not is_refused:
        assert settings(protocol=GroupProtocol.CONSUMER)["group.protocol"] == "consumer"
        return
    with pytest.raises(
        ConfigurationError, match=rf"librdkafka {client}.* needs 2\.12; install .*protocol: classic"
    ) as no:
        settings(protocol=GroupProtocol.CONSUMER)
    assert exit_status(no.value) == 2


def test_an_assignor_that_the_client_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no eager sticky assignor"):
        settings(assignor=Assignor.STICKY)


def test_a_users_setting_wins_over_our_defaults_and_is_passed_untouched() -> None:
    user = {**USER, "reconnect.backoff.max.ms": "9000", "sasl.password": " p w ", "client.id": "app", "debug": "cgrp"}
    built = settings(user)
    assert built["reconnect.backoff.max.ms"] == "9000"
    assert built["sasl.password"] == " p w "
    assert built["debug"] == "cgrp"
    assert built["client.id"] == "app.flights.delays.0003"


@pytest.mark.parametrize("build", [settings, admin_settings])
def test_a_client_closes_an_idle_connection_before_others_forget_it(build: object) -> None:
    assert int(build(USER)["connections.max.idle.ms"]) < 240_000  # type: ignore[operator]


@pytest.mark.parametrize("build", [settings, admin_settings])
def test_every_refused_setting_is_named_and_no_value_is_shown(build: object) -> None:
    user = {**USER, "enable.auto.commit": "secret-1", "group.id": "secret-2", "session.timeout.ms": "secret-3"}
    with pytest.raises(ConfigurationError) as refused:
        build(user)  # type: ignore[operator]
    text = str(refused.value)
    assert all(name in text for name in ("enable.auto.commit", "group.id", "session.timeout.ms"))
    assert "secret" not in text


def test_brokers_must_be_named() -> None:
    with pytest.raises(ConfigurationError, match=r"bootstrap\.servers is missing"):
        admin_settings({"security.protocol": "plaintext"})


def test_a_subscription_is_the_topics_or_the_pattern() -> None:
    assert subscription(GroupRules(group_id=GROUP, topics=(TopicName("a"), TopicName("b")))) == ("a", "b")
    assert subscription(GroupRules(group_id=GROUP, pattern="^a")) == ("^a",)


def test_the_client_does_not_see_the_topics_that_a_group_excludes() -> None:
    group = GroupRules(group_id=GROUP, pattern="^a", exclude=(TopicName("a.b"), TopicName("a-c")))
    settings = member_settings(USER, region=REGION, member=MemberId(GROUP, 0), rules=group, timeouts=Timeouts())
    assert settings["topic.blacklist"] == "^a[.]b$,^a-c$"


def test_a_member_is_named_by_its_region_its_group_and_its_index() -> None:
    assert instance_id(REGION, MemberId(GROUP, 2)) == "kcr.flights.delays.0002"


@given(st.text(min_size=1, max_size=255), st.integers(0, 20_000), st.integers(0, 20_000))
def test_names_obey_kafkas_rules_and_tell_members_apart(group: str, one: int, other: int) -> None:
    names = [instance_id(REGION, MemberId(GroupId(group), index)) for index in (one, other)]
    assert all(0 < len(name) <= LONGEST_ID for name in names)
    assert all(name.isascii() and all(c.isalnum() or c in "._-" for c in name) for name in names)
    assert (names[0] == names[1]) == (one == other)
    assert client_id(REGION, MemberId(GroupId(group), one)) == names[0]


def test_two_long_groups_that_differ_at_their_end_have_different_names() -> None:
    a, b = (instance_id(REGION, MemberId(GroupId("g" * 254 + end), 0)) for end in "ab")
    assert a != b


def test_secrets_are_blotted_out_of_texts() -> None:
    built = KafkaSettings({**USER, "sasl.username": "me", "sasl.password": "hunter2", "ssl.key.pem": "KEY"})
    assert without_secrets("me a:1 hunter2 KEY", built) == "me a:1 … …"
    assert "hunter2" not in repr(built)
    assert without_secrets("x", KafkaSettings({"sasl.password": ""})) == "x"
