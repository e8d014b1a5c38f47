"""R1a: what was accepted between two complete checkpoints, partition by partition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from airflow_kcr.protocol.invariants.moment import Invariant, Moment
from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.region.rows import Batch
from airflow_kcr.protocol.rules import Delivery
from airflow_kcr.protocol.values import EventNumber, GroupPartition, Offset, Range, joined


def add(ranges: list[Range], range_: Range) -> tuple[Range, ...]:
    """Add a range to ascending disjoint ones, in place, and return what of it they had already.

    By far the most frequent case is the first one: a range continues where the last one ended.
    """
    if ranges:
        last = ranges[-1]
        if range_.from_ == last.to:
            ranges[-1] = Range(last.from_, range_.to)
            return ()
        if range_.from_ < last.to:
            twice = common(ranges, [range_])
            ranges[:] = joined([*ranges, range_])
            return twice
    ranges.append(range_)
    return ()


def common(a: Iterable[Range], b: Iterable[Range]) -> tuple[Range, ...]:
    """Return the offsets that are in both."""
    left, right = joined(a), joined(b)
    return tuple(_common(left, right))


def _common(left: tuple[Range, ...], right: tuple[Range, ...]) -> Iterator[Range]:
    i = j = 0
    while i < len(left) and j < len(right):
        from_, to = max(left[i].from_, right[j].from_), min(left[i].to, right[j].to)
        if from_ < to:
            yield Range(from_, to)
        if left[i].to < right[j].to:
            i += 1
        else:
            j += 1


def lacking(wanted: Iterable[Range], covered: Iterable[Range]) -> tuple[Range, ...]:
    """Return the offsets of `wanted` that are not in `covered`."""
    missing: list[Range] = []
    cover = joined(covered)
    for range_ in joined(wanted):
        place = range_.from_
        for piece in common([range_], cover):
            if place < piece.from_:
                missing.append(Range(place, piece.from_))
            place = piece.to
        if place < range_.to:
            missing.append(Range(place, range_.to))
    return tuple(missing)


def below(ranges: Iterable[Range], offset: Offset) -> tuple[Range, ...]:
    """Return what of `ranges` lies below `offset`."""
    return joined(Range(r.from_, min(r.to, offset)) for r in ranges)


def width(ranges: Iterable[Range]) -> int:
    """Return how many offsets the ranges hold."""
    return sum(r.width for r in joined(ranges))


@dataclass(slots=True, kw_only=True)
class Way:
    """One partition, between its restore point and wherever it is."""

    restore_point: Offset | None = None
    done: list[Range] = field(default_factory=list)
    """Accepted since the restore point was reached, joined."""

    twice: list[Range] = field(default_factory=list)
    begun: list[Range] = field(default_factory=list)
    """Started since then, joined, where that may explain a gap."""

    gaps: list[Range] = field(default_factory=list)
    """What may be missing."""

    def seek(self, offset: Offset | None, *, opens: bool, explains: bool) -> None:
        """Go where a reset says: what lies beyond is no longer accepted; what lies before may explain a gap."""
        if offset is None:
            if opens:
                self.rebase(None)
            return
        if opens or self.restore_point is None:
            self.rebase(offset)
            return
        self.done, self.twice, self.gaps = (list(_before(r, offset)) for r in (self.done, self.twice, self.gaps))
        if explains:
            self.gaps += common(lacking([Range(self.restore_point, offset)], self.done), self.begun)

    def rebase(self, offset: Offset | None) -> None:
        """Begin again at an offset."""
        self.restore_point = offset
        self.done, self.twice, self.begun, self.gaps = [], [], [], []


def _before(ranges: Iterable[Range], offset: Offset) -> Iterable[Range]:
    return (Range(r.from_, min(r.to, offset)) for r in ranges if r.from_ < offset)


@dataclass(slots=True, kw_only=True)
class Tiled(Invariant):
    """R1a (V) accepted ranges since the previous complete checkpoint tile the way to a checkpoint once, per delivery.

    For every complete checkpoint and each of its partitions: the ranges that had been accepted by then, and not undone,
    lie end to end from the restore point's offset (of the newest checkpoint or reset before that has the partition;
    else where it was first told to begin) to the checkpoint's. Twice is never right. Missing is right for single
    skipped offsets, and where `at_most_once` resumed beyond what was started and never accepted.

    It can't see what the sinks hold (R1b), nor records that were never in a range because a person or the
    out-of-range policy jumped over them: those open a timeline, whose map is the new restore point.
    """

    invariant: ClassVar[str] = "R1a"
    ways: dict[GroupPartition, Way] = field(default_factory=dict)

    def way(self, partition: GroupPartition) -> Way:
        """Return the way of a partition."""
        found = self.ways.get(partition)
        if found is None:
            found = self.ways[partition] = Way()
        return found

    def event(self, moment: Moment, event: events.Event) -> None:
        """See `Invariant`."""
        match event.body:
            case events.ResetBegun() as body:
                self._seek(moment, body, opens=body.opens_timeline)
            case events.SeekWritten() as body:
                self._seek(moment, body, opens=False)
            case events.CheckpointOpened(partitions=partitions):
                for partition in partitions:
                    self.way(partition)
            case events.CheckpointCompleted(sequence=sequence, offsets=offsets) if moment.is_current(sequence):
                # What it lacks was gone, or not in the spec; the first that has it again shows the way since the last.
                for partition, offset in offsets.items():
                    self._checkpoint(moment, partition, offset)

    def _seek(self, moment: Moment, body: events.ResetBegun | events.SeekWritten, *, opens: bool) -> None:
        for partition, entry in body.seek.items():
            way = self.way(partition)
            explains = moment.delivery(partition.group) is Delivery.AT_MOST_ONCE
            way.seek(entry.offset, opens=opens, explains=explains)

    def _checkpoint(self, moment: Moment, partition: GroupPartition, offset: Offset) -> None:
        way, number = self.way(partition), moment.number
        restore_point, done, twice = way.restore_point, way.done, way.twice
        gaps = [*way.gaps, *moment.skipped(partition)]
        way.rebase(offset)
        where = f"{partition} in checkpoint {moment.restore_point}"
        if restore_point is None:
            self.add(f"{where}: no start offset was given", number)
            return
        for range_ in twice:
            self.add(f"{where}: two batches with {range_} were both accepted", number)
        if offset < restore_point:
            self.add(f"{where} is at {offset}, before its restore point at {restore_point}", number)
            return
        if done == [Range(restore_point, offset)] or (not done and restore_point == offset):
            return
        for range_ in lacking(done, [Range(restore_point, offset)]):
            self.add(f"{where}: {range_} was accepted, it lies outside of [{restore_point}, {offset})", number)
        for range_ in lacking([Range(restore_point, offset)], [*done, *gaps]):
            self.add(f"{where}: {range_} is below it and was never accepted", number)

    def begin(self, moment: Moment, batch: Batch) -> None:
        """See `Invariant`."""
        if moment.delivery(batch.member.group) is Delivery.AT_MOST_ONCE:
            for partition, range_ in batch.ranges.items():
                add(self.way(partition).begun, range_)

    def accept(self, moment: Moment, batch: Batch, number: EventNumber) -> None:
        """See `Invariant`."""
        ways = self.ways
        for partition, range_ in batch.ranges.items():
            way = ways.get(partition) or self.way(partition)
            twice = add(way.done, range_)
            if twice:
                way.twice += twice
