"""What `kcr verify` runs: every invariant that events and ledger can prove (design section 15, marked V)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from airflow_kcr.protocol.invariants import checkpoints, echoes, fencing, numbering, places, replays, requests, tiling
from airflow_kcr.protocol.invariants.history import History, Index, Violation
from airflow_kcr.protocol.invariants.replay import indexed
from airflow_kcr.protocol.values import RegionName

CHECKS: Final[tuple[Callable[[Index], Iterator[Violation]], ...]] = (
    tiling.tiled,
    checkpoints.complete,
    checkpoints.inside,
    echoes.echoed,
    places.resumed,
    fencing.fenced,
    requests.answered,
    replays.accounted,
    fencing.still,
    places.resolved_once,
    numbering.increasing,
    checkpoints.retired,
    checkpoints.one_at_a_time,
)
"""R1a to R13, in order."""


def verify(history: History) -> tuple[Violation, ...]:
    """Return whatever the history contradicts, in the order of the invariants; nothing: it is consistent."""
    index = indexed(history)
    return tuple(violation for check in CHECKS for violation in check(index))


def report(region: RegionName, history: History, violations: tuple[Violation, ...]) -> dict[str, object]:
    """Return the JSON form of what was found (interfaces.md, `verify`)."""
    return {
        "region": region,
        "checked_events": len(history.events),
        "violations": [
            {"invariant": v.invariant, "detail": v.detail, "events": [int(n) for n in v.events]} for v in violations
        ],
    }
