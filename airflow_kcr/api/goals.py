"""What can be waited for: when it is reached, when it can't be any more, and who or what is still missing.

A goal looks at the region as the store has it; it asks nobody else. What it calls missing has names: members,
partitions with their last owner, how far a partition still is from its boundary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeAlias

from airflow_kcr.api.views import expected_members, instant
from airflow_kcr.errors import CheckpointRefused, RegionInState, ResetFailed, SpecRefused, TimedOut
from airflow_kcr.protocol.region import boundaries, completion, coverage, path, specs
from airflow_kcr.protocol.region.rows import (
    Checkpoint,
    CheckpointPhase,
    CheckpointRequest,
    CheckpointState,
    Committed,
    DesiredState,
    PersonResetState,
    RegionState,
    RequestState,
)
from airflow_kcr.protocol.region.state import Region as StoredRegion
from airflow_kcr.protocol.region.state import (
    checkpoint_of,
    is_live,
    live_members,
    person_reset_of,
    request_of,
    universe,
)
from airflow_kcr.protocol.values import MemberId, RequestId

Predicate: TypeAlias = Callable[[StoredRegion, datetime], bool]
"""Asked of the region and the store's clock then; raises where it can't become true any more."""

_NAMED: Final = 6
"""How many partitions of one member are named."""

Missing: TypeAlias = Callable[[StoredRegion, datetime], Iterator[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """Something to wait for."""

    what: str
    """As in "waited for …"."""

    is_reached: Predicate
    missing: Missing
    """Yields who or what is still missing, by name, the most telling first."""


def nothing_known(region: StoredRegion, now: datetime) -> Iterator[str]:
    """Yield nothing: for a predicate of a caller's own."""
    return iter(())


# -- running, paused, stopped ------------------------------------------------------------------------------------------


def _is_running(region: StoredRegion, now: datetime) -> bool:
    _refuse_halt(region)
    if region.state is RegionState.STOPPED or region.desired_state is not DesiredState.RUNNING:
        raise RegionInState(
            f"region {region.name} is {region.state}: it was {region.desired_state} by somebody else meanwhile"
        )
    return region.state in {RegionState.RUNNING, RegionState.DRAINING}


def absent(region: StoredRegion, now: datetime) -> tuple[MemberId, ...]:
    """Return the members that the spec asks for and that hold no lease."""
    return tuple(member for member in expected_members(region) if not is_live(region, member, now))


def _missing_to_run(region: StoredRegion, now: datetime) -> Iterator[str]:
    failures = {c.member: specs.told_start_failure(region, now, c) for c in specs.start_failures(region, now)}
    yield from (failures.get(member, f"{member} is not there (no lease)") for member in absent(region, now))
    yield from coverage.unready(region, now)


RUNNING: Final = Goal(what="it to run", is_reached=_is_running, missing=_missing_to_run)


def _is_paused(region: StoredRegion, now: datetime) -> bool:
    if region.desired_state is not DesiredState.PAUSED:
        raise RegionInState(
            f"region {region.name} has the desired state {region.desired_state}: somebody asked for that meanwhile"
        )
    return not region.running


def _missing_to_pause(region: StoredRegion, now: datetime) -> Iterator[str]:
    for batch in sorted(region.running.values(), key=lambda b: b.begun_at):
        yield f"a batch of {batch.member} has been running for {(now - batch.begun_at).total_seconds():.0f} s"


PAUSED: Final = Goal(what="its batches to end", is_reached=_is_paused, missing=_missing_to_pause)


def _is_stopped(region: StoredRegion, now: datetime) -> bool:
    if region.desired_state is not DesiredState.STOPPED:
        raise RegionInState(
            f"region {region.name} has the desired state {region.desired_state}: somebody resumed it meanwhile"
        )
    return region.state is RegionState.STOPPED and not live_members(region, now)


def _missing_to_stop(region: StoredRegion, now: datetime) -> Iterator[str]:
    if region.state is RegionState.STOPPED:
        yield from (f"{member} still holds a lease" for member in live_members(region, now))
    elif region.stopping is not None:
        yield from _unsettled(region.checkpoints[region.stopping], needs_commit=True)
    elif region.checkpoint is not None:
        yield from _missing_in_checkpoint(region, now, region.checkpoint)
    else:
        yield from _missing_to_open(region, now)


STOPPED: Final = Goal(what="it to stop and its members to leave", is_reached=_is_stopped, missing=_missing_to_stop)


# -- a changed spec ----------------------------------------------------------------------------------------------------


def _is_spec_checked(region: StoredRegion, now: datetime) -> bool:
    refusals = specs.refused(region)
    if refusals:
        raise SpecRefused(f"region {region.name}: {'; '.join(specs.told(region, now))}")
    return not specs.unchecked(region, now)


def _unchecked(region: StoredRegion, now: datetime) -> Iterator[str]:
    yield from (f"{member} looks whether it can run under it" for member in specs.unchecked(region, now))


SPEC_CHECKED: Final = Goal(
    what="its members to look at the changed spec", is_reached=_is_spec_checked, missing=_unchecked
)


# -- a checkpoint
# -------------------------------------------------------------------------------------------------------------


def published(request_id: RequestId) -> Goal:
    """Return the goal that the request of a request id is answered by a checkpoint that is published."""

    def is_reached(region: StoredRegion, now: datetime) -> bool:
        request = request_of(region, request_id)
        if request is None:
            raise CheckpointRefused(
                f"nobody has asked region {region.name} for a checkpoint with the request id {request_id!r}; ask again"
            )
        _refuse_ended(request)
        if request.state is not RequestState.ANSWERED or request.sequence is None:
            _refuse_halt(region)
            return False
        row = checkpoint_of(region, request.sequence)
        return row is not None and row.published_at is not None

    def missing(region: StoredRegion, now: datetime) -> Iterator[str]:
        request = request_of(region, request_id)
        if request is None:
            return
        checkpoint = None if request.sequence is None else checkpoint_of(region, request.sequence)
        if request.state is RequestState.QUEUED:
            yield from _missing_to_open(region, now)
        elif checkpoint is not None and checkpoint.state is CheckpointState.OPEN:
            yield from _missing_in_checkpoint(region, now, checkpoint)
        elif checkpoint is not None:
            yield from _unsettled(checkpoint, needs_commit=False)

    return Goal(what="its checkpoint to be published", is_reached=is_reached, missing=missing)


def _refuse_ended(request: CheckpointRequest) -> None:
    if request.state is RequestState.ABORTED:
        raise TimedOut(
            f"the checkpoint was aborted: {request.refusal}; ask again with the same request id ({request.request_id})"
        )
    if request.state in {RequestState.REFUSED, RequestState.SUPERSEDED}:
        raise CheckpointRefused(
            f"there will be no checkpoint for request id {request.request_id} ({request.state}): {request.refusal}"
        )


def _refuse_halt(region: StoredRegion) -> None:
    if region.halt is not None:
        choices = "; ".join(region.halt.choices)
        raise RegionInState(f"region {region.name} is halted: {region.halt.text}; choices: {choices}")


def _missing_to_open(region: StoredRegion, now: datetime) -> Iterator[str]:
    """Yield why a queued checkpoint is not open yet."""
    if region.state is not RegionState.RUNNING:
        yield f"the region is {region.state}"
        yield from coverage.unready(region, now)
        return
    if region.desired_state is DesiredState.PAUSED:
        yield "it is paused, and goes on to no boundary until it is resumed"
    if region.open_checkpoint is not None:
        yield f"checkpoint {region.open_checkpoint} is open, others wait for it"
    for checkpoint in path.unpublished(region):
        yield f"checkpoint {checkpoint.sequence} is not published yet"
    yield from coverage.gaps(region, now)
    for partition in coverage.awaited(region, now):
        if partition not in universe(region):
            yield f"{partition} is on the brokers and no member owns it yet"


def _missing_in_checkpoint(region: StoredRegion, now: datetime, checkpoint: Checkpoint) -> Iterator[str]:
    if checkpoint.phase is not CheckpointPhase.APPROACHING:
        yield from _missing_in_drain(region, checkpoint)
    elif checkpoint.boundary is not None:
        yield from _way_to_boundary(region, now, checkpoint, checkpoint.boundary)


def _missing_in_drain(region: StoredRegion, checkpoint: Checkpoint) -> Iterator[str]:
    """Yield the members that have yet to contribute, with what they hold; once all have, what nobody holds."""
    waiting = [m for m in sorted(checkpoint.participants) if (checkpoint.sequence, m) not in region.contributions]
    for member in waiting:
        held = [str(p.topic_partition) for p, claim in sorted(region.claims.items()) if claim.owner == member]
        more = f" and {len(held) - _NAMED} more" if len(held) > _NAMED else ""
        yield (
            f"checkpoint {checkpoint.sequence} waits for {member} ({', '.join(held[:_NAMED]) or 'no partition'}{more})"
        )
    if not waiting:
        yield from (f"checkpoint {checkpoint.sequence}: {what}" for what in completion.lacking(region, checkpoint))


def _way_to_boundary(region: StoredRegion, now: datetime, checkpoint: Checkpoint, boundary: datetime) -> Iterator[str]:
    """Yield how far an approaching checkpoint still is.

    The whole way first, then the partitions, the furthest first.
    """
    if now < boundary:
        yield f"the boundary {instant(boundary)} is {(boundary - now).total_seconds():.0f} s away"
    left: dict[str, int] = {}
    for partition in sorted(region.frozen[checkpoint.sequence]):
        claim, place = region.claims[partition], boundaries.boundary_offset(region, partition, boundary)
        if place is None:
            yield f"{partition}: it is not known yet where the boundary falls"
        elif claim.position is not None and claim.position < place.offset:
            left[f"{partition} at {claim.position}, the boundary is at {place.offset}"] = place.offset - claim.position
    if left:
        yield f"{sum(left.values()):,} records to the boundary, on {len(left)} partition(s)"
    yield from sorted(left, key=lambda text: -left[text])


def _unsettled(checkpoint: Checkpoint, *, needs_commit: bool) -> Iterator[str]:
    if checkpoint.published_at is None:
        yield f"checkpoint {checkpoint.sequence} is complete and not published yet"
    if needs_commit and checkpoint.committed is Committed.PENDING:
        yield f"Kafka's commit read-back of checkpoint {checkpoint.sequence} is outstanding"


# -- a reset -----------------------------------------------------------------------------------------------------------


def reset_done(request_id: RequestId) -> Goal:
    """Return the goal that a person's reset, accepted under this request id, is done.

    Every partition is where it goes.
    """

    def is_reached(region: StoredRegion, now: datetime) -> bool:
        reset = person_reset_of(region, request_id)
        if reset is None:
            raise RegionInState(f"region {region.name} knows no reset {request_id!r}: apply its plan first")
        if reset.state is PersonResetState.FAILED:
            raise ResetFailed(
                f"the reset of region {region.name} ({request_id}) failed: {reset.failure}; plan again to try again"
            )
        if reset.state is not PersonResetState.DONE:
            _refuse_halt(region)
        return reset.state is PersonResetState.DONE

    def missing(region: StoredRegion, now: datetime) -> Iterator[str]:
        request = region.requests.get(request_id)
        reset = region.person_resets.get(request_id)
        if reset is not None and reset.state is PersonResetState.WAITING:
            yield "another reset has its turn first"
            yield from coverage.unready(region, now)
        elif region.reset is not None:
            yield from coverage.unready(region, now)
        elif request is not None and region.checkpoint is not None and region.checkpoint.sequence == request.sequence:
            yield from _missing_in_checkpoint(region, now, region.checkpoint)
        else:
            yield from _missing_to_open(region, now)

    return Goal(what="its reset to be done", is_reached=is_reached, missing=missing)
