"""What has written rows: a batch or a revision of a region, as the column `kcr_batch` says it of each row."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol

from airflow_kcr.protocol.values import RegionId

if TYPE_CHECKING:
    from pyarrow import ChunkedArray

BATCH: Final = "kcr_batch"
"""The column that says what has written a row."""

COLUMNS: Final[Mapping[str, str]] = {
    "kcr_topic": "string",
    "kcr_partition": "int",
    "kcr_offset": "bigint",
    BATCH: "string",
}
"""The columns that a sink adds to its table, with Spark's types."""


def label_of(region_id: RegionId, name: str) -> str:
    """Return what `kcr_batch` says in the rows of a batch, or of a revision."""
    return f"{region_id}/{name}"


class Writers(Protocol):
    """What has written rows that are taken out."""

    def is_all(self, lower: str, upper: str) -> bool:
        """Whether every label between two, both included, is one of theirs."""

    def is_any(self, lower: str, upper: str) -> bool:
        """Whether a label between two, both included, may be one of theirs."""

    def of(self, labels: ChunkedArray) -> ChunkedArray:
        """Return which labels are theirs; NULL is none of them."""

    def sql(self) -> str:
        """Return which rows are theirs, as a condition."""


class Labels(Writers):
    """Batches and revisions, by their labels."""

    def __init__(self, labels: Collection[str] = ()) -> None:
        self._labels = sorted(labels)

    def __bool__(self) -> bool:
        return bool(self._labels)

    def beside(self, labels: Iterable[str]) -> Labels:
        """Return these and others."""
        return Labels({*self._labels, *labels})

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

    def sql(self) -> str:
        """Return that a label is one of theirs."""
        return f"{BATCH} IN ({', '.join(map(_quoted, self._labels))})"


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

    def sql(self) -> str:
        """Return that a label begins so; as bounds, by which files are left out unread."""
        after = self.text[:-1] + chr(ord(self.text[-1]) + 1)
        return f"{BATCH} >= {_quoted(self.text)} AND {BATCH} < {_quoted(after)}"


def of_region(region_id: RegionId) -> Prefix:
    """Return all that a region has written."""
    return Prefix(label_of(region_id, ""))


class Held(Enum):
    """What a file has of the rows that are taken out, as far as its metadata tells."""

    NONE = "none"
    SOME = "some"
    """Of it or not: it has to be read."""

    ALL = "all"


def held(writers: Writers, lower: str | None, upper: str | None, nulls: int | None, rows: int | None) -> Held:
    """Return what a file has of the rows of some writers.

    Args:
        writers: what has written the rows.
        lower: no label in the file is before it; None: that is not known.
        upper: no label in the file is after it; None: that is not known.
        nulls: how many rows have no label; None: that is not known.
        rows: how many rows it has; None: that is not known.
    """
    if lower is None or upper is None:
        # Without bounds a file has no label at all, or was written by a program that keeps none.
        return Held.NONE if nulls is not None and nulls == rows else Held.SOME
    if nulls == 0 and writers.is_all(lower, upper):
        return Held.ALL
    return Held.SOME if writers.is_any(lower, upper) else Held.NONE


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
