"""What a sink writes to, as values, and the names of its tables and columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from psycopg import sql

from airflow_kcr.protocol.rules import Delivery, SinkMode
from airflow_kcr.protocol.values import GroupId, RegionName

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
    group: GroupId
    sink: str
    """Its name in the spec."""

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

    def own(self, name: str) -> sql.Identifier:
        """Return a table of the target's schema."""
        return sql.Identifier(self.schema, name)


def names(columns: list[str] | tuple[str, ...]) -> sql.Composed:
    """Return quoted names with commas between them."""
    return sql.SQL(", ").join(map(sql.Identifier, columns))
