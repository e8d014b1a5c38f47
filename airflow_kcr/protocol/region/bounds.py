"""Bounds: the instants that cuts are aligned to, and where they fall in each partition (docs/explanation/what-if.md).

Nobody may process across the next bound, so that a cut made late still holds exactly the records of its interval. Where
a bound falls is asked of the broker once per partition, by the first plan that finds it, and never again: the order of
the two questions (first the end, then the time index) is what makes the answer safe (scenarios C5, C26).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from airflow_kcr.protocol.observations import LogBounds, TimeAnswer
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region import events, path
from airflow_kcr.protocol.region.rows import BoundOffset, Claim, RegionState
from airflow_kcr.protocol.region.state import Region, past_skips, put, record
from airflow_kcr.protocol.rules import CutMode
from airflow_kcr.protocol.values import GroupPartition, Offset, Sequence


def locate(
    *,
    bound: datetime,
    end_before: LogBounds,
    answer: TimeAnswer,
    base: Offset,
    now: datetime,
    grace: timedelta,
    high_before: Offset | None = None,
) -> BoundOffset | None:
    """Return where a bound falls in one partition, or None while that can't be known yet.

    Args:
        bound: the instant.
        end_before: the log's bounds, read *before* the time index was asked.
        answer: the broker's "first record at or after the bound", read_committed.
        base: the partition's offset in the base.
        now: the store's clock.
        grace: how long after the bound its records may still arrive, and how far the brokers' clocks may be off.
        high_before: the log's high watermark, read before `end_before`; None: it was not.

    An answer stamped beyond now + grace (a record from the future, C27) or below the base is no answer. Without one the
    end as read before the look-up counts, but only once bound + grace has passed, and never below the base. Records
    that a transaction, still open, hides behind that end may be of before the bound, so the cut says that it is not
    exact (C4); the high watermark is the older of the two, so that a log which only grew is not taken for one.
    """
    is_from_future = answer.found is not None and answer.found > now + grace
    is_below_base = answer.offset is not None and answer.offset < base
    if answer.offset is not None and not is_from_future and not is_below_base:
        return BoundOffset(offset=answer.offset, leader_epoch=end_before.leader_epoch)
    if now < bound + grace:
        return None
    why = ""
    if is_from_future:
        why = f"the record at {answer.offset} is stamped {answer.found}, in the future; the log's end counts instead"
    elif is_below_base:
        why = f"the first record at or after the bound, {answer.offset}, lies below the base's offset {base}"
    elif high_before is not None and high_before > end_before.end:
        why = (
            f"a transaction that is open hides the records from {end_before.end} on; those of before the bound come in "
            "a later cut"
        )
    return BoundOffset(offset=Offset(max(end_before.end, base)), inexact=why, leader_epoch=end_before.leader_epoch)


def next_bound_after(region: Region, instant: datetime) -> datetime | None:
    """Return the first scheduled instant after `instant`; None where the region has no schedule."""
    schedule = region.rules.cut.schedule
    return None if schedule is None else schedule.after(instant)


def with_next_bound(region: Region, now: datetime, bound: datetime | None, why: str) -> Region:
    """Return the region with its next bound set; the single writer of `next_bound`."""
    if bound == region.next_bound:
        return region
    region = record(replace(region, next_bound=bound), now, events.NextBoundChanged(bound=bound, why=why))
    return region if bound is None else recalled(region, bound)


def recalled(region: Region, bound: datetime) -> Region:
    """Return the region with what was found of a bound before: after a reset it is come to again."""
    if bound == region.next_bound or any(key[2] == bound for key in region.bound_offsets):
        return region
    return replace(region, bound_offsets=put(region.bound_offsets, region.archive.bound_offsets(bound)))


def after_completion(region: Region, now: datetime, bound: datetime | None) -> Region:
    """Return the region with the bound that follows a completed cut: an unbounded cut leaves it as it is."""
    if bound is None:
        return region
    return with_next_bound(region, now, next_bound_after(region, bound), f"after the cut of {bound.isoformat()}")


def after_reset(region: Region, now: datetime, checkpoint: Sequence | None) -> Region:
    """Return the region with the bound that follows a new lineage.

    Args:
        region: the region, its new lineage open.
        now: the store's clock.
        checkpoint: the checkpoint that was reset to; None for any other seek map.
    """
    newest = None if checkpoint is None else path.newest_bounded(region, checkpoint)
    bound = None if newest is None else newest.bound
    start = now if bound is None else bound
    why = "first instant after the reset" if bound is None else f"after the newest bound on the path, {bound}"
    return with_next_bound(region, now, next_bound_after(region, start), why)


def past_answered(region: Region, now: datetime) -> Region:
    """Return the running region with its next bound beyond those that a cut on the path has answered already.

    Checkpoints with equal offsets stay on the path together. A reset to one of them sets the bound after its own, and
    that one's cut may have stayed as well: it answers every request for that bound, so none would open ever again,
    and nobody could cross. Which cuts stay is known when the reset is done, hence not before the region runs.
    """
    bound = region.next_bound
    if bound is None or bound > now or region.state is not RegionState.RUNNING:
        return region
    newest = path.newest_bounded(region)
    if newest is None or newest.bound is None or newest.bound < bound:
        return region
    why = f"checkpoint {newest.sequence} answers it, which is of {newest.bound.isoformat()}"
    return with_next_bound(region, now, next_bound_after(region, newest.bound), why)


def is_automatic(region: Region) -> bool:
    """Whether the region cuts itself at its bounds."""
    cut = region.rules.cut
    return cut.schedule is not None and cut.mode is CutMode.AUTO


def passed(region: Region, now: datetime) -> datetime | None:
    """Return the bound that the region should cut itself at now, or None.

    With `catchup` every missed bound in its turn; without, the latest that has passed (scenario C40). While an earlier
    cut is not published, the next bound waits, and members hold there (C56).
    """
    cut = region.rules.cut
    if cut.schedule is None or cut.mode is not CutMode.AUTO or region.next_bound is None or region.next_bound > now:
        return None
    if cut.catchup or path.unpublished(region):
        return region.next_bound
    return max(region.next_bound, cut.schedule.at_or_before(now))


def overdue(region: Region, now: datetime) -> timedelta | None:
    """Return how long the next bound has passed with no cut made for it; None: not at all, or within the grace.

    A stopped region makes no cuts, so none is overdue there.
    """
    bound = region.next_bound
    if bound is None or region.state is RegionState.STOPPED or now - bound <= region.rules.cut.grace:
        return None
    return now - bound


def held_until(region: Region) -> datetime | None:
    """Return when a hold at the next bound has lasted a whole period; None where no run is waited for.

    A region that cuts itself waits for nobody, and a hold that was told of is not told of again.
    """
    cut, bound = region.rules.cut, region.next_bound
    if cut.schedule is None or cut.mode is not CutMode.DAG_RUN or bound is None or bound == region.held_bound:
        return None
    return cut.schedule.after(bound)


def held(region: Region, now: datetime) -> Region:
    """Return the region with a hold longer than one period told, once for each bound."""
    until, bound = held_until(region), region.next_bound
    if until is None or bound is None or until > now or region.state is not RegionState.RUNNING:
        return region
    return record(replace(region, held_bound=bound), now, events.BoundHeld(bound=bound))


def limit(region: Region) -> datetime | None:
    """Return the bound that no batch may cross now: the open cut's, else the next one."""
    cut = region.cut
    return cut.bound if cut is not None and cut.bound is not None else region.next_bound


def bound_offset(region: Region, partition: GroupPartition, bound: datetime) -> BoundOffset | None:
    """Return where `bound` falls in `partition`, if that was found for its present topic id."""
    claim = region.claims.get(partition)
    return None if claim is None else region.bound_offsets.get((partition, claim.topic_id, bound))


def store(region: Region, now: datetime, bound: datetime, found: Mapping[GroupPartition, BoundOffset]) -> Region:
    """Return the region with these bound offsets stored; those already there stay (first writer wins)."""
    fresh = {
        (p, region.claims[p].topic_id, bound): row
        for p, row in found.items()
        if p in region.claims and (p, region.claims[p].topic_id, bound) not in region.bound_offsets
    }
    if not fresh:
        return region
    stored = replace(region, bound_offsets=put(region.bound_offsets, fresh))
    body = events.BoundStored(
        bound=bound,
        offsets=OffsetMap({p: row.offset for (p, _, _), row in fresh.items()}),
        inexact={p: row.inexact for (p, _, _), row in fresh.items() if row.inexact},
    )
    return record(stored, now, body)


def is_reached(claim: Claim, bound: BoundOffset | None) -> bool:
    """Whether a partition is where the bound's cut will be, or already beyond it."""
    return bound is not None and claim.position is not None and claim.position >= bound.offset


def overshoot(region: Region, bound: datetime, partitions: frozenset[GroupPartition]) -> dict[GroupPartition, str]:
    """Return the partitions that are already past a bound, with a sentence each: their cut can't be exact.

    A position that passed an ignored answer (a record from the future) is not past the bound.
    """
    found: dict[GroupPartition, str] = {}
    for partition in sorted(partitions):
        row, claim = bound_offset(region, partition, bound), region.claims[partition]
        if row is None or claim.position is None or row.inexact:
            continue
        if claim.position > past_skips(region, partition, row.offset):
            found[partition] = f"at {claim.position}, past the bound's offset {row.offset}"
    return found
