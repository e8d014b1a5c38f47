"""The region's result up to a checkpoint, the same computed directly, and whether both and the counts agree.

The result is the sum of what accepted batches wrote; it is compared group by group, and records are counted, for a sum
can be right by accident. Read checkpoint and ledger when the region is at rest: a reset in between would undo what was
just added up.

Which rows of a pipeline's output count, the ledger alone says. A folder of output is there whether its batch was
accepted or not: the batch may have been discarded, its member may have vanished, a reset may have undone it. Only
accepted ranges below a checkpoint's offsets describe that checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from airflow_kcr.embedded.flights import data
from airflow_kcr.embedded.flights.pipeline import FLIGHT, KEY, MALFORMED, OUTPUT_SCHEMA, RECORD
from airflow_kcr.protocol.region.rows import Batch, Outcome
from airflow_kcr.protocol.values import GroupPartition, Offset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class BatchPart(NamedTuple):
    """One partition of one batch: which of its rows count, by their offsets."""

    batch_id: str
    topic: str
    partition: int
    counts_to: int
    """Those below it count."""

    again_from: int
    """Those from here on are in output that never counts; their records were processed a second time."""


_PARTS_SCHEMA: Final = "batch_id STRING, topic STRING, `partition` INT, counts_to BIGINT, again_from BIGINT"
_PLACE: Final = ("topic", "partition")
_GROUP: Final = ("carrier", "year", "month", "day", "hour")


def parts_of(batches: Iterable[Batch], checkpoint: Mapping[GroupPartition, Offset]) -> Iterator[BatchPart]:
    """Yield which rows of each partition of each batch count in a checkpoint.

    Args:
        batches: the ledger.
        checkpoint: its offsets; a partition that it does not have was found later.
    """
    for batch in batches:
        for place, range_ in batch.ranges.items():
            kept = batch.undone_from.get(place, range_.to) if batch.outcome is Outcome.DONE else range_.from_
            again = range_.to if batch.outcome is None else kept  # it may still be accepted
            upto = min(kept, checkpoint.get(place, Offset(0)))
            yield BatchPart(batch.batch, place.topic, place.partition, upto, again)


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
    """Those that are not what was computed from the source; equal only when the checkpoint has all of its flights."""


def judge(
    spark: SparkSession,
    checkpoint: Mapping[GroupPartition, Offset],
    batches: Iterable[Batch],
    output: str,
    kafka: Mapping[str, str],
    first: int | None = None,
) -> FlightsJudgement:
    """Compare the region's result up to a checkpoint with the same computed directly, and count records.

    Args:
        spark: the session.
        checkpoint: its offsets; the topics are read from their beginning.
        batches: the region's ledger.
        output: where the pipeline wrote to.
        kafka: client settings as Kafka's Java client names them, secrets filled in.
        first: how many flights were written to the topic, to compare with the source as well.

    Raises:
        ToolMissing: the package with the tables is not installed.
    """
    parts = spark.createDataFrame(list(parts_of(batches, checkpoint)), _PARTS_SCHEMA)
    records = read_topics(spark, kafka, checkpoint).persist()
    written = read_output(spark, output).join(F.broadcast(parts), ["batch_id", *_PLACE], "left").persist()
    accepted = written.where("offset < counts_to")
    try:
        found = fold(accepted)
        groups, unlike_topic = compare(found, from_topic(spark, records))
        between = _difference(records, accepted, RECORD)
        (unequal,) = between.selectExpr("count_if(more > 0) AS missing", "count_if(more < 0) AS surplus").collect()
        (counted,) = written.selectExpr(
            "count_if(offset < counts_to) AS accepted",
            f"count_if(offset < counts_to AND kind = '{MALFORMED}') AS malformed",
            "count_if(offset >= again_from) AS duplicates",
            "count_if(counts_to IS NULL) AS stray",
        ).collect()
        return FlightsJudgement(
            in_topic=records.count(),
            **counted.asDict(),
            **unequal.asDict(),
            groups=groups,
            unlike_topic=unlike_topic,
            unlike_source=None if first is None else compare(found, from_source(spark, first))[1],
        )
    finally:
        written.unpersist()
        records.unpersist()


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
    sums = (
        "count(*) AS flights",
        "count_if(dep_delay IS NULL) AS cancelled",
        "sum(dep_delay) AS dep_delay_sum",
        "max(dep_delay) AS dep_delay_max",
        "sum(arr_delay) AS arr_delay_sum",
        "count_if(precipitation > 0) AS with_precipitation",
        "count_if(precipitation IS NULL) AS without_weather",
    )
    return accepted.where(F.col("kind") == FLIGHT).groupBy(*KEY).agg(*map(F.expr, sums))


def compare(result: DataFrame, direct: DataFrame) -> tuple[int, int]:
    """Return how many carriers and hours there are in either, and how many of them differ in any number."""
    groups = _difference(result, direct, direct.columns).groupBy(*_GROUP).agg(F.max(F.abs("more")).alias("more"))
    (found,) = groups.agg(F.count("more").alias("all"), F.count_if(F.col("more") > 0).alias("different")).collect()
    return found["all"], found["different"]


def _difference(one: DataFrame, other: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return each row of either, with how much more often the one has it than the other."""
    # By an exchange of both together and not by a join, in one job over either.
    ours, others = one.select(*columns, F.lit(1).alias("more")), other.select(*columns, F.lit(-1).alias("more"))
    return ours.unionByName(others).groupBy(*columns).agg(F.sum("more").alias("more"))


# The delays by carrier and hour in one go, without batches, ledger and pipeline: what the region's result must equal.
#
# Written a second time on purpose, in SQL over the package's files, and with another way into the JSON: a mistake in
# the pipeline shall not be made here as well. The smaller files are read where the tasks run, so the master is
# `local[…]`, or the executors see the same folders.

_NUMBERS: Final = ("year", "month", "day", "hour", "dep_delay", "arr_delay")


def from_source(spark: SparkSession, first: int) -> DataFrame:
    """Return the delays computed from the package's own flights, the first N of them.

    Raises:
        ToolMissing: the package is not installed.
    """
    texts = ", ".join(f"{name} STRING" for name in ("carrier", "origin", *_NUMBERS))
    numbers = (f"CAST(NULLIF({name}, '{data.NOT_AVAILABLE}') AS INT) AS {name}" for name in _NUMBERS)
    flights = spark.createDataFrame(list(data.flights(first)), texts)
    return _delays(spark, flights.selectExpr("carrier", "origin", *numbers))


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
    weather, airlines = (
        spark.read.csv((data.folder() / name).as_uri(), header=True, nullValue=data.NOT_AVAILABLE)
        for name in ("weather.csv", "airlines.csv")
    )
    return spark.sql(data.text_of("delays.sql"), flights=flights, weather=weather, airlines=airlines)
