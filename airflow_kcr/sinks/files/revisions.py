"""A checkpoint's output that takes the place of what it was published with, as its records were processed once more.

It is in a folder of its own until it is whole; then its manifest is written, under a number that only grows. Of several
the highest number counts, so one that comes late changes nothing. What was published stays beside it: members that
publish this checkpoint or the next one go by that. The files that no manifest in force names go with `cleanup`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from airflow_kcr.errors import SinkError
from airflow_kcr.ports import BatchCall
from airflow_kcr.protocol.table_outputs import TableVersion
from airflow_kcr.protocol.values import EventNumber
from airflow_kcr.sinks.checkpoints import CheckpointId, CompleteCheckpoint
from airflow_kcr.sinks.contract import Revision
from airflow_kcr.sinks.files import layout
from airflow_kcr.sinks.files.arrangement import Arrangement
from airflow_kcr.sinks.files.columns import Columns
from airflow_kcr.sinks.files.contents import files_in, manifest_in_force
from airflow_kcr.sinks.files.folder import Folder
from airflow_kcr.sinks.files.frames import Rewriter, rows_of, with_coordinates
from airflow_kcr.sinks.files.layout import BatchList, FileTarget, Manifest
from airflow_kcr.sinks.files.tables import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LOG: Final = logging.getLogger(__name__)

ATTEMPTS: Final = 10
"""Attempts at replacing rows in a table that others write to at the same time."""


@dataclass(slots=True, kw_only=True)
class FileRevision(Revision):
    """Files that recompute a checkpoint. Small ones are put together, as when a checkpoint is published.

    Args:
        target: the sink.
        folder: where its files are.
        columns: of the sink.
        rewriter: makes new files of others.
        table: in which the checkpoint is shown beside its manifest.
        checkpoint: the one that is recomputed.
        number: of the recomputation.
        since: from which checkpoint on batches may have written; older ones may not be there.
    """

    target: FileTarget
    folder: Folder
    columns: Columns
    rewriter: Rewriter
    table: Table
    checkpoint: CompleteCheckpoint
    number: EventNumber
    since: int
    _lists: list[BatchList] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.target}, checkpoint {self.checkpoint.id.sequence} once more"

    def attempt(self, call: BatchCall) -> str:
        """Return the folder, from the sink's, that a batch writes its files to."""
        return f"{self._place}/{call.batch}-{call.epoch}"

    def list_files(self, call: BatchCall, schema: str) -> BatchList:
        """Note which files a batch has written; none of its tasks runs any more.

        Args:
            call: the batch.
            schema: of its rows, as Spark writes it in JSON.

        Raises:
            SinkError: a batch at the same time has a column of another type, or the folder is away.
        """
        self.columns.note(schema)
        listed = BatchList(batch=call.batch, schema=schema, files=files_in(self.folder, self.attempt(call)))
        self._lists.append(listed)
        return listed

    def write(self, rows: DataFrame, call: BatchCall) -> Callable[[], BatchList]:
        """Write the rows into a folder of the batch in that of the revision, and return how its files are noted."""
        named = self.table.as_stored(with_coordinates(rows), self.label)
        schema = named.schema.json()
        self.columns.require_fit(schema)
        self.table.write(named, f"{self.folder.uri}/{self.attempt(call)}")
        return partial(self.list_files, call, schema)

    def replace(self, require_wanted: Callable[[], None]) -> tuple[TableVersion, ...]:
        """Replace the checkpoint's rows in the table, then write the manifest that is in force from then on.

        A process that is killed between the two leaves the new rows in the table and the old files with
        `read_checkpoint`, until the checkpoint is recomputed again.
        """
        before = _shown(self.folder, self.checkpoint.id, self.number)
        if before is not None:
            return self.table.version_of(before)
        found = self._arranged()
        manifest = self._manifest(found)
        for _ in range(ATTEMPTS):
            # Before it is asked whether this is wanted: what is decided afterwards writes to the table, too.
            seen = self.table.seen()
            require_wanted()
            shown = self._replaced(manifest, seen)
            if shown is not None:
                # Files that were merged into others; no reader was ever sent to them.
                self._delete(found.superfluous)
                return shown
        raise SinkError(f"{self}: the table is as it was, others write to it all the time")

    def _replaced(self, manifest: Manifest, seen: int) -> tuple[TableVersion, ...] | None:
        where = layout.revision(self.checkpoint.id, self.number)
        try:
            shown = self.table.replace(manifest, seen)
            if shown is None:
                return None
            self.folder.create(where, manifest.text())
            if self.checkpoint.id.sequence < self.since:
                # It may not have been there. Readers find the revision as soon as they find this.
                self.folder.create(layout.manifest(self.checkpoint.id), manifest.text())
            there = _shown(self.folder, self.checkpoint.id, self.number)
            in_force = manifest_in_force(self.folder, self.checkpoint.id)
        except SinkError as error:
            raise SinkError(f"{self}: it is unknown whether readers see it: {error}") from error
        if there != manifest:
            raise SinkError(f"{self}: another process counts it as lost, and has deleted its files; recompute it again")
        if in_force != manifest:
            raise SinkError(
                f"{self}: readers have a later recomputation of it, and see nothing of this one: another process took "
                "this one's place, or the store was restored since"
            )
        return shown

    def _arranged(self) -> Arrangement:
        found = Arrangement(target=self.target, folder=self.folder, rewriter=self.rewriter, since=0)
        found.put_together(self._lists, self._place)
        self.columns.require_one(str(self), found.schemas)
        return found

    def _manifest(self, found: Arrangement) -> Manifest:
        """Return what the checkpoint was published with, with other files."""
        old = replaced(self.target, self.folder, self.checkpoint, self.since)
        schemas = tuple(found.schemas) or old.schemas
        files, labels = tuple(found.files), (self.label,)
        return replace(old, schemas=schemas, files=files, revision=self.number, labels=labels)

    def held(self, spark: SparkSession) -> DataFrame:
        """Return the rows of the files that were written."""
        return rows_of(spark, self.folder.uri, self._manifest(self._arranged()))

    def drop(self) -> None:
        """Delete the files, unless they are shown; where that fails, `cleanup` does it."""
        try:
            is_given_up = given_up(self.folder, self.checkpoint.id, self.number)
        except SinkError as error:
            _LOG.info("%s: its files are left for a cleanup: %s", self, error)
            return
        if is_given_up:
            self._delete([self._place])

    def _delete(self, paths: Iterable[str]) -> None:
        try:
            self.folder.delete(paths)
        except SinkError as error:
            _LOG.info("%s: what it does not need is left for a cleanup: %s", self, error)

    @property
    def label(self) -> str:
        """What its rows are labelled with, where files say of each row what has written it."""
        return layout.label(self.checkpoint.id, self.number)

    @property
    def _place(self) -> str:
        return layout.revised(self.checkpoint.id, self.number)


def replaced(target: FileTarget, folder: Folder, checkpoint: CompleteCheckpoint, since: int) -> Manifest:
    """Return the manifest in force of a checkpoint that is recomputed; one without files, where it was before the sink.

    Args:
        target: the sink.
        folder: its folder.
        checkpoint: which one.
        since: from which checkpoint on batches may have written.

    Raises:
        SinkError: the folder has no such checkpoint and should have, or another one of this number.
    """
    manifest = manifest_in_force(folder, checkpoint.id)
    if manifest is None and checkpoint.id.sequence < since:
        return Manifest.of_checkpoint(target.owner, checkpoint, [batch.batch_id for batch in checkpoint.batches])
    if manifest is None:
        raise SinkError(
            f"{target}: {folder.uri} lacks checkpoint {checkpoint.id}, and nothing in it can be replaced: files in it "
            "were deleted, or it was restored from before that was published"
        )
    if not set(manifest.batches) <= {batch.batch_id for batch in checkpoint.batches}:
        raise SinkError(
            f"{target}: {folder.uri} has another checkpoint {checkpoint.id}, of a store that was restored since"
        )
    return manifest


def given_up(folder: Folder, checkpoint: CheckpointId, number: EventNumber) -> bool:
    """Keep a revision from ever being shown; False: it was shown already."""
    folder.create(layout.revision(checkpoint, number), "")
    return _shown(folder, checkpoint, number) is None


def _shown(folder: Folder, checkpoint: CheckpointId, number: EventNumber) -> Manifest | None:
    return Manifest.of(folder.read(layout.revision(checkpoint, number)))
