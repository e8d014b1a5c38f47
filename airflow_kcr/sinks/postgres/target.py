"""The target of a sink: one table, in whose name it is written, where it is, and the statements about it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Self

import psycopg
import psycopg.abc
from psycopg import sql

from airflow_kcr.protocol.rules import Delivery, SinkMode
from airflow_kcr.protocol.values import GroupId, RegionId, RegionName

if TYPE_CHECKING:
    from psycopg.rows import TupleRow

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

LONGEST: Final = 63
"""Bytes that Postgres keeps of a name (NAMEDATALEN)."""


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

    @property
    def writer(self) -> dict[str, str]:
        """Whose rows it writes, as the fences name them."""
        return {"region_id": self.region_id, "group": self.group, "sink": self.sink}


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
    def target(self) -> Quoted:
        """The target table."""
        return self.own(self.table)

    @property
    def progress(self) -> Quoted:
        """The table of progress."""
        return self.own("kcr_progress")

    def own(self, name: str) -> Quoted:
        """Return a table of the target's schema."""
        return Quoted(self.schema, name)

    def run(self, connection: psycopg.Connection, name: str, **parameters: object) -> psycopg.Cursor[TupleRow]:
        """Run one of the statements of `statements.sql`, and return the cursor with its rows.

        Args:
            connection: in the transaction.
            name: the statement's.
            parameters: its own; `schema`, `table`, `shown` and `source` are the place's where they are not given.
        """
        tables = {name: self.own(f"kcr_{name}") for name in ("fence", "progress", "crash_mark")}
        its = {"schema": self.schema, "table": self.table, "shown": self.shown, "source": self.source}
        return connection.execute(_statements()[name].format(target=self.target, **tables), its | parameters)

    def value(self, connection: psycopg.Connection, name: str, **parameters: object) -> Any:  # noqa: ANN401 (a column)
        """Run a statement, and return the first column of its first row; None: there is no row."""
        row = self.run(connection, name, **parameters).fetchone()
        return None if row is None else row[0]


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


_HEADER: Final = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_COMMENT: Final = re.compile(r"^--.*\n", re.MULTILINE)
_PARAMETER: Final = re.compile(r"(?<![:\w]):([a-z]\w*)")


@cache
def _statements() -> Mapping[str, sql.SQL]:
    """Return the statements of `statements.sql` by name, their parameters as psycopg writes them."""
    text = Path(__file__).with_name("statements.sql").read_text(encoding="utf-8")
    _, *found = _HEADER.split(text)
    bodies = (_PARAMETER.sub(r"%(\1)s", _COMMENT.sub("", body).strip()) for body in found[1::2])
    return {name: sql.SQL(body) for name, body in zip(found[::2], bodies, strict=True)}


def names(columns: Iterable[str]) -> sql.Composed:
    """Return quoted names with commas between them."""
    return sql.SQL(", ").join(map(Quoted, columns))


def is_too_long(name: str) -> bool:
    """Whether Postgres would cut a name."""
    return len(name.encode()) > LONGEST


def columns_of(connection: psycopg.Connection, place: TargetPlace) -> dict[str, TargetColumn]:
    """Return the columns of a table that can be written, in its order; none if there is no such table."""
    rows = place.run(connection, "columns").fetchall()
    return {name: TargetColumn(type=kind, needed=needed) for name, kind, needed in rows}
