"""What follows from a member's facts: which state it is in, and what it wants done next.

This is level-triggered: it looks at the facts, not at the event that brought the last one, so a lost or repeated hint
changes nothing. `awaited` keeps an effect from being asked for twice; each rule below asks for one thing. The order of
the rules is the order of importance: the lease, the end, the reset, the cut, and only then the next batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Final, TypeAlias

from airflow_kcr.errors import IllegalEvent
from airflow_kcr.protocol.member import effects
from airflow_kcr.protocol.member.effects import Effect
from airflow_kcr.protocol.member.state import ACTIVE, Member, MyBatch, Phase, State, Why, awaiting, moved
from airflow_kcr.protocol.offsets import EMPTY, OffsetMap
from airflow_kcr.protocol.region.acknowledgement import Caller
from airflow_kcr.protocol.region.batches import BatchRequest
from airflow_kcr.protocol.region.claims import CLAIM_STATES
from airflow_kcr.protocol.region.completion import Part
from airflow_kcr.protocol.region.lifecycle import Memory
from airflow_kcr.protocol.region.rows import CutPhase, RegionState, ResetCause, Wanted
from airflow_kcr.protocol.region.state import RESET_STATES
from airflow_kcr.protocol.region.view import MemberView
from airflow_kcr.protocol.values import GroupPartition, Incarnation, Offset

Driven: TypeAlias = tuple[Member, tuple[Effect, ...]]

PLAN_PAUSE: Final = 0.1
"""Seconds before the planner is asked again where nothing was there to process."""

_OUT: Final = frozenset({RegionState.STOPPED})


def drive(member: Member, now: float) -> Driven:
    """Return the member in the state that its facts put it in, and the effects it wants.

    Args:
        member: the member, its newest fact recorded.
        now: monotonic seconds.
    """
    wanted: list[Effect] = []
    for rule in _RULES:
        member, more = rule(member, now)
        wanted.extend(more)
    return member, tuple(wanted)


def seconds(duration: timedelta) -> float:
    """Return a duration in seconds, as the member's clock counts."""
    return duration.total_seconds()


def without_lease(member: Member) -> Member:
    """Return the member whose lease is lost: its batch is void, and it comes back as a new incarnation."""
    batch = None if member.batch is None else replace(member.batch, doomed=True)
    lost = replace(
        member,
        incarnation=None,
        batch=batch,
        batch_cause=None,
        claimed=None,
        claimed_epoch=None,
        positions=EMPTY,
        reset_epoch=None,
        found=None,
        prepared=None,
        view=None,
        view_is_stale=True,
        plan=None,
    )
    return moved(lost, State.JOINING) if member.state in ACTIVE else lost


# -- lease and registration ----------------------------------------------------------------------------------------


def _lease(member: Member, now: float) -> Driven:
    """A lease is judged by the age of its last renewal, from before that was sent."""
    if member.incarnation is None or member.state not in ACTIVE:
        return member, ()
    age = now - member.lease_sent_at
    if age >= seconds(member.timeouts.lease):
        return without_lease(member), ()
    if age >= seconds(member.timeouts.renew) and "renew" not in member.awaited:
        return awaiting(member, "renew"), (effects.Renew(incarnation=member.incarnation),)
    return member, ()


def _register(member: Member, now: float) -> Driven:
    if member.incarnation is not None or member.state not in ACTIVE or "register" in member.awaited:
        return member, ()
    if member.terminating or member.refusal:
        return member, ()
    return awaiting(member, "register"), (effects.Register(previous=member.previous),)


def _read(member: Member, now: float) -> Driven:
    if member.incarnation is None or member.state not in ACTIVE or not member.view_is_stale:
        return member, ()
    if "read" in member.awaited:
        return member, ()
    return awaiting(member, "read"), (effects.Read(),)


def _settle(member: Member, now: float) -> Driven:
    """Have the region look again: something is due, or this member has just reached the bound of an approaching cut."""
    view = member.view
    if view is None or member.state not in ACTIVE:
        return member, ()
    cut = view.cut
    arrived = cut is not None and cut.phase is CutPhase.APPROACHING and _is_at_limit(member, view)
    if arrived and cut is not None and member.settled_for != cut.sequence and member.batch is None:
        return replace(member, settled_for=cut.sequence, due=False), (effects.Settle(),)
    if member.due:
        return replace(member, due=False), (effects.Settle(),)
    return member, ()


def _report_later(member: Member, now: float) -> Driven:
    """A store that shows lower numbers than the member has seen was restored: the region must not go on by itself."""
    view, mine = member.view, member.incarnation
    if view is None or mine is None or member.state not in ACTIVE or member.view_is_stale:
        return member, ()
    if view.epoch >= member.newest_epoch and view.incarnation >= mine:
        return member, ()
    memory = Memory(member=member.member, epoch=member.newest_epoch, incarnation=mine, sequence=member.newest_sequence)
    return replace(member, view_is_stale=True), (effects.ReportLater(memory=memory),)


# -- the end -------------------------------------------------------------------------------------------------------


def _store_away(member: Member, now: float) -> Driven:
    """Leave the group when the store has been away too long, so that the partitions move to those who can work."""
    if member.state not in ACTIVE or member.terminating:
        return member, ()
    if member.store_lost_at is None:
        back = member.state is State.HOLDING and member.why is Why.STORE_AWAY
        return (moved(member, State.JOINING), ()) if back else (member, ())
    if now - member.store_lost_at < seconds(member.timeouts.store_grace):
        return member, ()
    member = moved(_doomed(member), State.HOLDING, Why.STORE_AWAY)
    return _leave_group(member, effects.LeaveGroup())


def _leave_group(member: Member, how: effects.LeaveGroup | effects.CloseKeepingSlot) -> Driven:
    if not member.in_group or "leave" in member.awaited:
        return member, ()
    return awaiting(member, "leave"), (how,)


def _doomed(member: Member) -> Member:
    if member.batch is None or member.batch.doomed:
        return member
    return replace(member, batch=replace(member.batch, doomed=True))


def _fenced(member: Member, now: float) -> Driven:
    """Write nothing; stop the batch, and close without touching the slot, which is somebody else's now."""
    if member.state is not State.FENCED:
        return member, ()
    return _leave_group(_doomed(member), effects.CloseKeepingSlot())


def _terminate(member: Member, now: float) -> Driven:
    """End within the close time: half of it for the batch to finish, the rest for its cancellation."""
    if not member.terminating or member.state not in ACTIVE:
        return member, ()
    if member.batch is not None:
        spent = now - member.terminated_at
        if spent >= seconds(member.timeouts.close):
            return member, (effects.EndProcess(why="the batch did not end within the close time"),)
        return (_doomed(member) if spent >= seconds(member.timeouts.close) / 2 else member), ()
    if member.in_group:
        return _leave_group(member, effects.CloseKeepingSlot() if member.static else effects.LeaveGroup())
    told: tuple[Effect, ...] = ()
    if member.incarnation is not None:
        keep = effects.KeepSlot(incarnation=member.incarnation)
        told = (keep if member.static else effects.LeaveStore(incarnation=member.incarnation),)
    return moved(member, State.CLOSED), told


def _leave(member: Member, now: float) -> Driven:
    """Leave for good: the region stopped, the spec has no place for this member, or the store refused it."""
    view = member.view
    if member.state not in ACTIVE or member.terminating:
        return member, ()
    out = view is not None and (view.state in _OUT or view.left)
    if not out and not (member.refusal and member.incarnation is None):
        return member, ()
    member = _doomed(member)
    if member.batch is not None and member.incarnation is not None:
        return member, ()
    if member.in_group:
        return _leave_group(member, effects.LeaveGroup())
    told = () if member.incarnation is None else (effects.LeaveStore(incarnation=member.incarnation),)
    return moved(member, State.CLOSED), told


# -- the batch -----------------------------------------------------------------------------------------------------


def _doom(member: Member, now: float) -> Driven:
    """Decide whether the batch may still count: not in another epoch, not without its partitions, not for ever."""
    batch, view = member.batch, member.view
    if batch is None or batch.doomed:
        return member, ()
    if view is not None and (view.epoch != batch.epoch or view.state is RegionState.HALTED):
        return _doomed(member), ()
    assignment = member.assignment
    if assignment is not None and not batch.ranges.keys() <= assignment.partitions:
        detail = f"batch {batch.batch} lost a partition to a rebalance"
        return replace(_doomed(member), batch_cause=ResetCause.BATCH_REFUSED, batch_detail=detail), ()
    if batch.phase is Phase.RUNNING and now - batch.since >= seconds(member.timeouts.batch):
        detail = f"batch {batch.batch} took longer than {member.timeouts.batch}"
        return replace(_doomed(member), batch_cause=ResetCause.BATCH_TIMEOUT, batch_detail=detail), ()
    return member, ()


def _batch(member: Member, now: float) -> Driven:
    """Take the batch to its next phase."""
    batch = member.batch
    if batch is None:
        return member, ()
    match batch.phase:
        case Phase.RUNNING if "run" in member.awaited and not batch.doomed:
            member = replace(member, awaited=member.awaited - {"run"})
            progress = OffsetMap({p: past_skips(member.view, p, r.to) for p, r in batch.ranges.items()})
            return member, (effects.Run(batch=batch.batch, ranges=batch.ranges, progress=progress),)
        case Phase.RUNNING if "run" in member.awaited:
            member = replace(member, awaited=member.awaited - {"run"})
            return _batch(_in(member, batch, Phase.QUIET, now), now)
        case Phase.RUNNING if batch.doomed:
            return _in(member, batch, Phase.CANCELLING, now), (effects.Cancel(batch=batch.batch),)
        case Phase.CANCELLING if now - batch.since >= seconds(member.timeouts.process_end_bound):
            return member, (effects.EndProcess(why=f"batch {batch.batch} did not become quiet after its cancellation"),)
        case Phase.QUIET:
            return _close(member, batch, now)
        case _:
            return member, ()


def _in(member: Member, batch: MyBatch, phase: Phase, now: float) -> Member:
    return replace(member, batch=replace(batch, phase=phase, since=now))


def _close(member: Member, batch: MyBatch, now: float) -> Driven:
    """End a quiet batch, or have it discarded; a fenced member writes nothing, one without lease waits for one."""
    if member.state is State.FENCED:
        return replace(member, batch=None), ()
    if member.incarnation is None:
        gone = member.terminating or member.refusal
        return (replace(member, batch=None) if gone else member), ()
    if not batch.doomed and batch.incarnation == member.incarnation:
        end = effects.End(batch=batch.batch, incarnation=batch.incarnation)
        return _in(member, batch, Phase.ENDING, now), (end,)
    discard = effects.Discard(batch=batch.batch, incarnation=member.incarnation)
    return _in(member, replace(batch, doomed=True), Phase.DISCARDING, now), (discard,)


def _ask_reset(member: Member, now: float) -> Driven:
    """Ask for the reset that a batch, or a sink, made necessary, in the epoch that it was begun in."""
    if member.batch_cause is None or member.incarnation is None or member.state not in ACTIVE:
        return member, ()
    cause, detail = member.batch_cause, member.batch_detail
    epoch = member.batch.epoch if member.batch is not None else member.newest_epoch
    member = replace(member, batch_cause=None, batch_detail="", view_is_stale=True)
    caller = Caller(member=member.member, incarnation=_own(member), epoch=epoch)
    return member, (effects.RequestReset(caller=caller, cause=cause, detail=detail),)


# -- joining and the reset -----------------------------------------------------------------------------------------


def _join(member: Member, now: float) -> Driven:
    view = member.view
    if member.in_group or view is None or not _is_well(member) or "leave" in member.awaited:
        return member, ()
    if view.state not in CLAIM_STATES:
        return member, ()
    return replace(member, in_group=True), (effects.Join(),)


def _claim(member: Member, now: float) -> Driven:
    """Claim the assignment, when nothing of an older epoch runs and Kafka still says that it is assigned."""
    view, assignment = member.view, member.assignment
    if view is None or assignment is None or not _is_well(member) or "claim" in member.awaited:
        return member, ()
    if view.state not in CLAIM_STATES or has_claimed(member, view) or now < member.claim_after:
        return member, ()
    if member.batch is not None and (member.batch.doomed or member.batch.epoch != view.epoch):
        return member, ()
    claim = effects.Claim(incarnation=_own(member), assignment=assignment.assignment, partitions=assignment.partitions)
    return awaiting(member, "claim"), (claim,)


def _reset(member: Member, now: float) -> Driven:
    """Carry out the reset: the sinks first, with their fences before anything is read, then the acknowledgement."""
    view = member.view
    if view is None or view.state not in RESET_STATES or not _is_well(member) or member.batch is not None:
        return member, ()
    if not has_claimed(member, view) or (view.acknowledged and not view.open) or member.view_is_stale:
        return member, ()
    if member.reset_epoch != view.epoch:
        if "reset_sinks" in member.awaited:
            return member, ()
        member = awaiting(replace(member, reset_epoch=view.epoch, found=None), "reset_sinks")
        resume = OffsetMap({p: c.resume for p, c in view.claims.items() if c.resume is not None})
        reset = effects.ResetSinks(
            epoch=view.epoch, resume=resume, open=view.open, target=view.target, skips=view.skips
        )
        return member, (reset,)
    if member.found is None or "acknowledge" in member.awaited:
        return member, ()
    caller = Caller(member=member.member, incarnation=_own(member), epoch=view.epoch)
    return awaiting(member, "acknowledge"), (effects.Acknowledge(caller=caller, found=member.found),)


# -- the cut -------------------------------------------------------------------------------------------------------


def _contribute(member: Member, now: float) -> Driven:
    """Prepare the sinks, then contribute, once nothing of this member runs."""
    view = member.view
    cut = None if view is None else view.cut
    if view is None or cut is None or cut.phase is not CutPhase.DRAINING or not cut.on_roster or cut.contributed:
        return member, ()
    if member.batch is not None or not _is_well(member) or not has_claimed(member, view):
        return member, ()
    if member.contributed == cut.sequence or member.awaited & {"prepare", "contribute", "plan"}:
        return member, ()
    if member.part is None or member.prepared != cut.sequence:
        partitions = frozenset(member.positions)
        prepare = effects.PrepareSinks(sequence=cut.sequence, partitions=partitions)
        return awaiting(replace(member, prepared=cut.sequence, part=None), "prepare"), (prepare,)
    part = Part(
        sequence=cut.sequence,
        member=member.member,
        incarnation=_own(member),
        epoch=view.epoch,
        offsets=member.positions,
        committed=member.part.committed,
        bounds=member.part.bounds,
    )
    return awaiting(member, "contribute"), (effects.Contribute(part=part),)


def _commit(member: Member, now: float) -> Driven:
    """Commit the base's offsets, only while assigned; read back they are the echo."""
    view = member.view
    if view is None or view.commit is None or view.commit == member.commit_done or not _is_well(member):
        return member, ()
    if not has_claimed(member, view) or member.assignment is None or "commit" in member.awaited:
        return member, ()
    offsets = OffsetMap({p: c.resume for p, c in view.claims.items() if c.resume is not None})
    member = awaiting(replace(member, commit_since=now), "commit")
    return member, (effects.Commit(sequence=view.commit, offsets=offsets, epoch=view.epoch),)


def _echo(member: Member, now: float) -> Driven:
    committed = member.committed
    if committed is None:
        return member, ()
    member = replace(member, committed=None, commit_done=committed.sequence)
    if not committed.offsets or member.incarnation is None:
        return member, ()
    echo = effects.Echo(sequence=committed.sequence, incarnation=member.incarnation, offsets=committed.offsets)
    return member, (echo,)


def _publish(member: Member, now: float) -> Driven:
    view = member.view
    if view is None or not view.publish or not _is_well(member) or "publish" in member.awaited:
        return member, ()
    return awaiting(member, "publish"), (effects.Publish(sequence=view.publish[0]),)


def _commit_seek(member: Member, now: float) -> Driven:
    """After a reset, tell Kafka where the partitions resumed; a cut's own commit comes first."""
    view = member.view
    if view is None or view.state is not RegionState.RUNNING or not _is_well(member) or view.commit is not None:
        return member, ()
    if member.seek_committed == view.epoch or not has_claimed(member, view) or not view.acknowledged:
        return member, ()
    member = replace(member, seek_committed=view.epoch)
    resume = OffsetMap({p: c.resume for p, c in view.claims.items() if c.resume is not None})
    caller = Caller(member=member.member, incarnation=_own(member), epoch=view.epoch)
    return member, (effects.CommitSeek(caller=caller, offsets=resume),) if resume else ()


# -- processing ----------------------------------------------------------------------------------------------------


def _place(member: Member, now: float) -> Driven:
    """Put the member into the state that its facts mean."""
    if member.state not in ACTIVE or (member.state is State.HOLDING and member.why is Why.STORE_AWAY):
        return member, ()
    view = member.view
    if member.incarnation is None or view is None:
        return moved(member, State.JOINING), ()
    if view.state is RegionState.HALTED or (member.batch is not None and member.batch.epoch != view.epoch):
        return moved(member, State.HOLDING, Why.RESET), ()
    if not has_claimed(member, view):
        return moved(member, State.JOINING), ()
    if view.state in RESET_STATES or not view.acknowledged:
        return moved(member, State.READY), ()
    return _processing(member, view, now), ()


def _processing(member: Member, view: MemberView, now: float) -> Member:
    approaching = view.cut is not None and view.cut.phase is CutPhase.APPROACHING
    if view.state is RegionState.DRAINING or _is_committing(member, view, now):
        return moved(member, State.HOLDING, Why.DRAINED)
    if view.wanted is not Wanted.RUNNING and not approaching:
        return moved(member, State.HOLDING, Why.PAUSED)
    if member.batch is None and _is_at_limit(member, view):
        return moved(member, State.HOLDING, Why.BOUND)
    return moved(member, State.PROCESSING)


def _is_committing(member: Member, view: MemberView, now: float) -> bool:
    """Whether the member still waits for its own commit; it goes on after the commit timeout without."""
    if view.commit is None or view.commit == member.commit_done:
        return False
    waited = now - member.commit_since if "commit" in member.awaited else 0.0
    return waited < seconds(member.timeouts.commit)


def _plan(member: Member, now: float) -> Driven:
    """Ask for the next ranges while the last ones are done, begin what was planned."""
    if member.plan is not None:
        return _planned(member, now)
    view = member.view
    if member.state is not State.PROCESSING or view is None or member.batch is not None or member.terminating:
        return member, ()
    if "plan" in member.awaited or now < member.plan_after or not member.positions or member.view_is_stale:
        return member, ()
    return awaiting(member, "plan"), (effects.Plan(positions=member.positions, view=view),)


def _planned(member: Member, now: float) -> Driven:
    """Use a plan if the member may still begin; what it found about logs and bounds is told in any case."""
    plan, view = member.plan, member.view
    member = replace(member, plan=None)
    if plan is None or view is None or member.incarnation is None or not has_claimed(member, view):
        return member, ()
    caller = Caller(member=member.member, incarnation=_own(member), epoch=view.epoch)
    told: list[Effect] = []
    if plan.outside:
        told.append(effects.ReportOutOfRange(caller=caller, observed=plan.outside))
    if plan.bounds and plan.bound is not None:
        told.append(effects.StoreBounds(caller=caller, bound=plan.bound, found=plan.bounds))
    if told:
        member = replace(member, view_is_stale=True)
    fits = all(member.positions.get(p) == r.from_ for p, r in plan.ranges.items())
    usable = plan.ranges and fits and member.state is State.PROCESSING and member.batch is None and not plan.outside
    if not usable or member.terminating:
        return replace(member, plan_after=now if told else now + PLAN_PAUSE), tuple(told)
    batch = MyBatch(
        batch=plan.batch,
        ranges=plan.ranges,
        epoch=view.epoch,
        incarnation=_own(member),
        phase=Phase.BEGINNING,
        since=now,
    )
    request = BatchRequest(
        batch=plan.batch,
        member=member.member,
        incarnation=_own(member),
        epoch=view.epoch,
        ranges=plan.ranges,
    )
    return replace(member, batch=batch), (*told, effects.Begin(request=request))


def _is_at_limit(member: Member, view: MemberView) -> bool:
    """Whether every partition of the member is at the bound, or beyond."""
    if view.limit is None or not view.claims:
        return view.limit is not None and view.cut is not None
    return all(
        p in view.bound_offsets and member.positions.get(p, -1) >= view.bound_offsets[p].offset for p in view.claims
    )


def has_claimed(member: Member, view: MemberView) -> bool:
    """Whether the member's present assignment is claimed in the region's present epoch."""
    assignment = member.assignment
    return (
        assignment is not None
        and member.claimed == assignment.assignment
        and member.claimed_epoch == view.epoch
        and view.claims.keys() == assignment.partitions
    )


def _is_well(member: Member) -> bool:
    """Whether the member holds a lease and means to stay."""
    return (
        member.incarnation is not None
        and member.state in ACTIVE
        and not member.terminating
        and member.why is not Why.STORE_AWAY
    )


def past_skips(view: MemberView | None, partition: GroupPartition, offset: Offset) -> Offset:
    """Return the next offset at or after `offset` that is not skipped, as far as the view tells."""
    for skipped in () if view is None else view.skips.get(partition, ()):
        if skipped == offset:
            offset = Offset(skipped + 1)
    return offset


def _own(member: Member) -> Incarnation:
    """Return the incarnation of a member that holds a lease."""
    if member.incarnation is None:
        raise IllegalEvent(f"{member.member} has no lease; nothing can be asked in its name")
    return member.incarnation


_RULES: Final[tuple[Callable[[Member, float], Driven], ...]] = (
    _lease,
    _report_later,
    _doom,
    _store_away,
    _fenced,
    _terminate,
    _leave,
    _ask_reset,
    _batch,
    _register,
    _join,
    _claim,
    _reset,
    _contribute,
    _echo,
    _commit,
    _publish,
    _place,
    _commit_seek,
    _settle,
    _plan,
    _read,
)
