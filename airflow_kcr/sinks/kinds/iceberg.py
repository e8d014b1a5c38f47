"""`kind: iceberg`: a table of a catalog, declared by both names."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol.values import UNDECLARED
from airflow_kcr.sinks.contract import Choice, FoundOutput, SparkNeeds
from airflow_kcr.sinks.files.folder import Folder
from airflow_kcr.sinks.files.layout import FileTarget
from airflow_kcr.sinks.files.tables import Table
from airflow_kcr.sinks.iceberg import partitions
from airflow_kcr.sinks.iceberg.catalogs import NamedTable, spark_uri
from airflow_kcr.sinks.iceberg.table import (
    IcebergTable,
    TableNote,
    delete_of_region,
    files_of,
    folder_of,
    leave,
    taken_from,
)
from airflow_kcr.sinks.kinds.files import DeclaredFolder
from airflow_kcr.spec import SinkSpec
from airflow_kcr.store.regions import RegionStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class DeclaredIceberg(DeclaredFolder):
    """A sink that is a table of an Iceberg catalog; its files are in a folder below the table's location."""

    @staticmethod
    def needs(spec: SinkSpec) -> SparkNeeds:
        """Return nothing: Spark writes plain files, and the table is committed to without it."""
        return SparkNeeds()

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

    @cached_property
    def target(self) -> FileTarget:
        """The folder of the table's files, and in whose name.

        Raises:
            ConfigurationError: there is no such table.
            SinkError: the catalog is away.
        """
        where = spark_uri(folder_of(self.named.known().location(), self.owner))
        return FileTarget(owner=self.owner, path=where, name=str(self.named), file_size=0)

    def table(self, spark: SparkSession, folder: Folder) -> Table:
        """Return the table as the sink has it."""
        return IcebergTable(target=self.target, table=self.named, folder=folder)

    def check(self) -> None:
        """Refuse a table that is not there, is another sink's, or whose partitions can't be written."""
        found = self.named.load()
        partitions.require_writable(found, f"{self.owner.name}: table {self.named}")
        note = TableNote.of(found)
        if note is not None and self.region_id != UNDECLARED and note.owner != self.owner:
            raise ConfigurationError(taken_from(self.owner, self.named, note.owner))

    def output(self, spark: Callable[[], SparkSession]) -> FoundOutput:
        """Return the table with whose it is, if that is another's."""
        note = TableNote.of(self.named.load())
        shown = str(self.named)
        if note is None:
            is_known = self.target.place in self.taken
            return self.found(shown, note="another table than was written to" if is_known else "")
        if note.owner != self.owner:
            return self.found(
                shown, earlier=(f"{note.owner.group}/{note.owner.sink} of region id {note.owner.region_id}",)
            )
        return self.found(shown)

    def settle(self, choice: Choice, store: RegionStore, spark: Callable[[], SparkSession]) -> FoundOutput:
        """Do with the rows of an earlier sink what a person chose, or accept the table as it is with `TAKE_OVER`.

        Raises:
            ConfigurationError: an earlier sink's rows can't be taken over.
        """
        found = self.named.load()
        note = TableNote.of(found)
        if note is None or note.owner == self.owner:
            return self._accepted(choice, store, spark, note)
        if choice is Choice.TAKE_OVER:
            raise ConfigurationError(
                f"{self.owner.name}: rows of {note.owner} in table {self.named} can't be taken over, as their files "
                "don't say which offsets they end with; keep or delete them"
            )
        with self.named.asked("be given back"), found.transaction() as change:
            if choice is Choice.DELETE:
                delete_of_region(change, found, note)
            leave(change)
        what = "deleted" if choice is Choice.DELETE else "stay, and their tags are gone"
        return self.found(str(self.named), note=f"rows of {note.owner.group}/{note.owner.sink} {what}")

    def _accepted(
        self, choice: Choice, store: RegionStore, spark: Callable[[], SparkSession], note: TableNote | None
    ) -> FoundOutput:
        if choice is not Choice.TAKE_OVER:
            return self.found(str(self.named), note="nothing to do")
        if note is not None:
            with self.named.asked("be accepted"):
                note.accepted(self.named.load())
        super().settle(choice, store, spark)
        folder = Folder(spark(), self.target.path)
        self.table(spark(), folder).check()
        return self.found(str(self.named), note="the table is the sink's as it is")

    def delete(self, store: RegionStore, spark: Callable[[], SparkSession]) -> FoundOutput:
        """Delete the rows, the note and the tags; files stay that earlier snapshots of the table have."""
        found = self.named.load()
        note = TableNote.of(found)
        if note is None or note.owner != self.owner:
            return self.found(str(self.named), note="nothing deleted: it is not this sink's table")
        with self.named.asked("be given back"):
            with found.transaction() as change:
                delete_of_region(change, found, note)
                leave(change)
            shown = set(files_of(self.named.load()))
        store.let_go(self.region_name, self.target.place)
        where = folder_of(found.location(), self.owner)
        folder = Folder(spark(), self.target.path)
        folder.delete(file for file in folder.walk("") if f"{where}/{file}" not in shown)
        return self.found(str(self.named), note="all rows deleted; files stay that earlier snapshots of the table have")


KIND = DeclaredIceberg
