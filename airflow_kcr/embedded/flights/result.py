"""The region's result up to a checkpoint, the same computed directly, and whether both and the counts agree.

The result is the sum of what accepted batches wrote; it is compared group by group, and records are counted, for a sum
can be right by accident. Read checkpoint and ledger when the region is at rest: a reset in between would undo what was
just added up.

Which part of a pipeline's output counts, the ledger alone says. A folder of output is there whether its batch was
accepted or not: the batch may have been discarded, its member may have vanished, a reset may have undone it. Only
accepted ranges below a checkpoint's offsets describe that checkpoint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as F

from airflow_kcr.embedded.flights import data, pipeline
from airflow_kcr.embedded.flights.pipeline import FLIGHT, KEY, MALFORMED, MAXIMA, OUTPUT_SCHEMA, SUMS
from airflow_kcr.protocol.region.rows import Batch, Outcome
from airflow_kcr.protocol.values import GroupPartition, Offset

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, Row, SparkSession


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

    STRAY = "stray"
    """The ledger does not know its batch: the folder was used by another region, or before."""


class BatchPart(NamedTuple):
    """One partition of one batch; of its offsets, those from `begin` to `counts_to` count."""

    batch_id: str
    topic: str
    partition: int
    begin: int
    counts_to: int
    standing: Standing


_PARTS_SCHEMA: Final = "batch_id STRING, topic STRING, `partition` INT, begin BIGINT, counts_to BIGINT, standing STRING"
_PLACE: Final = ("topic", "partition")
_GROUP: Final = ("carrier", "year", "month", "day", "hour")
_ROW: Final = ("kind", *_PLACE, *KEY, "records", *SUMS, *MAXIMA)


def parts_of(batches: Iterable[Batch], checkpoint: Mapping[GroupPartition, Offset]) -> tuple[BatchPart, ...]:
    """Return how each partition of each batch stands towards a checkpoint.

    Args:
        batches: the ledger.
        checkpoint: its offsets; a partition that it does not have was found later.
    """
    found: list[BatchPart] = []
    for batch in batches:
        for place, range_ in sorted(batch.ranges.items()):
            undone_from = batch.undone_from.get(place, range_.to)
            to = min(range_.to, undone_from, checkpoint.get(place, Offset(0)))
            standing = Standing.WHOLE if to == range_.to else Standing.PART
            if batch.outcome is None:
                standing = Standing.OPEN
            elif batch.outcome is not Outcome.DONE or undone_from <= range_.from_:
                standing = Standing.VOID
            elif to <= range_.from_:
                standing = Standing.LATER
            counts_to = to if standing in {Standing.WHOLE, Standing.PART} else range_.from_
            found.append(BatchPart(batch.batch, place.topic, place.partition, range_.from_, counts_to, standing))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightsJudgement:
    """The answer: records up to the checkpoint, counted in the topic and in the output, and sums compared."""

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
    """In output of batches that the ledger does not know."""

    groups: int
    """Carriers and hours in the result."""

    unlike_topic: int
    """Those that are not what was computed from the topic's records up to the checkpoint."""

    unlike_source: int | None
    """Those that are not what was computed from the CSV file; equal only when the checkpoint has all of its flights."""

    @property
    def sound(self) -> bool:
        """Whether everything is there once, and adds up to what was computed directly."""
        return not (self.missing or self.surplus or self.unlike_topic or self.unlike_source)


def judge(
    spark: SparkSession,
    checkpoint: Mapping[GroupPartition, Offset],
    batches: Iterable[Batch],
    output: str,
    kafka: Mapping[str, str],
    flights: Path | None = None,
) -> FlightsJudgement:
    """Compare the region's result up to a checkpoint with the same computed directly, and count records.

    Args:
        spark: the session.
        checkpoint: its offsets; the topics are read from their beginning.
        batches: the region's ledger.
        output: where the pipeline wrote to.
        kafka: client settings as Kafka's Java client names them, secrets filled in.
        flights: the flights of the topic as a CSV file (`data.write_flights`), to compare with the source as well.

    Raises:
        ToolMissing: the package with the tables is not installed.
    """
    parts = spark.createDataFrame(list(parts_of(batches, checkpoint)), _PARTS_SCHEMA)
    records = read_topics(spark, kafka, checkpoint).persist()
    written = _with_standing(read_output(spark, output), parts).persist()
    accepted = _accepted(written, parts, records).persist()
    try:
        found = fold(accepted)
        groups, unlike_topic = compare(found, from_topic(spark, records))
        in_topic, counted = _count(records.withColumn("records", F.lit(1))), _count(accepted)
        by_standing = {row["standing"]: row["n"] for row in _total(written, "standing")}
        total = counted.total()
        # What counts of a part was recomputed, so it is in the total and not among the whole ones.
        kept_of_parts = total - by_standing.get(Standing.WHOLE, 0)
        return FlightsJudgement(
            in_topic=in_topic.total(),
            accepted=total,
            malformed=_count(accepted.where(F.col("kind") == MALFORMED)).total(),
            duplicates=by_standing.get(Standing.VOID, 0) + by_standing.get(Standing.PART, 0) - kept_of_parts,
            missing=(in_topic - counted).total(),
            surplus=(counted - in_topic).total(),
            stray=by_standing.get(Standing.STRAY, 0),
            groups=groups,
            unlike_topic=unlike_topic,
            unlike_source=None if flights is None else compare(found, from_csv(spark, flights))[1],
        )
    finally:
        for frame in (accepted, written, records):
            frame.unpersist()


def read_topics(
    spark: SparkSession, kafka: Mapping[str, str], checkpoint: Mapping[GroupPartition, Offset]
) -> DataFrame:
    """Return the records of topics up to a checkpoint, read with Spark's connector alone."""
    ends = [(place.topic, place.partition, end) for place, end in checkpoint.items()]
    records = spark.read.format("kafka").option("subscribe", ",".join(sorted({topic for topic, _, _ in ends})))
    settings = {f"kafka.{name}": value for name, value in kafka.items()}
    bounds = spark.createDataFrame(ends, "topic STRING, `partition` INT, end BIGINT")
    return records.options(**settings).load().join(F.broadcast(bounds), [*_PLACE]).where("offset < end").drop("end")


def read_output(spark: SparkSession, output: str) -> DataFrame:
    """Return everything that batches have written, whether it counts or not."""
    # A folder that another batch is replacing at this moment is one that does not count yet.
    return (
        spark.read.schema(OUTPUT_SCHEMA).option("ignoreMissingFiles", "true").parquet(f"{output.rstrip('/')}/batches")
    )


def fold(accepted: DataFrame) -> DataFrame:
    """Return the result: the sums of every carrier and hour over the accepted output."""
    sums = [F.sum(name).alias(name) for name in SUMS] + [F.max(name).alias(name) for name in MAXIMA]
    return accepted.where(F.col("kind") == FLIGHT).groupBy(*KEY).agg(*sums)


def compare(result: DataFrame, direct: DataFrame) -> tuple[int, int]:
    """Return how many carriers and hours there are in either, and how many of them differ in any number."""
    columns = [*_GROUP, "airline", *SUMS, *MAXIMA]
    sides = [
        frame.select([F.col(name).cast("string").alias(name) for name in columns]).withColumn("side", F.lit(side))
        for frame, side in ((result, 1), (direct, -1))
    ]
    # By an exchange of both together and not by a join, in one job over either.
    rows = sides[0].unionByName(sides[1]).groupBy(*columns).agg(F.sum("side").alias("left"))
    groups = rows.groupBy(*_GROUP).agg(F.max(F.abs("left")).alias("left"))
    (found,) = groups.agg(F.count("left").alias("all"), F.count_if(F.col("left") > 0).alias("different")).collect()
    return found["all"], found["different"]


def _with_standing(written: DataFrame, parts: DataFrame) -> DataFrame:
    standing = F.coalesce("standing", F.lit(Standing.STRAY.value))
    return written.join(F.broadcast(parts), ["batch_id", *_PLACE], "left").withColumn("standing", standing)


def _accepted(written: DataFrame, parts: DataFrame, records: DataFrame) -> DataFrame:
    """The rows of the output that count.

    What a reset has undone in part can't be taken out of its sums: the part that counts is recomputed from the records.
    """
    kept = parts.where(F.col("standing") == Standing.PART.value)
    again = records.join(F.broadcast(kept), [*_PLACE]).where("offset >= begin AND offset < counts_to")
    whole = written.where(F.col("standing") == Standing.WHOLE.value)
    return whole.select(*_ROW).unionByName(pipeline.partial_sums(again).select(*_ROW))


def _total(frame: DataFrame, *columns: str) -> list[Row]:
    return frame.groupBy(*columns).agg(F.sum("records").alias("n")).collect()


def _count(frame: DataFrame) -> Counter[tuple[str, int]]:
    """How many records there are by topic and partition."""
    return Counter({(row["topic"], row["partition"]): row["n"] for row in _total(frame, *_PLACE)})


# The delays by carrier and hour in one go, without batches, ledger and pipeline: what the region's result must equal.
#
# Written a second time on purpose, in SQL over the package's files, and with another way into the JSON: a mistake in
# the pipeline shall not be made here as well. The files are read where the tasks run, so the master is `local[…]`, or
# the executors see the same folders.

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
    return _delays(spark, spark.sql(data.text_of("from_topic.sql"), records=records))


def _delays(spark: SparkSession, flights: DataFrame) -> DataFrame:
    folder = data.folder()
    weather, airlines = _csv(spark, folder / "weather.csv"), _csv(spark, folder / "airlines.csv")
    return spark.sql(data.text_of("delays.sql"), flights=flights, weather=weather, airlines=airlines)


def _csv(spark: SparkSession, path: Path) -> DataFrame:
    return spark.read.csv(path.as_uri(), header=True, nullValue=data.NOT_AVAILABLE)
