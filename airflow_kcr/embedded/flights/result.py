"""The region's result up to a checkpoint, the same computed directly, and whether both and the counts agree.

The result is the sum of what accepted batches wrote; it is compared group by group, and records are counted, for a sum
can be right by accident. Read region and ledger when the region is at rest: a reset in between would undo what was just
added up.

Which part of a pipeline's output counts, the ledger alone says. A folder of output is there whether its batch was
accepted or not: the batch may have been discarded, its member may have vanished, a reset may have undone it. Only
accepted ranges below a checkpoint's offsets describe that checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial, reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from airflow_kcr.embedded.flights import data, pipeline
from airflow_kcr.embedded.flights.data import GROUP
from airflow_kcr.embedded.flights.pipeline import FLIGHT, KEY, MALFORMED, MAXIMA, OUTPUT_SCHEMA, SUMS
from airflow_kcr.errors import CheckpointNotUsable, ConfigurationError, UnknownCheckpoint
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region.completion import newest_usable
from airflow_kcr.protocol.region.rows import Batch, Outcome
from airflow_kcr.protocol.region.state import Region, checkpoint_of, initial_offsets, offsets_of
from airflow_kcr.protocol.values import (
    BatchId,
    CheckpointNumber,
    GroupId,
    GroupPartition,
    MemberId,
    Offset,
    Range,
    RegionName,
)
from airflow_kcr.spark import reads

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, SparkSession


class Standing(StrEnum):
    """How the output of one batch for one partition stands towards a checkpoint."""

    WHOLE = "whole"
    """All of it counts."""

    PART = "part"
    """A reset undid it from an offset within the range on; what is below that counts."""

    LATER = "later"
    """It was accepted, and is of a later checkpoint."""

    OPEN = "open"
    """The batch has not ended."""

    VOID = "void"
    """It does not count: discarded, of a vanished member, or undone. Its records are processed a second time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPart:
    """One partition of one batch."""

    batch: BatchId
    place: GroupPartition
    range_: Range
    standing: Standing
    counts_to: Offset
    """Where that which counts ends; the start of the range, if nothing does."""

    @property
    def counted(self) -> Range:
        """The offsets that count."""
        return Range(self.range_.from_, self.counts_to)


def pieces(
    batches: Iterable[Batch], group: GroupId, checkpoint: Mapping[GroupPartition, Offset]
) -> tuple[BatchPart, ...]:
    """Return how each partition of each batch of a group stands towards a checkpoint.

    Args:
        batches: the ledger.
        group: whose batches.
        checkpoint: its offsets; a partition that it does not have was found later.
    """
    return tuple(
        _piece(batch, place, range_, checkpoint.get(place, Offset(0)))
        for batch in batches
        if batch.member.group == group
        for place, range_ in sorted(batch.ranges.items())
    )


_NAMED: Final = 20
"""Checkpoints among which a message searches for others to choose."""


def _usable(region: Region) -> list[str]:
    rows = {row.sequence: row for row in region.archive.checkpoints(last=_NAMED)} | dict(region.checkpoints)
    return [str(sequence) for sequence, row in sorted(rows.items()) if row.is_complete and row.is_current]


def checkpoint_offsets(region: Region, group: GroupId, sequence: CheckpointNumber | None = None) -> OffsetMap:
    """Return the offsets that a checkpoint has for one group.

    Args:
        region: as the store has it.
        group: whose partitions.
        sequence: of the checkpoint; None: the newest one.

    Raises:
        UnknownCheckpoint: there is none, or none of that sequence.
        CheckpointNotUsable: it is open, aborted, undone or retired, so the ledger can't be compared with it.
    """
    if sequence is None:
        newest = newest_usable(region)
        sequence = None if newest is None else newest.sequence
    found = None if sequence is None else checkpoint_of(region, sequence)
    if sequence is None or found is None:
        wanted = "no checkpoint yet" if sequence is None else f"no checkpoint {sequence}"
        raise UnknownCheckpoint(
            f"region {region.name} has {wanted}; let it make a checkpoint: kcr region drain {region.name}"
        )
    offsets = offsets_of(region, sequence)
    if offsets is None or not found.is_current:
        what = "undone" if found.undone_by is not None else found.state.value
        raise CheckpointNotUsable(
            f"checkpoint {sequence} of region {region.name} is {what}; those that can be compared with are "
            f"{', '.join(_usable(region)) or 'none'}"
        )
    return OffsetMap({place: offset for place, offset in offsets.items() if place.group == group})


def _piece(batch: Batch, place: GroupPartition, range_: Range, checkpoint: Offset) -> BatchPart:
    standing, to = _standing(batch, place, range_, checkpoint)
    return BatchPart(batch=batch.batch, place=place, range_=range_, standing=standing, counts_to=to)


def _standing(batch: Batch, place: GroupPartition, range_: Range, checkpoint: Offset) -> tuple[Standing, Offset]:
    if batch.outcome is None:
        return Standing.OPEN, range_.from_
    undone_from = batch.undone_from.get(place, range_.to)
    if batch.outcome is not Outcome.DONE or undone_from <= range_.from_:
        return Standing.VOID, range_.from_
    if checkpoint <= range_.from_:
        return Standing.LATER, range_.from_
    to = min(range_.to, undone_from, checkpoint)
    return (Standing.WHOLE if to == range_.to else Standing.PART), to


SHOWN: Final = 10
"""How many differences are listed one by one."""

_PLACE: Final = ("topic", "partition")
_STRAY: Final = "stray"
_GROUP: Final = ("carrier", "year", "month", "day", "hour")
_SIDES: Final = ("result", "direct")
_COMPARED: Final = ("airline", *SUMS, *MAXIMA)

Read = Callable[[Mapping[GroupPartition, Range]], "DataFrame"]
"""Reads exact ranges of topics, as a `airflow_kcr.spark.reads.Reader` does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultDifference:
    """One number in which the result is not what was computed directly."""

    group: str
    """Carrier and hour."""

    column: str
    result: str
    direct: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultComparison:
    """How the result compares with the same computed directly."""

    groups: int
    """Carriers and hours in either of them."""

    different: int
    """Those in which they differ."""

    differences: tuple[ResultDifference, ...]
    """The first few, one by one."""

    @property
    def equal(self) -> bool:
        """Whether they are the same."""
        return self.different == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordCounts:
    """Records up to a checkpoint, counted in the topic and in the output."""

    in_topic: int
    accepted: int
    """In the output of accepted batches: flights and malformed records."""

    malformed: int
    """Of those accepted."""

    duplicates: int
    """In output that does not count (discarded batches, undone ones); these records were processed more than once."""

    missing: int
    """In the topic, and in no accepted output."""

    surplus: int
    """In accepted output more often than in the topic."""

    stray: int
    """In output of batches that the ledger does not know: the folder was used by another region, or before."""

    @property
    def exact(self) -> bool:
        """Whether each record of the topic is accepted once."""
        return self.missing == 0 and self.surplus == 0


def read_output(spark: SparkSession, output: str) -> DataFrame:
    """Return everything that batches have written, whether it counts or not.

    Raises:
        ConfigurationError: there is no output.
    """
    from pyspark.errors import AnalysisException

    root = f"{output.rstrip('/')}/batches"
    try:
        # A folder that another batch is replacing at this moment is one that does not count yet.
        return spark.read.schema(OUTPUT_SCHEMA).option("ignoreMissingFiles", "true").parquet(root)
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        raise ConfigurationError(f"no batch has written to {root}; is that the output folder of the region?") from error


def accepted_output(written: DataFrame, pieces: Iterable[BatchPart], read: Read) -> DataFrame:
    """Return the rows of the output that count.

    What a reset has undone in part can't be taken out of its sums: the part that counts is read again, recomputed.

    Args:
        written: see `read_output`.
        pieces: how the output stands, see `pieces`.
        read: for the parts.
    """
    pieces = tuple(pieces)
    whole = _with_standing(written, pieces).where(F.col("standing") == Standing.WHOLE.value)
    columns = ["kind", *_PLACE, *KEY, "records", *SUMS, *MAXIMA]
    parts = [
        pipeline.partial_sums(read({piece.place: piece.counted})).select(columns)
        for piece in pieces
        if piece.standing is Standing.PART and piece.counted.width
    ]
    return reduce(lambda one, other: one.unionByName(other), parts, whole.select(columns))


def fold(accepted: DataFrame) -> DataFrame:
    """Return the result: the sums of every carrier and hour over the accepted output."""
    return accepted.where(F.col("kind") == FLIGHT).groupBy(*KEY).agg(*_sums())


def compare(result: DataFrame, direct: DataFrame) -> ResultComparison:
    """Compare the result with the same computed directly, every number of every carrier and hour.

    Args:
        result: see `fold`.
        direct: of `from_csv` or `from_topic`.
    """
    # By an exchange of both together and not by a join, in one job over either.
    both = _side(result, _SIDES[0]).unionByName(_side(direct, _SIDES[1]), allowMissingColumns=True)
    sides = [F.max(name).alias(name) for name in _SIDES] + [F.count(name).alias(f"{name}_rows") for name in _SIDES]
    groups = both.groupBy(*_GROUP).agg(*sides)
    # A group that is there twice, with two airlines, has to be seen as well.
    unequal = ~F.col("result").eqNullSafe(F.col("direct")) | (F.greatest(*(f"{name}_rows" for name in _SIDES)) > 1)
    (totals,) = groups.agg(F.count(F.lit(1)).alias("groups"), F.count_if(unequal).alias("different")).collect()
    return ResultComparison(
        groups=totals["groups"],
        different=totals["different"],
        differences=_differences(groups.where(unequal)) if totals["different"] else (),
    )


def count(written: DataFrame, pieces: Iterable[BatchPart], accepted: DataFrame, topic: DataFrame) -> RecordCounts:
    """Count the records of the topic and those of the output.

    Args:
        written: see `read_output`.
        pieces: how the output stands, see `pieces`.
        accepted: see `accepted_output`.
        topic: the topic's records up to the checkpoint, as Spark's Kafka connector gives them.
    """
    in_topic = {(row["topic"], row["partition"]): row["count"] for row in topic.groupBy(*_PLACE).count().collect()}
    counted: dict[tuple[str, int], int] = {}
    malformed = 0
    for row in accepted.groupBy("kind", *_PLACE).agg(F.sum("records").alias("n")).collect():
        place = (row["topic"], row["partition"])
        counted[place] = counted.get(place, 0) + row["n"]
        malformed += row["n"] if row["kind"] == MALFORMED else 0
    lacking = {place: in_topic.get(place, 0) - counted.get(place, 0) for place in in_topic.keys() | counted.keys()}
    elsewhere = _records_by_standing(written, tuple(pieces))
    total = sum(counted.values())
    # What counts of a piece undone in part was recomputed, so it is in `total` and not among the whole pieces.
    kept_of_parts = total - elsewhere.get(Standing.WHOLE, 0)
    return RecordCounts(
        in_topic=sum(in_topic.values()),
        accepted=total,
        malformed=malformed,
        duplicates=elsewhere.get(Standing.VOID, 0) + elsewhere.get(Standing.PART, 0) - kept_of_parts,
        missing=sum(n for n in lacking.values() if n > 0),
        surplus=-sum(n for n in lacking.values() if n < 0),
        stray=elsewhere.get(_STRAY, 0),
    )


def _sums() -> list[Column]:
    return [F.sum(name).alias(name) for name in SUMS] + [F.max(name).alias(name) for name in MAXIMA]


def _with_standing(written: DataFrame, pieces: tuple[BatchPart, ...]) -> DataFrame:
    """The output with the standing of each row; stray where the ledger does not know its batch."""
    rows = [(piece.batch, piece.place.topic, piece.place.partition, piece.standing.value) for piece in pieces]
    judged = written.sparkSession.createDataFrame(
        rows, "batch_id STRING, topic STRING, `partition` INT, standing STRING"
    )
    joined = written.join(F.broadcast(judged), ["batch_id", *_PLACE], "left")
    return joined.withColumn("standing", F.coalesce("standing", F.lit(_STRAY)))


def _records_by_standing(written: DataFrame, pieces: tuple[BatchPart, ...]) -> dict[str, int]:
    rows = _with_standing(written, pieces).groupBy("standing").agg(F.sum("records").alias("n")).collect()
    return {row["standing"]: row["n"] for row in rows}


def _side(frame: DataFrame, name: str) -> DataFrame:
    return frame.select(*_GROUP, F.struct(*(F.col(c).cast("string").alias(c) for c in _COMPARED)).alias(name))


def _differences(unequal: DataFrame) -> tuple[ResultDifference, ...]:
    found: list[ResultDifference] = []
    for row in unequal.orderBy(*_GROUP).limit(SHOWN).collect():
        group = f"{row['carrier']} {row['year']}-{row['month']:02}-{row['day']:02} {row['hour']:02}:00"
        one, other = row["result"], row["direct"]
        found += [
            ResultDifference(group=group, column=name, result=_text(one, name), direct=_text(other, name))
            for name in _COMPARED
            if one is None or other is None or one[name] != other[name]
        ]
        if row["result_rows"] > 1 or row["direct_rows"] > 1:
            rows = str(row["result_rows"]), str(row["direct_rows"])
            found.append(ResultDifference(group=group, column="rows", result=rows[0], direct=rows[1]))
    return tuple(found)


def _text(row: Mapping[str, str | None] | None, name: str) -> str:
    if row is None:
        return "no such group"
    value = row[name]
    return "none" if value is None else value


# The example judged as a whole


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
    end = checkpoint_offsets(question.region, question.group, question.sequence)
    begin = initial_offsets(question.region)
    ranges = {place: Range(begin.get(place, Offset(0)), offset) for place, offset in end.items()}
    read = partial(_read, spark, question)
    if not any(range_.width for range_ in ranges.values()):
        raise CheckpointNotUsable(f"the checkpoint of region {question.region.name} has no records to compare")
    parts = pieces(question.batches, question.group, end)
    file = question.flights
    with (
        _kept(read_output(spark, question.output)) as written,
        _kept(accepted_output(written, parts, read)) as accepted,
    ):
        found = fold(accepted)
        return FlightsJudgement(
            counts=count(written, parts, accepted, read(ranges)),
            with_topic=compare(found, from_topic(spark, read(ranges))),
            with_file=None if file is None else compare(found, from_csv(spark, file)),
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
