"""What sinks have added to tables that people own."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_kcr.protocol import values


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOutput:
    """What a sink has added to a table that people own."""

    group: values.GroupId
    sink: str
    """The sink's name in the spec."""

    catalog: str = ""
    """The table's, as the spec names it; empty: it has none."""

    table: str
    files: int
    rows: int

    @property
    def place(self) -> tuple[str, ...]:
        """The sink and its table."""
        return self.group, self.sink, self.catalog, self.table

    def __str__(self) -> str:
        return f"{self.table} ({self.rows:,} row(s) in {self.files:,} file(s))"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableVersion(TableOutput):
    """What a checkpoint has added to a table, and by what readers find the table as it was then."""

    version: str
    """Of the table with that: the id of a snapshot, or the number of a version. A text: it may have 19 digits."""

    tag: str = ""
    """What names the version in the table; empty: the format has no tags."""
