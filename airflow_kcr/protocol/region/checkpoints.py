"""Checkpoints from their opening to their drain or abort (docs/explanation/what-if.md).

Opening freezes who must contribute and which partitions must be covered; from then on the checkpoint is complete by
both, or it is aborted and its sequence is burnt. Contribution and completion are in `completion`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Final

from airflow_kcr.protocol import values
from airflow_kcr.protocol.region import boundaries, coverage, events, requests, rows, timelines
from airflow_kcr.protocol.region.state import Region, put
from airflow_kcr.protocol.values import GroupPartition, drawn, few, format_instant, replace

_PERMITS: Final = "ask with allow_inexact for a checkpoint that is not exact"


def preempts(region: Region, request: rows.CheckpointRequest) -> bool:
    """Whether a queued request aborts the open checkpoint.

    A person's does, while that one only approaches its boundary.

    A person's bounded drain does not abort another's, or the two would abort each other for ever.
    """
    checkpoint = region.checkpoint
    return (
        checkpoint is not None
        and checkpoint.state is rows.CheckpointState.APPROACHING
        and request.purpose in requests.BY_PERSON
        and (request.boundary is None or checkpoint.purpose not in requests.BY_PERSON)
    )


def may_open(region: Region, now: datetime) -> bool:
    """Whether a checkpoint may be opened at all.

    Running, none open, none unpublished on the current timeline, all partitions covered.

    One that the brokers have and no member has ever owned is waited for, for a bounded time. A region that is to warn
    of foreign consumers continues without what they have: its checkpoints hold that where it stands.
    """
    left = coverage.left_out(region, now)
    return (
        region.state is rows.RegionState.RUNNING
        and region.open_checkpoint is None
        and not timelines.unpublished(region)
        and coverage.missing(region, now).keys() <= left
        and not coverage.awaited(region, now).keys() - left
        and bool(region.universe() - left)
    )


def open_next(region: Region, now: datetime) -> Region:
    """Return the region with the next queued request's checkpoint opened, where that is possible now.

    A checkpoint that approaches a boundary gives way to a person's request, which is served first.
    """
    waiting = requests.queue(region)
    if waiting and preempts(region, waiting[0]):
        region = abort(region, now, f"it gave way to a {waiting[0].purpose}")
    for request in requests.queue(region):
        if not may_open(region, now):
            break
        if _may_approach(region, request) and _is_whole(region, now, request):
            region = _open(region, now, request)
    return region


def _may_approach(region: Region, request: rows.CheckpointRequest) -> bool:
    """Whether members may process up to the request's boundary: not in a paused region, unless a person asks for it.

    Otherwise a request that gave way to a pause would be opened again at once, and the pause mean nothing (C54).
    """
    if request.boundary is None or region.desired_state is values.DesiredState.RUNNING:
        return True
    return request.purpose in requests.BY_PERSON or not boundaries.unreached(
        region, request.boundary, region.universe()
    )


def _is_whole(region: Region, now: datetime, request: rows.CheckpointRequest) -> bool:
    """Whether the checkpoint of a request could be exact.

    At a boundary it waits for what foreign consumers have, or is to be inexact.
    """
    return request.boundary is None or request.allow_inexact or not coverage.left_out(region, now)


def _open(region: Region, now: datetime, request: rows.CheckpointRequest) -> Region:
    partitions = region.universe() - coverage.left_out(region, now)
    covering = None if request.boundary is None else timelines.covering(region, request.boundary)
    if covering is not None:
        return requests.answered(region, now, request, covering.sequence)
    if request.boundary is not None:
        past = boundaries.overshoot(region, request.boundary, partitions) | unread(region, partitions)
        if past and not request.allow_inexact:
            where, why = next(iter(past.items()))
            sentence = f"{where} is {why}; {_PERMITS}"
            return requests.end_request(region, now, request, rows.RequestState.REFUSED, sentence)
    participants = {m: region.members[m].incarnation for m in region.live_members(now)}
    region, _ = opened(region, now, request, participants, partitions)
    if request.boundary is not None and region.next_boundary is not None and request.boundary > region.next_boundary:
        region = boundaries.with_next_boundary(region, now, request.boundary, "a later boundary was asked for")
    return advance(region, now)


def opened(
    region: Region,
    now: datetime,
    request: rows.CheckpointRequest,
    participants: Mapping[values.MemberId, values.Incarnation],
    partitions: frozenset[GroupPartition],
) -> tuple[Region, rows.Checkpoint]:
    """Return the region with a request's checkpoint open, and it: who must contribute, and what to, is frozen."""
    timelines.require_numbers_left(region)
    sequence = region.next_sequence
    checkpoint = drawn(
        rows.Checkpoint,
        request,
        sequence=sequence,
        timeline=region.timeline,
        epoch=region.epoch,
        state=rows.CheckpointState.APPROACHING,
        participants=participants,
        opened_at=now,
    )
    region = replace(
        region,
        next_sequence=values.CheckpointNumber(sequence + 1),
        open_checkpoint=sequence,
        frozen=put(region.frozen, {sequence: partitions}),
    )
    region = region.with_checkpoint(checkpoint).with_request(
        replace(request, state=rows.RequestState.OPEN, sequence=sequence)
    )
    body = drawn(events.CheckpointOpened, checkpoint, partitions=tuple(sorted(partitions)))
    return region.record(now, body), checkpoint


def unread(region: Region, partitions: Collection[GroupPartition]) -> dict[GroupPartition, str]:
    """Return why a checkpoint of these partitions holds nothing of others that the brokers have, by partition."""
    return {
        p: f"without an owner since {format_instant(since)}; nothing of it is in this checkpoint"
        for p, since in coverage.unowned(region).items()
        if p not in partitions
    }


def advance(region: Region, now: datetime) -> Region:
    """Return the region with its approaching checkpoint draining, if every frozen partition is where it will be.

    Without a boundary that is at once. A partition found to be past the boundary refuses the request, unless an inexact
    checkpoint was allowed.
    """
    checkpoint = region.checkpoint
    if checkpoint is None or checkpoint.state is not rows.CheckpointState.APPROACHING:
        return region
    if checkpoint.boundary is not None:
        past = boundaries.overshoot(region, checkpoint.boundary, region.frozen[checkpoint.sequence])
        if past and not region.requests[checkpoint.request_id].allow_inexact:
            where, why = next(iter(past.items()))
            region = abort(region, now, f"{where} is {why}")
            refused, sentence = region.requests[checkpoint.request_id], f"{where} is {why}; {_PERMITS}"
            return requests.end_request(region, now, refused, rows.RequestState.REFUSED, sentence)
        if boundaries.unreached(region, checkpoint.boundary, region.frozen[checkpoint.sequence]):
            return region
    draining = replace(
        checkpoint, state=rows.CheckpointState.DRAINING, drain_deadline=now + region.rules.timeouts.drain
    )
    region = region.with_checkpoint(draining)
    return region.moved_to(now, rows.RegionState.DRAINING, f"checkpoint {checkpoint.sequence} drains")


def awaited(region: Region) -> dict[values.MemberId, values.Incarnation]:
    """Return the participants of the open checkpoint that have not contributed, in order."""
    checkpoint = region.checkpoint
    participants = {} if checkpoint is None else checkpoint.participants
    there = {m for sequence, m in region.contributions if sequence == region.open_checkpoint}
    return {m: incarnation for m, incarnation in sorted(participants.items()) if m not in there}


def late(region: Region) -> tuple[str, ...]:
    """Return, by name, the participants of the open checkpoint that have not contributed, and some of what they own."""
    owned: dict[values.MemberId, list[values.TopicPartition]] = {m: [] for m in awaited(region)}
    for partition, claim in sorted(region.claims.items()):
        if claim.owner in owned:
            owned[claim.owner].append(partition.topic_partition)
    return tuple(f"{member} ({few(partitions) or 'no partition'})" for member, partitions in owned.items())


def abort(region: Region, now: datetime, reason: str) -> Region:
    """Return the region without its open checkpoint, whose request is queued again.

    What stopped it was not the checkpoint's fault.

    The region is running again afterwards; a caller that resets moves it on. A person's reset does not survive the
    abort of its own drain: its request fails, naming who was late, and nothing else has changed (scenario C55).
    """
    checkpoint = region.checkpoint
    if checkpoint is None:
        return region
    names = late(region)
    region = _closed(region, now, checkpoint, reason, names)
    if checkpoint.purpose is rows.CheckpointPurpose.RESET:
        return _fail_person_reset(region, now, checkpoint, reason, names)
    return requests.requeued(region, checkpoint.request_id)


def _closed(region: Region, now: datetime, checkpoint: rows.Checkpoint, reason: str, names: tuple[str, ...]) -> Region:
    aborted = replace(
        checkpoint,
        state=rows.CheckpointState.ABORTED,
        finished_at=now,
        abort_reason=reason,
        drain_deadline=None,
    )
    region = replace(region.with_checkpoint(aborted), open_checkpoint=None, retire_at=now)
    region = region.record(now, events.CheckpointAborted(sequence=checkpoint.sequence, reason=reason, late=names))
    if region.state is not rows.RegionState.DRAINING:
        return region
    return region.moved_to(now, rows.RegionState.RUNNING, f"checkpoint {checkpoint.sequence} was aborted")


def _fail_person_reset(
    region: Region, now: datetime, checkpoint: rows.Checkpoint, reason: str, names: tuple[str, ...]
) -> Region:
    why = f"its drain was aborted: {reason}" + (f"; late: {'; '.join(names)}" if names else "")
    region = requests.end_request(
        region, now, region.requests[checkpoint.request_id], rows.RequestState.SUPERSEDED, why
    )
    reset = region.person_resets.get(checkpoint.request_id)
    if reset is None or reset.state is not rows.PersonResetState.DRAINING:
        return region
    return region.with_person_reset_failed(now, reset, why)


def lapsed(region: Region, now: datetime) -> values.MemberId | None:
    """Return a participant whose lease ended before its contribution: its checkpoint can't complete any more."""
    for member, incarnation in awaited(region).items():
        if not region.is_live(member, now) or region.members[member].incarnation != incarnation:
            return member
    return None


def leaves_work(region: Region, member: values.MemberId) -> bool:
    """Whether a partition of the member can't go on from where it stands: then an abort is a reset."""
    return any(c.owner == member and region.is_unsettled(p, c) for p, c in region.claims.items())


def overdue(region: Region, now: datetime) -> Region:
    """Return the region with its open checkpoint aborted where its drain deadline has passed.

    The requester is told which members were late, and may request it again; the region's own checkpoints, a run's and a
    stop are tried again by themselves.
    """
    checkpoint = region.checkpoint
    if checkpoint is None or checkpoint.drain_deadline is None or checkpoint.drain_deadline > now:
        return region
    reason = f"the drain deadline of {region.rules.timeouts.drain} passed"
    if region.requests[checkpoint.request_id].is_of_run or checkpoint.purpose not in {
        rows.CheckpointPurpose.REQUEST,
        rows.CheckpointPurpose.DRAIN,
    }:
        return abort(region, now, reason)
    names = late(region)
    region = _closed(region, now, checkpoint, reason, names)
    why = f"{reason}; late: {'; '.join(names) or 'none'}"
    return requests.end_request(region, now, region.requests[checkpoint.request_id], rows.RequestState.ABORTED, why)
