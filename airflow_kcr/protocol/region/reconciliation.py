"""Transitions that time, leases and finished work cause without a verb.

There is no coordinator process; any process may perform what is due, and performing it twice changes nothing. Every
decision ends here, so that it and all its consequences are one transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from airflow_kcr.protocol.region import (
    batches,
    boundaries,
    checkpoints,
    coverage,
    lifecycle,
    membership,
    person_resets,
    publication,
    requests,
    resets,
    rows,
    specs,
)
from airflow_kcr.protocol.region.commands import RequestCheckpoint
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.values import DesiredState, RequestId, replace

_RULES: Final[tuple[Callable[[Region, datetime], Region], ...]] = (
    membership.lapse,
    specs.unattended,
    specs.corrected,
    checkpoints.overdue,
    publication.overdue,
    resets.output_lost,
    resets.progress,
    boundaries.past_answered,
    boundaries.held,
    lifecycle.finish_stop,
    lifecycle.ask_stop_checkpoint,
)


_MAX_ROUNDS: Final = 100
"""Each round completes at least one thing; a region has never needed more than a handful."""


_SOONEST: Final = timedelta(milliseconds=100)
"""What can't be reconciled yet (a boundary behind an unpublished checkpoint) is not asked for in a busy loop."""


def reconcile(region: Region, now: datetime) -> Region:
    """Return the region with everything done that is due at `now`, and `reconcile_at` set to when something next is."""
    for _ in range(_MAX_ROUNDS):
        before = region
        for rule in _RULES:
            region = rule(region, now)
        region = _serve(region, now)
        if region is before or region.counter == before.counter:
            break
    return replace(region, reconcile_at=_reconcile_at(region, now))


def _serve(region: Region, now: datetime) -> Region:
    """Serve what waits for a running region: persons' resets, the boundary or count that is reached, the queue."""
    if region.state in rows.RESTING:
        why = f"the region is {region.state}"
        region = requests.cancel(region, now, why, requests.queue(region))
        return person_resets.fail_all(region, now, why)
    if region.state is not rows.RegionState.RUNNING:
        return region
    region = person_resets.serve_next(region, now)
    boundary = boundaries.passed(region, now)
    if boundary is not None and region.desired_state is DesiredState.RUNNING:
        if boundary != region.next_boundary:
            region = boundaries.with_next_boundary(
                region, now, boundary, "earlier boundaries were missed; the latest one counts"
            )
        request_id = RequestId(f"boundary:{boundary.isoformat()}")
        # There is no one to ask whether it may be inexact; refused, it would be requested for ever.
        scheduled = RequestCheckpoint(
            request_id=request_id, purpose=rows.CheckpointPurpose.SCHEDULE, boundary=boundary, allow_inexact=True
        )
        region = requests.ask(region, now, scheduled)
    if left := batches.records_left(region):
        counted = (r for r in requests.queue(region) if r.request_id.startswith(requests.BY_COUNT))
        region = requests.cancel(region, now, f"its count is not reached any more: {left} offsets are left", counted)
    elif left == 0 and region.desired_state is DesiredState.RUNNING:
        request_id = RequestId(f"{requests.BY_COUNT}{region.timeline}.{region.restore_sequence}")
        region = requests.ask(
            region, now, RequestCheckpoint(request_id=request_id, purpose=rows.CheckpointPurpose.SCHEDULE)
        )
    region = checkpoints.advance(region, now)
    return checkpoints.open_next(region, now) if region.state is rows.RegionState.RUNNING else region


def _reconcile_at(region: Region, now: datetime) -> datetime | None:
    """Return the next moment at which `reconcile` could change something by itself.

    A lease that is renewed meanwhile makes the moment come too early, never too late.
    """
    moments: list[datetime | None] = []
    checkpoint, reset, restore_point = region.checkpoint, region.reset, region.uncommitted
    if checkpoint is not None:
        moments += [checkpoint.drain_deadline, coverage.horizon(region, now)]
    if reset is not None:
        moments += [reset.deadline, coverage.horizon(region, now)]
    if restore_point is not None:
        moments.append(restore_point.commit_deadline)
    moments += [region.checkpoints[sequence].publish_deadline for sequence in region.complete]
    if region.desired_state is DesiredState.STOPPED and region.state is not rows.RegionState.STOPPED:
        moments.append(coverage.horizon(region, now))
    if region.state is rows.RegionState.RUNNING:
        moments.append(boundaries.held_until(region))
    if region.state is rows.RegionState.RUNNING and boundaries.is_automatic(region):
        moments.append(region.next_boundary)
    if region.next_spec is not None:
        moments.append(coverage.horizon(region, now))
    if any(True for _ in requests.queue(region)) and region.state is rows.RegionState.RUNNING:
        moments.append(coverage.horizon(region, now))
    if region.state is rows.RegionState.RUNNING:
        moments.append(region.retire_at)
    later = [m for m in moments if m is not None]
    return min((max(m, now + _SOONEST) for m in later), default=None)
