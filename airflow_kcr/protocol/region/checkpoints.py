"""Checkpoints from their request to their opening or abort (docs/explanation/what-if.md).

A request id names a request, not a sequence. It answers with its open or complete checkpoint; after an abort the next
ask opens a new one; after retirement an old DAG run still gets its old answer; after a rewind that undid the
checkpoint, it asks again (scenarios C15, C28, C53).

Opening freezes who must contribute and which partitions must be covered; from then on the checkpoint is complete by
both, or it is aborted and its sequence is burnt. Contribution and completion are in `completion`.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Final

from airflow_kcr.errors import CheckpointRefused, RegionInState
from airflow_kcr.protocol.region import archive, boundaries, coverage, events, timelines
from airflow_kcr.protocol.region.archive import Named
from airflow_kcr.protocol.region.commands import RequestCheckpoint
from airflow_kcr.protocol.region.rows import (
    Checkpoint,
    CheckpointPhase,
    CheckpointPurpose,
    CheckpointRequest,
    CheckpointState,
    DesiredState,
    PersonResetState,
    RegionState,
    RequestState,
)
from airflow_kcr.protocol.region.state import (
    Region,
    checkpoint_of,
    is_live,
    is_unsettled,
    live_members,
    moved_to,
    named_by,
    put,
    record,
    request_of,
    universe,
    with_checkpoint,
    with_request,
)
from airflow_kcr.protocol.values import (
    CheckpointNumber,
    GroupPartition,
    MemberId,
    RequestId,
    TopicPartition,
    few,
    format_instant,
    replace,
)

# Requests

BY_PERSON: Final = frozenset({CheckpointPurpose.DRAIN, CheckpointPurpose.STOP, CheckpointPurpose.RESET})
"""Purposes that don't wait for a boundary: they abort a checkpoint that is still approaching one (scenario C54)."""


OWN: Final = frozenset({CheckpointPurpose.SCHEDULE, CheckpointPurpose.STOP})
"""Purposes of which the region asks by itself. A refusal would reach no requester, and end every later decision too."""

BY_COUNT: Final = "records:"
OWN_REQUEST_IDS: Final = ("boundary:", BY_COUNT, "stop:")
"""The prefixes of the region's own request ids; other requests may not use them."""


def valid_answer(region: Region, request: CheckpointRequest) -> CheckpointNumber | None:
    """Return the checkpoint that answers a request, if one on the current timeline does."""
    if request.state is not RequestState.ANSWERED or request.sequence is None:
        return None
    checkpoint = checkpoint_of(region, request.sequence)
    return request.sequence if checkpoint is not None and checkpoint.is_current else None


def ask(region: Region, now: datetime, command: RequestCheckpoint) -> Region:
    """Return the region with the request queued, or as it was where the request id is already being served.

    Raises:
        RegionInState: the region is halted or stopped; nothing can be checkpointed.
        CheckpointRefused: the request id is another request's, a reset's or of the region's own kind, or a person
            drains a region without a live member.
    """
    request_id, purpose, boundary = command.request_id, command.purpose, command.boundary
    if purpose in OWN:
        known = request_of(region, request_id)
    else:
        named = named_by(region, request_id)
        _require_free(request_id, named, purpose, boundary)
        known = named.request
    if known is not None and _is_served(region, known):
        return region
    if region.state in {RegionState.HALTED, RegionState.STOPPED}:
        reason = f": {region.halt.text}" if region.halt else ""
        raise RegionInState(f"region {region.name} is {region.state}{reason}; resume it before asking for a checkpoint")
    if purpose is CheckpointPurpose.DRAIN and not live_members(region, now):
        raise CheckpointRefused(
            f"region {region.name} has no live member, so there is nothing to drain: start its members, or stop it, "
            "which needs none"
        )
    body = events.CheckpointRequested(
        request_id=request_id, purpose=purpose, boundary=boundary, requester=command.requester
    )
    asked = record(region, now, body)
    request = CheckpointRequest(
        request_id=request_id,
        purpose=purpose,
        state=RequestState.QUEUED,
        requested_at=now,
        order=asked.counter,
        boundary=boundary,
        allow_inexact=command.allow_inexact,
        then=command.then,
        requester=command.requester,
    )
    asked = with_request(asked, request)
    if boundary is None:
        return asked
    asked = boundaries.recalled(asked, boundary)
    covering = timelines.covering(asked, boundary)
    return asked if covering is None else answered(asked, now, request, covering.sequence)


def asked(region: Region, now: datetime, command: RequestCheckpoint) -> CheckpointRequest:
    """Return where a request that was asked for stands.

    Raises:
        RuntimeError: it was not asked for.
    """
    request = request_of(region, command.request_id)
    if request is None:
        raise RuntimeError(f"region {region.name} has no request {command.request_id}, for which it was asked")
    return request


def _is_served(region: Region, request: CheckpointRequest) -> bool:
    return request.state in archive.WAITING or valid_answer(region, request) is not None


def _require_free(request_id: RequestId, named: Named, purpose: CheckpointPurpose, boundary: datetime | None) -> None:
    if request_id.startswith(OWN_REQUEST_IDS):
        raise CheckpointRefused(
            f"request id {request_id}: those that begin with {', '.join(OWN_REQUEST_IDS)} are the region's own; "
            "take another"
        )
    if purpose is not CheckpointPurpose.RESET and named.reset is not None:
        raise CheckpointRefused(f"request id {request_id} names a reset; take another for the checkpoint")
    known = named.request
    if known is not None and (known.purpose, known.boundary) != (purpose, boundary):
        raise CheckpointRefused(
            f"request id {request_id} names a request for another checkpoint ({known.purpose}, boundary "
            f"{known.boundary})"
        )


def answered(region: Region, now: datetime, request: CheckpointRequest, sequence: CheckpointNumber) -> Region:
    """Return the region with a request answered by a complete checkpoint, and the desired state that it asked for."""
    row = replace(request, state=RequestState.ANSWERED, sequence=sequence, answered_at=now)
    region = record(
        with_request(region, row),
        now,
        events.CheckpointRequestAnswered(request_id=request.request_id, sequence=sequence),
    )
    if request.then is None or request.then is region.desired_state:
        return region
    body = events.DesiredStateChanged(desired_state=request.then, requester=request.requester)
    return record(replace(region, desired_state=request.then), now, body)


def end_request(region: Region, now: datetime, request: CheckpointRequest, state: RequestState, why: str) -> Region:
    """Return the region with a request refused or superseded; it has no checkpoint."""
    row = replace(request, state=state, answered_at=now, refusal=why)
    return record(with_request(region, row), now, events.CheckpointRequestEnded(request_id=request.request_id, why=why))


def requeued(region: Region, request_id: RequestId) -> Region:
    """Return the region with an open request queued again, its checkpoint having been aborted."""
    request = region.requests[request_id]
    if request.state is not RequestState.OPEN:
        return region
    return with_request(region, replace(request, state=RequestState.QUEUED))


def queue(region: Region) -> tuple[CheckpointRequest, ...]:
    """Return the queued requests in the order in which they are served.

    What a person asked for comes first, then requests without a boundary, then boundaries in the order of time,
    whatever the order of asking: a later boundary first would leave nothing to checkpoint for the earlier one.
    """
    queued = [r for r in region.requests.values() if r.state is RequestState.QUEUED]

    def rank(request: CheckpointRequest) -> tuple[bool, bool, datetime, int]:
        return (
            request.purpose not in BY_PERSON,
            request.boundary is not None,
            request.boundary or request.requested_at,
            request.order,
        )

    return tuple(sorted(queued, key=rank))


def preempts(region: Region, request: CheckpointRequest) -> bool:
    """Whether a queued request aborts the open checkpoint.

    A person's does, while that one only approaches its boundary.

    A person's bounded drain does not abort another's, or the two would abort each other for ever.
    """
    checkpoint = region.checkpoint
    return (
        checkpoint is not None
        and checkpoint.phase is CheckpointPhase.APPROACHING
        and request.purpose in BY_PERSON
        and (request.boundary is None or checkpoint.purpose not in BY_PERSON)
    )


def release(region: Region, now: datetime, checkpoint: Checkpoint) -> Region:
    """Return the region with every request answered that a completed checkpoint answers.

    These are its own, those of earlier boundaries, and those for any moment that waited before it was opened: one
    checkpoint for each of them, back to back, would leave members no time to read.
    """
    for request in queue(region):
        if _is_answered_by(request, checkpoint):
            region = answered(region, now, request, checkpoint.sequence)
    own = region.requests[checkpoint.request_id]
    return answered(region, now, own, checkpoint.sequence) if own.state is RequestState.OPEN else region


def _is_answered_by(request: CheckpointRequest, checkpoint: Checkpoint) -> bool:
    if request.boundary is not None:
        return checkpoint.boundary is not None and request.boundary <= checkpoint.boundary
    if request.purpose in BY_PERSON or checkpoint.purpose is CheckpointPurpose.RESET:
        return False  # what a person asks for ends with its own checkpoint, and a reset may undo its own at once
    return request.requested_at < checkpoint.opened_at


def cancel(region: Region, now: datetime, why: str, *, purposes: frozenset[CheckpointPurpose]) -> Region:
    """Return the region without queued requests of these purposes: the verb behind them is gone."""
    for request in queue(region):
        if request.purpose in purposes:
            region = end_request(region, now, request, RequestState.SUPERSEDED, why)
    return region


def cancel_counted(region: Region, now: datetime, why: str) -> Region:
    """Return the region without the queued request of its own count, which isn't reached any more."""
    for request in queue(region):
        if request.request_id.startswith(BY_COUNT):
            region = cancel_one(region, now, request, why)
    return region


def cancel_one(region: Region, now: datetime, request: CheckpointRequest, why: str) -> Region:
    """Return the region without this request, if it is still queued."""
    if request.state is not RequestState.QUEUED:
        return region
    return end_request(region, now, request, RequestState.SUPERSEDED, why)


# The open checkpoint


def may_open(region: Region, now: datetime) -> bool:
    """Whether a checkpoint may be opened at all.

    Running, none open, none unpublished on the current timeline, all partitions covered.

    One that the brokers have and no member has ever owned is waited for, for a bounded time. A region that is to warn
    of foreign consumers continues without what they have: its checkpoints hold that where it stands.
    """
    left = coverage.left_out(region, now)
    return (
        region.state is RegionState.RUNNING
        and region.open_checkpoint is None
        and not timelines.unpublished(region)
        and all(gap.partition in left for gap in coverage.missing(region, now))
        and not coverage.awaited(region, now).keys() - left
        and bool(universe(region) - left)
    )


def open_next(region: Region, now: datetime) -> Region:
    """Return the region with the next queued request's checkpoint opened, where that is possible now.

    A checkpoint that approaches a boundary gives way to a person's request, which is served first.
    """
    waiting = queue(region)
    if waiting and preempts(region, waiting[0]):
        region = abort(region, now, f"it gave way to a {waiting[0].purpose}")
    for request in queue(region):
        if not may_open(region, now):
            break
        if _may_approach(region, request) and _is_whole(region, now, request):
            region = _open(region, now, request)
    return region


def _may_approach(region: Region, request: CheckpointRequest) -> bool:
    """Whether members may process up to the request's boundary: not in a paused region, unless a person asks for it.

    Otherwise a request that gave way to a pause would be opened again at once, and the pause mean nothing (C54).
    """
    if request.boundary is None or request.purpose in BY_PERSON or region.desired_state is DesiredState.RUNNING:
        return True
    boundary = request.boundary
    return all(
        boundaries.is_reached(region.claims[p], boundaries.boundary_offset(region, p, boundary))
        for p in universe(region)
    )


def _is_whole(region: Region, now: datetime, request: CheckpointRequest) -> bool:
    """Whether the checkpoint of a request could be exact.

    At a boundary it waits for what foreign consumers have, or is to be inexact.
    """
    return request.boundary is None or request.allow_inexact or not coverage.left_out(region, now)


def _open(region: Region, now: datetime, request: CheckpointRequest) -> Region:
    partitions = universe(region) - coverage.left_out(region, now)
    covering = None if request.boundary is None else timelines.covering(region, request.boundary)
    if covering is not None:
        return answered(region, now, request, covering.sequence)
    if request.boundary is not None:
        past = boundaries.overshoot(region, request.boundary, partitions) | unread(region, partitions)
        if past and not request.allow_inexact:
            where, why = next(iter(past.items()))
            sentence = f"{where} is {why}; ask with allow_inexact for a checkpoint that is not exact"
            return end_request(region, now, request, RequestState.REFUSED, sentence)
    timelines.require_numbers_left(region)
    sequence = region.next_sequence
    checkpoint = Checkpoint(
        sequence=sequence,
        timeline=region.timeline,
        epoch=region.epoch,
        state=CheckpointState.OPEN,
        phase=CheckpointPhase.APPROACHING,
        purpose=request.purpose,
        request_id=request.request_id,
        boundary=request.boundary,
        participants={m: region.members[m].incarnation for m in live_members(region, now)},
        opened_at=now,
    )
    region = replace(
        region,
        next_sequence=CheckpointNumber(sequence + 1),
        open_checkpoint=sequence,
        frozen=put(region.frozen, {sequence: partitions}),
    )
    region = with_request(
        with_checkpoint(region, checkpoint), replace(request, state=RequestState.OPEN, sequence=sequence)
    )
    body = events.CheckpointOpened(
        sequence=sequence,
        timeline=region.timeline,
        request_id=request.request_id,
        purpose=request.purpose,
        boundary=request.boundary,
        participants=checkpoint.participants,
        partitions=tuple(sorted(partitions)),
    )
    region = record(region, now, body)
    if request.boundary is not None and region.next_boundary is not None and request.boundary > region.next_boundary:
        region = boundaries.with_next_boundary(region, now, request.boundary, "a later boundary was asked for")
    return advance(region, now)


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
    if checkpoint is None or checkpoint.phase is not CheckpointPhase.APPROACHING:
        return region
    if checkpoint.boundary is not None:
        past = boundaries.overshoot(region, checkpoint.boundary, region.frozen[checkpoint.sequence])
        if past and not region.requests[checkpoint.request_id].allow_inexact:
            where, why = next(iter(past.items()))
            region = abort(region, now, f"{where} is {why}")
            refused = region.requests[checkpoint.request_id]
            return end_request(
                region,
                now,
                refused,
                RequestState.REFUSED,
                f"{where} is {why}; allow_inexact would permit the checkpoint",
            )
        for partition in region.frozen[checkpoint.sequence]:
            if not boundaries.is_reached(
                region.claims[partition], boundaries.boundary_offset(region, partition, checkpoint.boundary)
            ):
                return region
    draining = replace(checkpoint, phase=CheckpointPhase.DRAINING, drain_deadline=now + region.rules.timeouts.drain)
    region = record(with_checkpoint(region, draining), now, events.DrainBegun(sequence=checkpoint.sequence))
    return moved_to(region, now, RegionState.DRAINING, f"checkpoint {checkpoint.sequence} drains")


def late(region: Region) -> tuple[str, ...]:
    """Return, by name, the participants of the open checkpoint that have not contributed, and some of what they own."""
    checkpoint = region.checkpoint
    if checkpoint is None:
        return ()
    owned: dict[MemberId, list[TopicPartition]] = {
        m: [] for m in sorted(checkpoint.participants) if (checkpoint.sequence, m) not in region.contributions
    }
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
    if checkpoint.purpose is CheckpointPurpose.RESET:
        return _fail_person_reset(region, now, checkpoint, reason, names)
    return requeued(region, checkpoint.request_id)


def _closed(region: Region, now: datetime, checkpoint: Checkpoint, reason: str, names: tuple[str, ...]) -> Region:
    aborted = replace(
        checkpoint, state=CheckpointState.ABORTED, phase=None, finished_at=now, abort_reason=reason, drain_deadline=None
    )
    region = replace(with_checkpoint(region, aborted), open_checkpoint=None, retire_at=now)
    region = record(region, now, events.CheckpointAborted(sequence=checkpoint.sequence, reason=reason, late=names))
    if region.state is not RegionState.DRAINING:
        return region
    return moved_to(region, now, RegionState.RUNNING, f"checkpoint {checkpoint.sequence} was aborted")


def _fail_person_reset(
    region: Region, now: datetime, checkpoint: Checkpoint, reason: str, names: tuple[str, ...]
) -> Region:
    why = f"its drain was aborted: {reason}" + (f"; late: {'; '.join(names)}" if names else "")
    region = end_request(region, now, region.requests[checkpoint.request_id], RequestState.SUPERSEDED, why)
    reset = region.person_resets.get(checkpoint.request_id)
    if reset is None or reset.state is not PersonResetState.DRAINING:
        return region
    failed = replace(reset, state=PersonResetState.FAILED, failure=why, finished_at=now)
    region = replace(region, person_resets=put(region.person_resets, {reset.request_id: failed}))
    return record(region, now, events.PersonResetFailed(request_id=reset.request_id, why=why))


def lapsed(region: Region, now: datetime) -> MemberId | None:
    """Return a participant whose lease ended before its contribution: its checkpoint can't complete any more."""
    checkpoint = region.checkpoint
    if checkpoint is None:
        return None
    for member, incarnation in sorted(checkpoint.participants.items()):
        if (checkpoint.sequence, member) in region.contributions:
            continue
        if not is_live(region, member, now) or region.members[member].incarnation != incarnation:
            return member
    return None


def leaves_work(region: Region, member: MemberId) -> bool:
    """Whether a partition of the member can't go on from where it stands: then an abort is a reset."""
    return any(c.owner == member and is_unsettled(region, p, c) for p, c in region.claims.items())


def overdue(region: Region, now: datetime) -> Region:
    """Return the region with its open checkpoint aborted where its drain deadline has passed.

    The requester is told which members were late, and may request it again; the region's own checkpoints and a stop are
    tried again by themselves.
    """
    checkpoint = region.checkpoint
    if checkpoint is None or checkpoint.drain_deadline is None or checkpoint.drain_deadline > now:
        return region
    reason = f"the drain deadline of {region.rules.timeouts.drain} passed"
    if checkpoint.purpose not in {CheckpointPurpose.REQUEST, CheckpointPurpose.DRAIN}:
        return abort(region, now, reason)
    names = late(region)
    region = _closed(region, now, checkpoint, reason, names)
    why = f"{reason}; late: {'; '.join(names) or 'none'}"
    return end_request(region, now, region.requests[checkpoint.request_id], RequestState.ABORTED, why)
