"""The staging table of a batch: unlogged, filled by executors in parallel, read by the insertion alone, then dropped.

It belongs to one attempt: a batch's id is never used twice, so what a zombie writes late is in a table that is no
longer read.

A server that crashes empties it, and a connection opened later would not know: a batch without any row is nothing
unusual. So its creator notes the server's crash mark, and the insertion compares.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import psycopg
from psycopg import sql

from airflow_kcr.errors import SinkError
from airflow_kcr.protocol.rules import SinkMode
from airflow_kcr.protocol.values import BatchId, Epoch
from airflow_kcr.sinks.postgres import bookkeeping
from airflow_kcr.sinks.postgres.target import (
    COORDINATES,
    LONGEST,
    OWN_COLUMNS,
    PREFIX,
    Quoted,
    Target,
    TargetColumn,
    TargetPlace,
    columns_of,
    is_too_long,
    names,
)

ROW: Final = "kcr_row"
"""A column of staging tables: the row's number in the DataFrame. A task that was run twice wrote a row twice, with one
number; two rows of one record have two."""

_PREFIX: Final = "kcr_staging_"
"""What follows is of one region's sink, and of one batch: the number of its row in the fence, epoch, the batch's id."""

_WITHOUT_ZONE: Final = frozenset(
    {"text", "date", "date[]", "timestamp without time zone", "timestamp without time zone[]"}
)


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

    cast: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Those of them that wait as texts, with the types that they get as they are published."""

    crash_mark: str = ""
    """Of the server when the table was made: what was written since is there as long as the server has this one."""

    @property
    def identifier(self) -> Quoted:
        """The table."""
        return Quoted(self.schema, self.table)


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
    too_long = [column.name for column in columns if is_too_long(column.name)]
    if too_long:
        raise SinkError(
            f"{target}: column {', '.join(too_long)} is longer than the {LONGEST} bytes that Postgres keeps of a name; "
            "give it a shorter one in the pipeline"
        )
    existing = columns_of(connection, place)
    if not existing:
        place.run(connection, "lock_ddl")
        if not columns_of(connection, place):
            if not bookkeeping.is_same(connection, place, place.source):
                raise SinkError(f"{target}: {bookkeeping.another_table(place.shown)}")
            _make_target(connection, target, place, columns)
            bookkeeping.remember_target(connection, place, place.source)
        existing = columns_of(connection, place)
    computed = frozenset(name for (name,) in place.run(connection, "computed_columns"))
    _require_fit(target, place, existing, columns, computed)
    digest = hashlib.blake2s(batch.encode(), digest_size=8).hexdigest()
    table = f"{_PREFIX}{place.source}_{epoch}_{digest}"
    own = [*((name, f"{kind} NOT NULL") for name, kind in COORDINATES.items()), (ROW, "bigint NOT NULL")]
    types = {column.name: existing[column.name].type for column in columns}
    cast = {column.name: types[column.name] for column in columns if _needs_zone(column.type, types[column.name])}
    definitions = [*({**types, **dict.fromkeys(cast, "text")}).items(), *own]
    connection.execute(
        sql.SQL("CREATE UNLOGGED TABLE {} ({}) WITH (autovacuum_enabled = off)").format(
            place.own(table),
            sql.SQL(", ").join(sql.SQL("{} {}").format(Quoted(n), sql.SQL(kind)) for n, kind in definitions),
        )
    )
    return Staging(
        schema=place.schema,
        table=table,
        columns=tuple(column.name for column in columns),
        cast=cast,
        crash_mark=bookkeeping.ensure_crash_mark(connection, place),
    )


def _needs_zone(given: str, there: str) -> bool:
    """Whether a value is read in a session's zone: executors' sessions have that of their JVM, ours has UTC."""
    return given in _WITHOUT_ZONE and ("with time zone" in there or there.startswith("tstz"))


def _make_target(connection: psycopg.Connection, target: Target, place: TargetPlace, columns: Sequence[Column]) -> None:
    """Make the target with the pipeline's columns and ours; the index is small, and only a reset reads it."""
    missing = [name for name in target.key if name not in {column.name for column in columns}]
    if missing:
        raise SinkError(f"{target}: column {', '.join(missing)} of the key is not in what the pipeline writes")
    definitions = [(c.name, c.type) for c in columns] + list(OWN_COLUMNS.items())
    parts = [sql.SQL("{} {}").format(Quoted(name), sql.SQL(kind)) for name, kind in definitions]
    if target.mode is SinkMode.UPSERT:
        parts.append(sql.SQL("PRIMARY KEY ({})").format(names(target.key)))
    connection.execute(sql.SQL("CREATE TABLE {} ({})").format(place.target, sql.SQL(", ").join(parts)))
    connection.execute(sql.SQL("CREATE INDEX ON {} USING brin (kcr_partition, kcr_offset)").format(place.target))


def _require_fit(
    target: Target,
    place: TargetPlace,
    existing: Mapping[str, TargetColumn],
    columns: Sequence[Column],
    computed: frozenset[str],
) -> None:
    written = {column.name for column in columns}
    if written & computed:
        raise SinkError(
            f"{target}: Postgres computes column {', '.join(sorted(written & computed))} of table {place.schema}."
            f"{place.table} by itself (GENERATED ALWAYS); leave it out in the pipeline"
        )
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
    found = place.run(connection, "staging_tables")
    return [
        Staging(schema=place.schema, table=name, columns=()) for (name,) in found if int(name.split("_")[3]) < epoch
    ]
