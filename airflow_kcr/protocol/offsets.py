"""The offset map: one offset per partition, immutable.

Contributions, checkpoints, seek maps and positions are all of this shape. The few ways to change one (advance,
restrict, disjoint union) are the few ways in which the protocol ever combines offsets; each refuses what would lose or
double records, so that a wrong map is an error where it arises and not a wrong seek later.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from itertools import pairwise
from typing import Self, TypeVar, overload

from airflow_kcr.errors import OverlappingOffsets
from airflow_kcr.protocol.values import MAX_NUMBER, GroupPartition, Offset, checked

D = TypeVar("D")


class OffsetMap(Mapping[GroupPartition, Offset]):
    """An immutable, hashable map from partition to the next offset to read.

    Iteration is in the order of the partitions, whatever order they were given in.

    Args:
        offsets: a mapping, or pairs (partition, offset); each partition once.

    Raises:
        NumberOutOfRange: an offset is negative ("latest" and other symbols are resolved before they get here) or
            larger than the store can hold.
        OverlappingOffsets: a partition is given twice.
    """

    __slots__ = ("_hash", "_offsets")

    def __init__(self, offsets: Mapping[GroupPartition, Offset] | Iterable[tuple[GroupPartition, Offset]] = ()) -> None:
        pairs = sorted(offsets.items() if isinstance(offsets, Mapping) else offsets)
        for partition, offset in pairs:
            if not 0 <= offset <= MAX_NUMBER:  # seldom, and only then has the message to be made
                checked(offset, f"the offset of {partition}")
        self._offsets: dict[GroupPartition, Offset] = dict(pairs)
        if len(self._offsets) != len(pairs):
            twice = next(a for (a, _), (b, _) in pairwise(pairs) if a == b)
            raise OverlappingOffsets(f"{twice} is given twice in one offset map")
        self._hash: int | None = None

    def __getitem__(self, partition: GroupPartition) -> Offset:
        return self._offsets[partition]

    def __iter__(self) -> Iterator[GroupPartition]:
        return iter(self._offsets)

    def __len__(self) -> int:
        return len(self._offsets)

    # What `Mapping` has of these asks for one partition after the other, by a call each.

    def __contains__(self, partition: object) -> bool:
        return partition in self._offsets

    @overload
    def get(self, partition: GroupPartition, /) -> Offset | None: ...

    @overload
    def get(self, partition: GroupPartition, /, default: Offset | D) -> Offset | D: ...

    def get(self, partition: GroupPartition, /, default: Offset | D | None = None) -> Offset | D | None:
        """Return the offset of a partition, or the default where it is not in the map."""
        return self._offsets.get(partition, default)

    def keys(self) -> KeysView[GroupPartition]:
        """Return the partitions, in order."""
        return self._offsets.keys()

    def values(self) -> ValuesView[Offset]:
        """Return the offsets, in the order of the partitions."""
        return self._offsets.values()

    def items(self) -> ItemsView[GroupPartition, Offset]:
        """Return partitions with offsets, in order."""
        return self._offsets.items()

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(tuple(self._offsets.items()))
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self._offsets == other._offsets if isinstance(other, OffsetMap) else NotImplemented

    def __repr__(self) -> str:
        return f"OffsetMap({{{', '.join(f'{p}: {o}' for p, o in self._offsets.items())}}})"

    def restrict(self, partitions: Iterable[GroupPartition]) -> Self:
        """Return the map of those of `partitions` that it has; the others are left out silently."""
        return type(self)({p: self._offsets[p] for p in partitions if p in self._offsets})

    def union(self, other: Mapping[GroupPartition, Offset]) -> Self:
        """Return the map of both, which must not share a partition: the merge of contributions is this.

        Raises:
            OverlappingOffsets: both have a partition, even at the same offset; two owners of one partition are a
                double claim, and whose offset is right can't be told from the offsets.
        """
        shared = sorted(self._offsets.keys() & other.keys())
        if shared:
            raise OverlappingOffsets(f"{', '.join(map(str, shared))}: more than one owner's offset")
        return type(self)({**self._offsets, **other})

    def replace(self, offsets: Mapping[GroupPartition, Offset]) -> Self:
        """Return the map with the given partitions at the given offsets, forwards or backwards: a reset's scope."""
        return type(self)({**self._offsets, **offsets})

    def covers(self, other: Mapping[GroupPartition, Offset]) -> bool:
        """Whether this map is at or beyond `other` on every partition that both have (`timelines` asks)."""
        return all(self._offsets[p] >= o for p, o in other.items() if p in self._offsets)


EMPTY = OffsetMap()
