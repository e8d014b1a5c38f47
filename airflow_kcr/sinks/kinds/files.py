"""`kind: files`: a folder, declared by its path."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from airflow_kcr.errors import ConfigurationError, ToolMissing
from airflow_kcr.protocol.region.rows import Checkpoint
from airflow_kcr.sinks.checkpoints import CheckpointId
from airflow_kcr.sinks.contract import Choice, DatasetName, DeclaredSink, FoundOutput, SinkOwner
from airflow_kcr.sinks.files import layout
from airflow_kcr.sinks.files.cleanup import Cleaned, Cleaner, GivenUp
from airflow_kcr.sinks.files.contents import RegionLedger
from airflow_kcr.sinks.files.folder import Folder
from airflow_kcr.sinks.files.frames import Rewriter
from airflow_kcr.sinks.files.hadoop import HadoopFolder
from airflow_kcr.sinks.files.layout import FILE_SIZE, MIB, FileTarget, Marker
from airflow_kcr.sinks.files.sink import FileSink, claimed, taken
from airflow_kcr.sinks.files.tables import NO_TABLE, Table
from airflow_kcr.store.regions import RegionStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class DeclaredFolder(DeclaredSink):
    """A sink that is files in a folder."""

    @cached_property
    def target(self) -> FileTarget:
        """The folder, and in whose name.

        Raises:
            ConfigurationError: a variable is not set.
        """
        size = self.spec.file_size_mib
        return FileTarget(
            owner=self.owner,
            path=self.resolved("path", self.spec.path or ""),
            file_size=FILE_SIZE if size is None else size * MIB,
        )

    def dataset(self) -> DatasetName:
        """Return the folder."""
        return DatasetName.at(self.resolved("path", self.spec.path or ""))

    def version(self, checkpoint: Checkpoint) -> str:
        """Return the checkpoint, as manifests name it."""
        return str(CheckpointId(checkpoint.timeline, checkpoint.sequence))

    def table(self, folder: Folder) -> Table:
        """Return what shows whole checkpoints beside the manifests; nothing of it is touched."""
        return NO_TABLE

    def check(self) -> None:
        """Refuse a path that is not known; the folder is reached by Spark."""
        self.resolved("path", self.spec.path or "")

    def open(self, spark: SparkSession, store: RegionStore) -> FileSink:
        """Return the sink; nothing of the folder is touched."""
        folder = HadoopFolder(spark, self.target.path)
        ledger = RegionLedger(store, self.region_name)
        table = self.table(folder)
        return FileSink(self.target, folder, ledger, Rewriter(spark, folder, table.write), table)

    def output(self, spark: Callable[[], SparkSession]) -> FoundOutput:
        """Return the folder with whose it is, if that is another's; where there is no Spark, it is not looked into."""
        try:
            folder = HadoopFolder(spark(), self.target.path)
        except ToolMissing as missing:
            return self.found(self.target.place.place, note=f"not looked into: {missing.message}")
        return self.found_of(owner_of(folder), folder.uri, "emptied since it was written to")

    def found_of(self, noted: SinkOwner | None, place: str, lost: str) -> FoundOutput:
        """Return what was found at a place.

        Args:
            noted: whose it is, as is noted there; None: no sink's.
            place: as messages name it.
            lost: what is said where nothing is noted in a place that the sink had taken.
        """
        if noted is None:
            return self.found(place, note=lost if self.target.place in self.taken else "")
        return self.found(place, earlier=() if noted == self.owner else (noted.briefly,))

    def settle(self, choice: Choice, store: RegionStore, spark: Callable[[], SparkSession]) -> FoundOutput | None:
        """Accept a folder that was emptied with `TAKE_OVER`; folders are never shared, so there is nothing else.

        Raises:
            ConfigurationError: it is another sink's.
        """
        if choice is not Choice.TAKE_OVER:
            return None
        folder = HadoopFolder(spark(), self.target.path)
        marked = owner_of(folder)
        if marked == self.owner:
            return self.found(folder.uri, note="nothing to do")
        if marked is not None:
            raise ConfigurationError(taken(folder.uri, self.owner, marked))
        if self.target.place not in self.taken:
            return self.found(folder.uri, note="nothing to do")
        claimed(self.target, folder, RegionLedger(store, self.region_name).stamp(), layout.FOLDERS)
        return self.found(folder.uri, note="the folder is the sink's as it is")

    def delete(self, store: RegionStore, spark: Callable[[], SparkSession]) -> FoundOutput:
        """Delete all that is in the folder, if its marker says that it is the sink's."""
        folder = HadoopFolder(spark(), self.target.path)
        note = emptied(folder, self.owner)
        store.let_go(self.region_name, self.target.place)
        return self.found(folder.uri, note=note)

    def clean(self, what: GivenUp, spark: SparkSession, store: RegionStore) -> Cleaned:
        """Delete what no checkpoint needs; see `clean_checkpoints`."""
        folder, ledger = HadoopFolder(spark, self.target.path), RegionLedger(store, self.region_name)
        return Cleaner(self.target, folder, ledger, self.table(folder)).clean(what)


def owner_of(folder: Folder) -> SinkOwner | None:
    """Return whose folder it is by its marker; None: it has none."""
    marker = Marker.of(folder.read(layout.OWNER))
    return None if marker is None else marker.owner


def emptied(folder: Folder, owner: SinkOwner) -> str:
    """Delete all that is in a sink's folder, if its marker says that it is the sink's; return what was done.

    Args:
        folder: where the files are.
        owner: the sink.
    """
    marked = owner_of(folder)
    if marked is None:
        return "nothing deleted: no sink has taken this folder"
    if marked != owner:
        return f"nothing deleted: it is the folder of {marked}"
    # The marker last: what an interruption leaves is still the sink's.
    folder.delete(name for name in folder.names("") if name != layout.OWNER)
    folder.delete([layout.OWNER])
    return "all files deleted"


KIND = DeclaredFolder
