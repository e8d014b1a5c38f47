"""`kind: iceberg`: a table of a catalog, declared by both names."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from airflow_kcr.sinks.contract import SinkOwner
from airflow_kcr.sinks.files.folder import Folder
from airflow_kcr.sinks.iceberg import partitions
from airflow_kcr.sinks.iceberg.catalogs import NamedTable
from airflow_kcr.sinks.iceberg.deletion import delete
from airflow_kcr.sinks.iceberg.table import IcebergTable, TableNote, leave
from airflow_kcr.sinks.kinds.tables import DeclaredOwnedTable
from airflow_kcr.sinks.tables.labels import of_region
from airflow_kcr.sinks.tables.owned import spark_uri

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class DeclaredIceberg(DeclaredOwnedTable):
    """A sink that is a table of an Iceberg catalog."""

    @cached_property
    def named(self) -> NamedTable:
        """The table; nothing is reached.

        Raises:
            ConfigurationError: a variable is not set.
        """
        return NamedTable(
            self.owner.name,
            self.spec.catalog or "",
            self.resolved_options(),
            self.resolved("table", self.spec.table or ""),
        )

    @property
    def shown(self) -> str:
        """The table's name and its catalog's."""
        return str(self.named)

    def location(self) -> str:
        """Return where the table is."""
        return spark_uri(self.named.known().location())

    def noted(self) -> SinkOwner | None:
        """Return whose table it is now."""
        note = TableNote.of(self.named.load())
        return None if note is None else note.owner

    def leave(self, *, is_emptied: bool) -> None:
        """Take the note and the tags of a sink away."""
        metadata = self.named.load()
        note = TableNote.of(metadata)
        with self.named.asked("be given back"), metadata.transaction() as change:
            if is_emptied and note is not None:
                delete(change, metadata, of_region(note.owner.region_id), note.since, {})
            leave(change)
        self.named.load()

    def require_writable(self) -> None:
        """Refuse a table of format version 1, and a partitioning that the bounds of a file don't say."""
        partitions.require_writable(self.named.load(), f"{self.owner.name}: table {self.named}")

    def table(self, spark: SparkSession, folder: Folder) -> IcebergTable:
        """Return the table as the sink has it."""
        return IcebergTable(self.target, self.named, folder)


KIND = DeclaredIceberg
