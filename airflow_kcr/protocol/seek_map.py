"""The seek map: where each partition of a region resumes after a reset, and why there.

It is total over the region's partitions. An entry that needs the world (a sink's progress, a broker's log bounds or
time index) is *open* at first and is written later by the first owner who knows it; the first writer wins and an entry
once written never changes. The key of a seek map is the epoch, so every attempt has its own.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from dataclasses import dataclass
from enum import StrEnum

from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.values import MAX_NUMBER, GroupPartition, Offset, TopicId, checked


class SeekSource(StrEnum):
    """Where a seek entry's offset comes from."""

    MERGED = "merged"
    """The merge of a complete checkpoint's contributions."""

    INITIAL = "initial"
    """The partition's stored initial offset: the target has no offset for it."""

    START_POSITION = "start_position"
    """The partition's first owner resolves the group's start position; it becomes the initial offset."""

    SINK_PROGRESS = "sink_progress"
    """What the fenced sink has stored with its output (`exactly_once`)."""

    BATCH_END = "batch_end"
    """The end of the last done batch (`almost_once`), of the last started one (`at_most_once`), or a forced reset's."""

    PREVIOUS_CHECKPOINT = "previous_checkpoint"
    """A gap of an incomplete checkpoint, filled from the complete one before it (`allow_partial` only)."""

    COMMITTED = "committed"
    """A gap that no complete checkpoint fills either: the committed offset that was seen (`allow_partial` only)."""

    EXPLICIT = "explicit"
    """A person's target: one of Kafka's eight, or an offset by name."""

    DRAINED = "drained"
    """Out of a person's scope: the partition keeps the position of the drain that came first."""

    RESUME_POINT = "resume_point"
    """Nothing was done or started since the last resume point, so it stays."""

    OUT_OF_RANGE = "out_of_range"
    """The resume point is no longer in the log; the region's policy chose log start or end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeekEntry:
    """Where one partition resumes."""

    offset: Offset | None
    """None while the entry is open: its source has yet to be read."""

    source: SeekSource
    current: Offset | None = None
    """Where the partition was when the reset began; None if it had no position."""

    clamped_from: int | None = None
    """The offset that was asked for, where the log did not have it any more or yet; may be negative (a shift)."""

    recreated: TopicId = TopicId("")
    """The topic that was recreated and that `offset` is of, while `current` is of the one before; empty: it is one."""

    def coming_from(self, current: Offset | None) -> SeekEntry:
        """Return the entry with where the partition was when the reset began."""
        # Written out: a reset does this for each of its partitions, and `replace` takes twice as long.
        return SeekEntry(
            offset=self.offset,
            source=self.source,
            current=current,
            clamped_from=self.clamped_from,
            recreated=self.recreated,
        )


class SeekMap(Mapping[GroupPartition, SeekEntry]):
    """Immutable map from partition to its seek entry, in the order of the partitions."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Mapping[GroupPartition, SeekEntry]) -> None:
        for partition, entry in entries.items():
            if entry.offset is not None and not 0 <= entry.offset <= MAX_NUMBER:
                checked(entry.offset, f"the seek offset of {partition}")
        self._entries = dict(sorted(entries.items()))

    def __getitem__(self, partition: GroupPartition) -> SeekEntry:
        return self._entries[partition]

    def __iter__(self) -> Iterator[GroupPartition]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    # What `Mapping` has of these asks for one partition after the other, by a call each.

    def __contains__(self, partition: object) -> bool:
        return partition in self._entries

    def keys(self) -> KeysView[GroupPartition]:
        """Return the partitions, in order."""
        return self._entries.keys()

    def values(self) -> ValuesView[SeekEntry]:
        """Return the entries, in the order of the partitions."""
        return self._entries.values()

    def items(self) -> ItemsView[GroupPartition, SeekEntry]:
        """Return partitions with entries, in order."""
        return self._entries.items()

    @property
    def offsets(self) -> OffsetMap:
        """The entries that are known."""
        return OffsetMap({p: e.offset for p, e in self._entries.items() if e.offset is not None})

    @property
    def open(self) -> tuple[GroupPartition, ...]:
        """The partitions whose entry is still to be written."""
        return tuple(p for p, e in self._entries.items() if e.offset is None)

    def write(self, entries: Mapping[GroupPartition, SeekEntry]) -> SeekMap:
        """Return the map with the open ones of `entries` written; those already known stay as they are."""
        fresh = {p: e for p, e in entries.items() if p not in self._entries or self._entries[p].offset is None}
        return SeekMap({**self._entries, **fresh}) if fresh else self


def from_offsets(offsets: Mapping[GroupPartition, Offset], source: SeekSource) -> SeekMap:
    """Return a seek map that resumes every partition of `offsets` there, all from one source."""
    return SeekMap({p: SeekEntry(offset=o, source=source) for p, o in offsets.items()})


def filled(
    target: SeekMap, *, initial: Mapping[GroupPartition, Offset], partitions: Iterable[GroupPartition]
) -> SeekMap:
    """Return `target` made total over `partitions`: one that it lacks resumes at its initial offset.

    A partition first seen after the checkpoint is thus never left where it is and never jumps
    to the group's start position; without an initial offset its entry stays open for its first owner.

    Args:
        target: entries of the reset's target; those outside `partitions` are left out.
        initial: the stored initial offsets.
        partitions: every partition of the region.
    """
    entries: dict[GroupPartition, SeekEntry] = {}
    for partition in partitions:
        if partition in target:
            entries[partition] = target[partition]
        elif partition in initial:
            entries[partition] = SeekEntry(offset=initial[partition], source=SeekSource.INITIAL)
        else:
            entries[partition] = SeekEntry(offset=None, source=SeekSource.START_POSITION)
    return SeekMap(entries)
