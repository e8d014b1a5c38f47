"""`kind: files`: a folder, declared by its path and format."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from airflow_kcr.errors import ConfigurationError, ToolMissing
from airflow_kcr.protocol.rules import FileFormat
from airflow_kcr.sinks.contract import Choice, DeclaredSink, FoundOutput, SparkNeeds
from airflow_kcr.sinks.files import layout
from airflow_kcr.sinks.files.cleanup import Cleaned, Cleaner, GivenUp
from airflow_kcr.sinks.files.contents import RegionLedger
from airflow_kcr.sinks.files.delta import needs_of, table_of
from airflow_kcr.sinks.files.folder import Folder, HadoopFolder
from airflow_kcr.sinks.files.frames import SparkRewriter
from airflow_kcr.sinks.files.layout import FILE_SIZE, MIB, FileTarget, Owner
from airflow_kcr.sinks.files.sink import FileSink, claimed, taken
from airflow_kcr.spec import SinkSpec
from airflow_kcr.store.regions import RegionStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class DeclaredFolder(DeclaredSink):
    """A sink that is files in a folder."""

    shows_checkpoints: ClassVar[bool] = True

    @staticmethod
    def needs(spec: SinkSpec) -> SparkNeeds:
        """Return what Spark needs for the format."""
        return needs_of(spec.format or FileFormat.PARQUET)

    @cached_property
    def target(self) -> FileTarget:
        """The folder, and in whose name.

        Raises:
            ConfigurationError: a variable is not set.
        """
        size = self.spec.file_size_mib
        return FileTarget(
            region=self.region_name,
            region_id=self.region_id,
            group=self.group,
            sink=self.spec.name,
            path=self.resolved("path", self.spec.path or ""),
            file_size=FILE_SIZE if size is None else size * MIB,
            format=self.spec.format or FileFormat.PARQUET,
        )

    def check(self) -> None:
        """Refuse a path that is not known; the folder is reached by Spark."""
        self.resolved("path", self.spec.path or "")

    def open(self, spark: SparkSession, store: RegionStore) -> FileSink:
        """Return the sink; nothing of the folder is touched."""
        folder = HadoopFolder(spark, self.target.path)
        ledger = RegionLedger(store, self.region_name)
        return FileSink(self.target, folder, ledger, SparkRewriter(spark, folder), table_of(spark, self.target))

    def output(self, spark: Callable[[], SparkSession]) -> FoundOutput:
        """Return the folder with whose it is, if that is another's; where there is no Spark, it is not looked into."""
        try:
            folder = HadoopFolder(spark(), self.target.path)
        except ToolMissing as missing:
            return self.found(self.target.place.place, note=f"not looked into: {missing.message}")
        owner = Owner.of(folder.read(layout.OWNER))
        if owner is None:
            is_known = self.target.place in self.taken
            return self.found(folder.uri, note="emptied since it was written to" if is_known else "")
        if owner.is_of(self.target):
            return self.found(folder.uri)
        return self.found(folder.uri, earlier=(f"{owner.group}/{owner.sink} of region id {owner.region_id}",))

    def settle(self, choice: Choice, store: RegionStore, spark: Callable[[], SparkSession]) -> FoundOutput | None:
        """Accept a folder that was emptied with `TAKE_OVER`; folders are never shared, so there is nothing else.

        Raises:
            ConfigurationError: it is another sink's.
        """
        if choice is not Choice.TAKE_OVER:
            return None
        folder = HadoopFolder(spark(), self.target.path)
        owner = Owner.of(folder.read(layout.OWNER))
        if owner is not None:
            if not owner.is_of(self.target):
                raise ConfigurationError(taken(folder.uri, self.target, owner))
            return self.found(folder.uri, note="nothing to do")
        if self.target.place not in self.taken:
            return self.found(folder.uri, note="nothing to do")
        claimed(self.target, folder, RegionLedger(store, self.region_name), layout.FOLDERS)
        return self.found(folder.uri, note="the folder is the sink's as it is")

    def delete(self, store: RegionStore, spark: Callable[[], SparkSession]) -> FoundOutput:
        """Delete all that is in the folder, if its marker says that it is the sink's."""
        folder = HadoopFolder(spark(), self.target.path)
        note = emptied(folder, self.target)
        store.let_go(self.region_name, self.target.place)
        return self.found(folder.uri, note=note)

    def clean(self, what: GivenUp, spark: SparkSession, store: RegionStore) -> Cleaned:
        """Delete what no checkpoint needs; see `clean_checkpoints`."""
        folder, ledger = HadoopFolder(spark, self.target.path), RegionLedger(store, self.region_name)
        return Cleaner(self.target, folder, ledger, table_of(spark, self.target)).clean(what)


def emptied(folder: Folder, target: FileTarget) -> str:
    """Delete all that is in a sink's folder, if its marker says that it is the sink's; return what was done.

    Args:
        folder: where the files are.
        target: the sink.
    """
    owner = Owner.of(folder.read(layout.OWNER))
    if owner is None:
        return "nothing deleted: no sink has taken this folder"
    if not owner.is_of(target):
        return f"nothing deleted: it is the folder of {owner}"
    # The marker last: what an interruption leaves is still the sink's.
    folder.delete(name for name in folder.names("") if name != layout.OWNER)
    folder.delete([layout.OWNER])
    return "all files deleted"


KIND = DeclaredFolder
