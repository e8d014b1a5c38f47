"""The target of a sink: one table, in whose name it is written, where it is, and the statements about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from psycopg import RawCursor, sql

from airflow_kcr import libpq
from airflow_kcr.protocol.rules import Delivery, SinkMode
from airflow_kcr.protocol.values import GroupId
from airflow_kcr.sinks.contract import SinkOwner
from airflow_kcr.store.postgres.statements import load

if TYPE_CHECKING:
    from psycopg.rows import TupleRow

PREFIX: Final = "kcr_"
"""Begins every name that is the sink's own."""

SOURCE: Final = "kcr_source"
COORDINATES: Final[Mapping[str, str]] = {"kcr_topic": "text", "kcr_partition": "integer", "kcr_offset": "bigint"}
"""The columns that name a record, with their types."""

OWN_COLUMNS: Final[Mapping[str, str]] = {
    SOURCE: "integer",
    **COORDINATES,
    "kcr_timeline": "bigint",
    "kcr_sequence": "bigint",
}
"""The columns that every target has beside the pipeline's.

Where a row comes from, and to which checkpoint it belongs.
"""

LONGEST: Final = 63
"""Bytes that Postgres keeps of a name (NAMEDATALEN)."""

_FILLED: Final = (
    *("target", "fence", "progress", "crash_mark", "staging", "rows", "selected", "records", "number"),
    *("definitions", "chosen_columns", "inserted_columns", "distinct", "ordered", "on_conflict", "same_key"),
)
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})

SQL: Final = load("statements", Path(__file__).parent, **{name: f"{{{name}}}" for name in _FILLED})
"""The statements of a sink; what they have in braces is filled in for each table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One sink of a group: which table, how it is written, and in whose name."""

    owner: SinkOwner
    beside: frozenset[tuple[GroupId, str]] = frozenset()
    """All sinks of the region's spec, by group and name: those that may write into the same table."""

    table: str
    """`table` or `schema.table`, to the letter."""

    delivery: Delivery
    mode: SinkMode = SinkMode.APPEND
    key: tuple[str, ...] = ()
    """The columns that name a row, for `upsert`."""

    def __str__(self) -> str:
        return self.owner.name

    @property
    def writer(self) -> dict[str, str]:
        """Whose rows it writes, as the fences name them."""
        return {"region_id": self.owner.region_id, "group": self.owner.group, "sink": self.owner.sink}


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetColumn:
    """A column that the target has."""

    type: str
    """As SQL has it."""

    needed: bool
    """Whether a row without it is refused: it is NOT NULL and has no default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTable:
    """A target as its database knows it, in one transaction."""

    connection: libpq.Connection
    target: Target
    schema: str
    name: str
    source: int = 0
    """The number of this sink in `kcr_fence`."""

    columns: Mapping[str, TargetColumn] = field(default_factory=lambda: MappingProxyType({}))
    """Those that can be written, in its order; empty where it does not exist yet."""

    @property
    def shown(self) -> str:
        """The table as SQL for people has it."""
        return quoted(self.schema, self.name)

    def run(self, statement: str, filled: Mapping[str, str] = _NOTHING, /, **given: object) -> RawCursor[TupleRow]:
        """Run one of the statements of `statements.sql`, and return the cursor with its rows.

        Args:
            statement: its name.
            filled: what stands in braces, but for the tables.
            given: its parameters; `schema`, `table`, `shown` and `source` are the table's where they are not given.
        """
        its = {"schema": self.schema, "table": self.name, "shown": self.shown, "source": self.source}
        return self.connection.run(self.text(statement, filled).encode(), SQL[statement].bound({**its, **given}))

    def text(self, statement: str, filled: Mapping[str, str] = _NOTHING, /) -> str:
        """Return one of the statements of `statements.sql` about this table.

        Args:
            statement: its name.
            filled: what stands in braces, but for the tables.
        """
        tables = {name: quoted(self.schema, f"{PREFIX}{name}") for name in ("fence", "progress", "crash_mark")}
        return SQL[statement].numbered.decode().format_map({"target": self.shown, **tables, **filled})

    def value(self, statement: str, filled: Mapping[str, str] = _NOTHING, /, **given: object) -> Any:  # noqa: ANN401
        """Run a statement, and return the first column of its first row; None: there is no row."""
        row = self.run(statement, filled, **given).fetchone()
        return None if row is None else row[0]

    def read_columns(self) -> dict[str, TargetColumn]:
        """Return its columns as they are now; none if there is no such table."""
        return {name: TargetColumn(type=kind, needed=needed) for name, kind, needed in self.run("columns")}


def quoted(*name: str) -> str:
    """Return a name as SQL has it."""
    return sql.Identifier(*name).as_string()


def names(columns: Iterable[str]) -> str:
    """Return quoted names with commas between them."""
    return ", ".join(map(quoted, columns))


def is_too_long(name: str) -> bool:
    """Whether Postgres would cut a name."""
    return len(name.encode()) > LONGEST
