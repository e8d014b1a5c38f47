"""The target of a sink: one table, in whose name it is written, and where it is in the database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Self

import psycopg
import psycopg.abc
from psycopg import sql

from airflow_kcr.protocol.rules import Delivery, SinkMode
from airflow_kcr.protocol.values import (
    GroupId,
    RegionId,
    RegionName,
)

PREFIX: Final = "kcr_"
"""Begins every name that is the sink's own."""

SOURCE: Final = "kcr_source"
COORDINATES: Final[Mapping[str, str]] = MappingProxyType(
    {"kcr_topic": "text", "kcr_partition": "integer", "kcr_offset": "bigint"}
)
"""The columns that name a record, with their types."""

OWN_COLUMNS: Final[Mapping[str, str]] = MappingProxyType(
    {SOURCE: "integer", **COORDINATES, "kcr_timeline": "bigint", "kcr_sequence": "bigint"}
)
"""The columns that every target has beside the pipeline's.

Where a row comes from, and to which checkpoint it belongs.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One sink of a group: which table, how it is written, and in whose name."""

    region: RegionName
    region_id: RegionId
    """Which region of that name."""

    group: GroupId
    sink: str
    """Its name in the spec."""

    beside: frozenset[tuple[GroupId, str]] = frozenset()
    """All sinks of the region's spec, by group and name: those that may write into the same table."""

    table: str
    """`table` or `schema.table`, to the letter."""

    delivery: Delivery
    mode: SinkMode = SinkMode.APPEND
    key: tuple[str, ...] = ()
    """The columns that name a row, for `upsert`."""

    def __str__(self) -> str:
        return f"sink {self.sink} of group {self.group}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetColumn:
    """A column that the target has."""

    type: str
    """As SQL has it."""

    needed: bool
    """Whether a row without it is refused: it is NOT NULL and has no default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetPlace:
    """Where a target is, as the database knows it."""

    schema: str
    table: str
    source: int
    """The number of this sink in `kcr_fence`."""

    columns: Mapping[str, TargetColumn] = field(default_factory=lambda: MappingProxyType({}))
    """Of the target, in its order; empty where it does not exist yet."""

    @property
    def shown(self) -> str:
        """The table as SQL for people has it."""
        return sql.Identifier(self.schema, self.table).as_string()

    @property
    def exists(self) -> bool:
        """Whether there is such a table."""
        return bool(self.columns)

    @property
    def target(self) -> sql.Identifier:
        """The target table."""
        return self.own(self.table)

    @property
    def fence(self) -> sql.Identifier:
        """The table of fences."""
        return self.own("kcr_fence")

    @property
    def progress(self) -> sql.Identifier:
        """The table of progress."""
        return self.own("kcr_progress")

    @property
    def crash_mark(self) -> sql.Identifier:
        """The table that a crash of the server empties, as it empties what is staged."""
        return self.own("kcr_crash_mark")

    def own(self, name: str) -> Quoted:
        """Return a table of the target's schema."""
        return Quoted(self.schema, name)


class Quoted(sql.Identifier):
    """A name as statements with parameters take it: psycopg looks for placeholders within names too."""

    def as_bytes(self, context: psycopg.abc.AdaptContext | None = None) -> bytes:
        """Return it, quoted."""
        return super().as_bytes(context).replace(b"%", b"%%")


class WithParameters(psycopg.Cursor[Any]):
    """Takes every statement as one with parameters, so that `Quoted` is right in all of them."""

    def execute(self, query: Any, params: Any = None, **options: Any) -> Self:  # noqa: ANN401 (as psycopg has it)
        """Run a statement."""
        return super().execute(query, () if params is None else params, **options)


def names(columns: list[str] | tuple[str, ...]) -> sql.Composed:
    """Return quoted names with commas between them."""
    return sql.SQL(", ").join(map(Quoted, columns))


LONGEST: Final = 63
"""Bytes that Postgres keeps of a name (NAMEDATALEN)."""


def is_too_long(name: str) -> bool:
    """Whether Postgres would cut a name."""
    return len(name.encode()) > LONGEST


def columns_of(connection: psycopg.Connection, schema: str, table: str) -> dict[str, TargetColumn]:
    """Return the columns of a table that can be written, in its order; none if there is no such table."""
    rows = connection.execute(
        "SELECT a.attname, format_type(a.atttypid, a.atttypmod), "
        "a.attnotnull AND NOT a.atthasdef AND a.attidentity = '' "
        "FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' "
        "AND a.attidentity <> 'a' ORDER BY a.attnum",
        [schema, table],
    ).fetchall()
    return {name: TargetColumn(type=kind, needed=needed) for name, kind, needed in rows}


def computed_columns(connection: psycopg.Connection, place: TargetPlace) -> frozenset[str]:
    """Return the columns of the target that only Postgres may write."""
    rows = connection.execute(
        "SELECT attname::text FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped "
        "AND (attgenerated <> '' OR attidentity = 'a')",
        [place.shown],
    ).fetchall()
    return frozenset(name for (name,) in rows)
