"""The exactly-once table of the flights judged: its sums, and the rows of each record, against the topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import psycopg

from airflow_kcr.embedded.flights import result
from airflow_kcr.protocol.values import GroupPartition, Offset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SUMS: Final = """
    SELECT carrier, max(airline) AS airline, year, month, day, hour,
           count(*) AS flights,
           count(*) - count(dep_delay) AS cancelled,
           sum(dep_delay) AS dep_delay_sum,
           sum(arr_delay) AS arr_delay_sum,
           count(*) FILTER (WHERE precipitation > 0) AS with_precipitation,
           count(*) FILTER (WHERE precipitation IS NULL) AS without_weather,
           max(dep_delay) AS dep_delay_max
    FROM flights GROUP BY carrier, year, month, day, hour
"""
_SUMS_SCHEMA: Final = (
    "carrier STRING, airline STRING, year INT, month INT, day INT, hour INT, flights BIGINT, cancelled BIGINT, "
    "dep_delay_sum BIGINT, arr_delay_sum BIGINT, with_precipitation BIGINT, without_weather BIGINT, dep_delay_max INT"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableJudgement:
    """The answer."""

    rows: int
    """In the table."""

    twice: int
    """Records that more than one row was made of."""

    beyond: int
    """Rows of records beyond where the region is."""

    unlike_topic: int
    """Carriers and hours whose sums are not what was computed from the topic's records."""

    @property
    def sound(self) -> bool:
        """Whether every flight is there once, and they add up to what was computed directly."""
        return self.twice == self.beyond == self.unlike_topic == 0


def judge(
    spark: SparkSession, ends: Mapping[GroupPartition, Offset], database: str, kafka: Mapping[str, str]
) -> TableJudgement:
    """Compare the table with the topic, for a region at rest.

    Args:
        spark: the session.
        ends: where the region is; the topics were read from offset 0.
        database: URL of the table's database, its password in it.
        kafka: client settings as Kafka's Java client names them.
    """
    places = [(place.topic, place.partition, end) for place, end in sorted(ends.items())]
    with psycopg.connect(database) as connection:
        # One picture of all three, whatever happens meanwhile.
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        rows = _number(connection, "SELECT count(*) FROM flights")
        twice = _number(
            connection,
            "SELECT count(*) FROM (SELECT FROM flights GROUP BY kcr_topic, kcr_partition, kcr_offset "
            "HAVING count(*) > 1) AS one",
        )
        within = _number(
            connection,
            "SELECT count(*) FROM flights "
            "JOIN unnest(%s::text[], %s::int[], %s::bigint[]) AS e (topic, partition, ends) "
            "ON kcr_topic = e.topic AND kcr_partition = e.partition AND kcr_offset < e.ends",
            [list(column) for column in zip(*places, strict=True)],
        )
        sums = connection.execute(_SUMS).fetchall()
    found = spark.createDataFrame([tuple(row) for row in sums], _SUMS_SCHEMA)
    direct = result.from_topic(spark, result.read_topics(spark, kafka, ends))
    return TableJudgement(rows=rows, twice=twice, beyond=rows - within, unlike_topic=result.compare(found, direct)[1])


def _number(connection: psycopg.Connection, statement: str, parameters: list[list[object]] | None = None) -> int:
    row = connection.execute(statement.encode(), parameters).fetchone()
    return 0 if row is None else int(row[0])
