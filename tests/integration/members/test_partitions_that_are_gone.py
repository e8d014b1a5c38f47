"""Partitions that the brokers have no more: they leave the region, which goes on with those that there are.

Real broker, real store, members in processes of their own. The session is longer than any of them is away: a static
member that comes back gets its old assignment, with partitions in it that no longer exist.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.values import GroupId, GroupPartition, TopicName
from tests.integration.members.conftest import Lend, in_both_protocols
from tests.support.faults import finished, told
from tests.support.kafka import Kafka
from tests.support.members import PATIENT, Live, live

pytestmark = pytest.mark.timeout(240)

EARLIEST = f"out_of_range: earliest\nbeyond_end: earliest\n{PATIENT}"


def gone(live: Live) -> set[GroupPartition]:
    """The partitions of which the region was told that the brokers have them no more."""
    return {p for body in told(live, events.PartitionsGone) for p in body.partitions}


@in_both_protocols
@pytest.mark.parametrize(
    "down", [pytest.param((0,), id="one of two", marks=pytest.mark.long), pytest.param((0, 1), id="all")]
)
def test_a_topic_made_anew_with_fewer_partitions_while_members_are_down_is_read(
    lend: Lend, down: tuple[int, ...]
) -> None:
    with lend(members=2, partitions=4, spec=EARLIEST) as region:
        processes = [region.start(index) for index in range(2)]
        region.shared(0, 1)
        region.fill(20)
        finished(region)
        for index in down:
            processes[index].kill()
        region.kafka.delete_topic(region.topic)
        region.kafka.topic(2, name=region.topic)
        region.fill(5)
        for index in down:
            region.start(index)
        lost = {GroupPartition(GroupId(region.group), TopicName(region.topic), n) for n in (2, 3)}
        region.until(lambda: gone(region) == lost and region.consumed(), "the new topic read", 120)
        region.until(lambda: set(region.owners()) == {0, 1}, "two partitions owned", 60)
        region.checkpoint()


@pytest.mark.long
@in_both_protocols
def test_a_listed_topic_deleted_while_the_member_was_down_is_given_up_and_the_others_are_read(
    kafka: Kafka, database_url: str, tmp_path: Path, spoken: str
) -> None:
    other = kafka.topic(2)
    reads = f"topics: [{{topic}}, {other}]"
    with live(
        kafka, database_url, tmp_path, members=1, partitions=2, spec=PATIENT, subscription=reads, group=spoken
    ) as region:
        first = region.start(0)
        region.shared(0)
        kafka.fill(other, {0: 10, 1: 10})
        region.until(lambda: region.consumed(other), "both read")
        first.kill()
        kafka.delete_topic(other)
        region.fill(20)
        region.start(0)
        finished(region, 120)
        region.checkpoint()
        assert {p.topic for p in gone(region)} == {other}


@pytest.mark.long
@in_both_protocols
def test_a_listed_topic_deleted_while_its_reader_lives_is_given_up(
    kafka: Kafka, database_url: str, tmp_path: Path, spoken: str
) -> None:
    other = kafka.topic(2)
    reads = f"topics: [{{topic}}, {other}]"
    with live(
        kafka, database_url, tmp_path, members=1, partitions=2, spec=PATIENT, subscription=reads, group=spoken
    ) as region:
        region.start(0)
        region.shared(0)
        region.until(lambda: region.consumed(other), "both claimed")
        kafka.delete_topic(other)
        region.fill(20)
        finished(region, 120)
        region.until(lambda: bool(gone(region)), "the topic given up", 60)
        region.checkpoint()
