"""What is due: the transitions that time, leases and finished work cause without anybody asking.

There is no coordinator process; any process may perform what is due, and performing it twice changes nothing. Every
exclusive verb ends here, so that a decision and all its consequences are one transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from airflow_kcr.protocol.region import (
    batches,
    bounds,
    completion,
    coverage,
    cuts,
    lifecycle,
    membership,
    person,
    requests,
    resets,
    specs,
)
from airflow_kcr.protocol.region.rows import (
    CheckpointState,
    Committed,
    CutPurpose,
    PersonResetState,
    RegionState,
    Wanted,
)
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.values import Nonce

_RULES: Final[tuple[Callable[[Region, datetime], Region], ...]] = (
    membership.lapse,
    specs.unattended,
    cuts.overdue,
    completion.overdue,
    resets.progress,
    bounds.past_answered,
    bounds.held,
    lifecycle.finish_stop,
    lifecycle.ask_stop_cut,
)
_MAX_ROUNDS: Final = 100
"""Each round settles at least one thing; a region has never needed more than a handful."""


def settle(region: Region, now: datetime) -> Region:
    """Return the region with everything done that is due at `now`, and `due_at` set to when something next is."""
    for _ in range(_MAX_ROUNDS):
        before = region
        for rule in _RULES:
            region = rule(region, now)
        region = _serve(region, now)
        if region is before or region.counter == before.counter:
            break
    return replace(region, due_at=_due_at(region, now))


def _serve(region: Region, now: datetime) -> Region:
    """Serve what waits for a running region: persons' resets, the bound or count that is reached, the queue."""
    if region.state in {RegionState.HALTED, RegionState.STOPPED}:
        why = f"the region is {region.state}"
        region = requests.cancel(region, now, why, purposes=frozenset(CutPurpose))
        return _fail_waiting(region, now, why)
    if region.state is not RegionState.RUNNING:
        return region
    region = person.serve_next(region, now)
    bound = bounds.passed(region, now)
    if bound is not None and region.wanted is Wanted.RUNNING:
        if bound != region.next_bound:
            region = bounds.with_next_bound(region, now, bound, "earlier bounds were missed; the latest one counts")
        nonce = Nonce(f"bound:{bound.isoformat()}")
        # Nobody is there to be asked whether it may be inexact; refused, it would be asked for again for ever.
        region = requests.ask(region, now, nonce=nonce, purpose=CutPurpose.SCHEDULE, bound=bound, allow_inexact=True)
    if batches.records_left(region) == 0 and region.wanted is Wanted.RUNNING:
        nonce = Nonce(f"records:{region.lineage}.{region.base}")
        region = requests.ask(region, now, nonce=nonce, purpose=CutPurpose.SCHEDULE)
    region = cuts.advance(region, now)
    return cuts.open_next(region, now) if region.state is RegionState.RUNNING else region


def _fail_waiting(region: Region, now: datetime, why: str) -> Region:
    drained = {PersonResetState.WAITING, PersonResetState.DRAINING}
    unfinished = any(r.state in drained for r in region.person_resets.values())
    return person.fail_all(region, now, why) if unfinished else region


def _due_at(region: Region, now: datetime) -> datetime | None:
    """Return the next moment at which `settle` could change something by itself.

    A lease that is renewed meanwhile makes the moment come too early, never too late.
    """
    moments: list[datetime | None] = []
    cut, reset = region.cut, region.reset
    base = None if region.base is None or region.base_epoch is not None else region.checkpoints[region.base]
    if cut is not None:
        moments += [cut.drain_deadline, coverage.horizon(region, now)]
    if reset is not None:
        moments += [reset.deadline, coverage.horizon(region, now)]
    if base is not None and base.committed is Committed.PENDING:
        moments.append(base.commit_deadline)
    moments += [c.publish_deadline for c in region.checkpoints.values() if c.state is CheckpointState.COMPLETE]
    if region.wanted is Wanted.STOPPED and region.state is not RegionState.STOPPED:
        moments.append(coverage.horizon(region, now))
    if region.state is RegionState.RUNNING:
        moments.append(bounds.held_until(region))
    if region.state is RegionState.RUNNING and bounds.is_automatic(region):
        moments.append(region.next_bound)
    if region.next_spec is not None:
        moments.append(coverage.horizon(region, now))
    if any(True for _ in requests.queue(region)) and region.state is RegionState.RUNNING:
        moments.append(coverage.horizon(region, now))
    if region.state is RegionState.RUNNING:
        moments.append(region.retire_at)
    later = [m for m in moments if m is not None]
    return min((max(m, now + _SOONEST) for m in later), default=None)


_SOONEST: Final = timedelta(milliseconds=100)
"""What is due but can't be settled yet (a bound that waits for an unpublished cut) is not asked for in a busy loop."""
