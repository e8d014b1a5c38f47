"""A cut from its opening to its abort: roster, approach, drain (docs/explanation/what-if.md).

Opening freezes who must contribute and which partitions must be covered; from then on the cut is complete by both, or
it is aborted and its sequence is burnt. Contribution and completion are in `completion`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime

from airflow_kcr.protocol.instants import format_instant
from airflow_kcr.protocol.region import bounds, coverage, events, hold, noted, path, requests
from airflow_kcr.protocol.region.rows import (
    Checkpoint,
    CheckpointState,
    CutPhase,
    CutPurpose,
    CutRequest,
    PersonResetState,
    RegionState,
    RequestState,
    Wanted,
)
from airflow_kcr.protocol.region.state import (
    Region,
    is_live,
    live_members,
    moved_to,
    put,
    record,
    universe,
    with_checkpoint,
    with_request,
)
from airflow_kcr.protocol.values import GroupPartition, MemberId, Sequence


def may_open(region: Region, now: datetime) -> bool:
    """Whether a cut may be opened at all: running, none open, none unpublished on the path, all partitions covered.

    One that the brokers have and no member has ever owned is waited for, for a bounded time. A region that is to warn
    of outsiders goes on without what they have: its cuts hold that where it stands.
    """
    left = coverage.left_out(region, now)
    return (
        region.state is RegionState.RUNNING
        and region.open_cut is None
        and not path.unpublished(region)
        and all(gap.partition in left for gap in coverage.missing(region, now))
        and not coverage.awaited(region, now).keys() - left
        and bool(universe(region) - left)
    )


def open_next(region: Region, now: datetime) -> Region:
    """Return the region with the next queued request's cut opened, where that is possible now.

    A cut that approaches a bound gives way to a person's request, which is served first. A region that holds opens
    none but a stop's.
    """
    queue = [r for r in requests.queue(region) if hold.lets_open(region, r)]
    if queue and requests.preempts(region, queue[0]):
        region = abort(region, now, f"it gave way to a {queue[0].purpose}")
    for request in requests.queue(region):
        if not may_open(region, now):
            break
        if hold.lets_open(region, request) and _may_approach(region, request) and _is_whole(region, now, request):
            region = _open(region, now, request)
    return region


def _may_approach(region: Region, request: CutRequest) -> bool:
    """Whether members may process up to the request's bound: not in a paused region, unless a person asks for it.

    Otherwise a request that gave way to a pause would be opened again at once, and the pause mean nothing (C54).
    """
    if request.bound is None or request.purpose in requests.BY_PERSON or region.wanted is Wanted.RUNNING:
        return True
    bound = request.bound
    return all(bounds.is_reached(region.claims[p], bounds.bound_offset(region, p, bound)) for p in universe(region))


def _is_whole(region: Region, now: datetime, request: CutRequest) -> bool:
    """Whether the cut of a request could be exact: at a bound it waits for what outsiders have, or is to be inexact."""
    return request.bound is None or request.allow_inexact or not coverage.left_out(region, now)


def _open(region: Region, now: datetime, request: CutRequest) -> Region:
    partitions = universe(region) - coverage.left_out(region, now)
    covering = None if request.bound is None else path.covering(region, request.bound)
    if covering is not None:
        return requests.answered(region, now, request, covering.sequence)
    if request.bound is not None:
        past = bounds.overshoot(region, request.bound, partitions) | unread(region, partitions)
        if past and not request.allow_inexact:
            where, why = next(iter(past.items()))
            sentence = f"{where} is {why}; ask with allow_inexact for a cut that is not exact"
            return requests.ended(region, now, request, RequestState.REFUSED, sentence)
    noted.require_numbers_left(region)
    sequence = region.next_sequence
    checkpoint = Checkpoint(
        sequence=sequence,
        lineage=region.lineage,
        epoch=region.epoch,
        state=CheckpointState.OPEN,
        phase=CutPhase.APPROACHING,
        purpose=request.purpose,
        nonce=request.nonce,
        bound=request.bound,
        roster={m: region.members[m].incarnation for m in live_members(region, now)},
        opened_at=now,
    )
    region = replace(
        region,
        next_sequence=Sequence(sequence + 1),
        open_cut=sequence,
        frozen=put(region.frozen, {sequence: partitions}),
    )
    region = with_request(
        with_checkpoint(region, checkpoint), replace(request, state=RequestState.OPEN, sequence=sequence)
    )
    body = events.CutOpened(
        sequence=sequence,
        lineage=region.lineage,
        nonce=request.nonce,
        purpose=request.purpose,
        bound=request.bound,
        roster=checkpoint.roster,
        partitions=tuple(sorted(partitions)),
    )
    region = record(region, now, body)
    if request.bound is not None and region.next_bound is not None and request.bound > region.next_bound:
        region = bounds.with_next_bound(region, now, request.bound, "a later bound was asked for")
    return advance(region, now)


def unread(region: Region, partitions: Collection[GroupPartition]) -> dict[GroupPartition, str]:
    """Return why a cut of these partitions holds nothing of others that the brokers have, by partition."""
    return {
        p: f"without an owner since {format_instant(since)}; nothing of it is in this cut"
        for p, since in coverage.unowned(region).items()
        if p not in partitions
    }


def advance(region: Region, now: datetime) -> Region:
    """Return the region with its approaching cut draining, if every frozen partition is where the cut will be.

    Without a bound that is at once. A partition found to be past the bound refuses the request, unless an inexact cut
    was allowed.
    """
    cut = region.cut
    if cut is None or cut.phase is not CutPhase.APPROACHING:
        return region
    if cut.bound is not None:
        past = bounds.overshoot(region, cut.bound, region.frozen[cut.sequence])
        if past and not region.requests[cut.nonce].allow_inexact:
            where, why = next(iter(past.items()))
            region = abort(region, now, f"{where} is {why}")
            refused = region.requests[cut.nonce]
            return requests.ended(
                region, now, refused, RequestState.REFUSED, f"{where} is {why}; allow_inexact would permit the cut"
            )
        for partition in region.frozen[cut.sequence]:
            if not bounds.is_reached(region.claims[partition], bounds.bound_offset(region, partition, cut.bound)):
                return region
    draining = replace(cut, phase=CutPhase.DRAINING, drain_deadline=now + region.rules.timeouts.drain)
    region = record(with_checkpoint(region, draining), now, events.DrainBegun(sequence=cut.sequence))
    return moved_to(region, now, RegionState.DRAINING, f"cut {cut.sequence} drains")


def late(region: Region) -> tuple[str, ...]:
    """Return, by name, the roster members of the open cut that have not contributed, and their partitions."""
    cut = region.cut
    if cut is None:
        return ()
    waiting = [m for m in sorted(cut.roster) if (cut.sequence, m) not in region.contributions]
    held = {m: [str(p) for p, c in sorted(region.claims.items()) if c.owner == m] for m in waiting}
    return tuple(f"{m} ({', '.join(held[m]) or 'no partition'})" for m in waiting)


def abort(region: Region, now: datetime, reason: str) -> Region:
    """Return the region without its open cut, whose request is queued again: what stopped it was not the cut's fault.

    The region is running again afterwards; a caller that resets moves it on. A person's reset does not survive the
    abort of its own drain: its request fails, naming who was late, and nothing else has changed (scenario C55).
    """
    cut = region.cut
    if cut is None:
        return region
    names = late(region)
    region = _closed(region, now, cut, reason, names)
    if cut.purpose is CutPurpose.RESET:
        return _fail_person_reset(region, now, cut, reason, names)
    return requests.requeued(region, cut.nonce)


def _closed(region: Region, now: datetime, cut: Checkpoint, reason: str, names: tuple[str, ...]) -> Region:
    aborted = replace(
        cut, state=CheckpointState.ABORTED, phase=None, ended_at=now, abort_reason=reason, drain_deadline=None
    )
    region = replace(with_checkpoint(region, aborted), open_cut=None, retire_at=now)
    region = record(region, now, events.CutAborted(sequence=cut.sequence, reason=reason, late=names))
    if region.state is not RegionState.DRAINING:
        return region
    return moved_to(region, now, RegionState.RUNNING, f"cut {cut.sequence} was aborted")


def _fail_person_reset(region: Region, now: datetime, cut: Checkpoint, reason: str, names: tuple[str, ...]) -> Region:
    why = f"its drain was aborted: {reason}" + (f"; late: {'; '.join(names)}" if names else "")
    region = requests.ended(region, now, region.requests[cut.nonce], RequestState.SUPERSEDED, why)
    reset = region.person_resets.get(cut.nonce)
    if reset is None or reset.state is not PersonResetState.DRAINING:
        return region
    failed = replace(reset, state=PersonResetState.FAILED, failure=why, ended_at=now)
    region = replace(region, person_resets=put(region.person_resets, {reset.nonce: failed}))
    return record(region, now, events.PersonResetFailed(nonce=reset.nonce, why=why))


def lapsed(region: Region, now: datetime) -> MemberId | None:
    """Return a roster member whose lease ended before its contribution: its cut can't complete any more."""
    cut = region.cut
    if cut is None:
        return None
    for member, incarnation in sorted(cut.roster.items()):
        if (cut.sequence, member) in region.contributions:
            continue
        if not is_live(region, member, now) or region.members[member].incarnation != incarnation:
            return member
    return None


def has_begun(region: Region, member: MemberId) -> bool:
    """Whether anything was begun since the base on a partition that the member owns: then an abort is a reset."""
    return any(c.owner == member and c.is_begun for c in region.claims.values())


def overdue(region: Region, now: datetime) -> Region:
    """Return the region with its open cut aborted where its drain deadline has passed.

    Whoever asked is told, with the names of those who were late, and may ask again; the region's own cuts and a stop
    are tried again by themselves.
    """
    cut = region.cut
    if cut is None or cut.drain_deadline is None or cut.drain_deadline > now:
        return region
    reason = f"the drain deadline of {region.rules.timeouts.drain} passed"
    if cut.purpose not in {CutPurpose.REQUEST, CutPurpose.DRAIN}:
        return abort(region, now, reason)
    names = late(region)
    region = _closed(region, now, cut, reason, names)
    why = f"{reason}; late: {'; '.join(names) or 'nobody'}"
    return requests.ended(region, now, region.requests[cut.nonce], RequestState.ABORTED, why)
