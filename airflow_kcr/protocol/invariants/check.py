"""What a check is, one invariant as a fold over a history, and what it finds.

A check gets everything once, in the order in which it happened, and keeps only what it needs to judge what comes next:
its fields, which are values, are what a certificate stores of it. `Moment` holds what several of them need.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final

from airflow_kcr.protocol.invariants.history import Violation
from airflow_kcr.protocol.invariants.moment import Moment
from airflow_kcr.protocol.region.events import Event
from airflow_kcr.protocol.region.rows import Batch
from airflow_kcr.protocol.values import EventNumber

KEPT: Final = 1_000
"""Violations of one invariant that are listed one by one: a store that was altered may hold millions."""


@dataclass(slots=True)
class Violations:
    """The violations of one invariant: the first ones, and how many there are."""

    invariant: str
    first: list[Violation] = field(default_factory=list)
    count: int = 0

    def add(self, detail: str, *events: EventNumber) -> None:
        """Note a violation: what is wrong, and the events that contradict each other."""
        self.count += 1
        if len(self.first) < KEPT:
            self.first.append(Violation(self.invariant, detail, events))

    def told(self) -> list[Violation]:
        """Return the violations by their last events, the last of them saying how many more there are."""
        told = sorted(self.first, key=lambda violation: violation.events[-1:])
        if self.count <= KEPT:
            return told
        return [*told, Violation(self.invariant, f"and {self.count - KEPT} more violations", told[-1].events)]


@dataclass(slots=True, kw_only=True)
class Invariant:
    """One invariant; an implementation overrides what concerns it."""

    invariant: ClassVar[str] = ""
    """Its number in docs/reference/invariants.md."""

    sees_batches: ClassVar[bool] = False
    """Whether it takes batches."""

    def before(self, moment: Moment, event: Event, findings: Violations) -> None:
        """Take an event, the moment being the one before it."""

    def event(self, moment: Moment, event: Event, findings: Violations) -> None:
        """Take an event, the moment being the one after it."""

    def begin(self, moment: Moment, batch: Batch, findings: Violations) -> None:
        """Take a batch that begins now."""

    def end(self, moment: Moment, batch: Batch, flaw: str, findings: Violations) -> None:
        """Take a batch whose row says that it was done: it ends now, and `flaw` says what speaks against that."""

    def accept(self, moment: Moment, batch: Batch, number: EventNumber, findings: Violations) -> None:
        """Take a batch that counts as accepted from now on, after event `number`."""

    def unproven(self, moment: Moment, batch: Batch, flaw: str, findings: Violations) -> None:
        """Take a batch whose end had a flaw and that no sink's progress has proved either."""

    def finish(self, moment: Moment, findings: Violations) -> None:
        """Judge what is still open at the end; changes nothing, as the history may continue."""
