"""R11: lineages and sequences only ever grow, and a batch carries those of its begin."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final, NamedTuple

from airflow_kcr.protocol.invariants.check import Check
from airflow_kcr.protocol.invariants.findings import Findings
from airflow_kcr.protocol.invariants.intervals import add
from airflow_kcr.protocol.invariants.moment import Moment
from airflow_kcr.protocol.region.events import CutOpened, Event, ResetBegun, ResetDone, StoreRestoredSeen
from airflow_kcr.protocol.region.rows import Batch
from airflow_kcr.protocol.values import EventNumber, GroupPartition, Lineage, Range, Sequence


class Newest(NamedTuple):
    """The highest numbers so far, and which event had them."""

    number: EventNumber
    lineage: Lineage
    sequence: Sequence


NOTHING: Final = Newest(EventNumber(0), Lineage(0), Sequence(0))


@dataclass(slots=True, kw_only=True)
class Done:
    """What was done under one stamp."""

    lineage: Lineage
    sequence: Sequence
    ranges: dict[GroupPartition, list[Range]] = field(default_factory=dict)
    newest: EventNumber = EventNumber(0)
    """When the last of it had begun."""


@dataclass(slots=True, kw_only=True)
class Increasing(Check):
    """R11 (V) (lineage, sequence) strictly increases and no two accepted batches of one (lineage, sequence) overlap.

    Over cuts and resets in commit order the sequence grows and the lineage never falls, so that no sequence is used
    twice; a reset that is its own base opens the next lineage, any other keeps it, and what it undoes are the cuts that
    its map lies below. Every batch is stamped with the lineage of its begin and the open cut's sequence, else the
    next one. Done batches, undone later or not, that share a stamp don't overlap.

    It can't see numbers that a restored store had used before: the region is halted then, and its numbers raised above
    all that anybody has seen.
    """

    invariant: ClassVar[str] = "R11"
    sees_batches: ClassVar[bool] = True
    newest: Newest = NOTHING
    done: list[Done] = field(default_factory=list)
    """By stamp, oldest first; from the last reset that was done on."""

    def event(self, moment: Moment, event: Event, findings: Findings) -> None:
        """See `Check`."""
        body, number, before = event.body, event.number, self.newest
        if isinstance(body, ResetDone):
            self.done = self.done[-2:]  # nobody can end what began before it, but for what its sinks have proved now
        elif isinstance(body, StoreRestoredSeen):
            self.newest = Newest(number, Lineage(max(event.lineage, before.lineage)), before.sequence)
        elif isinstance(body, CutOpened | ResetBegun):
            if body.sequence <= before.sequence or body.lineage < before.lineage:
                detail = f"({body.lineage}, {body.sequence}) comes after ({before.lineage}, {before.sequence})"
                findings.add(detail, before.number, number)
            opens = isinstance(body, ResetBegun) and body.base == body.sequence
            if body.lineage != before.lineage + opens:
                detail = f"{event.kind} {body.sequence} is of lineage {body.lineage}"
                findings.add(f"{detail}, expected was {before.lineage + opens}", before.number, number)
            highest = Lineage(max(body.lineage, before.lineage)), Sequence(max(body.sequence, before.sequence))
            self.newest = Newest(number, *highest)
            if isinstance(body, ResetBegun) and tuple(body.undoes) != moment.undone:
                said, found = list(body.undoes), list(moment.undone)
                detail = f"reset {body.sequence} says that it undoes the cuts {said}, its map lies below {found}"
                findings.add(detail, number)

    def begin(self, moment: Moment, batch: Batch, findings: Findings) -> None:
        """See `Check`."""
        if batch.lineage != moment.lineage or batch.sequence != moment.stamp:
            was = f"at its begin it was ({moment.lineage}, {moment.stamp})"
            detail = f"batch {batch.batch} is stamped ({batch.lineage}, {batch.sequence}), {was}"
            findings.add(detail, batch.begun_after)

    def end(self, moment: Moment, batch: Batch, flaw: str, findings: Findings) -> None:
        """See `Check`."""
        done = self._under(batch.lineage, batch.sequence)
        for partition, range_ in batch.ranges.items():
            ranges = done.ranges.get(partition)
            if ranges is None:
                done.ranges[partition] = [range_]
            elif add(ranges, range_):
                where = f"{partition}, both done in ({batch.lineage}, {batch.sequence})"
                detail = f"batch {batch.batch} overlaps on {where}, what was done there before it"
                findings.add(detail, *sorted((done.newest, batch.begun_after)))
        done.newest = max(done.newest, batch.begun_after)

    def _under(self, lineage: Lineage, sequence: Sequence) -> Done:
        for done in reversed(self.done):
            if done.sequence == sequence and done.lineage == lineage:
                return done
        self.done = [*self.done[-7:], Done(lineage=lineage, sequence=sequence)]
        return self.done[-1]
