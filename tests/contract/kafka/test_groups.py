"""Groups from outside: described, read and altered."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from airflow_kcr.embedded.processes import happened
from airflow_kcr.errors import GroupNotEmpty, KcrError
from airflow_kcr.kafka.admin_process import AdminProcess
from airflow_kcr.kafka.groups import Groups
from airflow_kcr.kafka.settings import instance_id
from airflow_kcr.protocol.observations import SHARE_OR_STREAMS
from airflow_kcr.protocol.offsets import EMPTY, OffsetMap
from airflow_kcr.protocol.rules import GroupProtocol
from airflow_kcr.protocol.timeouts import BrokerLimits, BrokerTimes, ConsumerProtocolTimes
from airflow_kcr.protocol.values import GroupId, MemberId, Offset, TopicName
from tests.conftest import StartKafka
from tests.contract.kafka.members import ASSIGNORS, REGION, WITHIN, Members, log, logs_of, needs_kafka_4
from tests.support.kafka import QUIESCED, Kafka, groups_at
from tests.support.kafka_tool import CONSOLE_SHARE_CONSUMER, allow_share_groups, console_consumer


def at(group: str, topic: str, **offsets: int) -> OffsetMap:
    return OffsetMap({log(group, topic, int(name[1:])): Offset(offset) for name, offset in offsets.items()})


def test_a_group_is_described_with_a_member_by_the_name_that_the_region_gives_it(
    kafka: Kafka, members: Members, groups: Groups, protocol: GroupProtocol
) -> None:
    topic, group = kafka.topic(2), GroupId(kafka.group_id())
    members.make(group, 0, topic=topic).joined()
    assert happened(lambda: groups.describe(group).state == "stable", within=10)
    found = groups.describe(group)
    (seen,) = found.members
    assert seen.instance_id == instance_id(REGION, MemberId(group, 0))
    assert seen.client_id == f"kcr.region.{group}.0000"
    assert len(seen.partitions) == 2
    assert seen.host.endswith("127.0.0.1")
    assert (found.type, found.assignor) == (protocol, ASSIGNORS[protocol])
    assert found.coordinator == kafka.bootstrap_servers


def test_a_group_that_is_not_there_is_dead(kafka: Kafka, groups: Groups) -> None:
    seen = groups.describe(GroupId(kafka.group_id()))
    assert (seen.state, seen.members) == ("dead", ())


def test_a_group_of_the_consumer_protocol_is_described_with_its_assignor_and_targets(
    kafka: Kafka, groups: Groups
) -> None:
    needs_kafka_4()
    topic, group = kafka.topic(2), GroupId(kafka.group_id())
    consumer = Consumer({**kafka.settings, **QUIESCED, "group.id": group, "group.protocol": "consumer"})
    try:
        consumer.subscribe([topic])
        assert happened(lambda: consumer.poll(0.1) is None and len(consumer.assignment()) == 2, within=WITHIN)
        assert happened(lambda: groups.describe(group).is_stable, within=WITHIN)
        found = groups.describe(group)
        assert (found.type, found.assignor, found.admits_consumers) == ("consumer", "uniform", True)
        (seen,) = found.members
        assert seen.target == seen.partitions
        assert len(seen.partitions) == 2
    finally:
        consumer.close()


@pytest.mark.long
def test_a_share_group_is_told_from_a_group_that_is_not_there_and_no_offsets_are_written_to_it(
    kafka_set: StartKafka,
) -> None:
    needs_kafka_4()
    kafka = kafka_set()
    allow_share_groups(kafka.bootstrap_servers)
    topic, group = kafka.topic(1), GroupId(kafka.group_id())
    with (
        groups_at(kafka.settings) as groups,
        console_consumer(kafka.bootstrap_servers, topic, group, tool=CONSOLE_SHARE_CONSUMER),
    ):
        assert happened(lambda: not groups.describe(group).admits_consumers, within=60)
        found = groups.describe(group)
        assert (found.type, found.members, found.is_stable) == (SHARE_OR_STREAMS, (), False)
        assert groups.describe(GroupId(f"{group}-other")).type == "classic"
        with pytest.raises(GroupNotEmpty, match=r"is a share or streams group.*give the region a group_id"):
            groups.alter(group, at(group, topic, p0=0))


def test_the_times_that_brokers_set_are_read_of_the_broker_and_of_the_group(kafka: Kafka, groups: Groups) -> None:
    needs_kafka_4()
    group = GroupId(kafka.group_id())
    seen = groups.describe(group)
    limits = BrokerLimits(shortest_session=timedelta(seconds=1), longest_session=timedelta(minutes=30))
    brokers = ConsumerProtocolTimes(session=timedelta(seconds=6), heartbeat=timedelta(milliseconds=500))
    found = groups.times(seen)
    assert replace(found, protocols=None, migration=None) == BrokerTimes(limits=limits, consumer=brokers)
    assert "classic" in (found.protocols or ())
    longer = ConfigEntry("consumer.session.timeout.ms", "9000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[longer])
    for altered in kafka.admin.incremental_alter_configs([resource]).values():
        altered.result(WITHIN)
    wanted = replace(brokers, session=timedelta(seconds=9))
    assert happened(lambda: groups.times(seen).consumer == wanted, within=WITHIN)


def test_offsets_of_an_empty_group_are_altered_and_read_back(kafka: Kafka, groups: Groups) -> None:
    topic, group = kafka.topic(2), GroupId(kafka.group_id())
    groups.alter(group, at(group, topic, p0=3, p1=4), "by hand")
    found = groups.committed(group)
    assert {p.partition: (row.offset, row.metadata) for p, row in found.items()} == {
        0: (3, "by hand"),
        1: (4, "by hand"),
    }
    assert groups.committed(group, logs_of(group, topic, 1)).keys() == logs_of(group, topic, 1)


def test_offsets_of_a_live_group_are_not_altered(kafka: Kafka, members: Members, groups: Groups) -> None:
    topic, group = kafka.topic(1), GroupId(kafka.group_id())
    members.make(group, 0, topic=topic).joined()
    with pytest.raises(GroupNotEmpty, match=rf"stable, with 1 member\(s\): kcr.region.{group}.0000 on 127.0.0.1"):
        groups.alter(group, at(group, topic, p0=3))
    assert kafka.committed(group) == {}


def test_a_partition_that_is_refused_is_named(kafka: Kafka, groups: Groups) -> None:
    topic, group = kafka.topic(1), GroupId(kafka.group_id())
    with pytest.raises(KcrError, match=rf"1 partition\(s\), the others are written: {topic}-7: UNKNOWN_TOPIC_OR_PART"):
        groups.alter(group, at(group, topic, p0=3, p7=1))
    assert kafka.committed(group) == {(topic, 0): 3}


def test_nothing_and_foreign_partitions_are_refused_before_sending(process: AdminProcess, groups: Groups) -> None:
    with pytest.raises(KcrError, match="no offset"):
        groups.alter(GroupId("g"), EMPTY)
    with pytest.raises(KcrError, match="other:t-0"):
        groups.alter(GroupId("g"), at("other", "t", p0=1))
    assert process.pid is None


def test_topics_are_told_from_whose_logs_compaction_takes_records(kafka: Kafka, groups: Groups) -> None:
    plain, both, only = (
        kafka.topic(configs=configs)
        for configs in ({}, {"cleanup.policy": "delete,compact"}, {"cleanup.policy": "compact"})
    )
    asked = [TopicName(name) for name in (plain, both, only, "no-such-topic")]
    assert groups.compacted(asked) == {both, only}
