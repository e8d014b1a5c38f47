"""The delays by carrier and hour in one go, without batches, ledger and pipeline: what the region's result must equal.

Written a second time on purpose, in SQL over the package's files, and with another way into the JSON: a mistake in the
pipeline shall not be made here as well. The files are read where the tasks run, so the master is `local[…]`, or the
executors see the same folders.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_kcr.embedded.flights import data

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

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
