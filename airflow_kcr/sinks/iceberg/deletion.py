"""Takes rows out of a table by what has written them, in whichever files they are now.

Files that hold nothing else go by their metadata alone. Of others, which maintenance has put together, a new file is
written without those rows: one after the other, in this process's memory. Files that were there before the sink are
not looked at, nor are their manifests: a table may have any number of them.
"""

from __future__ import annotations

import uuid
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from pyarrow import ChunkedArray, Table
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table as IcebergMetadata
    from pyiceberg.table import Transaction

BATCH: Final = "kcr_batch"
"""The column that says what has written a row."""


class Writers(Protocol):
    """What has written rows that are taken out."""

    def is_all(self, lower: str, upper: str) -> bool:
        """Whether every label between two, both included, is one of theirs."""

    def is_any(self, lower: str, upper: str) -> bool:
        """Whether a label between two, both included, may be one of theirs."""

    def of(self, labels: ChunkedArray) -> ChunkedArray:
        """Return which labels are theirs; NULL is none of them."""


class Labels(Writers):
    """Batches and revisions, by their labels."""

    def __init__(self, labels: Collection[str]) -> None:
        self._labels = sorted(labels)

    def is_all(self, lower: str, upper: str) -> bool:
        """Whether it is one label, and theirs."""
        return lower == upper and self.is_any(lower, upper)

    def is_any(self, lower: str, upper: str) -> bool:
        """Whether one of theirs is between two."""
        place = bisect_left(self._labels, lower)
        return place < len(self._labels) and self._labels[place] <= upper

    def of(self, labels: ChunkedArray) -> ChunkedArray:
        """Return which labels are theirs."""
        import pyarrow as pa
        import pyarrow.compute as pc

        return pc.is_in(labels, value_set=pa.array(self._labels, labels.type))


@dataclass(frozen=True, slots=True)
class Prefix(Writers):
    """All batches and revisions of a region, whose labels begin alike."""

    text: str

    def is_all(self, lower: str, upper: str) -> bool:
        """Whether both begin so: then all between them do."""
        return lower.startswith(self.text) and upper.startswith(self.text)

    def is_any(self, lower: str, upper: str) -> bool:
        """Whether the prefix is between the beginnings of both."""
        length = len(self.text)
        return lower[:length] <= self.text <= upper[:length]

    def of(self, labels: ChunkedArray) -> ChunkedArray:
        """Return which labels begin so."""
        import pyarrow.compute as pc

        return pc.fill_null(pc.starts_with(labels, self.text), False)


def delete(
    transaction: Transaction, metadata: IcebergMetadata, writers: Writers, since: int, told: Mapping[str, str]
) -> None:
    """Take rows out of a table.

    Args:
        transaction: of the table, with no snapshot of its own yet.
        metadata: the table, as it was when the transaction started.
        writers: what has written them.
        since: the table's sequence number before the sink had written anything.
        told: what the snapshot says of itself.
    """
    from pyiceberg.expressions.parser import parse

    whole, mixed = list["DataFile"](), list["DataFile"]()
    field = metadata.schema().find_field(BATCH).field_id
    for file in _files(metadata, since):
        lower, upper = (file.lower_bounds or {}).get(field), (file.upper_bounds or {}).get(field)
        if lower is None or upper is None:
            # Without bounds a file has no label at all, or was written by a program that keeps none.
            if not _has_only_nulls(file, field):
                mixed.append(file)
        elif not (file.null_value_counts or {}).get(field, 1) and writers.is_all(lower.decode(), upper.decode()):
            whole.append(file)
        elif writers.is_any(lower.decode(), upper.decode()):
            mixed.append(file)
    rewritten = list(_rewritten(metadata, mixed, writers))
    if not whole and not rewritten:
        return
    with transaction.update_snapshot(snapshot_properties=dict(told)).overwrite() as change:
        # Without a condition on a partition, PyIceberg looks for the files in all manifests.
        change.delete_by_predicate(parse(f"{BATCH} IS NOT NULL"))
        for file in whole:
            change.delete_data_file(file)
        for file, rest in rewritten:
            change.delete_data_file(file)
            if rest is not None:
                change.append_data_file(rest)


def _files(metadata: IcebergMetadata, since: int) -> Iterator[DataFile]:
    """Yield the files of a table that were added since the sink was there."""
    from pyiceberg.manifest import ManifestContent

    snapshot = metadata.current_snapshot()
    for manifest in () if snapshot is None else snapshot.manifests(metadata.io):
        if manifest.content == ManifestContent.DATA and manifest.sequence_number > since:
            for entry in manifest.fetch_manifest_entry(metadata.io, discard_deleted=True):
                if (entry.file_sequence_number or 0) > since:
                    yield entry.data_file


def _has_only_nulls(file: DataFile, field: int) -> bool:
    nulls = (file.null_value_counts or {}).get(field)
    return nulls is not None and nulls == file.record_count


def _rewritten(
    metadata: IcebergMetadata, files: Collection[DataFile], writers: Writers
) -> Iterator[tuple[DataFile, DataFile | None]]:
    """Yield the files that have rows of theirs, each with one that has the others; None: there are no others."""
    import pyarrow.compute as pc
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan

    wanted = {file.file_path for file in files}
    if not wanted:
        return
    scan = ArrowScan(metadata.metadata, metadata.io, metadata.schema(), AlwaysTrue())
    # By its task, because rows may have been taken out of a file by others.
    for task in metadata.scan().plan_files():
        if task.file.file_path in wanted:
            rows = scan.to_table([task])
            theirs = pc.fill_null(writers.of(rows.column(BATCH)), False)
            kept = rows.filter(pc.invert(theirs))
            if len(kept) < len(rows):
                yield task.file, _written(metadata, kept) if len(kept) else None


def _written(metadata: IcebergMetadata, rows: Table) -> DataFile:
    """Write rows into a new file beside the table's others."""
    import pyarrow.parquet as pq
    from pyiceberg.io.pyarrow import parquet_file_to_data_file

    path = metadata.location_provider().new_data_location(f"kcr-{uuid.uuid4()}.parquet")
    with metadata.io.new_output(path).create() as stream:
        pq.write_table(rows, stream)
    return parquet_file_to_data_file(metadata.io, metadata.metadata, path)
