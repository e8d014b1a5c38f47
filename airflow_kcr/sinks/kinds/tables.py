"""A sink that is a table of a person: its files are in a folder below the table's location."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow_kcr.errors import ConfigurationError, SinkError
from airflow_kcr.protocol.region.rows import Checkpoint
from airflow_kcr.protocol.values import UNDECLARED
from airflow_kcr.sinks.contract import Choice, DatasetName, FoundOutput, SinkOwner
from airflow_kcr.sinks.files.arrow import ArrowFolder, NoRewriter
from airflow_kcr.sinks.files.contents import RegionLedger, timelines_in
from airflow_kcr.sinks.files.folder import Folder
from airflow_kcr.sinks.files.hadoop import HadoopFolder
from airflow_kcr.sinks.files.layout import FileTarget
from airflow_kcr.sinks.files.sink import FileSink
from airflow_kcr.sinks.kinds.files import DeclaredFolder
from airflow_kcr.sinks.tables.owned import NotedTable, OwnedTable, TablePlace, below, folder_of, taken_from
from airflow_kcr.store.regions import RegionStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class DeclaredOwnedTable(DeclaredFolder):
    """A sink that is a table; each format says how its own is reached."""

    @property
    @abstractmethod
    def place(self) -> TablePlace[NotedTable]:
        """The table; nothing is reached.

        Raises:
            ConfigurationError: a variable is not set.
        """

    def who(self, field: str) -> str:
        """Return the sink as messages name it, with the field of the spec that they are about."""
        return f"{self.owner.name} ({self.path(field)})"

    def dataset(self) -> DatasetName:
        """Return the table's location."""
        return DatasetName.at(self.place.location())

    def version(self, checkpoint: Checkpoint) -> str:
        """Return the table's tag of the checkpoint, or its version, as the sink has told the store."""
        own = (one for one in checkpoint.tables if (one.group, one.sink) == (self.owner.group, self.owner.sink))
        return next((one.tag or one.version for one in own), "")

    @abstractmethod
    def table(self, folder: Folder) -> OwnedTable[Any]:
        """Return the table as the sink has it."""

    @cached_property
    def target(self) -> FileTarget:
        """The folder of the table's files, and in whose name.

        Raises:
            ConfigurationError: there is no such table.
            SinkError: it is away.
        """
        where = folder_of(self.place.location(), self.owner)
        return FileTarget(owner=self.owner, path=where, name=str(self.place), file_size=0)

    def check(self) -> None:
        """Refuse a table that is not there, is another sink's, or can't be written."""
        self.place.require_writable()
        noted = self._writer()
        if noted is not None and self.region_id != UNDECLARED and noted != self.owner:
            raise ConfigurationError(taken_from(self.place, self.owner, noted))

    def at_rest(self, store: RegionStore) -> FileSink:
        """Open it by what reaches the table."""
        self.check()
        folder = ArrowFolder(self.place.files_below(below(self.owner)), self.target.path)
        if timelines_in(folder).timeline > store.read(self.region_name)[0].timeline:
            raise SinkError(f"{self.target}: {folder.uri} knows of a later timeline than the region")
        return FileSink(self.target, folder, RegionLedger(store, self.region_name), NoRewriter(), self.table(folder))

    def output(self, spark: Callable[[], SparkSession]) -> FoundOutput:
        """Return the table with whose it is, if that is another's."""
        return self.found_of(self._writer(), str(self.place), "another table than was written to")

    def settle(self, choice: Choice, store: RegionStore, spark: Callable[[], SparkSession]) -> FoundOutput:
        """Do with the rows of an earlier sink what a person chose, or accept the table as it is with `TAKE_OVER`.

        Raises:
            ConfigurationError: an earlier sink's rows can't be taken over.
        """
        noted = self._writer()
        if noted is None or noted == self.owner:
            return self._accepted(choice, store, spark)
        if choice is Choice.TAKE_OVER:
            raise ConfigurationError(
                f"{self.owner.name}: rows of {noted} in table {self.place} can't be taken over, as their files "
                "don't say which offsets they end with; keep or delete them"
            )
        self.place.leave(is_emptied=choice is Choice.DELETE)
        what = "deleted" if choice is Choice.DELETE else "stay, without a sink"
        return self.found(str(self.place), note=f"rows of {noted.group}/{noted.sink} {what}")

    def _accepted(self, choice: Choice, store: RegionStore, spark: Callable[[], SparkSession]) -> FoundOutput:
        if choice is not Choice.TAKE_OVER:
            return self.found(str(self.place), note="nothing to do")
        table = self.table(HadoopFolder(spark(), self.target.path))
        table.accept()
        super().settle(choice, store, spark)
        table.check()
        return self.found(str(self.place), note="the table is the sink's as it is")

    def delete(self, store: RegionStore, spark: Callable[[], SparkSession]) -> FoundOutput:
        """Delete the rows and the note; files stay that earlier versions of the table have."""
        if self._writer() != self.owner:
            return self.found(str(self.place), note="nothing deleted: it is not this sink's table")
        self.place.leave(is_emptied=True)
        folder = HadoopFolder(spark(), self.target.path)
        needed = self.table(folder).needed()
        store.let_go(self.region_name, self.target.place)
        folder.delete(file for file in folder.walk("") if file not in needed)
        return self.found(str(self.place), note="all rows deleted; files stay that earlier versions of the table have")

    def _writer(self) -> SinkOwner | None:
        """Return whose table it is now; None: no sink has written to it."""
        noted = self.place.noted()
        return None if noted is None else noted.owner
