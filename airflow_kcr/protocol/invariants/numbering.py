"""R11: timelines and sequences only ever grow, and a batch carries those of its begin."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final, NamedTuple

from airflow_kcr.protocol.invariants.check import Check, Findings
from airflow_kcr.protocol.invariants.intervals import add
from airflow_kcr.protocol.invariants.moment import Moment
from airflow_kcr.protocol.region.events import CheckpointOpened, Event, ResetBegun, ResetDone, StoreRestoredSeen
from airflow_kcr.protocol.region.rows import Batch
from airflow_kcr.protocol.values import CheckpointNumber, EventNumber, GroupPartition, Range, Timeline


class Newest(NamedTuple):
    """The highest numbers so far, and which event had them."""

    number: EventNumber
    timeline: Timeline
    sequence: CheckpointNumber


NOTHING: Final = Newest(EventNumber(0), Timeline(0), CheckpointNumber(0))


@dataclass(slots=True, kw_only=True)
class Done:
    """What was done under one stamp."""

    timeline: Timeline
    sequence: CheckpointNumber
    ranges: dict[GroupPartition, list[Range]] = field(default_factory=dict)
    newest: EventNumber = EventNumber(0)
    """When the last of it had begun."""


@dataclass(slots=True, kw_only=True)
class Increasing(Check):
    """R11 (V) (timeline, sequence) strictly increases and no two accepted batches of one (timeline, sequence) overlap.

    Over checkpoints and resets in commit order the sequence grows and the timeline never falls, so that no sequence is
    used twice; a reset that is its own restore point opens the next timeline, any other keeps it, and what it undoes
    are the checkpoints that its map lies below. Every batch is stamped with the timeline of its begin and the open
    checkpoint's sequence, else the next one. Done batches, undone later or not, that share a stamp don't overlap.

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
            self.newest = Newest(number, Timeline(max(event.timeline, before.timeline)), before.sequence)
        elif isinstance(body, CheckpointOpened | ResetBegun):
            if body.sequence <= before.sequence or body.timeline < before.timeline:
                detail = f"({body.timeline}, {body.sequence}) comes after ({before.timeline}, {before.sequence})"
                findings.add(detail, before.number, number)
            opens = isinstance(body, ResetBegun) and body.restore_point == body.sequence
            if body.timeline != before.timeline + opens:
                detail = f"{event.kind} {body.sequence} is of timeline {body.timeline}"
                findings.add(f"{detail}, expected was {before.timeline + opens}", before.number, number)
            highest = (
                Timeline(max(body.timeline, before.timeline)),
                CheckpointNumber(max(body.sequence, before.sequence)),
            )
            self.newest = Newest(number, *highest)
            if isinstance(body, ResetBegun) and tuple(body.undoes) != moment.undone:
                said, found = list(body.undoes), list(moment.undone)
                detail = f"reset {body.sequence} says that it undoes the checkpoints {said}, its map lies below {found}"
                findings.add(detail, number)

    def begin(self, moment: Moment, batch: Batch, findings: Findings) -> None:
        """See `Check`."""
        if batch.timeline != moment.timeline or batch.sequence != moment.stamp:
            was = f"at its begin it was ({moment.timeline}, {moment.stamp})"
            detail = f"batch {batch.batch} is stamped ({batch.timeline}, {batch.sequence}), {was}"
            findings.add(detail, batch.begun_after)

    def end(self, moment: Moment, batch: Batch, flaw: str, findings: Findings) -> None:
        """See `Check`."""
        done = self._under(batch.timeline, batch.sequence)
        for partition, range_ in batch.ranges.items():
            ranges = done.ranges.get(partition)
            if ranges is None:
                done.ranges[partition] = [range_]
            elif add(ranges, range_):
                where = f"{partition}, both done in ({batch.timeline}, {batch.sequence})"
                detail = f"batch {batch.batch} overlaps on {where}, what was done there before it"
                findings.add(detail, *sorted((done.newest, batch.begun_after)))
        done.newest = max(done.newest, batch.begun_after)

    def _under(self, timeline: Timeline, sequence: CheckpointNumber) -> Done:
        for done in reversed(self.done):
            if done.sequence == sequence and done.timeline == timeline:
                return done
        self.done = [*self.done[-7:], Done(timeline=timeline, sequence=sequence)]
        return self.done[-1]
