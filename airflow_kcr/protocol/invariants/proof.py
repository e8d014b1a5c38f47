"""Proving a history while it is read, by every invariant that events and ledger can prove.

A batch is no event. It starts between event `started_after` and the next one, and finishes after `finished_after`; so
before an event is taken, whatever began and ended until then is. Of the batches only those are kept that run, and those
whose end did not count and may still turn out to be done: a fenced sink says so in the reset that follows. What is kept
grows with members and partitions, however long the history.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Final

from airflow_kcr.protocol.invariants import checkpoints
from airflow_kcr.protocol.invariants.accounting import Accounted
from airflow_kcr.protocol.invariants.actions import Fenced, Increasing, RequestsEnd, ResolvedOnce, Resumed, Still
from airflow_kcr.protocol.invariants.history import Violation
from airflow_kcr.protocol.invariants.moment import Invariant, Moment
from airflow_kcr.protocol.invariants.recomputing import Recomputed
from airflow_kcr.protocol.invariants.tiling import Tiled
from airflow_kcr.protocol.region.events import Event, ResetDone
from airflow_kcr.protocol.region.rows import Batch
from airflow_kcr.protocol.values import BatchId, EventNumber


@dataclass(slots=True, kw_only=True)
class Proof:
    """How far a history is proved, and whatever it contradicted on the way."""

    checks: tuple[Invariant, ...]
    moment: Moment = field(default_factory=Moment)
    open: dict[BatchId, Batch] = field(default_factory=dict)
    """Batches that run, and those that ended without counting since the last reset that was done."""

    doubted: dict[BatchId, str] = field(default_factory=dict)
    """Those of them whose rows say that they were done, with what speaks against it."""

    events: int = 0
    """How many were taken."""

    batches: int = 0
    """How many were taken."""

    is_settled_later: bool = False
    """Whether a reset was done beyond the end, before the rows were read: it may have proved what is doubted."""

    _ends: list[tuple[EventNumber, int, Batch]] = field(default_factory=list)
    _pushed: int = 0
    _waits: Batch | None = None
    """Read, and not started yet."""

    @property
    def violations(self) -> tuple[Violation, ...]:
        """Whatever was contradicted so far, in the order of the checks."""
        return tuple(violation for check in self.checks for violation in check.violations)

    def take(self, events: Iterable[Event], batches: Iterable[Batch], until: EventNumber) -> None:
        """Go on to the moment after event `until`, with what began and ended before the next one.

        Args:
            events: the next ones, up to `until`.
            batches: the next ones, in the order of their starts; those that are `open`, as their rows are now, first.
            until: the last event.
        """
        rows = iter(batches)
        reread = frozenset(self.open)
        self._waits = next(rows, None)
        while self._waits is not None and self._waits.batch in reread:
            self._reread(self._waits, until)
            self._waits = next(rows, None)
        self._gap(rows, self.moment.number, until)
        for event in events:
            self._gap(rows, EventNumber(event.number - 1), until)
            self._event(event)
        self._gap(rows, until, until)

    def later(self, events: Iterable[Event]) -> None:
        """Take what happened beyond the end, while its rows were read: it explains what they say."""
        for event in events:
            self.is_settled_later |= isinstance(event.body, ResetDone)

    def finished(self) -> tuple[Violation, ...]:
        """Return the violations, with whatever must not be open at the end; the proof may continue all the same."""
        found: list[Violation] = []
        for check in self.checks:
            last = replace(check, first=[*check.first])
            last.finish(self.moment)
            if not self.is_settled_later:
                for batch, flaw in self.doubted.items():
                    last.unproven(self.moment, self.open[batch], flaw)
            found += last.violations
        return tuple(found)

    # -- in order ------------------------------------------------------------------------------------------------

    def _gap(self, rows: Iterator[Batch], number: EventNumber, until: EventNumber) -> None:
        """Take what began and ended up to the event after `number`."""
        batch = self._waits
        if batch is not None and batch.started_after <= number:
            begins, moment = [check.begin for check in self.checks], self.moment
            while batch is not None and batch.started_after <= number:
                for begin in begins:
                    begin(moment, batch)
                self.batches += 1
                self._route(batch, until)
                batch = next(rows, None)
            self._waits = batch
        while self._ends and self._ends[0][0] <= number:
            self._end(heappop(self._ends)[2])

    def _reread(self, batch: Batch, until: EventNumber) -> None:
        self.open[batch.batch] = batch
        if batch.batch not in self.doubted:
            self._route(batch, until)

    def _route(self, batch: Batch, until: EventNumber) -> None:
        ended = batch.finished_after
        if ended is None and batch.outcome in checkpoints.WAS_DONE:
            self._end(batch)
        elif ended is None or ended > until:
            self.open[batch.batch] = batch
        elif ended <= self.moment.number:
            self._end(batch)
        else:
            self._pushed += 1
            heappush(self._ends, (ended, self._pushed, batch))

    def _end(self, batch: Batch) -> None:
        if batch.outcome not in checkpoints.WAS_DONE:
            self.open[batch.batch] = batch
            return
        flaw = checkpoints.end_flaw(self.moment, batch)
        for check in self.checks:
            check.end(self.moment, batch, flaw)
        if flaw:
            self.open[batch.batch], self.doubted[batch.batch] = batch, flaw
        else:
            self.open.pop(batch.batch, None)
            self._accept(batch, batch.finished_after or batch.started_after)

    def _accept(self, batch: Batch, number: EventNumber) -> None:
        for check in self.checks:
            check.accept(self.moment, batch, number)

    def _event(self, event: Event) -> None:
        self.events += 1
        for check in self.checks:
            check.before(self.moment, event)
        self.moment.take(event)
        for check in self.checks:
            check.event(self.moment, event)
        if isinstance(event.body, ResetDone):
            self._settle(event)

    def _settle(self, event: Event) -> None:
        """Close what a finished reset has left of earlier epochs: its sinks have reported their progress."""
        attempt = self.moment.attempt
        if attempt is None or attempt.done != event.number:
            return
        for batch in [b for b in self.open.values() if b.epoch < attempt.epoch]:
            if (batch.finished_after is None and batch.outcome is None) or not checkpoints.tells_of(attempt, batch):
                continue
            if batch.batch in self.doubted:
                del self.open[batch.batch]
                flaw = self.doubted.pop(batch.batch)
                if checkpoints.proves(attempt, batch):
                    self._accept(batch, event.number)
                else:
                    self._refuse(batch, flaw)
            elif batch.outcome is not None and batch.outcome not in checkpoints.WAS_DONE:
                del self.open[batch.batch]

    def _refuse(self, batch: Batch, flaw: str) -> None:
        for check in self.checks:
            check.unproven(self.moment, batch, flaw)
        self._accept(batch, batch.finished_after or batch.started_after)


# What `kcr verify` runs

CHECKS: Final[tuple[type[Invariant], ...]] = (
    Tiled,
    checkpoints.Complete,
    checkpoints.Inside,
    checkpoints.ReadBacks,
    Resumed,
    Fenced,
    RequestsEnd,
    Accounted,
    Still,
    ResolvedOnce,
    Increasing,
    checkpoints.RestorePointKept,
    checkpoints.OneAtATime,
    Recomputed,
)
"""R1a to R13, and R15, in order."""


def beginning() -> Proof:
    """Return the proof of a history of which nothing was read yet."""
    return Proof(checks=tuple(check() for check in CHECKS))
