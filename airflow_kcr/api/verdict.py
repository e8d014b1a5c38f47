"""What the invariants say of a region's history."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from airflow_kcr.ports import Chronicle
from airflow_kcr.protocol.invariants.history import Violation
from airflow_kcr.protocol.invariants.verify import beginning, report
from airflow_kcr.protocol.values import EventNumber, RegionName


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A history judged (design section 15)."""

    region: RegionName
    checked_events: int
    checked_batches: int
    violations: tuple[Violation, ...]
    """Whatever the history contradicts; none: it is consistent."""

    @classmethod
    def of(cls, region: RegionName, chronicle: Chronicle) -> Self:
        """Judge what is recorded of a region up to this moment, reading it once and holding none of it."""
        horizon = chronicle.horizon()
        proof = beginning()
        events = chronicle.events(EventNumber(0), horizon.counter)
        proof.take(events, chronicle.batches(0, horizon.ledger), horizon.counter)
        # Rows may have been changed since by what came after: a reset whose sinks' progress proved them done.
        proof.later(chronicle.events(horizon.counter, chronicle.horizon().counter))
        return cls(
            region=region,
            checked_events=proof.events,
            checked_batches=proof.tally.batches,
            violations=proof.finished(),
        )

    def to_json(self) -> dict[str, object]:
        """Return it as in `verify`."""
        return report(self.region, self.checked_events, self.checked_batches, self.violations)
