"""What `kcr verify` runs: every invariant that events and ledger can prove (docs/reference/invariants.md)."""

from __future__ import annotations

from typing import Final

from airflow_kcr.protocol.invariants.accounting import Accounted
from airflow_kcr.protocol.invariants.check import Invariant
from airflow_kcr.protocol.invariants.checkpoints import Complete, Inside, OneAtATime, ReadBacks, RestorePointKept
from airflow_kcr.protocol.invariants.fencing import Fenced, Increasing, ResolvedOnce, Resumed, Still
from airflow_kcr.protocol.invariants.history import History, Violation
from airflow_kcr.protocol.invariants.proof import Proof
from airflow_kcr.protocol.invariants.requests import RequestsEnd
from airflow_kcr.protocol.invariants.tiling import Tiled
from airflow_kcr.protocol.values import EventNumber

CHECKS: Final[tuple[type[Invariant], ...]] = (
    Tiled,
    Complete,
    Inside,
    ReadBacks,
    Resumed,
    Fenced,
    RequestsEnd,
    Accounted,
    Still,
    ResolvedOnce,
    Increasing,
    RestorePointKept,
    OneAtATime,
)
"""R1a to R13, in order."""


def beginning(*, judges_marks: bool = False) -> Proof:
    """Return the proof of a history of which nothing was read yet.

    Args:
        judges_marks: whether its batches say what later resets have undone of them.
    """
    checks = (Tiled(judges_marks=judges_marks), *(check() for check in CHECKS if check is not Tiled))
    return Proof(checks=checks)


def verify(history: History) -> tuple[Violation, ...]:
    """Return whatever the history contradicts, in the order of the invariants; nothing: it is consistent."""
    proof = beginning(judges_marks=True)
    last = history.events[-1].number if history.events else EventNumber(0)
    proof.take(history.events, sorted(history.batches, key=lambda b: b.started_after), last)
    return proof.finished()
