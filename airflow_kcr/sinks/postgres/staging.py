"""The staging table of a batch: unlogged, filled by executors in parallel, read only by the publication, then dropped.

It belongs to one attempt: a batch's id is never used twice, so what a zombie writes late is in a table that is no
longer published.

A server that crashes empties it, and a connection opened later would not know: a batch without any row is nothing
unusual. So its creator notes the server's crash mark, and its publisher compares.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg import sql

from airflow_kcr.errors import SinkError
from airflow_kcr.protocol.rules import SinkMode
from airflow_kcr.protocol.values import BatchId, Epoch
from airflow_kcr.sinks.postgres.bookkeeping import DDL_LOCK, ensure_crash_mark
from airflow_kcr.sinks.postgres.checks import columns_of
from airflow_kcr.sinks.postgres.target import COORDINATES, OWN_COLUMNS, PREFIX, Target, TargetColumn, TargetPlace, names

ROW: Final = "kcr_row"
"""A column of staging tables: the row's number in the DataFrame. A task that was run twice wrote a row twice, with one
number; two rows of one record have two."""

_PREFIX: Final = "kcr_staging_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column that a pipeline writes."""

    name: str
    type: str
    """As SQL has it; used where the target does not have the column yet, because there is no target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """Where the rows of one batch wait."""

    schema: str
    table: str
    columns: tuple[str, ...]
    """The pipeline's own columns; `COORDINATES` and `ROW` come with them."""

    crash_mark: str = ""
    """Of the server when the table was made: what was written since is there as long as the server has this one."""

    @property
    def identifier(self) -> sql.Identifier:
        """The table."""
        return sql.Identifier(self.schema, self.table)


def make(
    connection: psycopg.Connection,
    target: Target,
    place: TargetPlace,
    batch: BatchId,
    epoch: Epoch,
    columns: Sequence[Column],
) -> Staging:
    """Make the staging table of a batch, and the target if there is none yet.

    Raises:
        SinkError: the columns don't fit the target; the message names them.
    """
    ours = [column.name for column in columns if column.name.startswith(PREFIX)]
    if ours:
        raise SinkError(
            f"{target}: column {', '.join(ours)} begins with {PREFIX}, as only the sink's own do; rename it"
        )
    existing = columns_of(connection, place.schema, place.table)
    if not existing:
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [DDL_LOCK])
        if not columns_of(connection, place.schema, place.table):
            _make_target(connection, target, place, columns)
        existing = columns_of(connection, place.schema, place.table)
    _require_fit(target, place, existing, columns)
    digest = hashlib.blake2s(batch.encode(), digest_size=8).hexdigest()
    table = f"{_PREFIX}{place.source}_{epoch}_{digest}"
    own = [*((name, f"{kind} NOT NULL") for name, kind in COORDINATES.items()), (ROW, "bigint NOT NULL")]
    definitions = [(column.name, existing[column.name].type) for column in columns] + own
    connection.execute(
        sql.SQL("CREATE UNLOGGED TABLE {} ({}) WITH (autovacuum_enabled = off)").format(
            place.own(table),
            sql.SQL(", ").join(sql.SQL("{} {}").format(sql.Identifier(n), sql.SQL(kind)) for n, kind in definitions),
        )
    )
    return Staging(
        schema=place.schema,
        table=table,
        columns=tuple(column.name for column in columns),
        crash_mark=ensure_crash_mark(connection, place),
    )


def _make_target(connection: psycopg.Connection, target: Target, place: TargetPlace, columns: Sequence[Column]) -> None:
    """Make the target with the pipeline's columns and ours; the index is small, and only a reset reads it."""
    missing = [name for name in target.key if name not in {column.name for column in columns}]
    if missing:
        raise SinkError(f"{target}: column {', '.join(missing)} of the key is not in what the pipeline writes")
    definitions = [(c.name, c.type) for c in columns] + list(OWN_COLUMNS.items())
    parts = [sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind)) for name, kind in definitions]
    if target.mode is SinkMode.UPSERT:
        parts.append(sql.SQL("PRIMARY KEY ({})").format(names(target.key)))
    connection.execute(sql.SQL("CREATE TABLE {} ({})").format(place.target, sql.SQL(", ").join(parts)))
    connection.execute(sql.SQL("CREATE INDEX ON {} USING brin (kcr_partition, kcr_offset)").format(place.target))


def _require_fit(
    target: Target, place: TargetPlace, existing: Mapping[str, TargetColumn], columns: Sequence[Column]
) -> None:
    written = {column.name for column in columns}
    unknown = [column.name for column in columns if column.name not in existing]
    if unknown:
        raise SinkError(
            f"{target}: table {place.schema}.{place.table} has no column {', '.join(unknown)}; add it to the table, or "
            "leave it out in the pipeline"
        )
    needed = {name for name, column in existing.items() if column.needed}
    absent = sorted((needed - written - OWN_COLUMNS.keys()) | (set(target.key) - written))
    if absent:
        raise SinkError(
            f"{target}: table {place.schema}.{place.table} needs column {', '.join(absent)}, which the pipeline does "
            "not write; write it, or give it a default"
        )


def drop(connection: psycopg.Connection, staging: Staging) -> None:
    """Drop a staging table, if it is still there."""
    connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(staging.identifier))


def leftovers(connection: psycopg.Connection, place: TargetPlace, epoch: Epoch) -> list[Staging]:
    """Return the staging tables that batches of older epochs of this sink have left."""
    found = connection.execute(
        "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        r"WHERE n.nspname = %s AND c.relname ~ %s",
        [place.schema, rf"^{_PREFIX}{place.source}_[0-9]+_[0-9a-f]+$"],
    ).fetchall()
    return [
        Staging(schema=place.schema, table=name, columns=()) for (name,) in found if int(name.split("_")[3]) < epoch
    ]
