"""Requests for checkpoints, and the queue that they wait in (docs/explanation/what-if.md).

A request id names a request, not a sequence. It answers with its open or complete checkpoint; after an abort the next
ask opens a new one; after retirement an old DAG run still gets its old answer; after a rewind that undid the
checkpoint, it asks again (scenarios C15, C28, C53).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from airflow_kcr.errors import CheckpointRefused, RegionInState
from airflow_kcr.protocol.region import archive, boundaries, events, rows, timelines
from airflow_kcr.protocol.region.commands import RequestCheckpoint
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.values import CheckpointNumber, RequestId, drawn, format_instant, replace

BY_PERSON: Final = frozenset({rows.CheckpointPurpose.DRAIN, rows.CheckpointPurpose.STOP, rows.CheckpointPurpose.RESET})
"""Purposes that don't wait for a boundary: they abort a checkpoint that is still approaching one (scenario C54)."""


OWN: Final = frozenset({rows.CheckpointPurpose.SCHEDULE, rows.CheckpointPurpose.STOP})
"""Purposes of which the region asks by itself. A refusal would reach no requester, and end every later decision too."""


BY_COUNT: Final = "records:"


OWN_REQUEST_IDS: Final = ("boundary:", BY_COUNT, "stop:")
"""The prefixes of the region's own request ids; other requests may not use them."""


def valid_answer(region: Region, request: rows.CheckpointRequest) -> CheckpointNumber | None:
    """Return the checkpoint that answers a request, if one on the current timeline does."""
    if request.state is not rows.RequestState.ANSWERED or request.sequence is None:
        return None
    checkpoint = region.checkpoint_of(request.sequence)
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
        known = region.request_of(request_id)
    else:
        named = region.named_by(request_id)
        _require_free(command, named)
        known, _ = named
    if known is not None and is_served(region, known):
        return region
    covering = None if boundary is None else timelines.covering(region, boundary)
    if covering is None and region.state in rows.RESTING:
        reason = f": {region.halt.text}" if region.halt else ""
        raise RegionInState(f"region {region.name} is {region.state}{reason}; resume it before asking for a checkpoint")
    if purpose is rows.CheckpointPurpose.DRAIN and not region.live_members(now):
        raise CheckpointRefused(
            f"region {region.name} has no live member, so there is nothing to drain: start its members, or stop it, "
            "which needs none"
        )
    asked = noted(region, now, command)
    return asked if covering is None else answered(asked, now, asked.requests[request_id], covering.sequence)


def noted(region: Region, now: datetime, command: RequestCheckpoint) -> Region:
    """Return the region with a request in its queue."""
    asked = region.record(now, drawn(events.CheckpointRequested, command))
    state, order = rows.RequestState.QUEUED, asked.counter
    request = drawn(rows.CheckpointRequest, command, state=state, requested_at=now, order=order)
    asked = asked.with_request(request)
    return asked if command.boundary is None else boundaries.recalled(asked, command.boundary)


def is_served(region: Region, request: rows.CheckpointRequest) -> bool:
    """Whether a request waits for its checkpoint, or has one that still answers it."""
    return request.state in archive.WAITING or valid_answer(region, request) is not None


def _require_free(command: RequestCheckpoint, named: archive.Named) -> None:
    (known, reset), request_id = named, command.request_id
    if request_id.startswith(OWN_REQUEST_IDS):
        raise CheckpointRefused(
            f"request id {request_id}: those that begin with {', '.join(OWN_REQUEST_IDS)} are the region's own; "
            "take another"
        )
    if command.purpose is not rows.CheckpointPurpose.RESET and reset is not None:
        raise CheckpointRefused(f"request id {request_id} names a reset; take another for the checkpoint")
    if known is not None and (known.purpose, known.boundary) != (command.purpose, command.boundary):
        until = "of no instant" if known.boundary is None else f"up to {format_instant(known.boundary)}"
        raise CheckpointRefused(
            f"request id {request_id} names a request for another checkpoint ({known.purpose}, {until}); give this one "
            "an id of its own"
        )


def answered(region: Region, now: datetime, request: rows.CheckpointRequest, sequence: CheckpointNumber) -> Region:
    """Return the region with a request answered by a complete checkpoint, and the desired state that it asked for."""
    row = replace(request, state=rows.RequestState.ANSWERED, sequence=sequence, answered_at=now)
    region = region.with_request(row).record(
        now, events.CheckpointRequestAnswered(request_id=request.request_id, sequence=sequence)
    )
    return _ended(region, now, row)


def _ended(region: Region, now: datetime, request: rows.CheckpointRequest) -> Region:
    """Return the region wanting what a request that is over has it want; of several runs, the last one stops it."""
    if request.then is None or any(other.then is request.then for other in queue(region)):
        return region
    return region.wanting(now, request.then, request.requester)


def end_request(
    region: Region, now: datetime, request: rows.CheckpointRequest, state: rows.RequestState, why: str
) -> Region:
    """Return the region with a request refused or superseded; it has no checkpoint."""
    row = replace(request, state=state, answered_at=now, refusal=why)
    region = region.with_request(row).record(now, events.CheckpointRequestEnded(request_id=request.request_id, why=why))
    return _ended(boundaries.given_up(region, now, row.boundary) if row.is_of_run else region, now, row)


def requeued(region: Region, request_id: RequestId) -> Region:
    """Return the region with an open request queued again, its checkpoint having been aborted."""
    request = region.requests[request_id]
    if request.state is not rows.RequestState.OPEN:
        return region
    return region.with_request(replace(request, state=rows.RequestState.QUEUED))


def queue(region: Region) -> tuple[rows.CheckpointRequest, ...]:
    """Return the queued requests in the order in which they are served.

    What a person asked for comes first, then requests without a boundary, then boundaries in the order of time,
    whatever the order of asking: a later boundary first would leave nothing to checkpoint for the earlier one.
    """
    queued = [r for r in region.requests.values() if r.state is rows.RequestState.QUEUED]

    def rank(request: rows.CheckpointRequest) -> tuple[bool, bool, datetime, int]:
        return (
            request.purpose not in BY_PERSON,
            request.boundary is not None,
            request.boundary or request.requested_at,
            request.order,
        )

    return tuple(sorted(queued, key=rank))


def release(region: Region, now: datetime, checkpoint: rows.Checkpoint) -> Region:
    """Return the region with every request answered that a completed checkpoint answers.

    These are its own, those of earlier boundaries, and those for any moment that waited before it was opened: one
    checkpoint for each of them, back to back, would leave members no time to read.
    """
    for request in queue(region):
        if _is_answered_by(request, checkpoint):
            region = answered(region, now, request, checkpoint.sequence)
    own = region.requests[checkpoint.request_id]
    return answered(region, now, own, checkpoint.sequence) if own.state is rows.RequestState.OPEN else region


def _is_answered_by(request: rows.CheckpointRequest, checkpoint: rows.Checkpoint) -> bool:
    if request.boundary is not None:
        return checkpoint.boundary is not None and request.boundary <= checkpoint.boundary
    if request.purpose in BY_PERSON or checkpoint.purpose is rows.CheckpointPurpose.RESET:
        return False  # what a person asks for ends with its own checkpoint, and a reset may undo its own at once
    return request.requested_at < checkpoint.opened_at


def cancel(region: Region, now: datetime, why: str, asked: Iterable[rows.CheckpointRequest]) -> Region:
    """Return the region without those of these requests that are still queued: what is behind them is gone."""
    for request in asked:
        if request.state is rows.RequestState.QUEUED:
            region = end_request(region, now, request, rows.RequestState.SUPERSEDED, why)
    return region
