"""A whole history verified, with what the rows of its ledger say of resets that came after their batches."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from airflow_kcr.protocol.invariants.history import History, Violation
from airflow_kcr.protocol.invariants.moment import Invariant, Moment
from airflow_kcr.protocol.invariants.proof import beginning
from airflow_kcr.protocol.invariants.tiling import Tiled
from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.region.rows import Batch, Outcome
from airflow_kcr.protocol.values import BatchId, EventNumber, GroupPartition, Offset, Range


class Mark(NamedTuple):
    """What a row of the ledger says of resets that came after it."""

    offset: Offset
    batch: BatchId
    number: EventNumber
    """After which event it was accepted."""


@dataclass(kw_only=True)
class Marks:
    """What the rows of one partition, as they were read, say of the resets to come.

    Ranges without a mark say that no reset goes below their ends, and of them the furthest says it all. Ranges that are
    undone from their start say that one goes there or below, and of them the lowest does. The few that a reset fell
    into say where.
    """

    done: Mark | None = None
    undone: Mark | None = None
    inside: list[Mark] = field(default_factory=list)

    def note(self, batch: Batch, number: EventNumber, range_: Range, mark: Offset | None) -> None:
        """Note a range that counts as accepted after an event, and from where on it is undone."""
        if mark is None:
            if self.done is None or range_.to > self.done.offset:
                self.done = Mark(range_.to, batch.batch, number)
        elif mark <= range_.from_:
            if self.undone is None or mark < self.undone.offset:
                self.undone = Mark(mark, batch.batch, number)
        else:
            if self.done is None or mark > self.done.offset:
                self.done = Mark(mark, batch.batch, number)
            self.inside.append(Mark(mark, batch.batch, number))

    def seek(self, partition: GroupPartition, offset: Offset, judge: Invariant) -> None:
        """Take a reset that goes to an offset."""
        if self.done is not None and offset < self.done.offset:
            _, batch, number = self.done
            detail = f"batch {batch} is done in the ledger, by the resets after it it is undone from {partition}"
            judge.add(f"{detail} {offset}", number)
            self.done = Mark(offset, batch, number)
        if self.undone is not None and offset <= self.undone.offset:
            self.undone = None
        self.inside = [mark for mark in self.inside if offset > mark.offset]

    def finish(self, partition: GroupPartition, judge: Invariant) -> None:
        """Tell of what no reset has done."""
        for mark in (*self.inside, *(() if self.undone is None else (self.undone,))):
            detail = f"batch {mark.batch} is undone from {partition} {mark.offset} in the ledger"
            judge.add(f"{detail}, by the resets after it it is done", mark.number)


@dataclass(kw_only=True)
class Marked(Tiled):
    """R1a; besides, what rows say that resets have undone of them is what the resets' maps say."""

    marks: defaultdict[GroupPartition, Marks] = field(default_factory=lambda: defaultdict(Marks))

    def event(self, moment: Moment, event: events.Event) -> None:
        super().event(moment, event)
        match event.body:
            case events.ResetBegun(seek=seek) | events.SeekWritten(seek=seek):
                for partition, entry in seek.items():
                    if entry.offset is not None:
                        self.marks[partition].seek(partition, entry.offset, self)

    def accept(self, moment: Moment, batch: Batch, number: EventNumber) -> None:
        super().accept(moment, batch, number)
        marks = batch.undone_from
        for partition, range_ in batch.ranges.items():
            self.marks[partition].note(batch, number, range_, marks.get(partition))
        whole = bool(batch.ranges) and all(marks.get(p) == r.from_ for p, r in batch.ranges.items())
        if whole is not (batch.outcome is Outcome.UNDONE):
            said = ", ".join(f"{p} {o}" for p, o in marks.items()) or "nowhere"
            self.add(f"batch {batch.batch} is {batch.outcome} in the ledger, undone from {said}", number)

    def finish(self, moment: Moment) -> None:
        super().finish(moment)
        for partition, marks in self.marks.items():
            marks.finish(partition, self)


def verify(history: History) -> tuple[Violation, ...]:
    """Return whatever the history contradicts, in the order of the invariants; nothing: it is consistent."""
    proof = beginning()
    proof.checks = tuple(Marked() if isinstance(check, Tiled) else check for check in proof.checks)
    last = history.events[-1].number if history.events else EventNumber(0)
    proof.take(history.events, sorted(history.batches, key=lambda b: b.started_after), last)
    return proof.finished()
