"""The exactly-once variant: one row for each flight in a table of Postgres, and the result is a plain sum over it.

No ledger says which rows count: all do. That is what `delivery: exactly_once` promises, and what `judge` compares: the
sums of the table against the same computed from the topic, and each record of the topic against the rows made of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import psycopg

from airflow_kcr.embedded.flights import result
from airflow_kcr.embedded.flights.data import GROUP
from airflow_kcr.embedded.flights.pipeline import FLIGHT, KEY, joined
from airflow_kcr.embedded.flights.result import ResultComparison
from airflow_kcr.protocol.values import (
    GroupId,
    GroupPartition,
    MemberId,
    Offset,
    Range,
    RegionName,
    Timeline,
    TopicName,
)
from airflow_kcr.spark import reads

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_kcr.spark import BatchContext

SINK: Final = "flights"
"""The sink's name in the spec, and the table's."""

_ROW: Final = (*KEY, "origin", "dep_delay", "arr_delay", "precipitation")

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


def process(batch: DataFrame, context: BatchContext) -> None:
    """Write a batch's flights, with airline and weather, into the sink; records that are no flights are left out.

    Raises:
        SinkError: the rows don't fit the table.
        ToolMissing: the package with the tables is not installed.
    """
    flights = joined(batch).where(f"kind = '{FLIGHT}'")
    context.sinks[SINK].write(flights.select("topic", "partition", "offset", *_ROW))


@dataclass(frozen=True, slots=True, kw_only=True)
class TableQuestion:
    """What to judge: a region at rest, and the table that it wrote to.

    Args:
        ends: where the region is, by topic and partition; the topics were read from offset 0.
        database: URL of the table's database, its password in it.
        kafka: client settings as Kafka's Java client names them, secrets filled in.
        group: of the pipeline.
    """

    ends: Mapping[tuple[str, int], int]
    database: str = field(repr=False)
    kafka: Mapping[str, str] = field(repr=False)
    group: GroupId = GROUP


@dataclass(frozen=True, slots=True, kw_only=True)
class TableJudgement:
    """The answer."""

    rows: int
    """In the table."""

    twice: int
    """Records that more than one row was made of."""

    beyond: int
    """Rows of records beyond where the region is."""

    with_topic: ResultComparison
    """The sums, compared with the same computed from the topic's records."""

    @property
    def sound(self) -> bool:
        """Whether every flight is there once, and they add up to what was computed directly."""
        return self.twice == 0 and self.beyond == 0 and self.with_topic.equal


def judge(spark: SparkSession, question: TableQuestion) -> TableJudgement:
    """Compare the table with the topic.

    Raises:
        psycopg.Error: the table can't be read.
        ToolMissing: the package with the tables is not installed.
    """
    places = [(topic, partition, end) for (topic, partition), end in sorted(question.ends.items())]
    with psycopg.connect(question.database) as connection:
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
    ranges = {
        GroupPartition(question.group, TopicName(topic), partition): Range(Offset(0), Offset(end))
        for topic, partition, end in places
    }
    source = reads.Source(region=RegionName("flights-check"), member=MemberId(question.group, 0), kafka=question.kafka)
    records = reads.Reader(spark, source).read(ranges, Timeline(1))
    return TableJudgement(
        rows=rows,
        twice=twice,
        beyond=rows - within,
        with_topic=result.compare(found, result.from_topic(spark, records)),
    )


def _number(connection: psycopg.Connection, statement: str, parameters: list[list[object]] | None = None) -> int:
    row = connection.execute(statement.encode(), parameters).fetchone()
    return 0 if row is None else int(row[0])
