"""`kind: iceberg`: a table of a catalog, declared by both names."""

from __future__ import annotations

from functools import cached_property

from airflow_kcr.sinks.files.folder import Folder
from airflow_kcr.sinks.iceberg.catalogs import NamedTable
from airflow_kcr.sinks.iceberg.table import IcebergTable
from airflow_kcr.sinks.kinds.tables import DeclaredOwnedTable


class DeclaredIceberg(DeclaredOwnedTable):
    """A sink that is a table of an Iceberg catalog."""

    @cached_property
    def place(self) -> NamedTable:
        """The table."""
        table, catalog = self.resolved("table", self.spec.table or ""), self.spec.catalog or ""
        return NamedTable(self.who, catalog, self.resolved_options(), table)

    def table(self, folder: Folder) -> IcebergTable:
        """Return the table as the sink has it."""
        return IcebergTable(self.target, self.place, folder)


KIND = DeclaredIceberg
