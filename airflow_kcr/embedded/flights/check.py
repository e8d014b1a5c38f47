"""The example judged as a whole: result and counts up to a checkpoint, from store, output and topic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from airflow_kcr.embedded.flights import direct, ledger, result
from airflow_kcr.embedded.flights.result import Comparison, Counts
from airflow_kcr.embedded.flights.spec import GROUP
from airflow_kcr.errors import CheckpointNotUsable
from airflow_kcr.protocol.region.rows import Batch
from airflow_kcr.protocol.region.state import Region, initial_offsets
from airflow_kcr.protocol.values import CheckpointNumber, GroupId, GroupPartition, MemberId, Offset, Range, RegionName
from airflow_kcr.spark import reads

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What to judge.

    Args:
        region: as the store has it.
        batches: its ledger.
        output: where the pipeline wrote to.
        kafka: client settings as Kafka's Java client names them, secrets filled in.
        group: of the pipeline.
        sequence: of the checkpoint; None: the newest one.
        flights: the flights of the topic as a CSV file (`data.write_flights`), to compare with the source as well.
    """

    region: Region
    batches: tuple[Batch, ...]
    output: str
    kafka: Mapping[str, str] = field(repr=False)
    group: GroupId = GROUP
    sequence: CheckpointNumber | None = None
    flights: Path | None = None


class Carrier(NamedTuple):
    """One line of the result by carrier."""

    carrier: str
    airline: str | None
    flights: int
    cancelled: int
    dep_delay_sum: int | None
    arr_delay_sum: int | None
    with_precipitation: int
    without_weather: int
    dep_delay_max: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The answer."""

    counts: Counts
    with_topic: Comparison
    """With the same computed from the topic's records up to the checkpoint."""

    with_file: Comparison | None
    """With the same computed from the CSV file; equal only when all of its flights are in the checkpoint."""

    carriers: tuple[Carrier, ...]

    @property
    def sound(self) -> bool:
        """Whether everything is there once, and adds up to what was computed directly."""
        return self.counts.exact and self.with_topic.equal and (self.with_file is None or self.with_file.equal)


def judge(spark: SparkSession, question: Question) -> Judgement:
    """Compare the region's result up to a checkpoint with the same computed directly, and count records.

    Raises:
        UnknownCheckpoint: there is none, or none of that sequence.
        CheckpointNotUsable: it can't be compared with, or has no records.
        ConfigurationError: there is no output.
        ToolMissing: the package with the tables is not installed.
    """
    end = ledger.checkpoint_offsets(question.region, question.group, question.sequence)
    begin = initial_offsets(question.region)
    ranges = {place: Range(begin.get(place, Offset(0)), offset) for place, offset in end.items()}
    read = partial(_read, spark, question)
    if not any(range_.width for range_ in ranges.values()):
        raise CheckpointNotUsable(f"the checkpoint of region {question.region.name} has no records to compare")
    pieces = ledger.pieces(question.batches, question.group, end)
    file = question.flights
    with (
        _kept(result.read_output(spark, question.output)) as written,
        _kept(result.accepted_output(written, pieces, read)) as accepted,
    ):
        found = result.fold(accepted)
        return Judgement(
            counts=result.count(written, pieces, accepted, read(ranges)),
            with_topic=result.compare(found, direct.from_topic(spark, read(ranges))),
            with_file=None if file is None else result.compare(found, direct.from_csv(spark, file)),
            carriers=tuple(Carrier(*row) for row in result.by_carrier(found).collect()),
        )


@contextmanager
def _kept(frame: DataFrame) -> Iterator[DataFrame]:
    """Hold rows that several jobs look at: the output is many small files."""
    frame.persist()
    try:
        yield frame
    finally:
        frame.unpersist()


def _read(spark: SparkSession, question: Question, ranges: Mapping[GroupPartition, Range]) -> DataFrame:
    # Under a name of its own, so that a member in the same application keeps its executors' consumers.
    source = reads.Source(
        region=RegionName(f"{question.region.name}-check"), member=MemberId(question.group, 0), kafka=question.kafka
    )
    return reads.read(spark, source, ranges, question.region.timeline)
