"""What the invariants say of a region's history."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from airflow_kcr.protocol.invariants import History, verify
from airflow_kcr.protocol.invariants.history import Violation
from airflow_kcr.protocol.invariants.verify import report
from airflow_kcr.protocol.values import RegionName


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A history judged (design section 15)."""

    region: RegionName
    history: History
    violations: tuple[Violation, ...]
    """Whatever the history contradicts; none: it is consistent."""

    @classmethod
    def of(cls, region: RegionName, history: History) -> Self:
        """Judge a history, read at one moment."""
        return cls(region=region, history=history, violations=verify(history))

    def to_json(self) -> dict[str, object]:
        """Return it as in `verify`."""
        return report(self.region, self.history, self.violations)
