"""R1a: what was accepted between two complete cuts, partition by partition."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from airflow_kcr.protocol.delivery import Delivery
from airflow_kcr.protocol.invariants.acceptance import accepted_after
from airflow_kcr.protocol.invariants.history import Handled, Index, Place, Violation
from airflow_kcr.protocol.invariants.intervals import common, lacking
from airflow_kcr.protocol.region.rows import Outcome
from airflow_kcr.protocol.values import EventNumber, GroupPartition, Offset, Range


def tiled(index: Index) -> Iterator[Violation]:
    """R1a (V) accepted ranges since the previous complete cut tile the way to a checkpoint once, per delivery.

    For every complete cut and each of its partitions: the ranges that had been accepted by then, and not undone, lie
    end to end from the base's offset (of the cut or reset before; for a partition that it lacks, where it was first
    told to begin) to the cut's. Twice is never right. Missing is right for single skipped offsets, and where
    `at_most_once` resumed beyond what was begun and never accepted. Besides, the ledger's marks of what resets have
    undone must be what the resets' maps say.

    It can't see what the sinks hold (R1b), nor records that were never in a range because a person or the
    out-of-range policy jumped over them: those open a lineage, whose map is the new base.
    """
    accepted: dict[GroupPartition, list[Handled]] = {}
    for batch in index.history.batches:
        number = accepted_after(index, batch)
        if number is None:
            continue
        for partition, range_ in batch.ranges.items():
            accepted.setdefault(partition, []).append(Handled(number, range_, batch))
    partitions = {*index.seeks, *accepted, *(p for c in index.cuts.values() for p in c.opened.partitions)}
    completions = [(c.completed[0], c.completed[1]) for _, c in sorted(index.cuts.items()) if c.completed is not None]
    for partition in sorted(partitions):
        way = _Way(index=index, partition=partition)
        steps: list[tuple[EventNumber, int, Handled | Place | tuple[EventNumber, Offset | None]]] = []
        steps += [(s.number, 0, s) for s in index.seeks.get(partition, ())]
        steps += [(n, 0, (n, body.offsets.get(partition))) for n, body in completions]
        steps += [(h.number, 1, h) for h in accepted.get(partition, ())]
        for _, _, step in sorted(steps, key=lambda s: s[:2]):
            yield from way.take(step)
    yield from _marks(index)


@dataclass(slots=True, kw_only=True)
class _Way:
    """One partition, between its base and wherever it is."""

    index: Index
    partition: GroupPartition
    since: EventNumber = EventNumber(0)
    """When the base was reached."""

    base: Offset | None = None
    done: list[Range] = field(default_factory=list)
    gaps: list[Range] = field(default_factory=list)
    """What may be missing."""

    def take(self, step: Handled | Place | tuple[EventNumber, Offset | None]) -> Iterator[Violation]:
        match step:
            case Handled():
                self.done.append(step.range)
            case Place():
                self._seek(step)
            case (number, offset):
                yield from self._cut(number, offset)

    def _seek(self, place: Place) -> None:
        """Go where a reset says: what lies beyond is no longer accepted; what lies before may explain a gap."""
        if place.offset is None:
            if place.opens:
                self._rebase(place.number, None)
            return
        if place.opens or self.base is None:
            self._rebase(place.number, place.offset)
            return
        self.done = [Range(r.from_, min(r.to, place.offset)) for r in self.done if r.from_ < place.offset]
        self.gaps = [Range(r.from_, min(r.to, place.offset)) for r in self.gaps if r.from_ < place.offset]
        if self.index.delivery(self.partition.group, place.number) is Delivery.AT_MOST_ONCE:
            begun = self.index.begun.get(self.partition, [])
            here = begun[
                bisect_right(begun, self.since - 1, key=_number) : bisect_right(begun, place.number, key=_number)
            ]
            missing = lacking([Range(self.base, place.offset)], self.done)
            self.gaps += common(missing, [h.range for h in here])

    def _rebase(self, number: EventNumber, offset: Offset | None) -> None:
        self.since, self.base, self.done, self.gaps = number, offset, [], []

    def _cut(self, number: EventNumber, offset: Offset | None) -> Iterator[Violation]:
        base, done = self.base, sorted(self.done)
        gaps = [*self.gaps, *self.index.skipped(self.partition, number)]
        self._rebase(number, offset)
        if offset is None:
            return
        sequence = self.index.bases.at(number)
        where = f"{self.partition} in cut {sequence}"
        if base is None:
            yield Violation("R1a", f"{where}: nobody was told where to begin", (number,))
            return
        for a, b in pairwise(done):
            if b.from_ < a.to:
                yield Violation("R1a", f"{where}: {a} and {b} were both accepted", (number,))
        if offset < base:
            yield Violation("R1a", f"{where} is at {offset}, before its base at {base}", (number,))
            return
        outside = lacking(done, [Range(base, offset)])
        for range_ in outside:
            yield Violation("R1a", f"{where}: {range_} was accepted, it lies outside of [{base}, {offset})", (number,))
        for range_ in lacking([Range(base, offset)], [*done, *gaps]):
            yield Violation("R1a", f"{where}: {range_} is below it and was never accepted", (number,))


def _marks(index: Index) -> Iterator[Violation]:
    """Compare what the ledger calls undone with the seek maps that came after each batch."""
    lowest = {p: _lowest_later(places) for p, places in index.seeks.items()}
    for batch in index.history.batches:
        number = accepted_after(index, batch)
        if number is None:
            continue
        expected: dict[GroupPartition, Offset] = {}
        for partition, range_ in batch.ranges.items():
            later = lowest.get(partition, [])
            after = bisect_right(later, number, key=lambda pair: pair[0])
            if after < len(later) and later[after][1] < range_.to:
                expected[partition] = Offset(max(later[after][1], range_.from_))
        whole = all(expected.get(p) == r.from_ for p, r in batch.ranges.items())
        outcome = Outcome.UNDONE if whole else Outcome.DONE
        if dict(batch.undone_from) != expected or batch.outcome is not outcome:
            yield Violation(
                "R1a",
                f"batch {batch.batch} is {batch.outcome}{_described(batch.undone_from)} in the "
                f"ledger, by the resets after it it is {outcome}{_described(expected)}",
                (number,),
            )


def _described(marks: Mapping[GroupPartition, Offset]) -> str:
    return " from " + ", ".join(f"{p} {o}" for p, o in marks.items()) if marks else ""


def _number(handled: Handled) -> EventNumber:
    return handled.number


def _lowest_later(places: list[Place]) -> list[tuple[EventNumber, Offset]]:
    """Return, for each seek entry, the lowest offset of it and all later ones; ascending in both."""
    found: list[tuple[EventNumber, Offset]] = []
    for place in reversed(places):
        if place.offset is None:
            continue
        lowest = place.offset if not found else min(place.offset, found[-1][1])
        found.append((place.number, lowest))
    return found[::-1]
