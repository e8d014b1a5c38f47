"""The example judged as a whole: result and counts up to a checkpoint, from store, output and topic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from airflow_kcr.embedded.flights import data, result
from airflow_kcr.embedded.flights.result import RecordCounts, ResultComparison
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
class FlightsQuestion:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightsJudgement:
    """The answer."""

    counts: RecordCounts
    with_topic: ResultComparison
    """With the same computed from the topic's records up to the checkpoint."""

    with_file: ResultComparison | None
    """With the same computed from the CSV file; equal only when all of its flights are in the checkpoint."""

    @property
    def sound(self) -> bool:
        """Whether everything is there once, and adds up to what was computed directly."""
        return self.counts.exact and self.with_topic.equal and (self.with_file is None or self.with_file.equal)


def judge(spark: SparkSession, question: FlightsQuestion) -> FlightsJudgement:
    """Compare the region's result up to a checkpoint with the same computed directly, and count records.

    Raises:
        UnknownCheckpoint: there is none, or none of that sequence.
        CheckpointNotUsable: it can't be compared with, or has no records.
        ConfigurationError: there is no output.
        ToolMissing: the package with the tables is not installed.
    """
    end = result.checkpoint_offsets(question.region, question.group, question.sequence)
    begin = initial_offsets(question.region)
    ranges = {place: Range(begin.get(place, Offset(0)), offset) for place, offset in end.items()}
    read = partial(_read, spark, question)
    if not any(range_.width for range_ in ranges.values()):
        raise CheckpointNotUsable(f"the checkpoint of region {question.region.name} has no records to compare")
    pieces = result.pieces(question.batches, question.group, end)
    file = question.flights
    with (
        _kept(result.read_output(spark, question.output)) as written,
        _kept(result.accepted_output(written, pieces, read)) as accepted,
    ):
        found = result.fold(accepted)
        return FlightsJudgement(
            counts=result.count(written, pieces, accepted, read(ranges)),
            with_topic=result.compare(found, from_topic(spark, read(ranges))),
            with_file=None if file is None else result.compare(found, from_csv(spark, file)),
        )


@contextmanager
def _kept(frame: DataFrame) -> Iterator[DataFrame]:
    """Cache rows that several jobs read: the output is many small files."""
    frame.persist()
    try:
        yield frame
    finally:
        frame.unpersist()


def _read(spark: SparkSession, question: FlightsQuestion, ranges: Mapping[GroupPartition, Range]) -> DataFrame:
    # Under a name of its own, so that a member in the same application keeps its executors' consumers.
    source = reads.Source(
        region=RegionName(f"{question.region.name}-check"), member=MemberId(question.group, 0), kafka=question.kafka
    )
    return reads.Reader(spark, source).read(ranges, question.region.timeline)


# The delays by carrier and hour in one go, without batches, ledger and pipeline: what the region's result must equal.
#
# Written a second time on purpose, in SQL over the package's files, and with another way into the JSON: a mistake in
# the pipeline shall not be made here as well. The files are read where the tasks run, so the master is `local[…]`, or
# the executors see the same folders.

_DELAYS: Final = """
    WITH wet AS (
        SELECT origin, year, month, day, hour, max(CAST(precip AS DOUBLE)) AS inches
        FROM {weather} GROUP BY origin, year, month, day, hour
    )
    SELECT f.carrier, any_value(a.name) AS airline, f.year, f.month, f.day, f.hour,
           count(*) AS flights,
           count(*) - count(f.dep_delay) AS cancelled,
           sum(f.dep_delay) AS dep_delay_sum,
           sum(f.arr_delay) AS arr_delay_sum,
           sum(CASE WHEN w.inches > 0 THEN 1 ELSE 0 END) AS with_precipitation,
           sum(CASE WHEN w.inches IS NULL THEN 1 ELSE 0 END) AS without_weather,
           max(f.dep_delay) AS dep_delay_max
    FROM {flights} f
    LEFT JOIN wet w
        ON w.origin = f.origin AND w.year = f.year AND w.month = f.month AND w.day = f.day AND w.hour = f.hour
    LEFT JOIN {airlines} a ON a.carrier = f.carrier
    GROUP BY f.carrier, f.year, f.month, f.day, f.hour
"""

_FROM_TOPIC: Final = """
    WITH raw AS (
        SELECT j.* FROM {records}
        LATERAL VIEW json_tuple(
            CAST(value AS STRING), 'carrier', 'origin', 'scheduled', 'year', 'month', 'day', 'hour', 'dep_delay',
            'arr_delay'
        ) j AS carrier, origin, scheduled, year, month, day, hour, dep_delay, arr_delay
    )
    SELECT carrier, origin,
           try_cast(year AS INT) AS year, try_cast(month AS INT) AS month,
           try_cast(day AS INT) AS day, try_cast(hour AS INT) AS hour,
           try_cast(dep_delay AS INT) AS dep_delay, try_cast(arr_delay AS INT) AS arr_delay
    FROM raw
    WHERE carrier IS NOT NULL AND origin IS NOT NULL AND try_cast(scheduled AS TIMESTAMP) IS NOT NULL
      AND try_cast(year AS INT) + try_cast(month AS INT) + try_cast(day AS INT) + try_cast(hour AS INT) IS NOT NULL
      AND (dep_delay IS NULL OR try_cast(dep_delay AS INT) IS NOT NULL)
      AND (arr_delay IS NULL OR try_cast(arr_delay AS INT) IS NOT NULL)
"""
_NUMBERS: Final = ("year", "month", "day", "hour", "dep_delay", "arr_delay")


def from_csv(spark: SparkSession, flights: Path) -> DataFrame:
    """Return the delays computed from a CSV file of flights (`data.write_flights`).

    Raises:
        ToolMissing: the package is not installed.
    """
    numbers = (f"CAST({name} AS INT) AS {name}" for name in _NUMBERS)
    return _delays(spark, _csv(spark, flights).selectExpr("carrier", "origin", *numbers))


def from_topic(spark: SparkSession, records: DataFrame) -> DataFrame:
    """Return the delays computed from the records of a topic; those that are no flights are left out.

    Args:
        spark: the session.
        records: as Spark's Kafka connector gives them.

    Raises:
        ToolMissing: the package is not installed.
    """
    return _delays(spark, spark.sql(_FROM_TOPIC, records=records))


def _delays(spark: SparkSession, flights: DataFrame) -> DataFrame:
    folder = data.folder()
    weather, airlines = _csv(spark, folder / "weather.csv"), _csv(spark, folder / "airlines.csv")
    return spark.sql(_DELAYS, flights=flights, weather=weather, airlines=airlines)


def _csv(spark: SparkSession, path: Path) -> DataFrame:
    return spark.read.csv(path.as_uri(), header=True, nullValue=data.NOT_AVAILABLE)
