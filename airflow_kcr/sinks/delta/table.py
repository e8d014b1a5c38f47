"""A Delta table that people own: each checkpoint is one commit of metadata.

The column that says what has written a row notes whose sink it is: to set a property of a table, delta-rs adds features
to some that keep other readers out. Which of the sink's commits was the last is an application's
transaction (`txn`) in each of them, with the version of the table that the commit makes; another one has the sequence
of the last checkpoint of a timeline. A commit is that of the version after the one that was read, or none: it is not
rebased onto others' by delta-rs, which would let in what was decided before a reset.

RESTORE takes files out and leaves transactions (delta-io/delta #1813), so it is looked for among the commits since the
sink's last one.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from airflow_kcr.protocol.table_outputs import TableVersion
from airflow_kcr.sinks.delta.features import require_writable
from airflow_kcr.sinks.delta.files import added, append, named, removed
from airflow_kcr.sinks.delta.places import DeltaPlace, NotedDelta, note_of
from airflow_kcr.sinks.files.layout import DataFile, Manifest
from airflow_kcr.sinks.tables.labels import BATCH, COLUMNS, Labels, Writers
from airflow_kcr.sinks.tables.owned import NOTE, OwnedTable, TableChange, below
from airflow_kcr.sinks.tables.partitions import one_value, write_apart

if TYPE_CHECKING:
    from deltalake import DeltaTable as Metadata
    from deltalake.transaction import AddAction, CommitProperties
    from pyspark.sql import DataFrame

_LOG = logging.getLogger(__name__)

_ROWS: Final = "kcr.rows"
"""How many rows a commit of the sink adds."""

_KINDS: Final = {"string": "string", "int": "integer", "bigint": "long"}
"""Spark's types with Delta's names for them."""


class DeltaTable(OwnedTable[NotedDelta]):
    """The table in which readers see whole checkpoints.

    Args:
        target: the sink.
        place: where its table is.
        folder: where its files are.
    """

    _place: DeltaPlace
    _looked_to = 0
    """Up to which version the log holds no RESTORE that takes rows of the sink; others may commit for long."""

    def check(self) -> None:
        """Check the right to its log too; otherwise as of each table."""
        self._place.require_granted()
        super().check()

    def _take(self) -> None:
        from deltalake.schema import Field, PrimitiveType

        table = self._place.load()
        there = {field.name for field in table.schema().fields}
        lacking = [Field(name, PrimitiveType(_KINDS[kind])) for name, kind in COLUMNS.items() if name not in there]
        with self._place.asked("take its columns in"):
            if lacking:
                table.alter.add_columns(lacking)
            table.alter.set_column_metadata(BATCH, {NOTE: note_of(self.target.owner)})

    def _require_whole(self, noted: NotedDelta) -> None:
        require_writable(noted.table, self._where)
        lost = COLUMNS.keys() - {field.name for field in noted.table.schema().fields}
        if lost:
            raise self._lost(sorted(lost))
        self._require_not_restored(noted.table, noted.commits)

    def _require_not_restored(self, table: Metadata, last: int) -> None:
        if table.version() < self._looked_to:
            self._looked_to = 0  # the log was cut off, and what comes now is other commits
        seen = max(last, self._looked_to)
        since = table.version() - seen
        if not last or not since:
            return
        with self._place.asked("tell its history"):
            history = table.history(since)
        if len(history) < since:
            _LOG.warning(
                "%s: its log since version %d is not whole, so it is unknown whether it was restored", self._where, seen
            )
        for commit in history:
            told = commit.get("operationParameters") or {}
            if commit.get("operation") == "RESTORE" and not _keeps(told.get("version"), last):
                raise self._rolled_back(f"version {last}, the sink's last one, by RESTORE")
        self._looked_to = table.version()

    def write(self, rows: DataFrame, uri: str) -> None:
        """Write rows into a new folder, each file for one partition of the table."""
        from pyspark.sql import functions

        kinds = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
        split = self._place.load().metadata().partition_columns
        write_apart(rows, uri, [one_value(functions.col(n), kinds[n]) for n in split if n in kinds])

    def _commit(self, noted: NotedDelta, change: TableChange) -> NotedDelta | None:
        from deltalake.transaction import CommitProperties, Transaction

        attempt, version = uuid.uuid4().hex, noted.table.version() + 1
        adds = [] if change.manifest is None else self._adds(noted.table, change.manifest)
        made = [Transaction(noted.application, version)]
        if change.shown is not None:
            made.append(Transaction(f"{noted.application}/{change.shown.timeline}", change.shown.sequence))
        rows = sum(json.loads(one.stats or "{}").get("numRecords", 0) for one in adds)
        told = {**change.told, "kcr.attempt": attempt, _ROWS: str(rows)}
        metadata = {"userMetadata": json.dumps(told, sort_keys=True)}
        properties = CommitProperties(metadata, max_commit_retries=0, app_transactions=made)
        with self._place.asked("commit"):
            try:
                self._write(noted, change, adds, properties)
            except Exception:
                # The answer may be lost, and the commit be there.
                newest = self._place.load()
                if newest.version() < version:
                    raise
                since = newest.history(newest.version() - version + 1)
                if not any(attempt in commit.get("userMetadata", "") for commit in since):
                    return None
        return replace(noted, commits=version, told=told, last={})

    def _version(self, noted: NotedDelta, manifest: Manifest) -> TableVersion | None:
        owner, told = self.target.owner, noted.told
        if told is None:
            with self._place.asked("tell its history"):
                since = noted.table.history(noted.table.version() - noted.commits + 1)
            told = json.loads(
                next((c.get("userMetadata", "") for c in since if c["version"] == noted.commits), "") or "{}"
            )
        named = TableChange.of(manifest).told
        if told.items() & named.items() != named.items():
            return None
        return TableVersion(
            group=owner.group,
            sink=owner.sink,
            table=str(self._place),
            files=len(manifest.files),
            rows=int(told.get(_ROWS, 0)),
            version=str(noted.commits),
        )

    def _write(
        self, noted: NotedDelta, change: TableChange, adds: Sequence[AddAction], properties: CommitProperties
    ) -> None:
        table, manifest = noted.table, change.manifest
        out = removed(table, self._place.files, change.out, noted.since) if change.out else []
        if out is not None:
            append(table, [*out, *adds], properties)
        elif manifest is None:
            _delete(table, change.out, properties)
        else:
            self._rewrite(table, change.out, manifest, properties)

    def _adds(self, table: Metadata, manifest: Manifest) -> list[AddAction]:
        where, split = below(self.target.owner), table.metadata().partition_columns

        def add(file: DataFile) -> AddAction:
            return added(self._place.files, f"{where}/{file.path}", file.bytes, split)

        return self._place.each(add, manifest.files)

    def _rewrite(self, table: Metadata, out: Labels, manifest: Manifest, properties: CommitProperties) -> None:
        """Write what files have beside the rows that go, and the rows of a manifest, into new files."""
        import pyarrow as pa
        import pyarrow.dataset as ds
        from deltalake import write_deltalake

        where = below(self.target.owner)
        paths = [f"{where}/{file.path}" for file in manifest.files]
        schema = pa.schema(table.schema().to_arrow())
        rows = ds.dataset(paths, schema, "parquet", self._place.files)
        named_again = out.beside(self._label(label) for label in manifest.labels)
        write_deltalake(
            table,
            rows.scanner().to_reader(),
            mode="overwrite",
            predicate=named_again.sql(),
            commit_properties=properties,
        )

    # -- what is no longer needed --------------------------------------------------------------------------------

    def needed(self) -> frozenset[str]:
        """Return the files that any version of the table has of which its log still tells."""
        above = f"{below(self.target.owner)}/"
        table = self._place.load()
        with self._place.asked("be read"):
            found = named(table, self._place.files, above)
            return frozenset(path.removeprefix(above) for path in found if path.startswith(above))


def _delete(table: Metadata, out: Writers, properties: CommitProperties) -> None:
    before = table.version()
    table.delete(out.sql(), commit_properties=properties)
    if table.version() == before:
        # There was nothing to delete; the commit is made in any case.
        append(table, [], properties)


def _keeps(restored: object, version: int) -> bool:
    """Whether a table that was restored to one version still has what another one had; by a time, that is unknown."""
    return str(restored).isdecimal() and int(str(restored)) >= version
