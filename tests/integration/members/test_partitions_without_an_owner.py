"""Partitions that Kafka assigns to nobody: a static member that comes back gets its old assignment, whatever was added.

Real broker, real store, members in processes of their own. The session is longer than any of them is away, so Kafka
never rebalances by itself: whoever reads the new partitions does so because the region found out.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_kcr.protocol.region import events
from tests.integration.members.conftest import Lend
from tests.support import faults
from tests.support.faults import Note, finished, told
from tests.support.kafka import Kafka
from tests.support.members import PATIENT, live

pytestmark = pytest.mark.timeout(240)

DYNAMIC = ", static_membership: false"


def test_partitions_added_while_the_only_member_is_down_are_read_when_it_is_back(
    lend: Lend, record_property: Note
) -> None:
    with lend(members=1, partitions=2, spec=PATIENT) as region:
        first = region.start(0)
        region.shared(0)
        region.fill(20)
        finished(region)
        first.kill()
        region.kafka.add_partitions(region.topic, 4)
        region.fill(30)
        region.start(0)
        finished(region, 90)
        assert region.owners() == dict.fromkeys(range(4), 0)
        assert told(region, events.PartitionsUnowned), "the region never knew"
        faults.judged(region, record_property)


@pytest.mark.parametrize("down", [(0,), (1, 2)], ids=["the leader", "two of three"])
def test_partitions_added_while_some_members_are_down_are_read_when_all_are_back(
    lend: Lend, record_property: Note, down: tuple[int, ...]
) -> None:
    with lend(members=3, partitions=6, spec=PATIENT) as region:
        processes = [region.start(index) for index in range(3)]
        region.shared(0, 1, 2)
        region.fill(20)
        finished(region)
        for index in down:
            processes[index].kill()
        region.kafka.add_partitions(region.topic, 8)
        region.fill(30)
        for index in down:
            region.start(index)
        finished(region, 120)
        assert set(region.owners()) == set(range(8))
        faults.judged(region, record_property)


def test_a_topic_that_a_pattern_matches_and_that_was_made_while_the_member_was_down_is_read(
    kafka: Kafka, database_url: str, tmp_path: Path
) -> None:
    with live(
        kafka, database_url, tmp_path, members=1, partitions=2, spec=PATIENT, subscription="pattern: '^{topic}.*'"
    ) as region:
        first = region.start(0)
        region.shared(0)
        first.kill()
        fresh = kafka.topic(2, name=f"{region.topic}-fresh")
        kafka.fill(fresh, {0: 10, 1: 10})
        region.start(0)
        region.until(lambda: len(region.region().claims) == 4 and region.consumed(fresh), "the new topic read", 90)


def test_a_topic_that_was_made_anew_with_more_partitions_while_the_member_was_down_is_read(lend: Lend) -> None:
    with lend(members=1, partitions=2, spec=f"out_of_range: earliest\nbeyond_end: earliest\n{PATIENT}") as region:
        first = region.start(0)
        region.shared(0)
        region.fill(20)
        finished(region)
        first.kill()
        region.kafka.delete_topic(region.topic)
        region.kafka.topic(4, name=region.topic)
        region.fill(5)
        region.start(0)
        region.until(lambda: set(region.owners()) == set(range(4)) and region.consumed(), "the new topic read", 90)


def test_partitions_added_while_all_dynamic_members_are_down_are_read(lend: Lend, record_property: Note) -> None:
    with lend(members=2, partitions=2, spec=PATIENT.replace("session: 25s", "session: 7s"), group=DYNAMIC) as region:
        processes = [region.start(index) for index in range(2)]
        region.shared(0, 1)
        region.fill(20)
        finished(region)
        for process in processes:
            process.kill()
        region.kafka.add_partitions(region.topic, 4)
        region.fill(30)
        for index in range(2):
            region.start(index)
        finished(region, 90)
        faults.judged(region, record_property)


def test_partitions_added_while_the_region_was_stopped_are_read(lend: Lend, record_property: Note) -> None:
    with lend(members=1, partitions=2, spec=PATIENT) as region:
        first = region.start(0)
        region.shared(0)
        region.fill(20)
        finished(region)
        region.store.stop(region.name)
        assert first.wait(60) == 0
        region.kafka.add_partitions(region.topic, 4)
        region.fill(30)
        region.store.start(region.name)
        region.start(0)
        finished(region, 90)
        faults.judged(region, record_property)
