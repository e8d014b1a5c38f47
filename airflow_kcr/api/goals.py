"""What can be waited for: when it is reached, when it can't be any more, and who or what is still missing.

A goal looks at the region as the store has it; it asks nobody else. What it calls missing has names: members,
partitions with their last owner, how far a partition still is from its bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeAlias

from airflow_kcr.api.views import expected_members, instant
from airflow_kcr.errors import CutRefused, RegionInState, ResetFailed, SpecRefused, TimedOut
from airflow_kcr.protocol.region import bounds, completion, coverage, path, specs
from airflow_kcr.protocol.region.rows import (
    Checkpoint,
    CheckpointState,
    Committed,
    CutPhase,
    CutRequest,
    PersonResetState,
    RegionState,
    RequestState,
    Wanted,
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
from airflow_kcr.protocol.values import MemberId, Nonce

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
    if region.state is RegionState.STOPPED or region.wanted is not Wanted.RUNNING:
        raise RegionInState(
            f"region {region.name} is {region.state}: it was {region.wanted} by somebody else meanwhile"
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
    if region.wanted is not Wanted.PAUSED:
        raise RegionInState(f"region {region.name} is wanted {region.wanted}: somebody asked for that meanwhile")
    return not region.running


def _missing_to_pause(region: StoredRegion, now: datetime) -> Iterator[str]:
    for batch in sorted(region.running.values(), key=lambda b: b.begun_at):
        yield f"a batch of {batch.member} has been running for {(now - batch.begun_at).total_seconds():.0f} s"


PAUSED: Final = Goal(what="its batches to end", is_reached=_is_paused, missing=_missing_to_pause)


def _is_stopped(region: StoredRegion, now: datetime) -> bool:
    if region.wanted is not Wanted.STOPPED:
        raise RegionInState(f"region {region.name} is wanted {region.wanted}: somebody resumed it meanwhile")
    return region.state is RegionState.STOPPED and not live_members(region, now)


def _missing_to_stop(region: StoredRegion, now: datetime) -> Iterator[str]:
    if region.state is RegionState.STOPPED:
        yield from (f"{member} still holds a lease" for member in live_members(region, now))
    elif region.stopping is not None:
        yield from _unsettled(region.checkpoints[region.stopping], needs_commit=True)
    elif region.cut is not None:
        yield from _missing_in_cut(region, now, region.cut)
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


# -- a cut -------------------------------------------------------------------------------------------------------------


def published(nonce: Nonce) -> Goal:
    """Return the goal that the request of a nonce is answered by a cut that is published."""

    def is_reached(region: StoredRegion, now: datetime) -> bool:
        request = request_of(region, nonce)
        if request is None:
            raise CutRefused(f"nobody has asked region {region.name} for a cut with the nonce {nonce!r}; ask again")
        _refuse_ended(request)
        if request.state is not RequestState.ANSWERED or request.sequence is None:
            _refuse_halt(region)
            return False
        row = checkpoint_of(region, request.sequence)
        return row is not None and row.published_at is not None

    def missing(region: StoredRegion, now: datetime) -> Iterator[str]:
        request = request_of(region, nonce)
        if request is None:
            return
        cut = None if request.sequence is None else checkpoint_of(region, request.sequence)
        if request.state is RequestState.QUEUED:
            yield from _missing_to_open(region, now)
        elif cut is not None and cut.state is CheckpointState.OPEN:
            yield from _missing_in_cut(region, now, cut)
        elif cut is not None:
            yield from _unsettled(cut, needs_commit=False)

    return Goal(what="its cut to be published", is_reached=is_reached, missing=missing)


def _refuse_ended(request: CutRequest) -> None:
    if request.state is RequestState.ABORTED:
        raise TimedOut(f"the cut was aborted: {request.refusal}; ask again with the same nonce ({request.nonce})")
    if request.state in {RequestState.REFUSED, RequestState.SUPERSEDED}:
        raise CutRefused(f"there will be no cut for nonce {request.nonce} ({request.state}): {request.refusal}")


def _refuse_halt(region: StoredRegion) -> None:
    if region.halt is not None:
        choices = "; ".join(region.halt.choices)
        raise RegionInState(f"region {region.name} is halted: {region.halt.text}; choices: {choices}")


def _missing_to_open(region: StoredRegion, now: datetime) -> Iterator[str]:
    """Yield why a queued cut is not open yet."""
    if region.state is not RegionState.RUNNING:
        yield f"the region is {region.state}"
        yield from coverage.unready(region, now)
        return
    if region.wanted is Wanted.PAUSED:
        yield "it is paused, and goes on to no bound until it is resumed"
    if region.open_cut is not None:
        yield f"cut {region.open_cut} is open, others wait for it"
    for cut in path.unpublished(region):
        yield f"cut {cut.sequence} is not published yet"
    yield from coverage.gaps(region, now)
    for partition in coverage.awaited(region, now):
        if partition not in universe(region):
            yield f"{partition} is on the brokers and no member owns it yet"


def _missing_in_cut(region: StoredRegion, now: datetime, cut: Checkpoint) -> Iterator[str]:
    if cut.phase is not CutPhase.APPROACHING:
        yield from _missing_in_drain(region, cut)
    elif cut.bound is not None:
        yield from _way_to_bound(region, now, cut, cut.bound)


def _missing_in_drain(region: StoredRegion, cut: Checkpoint) -> Iterator[str]:
    """Yield the members that have yet to contribute, with what they hold; once all have, what nobody holds."""
    waiting = [m for m in sorted(cut.roster) if (cut.sequence, m) not in region.contributions]
    for member in waiting:
        held = [str(p.topic_partition) for p, claim in sorted(region.claims.items()) if claim.owner == member]
        more = f" and {len(held) - _NAMED} more" if len(held) > _NAMED else ""
        yield f"cut {cut.sequence} waits for {member} ({', '.join(held[:_NAMED]) or 'no partition'}{more})"
    if not waiting:
        yield from (f"cut {cut.sequence}: {what}" for what in completion.lacking(region, cut))


def _way_to_bound(region: StoredRegion, now: datetime, cut: Checkpoint, bound: datetime) -> Iterator[str]:
    """Yield how far an approaching cut still is: the whole way first, then the partitions, the furthest first."""
    if now < bound:
        yield f"the bound {instant(bound)} is {(bound - now).total_seconds():.0f} s away"
    left: dict[str, int] = {}
    for partition in sorted(region.frozen[cut.sequence]):
        claim, place = region.claims[partition], bounds.bound_offset(region, partition, bound)
        if place is None:
            yield f"{partition}: it is not known yet where the bound falls"
        elif claim.position is not None and claim.position < place.offset:
            left[f"{partition} at {claim.position}, the bound is at {place.offset}"] = place.offset - claim.position
    if left:
        yield f"{sum(left.values()):,} records to the bound, on {len(left)} partition(s)"
    yield from sorted(left, key=lambda text: -left[text])


def _unsettled(cut: Checkpoint, *, needs_commit: bool) -> Iterator[str]:
    if cut.published_at is None:
        yield f"cut {cut.sequence} is complete and not published yet"
    if needs_commit and cut.committed is Committed.PENDING:
        yield f"Kafka's echo of cut {cut.sequence} is outstanding"


# -- a reset -----------------------------------------------------------------------------------------------------------


def reset_done(nonce: Nonce) -> Goal:
    """Return the goal that a person's reset, accepted under this nonce, is done: every partition is where it goes."""

    def is_reached(region: StoredRegion, now: datetime) -> bool:
        reset = person_reset_of(region, nonce)
        if reset is None:
            raise RegionInState(f"region {region.name} knows no reset {nonce!r}: apply its plan first")
        if reset.state is PersonResetState.FAILED:
            raise ResetFailed(
                f"the reset of region {region.name} ({nonce}) failed: {reset.failure}; plan again to try again"
            )
        if reset.state is not PersonResetState.DONE:
            _refuse_halt(region)
        return reset.state is PersonResetState.DONE

    def missing(region: StoredRegion, now: datetime) -> Iterator[str]:
        request = region.requests.get(nonce)
        reset = region.person_resets.get(nonce)
        if reset is not None and reset.state is PersonResetState.WAITING:
            yield "another reset has its turn first"
            yield from coverage.unready(region, now)
        elif region.reset is not None:
            yield from coverage.unready(region, now)
        elif request is not None and region.cut is not None and region.cut.sequence == request.sequence:
            yield from _missing_in_cut(region, now, region.cut)
        else:
            yield from _missing_to_open(region, now)

    return Goal(what="its reset to be done", is_reached=is_reached, missing=missing)
