"""What a batch of few records costs: against one trigger of Structured Streaming, by partitions, and in the store."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import count, islice
from statistics import median
from time import perf_counter
from unittest.mock import patch

import pytest

from airflow_kcr.ports import BatchCall
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region.commands import FinishBatch, StartBatch
from airflow_kcr.protocol.values import (
    BatchId,
    CheckpointNumber,
    Epoch,
    GroupId,
    GroupPartition,
    Incarnation,
    MemberId,
    Offset,
    Range,
    RegionId,
    RegionName,
    Timeline,
    TopicName,
)
from airflow_kcr.spark import reads
from airflow_kcr.spark.engine import SparkEngine
from airflow_kcr.spark.reads import Source
from tests.benchmarks.contenders import member, millis, our_options, shown, streaming
from tests.benchmarks.figures import Report, Scale, in_turns, ratio, spread
from tests.benchmarks.lab import PARTITIONS, Filled, Lab
from tests.benchmarks.pipelines import noop
from tests.benchmarks.scripted import scripted
from tests.support.driver import Driver

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(1800)]

MANY = (6, 50, 200, 1_000)
BATCHES = 20
STORE_PARTITIONS = 100
TURN = 10
"""Batches in the store that are measured one after the other."""


@pytest.mark.parametrize("size", [100, 1_000])
def test_few_records_against_a_trigger(lab: Lab, scale: Scale, report: Callable[[str], Report], size: int) -> None:
    found = report(f"few-records-{size}")
    topic = lab.filled(scale.of(BATCHES, 2) * PARTITIONS, size)
    ours, theirs, same = "member", "streaming", "streaming with our settings"
    contenders = {
        ours: partial(member, lab, topic, PARTITIONS),
        theirs: partial(streaming, lab, topic, most=PARTITIONS),
        same: partial(streaming, lab, topic, most=PARTITIONS, options=our_options()),
    }
    race = in_turns(contenders, scale.rounds)
    found.table(
        f"one record from each of {PARTITIONS} partitions, {size} B, in a backlog of such batches: ms each, "
        "with everything (plan, begin, read, end; offset log, plan, read, commit log)",
        ("who reads", "batches a round", "median", "smallest to largest"),
        shown(race, millis),
    )
    found.at_most(f"{size} B: to one trigger", ratio(millis(race[ours]), millis(race[theirs])), 1.2)


def test_few_records_from_many_partitions(lab: Lab, scale: Scale, report: Callable[[str], Report]) -> None:
    found = report("many-partitions")
    rows = []
    for partitions in MANY if scale.rounds > 1 else MANY[:2]:
        each = 2 * (scale.rounds + 2)
        walk = Walk(lab, lab.filled(partitions * each, 100, partitions))
        cases = {"merged": reads.tasks_for, "apart": _one_each}
        taken: dict[str, list[float]] = {name: [] for name in cases}
        for number in range(scale.rounds + 2):
            for name, tasks in cases.items():
                taken_now = walk.step(tasks)
                # The first opens the consumers; the second is the first of the other kind.
                if number >= 2:
                    taken[name].append(taken_now)
        merged, apart = taken["merged"], taken["apart"]
        rows.append((partitions, walk.tasks, median(merged), spread(merged), median(apart), spread(apart)))
    found.table(
        "one record from each partition: ms a batch in the engine, ranges merged into few tasks, and a task for each",
        ("partitions", "tasks", "merged", "smallest to largest", "a task each", "smallest to largest "),
        rows,
    )


def _one_each(ranges: Mapping[GroupPartition, Range], cores: int) -> int:
    return len(ranges)


class Walk:
    """Batches of one record from each partition, one after the other.

    Args:
        lab: where.
        topic: what is read.
    """

    def __init__(self, lab: Lab, topic: Filled) -> None:
        self.lab, self.topic = lab, topic
        self._member = MemberId(GroupId("bench"), 0)
        source = Source(
            region_id=RegionId("1"), region=RegionName(topic.name), member=self._member, kafka=lab.kafka.settings
        )
        self._engine = SparkEngine(lab.spark, noop, source)
        self._numbers = count()
        self._cores = lab.spark.sparkContext.defaultParallelism

    @property
    def tasks(self) -> int:
        """How many tasks a member reads such a batch with."""
        return reads.tasks_for(self._ranges(0), self._cores)

    def step(self, tasks: Callable[[Mapping[GroupPartition, Range], int], int]) -> float:
        """Run the next batch, and return how many milliseconds it took."""
        number = next(self._numbers)
        ranges = self._ranges(number)
        call = BatchCall(
            region=RegionName(self.topic.name),
            member=self._member,
            batch=BatchId(f"{self.topic.name}-{number}"),
            epoch=Epoch(1),
            timeline=Timeline(1),
            sequence=CheckpointNumber(1),
            ranges=ranges,
            progress=OffsetMap({p: range_.to for p, range_ in ranges.items()}),
        )
        with patch.object(reads, "tasks_for", tasks):
            began = perf_counter()
            self._engine.run(call)
            return (perf_counter() - began) * 1000

    def _ranges(self, number: int) -> dict[GroupPartition, Range]:
        group, topic = GroupId("bench"), TopicName(self.topic.name)
        return {
            GroupPartition(group, topic, n): Range(Offset(number), Offset(number + 1))
            for n in range(self.topic.partitions)
        }


def test_begin_and_end_in_the_store(durable_store: str, scale: Scale, report: Callable[[str], Report]) -> None:
    found = report("store")
    with scripted(durable_store, STORE_PARTITIONS) as (driver, _):
        driver.up()
        numbers = count()
        taken: dict[str, list[tuple[float, float]]] = {"beside other work": [], "nothing else runs": []}
        for _ in range(scale.rounds):
            for where, beside in (("beside other work", _work_beside()), ("nothing else runs", nullcontext())):
                with beside:
                    numbered = islice(numbers, TURN)
                    taken[where] += [_begin_and_end(driver, driver.logs.keys(), number) for number in numbered]
    both = {where: [begin + end for begin, end in times] for where, times in taken.items()}
    found.table(
        f"a batch of {STORE_PARTITIONS} partitions in the store, COMMITs on the disk, over TCP: ms",
        ("where", "begin", "end", "both", "smallest to largest"),
        [
            (
                where,
                median(begin for begin, _ in times),
                median(end for _, end in times),
                median(both[where]),
                spread(both[where]),
            )
            for where, times in taken.items()
        ],
    )
    # Times, which is how they are wanted; no others are shown as goals.
    for where, sums in both.items():
        found.at_most(f"{where}: begin and end at {STORE_PARTITIONS} partitions, of 10 ms", median(sums) / 10, 1)


@contextmanager
def _work_beside() -> Iterator[None]:
    """Keep one core busy, as Spark does beside the start and the end of a batch.

    A machine that does nothing else falls asleep between two statements, and takes time to wake up.
    """
    working = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        working.kill()
        working.wait()


def _begin_and_end(driver: Driver, held: Collection[GroupPartition], number: int) -> tuple[float, float]:
    member_id, batch = driver.member(0), BatchId(f"b-{driver.name}-{number}")
    claims = driver.region.claims
    ranges = {p: Range(place, Offset(place + 100)) for p in held if (place := claims[p].position) is not None}
    request = StartBatch(
        batch=batch, member=member_id, incarnation=Incarnation(1), epoch=driver.region.epoch, ranges=ranges
    )
    driver.heartbeat()
    began = perf_counter()
    driver.handle(request)
    between = perf_counter()
    driver.handle(FinishBatch(batch=batch, member=member_id, incarnation=Incarnation(1)))
    return (between - began) * 1000, (perf_counter() - between) * 1000
