"""Spark, and a topic with flights and a ledger of the batches that consumed them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_kcr.embedded.flights import pipeline, producer
from airflow_kcr.embedded.flights.result import FlightsJudgement, judge
from airflow_kcr.protocol.region.rows import Batch, Outcome
from airflow_kcr.protocol.values import (
    BatchId,
    CheckpointNumber,
    Epoch,
    EventNumber,
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
from airflow_kcr.spark import BatchContext, reads
from airflow_kcr.spark.session import member_session
from tests.support.kafka import Kafka

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOW = datetime(2026, 1, 1, tzinfo=UTC)
REGION = RegionName("flights")
GROUP = GroupId("flights-etl")
MEMBER = MemberId(GROUP, 0)
CHECKPOINT = CheckpointNumber(2)
FLIGHTS = 12_000


@pytest.fixture(scope="session")
def spark(spark: SparkSession) -> SparkSession:
    """A member's session in the worker's JVM."""
    return member_session(spark)


@dataclass(slots=True, kw_only=True)
class Run:
    """A run of the region, with a ledger that a test writes: batches done by the real pipeline, on a real topic."""

    spark: SparkSession
    topic: TopicName
    output: Path
    kafka: Mapping[str, str]
    ends: Mapping[int, int]
    rows: list[Batch] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    @property
    def places(self) -> list[GroupPartition]:
        return [GroupPartition(GROUP, self.topic, number) for number in sorted(self.ends)]

    def read(self, ranges: Mapping[GroupPartition, Range]) -> DataFrame:
        source = reads.Source(region=REGION, region_id=RegionId("1"), member=MEMBER, kafka=self.kafka)
        return reads.Reader(self.spark, source).read(ranges, Timeline(1))

    def work(self, row: Batch) -> None:
        """Run the pipeline for a batch, whatever the ledger says of it."""
        context = BatchContext(
            region=REGION,
            member=row.member,
            batch_id=row.batch,
            epoch=row.epoch,
            timeline=row.timeline,
            sequence=row.sequence,
            ranges={place.topic_partition: range_ for place, range_ in row.ranges.items()},
        )
        pipeline.process(self.read(row.ranges), context)

    def batch(
        self,
        begin: Mapping[int, int],
        end: Mapping[int, int],
        *,
        outcome: Outcome | None = Outcome.DONE,
        undone_from: Mapping[int, int] | None = None,
    ) -> Batch:
        """A batch of [begin, end) of every partition, worked on and in the ledger."""
        row = Batch(
            batch=BatchId(f"token-{next(self._numbers)}"),
            member=MEMBER,
            incarnation=Incarnation(1),
            epoch=Epoch(1),
            timeline=Timeline(1),
            sequence=CHECKPOINT,
            ranges={
                place: Range(Offset(begin[place.partition]), Offset(end[place.partition]))
                for place in self.places
                if begin[place.partition] < end[place.partition]
            },
            started_at=NOW,
            started_after=EventNumber(1),
            outcome=outcome,
            undone_from={
                GroupPartition(GROUP, self.topic, number): Offset(offset)
                for number, offset in (undone_from or {}).items()
            },
        )
        self.work(row)
        self.rows.append(row)
        return row

    def folder(self, row: Batch) -> Path:
        return Path(pipeline.batch_folder(str(self.output), row.batch))

    def judged(self, checkpoint: Mapping[int, int] | None = None, first: int | None = None) -> FlightsJudgement:
        """The judgement, where the checkpoint is at these offsets, or at the ends."""
        ends = checkpoint or self.ends
        offsets = {place: Offset(ends[place.partition]) for place in self.places}
        return judge(self.spark, offsets, self.rows, str(self.output), self.kafka, first)


def is_sound(found: FlightsJudgement) -> bool:
    """Whether everything is there once, and adds up to what was computed directly."""
    return not (found.missing or found.surplus or found.unlike_topic or found.unlike_source)


def halves(ends: Mapping[int, int]) -> dict[int, int]:
    return {number: end // 2 for number, end in ends.items()}


def nowhere(ends: Mapping[int, int]) -> dict[int, int]:
    return dict.fromkeys(ends, 0)


@pytest.fixture(scope="session")
def topic(kafka: Kafka) -> TopicName:
    """A topic with the first flights."""
    name = kafka.group_id("flights")
    producer.ensure_topic(kafka.settings, name)
    producer.produce(kafka.settings, topic=name, first=FLIGHTS)
    return TopicName(name)


@pytest.fixture(scope="session")
def consumed(spark: SparkSession, kafka: Kafka, topic: TopicName, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of two batches that consumed everything; a test takes a copy of it."""
    output = tmp_path_factory.mktemp("consumed")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(pipeline.OUTPUT_VARIABLE, str(output))
        run = Run(spark=spark, topic=topic, output=output, kafka=kafka.settings, ends=kafka.ends(topic))
        run.batch(nowhere(run.ends), halves(run.ends))
        run.batch(halves(run.ends), run.ends)
    return run


@pytest.fixture
def run(consumed: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A copy of the consumed run, whose output this test may change."""
    output = tmp_path / "output"
    shutil.copytree(consumed.output, output)
    monkeypatch.setenv(pipeline.OUTPUT_VARIABLE, str(output))
    return replace(consumed, output=output, rows=list(consumed.rows), _numbers=count(100))


@pytest.fixture
def empty_run(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> partial[Run]:
    """Makes a run over a topic of this test's own."""
    monkeypatch.setenv(pipeline.OUTPUT_VARIABLE, str(tmp_path / "output"))
    return partial(Run, spark=spark, output=tmp_path / "output")
