"""Several rows for a record in a table of Postgres, by a task that Spark runs again though its rows are committed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import TypeAlias

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_kcr.errors import SinkError
from airflow_kcr.ports import BatchCall
from airflow_kcr.sinks.postgres import frames
from airflow_kcr.sinks.postgres.staging import Staging
from tests.support.breaking_proxy import Break, BreakingProxy, breaking_proxy
from tests.support.sink_tables import Table, records

RECORDS, LINES = 4_000, 3
"""So many that Spark's writer sends each task's rows in more than one batch of statements."""

Plan: TypeAlias = "Callable[[DataFrame], DataFrame]"


def in_any_order() -> list[int]:
    """The lines of an order, as a service might return them."""
    return random.sample(range(LINES), LINES)


def exploded(orders: DataFrame) -> DataFrame:
    """One row for each line, in an order that differs each time."""
    lines = F.udf(in_any_order, "array<int>").asNondeterministic()()
    return orders.withColumn("line", F.explode(lines))


def shuffled(orders: DataFrame) -> DataFrame:
    """Likewise, a record's rows in different tasks."""
    return exploded(orders).repartition(2, "line")


def drawn(orders: DataFrame) -> DataFrame:
    """Of records that are drawn by lot each time."""
    is_drawn = F.udf(lambda: random.random() < 0.5, "boolean").asNondeterministic()()
    return exploded(orders.where(is_drawn))


@pytest.fixture
def way(empty_database_url: str) -> Iterator[tuple[BreakingProxy, Table]]:
    """A table in its first epoch, and what can lose the answer to a COMMIT on the way to it."""
    with breaking_proxy(empty_database_url) as (proxy, through):
        table = Table(url=through.render_as_string(hide_password=False))
        table.reset({0: 0})
        yield proxy, table


def staged(spark: SparkSession, way: tuple[BreakingProxy, Table], plan: Plan) -> tuple[Table, BatchCall, Staging]:
    """Stage a batch by executors, of which one does not hear that its rows are committed."""
    proxy, table = way
    orders = spark.range(0, RECORDS, numPartitions=2).selectExpr("'t' AS topic", "0 AS partition", "id AS offset")
    call, rows = table.call({0: (0, RECORDS)}), plan(orders)
    columns = frames.columns_of(rows)
    staging = table.sink.stage(call, columns)
    proxy.break_next(Break.AFTER)
    table.sink.fill(staging, rows, columns, call)
    assert proxy.breaks == 1
    return table, call, staging


@pytest.mark.parametrize("plan", [exploded, shuffled])
def test_each_is_there_once(spark: SparkSession, way: tuple[BreakingProxy, Table], plan: Plan) -> None:
    table, call, staging = staged(spark, way, plan)
    # What Spark must keep to: an attempt is a transaction, and numbers its rows from 0.
    attempts = table.ask(
        "SELECT kcr_row >> 33, count(*), min(kcr_row & 8589934591), max(kcr_row & 8589934591) + 1 "
        f"FROM {staging.shown} GROUP BY kcr_row >> 33, xmin"
    )
    assert sorted(task for task, *_ in attempts) in ([0, 0, 1], [0, 1, 1])
    assert all((first, beyond) == (0, rows) for _, rows, first, beyond in attempts)
    assert table.sink.insert(call, staging) == RECORDS * LINES
    assert table.held() == sorted(records(p0=(0, RECORDS)) * LINES)
    assert table.ask("SELECT line, count(DISTINCT kcr_offset), count(*) FROM out GROUP BY 1 ORDER BY 1") == [
        (line, RECORDS, RECORDS) for line in range(LINES)
    ]
    table.epoch, table.timeline = 2, 2
    table.reset({0: RECORDS // 2 + 1})
    assert table.held() == sorted(records(p0=(0, RECORDS // 2 + 1)) * LINES)


def test_of_other_records_each_time_none_is_there(spark: SparkSession, way: tuple[BreakingProxy, Table]) -> None:
    table, call, staging = staged(spark, way, drawn)
    with pytest.raises(SinkError, match="attempts made rows of different records"):
        table.sink.insert(call, staging)
    assert (table.held(), table.progress()[0]) == ([], (1, 0))
