"""`kind: delta`: a Delta table, declared by its location."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from airflow_kcr.sinks.contract import SinkOwner
from airflow_kcr.sinks.delta.features import require_writable
from airflow_kcr.sinks.delta.places import DeltaPlace
from airflow_kcr.sinks.delta.table import DeltaNote, DeltaTable, leave
from airflow_kcr.sinks.files.folder import Folder
from airflow_kcr.sinks.kinds.tables import DeclaredOwnedTable
from airflow_kcr.sinks.tables.owned import spark_uri

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class DeclaredDelta(DeclaredOwnedTable):
    """A sink that is a Delta table."""

    @cached_property
    def place(self) -> DeltaPlace:
        """The table; nothing is reached.

        Raises:
            ConfigurationError: a variable is not set.
        """
        return DeltaPlace(self.owner.name, self.resolved("table", self.spec.table or ""), self.resolved_options())

    @property
    def shown(self) -> str:
        """The table's location."""
        return str(self.place)

    def location(self) -> str:
        """Return where the table is."""
        return spark_uri(self.place.location)

    def noted(self) -> SinkOwner | None:
        """Return whose table it is now."""
        note = DeltaNote.of(self.place.load())
        return None if note is None else note.owner

    def leave(self, *, is_emptied: bool) -> None:
        """Take the note of a sink away."""
        leave(self.place, is_emptied=is_emptied)

    def require_writable(self) -> None:
        """Refuse a table with features that a commit of files alone does not do."""
        require_writable(self.place.load(), f"{self.owner.name}: table {self.place}")

    def table(self, spark: SparkSession, folder: Folder) -> DeltaTable:
        """Return the table as the sink has it."""
        return DeltaTable(self.target, self.place, folder)


KIND = DeclaredDelta
