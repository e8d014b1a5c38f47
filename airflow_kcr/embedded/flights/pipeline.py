"""The pipeline of the region of `flights.yaml`: delays by carrier and hour, with airline and weather.

What a batch found is written to a folder of its own, named after the batch. Running the same batch again replaces it,
and which folders count is for the ledger to say (`ledger`), not for a listing of the folders. Records that are no
flights are counted in an output of their own, beside the flights, with the offsets between which they are.

Everything is one Spark job over the batch, so that its range is read once.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from pyspark.sql import functions as F

from airflow_kcr.embedded.flights import data
from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol.values import BatchId

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from airflow_kcr.spark import BatchContext

OUTPUT_VARIABLE: Final = "KCR_FLIGHTS_OUTPUT"
OUTPUT_SETTING: Final = "spark.kcr.flights.output"

VALUE_SCHEMA: Final = (
    "carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, year INT, month INT, day INT, hour INT, "
    "scheduled TIMESTAMP, departed TIMESTAMP, dep_delay INT, arr_delay INT, distance INT, malformed STRING"
)
"""Of a record's value; `malformed` is where Spark puts what does not fit."""

KEY: Final = ("carrier", "airline", "year", "month", "day", "hour")
SUMS: Final = ("flights", "cancelled", "dep_delay_sum", "arr_delay_sum", "with_precipitation", "without_weather")
MAXIMA: Final = ("dep_delay_max",)

OUTPUT_SCHEMA: Final = (
    "region STRING, member STRING, epoch BIGINT, timeline BIGINT, sequence BIGINT, topic STRING, `partition` INT, "
    "carrier STRING, airline STRING, year INT, month INT, day INT, hour INT, records BIGINT, flights BIGINT, "
    "cancelled BIGINT, dep_delay_sum BIGINT, dep_delay_max INT, arr_delay_sum BIGINT, with_precipitation BIGINT, "
    "without_weather BIGINT, first_offset BIGINT, end_offset BIGINT, batch_id STRING, kind STRING"
)
"""Of the output; the last two are the names of folders."""

FLIGHT: Final = "flight"
MALFORMED: Final = "malformed"

WRITERS: Final = 2
"""How many tasks add up and write, so how many files a batch leaves.

Spark's default, 200 buckets for each task that reads, costs a small batch more than its work. Adding up before the
exchange would gain little: there are nearly as many carriers and hours as flights.
"""

_NEEDED: Final = ("carrier", "origin", "year", "month", "day", "hour", "scheduled")


def process(batch: DataFrame, context: BatchContext) -> None:
    """Write what a batch of flights adds to the delays of each carrier and hour.

    Raises:
        ConfigurationError: nothing says where the output goes.
        ToolMissing: the package with the tables is not installed.
    """
    columns = {
        "region": context.region,
        "member": str(context.member),
        "epoch": context.epoch,
        "timeline": context.timeline,
        "sequence": context.sequence,
    }
    found = partial_sums(batch).withColumns({name: F.lit(value) for name, value in columns.items()})
    target = batch_folder(output_folder(batch.sparkSession), context.batch_id)
    found.write.mode("overwrite").partitionBy("kind").parquet(target)


def output_folder(spark: SparkSession) -> str:
    """Return where the output goes: a path or address that Hadoop's file systems understand.

    Raises:
        ConfigurationError: neither Spark's setting nor the environment says it.
    """
    found = spark.conf.get(OUTPUT_SETTING, None) or os.environ.get(OUTPUT_VARIABLE)
    if not found:
        raise ConfigurationError(
            f"nothing says where the delays of the flights go; set {OUTPUT_VARIABLE} in the environment of the driver, "
            f"or {OUTPUT_SETTING} in Spark's settings, to a folder that all executors can write to"
        )
    return found.rstrip("/")


def batch_folder(output: str, batch: BatchId) -> str:
    """Return the folder of one batch's output."""
    return f"{output}/batches/batch_id={quote(batch, safe='')}"


def partial_sums(records: DataFrame) -> DataFrame:
    """Return one row for each partition, carrier and hour of the flights, and one for each partition's malformed ones.

    Args:
        records: as Spark's Kafka connector gives them; they are read once.

    Raises:
        ToolMissing: the package with the tables is not installed.
    """
    return joined(records).groupBy("kind", "topic", "partition", *KEY).agg(*_measures())


def joined(records: DataFrame) -> DataFrame:
    """Return one row for each record: the flight with its airline and the weather, or that it is malformed.

    Args:
        records: as Spark's Kafka connector gives them; they are read once.

    Raises:
        ToolMissing: the package with the tables is not installed.
    """
    weather, airlines = _tables(records.sparkSession)
    text = F.col("value").cast("string")
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "malformed"}
    parsed = records.select("topic", "partition", "offset", text.alias("text")).withColumn(
        "value", F.from_json("text", VALUE_SCHEMA, options)
    )
    good = _is_flight()
    fields = [F.when(good, F.col(f"value.{name}")).alias(name) for name in (*_NEEDED, "dep_delay", "arr_delay")]
    kind = F.when(good, FLIGHT).otherwise(MALFORMED).alias("kind")
    return (
        parsed.select("topic", "partition", "offset", kind, *fields)
        .repartition(WRITERS, "carrier", "day", "hour")
        .join(F.broadcast(weather), ["origin", "year", "month", "day", "hour"], "left")
        .join(F.broadcast(airlines), "carrier", "left")
    )


def _is_flight() -> Column:
    """Whether a value has what a flight needs; anything else, a missing value too, is malformed."""
    # In a list of flights Spark would take the first one and be silent about the others.
    good = F.coalesce(F.ltrim("text").startswith("{"), F.lit(False)) & F.col("value.malformed").isNull()
    for name in _NEEDED:
        good &= F.col(f"value.{name}").isNotNull()
    return good


def _measures() -> list[Column]:
    is_flight = F.col("kind") == FLIGHT
    return [
        F.count(F.lit(1)).alias("records"),
        F.count_if(is_flight).alias("flights"),
        F.count_if(is_flight & F.col("dep_delay").isNull()).alias("cancelled"),
        F.sum(F.col("dep_delay").cast("bigint")).alias("dep_delay_sum"),
        F.max("dep_delay").alias("dep_delay_max"),
        F.sum(F.col("arr_delay").cast("bigint")).alias("arr_delay_sum"),
        F.count_if(F.col("precipitation") > 0).alias("with_precipitation"),
        F.count_if(is_flight & F.col("precipitation").isNull()).alias("without_weather"),
        F.min("offset").alias("first_offset"),
        (F.max("offset") + 1).alias("end_offset"),
    ]


_lock: Final = threading.Lock()
_known: dict[str, tuple[DataFrame, DataFrame]] = {}
"""By the id of the application; no more than one."""


def _tables(spark: SparkSession) -> tuple[DataFrame, DataFrame]:
    """The weather and the airlines, made once in each application, whichever of its members asks first.

    From the driver's memory: the package's files need not exist where the executors run.
    """
    with _lock:
        application = spark.sparkContext.applicationId
        if application not in _known:
            weather = spark.createDataFrame(
                data.weather(), "origin STRING, year INT, month INT, day INT, hour INT, precipitation DOUBLE"
            )
            airlines = spark.createDataFrame(data.airlines(), "carrier STRING, airline STRING")
            _known.clear()
            _known[application] = weather.cache(), airlines.cache()
        return _known[application]
