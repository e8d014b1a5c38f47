"""A table beside a sink's manifests, for readers that know nothing of them.

A checkpoint is in it as a whole, or not at all.

What counts is said by the ledger, and the table follows. A writer first asks up to where the table was written, and
only then the ledger; a write in between makes its own void. So a process that slept through a reset, and believes in an
undone checkpoint, writes nothing: the reset has written after it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from airflow_kcr.protocol.region.archive import Stretch
from airflow_kcr.protocol.region.rows import Checkpoint
from airflow_kcr.protocol.table_outputs import TableVersion
from airflow_kcr.sinks.checkpoints import CheckpointId
from airflow_kcr.sinks.files.columns import Columns
from airflow_kcr.sinks.files.folder import Folder
from airflow_kcr.sinks.files.layout import Manifest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter

_NO_MARK: Final = "mapreduce.fileoutputcommitter.marksuccessfuljobs"


def write_parquet(rows: DataFrame, uri: str, apart: Sequence[str] = ()) -> None:
    """Write rows into a new folder.

    Args:
        rows: what is written.
        uri: of the folder.
        apart: columns that stand in the names of folders instead: each file has rows of one value.
    """
    writer: DataFrameWriter = rows.write.option(_NO_MARK, "false")
    writer.partitionBy(*apart).mode("errorifexists").parquet(uri)


class Table:
    """What a file sink does beside its manifests, by its format: of plain files nothing, as readers go by those.

    Every call of a subclass may raise SinkError.
    """

    def is_there(self) -> bool:
        """Whether it was made; there is always what a format has none of."""
        return True

    def check(self) -> None:
        """Check that the table can be written to, and create it if there is none; may be repeated.

        Raises:
            ConfigurationError: it can't be.
        """

    def as_stored(self, rows: DataFrame, label: str) -> DataFrame:
        """Return rows of a batch as the files have them.

        Args:
            rows: with the coordinates of their records.
            label: of what writes them: no other batch and no revision ever has it.

        Raises:
            SinkError: they don't fit.
        """
        return rows

    def write(self, rows: DataFrame, uri: str) -> None:
        """Write rows into a new folder."""
        write_parquet(rows, uri)

    def columns(self, folder: Folder) -> Columns:
        """Return what knows the types of the sink's columns.

        Args:
            folder: of the sink.
        """
        return Columns(folder)

    def seen(self) -> int:
        """Return up to where the table was written; asked before the ledger is."""
        return 0

    def show(self, manifest: Manifest, seen: int) -> tuple[TableVersion, ...] | None:
        """Have the rows of a checkpoint in the table, at once; said again, it changes nothing.

        Args:
            manifest: of the checkpoint, as it is written.
            seen: up to where the table was written, when the ledger was not asked yet whether the checkpoint counts.

        Returns:
            What the table has of it, if it is one of a person. None: others have written since, and the ledger is to be
            asked again.
        """
        return ()

    def replace(self, manifest: Manifest, seen: int) -> tuple[TableVersion, ...] | None:
        """Have the rows of a manifest in the table instead of those of its checkpoint, at once.

        Args:
            manifest: of the checkpoint's revision, which is written afterwards.
            seen: up to where the table was written, when it was not asked yet whether the revision counts.

        Returns:
            As of `show`. None: others have written since, and it is to be asked again.
        """
        return ()

    def version_of(self, manifest: Manifest) -> tuple[TableVersion, ...]:
        """Return what the table has of a manifest that it was given before."""
        return ()

    def hide(self, undone: Collection[Stretch]) -> None:
        """Take the rows of checkpoints out of the table, and keep earlier readers of the ledger from showing them.

        Args:
            undone: by the ledger. That the table has nothing of them changes nothing.
        """

    def forget(self, checkpoints: Mapping[CheckpointId, Checkpoint]) -> frozenset[str]:
        """Let go of what checkpoints had that are undone or retired, and not pinned.

        Args:
            checkpoints: all that the region's store remembers.

        Returns:
            The sink's files, by their paths from its folder, that readers of the table may still be sent to.
        """
        return frozenset()

    def end(self) -> None:
        """Try nothing again that failed: the process ends."""


NO_TABLE: Final = Table()
