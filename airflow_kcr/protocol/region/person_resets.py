"""A person's reset: plan and apply, while the groups stay up (docs/explanation/what-if.md).

Online it drains to a checkpoint first, and begins in the transaction that completes it, so that nothing is processed
between the two (scenario C48); the drained map with the entries in scope replaced is the new restore point, of a new
timeline. Targets that are relative are resolved against that checkpoint, never against the plan's numbers (C23).
Forced, it needs no checkpoint and goes from the last done positions; it is the only way out of HALTED and STARTING.
With the region stopped, the caller has resolved the whole target, and the next start goes there.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from airflow_kcr import errors
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.offsets import OffsetMap, SeekMap
from airflow_kcr.protocol.region import (
    coverage,
    events,
    first_starts,
    lookup,
    plans,
    requests,
    resets,
    retention,
    rows,
    specs,
    timelines,
)
from airflow_kcr.protocol.region.archive import ACTIVE
from airflow_kcr.protocol.region.commands import ApplyReset, RecordResetAnswer, RequestCheckpoint
from airflow_kcr.protocol.region.state import Region, put
from airflow_kcr.protocol.values import (
    CheckpointNumber,
    DesiredState,
    Epoch,
    GroupPartition,
    Offset,
    drawn,
    few,
    replace,
)

ANSWERS: Final = 100
"""How many answers of persons are kept until their resets are applied, the newest."""


def answered(region: Region, now: datetime, command: RecordResetAnswer) -> Region:
    """Return the region with what a person has answered about a reset; a plan's newest approval counts."""
    answer = command.answer
    if answer in region.reset_answers:
        return region
    others = (
        one
        for one in region.reset_answers
        if not (one.digest and answer.digest and one.request_id == answer.request_id)
    )
    region = replace(region, reset_answers=(*others, answer)[-ANSWERS:])
    return region.record(now, events.ResetAnswered(answer=answer))


def _approved(region: Region, reset: rows.PersonReset, digest: str) -> rows.PersonReset:
    """Return a reset in the name of who has approved its plan, which its caller can't say."""
    found = next((one for one in region.reset_answers if one.request_id == reset.request_id and one.digest), None)
    if found is None:
        raise errors.ResetNotApproved(
            f"region {region.name} has no approval of plan {reset.request_id}: no person has answered the question of "
            "it, whatever state its task is in"
        )
    if found.digest != digest:
        raise errors.ResetNotApproved(f"{found.who} has approved plan {reset.request_id}, but it is another one since")
    requester = replace(reset.requester, who=found.who, reason=found.reason or reset.requester.reason)
    return replace(reset, requester=requester)


def apply(region: Region, now: datetime, command: ApplyReset) -> Region:
    """Return the region with a person's reset accepted: stored under its request id, and on its way.

    A request id that is known changes nothing. While another reset runs, the request waits and is resolved again when
    its turn comes.

    Raises:
        CheckpointRefused: the request id is that of a request for a checkpoint.
        StalePlan: the plan was made under another epoch; what has changed since has to be planned again.
        ResetNotApproved: a person must have approved the plan, and none has approved exactly this one.
        RegionInState: the region can't drain in this state; `forced` would not need it to.
        ResetInProgress: the region is stopped and another request of a person is not finished.
        UnknownCheckpoint, CheckpointNotUsable: the target is not on the current timeline; the message says which option
        names it.
        UpsertNeedsConsent: it would go back behind a table that can't be restored, without consent.
    """
    reset = command.reset
    if region.person_reset_of(reset.request_id) is not None:
        return region
    if region.request_of(reset.request_id) is not None:
        raise errors.CheckpointRefused(
            f"request id {reset.request_id} names a request for a checkpoint; plan the reset under another"
        )
    plans.require_epoch(region, command.epoch)
    if command.approved_digest:
        reset = _approved(region, reset, command.approved_digest)
    if command.resolved is not None:
        region = first_starts.met(region, now, first_starts.initial(command.resolved, command.logs))
    lookup.require_usable(region, now, reset)
    if region.state in {rows.RegionState.HALTED, rows.RegionState.STARTING} and not reset.forced:
        raise errors.RegionInState(
            f"region {region.name} is {region.state} and can't drain; a forced reset goes from the last done positions"
            + _awaited(region, now)
        )
    if command.resolved is not None:
        plans.require(region, reset, command.resolved)
    planned = region.universe() if command.resolved is None else frozenset(command.resolved)
    region = _accepted(region, now, _limited(reset, planned))
    if reset.forced:
        return _begin_forced(region, now, region.person_resets[reset.request_id])
    match region.state:
        case rows.RegionState.STOPPED:
            places = (
                None if command.resolved is None else timelines.with_recreated(region, command.resolved, command.logs)
            )
            region = timelines.followed_topics(region, now, command.logs)
            return _begin_stopped(region, now, region.person_resets[reset.request_id], places)
        case rows.RegionState.RESETTING:
            return region
        case _:
            return serve_next(region, now)


def _awaited(region: Region, now: datetime) -> str:
    """Return what a region that starts waits for, with why members can't start: then no reset is needed."""
    failures = [specs.describe_start_failure(region, now, failure) for failure in specs.start_failures(region, now)]
    waits = failures or list(coverage.unready(region, now))
    return f". It waits: {'; '.join(waits)}" if waits else ""


def _limited(reset: rows.PersonReset, planned: frozenset[GroupPartition]) -> rows.PersonReset:
    """Keep a computed place away from partitions that are found while the request drains or waits for its turn."""
    if reset.target.takes_in_later:
        return reset
    return replace(reset, scope=replace(reset.scope, planned=planned))


def _accepted(region: Region, now: datetime, reset: rows.PersonReset) -> Region:
    region = region.record(now, drawn(events.PersonResetAccepted, reset, target=str(reset.target)))
    row = replace(reset, state=rows.PersonResetState.WAITING, requested_at=now, order=region.counter)
    unused = tuple(one for one in region.reset_answers if one.request_id != reset.request_id)
    return replace(region, reset_answers=unused).with_person_reset(row)


def _opened(region: Region, now: datetime, reset: rows.PersonReset, seek: SeekMap) -> Region:
    """Begin the reset: a request that fails before must leave nothing behind, no record that is stepped over either."""
    if reset.skip:
        skips = {p: tuple(sorted({*region.skips.get(p, ()), o})) for p, o in reset.skip.items()}
        region = replace(region, skips=put(region.skips, skips)).record(now, events.Skipped(offsets=reset.skip))
    started = replace(reset, state=rows.PersonResetState.STARTED, epoch=Epoch(region.epoch + 1))
    return resets.open_timeline(
        region.with_person_reset(started),
        now,
        rows.ResetCause.PERSON,
        seek,
        str(reset.target),
        checkpoint=lookup.target_checkpoint(region, reset),
        person=reset.request_id,
    )


def waiting(region: Region) -> tuple[rows.PersonReset, ...]:
    """Return the accepted requests that wait for their turn, in the order in which they were accepted."""
    found = [r for r in region.person_resets.values() if r.state is rows.PersonResetState.WAITING]
    return tuple(sorted(found, key=lambda r: r.order))


def serve_next(region: Region, now: datetime) -> Region:
    """Return the region with the next waiting request's checkpoint asked for; one person's reset at a time."""
    underway = {rows.PersonResetState.DRAINING, rows.PersonResetState.STARTED}
    reset = next(iter(waiting(region)), None)
    if reset is None or any(other.state in underway for other in region.person_resets.values()):
        return region
    if region.state not in rows.WORKING:
        return region
    region = region.with_person_reset(replace(reset, state=rows.PersonResetState.DRAINING))
    reset_id, purpose = reset.request_id, rows.CheckpointPurpose.RESET
    drain = RequestCheckpoint(request_id=reset_id, purpose=purpose, requester=reset.requester)
    return requests.ask(region, now, drain)


def begin_at_checkpoint(region: Region, now: datetime, checkpoint: rows.Checkpoint) -> Region:
    """Return the region in the person's reset that its checkpoint, just completed, was drained for.

    If the log no longer has what the target remembers, or the region was stopped meanwhile, the request fails and the
    region continues from the checkpoint.
    """
    reset = region.person_resets[checkpoint.request_id]
    if region.desired_state is DesiredState.STOPPED:
        region = _failed(region, now, reset, "the region was stopped")
        return region.moved_to(
            now, rows.RegionState.RUNNING, f"checkpoint {checkpoint.sequence} is complete; the region stops"
        )
    seen: dict[GroupPartition, LogBounds] = {}
    for part in region.contributions_to(checkpoint.sequence).values():
        seen.update(part.bounds)
    try:
        return _begin(region, now, reset, region.offsets[checkpoint.sequence], seen)
    except errors.RefusedError as refused:
        region = _failed(region, now, reset, refused.message)
    except errors.ConfigurationError as wrong:
        region = _failed(region, now, reset, wrong.message)
    return region.moved_to(
        now, rows.RegionState.RUNNING, f"checkpoint {checkpoint.sequence} is complete; its reset failed"
    )


def _begin(
    region: Region,
    now: datetime,
    reset: rows.PersonReset,
    current: Mapping[GroupPartition, Offset],
    seen: Mapping[GroupPartition, LogBounds],
) -> Region:
    # Members read their logs at different moments; the instant that a duration means is fixed here, once.
    reset = replace(reset, target=reset.target.anchored(now))
    seek = plans.seek_map(region, now, reset, OffsetMap(current), seen)
    plans.require(region, reset, seek)
    return _opened(region, now, reset, seek)


def _begin_forced(region: Region, now: datetime, reset: rows.PersonReset) -> Region:
    """Begin from the last done positions. What waited is failed: its drain is not coming.

    Like a resume it is a person's answer to a halt, so failures are counted again (scenario C41).
    """
    for other in (*waiting(region), *(r for r in region.person_resets.values() if r.state in ACTIVE)):
        if other.request_id != reset.request_id and region.person_resets[other.request_id].state in ACTIVE:
            region = _failed(region, now, other, f"a forced reset ({reset.request_id}) took its place")
    if region.state is rows.RegionState.STOPPED:
        raise errors.ResetInProgress(
            f"region {region.name} is stopped; nothing has to be forced, apply the reset as it is"
        )
    current = resets.last_done(region)
    region = _abandon_unpublished(region, now, lookup.target_checkpoint(region, reset))
    region = resets.gone_back_for_output(region, now, rows.ResetCause.PERSON)
    return _begin(replace(region, failures=0), now, reset, current, {})


def _abandon_unpublished(region: Region, now: datetime, target: CheckpointNumber | None) -> Region:
    """Give up complete checkpoints beyond a forced target whose publication may be what is stuck."""
    gone = tuple(s for s in region.complete if (target is None or s > target) and s != region.restore_sequence)
    return retention.retired(region, now, [region.checkpoints[s] for s in gone]) if gone else region


def _begin_stopped(region: Region, now: datetime, reset: rows.PersonReset, resolved: SeekMap | None) -> Region:
    if resolved is None or resolved.open:
        missing = few(resolved.open) if resolved is not None else "all of them"
        raise errors.RegionInState(
            f"region {region.name} is stopped: the caller has to resolve every partition itself (missing: {missing})"
        )
    region = resets.gone_back_for_output(region, now, rows.ResetCause.PERSON)
    return resets.done_stopped(_opened(region, now, reset, resolved), now)


def _failed(region: Region, now: datetime, reset: rows.PersonReset, why: str) -> Region:
    region = region.with_person_reset_failed(now, reset, why)
    request = region.requests.get(reset.request_id)
    if request is None or request.purpose is not rows.CheckpointPurpose.RESET:
        return region
    return requests.cancel(region, now, why, [request])


def fail_all(region: Region, now: datetime, why: str) -> Region:
    """Return the region with every request of a person failed that has not started: what they wait for is not coming.

    One whose checkpoint is open ends with that (`begin_at_checkpoint`, `checkpoints.abort`), one that has started with
    its reset (`resets.give_up`).
    """
    open_request_id = None if region.checkpoint is None else region.checkpoint.request_id
    for reset in sorted(region.person_resets.values(), key=lambda r: r.order):
        if (
            reset.state in {rows.PersonResetState.WAITING, rows.PersonResetState.DRAINING}
            and reset.request_id != open_request_id
        ):
            region = _failed(region, now, reset, why)
    return region
