"""The writing of a batch into declared sinks, as Spark does it: the executors' part is a COPY, or a file of names."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import psycopg
from psycopg import sql

from airflow_kcr.errors import BatchFailed, SinkError
from airflow_kcr.ports import BatchCall
from airflow_kcr.protocol.values import RegionName
from airflow_kcr.sinks.files.contents import RegionLedger, timelines_in
from airflow_kcr.sinks.files.layout import FileTarget
from airflow_kcr.sinks.files.sink import FileSink
from airflow_kcr.sinks.postgres.sink import PostgresSink
from airflow_kcr.sinks.postgres.staging import Staging
from airflow_kcr.store.regions import RegionStore
from tests.support.member_accounts import Place
from tests.support.plain_engine import Written
from tests.support.sink_files import SCHEMA, LocalFolder, RecordRewriter, manifests_in, records_in

COLUMNS = {"value": "text"}


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
            sink.insert(call, staging)
        except (SinkError, psycopg.Error) as error:
            raise BatchFailed(f"batch {call.batch}: {error}") from error
        at("published")


def opened_files(targets: Iterable[FileTarget], store: RegionStore, name: RegionName) -> tuple[FileSink, ...]:
    """Return file sinks on this machine's disk, found to be in order."""
    sinks = []
    for target in targets:
        folder = LocalFolder(Path(target.path))
        sink = FileSink(target, folder, RegionLedger(store, name), RecordRewriter(folder))
        sink.check()
        sinks.append(sink)
    return tuple(sinks)


def write_files(sinks: Iterable[FileSink], call: BatchCall, rows: Sequence[Written], at: Callable[[str], None]) -> None:
    """Write a batch's files into each folder, and list them; see `write_tables`."""
    for sink in sinks:
        at("written")
        part = Path(sink.target.path) / sink.attempt(call) / "part-00000"
        try:
            part.parent.mkdir(parents=True)
            part.write_text(json.dumps([(row.topic, row.partition, row.offset) for row in rows]))
            at("staged")
            sink.list_files(call, SCHEMA)
        except (SinkError, OSError) as error:
            raise BatchFailed(f"batch {call.batch}: {error}") from error
        at("published")


def records_of(path: Path) -> list[Place]:
    """Return the records of every file that a manifest in force names, one entry for each time that it is there."""
    folder = LocalFolder(path)
    noted = timelines_in(folder)
    return [
        record
        for sequence, manifest in manifests_in(folder).items()
        if noted.superseded_by(sequence) is None
        for file in manifest.files
        for record in records_in(folder, file.path)
    ]


def _copy(sink: PostgresSink, staging: Staging, rows: Sequence[Written]) -> None:
    columns = (*staging.columns, "kcr_topic", "kcr_partition", "kcr_offset", "kcr_row")
    statement = sql.SQL("COPY {} ({}) FROM STDIN").format(
        sql.Identifier(staging.schema, staging.table), sql.SQL(", ").join(map(sql.Identifier, columns))
    )
    with (
        psycopg.connect(**sink.database.parameters) as connection,  # type: ignore[arg-type]
        connection.cursor().copy(statement) as copy,
    ):
        for number, row in enumerate(rows):
            copy.write_row((row.value, row.topic, row.partition, row.offset, number))
