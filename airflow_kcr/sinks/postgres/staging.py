"""The staging table of a batch: unlogged, filled by executors in parallel, read by the insertion alone, then dropped.

It belongs to one attempt: a batch's id is never used twice, so what a zombie writes late is in a table that is no
longer read.

A server that crashes empties it, and a connection opened later would not know: a batch without any row is nothing
unusual. So its creator notes the server's crash mark, and the insertion compares.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from airflow_kcr.errors import SinkError
from airflow_kcr.protocol.rules import SinkMode
from airflow_kcr.protocol.values import BatchId, CheckpointNumber, Epoch, EventNumber
from airflow_kcr.sinks.postgres import bookkeeping
from airflow_kcr.sinks.postgres.target import (
    COORDINATES,
    LONGEST,
    OWN_COLUMNS,
    PREFIX,
    TargetColumn,
    TargetTable,
    is_too_long,
    names,
    quoted,
)

ROW: Final = "kcr_row"
"""A column of staging tables: the row's number in the DataFrame, of which the task's is a part (`rows_once`)."""

_PREFIX: Final = "kcr_staging_"
"""What follows is of one region's sink, and of one batch: the number of its row in the fence, epoch, the batch's id."""

_REVISION: Final = "kcr_revision_"
"""What follows is of one region's sink, and of one recomputation: that number, the checkpoint's, the recomputation's,
the batch's id."""

_WITHOUT_ZONE: Final = frozenset(
    {"text", "date", "date[]", "timestamp without time zone", "timestamp without time zone[]"}
)


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
    def shown(self) -> str:
        """The table as SQL has it."""
        return quoted(self.schema, self.table)


def of_batch(table: TargetTable, batch: BatchId, epoch: Epoch) -> str:
    """Return the name of a batch's staging table."""
    return f"{_PREFIX}{table.source}_{epoch}_{_digest(batch)}"


def of_revision(table: TargetTable, sequence: CheckpointNumber, number: EventNumber, batch: BatchId) -> str:
    """Return the name of the staging table of a batch that recomputes a checkpoint."""
    return f"{_REVISION}{table.source}_{sequence}_{number}_{_digest(batch)}"


def _digest(batch: BatchId) -> str:
    return hashlib.blake2s(batch.encode(), digest_size=8).hexdigest()


def make(table: TargetTable, name: str, columns: Mapping[str, str]) -> Staging:
    """Make a staging table, and the target if there is none yet.

    Args:
        table: the target.
        name: of the staging table.
        columns: what the pipeline writes, with the types that they get where there is no target yet.

    Raises:
        SinkError: the columns don't fit the target; the message names them.
    """
    target = table.target
    ours = [name for name in columns if name.startswith(PREFIX)]
    if ours:
        raise SinkError(
            f"{target}: column {', '.join(ours)} begins with {PREFIX}, as only the sink's own do; rename it"
        )
    too_long = [name for name in columns if is_too_long(name)]
    if too_long:
        raise SinkError(
            f"{target}: column {', '.join(too_long)} is longer than the {LONGEST} bytes that Postgres keeps of a name; "
            "give it a shorter one in the pipeline"
        )
    existing = table.read_columns()
    if not existing:
        table.run("lock_ddl")
        if not table.read_columns():
            if not bookkeeping.is_same(table, table.source):
                raise SinkError(f"{target}: {bookkeeping.another_table(table.shown)}")
            _make_target(table, columns)
            bookkeeping.remember_target(table, table.source)
        existing = table.read_columns()
    computed = frozenset(name for (name,) in table.run("computed_columns"))
    _require_fit(table, existing, columns.keys(), computed)
    types = {name: existing[name].type for name in columns}
    cast = {name: types[name] for name, given in columns.items() if _needs_zone(given, types[name])}
    own = {name: f"{kind} NOT NULL" for name, kind in {**COORDINATES, ROW: "bigint"}.items()}
    staging = Staging(
        schema=table.schema,
        table=name,
        columns=tuple(columns),
        cast=cast,
        crash_mark=bookkeeping.ensure_crash_mark(table),
    )
    definitions = _definitions({**types, **dict.fromkeys(cast, "text"), **own})
    table.run("make_staging", {"staging": staging.shown, "definitions": definitions})
    return staging


def _definitions(columns: Mapping[str, str]) -> str:
    """Return columns of a new table, by name, with their types."""
    return ", ".join(f"{quoted(name)} {kind}" for name, kind in columns.items())


def _needs_zone(given: str, there: str) -> bool:
    """Whether a value is read in a session's zone: executors' sessions have that of their JVM, ours has UTC."""
    return given in _WITHOUT_ZONE and ("with time zone" in there or there.startswith("tstz"))


def _make_target(table: TargetTable, columns: Mapping[str, str]) -> None:
    target = table.target
    missing = [name for name in target.key if name not in columns]
    if missing:
        raise SinkError(f"{target}: column {', '.join(missing)} of the key is not in what the pipeline writes")
    definitions = _definitions({**columns, **OWN_COLUMNS})
    if target.mode is SinkMode.UPSERT:
        definitions += f", PRIMARY KEY ({names(target.key)})"
    table.run("make_target", {"definitions": definitions})
    table.run("index_target")


def _require_fit(
    table: TargetTable, existing: Mapping[str, TargetColumn], written: Set[str], computed: frozenset[str]
) -> None:
    target = table.target
    if written & computed:
        raise SinkError(
            f"{target}: Postgres computes column {', '.join(sorted(written & computed))} of table {table.schema}."
            f"{table.name} by itself (GENERATED ALWAYS); leave it out in the pipeline"
        )
    unknown = [name for name in written if name not in existing]
    if unknown:
        raise SinkError(
            f"{target}: table {table.schema}.{table.name} has no column {', '.join(unknown)}; add it to the table, or "
            "leave it out in the pipeline"
        )
    needed = {name for name, column in existing.items() if column.needed}
    absent = sorted((needed - written - OWN_COLUMNS.keys()) | (set(target.key) - written))
    if absent:
        raise SinkError(
            f"{target}: table {table.schema}.{table.name} needs column {', '.join(absent)}, which the pipeline does "
            "not write; write it, or give it a default"
        )


def rows_once(table: TargetTable, staging: Staging, batch: BatchId) -> str:
    """Return what SQL selects the rows of a batch from: of a task that ran more than once, the rows of one attempt.

    Executors can't be asked: one may be lost after its task has committed its rows, and before it has said so. But
    Spark's writer commits all rows of an attempt in one transaction, which Postgres keeps with each row (`xmin`).
    Attempts may make their rows in different orders, so rows are never chosen one by one, by their numbers.

    Raises:
        SinkError: the attempts of a task have rows of different records. A record may then be in another task's rows
            too, or in none.
    """
    there = {"staging": staging.shown}
    if not table.value("has_repeats", there):
        return staging.shown
    if table.value("attempts_differ", there):
        raise SinkError(
            f"{table.target}: Spark ran a task of batch {batch} more than once, and its attempts made rows of "
            "different records, so that which of them count can't be told; nothing was written. Have the rows that the "
            "pipeline makes, and what it shuffles them by, depend on the records alone: not on random numbers, the "
            "time or data that changes"
        )
    return f"({table.text('of_one_attempt', there)})"


def drop(table: TargetTable, staging: Staging) -> None:
    """Drop a staging table, if it is still there."""
    table.run("drop_staging", {"staging": staging.shown})


def leftovers(table: TargetTable, before: Epoch | None = None) -> list[Staging]:
    """Return the staging tables that batches of this sink have left: of older epochs; None: of all, recomputations too.

    What recomputes a checkpoint is of no epoch.
    """
    batches = [name for name in _named(table, _PREFIX) if before is None or int(name.split("_")[3]) < before]
    return [_left(table, name) for name in (*batches, *(_named(table, _REVISION) if before is None else ()))]


def superseded(table: TargetTable, sequence: CheckpointNumber, number: EventNumber) -> list[Staging]:
    """Return the staging tables that earlier recomputations of a checkpoint have left."""
    own = (name for name in _named(table, _REVISION) if int(name.split("_")[3]) == sequence)
    return [_left(table, name) for name in own if int(name.split("_")[4]) < number]


def _named(table: TargetTable, prefix: str) -> list[str]:
    return [name for (name,) in table.run("staging_tables", beginning=f"{prefix}{table.source}_")]


def _left(table: TargetTable, name: str) -> Staging:
    return Staging(schema=table.schema, table=name, columns=())
