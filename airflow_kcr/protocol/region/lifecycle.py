"""The verbs of a region's life.

Four ways to stop, each with one meaning: **pause** finishes the batch and keeps membership; **drain** checkpoints, then
continues or stays paused; **stop** drains, commits everywhere, then all leave; **kill** leaves now, and the next start
resumes at the restore point. Draining and resuming is always safe. Verbs set `desired_state`, so a pause survives a
crash (scenario C24).
"""

from __future__ import annotations

from datetime import datetime

from airflow_kcr.errors import RegionInState
from airflow_kcr.protocol.region import (
    checkpoints,
    events,
    lost_logs,
    person_resets,
    publication,
    requests,
    resets,
    rows,
    specs,
    timelines,
)
from airflow_kcr.protocol.region.commands import ChangeDesiredState, DeclareRegion, KillRegion, RequestCheckpoint
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.values import MAX_NUMBER, DesiredState, Epoch, RegionName, RequestId, replace


def declare(name: RegionName, now: datetime, command: DeclareRegion) -> Region:
    """Return a new region, stopped."""
    spec, region_id = command.spec, command.region_id
    deliveries = {str(g): str(rules.delivery) for g, rules in spec.rules.groups.items()}
    region = Region(name=name, region_id=region_id, spec=spec)
    region = region.record(now, events.RegionCreated(region_id=region_id, deliveries=deliveries))
    for group, cluster in sorted(command.clusters.items()):
        region = lost_logs.cluster_found(region, now, group, cluster)
    return region


def change_desired_state(region: Region, now: datetime, command: ChangeDesiredState) -> Region:
    """Return the region on its way to what a person wants it to be.

    Raises:
        RegionInState: it is to pause, and is stopped or stopping.
    """
    match command.desired_state:
        case DesiredState.RUNNING:
            return start(region, now, command.requester)
        case DesiredState.PAUSED:
            return _paused(region, now, command.requester)
        case DesiredState.STOPPED:
            return _stopping(region, now, command.requester)


def start(region: Region, now: datetime, requester: rows.Requester) -> Region:
    """Return a stopped or halted region in its start, a reset: same targets, quiescing, fences, acknowledgements.

    In any other state nothing but `desired_state` changes: joining never raises the epoch.
    """
    region = region.wanting(now, DesiredState.RUNNING, requester)
    if region.stopping is not None:
        # Its last checkpoint is complete and the others still wait for its commit read-backs: no member has left, so
        # none has to start.
        region = replace(region, stopping=None).moved_to(now, rows.RegionState.RUNNING, "resumed before it had stopped")
    if region.state not in rows.RESTING:
        stops = (request for request in requests.queue(region) if request.purpose is rows.CheckpointPurpose.STOP)
        return requests.cancel(region, now, "the region was resumed", stops)
    is_behind = _is_restored(region) or not timelines.is_opened(region)
    opening, checkpoint = resets.restore_point_map(region), region.restore_checkpoint
    region = specs.take_pending(replace(region, failures=0), now)
    if not is_behind or region.restore_point is None:
        return resets.begin(region, now, rows.ResetCause.START, requester.who)
    # Sinks may hold what the store has forgotten, of timelines that it never heard of. In a newer one they go back to
    # the restore point as the store now has it, which is what the choice of a resume says.
    sequence = None if checkpoint is None else checkpoint.sequence
    return resets.open_timeline(region, now, rows.ResetCause.START, opening, requester.who, checkpoint=sequence)


def _is_restored(region: Region) -> bool:
    return region.halt is not None and region.halt.reason is rows.HaltReason.RESTORED


def _paused(region: Region, now: datetime, requester: rows.Requester) -> Region:
    """Return the region paused: batches in flight end, none begins, members keep their membership.

    A checkpoint that approaches a boundary is aborted, because no member will reach it; its request is repeated after
    the resume.
    """
    if region.state is rows.RegionState.STOPPED or region.desired_state is DesiredState.STOPPED:
        raise RegionInState(f"region {region.name} is stopped or stopping; start it, then pause it")
    region = region.wanting(now, DesiredState.PAUSED, requester)
    return _give_up_approach(region, now, "the region was paused")


def _give_up_approach(region: Region, now: datetime, why: str) -> Region:
    checkpoint = region.checkpoint
    if checkpoint is None or checkpoint.state is not rows.CheckpointState.APPROACHING:
        return region
    region = checkpoints.abort(region, now, why)
    if checkpoint.purpose not in requests.BY_PERSON:
        return region
    # A person's later word counts: what may approach in a paused region would be opened again at once.
    return requests.cancel(region, now, why, [region.requests[checkpoint.request_id]])


def _stopping(region: Region, now: datetime, requester: rows.Requester) -> Region:
    """Return the region on its way to STOPPED: a checkpoint, published and committed, then all leave.

    Without a live member it is stopped at once, marked undrained; so it is when halted, which can't drain (C60).
    """
    region = region.wanting(now, DesiredState.STOPPED, requester)
    if region.state is rows.RegionState.STOPPED:
        return region
    region = person_resets.fail_all(region, now, "the region was stopped")
    if not region.live_members(now) or region.state is rows.RegionState.HALTED:
        return stopped(region, now, drained=False)
    region = _give_up_approach(region, now, "the region was stopped")
    return ask_stop_checkpoint(region, now)


def ask_stop_checkpoint(region: Region, now: datetime) -> Region:
    """Return the region with the checkpoint of its stop asked for, if none is under way and one is possible.

    Also after a reset came between; not where it was halted meanwhile, which a person ends.
    """
    request_id = RequestId(f"stop:{region.epoch}:{region.restore_sequence}")
    if region.desired_state is not DesiredState.STOPPED or region.stopping is not None or region.state in rows.RESTING:
        return region
    if any(r.purpose is rows.CheckpointPurpose.STOP for r in requests.queue(region)):
        return region
    if region.checkpoint is not None and region.checkpoint.purpose is rows.CheckpointPurpose.STOP:
        return region
    return requests.ask(region, now, RequestCheckpoint(request_id=request_id, purpose=rows.CheckpointPurpose.STOP))


def stopped(region: Region, now: datetime, *, drained: bool) -> Region:
    """Return the region stopped: open checkpoint, requests and the running reset are given up.

    Leases end by themselves.
    """
    region = checkpoints.abort(region, now, "the region stopped")
    region = requests.cancel(region, now, "the region stopped", requests.queue(region))
    region = resets.give_up(region, now, "the region stopped; the next start goes to the restore point")
    region = resets.resolve_commit(region, now, rows.Committed.NO, "the region stopped first")
    region = timelines.taken_over_note(region, now)
    region = timelines.left_behind(region) if _is_restored(region) else region
    region = replace(region, stopping=None, halt=None, unserved=region.absent())
    return region.moved_to(now, rows.RegionState.STOPPED, "drained" if drained else "undrained")


def kill(region: Region, now: datetime, command: KillRegion) -> Region:
    """Return the region stopped in a new epoch: whatever runs is void, all leave now.

    The next start is at the restore point.
    """
    region = region.wanting(now, DesiredState.STOPPED, command.requester)
    region = person_resets.fail_all(region, now, "the region was killed")
    region = stopped(region, now, drained=False) if region.state is not rows.RegionState.STOPPED else region
    # A region whose epochs are used up is killed to be deleted; no member lives in it, so no epoch is needed to fence.
    region = replace(region, epoch=Epoch(min(region.epoch + 1, MAX_NUMBER)))
    body = events.Killed(epoch=region.epoch, requester=command.requester)
    return region.record(now, body)


def require_deletable(region: Region, now: datetime) -> None:
    """Refuse to delete a region that a member may still be working for.

    Raises:
        RegionInState: it is not stopped, or a member still holds a lease.
    """
    live = region.live_members(now)
    if region.state is not rows.RegionState.STOPPED or live:
        holders = f"; leases are held by {', '.join(map(str, live))}" if live else ""
        raise RegionInState(f"region {region.name} is {region.state}{holders}; stop it before deleting it")


def is_stop_due(region: Region, now: datetime) -> bool:
    """Whether a region whose desired state is stopped has no member left to drain it."""
    return (
        region.desired_state is DesiredState.STOPPED
        and region.state in rows.CLAIM_STATES
        and not region.live_members(now)
    )


def finish_stop(region: Region, now: datetime) -> Region:
    """Return the region stopped, where its stop has nothing left to wait for."""
    if publication.is_stop_done(region):
        return stopped(region, now, drained=True)
    return stopped(region, now, drained=False) if is_stop_due(region, now) else region
