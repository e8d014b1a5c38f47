"""The pipeline of the region of `flights.yaml`: a row for each flight, with airline and weather.

What a batch found is written to a folder of its own, named after the batch. Running the same batch again replaces it,
and which folders count is for the ledger to say (`result`), not for a listing of the folders. Records that are no
flights are in an output of their own, beside the flights, with their offsets.

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
RECORD: Final = ("topic", "partition", "offset")
ROW: Final = (*RECORD, *KEY, "origin", "dep_delay", "arr_delay", "precipitation")
"""The columns of a flight; of what is no flight, only the record's place is known."""

OUTPUT_SCHEMA: Final = (
    "topic STRING, `partition` INT, offset BIGINT, carrier STRING, airline STRING, year INT, month INT, day INT, "
    "hour INT, origin STRING, dep_delay INT, arr_delay INT, precipitation DOUBLE, batch_id STRING, kind STRING"
)
"""Of the output; the last two are the names of folders."""

FLIGHT: Final = "flight"
MALFORMED: Final = "malformed"

_NEEDED: Final = ("carrier", "origin", "year", "month", "day", "hour", "scheduled")


def process(batch: DataFrame, context: BatchContext) -> None:
    """Write the flights of a batch, each with its airline and the weather, and where the malformed records are.

    Raises:
        ConfigurationError: nothing says where the output goes.
        ToolMissing: the package with the tables is not installed.
    """
    target = batch_folder(output_folder(batch.sparkSession), context.batch_id)
    joined(batch).write.mode("overwrite").partitionBy("kind").parquet(target)


def output_folder(spark: SparkSession) -> str:
    """Return where the output goes: a path or address that Hadoop's file systems understand.

    Raises:
        ConfigurationError: neither Spark's setting nor the environment says it.
    """
    found = spark.conf.get(OUTPUT_SETTING, None) or os.environ.get(OUTPUT_VARIABLE)
    if not found:
        raise ConfigurationError(
            f"nothing says where the flights go; set {OUTPUT_VARIABLE} in the environment of the driver, "
            f"or {OUTPUT_SETTING} in Spark's settings, to a folder that all executors can write to"
        )
    return found.rstrip("/")


def batch_folder(output: str, batch: BatchId) -> str:
    """Return the folder of one batch's output."""
    return f"{output}/batches/batch_id={quote(batch, safe='')}"


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
    parsed = records.select(*RECORD, text.alias("text")).withColumn("value", F.from_json("text", VALUE_SCHEMA, options))
    good = _is_flight()
    fields = [F.when(good, F.col(f"value.{name}")).alias(name) for name in (*_NEEDED, "dep_delay", "arr_delay")]
    kind = F.when(good, FLIGHT).otherwise(MALFORMED).alias("kind")
    return (
        parsed.select(*RECORD, kind, *fields)
        .join(F.broadcast(weather), ["origin", "year", "month", "day", "hour"], "left")
        .join(F.broadcast(airlines), "carrier", "left")
        .select("kind", *ROW)
    )


def _is_flight() -> Column:
    """Whether a value has what a flight needs; anything else, a missing value too, is malformed."""
    # In a list of flights Spark would take the first one and be silent about the others.
    good = F.coalesce(F.ltrim("text").startswith("{"), F.lit(False)) & F.col("value.malformed").isNull()
    for name in _NEEDED:
        good &= F.col(f"value.{name}").isNotNull()
    return good


_WEATHER_SCHEMA: Final = "origin STRING, year STRING, month STRING, day STRING, hour STRING, precip STRING"
_lock: Final = threading.Lock()
_known: dict[str, tuple[DataFrame, DataFrame]] = {}
"""By the id of the application; no more than one."""


def _tables(spark: SparkSession) -> tuple[DataFrame, DataFrame]:
    """The weather and the airlines, made once in each application, whichever of its members asks first.

    From the driver's memory: the package's files need not exist where the executors run. In the night in which summer
    time ends, an hour happens twice; the wetter one is taken.
    """
    with _lock:
        application = spark.sparkContext.applicationId
        if application not in _known:
            measured = spark.createDataFrame(list(data.rows("weather.csv")), _WEATHER_SCHEMA)
            hour = [F.col(name).cast("int").alias(name) for name in ("year", "month", "day", "hour")]
            inches = F.max(F.expr("try_cast(precip AS DOUBLE)")).alias("precipitation")
            weather = measured.coalesce(1).groupBy("origin", *hour).agg(inches)
            airlines = spark.createDataFrame(list(data.rows("airlines.csv")), "carrier STRING, name STRING")
            _known.clear()
            _known[application] = weather.cache(), airlines.toDF("carrier", "airline").cache()
        return _known[application]
