"""Boundaries: what checkpoints are aligned to, and where they fall in partitions (docs/explanation/what-if.md).

No batch may cross the next boundary, so that a checkpoint made late still holds exactly the records of its interval.
Where a boundary falls is asked of the broker once per partition, by the first plan that finds it, and never
again: the order of the two questions (first the end, then the time index) is what makes the answer safe (scenarios C5,
C26).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from airflow_kcr.protocol.observations import LogBounds, TimeAnswer
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region import events, timelines
from airflow_kcr.protocol.region.commands import StoreBoundaryOffsets
from airflow_kcr.protocol.region.rows import UNCLAIMED, BoundaryOffset, RegionState, RequestState
from airflow_kcr.protocol.region.state import Region, put
from airflow_kcr.protocol.rules import CheckpointMode
from airflow_kcr.protocol.values import CheckpointNumber, GroupPartition, Offset, replace


def locate(
    *,
    boundary: datetime,
    end_before: LogBounds,
    answer: TimeAnswer,
    restore_point: Offset,
    now: datetime,
    grace: timedelta,
    high_before: Offset | None = None,
) -> BoundaryOffset | None:
    """Return where a boundary falls in one partition, or None while that can't be known yet.

    Args:
        boundary: the instant.
        end_before: the log's bounds, read *before* the time index was asked.
        answer: the broker's "first record at or after the boundary", read_committed.
        restore_point: the partition's offset in the restore point.
        now: the store's clock.
        grace: how long after the boundary its records may still arrive, and how far the brokers' clocks may be off.
        high_before: the log's high watermark, read before `end_before`; None: it was not.

    An answer stamped beyond now + grace (a record from the future, C27) or below the restore point is no answer.
    Without one the end as read before the look-up counts, but only once boundary + grace has passed, and never below
    the restore point. Records that a transaction, still open, hides behind that end may be of before the boundary, so
    the checkpoint says that it is not exact (C4); the high watermark is the older of the two, so that a log which only
    grew is not taken for one.
    """
    is_from_future = answer.found is not None and answer.found > now + grace
    is_below_restore_point = answer.offset is not None and answer.offset < restore_point
    if answer.offset is not None and not is_from_future and not is_below_restore_point:
        return BoundaryOffset(offset=answer.offset, leader_epoch=end_before.leader_epoch)
    if now < boundary + grace:
        return None
    why = ""
    if is_from_future:
        why = f"the record at {answer.offset} is stamped {answer.found}, in the future; the log's end counts instead"
    elif is_below_restore_point:
        why = (
            f"the first record at or after the boundary, {answer.offset}, lies below the restore point's offset "
            f"{restore_point}"
        )
    elif high_before is not None and high_before > end_before.end:
        why = (
            f"a transaction that is open hides the records from {end_before.end} on; those of before the boundary "
            "come in a later checkpoint"
        )
    return BoundaryOffset(
        offset=Offset(max(end_before.end, restore_point)), inexact=why, leader_epoch=end_before.leader_epoch
    )


def next_boundary_after(region: Region, instant: datetime) -> datetime | None:
    """Return the first scheduled instant after `instant`; None where the region has no schedule."""
    schedule = region.rules.checkpoint.schedule
    return None if schedule is None else schedule.after(instant)


def with_next_boundary(region: Region, now: datetime, boundary: datetime | None, why: str) -> Region:
    """Return the region with its next boundary set, not beyond a waiting run's; `next_boundary` has no other writer."""
    newest = timelines.newest_aligned(region)
    reached = None if newest is None else newest.boundary
    of_runs = (run.boundary for run in region.runs if run.state is RequestState.QUEUED)
    waiting = (one for one in of_runs if one is not None and (reached is None or one > reached))
    boundary = min((one for one in (boundary, *waiting) if one is not None), default=None)
    if boundary == region.next_boundary:
        return region
    region = replace(region, next_boundary=boundary).record(now, events.NextBoundaryChanged(boundary=boundary, why=why))
    return region if boundary is None else recalled(region, boundary)


def recalled(region: Region, boundary: datetime) -> Region:
    """Return the region with what was found of a boundary before: after a reset it is come to again."""
    if boundary == region.next_boundary or any(key[2] == boundary for key in region.boundary_offsets):
        return region
    return replace(region, boundary_offsets=put(region.boundary_offsets, region.archive.boundary_offsets(boundary)))


def after_completion(region: Region, now: datetime, boundary: datetime | None) -> Region:
    """Return the region with the boundary that follows a completed checkpoint.

    An unbounded checkpoint leaves it as it is.
    """
    if boundary is None:
        return region
    return with_next_boundary(
        region, now, next_boundary_after(region, boundary), f"after the checkpoint of {boundary.isoformat()}"
    )


def given_up(region: Region, now: datetime, boundary: datetime | None) -> Region:
    """Return the region without the boundary of a run that has ended without its checkpoint."""
    if boundary is None or boundary != region.next_boundary:
        return region
    newest = timelines.newest_aligned(region)
    start = now if newest is None or newest.boundary is None else newest.boundary
    return with_next_boundary(region, now, next_boundary_after(region, start), "the run up to it was given up")


def after_reset(region: Region, now: datetime, checkpoint: CheckpointNumber | None) -> Region:
    """Return the region with the boundary that follows a new timeline.

    Args:
        region: the region, its new timeline open.
        now: the store's clock.
        checkpoint: the checkpoint that was reset to; None for any other seek map.
    """
    newest = None if checkpoint is None else timelines.newest_aligned(region, checkpoint)
    boundary = None if newest is None else newest.boundary
    start = now if boundary is None else boundary
    why = (
        "first instant after the reset"
        if boundary is None
        else f"after the newest boundary on the current timeline, {boundary}"
    )
    return with_next_boundary(region, now, next_boundary_after(region, start), why)


def past_answered(region: Region, now: datetime) -> Region:
    """Return the running region with its next boundary beyond those that a current checkpoint has answered already.

    Checkpoints with equal offsets stay on the current timeline together. A reset to one of them sets the boundary after
    its own, and that one's checkpoint may have stayed too: it answers every request for that boundary, so none would
    ever open again, and no batch could cross. Which checkpoints stay is known when the reset is done, hence not before
    the region runs.
    """
    boundary = region.next_boundary
    if boundary is None or boundary > now or region.state is not RegionState.RUNNING:
        return region
    newest = timelines.newest_aligned(region)
    if newest is None or newest.boundary is None or newest.boundary < boundary:
        return region
    why = f"checkpoint {newest.sequence} answers it, which is of {newest.boundary.isoformat()}"
    return with_next_boundary(region, now, next_boundary_after(region, newest.boundary), why)


def is_automatic(region: Region) -> bool:
    """Whether the region checkpoints itself at its boundaries; in a run only at those that it catches up with."""
    checkpoint = region.rules.checkpoint
    is_own = checkpoint.schedule is not None and checkpoint.mode is CheckpointMode.AUTO
    return is_own and (checkpoint.catchup or not region.is_in_run)


def catches_up(region: Region, boundary: datetime) -> bool:
    """Whether a run up to a boundary makes the checkpoints of earlier ones, too, which were missed."""
    earlier = region.next_boundary
    return is_automatic(region) and region.rules.checkpoint.catchup and earlier is not None and earlier < boundary


def passed(region: Region, now: datetime) -> datetime | None:
    """Return the boundary that the region should checkpoint itself at now, or None.

    With `catchup` every missed boundary in its turn; without, the latest that has passed (scenario C40). While an
    earlier checkpoint is not published, the next boundary waits, and members hold there (C56).
    """
    checkpoint, boundary = region.rules.checkpoint, region.next_boundary
    if checkpoint.schedule is None or not is_automatic(region) or boundary is None or boundary > now:
        return None
    if checkpoint.catchup or timelines.unpublished(region):
        return boundary
    return max(boundary, checkpoint.schedule.at_or_before(now))


def overdue(region: Region, now: datetime) -> timedelta | None:
    """Return how long the next boundary has passed with no checkpoint made for it.

    None: not at all, or within the grace.

    A stopped region makes no checkpoints, so none is overdue there.
    """
    boundary = region.next_boundary
    if boundary is None or region.state is RegionState.STOPPED or now - boundary <= region.rules.checkpoint.grace:
        return None
    return now - boundary


def held_until(region: Region) -> datetime | None:
    """Return when a hold at the next boundary has lasted a whole period; None if no run is waited for.

    A region that checkpoints itself doesn't wait for requests, and a hold is reported once.
    """
    checkpoint, boundary = region.rules.checkpoint, region.next_boundary
    if checkpoint.schedule is None or is_automatic(region) or region.is_in_run:
        return None
    if boundary is None or boundary == region.held_boundary:
        return None
    return checkpoint.schedule.after(boundary)


def held(region: Region, now: datetime) -> Region:
    """Return the region with a hold longer than one period told, once for each boundary."""
    until, boundary = held_until(region), region.next_boundary
    if until is None or boundary is None or until > now or region.state is not RegionState.RUNNING:
        return region
    return replace(region, held_boundary=boundary).record(now, events.BoundaryHeld(boundary=boundary))


def limit(region: Region) -> datetime | None:
    """Return the boundary that no batch may cross now: the open checkpoint's, else the next one."""
    checkpoint = region.checkpoint
    return checkpoint.boundary if checkpoint is not None and checkpoint.boundary is not None else region.next_boundary


def boundary_offset(region: Region, partition: GroupPartition, boundary: datetime) -> BoundaryOffset | None:
    """Return where `boundary` falls in `partition`, if that was found for its present topic id."""
    claim = region.claims.get(partition, UNCLAIMED)
    return region.boundary_offsets.get((partition, claim.topic_id, boundary))


def store(region: Region, now: datetime, report: StoreBoundaryOffsets) -> Region:
    """Return the region with these boundary offsets stored; those already there stay (first writer wins).

    Raises:
        StaleEpoch, StaleIncarnation, LeaseExpired, UnknownMember: the member may not act, or not in this epoch.
    """
    caller = report.caller
    region.require_member(caller.member, caller.incarnation, now, epoch=caller.epoch)
    return located(region, now, report.boundary, report.found)


def located(
    region: Region, now: datetime, boundary: datetime, found: Mapping[GroupPartition, BoundaryOffset]
) -> Region:
    """Return the region with where a boundary falls in partitions that have a claim and no offset of it yet."""
    fresh = {
        (p, region.claims[p].topic_id, boundary): row
        for p, row in found.items()
        if p in region.claims and (p, region.claims[p].topic_id, boundary) not in region.boundary_offsets
    }
    if not fresh:
        return region
    stored = replace(region, boundary_offsets=put(region.boundary_offsets, fresh))
    body = events.BoundaryStored(
        boundary=boundary,
        offsets=OffsetMap({p: row.offset for (p, _, _), row in fresh.items()}),
        inexact={p: row.inexact for (p, _, _), row in fresh.items() if row.inexact},
    )
    return stored.record(now, body)


def unreached(region: Region, boundary: datetime, partitions: Iterable[GroupPartition]) -> list[GroupPartition]:
    """Return the partitions that are not where the boundary's checkpoint will be, nor beyond it, as far as is known."""
    found = []
    for partition in partitions:
        row, position = boundary_offset(region, partition, boundary), region.claims[partition].position
        if row is None or position is None or position < row.offset:
            found.append(partition)
    return found


def overshoot(region: Region, boundary: datetime, partitions: frozenset[GroupPartition]) -> dict[GroupPartition, str]:
    """Return the partitions that are already past a boundary, with a sentence each: their checkpoint can't be exact.

    A position that passed an ignored answer (a record from the future) is not past the boundary.
    """
    found: dict[GroupPartition, str] = {}
    for partition in sorted(partitions):
        row, claim = boundary_offset(region, partition, boundary), region.claims[partition]
        if row is None or claim.position is None or row.inexact:
            continue
        if claim.position > region.past_skips(partition, row.offset):
            found[partition] = f"at {claim.position}, past the boundary's offset {row.offset}"
    return found
