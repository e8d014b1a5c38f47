"""`kind: delta`: a Delta table, declared by its location."""

from __future__ import annotations

from functools import cached_property

from airflow_kcr.sinks.delta.places import DeltaPlace
from airflow_kcr.sinks.delta.table import DeltaTable
from airflow_kcr.sinks.files.folder import Folder
from airflow_kcr.sinks.kinds.tables import DeclaredOwnedTable


class DeclaredDelta(DeclaredOwnedTable):
    """A sink that is a Delta table."""

    @cached_property
    def place(self) -> DeltaPlace:
        """The table."""
        return DeltaPlace(self.who("table"), self.resolved("table", self.spec.table or ""), self.resolved_options())

    def table(self, folder: Folder) -> DeltaTable:
        """Return the table as the sink has it."""
        return DeltaTable(self.target, self.place, folder)


KIND = DeclaredDelta
