"""An Iceberg table that people own: each checkpoint is one commit of metadata, and one tag.

A property of the table notes whose sink it is, how often it has committed, and what its last commit was. Each commit
of the sink changes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from airflow_kcr.protocol.region.rows import Checkpoint
from airflow_kcr.protocol.table_outputs import TableVersion
from airflow_kcr.sinks.checkpoints import CheckpointId
from airflow_kcr.sinks.files.layout import Manifest
from airflow_kcr.sinks.iceberg import partitions
from airflow_kcr.sinks.iceberg.catalogs import TAG, CommitOvertaken, NamedTable, NotedIceberg, TableNote, tried_once
from airflow_kcr.sinks.iceberg.deletion import delete
from airflow_kcr.sinks.tables.labels import BATCH, COLUMNS
from airflow_kcr.sinks.tables.owned import NOTE, OwnedTable, TableChange, folder_of, is_kept

if TYPE_CHECKING:
    from pyiceberg.table import Table as IcebergMetadata
    from pyiceberg.table import Transaction
    from pyspark.sql import DataFrame

_FULL: Final = f"write.metadata.metrics.column.{BATCH}"
"""How much of its values each file's bounds keep: all, or files of one batch could not be told by their metadata."""


class IcebergTable(OwnedTable[NotedIceberg]):
    """The table in which readers see whole checkpoints.

    Args:
        target: the sink.
        place: where its table is.
        folder: where its files are.
    """

    _place: NamedTable

    def _take(self) -> None:
        from pyiceberg.types import IntegerType, LongType, StringType

        metadata = self._place.load()
        since = metadata.metadata.next_sequence_number() - 1
        kinds = {"string": StringType(), "int": IntegerType(), "bigint": LongType()}
        with self._place.asked("take its columns in"), metadata.transaction() as change:
            there = set(metadata.schema().column_names)
            with change.update_schema() as update:
                for name, kind in COLUMNS.items():
                    if name not in there:
                        update.add_column(name, kinds[kind])
            change.set_properties({_FULL: "full"})
            ids = {name: change.table_metadata.schema().find_field(name).field_id for name in COLUMNS}
            change.set_properties({NOTE: TableNote(owner=self.target.owner, columns=ids, since=since).text()})

    def _require_whole(self, noted: NotedIceberg) -> None:
        there = {f.name: f.field_id for f in noted.metadata.schema().fields}
        lost = [name for name, number in noted.note.columns.items() if there.get(name) != number]
        if lost:
            raise self._lost(lost)
        if noted.note.snapshot is not None and _is_cut_off(noted.metadata, noted.note.snapshot):
            raise self._rolled_back(f"checkpoint {noted.note.shown}")

    def write(self, rows: DataFrame, uri: str) -> None:
        """Write rows into a new folder, each file for one partition of the table."""
        partitions.write(rows, uri, self._place.known())

    def _commit(self, noted: NotedIceberg, change: TableChange) -> NotedIceberg | None:
        from pyiceberg.table.update.snapshot import ManageSnapshots

        metadata, note = noted.metadata, noted.note
        with self._place.asked("commit"):
            transaction = tried_once(metadata).transaction()
            before = metadata.metadata.current_snapshot_id
            if change.out:
                delete(transaction, metadata, change.out, note.since, change.told)
            if change.manifest is not None:
                self._add(transaction, metadata.location(), change.manifest, change.told)
            elif transaction.table_metadata.current_snapshot_id == before:
                # A snapshot without a change: by it alone a commit requires what it has seen.
                transaction.add_files([], check_duplicate_files=False)
            # Each look at it has PyIceberg copy all of the metadata, which grow with what is kept.
            snapshot = transaction.table_metadata.current_snapshot_id
            if change.manifest is not None and snapshot is not None:
                with ManageSnapshots(transaction) as tags:
                    tags.create_tag(snapshot, tag_of(change.manifest.checkpoint, change.manifest.revision))
            made = replace(
                note,
                commits=note.commits + 1,
                snapshot=snapshot,
                shown=note.shown if change.shown is None else str(change.shown),
            )
            transaction.set_properties({NOTE: made.text()})
            try:
                return NotedIceberg(transaction.commit_transaction(), made)
            except Exception as error:
                # The answer may be lost, or be that to a second try of the first; and the commit be there.
                now = self._noted()
                if now.note == made:
                    return now
                if isinstance(error, CommitOvertaken):
                    return None
                raise

    def _add(self, transaction: Transaction, location: str, manifest: Manifest, told: Mapping[str, str]) -> None:
        """Add the files of a manifest."""
        where = folder_of(location, self.target.owner)
        paths = [f"{where}/{file.path}" for file in manifest.files]
        # That none of them is there already is known by the note, without a look at each file of the table.
        transaction.add_files(paths, dict(told), check_duplicate_files=False)

    def _version(self, noted: NotedIceberg, manifest: Manifest) -> TableVersion | None:
        tag, owner = tag_of(manifest.checkpoint, manifest.revision), self.target.owner
        snapshot = noted.metadata.snapshot_by_name(tag)
        if snapshot is None or snapshot.summary is None:
            return None
        return TableVersion(
            group=owner.group,
            sink=owner.sink,
            catalog=self._place.catalog,
            table=self._place.name,
            files=len(manifest.files),
            rows=int(snapshot.summary.additional_properties.get("added-records", 0)),
            version=str(snapshot.snapshot_id),
            tag=tag,
        )

    # -- what is no longer needed --------------------------------------------------------------------------------

    def forget(self, checkpoints: Mapping[CheckpointId, Checkpoint]) -> frozenset[str]:
        """Drop the tags of checkpoints, and return the files that any snapshot of the table has."""
        from pyiceberg.table.update.snapshot import ManageSnapshots

        metadata = self._noted().metadata
        kept = {_tag_of(c) for c, row in checkpoints.items() if is_kept(row)}
        newest = max((c.sequence for c in checkpoints), default=0)
        ours = {name: found for name in metadata.refs() if (found := TAG.fullmatch(name))}
        # What is newer was published since the store was asked.
        dropped = [name for name, its in ours.items() if its["tag"] not in kept and int(its["sequence"]) <= newest]
        with self._place.asked("drop tags"):
            if dropped:
                with metadata.transaction() as change, ManageSnapshots(change) as tags:
                    for name in dropped:
                        tags.remove_tag(name)
        return self.needed()

    def needed(self) -> frozenset[str]:
        """Return the files that any snapshot of the table has."""
        metadata = self._place.known()
        with self._place.asked("be read"):
            where = f"{folder_of(metadata.location(), self.target.owner)}/"
            return frozenset(p.removeprefix(where) for p in files_of(metadata) if p.startswith(where))


def tag_of(checkpoint: CheckpointId, number: int) -> str:
    """Return the tag of what the table is with a checkpoint, or with the output of a recomputation of it."""
    tag = _tag_of(checkpoint)
    return f"{tag}_r{number}" if number else tag


def _tag_of(checkpoint: CheckpointId) -> str:
    return f"kcr_{checkpoint.timeline}_{checkpoint.sequence}"


def files_of(metadata: IcebergMetadata) -> Iterator[str]:
    """Yield the data files of all snapshots of a table, some of them several times."""
    io, read = metadata.io, set[str]()
    for snapshot in metadata.metadata.snapshots:
        for manifest in snapshot.manifests(io):
            if manifest.manifest_path not in read:
                read.add(manifest.manifest_path)
                yield from (e.data_file.file_path for e in manifest.fetch_manifest_entry(io, discard_deleted=False))


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
