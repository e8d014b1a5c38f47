"""Partitions that Kafka assigns to no member: a static member that comes back gets its old assignment, whatever was
added.

Real broker, real store, members in processes of their own. The session is longer than any of them is away, so Kafka
never rebalances by itself: the new partitions are read only because the region found out.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_kcr.api import Region
from airflow_kcr.api.group_readers import real_reader
from airflow_kcr.api.validation import validate
from airflow_kcr.protocol.evidence import CheckVerdict
from airflow_kcr.protocol.region import coverage, events
from airflow_kcr.protocol.region.commands import RequestCheckpoint
from airflow_kcr.protocol.validation import Check, Question
from airflow_kcr.protocol.values import RequestId
from tests.conftest import StartKafka
from tests.integration.members.conftest import Lend
from tests.support import faults
from tests.support.faults import Note, finished, told
from tests.support.kafka import Kafka
from tests.support.members import PATIENT, Live, Process, live

pytestmark = pytest.mark.timeout(240)

LONG_BATCHES = PATIENT.replace("timeout: 12s", "timeout: 60s").replace("drain: 15s", "drain: 90s")


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
def test_partitions_added_while_the_only_member_is_down_are_read_though_the_coordinator_moved(
    kafka_set: StartKafka, database_url: str, tmp_path: Path, record_property: Note
) -> None:
    kafka = kafka_set(3)
    with live(kafka, database_url, tmp_path, members=1, partitions=2, spec=PATIENT) as region:
        first = region.start(0)
        region.shared(0)
        region.fill(20)
        finished(region)
        first.kill()
        kafka.coordinator(region.group).kill()
        kafka.add_partitions(region.topic, 4)
        region.fill(30)
        region.start(0)
        finished(region, 120)
        assert region.owners() == dict.fromkeys(range(4), 0)
        faults.judged(region, record_property)


def starting(region: Live, first: Process) -> str:
    return "resetting"


def resetting(region: Live, first: Process) -> str:
    in_work(region, first)
    first.gate("resetting")
    region.reset()
    return "resetting"


def draining(region: Live, first: Process) -> str:
    in_work(region, first)
    first.gate("contributing")
    region.handle(RequestCheckpoint(request_id=RequestId("while it grows")))
    return "contributing"


def in_work(region: Live, first: Process) -> None:
    """Let the start go on, and bring the region to a first checkpoint."""
    first.open("resetting")
    region.shared(0, 1)
    region.fill(20)
    finished(region)


@pytest.mark.long
@pytest.mark.parametrize("phase", [starting, resetting, draining])
def test_partitions_added_in_any_phase_with_a_member_down_are_read(
    lend: Lend, record_property: Note, phase: Callable[[Live, Process], str]
) -> None:
    with lend(members=2, partitions=2, spec=PATIENT) as region:
        first, second = region.start(0, gates=("resetting",)), region.start(1)
        gate = phase(region, first)
        region.until(lambda: first.reached(gate), f"held in {phase.__name__}")
        second.kill()
        region.kafka.add_partitions(region.topic, 4)
        region.fill(30)
        first.open(gate)
        region.start(1)
        finished(region, 120)
        assert set(region.owners()) == set(range(4))
        faults.judged(region, record_property)


def claims_of(region: Live) -> Check:
    """What the validation says of the claims."""
    found = validate(region.store, region.name, real_reader)
    return next(check for check in found.checks if check.question is Question.CLAIMS)


@pytest.mark.long
def test_partitions_that_no_member_owns_are_counted_as_lag_and_fail_the_validation(lend: Lend) -> None:
    # The member has a batch at work meanwhile, and joins anew between two batches only.
    with lend(members=1, partitions=2, spec=LONG_BATCHES) as region:
        first = region.start(0)
        region.shared(0)
        region.fill(20)
        finished(region)
        first.kill()
        region.kafka.add_partitions(region.topic, 4)
        region.fill(30)
        second = region.start(0, gates=("processing",))
        region.until(lambda: len(coverage.unowned(region.region())) == 2, "two partitions without an owner", 90)
        with Region(region.name, region.store) as opened:
            lags = {row.partition.partition: (row.lag, row.member) for row in opened.lag()}
        assert [lags[n] for n in (2, 3)] == [(30, None), (30, None)]
        region.until(lambda: claims_of(region).verdict is CheckVerdict.FAILED, "the validation fails")
        assert f"{region.topic}-2 has had no owner since" in claims_of(region).detail
        second.open("processing")
        finished(region, 90)
        assert claims_of(region).verdict is CheckVerdict.OK
        assert {row.lag for row in Region(region.name, region.store).lag()} == {0}
