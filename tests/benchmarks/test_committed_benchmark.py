"""From a request to committed, by the checkpoints that the region has behind it: real members and a real broker."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.region.commands import RequestCheckpoint
from airflow_kcr.protocol.region.rows import Committed
from airflow_kcr.protocol.values import EventNumber, RegionName, RequestId
from tests.benchmarks.figures import Report, Scale, ratio
from tests.support.counted_process import counted_process
from tests.support.kafka import Kafka
from tests.support.long_history import live_through, number_beyond
from tests.support.long_ledger import Statistics
from tests.support.members import Live, live

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(3600)]

PARTITIONS = 12
MEMBERS = (0, 1, 2)
AGES = (0, 1_000_000)
CHECKPOINTS = 5
"""Checkpoints of one round; with five rounds, twenty-five of each region."""

PAUSE = 0.3
"""Seconds between two measurements, in which all notified processes are done with the last one."""


def test_a_checkpoint_of_idle_members_by_the_age_of_the_region(
    kafka: Kafka, durable_store: str, tmp_path: Path, scale: Scale, report: Callable[[str], Report]
) -> None:
    ages = [scale.of(age, 100) if age else 0 for age in AGES]
    taken: dict[int, list[float]] = {age: [] for age in ages}
    with ExitStack() as regions:
        of_age = {age: regions.enter_context(idle(kafka, durable_store, tmp_path / str(age), age)) for age in ages}
        with psycopg.connect(durable_store.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute("ANALYZE")
        for number in range(-1, CHECKPOINTS * scale.rounds):
            for age, region in of_age.items():
                took = request_to_committed(region, f"n{number}")
                if number >= 0:  # the first warms up
                    taken[age].append(took)
    found = report("years-committed")
    found.medians(
        f"{len(MEMBERS)} idle members in one process, an engine without Spark, {PARTITIONS} partitions: ms from a "
        f"request to committed, by the checkpoints behind the region, in turns, {len(taken[ages[0]])} of each",
        "checkpoints",
        {f"{age:,}": values for age, values in taken.items()},
    )
    youngest, *_, oldest = ages
    found.at_most(f"{oldest:,} checkpoints, to none", ratio(taken[oldest], taken[youngest]), 1.2)


@contextmanager
def idle(kafka: Kafka, url: str, folder: Path, checkpoints: int) -> Iterator[Live]:
    """Lend a region whose members have nothing to read, with so many checkpoints behind it."""
    folder.mkdir()

    def number(region: RegionName) -> None:
        number_beyond(url, checkpoints, region=region)

    with (
        live(
            kafka,
            url,
            folder,
            members=len(MEMBERS),
            partitions=PARTITIONS,
            spec="\n",
            declared=number if checkpoints else None,
        ) as region,
        (folder / "log").open("w") as log,
        counted_process(url, region.name, region.group, *MEMBERS, log=log),
    ):
        region.until_running()
        region.shared(*MEMBERS)
        request_to_committed(region, "first")
        if checkpoints:
            live_through(url, checkpoints, region=region.name, statistics=Statistics.NONE)
        yield region


def request_to_committed(region: Live, request_id: str) -> float:
    """Checkpoint, and return how many milliseconds it took until Kafka holds it."""
    after = region.store.read(region.name)[0].counter
    threading.Event().wait(PAUSE)
    began = datetime.now(UTC)
    region.handle(RequestCheckpoint(request_id=RequestId(request_id)))
    found: list[events.Event] = []

    def resolved() -> bool:
        told = region.store.events(region.name, EventNumber(after))
        found[:] = [event for event in told if isinstance(event.body, events.CommitResolved)]
        return bool(found)

    # Looked at from beside, seldom: the times are those of the events.
    threading.Event().wait(PAUSE)
    region.until(resolved, f"checkpoint {request_id} committed")
    (end,) = found
    assert isinstance(end.body, events.CommitResolved)
    assert end.body.committed is Committed.YES
    return (end.at - began) / timedelta(milliseconds=1)
