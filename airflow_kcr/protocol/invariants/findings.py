"""What contradicts an invariant, as a check finds it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from airflow_kcr.protocol.invariants.history import Violation
from airflow_kcr.protocol.values import EventNumber

KEPT: Final = 1_000
"""Violations of one invariant that are told one by one: a store that was altered may hold millions."""


@dataclass(slots=True)
class Findings:
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
