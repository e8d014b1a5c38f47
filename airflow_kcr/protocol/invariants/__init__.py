"""The invariants of a region, proved or refuted from its history alone (tests/annex/invariants.md)."""

from __future__ import annotations

from airflow_kcr.protocol.invariants.history import History, Violation
from airflow_kcr.protocol.invariants.proof import verify

__all__ = ["History", "Violation", "verify"]
