"""An Iceberg table that people own: each checkpoint is one commit of metadata, and one tag.

Executors have written the files of a checkpoint once, as every file sink does; its publication adds exactly those to
the table, and no row is written again. They lie below the table's location, in a folder that begins with an underscore:
what removes orphan files leaves those alone.

Which rows are whose is said by the rows: `kcr_batch` names what has written them, and is never used again. So a reset
takes out exactly the rows of the checkpoints that it has undone, also from files that maintenance has compacted: files
that hold nothing else go by metadata alone, others are written anew without them.

A property of the table notes whose sink it is, how often it has committed, and what its last commit was. Each commit
requires the table to be as it was when the note was read, and is then tried again only after the note was read again:
the note, not the table, says whether a commit that was decided before still counts. Commits of others in between change
nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias

from airflow_kcr.errors import ConfigurationError, SinkError
from airflow_kcr.protocol import documents
from airflow_kcr.protocol.region.rows import Checkpoint, CheckpointState
from airflow_kcr.protocol.values import RegionId
from airflow_kcr.sinks.checkpoints import CheckpointId
from airflow_kcr.sinks.contract import SinkOwner
from airflow_kcr.sinks.files import layout
from airflow_kcr.sinks.files.columns import Columns, ColumnsOfTable
from airflow_kcr.sinks.files.contents import checkpoints_on, revisions_on, shelves
from airflow_kcr.sinks.files.folder import Folder
from airflow_kcr.sinks.files.layout import FileTarget, Manifest, Undone
from airflow_kcr.sinks.files.tables import Table
from airflow_kcr.sinks.iceberg import columns, partitions
from airflow_kcr.sinks.iceberg.catalogs import CommitOvertaken, tried_once
from airflow_kcr.sinks.iceberg.deletion import BATCH, Labels, Prefix, delete

if TYPE_CHECKING:
    from pyiceberg.table import Table as IcebergMetadata
    from pyiceberg.table import Transaction
    from pyspark.sql import DataFrame

    from airflow_kcr.sinks.iceberg.catalogs import NamedTable

Change: TypeAlias = "Callable[[Transaction, IcebergMetadata, int], None]"
"""Changes a table in a transaction, where files of its sequence number and before have nothing of the sink."""

NOTE: Final = "kcr.sink"
"""The property that says whose table it is."""

_FULL: Final = f"write.metadata.metrics.column.{BATCH}"
"""How much of its values each file's bounds keep: all, or files of one batch could not be told by their metadata."""

_OWN: Final[Mapping[str, str]] = {"kcr_topic": "string", "kcr_partition": "int", "kcr_offset": "long", BATCH: "string"}
_ATTEMPTS: Final = 100
"""Attempts at a commit while others commit to the table."""

_OURS: Final = re.compile(r"(?P<tag>kcr_\d+_(?P<sequence>\d+))(_r\d+)?")
"""The names of tags."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableNote:
    """What a sink notes in its table."""

    owner: SinkOwner
    columns: Mapping[str, int]
    """Its own columns with their ids: one that was dropped and added again has another one, and lost its values."""

    since: int
    """The table's sequence number before it wrote anything: files that are as old have nothing of it."""

    commits: int = 0
    """How many commits it has made."""

    snapshot: int | None = None
    """Of its last commit; None: there was none."""

    shown: str = ""
    """The last checkpoint that it has published; they only grow."""

    def text(self) -> str:
        """Return it as the property has it."""
        return json.dumps(documents.write(self, TableNote), sort_keys=True)

    def accepted(self, metadata: IcebergMetadata) -> None:
        """Note that the table is right as it is, whatever was rolled back in it."""
        with metadata.transaction() as change:
            change.set_properties({NOTE: replace(self, commits=self.commits + 1, snapshot=None).text()})

    @classmethod
    def of(cls, metadata: IcebergMetadata) -> TableNote | None:
        """Return the note of a table; None: no sink has written to it."""
        text = metadata.properties.get(NOTE)
        return None if text is None else documents.read(json.loads(text), cls)


def folder_of(location: str, owner: SinkOwner) -> str:
    """Return where the files of a sink are, below its table's location."""
    return f"{location.rstrip('/')}/_kcr/{owner.region_id.replace(' ', '-')}/{owner.sink}"


def taken_from(owner: SinkOwner, table: NamedTable, other: SinkOwner) -> str:
    """Return what is said of a table that is another sink's."""
    return (
        f"{owner.name} of region {owner.region} (id {owner.region_id}): table {table} is written by {other}, and each "
        "table has one sink; name another table, or stop the region and say what becomes of those rows: "
        f"`kcr region output {owner.region}` with --keep or --delete"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergTable(Table):
    """The table in which readers see whole checkpoints.

    Args:
        target: the sink.
        table: where its table is.
        folder: where its files are.
    """

    target: FileTarget
    table: NamedTable
    folder: Folder

    # -- the sink's place in it ----------------------------------------------------------------------------------

    def is_there(self) -> bool:
        """Whether it has the sink's note: a table that was made anew under the name does not."""
        note = TableNote.of(self.table.load())
        return note is not None and note.owner == self.target.owner

    def check(self) -> None:
        """Note whose table it is, and add the columns that say which records a row is made of.

        Raises:
            ConfigurationError: it is another sink's, or lacks what it had.
            SinkError: the catalog is away, or refuses.
        """
        metadata = self.table.load()
        if self._own_note(metadata) is None:
            self._take(metadata)
        self._noted()

    def _take(self, metadata: IcebergMetadata) -> None:
        from pyiceberg.types import IntegerType, LongType, StringType

        since = metadata.metadata.next_sequence_number() - 1
        kinds = {"string": StringType(), "int": IntegerType(), "long": LongType()}
        with self.table.asked("take its columns in"), metadata.transaction() as change:
            there = set(metadata.schema().column_names)
            with change.update_schema() as update:
                for name, kind in _OWN.items():
                    if name not in there:
                        update.add_column(name, kinds[kind])
            change.set_properties({_FULL: "full"})
            ids = {name: change.table_metadata.schema().find_field(name).field_id for name in _OWN}
            change.set_properties({NOTE: TableNote(owner=self.target.owner, columns=ids, since=since).text()})

    def _own_note(self, metadata: IcebergMetadata) -> TableNote | None:
        """Return the sink's note; None: no sink has noted anything.

        Raises:
            ConfigurationError: it is another sink's.
        """
        note = TableNote.of(metadata)
        if note is not None and note.owner != self.target.owner:
            raise ConfigurationError(taken_from(self.target.owner, self.table, note.owner))
        return note

    def _noted(self) -> tuple[IcebergMetadata, TableNote]:
        """Return the table as it is now with the sink's note.

        Raises:
            SinkError: it isn't the table that the sink has written to, or lacks what the sink has committed.
        """
        try:
            metadata = self.table.load()
            note = self._own_note(metadata)
        except ConfigurationError as error:
            # A table that was there is put back, and the sink goes on: no member has to be started again.
            raise SinkError(error.message) from error
        if note is None:
            raise SinkError(
                f"{self.target}: table {self.table} is not the one that this sink has written to: it was dropped and "
                f"made anew, or its property {NOTE} was removed; put it back as it was, or stop the region and accept "
                f"it as it is with `kcr region output {self.target.owner.region} --take-over`"
            )
        there = {f.name: f.field_id for f in metadata.schema().fields}
        lost = [name for name, number in note.columns.items() if there.get(name) != number]
        if lost:
            raise SinkError(
                f"{self.target}: table {self.table} has lost its column {', '.join(lost)}, and rows can't be told from "
                "each other; if it was renamed, give it its name again; if it was dropped, its values are gone, even "
                "where it was added again: name another table in the spec"
            )
        if note.snapshot is not None and _is_cut_off(metadata, note.snapshot):
            raise SinkError(
                f"{self.target}: table {self.table} was rolled back to before checkpoint {note.shown}, and lacks rows "
                "that were published; roll it forward again, or stop the region, accept the table as it is with "
                f"`kcr region output {self.target.owner.region} --take-over`, and reset the region to before the rows "
                "that are missing"
            )
        return metadata, note

    # -- batches -------------------------------------------------------------------------------------------------

    def as_stored(self, rows: DataFrame, label: str) -> DataFrame:
        """Return the rows of a batch as the table takes them, with what has written them."""
        from pyspark.sql import functions

        metadata, _ = self._noted()
        labelled = rows.withColumn(BATCH, functions.lit(self._label(label)))
        return columns.fitted(labelled, metadata.schema(), f"{self.target}: table {self.table}")

    def write(self, rows: DataFrame, uri: str) -> None:
        """Write rows into a new folder, each file for one partition of the table."""
        partitions.write(rows, uri, self.table.known())

    def _label(self, name: str) -> str:
        return label_of(self.target.owner.region_id, name)

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def columns(self, folder: Folder) -> Columns:
        """Return that the table itself knows the types of its columns."""
        return ColumnsOfTable(folder)

    def seen(self) -> int:
        """Return how often the sink has committed."""
        return self._noted()[1].commits

    def show(self, manifest: Manifest, seen: int) -> bool:
        """Add the files of a checkpoint, and tag what the table is then."""

        def change(transaction: Transaction, table: IcebergMetadata, since: int) -> None:
            self._add(transaction, manifest)
            _tag(transaction, tag_of(manifest.checkpoint))

        if _is_shown(self._noted()[1], manifest.checkpoint):
            return True
        return self._committed(seen, change, shown=manifest.checkpoint)

    def replace(self, manifest: Manifest, seen: int) -> bool:
        """Exchange the rows of a checkpoint for the files of its revision; its tag stays where it is."""

        def change(transaction: Transaction, table: IcebergMetadata, since: int) -> None:
            delete(transaction, table, self._written_by([manifest.checkpoint]), since, _told(manifest))
            self._add(transaction, manifest)
            _tag(transaction, f"{tag_of(manifest.checkpoint)}_r{manifest.revision}")

        return self._committed(seen, change)

    def hide(self, undone: Collection[Undone]) -> None:
        """Delete the rows of undone checkpoints; a commit is made in any case. Their tags stay until a cleanup."""
        given_up = self._published(undone)
        told = {"kcr.undone": ", ".join(f"{one.first}-{one.last}" for one in undone)}

        def change(transaction: Transaction, table: IcebergMetadata, since: int) -> None:
            delete(transaction, table, self._written_by(given_up), since, told)

        for _ in range(_ATTEMPTS):
            if self._committed(self.seen(), change):
                return
        raise self._busy()

    def _published(self, undone: Collection[Undone]) -> list[CheckpointId]:
        """Return the checkpoints that have a manifest of those that were undone."""
        wanted = {s for one in undone for s in range(one.first // layout.SHELF, one.last // layout.SHELF + 1)}
        there = [shelf for shelf in shelves(self.folder, layout.MANIFESTS) if int(shelf) in wanted]
        found = (c for shelf in there for c in checkpoints_on(self.folder, layout.MANIFESTS, shelf))
        return sorted(c for c in found for u in undone if c.timeline < u.timeline and u.first <= c.sequence <= u.last)

    def _add(self, transaction: Transaction, manifest: Manifest) -> None:
        where = folder_of(transaction.table_metadata.location, self.target.owner)
        paths = [f"{where}/{file.path}" for file in manifest.files]
        # That none of them is there already is known by the note, without a look at each file of the table.
        transaction.add_files(paths, _told(manifest), check_duplicate_files=False)

    def _written_by(self, checkpoints: Collection[CheckpointId]) -> Labels:
        """Return what has written the rows of checkpoints."""
        return Labels({label for checkpoint in checkpoints for label in self._labels_of(checkpoint)})

    def _labels_of(self, checkpoint: CheckpointId) -> Iterator[str]:
        """Yield what the rows of a checkpoint are labelled with, those of each of its revisions among them."""
        numbers = revisions_on(self.folder, layout.shelf(checkpoint.sequence)).get(checkpoint, [])
        places = [layout.manifest(checkpoint), *(layout.revision(checkpoint, number) for number in numbers)]
        for manifest in filter(None, map(Manifest.of, self.folder.read_all(places))):
            yield from map(self._label, manifest.labels or manifest.batches)
        yield from (self._label(layout.label(checkpoint, number)) for number in numbers)

    def _committed(self, seen: int, change: Change, shown: CheckpointId | None = None) -> bool:
        """Commit a change; False: the sink has committed since it was seen, and nothing is changed."""
        for _ in range(_ATTEMPTS):
            metadata, note = self._noted()
            if note.commits != seen:
                return False
            with self.table.asked("commit"):
                transaction = tried_once(metadata).transaction()
                before = metadata.metadata.current_snapshot_id
                change(transaction, metadata, note.since)
                if transaction.table_metadata.current_snapshot_id == before:
                    # A snapshot without a change: by it alone a commit requires what it has seen.
                    transaction.add_files([], check_duplicate_files=False)
                made = replace(
                    note,
                    commits=seen + 1,
                    snapshot=transaction.table_metadata.current_snapshot_id,
                    shown=note.shown if shown is None else str(shown),
                )
                transaction.set_properties({NOTE: made.text()})
                try:
                    transaction.commit_transaction()
                except Exception as error:
                    # The answer may be lost, or be that to a second try of the first; and the commit be there.
                    if self._noted()[1] != made:
                        if isinstance(error, CommitOvertaken):
                            continue
                        raise
            return True
        raise self._busy()

    def _busy(self) -> SinkError:
        return SinkError(f"{self.target}: table {self.table} could not be committed to, as others do so all the time")

    # -- what is no longer needed --------------------------------------------------------------------------------

    def forget(self, checkpoints: Mapping[CheckpointId, Checkpoint]) -> frozenset[str]:
        """Drop the tags of checkpoints, and return the files that any snapshot of the table has."""
        from pyiceberg.table.update.snapshot import ManageSnapshots

        metadata, _ = self._noted()
        kept = {tag_of(c) for c, row in checkpoints.items() if _is_kept(row)}
        newest = max((c.sequence for c in checkpoints), default=0)
        ours = {name: found for name in metadata.refs() if (found := _OURS.fullmatch(name))}
        # What is newer was published since the store was asked.
        dropped = [name for name, its in ours.items() if its["tag"] not in kept and int(its["sequence"]) <= newest]
        with self.table.asked("drop tags"):
            if dropped:
                with metadata.transaction() as change, ManageSnapshots(change) as tags:
                    for name in dropped:
                        tags.remove_tag(name)
            where = f"{folder_of(metadata.location(), self.target.owner)}/"
            return frozenset(p.removeprefix(where) for p in files_of(metadata) if p.startswith(where))


def _tag(transaction: Transaction, name: str) -> None:
    from pyiceberg.table.update.snapshot import ManageSnapshots

    snapshot = transaction.table_metadata.current_snapshot()
    if snapshot is not None:
        with ManageSnapshots(transaction) as tags:
            tags.create_tag(snapshot.snapshot_id, name)


def tag_of(checkpoint: CheckpointId) -> str:
    """Return the tag of what the table is with a checkpoint."""
    return f"kcr_{checkpoint.timeline}_{checkpoint.sequence}"


def label_of(region_id: RegionId, name: str) -> str:
    """Return what `kcr_batch` says in the rows of a batch, or of a revision."""
    return f"{region_id}/{name}"


def delete_of_region(transaction: Transaction, table: IcebergMetadata, note: TableNote) -> None:
    """Delete the rows that a region has written."""
    delete(transaction, table, Prefix(label_of(note.owner.region_id, "")), note.since, {})


def leave(transaction: Transaction) -> None:
    """Take the note and the tags of a sink away; its columns stay."""
    from pyiceberg.table.update.snapshot import ManageSnapshots

    with ManageSnapshots(transaction) as tags:
        for name in transaction.table_metadata.refs:
            if _OURS.fullmatch(name):
                tags.remove_tag(name)
    transaction.remove_properties(NOTE)


def files_of(metadata: IcebergMetadata) -> Iterator[str]:
    """Yield the data files of all snapshots of a table, some of them several times."""
    io, read = metadata.io, set[str]()
    for snapshot in metadata.metadata.snapshots:
        for manifest in snapshot.manifests(io):
            if manifest.manifest_path not in read:
                read.add(manifest.manifest_path)
                yield from (e.data_file.file_path for e in manifest.fetch_manifest_entry(io, discard_deleted=False))


def _told(manifest: Manifest) -> dict[str, str]:
    """Return what a snapshot says of itself."""
    owner = manifest.owner
    return {
        "kcr.region": owner.region,
        "kcr.region-id": owner.region_id,
        "kcr.group": owner.group,
        "kcr.sink": owner.sink,
        "kcr.timeline": str(manifest.timeline),
        "kcr.sequence": str(manifest.sequence),
        "kcr.revision": str(manifest.revision),
        "kcr.digest": manifest.digest,
    }


def _is_shown(note: TableNote, checkpoint: CheckpointId) -> bool:
    last = layout.named(note.shown)
    return last is not None and checkpoint <= last


def _is_kept(row: Checkpoint) -> bool:
    return bool(row.pinned_as) or (row.is_current and row.state is not CheckpointState.RETIRED)


def _is_cut_off(metadata: IcebergMetadata, snapshot: int) -> bool:
    """Whether the table as it is goes back to before a snapshot, and not by it.

    Where the snapshot, or those between, were expired, that is unknown.
    """
    known = {one.snapshot_id: one for one in metadata.metadata.snapshots}
    lost, place = known.get(snapshot), metadata.metadata.current_snapshot_id
    while lost is not None and place is not None and place != snapshot and place in known:
        if (known[place].sequence_number or 0) < (lost.sequence_number or 0):
            return True
        place = known[place].parent_snapshot_id
    return False
