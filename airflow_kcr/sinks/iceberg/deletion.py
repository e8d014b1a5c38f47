"""Takes rows out of a table by what has written them, in whichever files they are now.

Files that hold nothing else go by their metadata alone. Of others, which maintenance has put together, a new file is
written without those rows: one after the other, in this process's memory. Files that were there before the sink are
not looked at, nor are their manifests: a table may have any number of them.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from airflow_kcr.sinks.tables.labels import BATCH, Held, Writers, held

if TYPE_CHECKING:
    from pyarrow import Table
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table as IcebergMetadata
    from pyiceberg.table import Transaction


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
        lower, upper = ((bounds or {}).get(field) for bounds in (file.lower_bounds, file.upper_bounds))
        nulls = (file.null_value_counts or {}).get(field)
        match held(writers, _text(lower), _text(upper), nulls, file.record_count):
            case Held.ALL:
                whole.append(file)
            case Held.SOME:
                mixed.append(file)
            case Held.NONE:
                pass
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


def _text(bound: bytes | None) -> str | None:
    return None if bound is None else bound.decode()


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
