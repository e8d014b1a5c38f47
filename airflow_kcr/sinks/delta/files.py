"""The files of a Delta table as its log has them: what each holds, in which partition, with which bounds."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from airflow_kcr.errors import SinkError
from airflow_kcr.sinks.tables.labels import BATCH, Held, Writers, held

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction, CommitProperties, RemoveAction
    from pyarrow.fs import FileSystem

_SHORT: Final = 32
"""Letters of a text that is kept as a bound, as other writers do."""

_DAY: Final = 86_400_000
"""By how much the clocks of writers may differ, in ms."""


@dataclass(slots=True)
class _Values:
    """What the footer of a file tells of one column."""

    lower: Any = None
    upper: Any = None
    nulls: int = 0
    is_known: bool = True
    """Whether the bounds are those of all values."""

    def add(self, statistics: Any, rows: int) -> None:  # noqa: ANN401 (pyarrow has no types)
        """Take in what one group of rows has."""
        if statistics is None or not statistics.has_null_count:
            self.is_known = False
            return
        self.nulls += statistics.null_count
        if statistics.has_min_max:
            self.lower = statistics.min if self.lower is None else min(self.lower, statistics.min)
            self.upper = statistics.max if self.upper is None else max(self.upper, statistics.max)
        elif statistics.null_count < rows:
            self.is_known = False


def added(files: FileSystem, path: str, size: int, partitions: Collection[str]) -> AddAction:
    """Return how the log names a file that Spark has written.

    Args:
        files: of the table's folder.
        path: from there.
        size: of it, in bytes.
        partitions: the columns that the table is partitioned by; each has one value in the file.

    Raises:
        SinkError: the file does not tell the value of one.
    """
    from deltalake.transaction import AddAction

    rows, columns = _footer(files, path)
    split = {name: _partition(columns.pop(name, None), name, path) for name in partitions}
    known = {name: found for name, found in columns.items() if found.is_known and "." not in name}
    bounds = {name: _bounds(name, found) for name, found in known.items()}
    statistics = {
        "numRecords": rows,
        "minValues": {name: found[0] for name, found in bounds.items() if found is not None},
        "maxValues": {name: found[1] for name, found in bounds.items() if found is not None},
        "nullCount": {name: found.nulls for name, found in known.items()},
    }
    return AddAction(path, size, split, now(), True, json.dumps(statistics))


def _footer(files: FileSystem, path: str) -> tuple[int, dict[str, _Values]]:
    """Return how many rows a file has, and what its columns have."""
    import pyarrow.parquet as pq

    with files.open_input_file(path) as source:
        footer = pq.read_metadata(source)
    columns = dict[str, _Values]()
    for group in map(footer.row_group, range(footer.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            values = columns.setdefault(column.path_in_schema, _Values())
            values.add(column.statistics, group.num_rows)
    return footer.num_rows, columns


def _partition(values: _Values | None, name: str, path: str) -> str | None:
    if values is None or (values.is_known and values.lower is None):
        return None
    if not values.is_known or values.lower != values.upper:
        raise SinkError(f"{path} has no one value of {name}, by which the table is partitioned")
    return partition_text(values.lower)


def partition_text(value: object) -> str | None:
    """Return a value of a partition as the log has it; an empty text is NULL."""
    match value:
        case bool():
            return str(value).lower()
        case datetime():
            return f"{value:%Y-%m-%dT%H:%M:%S.%f}Z" if value.tzinfo else f"{value:%Y-%m-%d %H:%M:%S.%f}"
        case Decimal():
            return f"{value:f}"
        case _:
            return None if value is None or value == "" else str(value)


def _bounds(name: str, values: _Values) -> tuple[object, object] | None:
    lower, upper = _bound(values.lower), _bound(values.upper)
    if name != BATCH and any(isinstance(one, str) and len(one) > _SHORT for one in (lower, upper)):
        return None
    return None if lower is None or upper is None else (lower, upper)


def _bound(value: object) -> object:
    """Return a value as JSON has it, exactly; None: not as a bound."""
    match value:
        case bool() | bytes() | None:
            return None
        case datetime():
            # The log has milliseconds, and who reads it knows.
            return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case Decimal():
            near = float(value)
            return near if Decimal(repr(near)) == value else None
        case float():
            return value if math.isfinite(value) else None
        case _:
            return value


def removed(table: DeltaTable, files: FileSystem, writers: Writers, since: int) -> list[RemoveAction] | None:
    """Return how the log takes out the files that have nothing but the rows of some writers.

    Args:
        table: as it is now.
        files: of the table's folder.
        writers: what has written the rows.
        since: when the sink came to the table, in ms since the epoch; files that are clearly older have none of them.

    Returns:
        None: a file has such rows beside others, or was left with a part of its rows, so that it has to be rewritten.
    """
    from deltalake.transaction import RemoveAction

    partitions = table.metadata().partition_columns
    found = list[RemoveAction]()
    for file in _active(table):
        match _held(file, files, writers, since):
            case Held.SOME:
                return None
            case Held.ALL:
                split = {name: partition_text(file[f"partition.{name}"]) for name in partitions}
                found.append(RemoveAction(unquote(file["path"]), True, now(), file["size_bytes"], split))
            case Held.NONE:
                pass
    return None if found and _has_deletion_vectors(table) else found


def append(
    table: DeltaTable, actions: Sequence[AddAction | RemoveAction], properties: CommitProperties | None = None
) -> None:
    """Commit changes of files to a table.

    Args:
        table: as it is now.
        actions: what changes.
        properties: of the commit.
    """
    split = table.metadata().partition_columns
    table.create_write_transaction([*actions], "append", table.schema(), split, commit_properties=properties)


def _held(file: Mapping[str, Any], files: FileSystem, writers: Writers, since: int) -> Held:
    nulls = file.get(f"null_count.{BATCH}")
    part = held(writers, file.get(f"min.{BATCH}"), file.get(f"max.{BATCH}"), nulls, file["num_records"])
    if part is Held.SOME and file.get(f"min.{BATCH}") is None:
        # The log does not tell: the file is older than the sink, or was written by others without such bounds.
        if file["modification_time"] < since - _DAY:
            return Held.NONE
        rows, values = _footer(files, unquote(file["path"]))
        its = values.get(BATCH, _Values(nulls=rows))
        return held(writers, its.lower, its.upper, its.nulls, rows)
    return part


def _active(table: DeltaTable) -> Iterator[Mapping[str, Any]]:
    """Yield the files that a table has, with what its log tells of each; paths are written as the log does, quoted."""
    import pyarrow as pa

    for batch in pa.table(table.get_add_actions(flatten=True)).to_batches():
        yield from batch.to_pylist()


def _has_deletion_vectors(table: DeltaTable) -> bool:
    """Whether rows of any file were deleted without rewriting it."""
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return False
    return any(batch.num_rows for batch in table.deletion_vectors())


def named(table: DeltaTable, files: FileSystem, above: str) -> Iterator[str]:
    """Yield the files in a folder that a table has, or has had in a version of which its log still tells.

    Args:
        table: as it is now.
        files: of the table's folder.
        above: the folder, from there.
    """
    from pyarrow.fs import FileSelector

    yield from (path for file in _active(table) if (path := unquote(file["path"])).startswith(above))
    for entry in files.get_file_info(FileSelector("_delta_log")):
        if entry.extension == "json":
            with files.open_input_stream(entry.path) as source:
                for line in source.read().decode().splitlines():
                    if above in line:
                        told = json.loads(line)
                        yield unquote((told.get("add") or told.get("remove") or {}).get("path", ""))


def now() -> int:
    """Return the time in ms since the epoch, as logs have it."""
    return time.time_ns() // 1_000_000
