"""What the tests of Spark's engine run: engines of made-up members, batches of given ranges, runs in a thread."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from airflow_kcr.embedded.processes import happened
from airflow_kcr.ports import BatchCall, BatchReport
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.values import (
    BatchId,
    CheckpointNumber,
    Epoch,
    GroupId,
    GroupPartition,
    MemberId,
    Offset,
    Range,
    RegionId,
    RegionName,
    Timeline,
    TopicName,
)
from airflow_kcr.spark.context import BatchContext, SinkWriter
from airflow_kcr.spark.engine import SparkEngine
from airflow_kcr.spark.pipelines import Pipeline
from airflow_kcr.spark.reads import Source
from tests.support.kafka import Kafka

WITHIN = 120.0
GROUP = GroupId("group")
REGION = RegionName("region")

_numbers = itertools.count(1)


def noop(batch: DataFrame, context: BatchContext) -> None:
    """Read everything, keep nothing."""
    batch.write.format("noop").mode("overwrite").save()


class Collected:
    """A pipeline that brings its records to the driver, which only a test may do."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, int, int, str]] = []

    def __call__(self, batch: DataFrame, context: BatchContext) -> None:
        """Collect."""
        columns = batch.selectExpr("topic", "partition", "offset", "cast(value as string)")
        self.rows = [(row[0], row[1], row[2], row[3]) for row in columns.collect()]

    def offsets(self, partition: int = 0) -> list[int]:
        """The offsets read of one partition, in the order in which they were read."""
        return [row[2] for row in self.rows if row[1] == partition]


def source_of(
    kafka: Mapping[str, str], index: int = 0, options: Mapping[str, str] | None = None, region: str = REGION
) -> Source:
    """What member `index` reads, with these settings of its client."""
    return Source(
        region_id=RegionId("1"),
        region=RegionName(region),
        member=MemberId(GROUP, index),
        kafka=kafka,
        options=options or {},
    )


def said_by(module: str, *arguments: object) -> str:
    """Run a module of this folder in a process of its own, with its own Spark, and return what it prints."""
    ran = subprocess.run(
        [sys.executable, "-m", f"tests.integration.spark.{module}", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=Path(__file__).parents[3],
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


class Bench:
    """Engines and batches on one session and one broker."""

    def __init__(self, spark: SparkSession, kafka: Kafka) -> None:
        self.spark = spark
        self.kafka = kafka

    def engine(
        self,
        pipeline: Pipeline,
        index: int = 0,
        options: Mapping[str, str] | None = None,
        region: str = REGION,
        writers: Callable[[BatchCall], Mapping[str, SinkWriter]] = lambda call: {},
    ) -> SparkEngine:
        """An engine of member `index`."""
        source = source_of(self.kafka.settings, index, options, region)
        return SparkEngine(self.spark, pipeline, source, writers)

    def read(self, topic: str, ranges: Mapping[int, tuple[int, int]]) -> Collected:
        """Run a batch and return what it read."""
        collected = Collected()
        self.engine(collected).run(call(topic, ranges))
        return collected


def call(topic: str, ranges: Mapping[int, tuple[int, int]], index: int = 0, timeline: int = 1) -> BatchCall:
    """A batch of these ranges, by partition, with an id that no other has."""
    found = {
        GroupPartition(GROUP, TopicName(topic), partition): Range(Offset(begin), Offset(end))
        for partition, (begin, end) in ranges.items()
    }
    return BatchCall(
        region=REGION,
        member=MemberId(GROUP, index),
        batch=BatchId(f"batch-{next(_numbers)}"),
        epoch=Epoch(1),
        timeline=Timeline(timeline),
        sequence=CheckpointNumber(1),
        ranges=found,
        progress=OffsetMap({partition: range_.to for partition, range_ in found.items()}),
    )


def started(engine: SparkEngine, batch: BatchCall) -> Future[BatchReport]:
    """Run a batch in a thread of its own."""
    future: Future[BatchReport] = Future()

    def run() -> None:
        try:
            future.set_result(engine.run(batch))
        except BaseException as error:  # noqa: BLE001 (handed to the caller of the result)
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def wait_until(condition: Callable[[], bool], what: str, within: float = WITHIN) -> None:
    """Return when the condition holds."""
    if not happened(condition, within=within):
        raise TimeoutError(f"{what}: not seen within {within:g} s")
