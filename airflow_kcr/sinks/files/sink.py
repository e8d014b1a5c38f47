"""A file sink: its folder, the batches and checkpoints in it, and what a pipeline writes a batch with."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from airflow_kcr.errors import ConfigurationError, SinkAhead, SinkError
from airflow_kcr.ports import BatchCall
from airflow_kcr.protocol.member.messages import ResetSinks
from airflow_kcr.protocol.offsets import SeekSource, past_skips
from airflow_kcr.protocol.table_outputs import TableVersion
from airflow_kcr.protocol.values import CheckpointNumber, Epoch, EventNumber, GroupPartition, Offset, Timeline
from airflow_kcr.sinks.checkpoints import CheckpointId, CompleteCheckpoint
from airflow_kcr.sinks.contract import Sink, SinkOwner
from airflow_kcr.sinks.files import layout
from airflow_kcr.sinks.files.arrangement import Arrangement
from airflow_kcr.sinks.files.contents import (
    CheckpointContents,
    RegionLedger,
    brought_up_to_date,
    files_in,
    manifest_in_force,
    manifests_in_force,
    newest_first,
    timelines_in,
)
from airflow_kcr.sinks.files.folder import Folder, FolderRefused
from airflow_kcr.sinks.files.frames import Rewriter, rows_of, with_coordinates
from airflow_kcr.sinks.files.layout import LAYOUT, PARQUET, BatchList, FileTarget, Manifest, Marker, Retired, Timelines
from airflow_kcr.sinks.files.revisions import FileRevision, replaced
from airflow_kcr.sinks.files.tables import NO_TABLE, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def lost_marker(uri: str, owner: SinkOwner) -> str:
    """Return what is said of a folder that has lost its marker."""
    return (
        f"{uri} has lost its marker {layout.OWNER}: the folder was deleted, emptied or swapped for another one, and "
        f"may lack output that was published; stop the region, then put it back as it was, or accept it as it is with "
        f"`kcr region output {owner.region} --take-over`, and reset the region to before the output that is missing"
    )


def taken(uri: str, owner: SinkOwner, other: SinkOwner) -> str:
    """Return what is said of a folder that is another sink's."""
    return (
        f"{owner.name} of region {owner.region} (id {owner.region_id}): {uri} is the folder of {other}; each sink has "
        "a folder of its own: name another one in the spec, or delete all that is in this one"
    )


def claimed(target: FileTarget, folder: Folder, since: int, but: Collection[str] = frozenset()) -> Marker:
    """Return whose folder it is, having marked one without a marker as the target's.

    Args:
        target: the sink.
        folder: its folder.
        since: from which checkpoint on batches may write here.
        but: names of what may be in it.

    Raises:
        ConfigurationError: it holds something else.
        SinkError: the folder is away.
    """
    strange = [name for name in folder.names("") if not name.startswith(("_", ".")) and name not in but]
    if strange:
        raise ConfigurationError(
            f"{target}: {folder.uri} holds {strange[0]!r}, and is no sink's folder; name an empty one"
        )
    mine = Marker(owner=target.owner, since=since, layout=LAYOUT)
    return folder.noted(layout.OWNER, mine) or mine


_LOG = logging.getLogger(__name__)

NEVER: Final = 2**62
"""From which checkpoint on batches write into a folder that gets the output of recomputations alone."""

ATTEMPTS: Final = 10
"""Attempts at showing a checkpoint in a table that others write to at the same time."""


class FileSink(Sink):
    """Keeps the output of one group's pipeline in one folder; nothing is touched before `check`.

    It is fenced: what a zombie writes is in no list that an accepted batch has, so in no manifest.

    Args:
        target: which folder, and in whose name.
        folder: the same, as it is reached.
        ledger: says what is accepted.
        rewriter: makes new files of others.
        table: in which whole checkpoints are shown beside the manifests.
    """

    def __init__(
        self, target: FileTarget, folder: Folder, ledger: RegionLedger, rewriter: Rewriter, table: Table = NO_TABLE
    ) -> None:
        self.target, self.folder, self.owner = target, folder, target.owner
        self._ledger, self._rewriter, self._table = ledger, rewriter, table
        self._columns = table.columns(folder)
        self._checked_in: Epoch | None = None
        self._known: Timelines | None = None

    def check(self) -> None:
        """Check that the folder can be written to and isn't another sink's, and claim it; may be repeated.

        Raises:
            ConfigurationError: it is another sink's, holds something else, has lost its table, or may not be written
                to.
            SinkError: it can't be reached.
        """
        with self._writable():
            self._take()
            if not self._table.is_there() and next(newest_first(self.folder, timelines_in(self.folder)), None):
                raise ConfigurationError(
                    f"{self.target}: {self.folder.uri} has published checkpoints, and the table beside them is gone; "
                    "put it back, or name another folder"
                )
            self._table.check()
        _LOG.info("%s writes to %s", self.target, self.folder.uri)

    def claim(self) -> None:
        """Check that the folder can be written to, and mark it as one that no batch of a member ever writes to."""
        with self._writable():
            self._require_own(self._marker() or claimed(self.target, self.folder, NEVER))
            self._table.check()

    @contextmanager
    def _writable(self) -> Iterator[None]:
        """Refuse a folder that may not be written to."""
        probe = f"{layout.TEMPORARY}{uuid.uuid4().hex}"
        try:
            self.folder.put(probe, "")
            self.folder.delete([probe])
            yield
        except FolderRefused as error:
            raise ConfigurationError(f"{self.target} can't write to {self.folder.uri}: {error}") from error

    def _take(self) -> None:
        # Asked before the marker is read: another application that takes a new folder now marks it first.
        is_known, marker = self._ledger.has_taken(self.target.place), self._marker()
        if marker is None:
            if is_known:
                raise ConfigurationError(f"{self.target}: {lost_marker(self.folder.uri, self.owner)}")
            marker = claimed(self.target, self.folder, self._ledger.stamp())
        self._require_own(marker)
        self._ledger.take(self.target.place)

    def _require_own(self, marker: Marker) -> None:
        if marker.owner != self.owner:
            raise ConfigurationError(taken(self.folder.uri, self.owner, marker.owner))
        if marker.format != PARQUET:
            raise ConfigurationError(
                f"{self.target}: an earlier version kept a table of format {marker.format} in the folder "
                f"{self.folder.uri}; that table stays readable; name a sink of kind {marker.format} for what comes now"
            )

    def _marked(self) -> Marker:
        """Return the folder's marker; refuse a folder that was emptied, or swapped for another one, under a member.

        Raises:
            SinkError: its marker is missing, or another region's.
        """
        marker = self._marker()
        if marker is None or marker.owner != self.owner:
            raise SinkError(f"{self.target}: {lost_marker(self.folder.uri, self.owner)}")
        return marker

    def _require_previous(self, contents: CheckpointContents, marker: Marker) -> None:
        """Refuse a folder that lacks the checkpoint before: an older copy of it has taken its place.

        Raises:
            SinkError: it does.
        """
        before = contents.previous
        if before is None or before.sequence < marker.since:
            return
        if self.folder.read(layout.manifest(before)) is None and self.folder.read(layout.retired(before)) is None:
            raise SinkError(
                f"{self.target}: {self.folder.uri} lacks checkpoint {before}, which was published: it was restored "
                "from before that, or files in it were deleted; put it back as it was, or reset the region to before "
                "what is missing (`kcr reset apply --force`)"
            )

    def _marker(self) -> Marker | None:
        return Marker.of(self.folder.read(layout.OWNER))

    # -- batches -------------------------------------------------------------------------------------------------

    def attempt(self, call: BatchCall) -> str:
        """Return the folder, from the sink's, that a batch writes its files to."""
        return layout.attempt(CheckpointId(call.timeline, call.sequence), call.batch, call.epoch)

    def list_files(self, call: BatchCall, schema: str) -> BatchList:
        """Write down which files a batch has written; none of its tasks runs any more.

        Args:
            call: the batch.
            schema: of its rows, as Spark writes it in JSON.

        Raises:
            SinkError: it can't be written, or a batch at the same time has a column of another type; nothing of this
                one counts.
        """
        if self._checked_in != call.epoch:
            # What a reset undoes may have become known only after this sink was told of it: where its target was
            # looked up in the logs. Now it is over.
            self._note_undone()
            self._checked_in = call.epoch
        self._columns.note(schema)
        where = self.attempt(call)
        listed = BatchList(batch=call.batch, schema=schema, files=files_in(self.folder, where))
        # Only one process ever writes it, and the batch ends afterwards: it isn't read before it is complete.
        self.folder.put(layout.batch_list(where), listed.text())
        return listed

    def write(self, rows: DataFrame, call: BatchCall) -> Callable[[], BatchList]:
        """Write the rows into a folder of the batch, and return how its files are listed.

        The files have the coordinates with `kcr_` before their names. They count once the batch is accepted and its
        checkpoint published.
        """
        named = self._table.as_stored(with_coordinates(rows), call.batch)
        schema = named.schema.json()
        self._columns.require_fit(schema)
        self._table.write(named, f"{self.folder.uri}/{self.attempt(call)}")
        return partial(self.list_files, call, schema)

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def publish(self, sequence: CheckpointNumber) -> tuple[TableVersion, ...]:
        """Write the manifest of a complete checkpoint, then show it in the table; said again, it changes nothing.

        The first publisher writes it; every publisher would write the same records. A checkpoint that a reset has
        undone is noted as such instead, also when the reset came while it was published.

        Raises:
            SinkError: an accepted batch has no list, the folder, the table or the store is away, or the folder has
                another checkpoint of this number, or lacks the one before.
        """
        marker = self._marked()
        for _ in range(ATTEMPTS):
            # Before the ledger is asked: once it says that a checkpoint is undone, the table is written to.
            seen = self._table.seen()
            self._note_undone()
            contents = self._ledger.contents(sequence, self.owner.group)
            if contents.undone_by is not None:
                return ()
            shown = self._publish(contents, seen, marker)
            if shown is not None:
                self._note_undone()
                return shown
        raise SinkError(
            f"{self.target}: checkpoint {sequence} is not in the table yet, others write to it all the time"
        )

    def end(self) -> None:
        """Try nothing again that failed."""
        self._table.end()

    def _publish(self, contents: CheckpointContents, seen: int, marker: Marker) -> tuple[TableVersion, ...] | None:
        """Publish what is accepted; None: the table was written to since it was asked, so the ledger has to be."""
        if Retired.of(self.folder.read(layout.retired(contents.id))) is not None:
            return ()
        manifest = manifest_in_force(self.folder, contents.id)
        if manifest is None:
            manifest = self._written(contents, marker)
        else:
            self._require_same(manifest, contents)
        return self._table.show(manifest, seen)

    def _written(self, contents: CheckpointContents, marker: Marker) -> Manifest:
        """Write the manifest of a checkpoint, and return what is written: the first publisher's."""
        self._require_previous(contents, marker)
        where = layout.manifest(contents.id)
        try:
            found = self._arranged(contents, marker)
        except SinkError:
            written = Manifest.of(self.folder.read(where))
            if written is None:
                raise
            # Another member has published the checkpoint meanwhile, and cleared away what this one was about to read.
            self._require_same(written, contents)
            return written
        manifest = self._manifest(contents, found)
        written = self.folder.noted(where, manifest)
        if written is None or not written.holds_as(manifest):
            raise SinkError(
                f"{self.target}: the manifest of checkpoint {contents.id} in {self.folder.uri} is not what was written"
            )
        if written == manifest:
            # Files that were merged into others; the manifest is there, so no reader is sent to them any more.
            self.folder.delete(found.superfluous)
        return written

    def _arranged(self, contents: CheckpointContents, marker: Marker) -> Arrangement:
        found = Arrangement(target=self.target, folder=self.folder, rewriter=self._rewriter, since=marker.since)
        found.arrange(contents, self._undone_before(contents), self._given_up_before(contents))
        self._columns.require_one(f"{self.target}: checkpoint {contents.id}", found.schemas)
        return found

    def _manifest(self, contents: CheckpointContents, found: Arrangement) -> Manifest:
        return Manifest.of_checkpoint(
            self.owner,
            contents,
            found.batches,
            schemas=tuple(found.schemas) or self._schemas_of(contents.previous),
            files=tuple(found.files),
            labels=tuple(dict.fromkeys(found.labels)) if found.labels != found.batches else (),
        )

    def _require_same(self, written: Manifest, contents: CheckpointContents) -> None:
        mine = [batch.batch_id for batch in contents.batches]
        if written.digest != contents.digest or not set(written.batches) <= set(mine):
            raise SinkError(
                f"{self.target}: {self.folder.uri} has another checkpoint {contents.id}, of a region of the "
                "same name that "
                "was there before, or of a store that was restored since; name another folder, or move this one away"
            )

    def _schemas_of(self, checkpoint: CheckpointId | None) -> tuple[str, ...]:
        """Return the schemas of a checkpoint before, for one without any batch."""
        if checkpoint is None:
            return ()
        found = manifest_in_force(self.folder, checkpoint) or Retired.of(self.folder.read(layout.retired(checkpoint)))
        return () if found is None else found.schemas

    def _undone_before(self, contents: CheckpointContents) -> list[Manifest]:
        """Return the manifests of checkpoints before it that resets have undone, oldest first.

        Not every one has any.
        """
        found = manifests_in_force(self.folder, contents.undone)
        return [found[checkpoint] for checkpoint in contents.undone if checkpoint in found]

    def _given_up_before(self, contents: CheckpointContents) -> dict[CheckpointId, Retired]:
        """Return the checkpoints before it whose output was given up, and that a reset has undone since."""
        texts = self.folder.read_all([layout.retired(checkpoint) for checkpoint in contents.undone])
        noted = zip(contents.undone, map(Retired.of, texts), strict=True)
        return {checkpoint: note for checkpoint, note in noted if note is not None}

    def _note_undone(self) -> None:
        self._known = brought_up_to_date(self.target, self.folder, self._ledger, self._table, self._known)

    # -- recomputations ------------------------------------------------------------------------------------------

    def revised(self, checkpoint: CompleteCheckpoint, number: EventNumber) -> FileRevision:
        """Return what holds back the files that shall take the place of a checkpoint's.

        Raises:
            SinkError: the folder is another one, or away, or has no such checkpoint; or a recomputation of it with
                this number or a later one, which a store that was restored has given away a second time.
        """
        since = self._marked().since
        if replaced(self.target, self.folder, checkpoint, since).revision >= number:
            raise SinkError(
                f"{self.target}: {self.folder.uri} has a later recomputation of checkpoint {checkpoint.id}, of before "
                "the store was restored; recompute it again"
            )
        return FileRevision(
            target=self.target,
            folder=self.folder,
            columns=self._columns,
            rewriter=self._rewriter,
            table=self._table,
            checkpoint=checkpoint,
            number=number,
            since=since,
        )

    def shown(self, checkpoint: CompleteCheckpoint, spark: SparkSession) -> DataFrame:
        """Return the rows of the files that the manifest in force names.

        Raises:
            SinkError: the folder is another one, or away, or has no such checkpoint.
        """
        manifest = replaced(self.target, self.folder, checkpoint, self._marked().since)
        return rows_of(spark, self.folder.uri, manifest)

    # -- resets --------------------------------------------------------------------------------------------------

    def reset(self, order: ResetSinks) -> Mapping[GroupPartition, Offset | None]:
        """Note what the reset has undone, and answer open entries with what the ledger has as done.

        No fence is raised: what a zombie writes is in no list that an accepted batch has, so in no manifest.

        Raises:
            SinkError: the folder or the store is away.
            SinkAhead: the folder knows of a later timeline.
        """
        newest = timelines_in(self.folder).timeline
        if newest > order.timeline:
            raise SinkAhead(
                f"{self.target}: {self.folder.uri} knows of timeline {newest}, and the region is in timeline "
                f"{order.timeline}: the store was restored, or another region of this name was here before; then name "
                "another folder",
                fence=order.epoch,
                timeline=Timeline(newest),
            )
        self._note_undone()
        asked = [p for p, target in order.open.items() if target.source is SeekSource.SINK_PROGRESS]
        if not asked:
            return {}
        done = self._ledger.progress(order.timeline, self.owner.group)
        return {p: past_skips(done[p], sorted(order.skips.get(p, ()))) if p in done else None for p in asked}
