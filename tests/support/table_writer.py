"""The writing of a batch into declared tables, as Spark does it, with the executors' part by COPY."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import psycopg
from psycopg import sql

from airflow_kcr.errors import BatchFailed, SinkError
from airflow_kcr.ports import BatchCall
from airflow_kcr.sinks.postgres import Column, PostgresSink, Staging
from tests.support.plain_engine import Written

COLUMNS = (Column(name="value", type="text"),)


def write_tables(
    sinks: Iterable[PostgresSink], call: BatchCall, rows: Sequence[Written], at: Callable[[str], None]
) -> None:
    """Write a batch to each table and publish it; none: nothing is done.

    Args:
        sinks: the tables.
        call: the batch.
        rows: what it has processed.
        at: called with the name of each step that is done.

    Raises:
        BatchFailed: a sink refuses, or does not answer.
    """
    for sink in sinks:
        at("written")
        try:
            staging = sink.stage(call, COLUMNS)
            _copy(sink, staging, rows)
            at("staged")
            sink.publish(call, staging)
        except (SinkError, psycopg.Error) as error:
            raise BatchFailed(f"batch {call.batch}: {error}") from error
        at("published")


def _copy(sink: PostgresSink, staging: Staging, rows: Sequence[Written]) -> None:
    columns = (*staging.columns, "kcr_topic", "kcr_partition", "kcr_offset", "kcr_row")
    statement = sql.SQL("COPY {} ({}) FROM STDIN").format(
        staging.identifier, sql.SQL(", ").join(map(sql.Identifier, columns))
    )
    with (
        psycopg.connect(**sink.database.parameters) as connection,  # type: ignore[arg-type]
        connection.cursor().copy(statement) as copy,
    ):
        for number, row in enumerate(rows):
            copy.write_row((row.value, row.topic, row.partition, row.offset, number))
