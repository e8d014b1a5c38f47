"""The verbs of a region's life, and the transitions that time, leases and finished work cause without one.

Four ways to stop, each with one meaning: **pause** finishes the batch and keeps membership; **drain** checkpoints, then
continues or stays paused; **stop** drains, commits everywhere, then all leave; **kill** leaves now, and the next start
resumes at the restore point. Draining and resuming is always safe. Verbs set `desired_state`, so a pause survives a
crash (scenario C24).

There is no coordinator process; any process may perform what is due, and performing it twice changes nothing. Every
exclusive verb ends here, so that a decision and all its consequences are one transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from airflow_kcr.errors import RegionInState
from airflow_kcr.protocol.commands import (
    DeclareRegion,
    KillRegion,
    PauseRegion,
    ReportLater,
    ReportNoted,
    RequestCheckpoint,
    StartRegion,
    StopRegion,
)
from airflow_kcr.protocol.offsets import EMPTY
from airflow_kcr.protocol.region import (
    batches,
    boundaries,
    checkpoints,
    completion,
    coverage,
    events,
    lost_logs,
    membership,
    person_resets,
    resets,
    specs,
    timelines,
)
from airflow_kcr.protocol.region.rows import (
    RESET_STATES,
    CheckpointPhase,
    CheckpointPoint,
    CheckpointPurpose,
    CheckpointState,
    Committed,
    DesiredState,
    Halt,
    HaltReason,
    Member,
    Noted,
    PersonResetState,
    RegionState,
    Requester,
    ResetCause,
)
from airflow_kcr.protocol.region.state import Region, live_members, moved_to, put, record
from airflow_kcr.protocol.values import (
    MAX_NUMBER,
    CheckpointNumber,
    Epoch,
    GroupPartition,
    Incarnation,
    RegionName,
    RequestId,
    Timeline,
    replace,
)

_RESTORED_CHOICES: Final = (
    "compare the newest checkpoint with Kafka's committed offsets and the sinks",
    "resume: every record since the restored restore point is processed again",
    "apply a forced reset to the place that the sinks agree on",
)


def declare(name: RegionName, now: datetime, command: DeclareRegion) -> Region:
    """Return a new region, stopped."""
    spec, region_id = command.spec, command.region_id
    deliveries = {str(g): str(rules.delivery) for g, rules in spec.rules.groups.items()}
    region = Region(name=name, region_id=region_id, spec=spec)
    region = record(region, now, events.RegionCreated(region_id=region_id, deliveries=deliveries))
    for group, cluster in sorted(command.clusters.items()):
        region = lost_logs.cluster_found(region, now, group, cluster)
    return region


def _want(region: Region, now: datetime, wanted: DesiredState, requester: Requester) -> Region:
    if wanted is region.desired_state:
        return region
    return record(
        replace(region, desired_state=wanted),
        now,
        events.DesiredStateChanged(desired_state=wanted, requester=requester),
    )


def start(region: Region, now: datetime, command: StartRegion) -> Region:
    """Return a stopped or halted region in its start, a reset: same targets, quiescing, fences, acknowledgements.

    In any other state nothing but `desired_state` changes: joining never raises the epoch.
    """
    region = _want(region, now, DesiredState.RUNNING, command.requester)
    if region.stopping is not None:
        # Its last checkpoint is complete and the others still wait for its commit read-backs: no member has left, so
        # none has to start.
        region = moved_to(replace(region, stopping=None), now, RegionState.RUNNING, "resumed before it had stopped")
    if region.state not in {RegionState.STOPPED, RegionState.HALTED}:
        return checkpoints.cancel(region, now, "the region was resumed", purposes=frozenset({CheckpointPurpose.STOP}))
    opening = _at_restored_restore_point(region)
    region = specs.take_pending(replace(region, failures=0), now)
    return resets.begin(region, now, ResetCause.START, opening=opening, detail=command.requester.who)


def _at_restored_restore_point(region: Region) -> resets.Opening | None:
    """Return the opening of a resume after a restore.

    The restore point as the store now has it, in a timeline of its own.

    Sinks may hold what the store has forgotten, of timelines that it never heard of. In a newer one they go back to the
    restore point, which is what the choice of a resume says.
    """
    if region.halt is None or region.halt.reason is not HaltReason.RESTORED or region.restore_point is None:
        return None
    checkpoint = region.restore_checkpoint
    return resets.Opening(
        seek=resets.restore_point_map(region), checkpoint=None if checkpoint is None else checkpoint.sequence
    )


def pause(region: Region, now: datetime, command: PauseRegion) -> Region:
    """Return the region paused: batches in flight end, none begins, members keep their membership.

    A checkpoint that approaches a boundary is aborted, because no member will reach it; its request is repeated after
    the resume.

    Raises:
        RegionInState: it is stopped or stopping.
    """
    if region.state is RegionState.STOPPED or region.desired_state is DesiredState.STOPPED:
        raise RegionInState(f"region {region.name} is stopped or stopping; start it, then pause it")
    region = _want(region, now, DesiredState.PAUSED, command.requester)
    return _give_up_approach(region, now, "the region was paused")


def _give_up_approach(region: Region, now: datetime, why: str) -> Region:
    checkpoint = region.checkpoint
    if checkpoint is None or checkpoint.phase is not CheckpointPhase.APPROACHING:
        return region
    region = checkpoints.abort(region, now, why)
    if checkpoint.purpose not in checkpoints.BY_PERSON:
        return region
    # A person's later word counts: what may approach in a paused region would be opened again at once.
    return checkpoints.cancel_one(region, now, region.requests[checkpoint.request_id], why)


def stop(region: Region, now: datetime, command: StopRegion) -> Region:
    """Return the region on its way to STOPPED: a checkpoint, published and committed, then all leave.

    Without a live member it is stopped at once, marked undrained; so it is when halted, which can't drain (C60).
    """
    region = _want(region, now, DesiredState.STOPPED, command.requester)
    if region.state is RegionState.STOPPED:
        return region
    region = person_resets.fail_all(region, now, "the region was stopped")
    if not live_members(region, now) or region.state is RegionState.HALTED:
        return stopped(region, now, drained=False)
    region = _give_up_approach(region, now, "the region was stopped")
    return ask_stop_checkpoint(region, now)


def ask_stop_checkpoint(region: Region, now: datetime) -> Region:
    """Return the region with the checkpoint of its stop asked for, if none is under way and one is possible.

    Also after a reset came between; not where it was halted meanwhile, which a person ends.
    """
    request_id = RequestId(f"stop:{region.epoch}:{region.restore_sequence}")
    if (
        region.desired_state is not DesiredState.STOPPED
        or region.stopping is not None
        or region.state in {RegionState.HALTED, RegionState.STOPPED}
    ):
        return region
    if any(r.purpose is CheckpointPurpose.STOP for r in checkpoints.queue(region)):
        return region
    if region.checkpoint is not None and region.checkpoint.purpose is CheckpointPurpose.STOP:
        return region
    return checkpoints.ask(region, now, RequestCheckpoint(request_id=request_id, purpose=CheckpointPurpose.STOP))


def stopped(region: Region, now: datetime, *, drained: bool) -> Region:
    """Return the region stopped: open checkpoint, requests and the running reset are given up.

    Leases end by themselves.
    """
    region = checkpoints.abort(region, now, "the region stopped")
    every = frozenset(CheckpointPurpose)
    region = checkpoints.cancel(region, now, "the region stopped", purposes=every)
    region = resets.give_up(region, now, "the region stopped; the next start goes to the restore point")
    region = resets.resolve_commit(region, now, Committed.NO, "the region stopped first")
    region = timelines.taken_over_note(region, now)
    region = record(replace(region, stopping=None, halt=None, unowned={}), now, events.Stopped(drained=drained))
    return moved_to(region, now, RegionState.STOPPED, "drained" if drained else "undrained")


def kill(region: Region, now: datetime, command: KillRegion) -> Region:
    """Return the region stopped in a new epoch: whatever runs is void, all leave now.

    The next start is at the restore point.
    """
    region = _want(region, now, DesiredState.STOPPED, command.requester)
    region = person_resets.fail_all(region, now, "the region was killed")
    region = stopped(region, now, drained=False) if region.state is not RegionState.STOPPED else region
    # A region whose epochs are used up is killed to be deleted; no member lives in it, so no epoch is needed to fence.
    region = replace(region, epoch=Epoch(min(region.epoch + 1, MAX_NUMBER)))
    body = events.Killed(epoch=region.epoch, requester=command.requester)
    return record(region, now, body)


def require_deletable(region: Region, now: datetime) -> None:
    """Refuse to delete a region that a member may still be working for.

    Raises:
        RegionInState: it is not stopped, or a member still holds a lease.
    """
    live = live_members(region, now)
    if region.state is not RegionState.STOPPED or live:
        holders = f"; leases are held by {', '.join(map(str, live))}" if live else ""
        raise RegionInState(f"region {region.name} is {region.state}{holders}; stop it before deleting it")


def seen_later(region: Region, now: datetime, memory: ReportLater) -> Region:
    """Return the region halted, if the store is older than what a member has already acted on (scenario C33).

    The numbers are raised above everything that was seen, so that nothing is ever used twice once a person resumes.
    """
    row = region.members.get(memory.member)
    incarnation = Incarnation(0) if row is None else row.incarnation
    later = [
        f"{what} {seen}, the store has {held}"
        for what, seen, held in (
            ("epoch", memory.epoch, region.epoch),
            ("incarnation", memory.incarnation, incarnation),
            ("sequence", memory.sequence, region.next_sequence - 1),
            ("timeline", memory.timeline, region.timeline),
            ("event", memory.counter, region.counter),
        )
        if seen > held
    ]
    later += [f"{partition} at {offset}, which the store has not" for partition, offset in memory.positions.items()]
    # Every member tells this once; the first one is enough. A resume after a restore opens a timeline: who was frozen
    # until then has nothing to tell any more.
    is_told = region.halt is not None and region.halt.reason is HaltReason.RESTORED
    if memory.event is not None and not is_told and memory.timeline >= region.timeline:
        number, at = memory.event.number, memory.event.at
        later.append(f"event {number} recorded at {at.isoformat()}, and the store has another one by this number")
    if not later:
        return region
    text = f"the store was restored from an older state: {memory.member} has seen {'; '.join(later)}"
    region = resets.give_up(region, now, "the store was restored; a resume goes to the restore point")
    region = replace(
        region,
        epoch=Epoch(max(region.epoch, memory.epoch)),
        timeline=Timeline(max(region.timeline, memory.timeline)),
        next_sequence=CheckpointNumber(max(region.next_sequence, memory.sequence + 1)),
    )
    if memory.incarnation > incarnation:
        row = row or Member(member=memory.member, incarnation=incarnation, left=True)
        region = membership.with_predecessor_fenced(region, memory.member)
        raised = replace(row, incarnation=memory.incarnation)
        region = replace(region, members=put(region.members, {memory.member: raised}))
    region = record(region, now, events.StoreRestoredSeen(member=memory.member, detail="; ".join(later)))
    kept = None if region.halt is None else region.halt.noted
    reason = Halt(reason=HaltReason.RESTORED, text=text, choices=_RESTORED_CHOICES, noted=kept)
    return resets.halt(region, now, reason)


def noted_later(region: Region, now: datetime, report: ReportNoted) -> Region:
    """Return the region halted, if Kafka's commit metadata knows later numbers than the store; none is raised yet.

    A halted or stopped region stays as it is: when it starts, its members check again.
    """
    partition, note = report.partition, report.noted
    if region.state in {RegionState.HALTED, RegionState.STOPPED}:
        return _also_noted(region, now, note)
    later = "; ".join(timelines.noted_later(region, note))
    if not later:
        return region
    where = f"Kafka's commit metadata of {partition}, read by {note.member}, says {later}"
    region = resets.give_up(region, now, "Kafka knows later numbers than the store; a resume goes to the restore point")
    region = record(region, now, events.StoreRestoredSeen(member=note.member, detail=later))
    if timelines.is_reachable_note(region, note):
        reason = Halt(
            reason=HaltReason.RESTORED,
            text=f"the store was restored from an older state, or another client has written this: {where}",
            choices=(*_RESTORED_CHOICES, _overwrite(region, partition)),
            noted=note,
        )
    else:
        reason = Halt(
            reason=HaltReason.RESTORED,
            text=f"another client has written this, as no region gets there: {where}",
            choices=(f"find who else may commit to group {partition.group}", _overwrite(region, partition)),
        )
    return resets.halt(region, now, reason)


def _also_noted(region: Region, now: datetime, note: Noted) -> Region:
    """Keep the greatest numbers of several notes, where the region was halted for one of them."""
    halt = region.halt
    if halt is None or halt.noted is None or not timelines.is_reachable_note(region, note):
        return region
    greatest = replace(
        halt.noted,
        epoch=max(halt.noted.epoch, note.epoch),
        sequence=max(halt.noted.sequence, note.sequence),
        timeline=max(halt.noted.timeline, note.timeline),
    )
    if greatest == halt.noted:
        return region
    detail = "; ".join(timelines.noted_later(region, note))
    return record(
        replace(region, halt=replace(halt, noted=greatest)),
        now,
        events.StoreRestoredSeen(member=note.member, detail=detail),
    )


def _overwrite(region: Region, partition: GroupPartition) -> str:
    """Return how to remove a note that another program has written."""
    point = region.restore_point
    if isinstance(point, CheckpointPoint) and partition in region.offsets.get(point.sequence, EMPTY):
        how = f"kcr checkpoint repair {region.name} {point.sequence}"
    else:
        how = f"kafka-consumer-groups.sh --delete-offsets --group {partition.group} --topic {partition.topic}"
    return (
        f"if the store was not restored: stop the region (kcr region stop {region.name}); once its members have left, "
        f"overwrite what was written ({how}), then start it (kcr region start {region.name})"
    )


def is_stop_due(region: Region, now: datetime) -> bool:
    """Whether a region whose desired state is stopped has no member left to drain it."""
    return (
        region.desired_state is DesiredState.STOPPED
        and region.state in {RegionState.RUNNING, RegionState.DRAINING, *RESET_STATES}
        and not live_members(region, now)
    )


def finish_stop(region: Region, now: datetime) -> Region:
    """Return the region stopped, where its stop has nothing left to wait for."""
    if completion.is_stop_done(region):
        return stopped(region, now, drained=True)
    return stopped(region, now, drained=False) if is_stop_due(region, now) else region


# Reconciliation

_RULES: Final[tuple[Callable[[Region, datetime], Region], ...]] = (
    membership.lapse,
    specs.unattended,
    specs.corrected,
    checkpoints.overdue,
    completion.overdue,
    resets.output_lost,
    resets.progress,
    boundaries.past_answered,
    boundaries.held,
    finish_stop,
    ask_stop_checkpoint,
)
_MAX_ROUNDS: Final = 100
"""Each round completes at least one thing; a region has never needed more than a handful."""


def reconcile(region: Region, now: datetime) -> Region:
    """Return the region with everything done that is due at `now`, and `reconcile_at` set to when something next is."""
    for _ in range(_MAX_ROUNDS):
        before = region
        for rule in _RULES:
            region = rule(region, now)
        region = _serve(region, now)
        if region is before or region.counter == before.counter:
            break
    return replace(region, reconcile_at=_reconcile_at(region, now))


def _serve(region: Region, now: datetime) -> Region:
    """Serve what waits for a running region: persons' resets, the boundary or count that is reached, the queue."""
    if region.state in {RegionState.HALTED, RegionState.STOPPED}:
        why = f"the region is {region.state}"
        region = checkpoints.cancel(region, now, why, purposes=frozenset(CheckpointPurpose))
        return _fail_waiting(region, now, why)
    if region.state is not RegionState.RUNNING:
        return region
    region = person_resets.serve_next(region, now)
    boundary = boundaries.passed(region, now)
    if boundary is not None and region.desired_state is DesiredState.RUNNING:
        if boundary != region.next_boundary:
            region = boundaries.with_next_boundary(
                region, now, boundary, "earlier boundaries were missed; the latest one counts"
            )
        request_id = RequestId(f"boundary:{boundary.isoformat()}")
        # There is no one to ask whether it may be inexact; refused, it would be requested for ever.
        scheduled = RequestCheckpoint(
            request_id=request_id, purpose=CheckpointPurpose.SCHEDULE, boundary=boundary, allow_inexact=True
        )
        region = checkpoints.ask(region, now, scheduled)
    if left := batches.records_left(region):
        region = checkpoints.cancel_counted(region, now, f"its count is not reached any more: {left} offsets are left")
    elif left == 0 and region.desired_state is DesiredState.RUNNING:
        request_id = RequestId(f"{checkpoints.BY_COUNT}{region.timeline}.{region.restore_sequence}")
        region = checkpoints.ask(
            region, now, RequestCheckpoint(request_id=request_id, purpose=CheckpointPurpose.SCHEDULE)
        )
    region = checkpoints.advance(region, now)
    return checkpoints.open_next(region, now) if region.state is RegionState.RUNNING else region


def _fail_waiting(region: Region, now: datetime, why: str) -> Region:
    drained = {PersonResetState.WAITING, PersonResetState.DRAINING}
    unfinished = any(r.state in drained for r in region.person_resets.values())
    return person_resets.fail_all(region, now, why) if unfinished else region


def _reconcile_at(region: Region, now: datetime) -> datetime | None:
    """Return the next moment at which `reconcile` could change something by itself.

    A lease that is renewed meanwhile makes the moment come too early, never too late.
    """
    moments: list[datetime | None] = []
    checkpoint, reset, restore_point = region.checkpoint, region.reset, region.restore_checkpoint
    if checkpoint is not None:
        moments += [checkpoint.drain_deadline, coverage.horizon(region, now)]
    if reset is not None:
        moments += [reset.deadline, coverage.horizon(region, now)]
    if restore_point is not None and restore_point.committed is Committed.PENDING:
        moments.append(restore_point.commit_deadline)
    moments += [c.publish_deadline for c in region.checkpoints.values() if c.state is CheckpointState.COMPLETE]
    if region.desired_state is DesiredState.STOPPED and region.state is not RegionState.STOPPED:
        moments.append(coverage.horizon(region, now))
    if region.state is RegionState.RUNNING:
        moments.append(boundaries.held_until(region))
    if region.state is RegionState.RUNNING and boundaries.is_automatic(region):
        moments.append(region.next_boundary)
    if region.next_spec is not None:
        moments.append(coverage.horizon(region, now))
    if any(True for _ in checkpoints.queue(region)) and region.state is RegionState.RUNNING:
        moments.append(coverage.horizon(region, now))
    if region.state is RegionState.RUNNING:
        moments.append(region.retire_at)
    later = [m for m in moments if m is not None]
    return min((max(m, now + _SOONEST) for m in later), default=None)


_SOONEST: Final = timedelta(milliseconds=100)
"""What can't be reconciled yet (a boundary behind an unpublished checkpoint) is not asked for in a busy loop."""
