"""Cut requests: a nonce names a request, not a sequence (docs/explanation/what-if.md).

It answers with its open or complete cut; after an abort the next ask opens a new one; after retirement an old DAG run
still gets its old answer; after a rewind that undid the cut, it asks anew (scenarios C15, C28, C53).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Final

from airflow_kcr.errors import CutRefused, RegionInState
from airflow_kcr.protocol.region import archive, bounds, events, path
from airflow_kcr.protocol.region.archive import Named
from airflow_kcr.protocol.region.rows import (
    Checkpoint,
    CutPhase,
    CutPurpose,
    CutRequest,
    RegionState,
    Requester,
    RequestState,
    Wanted,
)
from airflow_kcr.protocol.region.state import (
    Region,
    checkpoint_of,
    live_members,
    named_by,
    record,
    request_of,
    with_request,
)
from airflow_kcr.protocol.values import Nonce, Sequence

BY_PERSON: Final = frozenset({CutPurpose.DRAIN, CutPurpose.STOP, CutPurpose.RESET})
"""Purposes that don't wait for a bound: they abort a cut that is still approaching one (scenario C54)."""


OWN: Final = frozenset({CutPurpose.SCHEDULE, CutPurpose.STOP})
"""Purposes of which the region asks by itself. A refusal would reach nobody, and end every later decision as well."""

OWN_NONCES: Final = ("bound:", "records:", "stop:")
"""How the nonces begin under which it does; nobody else's may."""


def valid_answer(region: Region, request: CutRequest) -> Sequence | None:
    """Return the cut that answers a request, if one on the current path does."""
    if request.state is not RequestState.ANSWERED or request.sequence is None:
        return None
    checkpoint = checkpoint_of(region, request.sequence)
    return request.sequence if checkpoint is not None and checkpoint.is_on_path else None


def ask(
    region: Region,
    now: datetime,
    *,
    nonce: Nonce,
    purpose: CutPurpose,
    bound: datetime | None = None,
    allow_inexact: bool = False,
    then: Wanted | None = None,
    requester: Requester | None = None,
) -> Region:
    """Return the region with the request queued, or as it was where the nonce is already being served.

    Raises:
        RegionInState: the region is halted or stopped; nothing can be cut.
        CutRefused: the nonce is another request's, a reset's or of the region's own kind, or a person drains a region
            without a live member.
    """
    if purpose in OWN:
        known = request_of(region, nonce)
    else:
        named = named_by(region, nonce)
        _require_free(nonce, named, purpose, bound)
        known = named.request
    if known is not None and _is_served(region, known):
        return region
    if region.state in {RegionState.HALTED, RegionState.STOPPED}:
        reason = f": {region.halt.text}" if region.halt else ""
        raise RegionInState(f"region {region.name} is {region.state}{reason}; resume it before asking for a cut")
    if purpose is CutPurpose.DRAIN and not live_members(region, now):
        raise CutRefused(
            f"region {region.name} has no live member, so there is nobody to drain: start its members, or stop it, "
            "which needs none"
        )
    requester = requester or Requester()
    asked = record(region, now, events.CutRequested(nonce=nonce, purpose=purpose, bound=bound, requester=requester))
    request = CutRequest(
        nonce=nonce,
        purpose=purpose,
        state=RequestState.QUEUED,
        requested_at=now,
        order=asked.counter,
        bound=bound,
        allow_inexact=allow_inexact,
        then=then,
        requester=requester,
    )
    asked = with_request(asked, request)
    if bound is None:
        return asked
    asked = bounds.recalled(asked, bound)
    covering = path.covering(asked, bound)
    return asked if covering is None else answered(asked, now, request, covering.sequence)


def _is_served(region: Region, request: CutRequest) -> bool:
    return request.state in archive.WAITING or valid_answer(region, request) is not None


def _require_free(nonce: Nonce, named: Named, purpose: CutPurpose, bound: datetime | None) -> None:
    if nonce.startswith(OWN_NONCES):
        raise CutRefused(
            f"nonce {nonce}: those that begin with {', '.join(OWN_NONCES)} are the region's own; take another"
        )
    if purpose is not CutPurpose.RESET and named.reset is not None:
        raise CutRefused(f"nonce {nonce} names a reset; take another for the cut")
    known = named.request
    if known is not None and (known.purpose, known.bound) != (purpose, bound):
        raise CutRefused(f"nonce {nonce} names a request for another cut ({known.purpose}, bound {known.bound})")


def answered(region: Region, now: datetime, request: CutRequest, sequence: Sequence) -> Region:
    """Return the region with a request answered by a complete cut, its own or another's, and wanted as it asked."""
    row = replace(request, state=RequestState.ANSWERED, sequence=sequence, answered_at=now)
    region = record(with_request(region, row), now, events.CutAnswered(nonce=request.nonce, sequence=sequence))
    if request.then is None or request.then is region.wanted:
        return region
    body = events.WantedChanged(wanted=request.then, requester=request.requester)
    return record(replace(region, wanted=request.then), now, body)


def ended(region: Region, now: datetime, request: CutRequest, state: RequestState, why: str) -> Region:
    """Return the region with a request refused or superseded; it has no cut."""
    row = replace(request, state=state, answered_at=now, refusal=why)
    return record(with_request(region, row), now, events.CutRequestEnded(nonce=request.nonce, why=why))


def requeued(region: Region, nonce: Nonce) -> Region:
    """Return the region with an open request queued again, its cut having been aborted."""
    request = region.requests[nonce]
    if request.state is not RequestState.OPEN:
        return region
    return with_request(region, replace(request, state=RequestState.QUEUED))


def queue(region: Region) -> tuple[CutRequest, ...]:
    """Return the queued requests in the order in which they are served.

    What a person asked for comes first, then requests without a bound, then bounds in the order of time, whatever the
    order of asking: a later bound first would leave nothing to cut for the earlier one.
    """
    queued = [r for r in region.requests.values() if r.state is RequestState.QUEUED]

    def rank(request: CutRequest) -> tuple[bool, bool, datetime, int]:
        return (
            request.purpose not in BY_PERSON,
            request.bound is not None,
            request.bound or request.requested_at,
            request.order,
        )

    return tuple(sorted(queued, key=rank))


def preempts(region: Region, request: CutRequest) -> bool:
    """Whether a queued request aborts the open cut: a person's does, while that one only approaches its bound.

    A person's bounded drain does not abort another's, or the two would abort each other for ever.
    """
    cut = region.cut
    return (
        cut is not None
        and cut.phase is CutPhase.APPROACHING
        and request.purpose in BY_PERSON
        and (request.bound is None or cut.purpose not in BY_PERSON)
    )


def release(region: Region, now: datetime, checkpoint: Checkpoint) -> Region:
    """Return the region with every request answered that a completed cut answers.

    These are its own, those of earlier bounds, and those for any moment that waited before it was opened: one cut for
    each of them, back to back, would leave members no time to read.
    """
    for request in queue(region):
        if _is_answered_by(request, checkpoint):
            region = answered(region, now, request, checkpoint.sequence)
    own = region.requests[checkpoint.nonce]
    return answered(region, now, own, checkpoint.sequence) if own.state is RequestState.OPEN else region


def _is_answered_by(request: CutRequest, checkpoint: Checkpoint) -> bool:
    if request.bound is not None:
        return checkpoint.bound is not None and request.bound <= checkpoint.bound
    if request.purpose in BY_PERSON or checkpoint.purpose is CutPurpose.RESET:
        return False  # what a person asks for ends with its own cut, and a reset may undo its own at once
    return request.requested_at < checkpoint.opened_at


def cancel(region: Region, now: datetime, why: str, *, purposes: frozenset[CutPurpose]) -> Region:
    """Return the region without queued requests of these purposes: the verb behind them is gone."""
    for request in queue(region):
        if request.purpose in purposes:
            region = ended(region, now, request, RequestState.SUPERSEDED, why)
    return region


def cancel_one(region: Region, now: datetime, request: CutRequest, why: str) -> Region:
    """Return the region without this request, if it is still queued."""
    if request.state is not RequestState.QUEUED:
        return region
    return ended(region, now, request, RequestState.SUPERSEDED, why)
