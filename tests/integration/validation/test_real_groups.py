"""Membership validation on a real broker: whatever is wrong is named, and nothing else is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_kcr.api.clusters import real_reader
from airflow_kcr.api.described import described
from airflow_kcr.api.preflight import preflight
from airflow_kcr.api.validation import Validation, report
from airflow_kcr.cli.endings import exit_status
from airflow_kcr.embedded.processes import happened
from airflow_kcr.errors import ConfigurationError, ForeignConsumerInGroup
from airflow_kcr.protocol.evidence import CheckVerdict
from airflow_kcr.protocol.observations import SHARE_OR_STREAMS, ForeignConsumer
from airflow_kcr.protocol.region.rows import RegionState
from airflow_kcr.protocol.rules import ForeignConsumerPolicy
from airflow_kcr.protocol.validation import Question
from tests.conftest import StartKafka
from tests.integration.validation.conftest import Scene, make
from tests.integration.validation.foreign import Crowd
from tests.support import streams_group
from tests.support.kafka import Kafka
from tests.support.kafka_tool import CONSOLE_SHARE_CONSUMER, allow, allow_share_groups, console_consumer

if TYPE_CHECKING:
    from confluent_kafka import Message

LOCAL = "127.0.0.1"


def wrong(found: Validation) -> dict[Question, CheckVerdict]:
    """What is not fine."""
    return {c.question: c.verdict for c in found.checks if c.verdict is not CheckVerdict.OK}


def told(found: Validation) -> str:
    return "\n".join(f"{c.question} {c.verdict}: {c.detail}" for c in found.checks)


def foreign_consumers(found: Validation) -> list[ForeignConsumer]:
    return [o for group in found.foreign_consumers.values() for o in group]


# -- fine -------------------------------------------------------------------------------------------------------------


def test_a_region_that_runs_is_fine_in_every_line(scene: Scene) -> None:
    found = scene.look()
    assert wrong(found) == {}, told(found)
    assert foreign_consumers(found) == []


def test_a_region_that_was_never_started_is_fine_and_nothing_is_made_by_looking(kafka: Kafka, crowd: Crowd) -> None:
    scene = make(kafka, crowd)
    found = scene.look()
    assert wrong(found) == {}, told(found)
    assert kafka.committed(scene.group) == {}


# -- foreign consumers
# --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("instance", ["", "somebody-1"], ids=["dynamic", "static"])
def test_a_foreign_consumer_is_named_with_host_and_client_id(scene: Scene, instance: str) -> None:
    named: dict[str, str | int] = {"client_id": "console-consumer", "partition_assignment_strategy": "range"}
    if instance:
        named["group_instance_id"] = instance
    scene.crowd.join("stranger", scene.group, scene.topic, **named)
    scene.crowd.settle(*scene.places())
    found = scene.look()
    assert [(o.client_id, o.host.removeprefix("/"), o.instance_id) for o in foreign_consumers(found)] == [
        ("console-consumer", LOCAL, instance)
    ]
    line = next(c for c in found.checks if c.question is Question.FOREIGN_CONSUMERS)
    assert line.verdict is CheckVerdict.FAILED
    assert f"consumer console-consumer on host {LOCAL}" in line.detail
    assert wrong(found)[Question.CLAIMS] is CheckVerdict.FAILED, "Kafka has moved partitions that are claimed"


@pytest.mark.long
def test_a_consumer_protocol_foreign_consumer_converts_the_group_and_is_named(scene: Scene) -> None:
    scene.crowd.join("stranger", scene.group, scene.topic, client_id="modern", group_protocol="consumer")
    scene.crowd.settle(*scene.places())
    found = scene.look()
    assert [o.client_id for o in foreign_consumers(found)] == ["modern"]
    line = next(c for c in found.checks if c.question is Question.PROTOCOL)
    assert line.verdict is CheckVerdict.FAILED
    assert "of type consumer, assignor uniform, not classic: consumer modern on host" in line.detail
    scene.crowd.leave("stranger")
    scene.crowd.settle(*scene.places())
    assert foreign_consumers(scene.look()) == []


def test_a_consumer_protocol_foreign_consumer_is_found_in_an_empty_group_before_anything_joins(
    kafka: Kafka, crowd: Crowd
) -> None:
    scene = make(kafka, crowd)
    crowd.join("stranger", scene.group, scene.topic, client_id="modern", group_protocol="consumer")
    crowd.settle(*scene.places())
    found = scene.look()
    assert [o.client_id for o in foreign_consumers(found)] == ["modern"]
    line = next(c for c in found.checks if c.question is Question.PROTOCOL)
    assert "of type consumer, assignor uniform, not classic: consumer modern on host" in line.detail
    (group,) = described(scene.driver.store, scene.name, real_reader)
    assert (group.seen.type, group.seen.assignor, [m.member for m in group.members]) == ("consumer", "uniform", [None])
    with pytest.raises(ForeignConsumerInGroup, match=f"consumer modern on host {LOCAL}"):
        preflight(scene.driver.store, scene.name, [scene.member(0)], real_reader)
    crowd.leave("stranger")
    assert wrong(scene.look()) == {}
    preflight(scene.driver.store, scene.name, [scene.member(0)], real_reader)


@pytest.mark.long
@pytest.mark.parametrize("policy", ForeignConsumerPolicy)
def test_a_share_group_of_the_name_refuses_the_start_with_what_to_change(
    kafka_set: StartKafka, policy: ForeignConsumerPolicy
) -> None:
    kafka = kafka_set()
    allow_share_groups(kafka.bootstrap_servers)
    crowd = Crowd(kafka.bootstrap_servers)
    scene = make(kafka, crowd, policy=policy)
    with console_consumer(kafka.bootstrap_servers, scene.topic, scene.group, tool=CONSOLE_SHARE_CONSUMER):
        assert happened(lambda: wrong(scene.look()) != {}, within=60)
    # It stays when its consumers have left.
    assert wrong(scene.look()) == {
        Question.PROTOCOL: CheckVerdict.FAILED,
        Question.FOREIGN_CONSUMERS: CheckVerdict.FAILED,
    }
    with pytest.raises(ForeignConsumerInGroup, match="no member can join: give the region a group_id"):
        preflight(scene.driver.store, scene.name, [scene.member(0)], real_reader)
    assert kafka_untouched(scene)


@pytest.mark.long
def test_a_streams_group_of_the_name_refuses_the_start_with_what_to_change(kafka_set: StartKafka) -> None:
    kafka = kafka_set(settings=streams_group.SETTINGS)
    allow(kafka.bootstrap_servers, streams_group.FEATURE)
    scene = make(kafka, Crowd(kafka.bootstrap_servers), policy="warn")
    # Who asks for a group's coordinator has the brokers make the topic that it needs.
    assert wrong(scene.look()) == {}
    streams_group.join_streams_group(kafka.bootstrap_servers, scene.group, scene.topic)
    (group,) = described(scene.driver.store, scene.name, real_reader)
    assert (group.seen.type, group.members) == (SHARE_OR_STREAMS, ())
    assert wrong(scene.look()) == {
        Question.PROTOCOL: CheckVerdict.FAILED,
        Question.FOREIGN_CONSUMERS: CheckVerdict.FAILED,
    }
    with pytest.raises(ForeignConsumerInGroup, match="no member can join: give the region a group_id"):
        preflight(scene.driver.store, scene.name, [scene.member(0)], real_reader)


@pytest.mark.long
def test_brokers_that_do_not_speak_the_protocol_refuse_the_start_with_what_to_change(kafka_set: StartKafka) -> None:
    # Kafka 3.9 by itself, a newer one where it is set so.
    kafka = kafka_set(settings={"group.coordinator.rebalance.protocols": "classic"})
    scene = make(kafka, Crowd(kafka.bootstrap_servers), subscribe="pattern: '^validation.*', protocol: consumer")
    assert wrong(scene.look()) == {Question.TIMES: CheckVerdict.FAILED}
    with pytest.raises(ConfigurationError, match=r"the brokers speak classic .* write protocol: classic") as refused:
        preflight(scene.driver.store, scene.name, [scene.member(0)], real_reader)
    assert exit_status(refused.value) == 2
    assert kafka_untouched(scene)


@pytest.mark.long
def test_brokers_that_convert_no_group_refuse_the_start_beside_classic_members_with_what_to_change(
    kafka_set: StartKafka,
) -> None:
    kafka = kafka_set(settings={"group.consumer.migration.policy": "disabled"})
    scene = make(kafka, Crowd(kafka.bootstrap_servers), subscribe="pattern: '^validation.*', protocol: consumer")
    scene.crowd.join_member(scene.name, scene.member(0), scene.topic, static=False)
    scene.crowd.settle(*scene.places())
    with pytest.raises(
        ConfigurationError, match=r"policy is disabled\): stop them .* write protocol: classic"
    ) as refused:
        preflight(scene.driver.store, scene.name, [scene.member(1)], real_reader)
    assert exit_status(refused.value) == 2
    # Kafka itself lets no such consumer in.
    scene.crowd.join("newer", scene.group, scene.topic, group_protocol="consumer")
    newer = scene.crowd.consumers["newer"]
    assert happened(lambda: "group id does not exist" in error_of(newer.poll(0.1)), within=60)
    scene.crowd.vanish("newer")
    scene.crowd.leave(str(scene.member(0)))
    assert preflight(scene.driver.store, scene.name, [scene.member(1)], real_reader).checks
    assert kafka_untouched(scene)


def error_of(message: Message | None) -> str:
    """What a poll says that is wrong; empty: nothing."""
    return "" if message is None else str(message.error() or "")


def test_a_foreign_consumer_is_known_until_the_group_is_found_clean(kafka: Kafka, crowd: Crowd) -> None:
    scene = make(kafka, crowd, policy="warn")
    scene.join()
    scene.run()
    other = kafka.topic(1)
    crowd.join("stranger", scene.group, other, client_id="reader", partition_assignment_strategy="range")
    crowd.settle(*scene.places(), (other, 0))
    found = scene.look()
    assert found.is_news
    (stranger,) = report(scene.driver.store, scene.name, found).foreign_consumers
    assert stranger.client_id == "reader"
    crowd.leave("stranger")
    crowd.settle(*scene.places())
    found = scene.look()
    assert found.is_news
    assert report(scene.driver.store, scene.name, found).foreign_consumers == ()
    assert not scene.look().is_news


# -- participants
# -----------------------------------------------------------------------------------------------------------


def test_a_live_member_that_is_not_in_the_group_is_named(scene: Scene) -> None:
    scene.crowd.leave(str(scene.member(1)))
    scene.crowd.settle(*scene.places())
    line = scene.check(Question.PARTICIPANTS)
    assert (line.verdict, f"{scene.member(1)} is alive but not in the group" in line.detail) == (
        CheckVerdict.FAILED,
        True,
    )


def test_a_static_slot_without_a_process_is_a_warning_and_no_foreign_consumer(scene: Scene) -> None:
    scene.crowd.vanish(str(scene.member(1)))
    scene.driver.leave(scene.member(1))
    found = scene.look()
    line = next(c for c in found.checks if c.question is Question.PARTICIPANTS)
    assert (line.verdict, f"{scene.member(1)} is in the group without a lease" in line.detail) == (
        CheckVerdict.WARNING,
        True,
    )
    assert foreign_consumers(found) == []


# -- topics and offsets -----------------------------------------------------------------------------------------------


def test_a_group_without_offsets_shows_that_it_was_deleted(scene: Scene) -> None:
    scene.driver.process(width=50)
    scene.driver.checkpoint("n1")
    line = scene.check(Question.OFFSETS)
    assert line.verdict is CheckVerdict.WARNING
    assert f"{scene.topic}-0: Kafka holds no committed offset, the region committed 50" in line.detail
    assert "deleted in Kafka" in line.detail
    scene.crowd.commit(str(scene.member(0)), scene.topic, 50)
    assert f"{scene.topic}-0:" not in scene.check(Question.OFFSETS).detail


# -- preflight --------------------------------------------------------------------------------------------------------


def test_preflight_refuses_to_join_beside_a_foreign_consumer_and_lets_a_returning_member_pass(scene: Scene) -> None:
    preflight(scene.driver.store, scene.name, [scene.member(0)], real_reader)
    scene.crowd.join("stranger", scene.group, scene.topic, client_id="console", partition_assignment_strategy="range")
    scene.crowd.settle(*scene.places())
    with pytest.raises(ForeignConsumerInGroup, match=f"consumer console on host {LOCAL}"):
        preflight(scene.driver.store, scene.name, [scene.member(0)], real_reader)
    assert scene.driver.region.state is RegionState.HALTED
    assert kafka_untouched(scene)


def kafka_untouched(scene: Scene) -> bool:
    """Whether nothing was committed for the group."""
    return scene.kafka.committed(scene.group) == {}
