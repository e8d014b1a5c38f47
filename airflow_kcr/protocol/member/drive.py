"""What follows from a member's facts: which state it is in, how its batch continues, and what it wants done next.

This is level-triggered: it reads the facts, not the event that brought the last one, so a lost or repeated notification
changes nothing. `awaited` keeps an effect from being asked for twice; each rule asks for one thing. The order of the
rules is the order of importance: the lease, the end, the reset, the checkpoint, and only then the next batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from airflow_kcr.errors import IllegalEvent
from airflow_kcr.protocol.member import discovery, duties, messages, presence, state
from airflow_kcr.protocol.member.messages import Effect
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region import commands
from airflow_kcr.protocol.region.rows import RESET_STATES, Batch, CheckpointState, RegionState, ResetCause
from airflow_kcr.protocol.region.view import MemberRegion
from airflow_kcr.protocol.values import DesiredState, drawn, replace


def place(member: state.MemberMachine, now: float) -> state.Driven:
    """Put the member into the state that its facts mean."""
    if member.state not in state.ACTIVE or (member.state is state.State.HOLDING and member.why is state.Why.STORE_AWAY):
        return member, ()
    view = member.view
    if member.incarnation is None or view is None:
        return state.moved(member, state.State.JOINING), ()
    if view.state is RegionState.HALTED or (member.batch is not None and member.batch.epoch != view.epoch):
        return state.moved(member, state.State.HOLDING, state.Why.RESET), ()
    if not state.has_claimed(member, view):
        return state.moved(member, state.State.JOINING), ()
    if view.state in RESET_STATES or not view.acknowledged:
        return state.moved(member, state.State.READY), ()
    return _processing(member, view, now), ()


def _processing(member: state.MemberMachine, view: MemberRegion, now: float) -> state.MemberMachine:
    approaching = view.checkpoint is not None and view.checkpoint.state is CheckpointState.APPROACHING
    if view.state is RegionState.DRAINING or _is_committing(member, view, now):
        return state.moved(member, state.State.HOLDING, state.Why.DRAINED)
    if view.desired_state is not DesiredState.RUNNING and not approaching:
        return state.moved(member, state.State.HOLDING, state.Why.PAUSED)
    if member.batch is None and state.is_at_limit(member, view):
        return state.moved(member, state.State.HOLDING, state.Why.BOUNDARY)
    if now < member.retry_at:
        return state.moved(member, state.State.HOLDING, state.Why.RETRY)
    return state.moved(member, state.State.PROCESSING)


def _is_committing(member: state.MemberMachine, view: MemberRegion, now: float) -> bool:
    """Whether the member still waits for its own commit; it continues after the commit timeout without."""
    if view.commit is None or view.commit == member.commit.done:
        return False
    waited = now - member.commit.since if messages.Commit in member.awaited else 0.0
    return waited < state.seconds(member.timeouts.commit)


PLAN_PAUSE: Final = 0.1
"""Seconds before the planner is asked again if nothing was there to process."""

LONGEST_PLAN_PAUSE: Final = 0.4
"""The same if nothing has been there for a while: each time asks the brokers."""


def doom(member: state.MemberMachine, now: float) -> state.Driven:
    """Decide whether the batch may still count: not in another epoch, and not for ever.

    That Kafka has taken a partition of it doesn't matter while the store's claim stands: its next owner waits.
    """
    batch, view = member.batch, member.view
    if batch is None or batch.doomed:
        return member, ()
    if view is not None and (view.epoch != batch.epoch or view.state is RegionState.HALTED):
        return state.doomed(member), ()
    if batch.phase is state.BatchPhase.RUNNING and now - batch.since >= state.seconds(member.timeouts.batch):
        detail = batch.failed(f"batch {batch.batch} took longer than {member.timeouts.batch}")
        return replace(state.doomed(member), failure=(ResetCause.BATCH_TIMEOUT, detail)), ()
    return member, ()


def pursue(member: state.MemberMachine, now: float) -> state.Driven:
    """Take the batch to its next phase."""
    batch = member.batch
    if batch is None:
        return member, ()
    match batch.phase:
        case state.BatchPhase.STARTED if batch.doomed:
            return pursue(state.in_phase(member, batch, state.BatchPhase.QUIESCED, now), now)
        case state.BatchPhase.STARTED:
            progress = OffsetMap({p: state.past_skips(member.view, p, r.to) for p, r in batch.ranges.items()})
            return state.in_phase(member, batch, state.BatchPhase.RUNNING, now), (
                messages.RunBatch(row=_row(batch), progress=progress),
            )
        case state.BatchPhase.RUNNING if batch.doomed:
            return state.in_phase(member, batch, state.BatchPhase.CANCELLING, now), (
                messages.Cancel(batch=batch.batch),
            )
        case state.BatchPhase.CANCELLING if now - batch.since >= state.seconds(member.timeouts.process_end_limit):
            return member, (messages.EndProcess(why=f"batch {batch.batch} did not quiesce after its cancellation"),)
        case state.BatchPhase.QUIESCED:
            return _close(member, batch, now)
        case _:
            return member, ()


def _row(batch: state.MyBatch) -> Batch:
    if batch.row is None:
        raise IllegalEvent(f"batch {batch.batch} is to run, but the store has not started it")
    return batch.row


def _close(member: state.MemberMachine, batch: state.MyBatch, now: float) -> state.Driven:
    """Finish a quiet batch, or have it discarded; a fenced member writes nothing, one without lease waits for one."""
    if member.state is state.State.FENCED:
        return replace(member, batch=None), ()
    if member.incarnation is None:
        gone = member.terminating or member.refusal is not None
        return (replace(member, batch=None) if gone else member), ()
    if not batch.doomed and batch.incarnation == member.incarnation:
        finish = commands.FinishBatch(batch=batch.batch, member=member.member, incarnation=batch.incarnation)
        return state.in_phase(member, batch, state.BatchPhase.FINISHING, now), (finish,)
    discard = commands.DiscardBatch(batch=batch.batch, member=member.member, incarnation=member.incarnation)
    return state.in_phase(member, replace(batch, doomed=True), state.BatchPhase.DISCARDING, now), (discard,)


def ask_reset(member: state.MemberMachine, now: float) -> state.Driven:
    """Ask for the reset that a batch, or a sink, made necessary, in the epoch that it was started in."""
    if member.failure is None or member.incarnation is None or member.state not in state.ACTIVE:
        return member, ()
    cause, detail = member.failure
    epoch = member.batch.epoch if member.batch is not None else member.memory.epoch
    member = replace(member, failure=None, view_is_stale=True)
    return member, (commands.RequestReset(caller=state.caller(member, epoch), cause=cause, detail=detail),)


def plan(member: state.MemberMachine, now: float) -> state.Driven:
    """Ask for the next ranges while the last ones are done, start what was planned; not where Kafka takes it away."""
    if member.plan is not None:
        return _planned(member, now)
    view = member.view
    if member.state is not state.State.PROCESSING or view is None or member.batch is not None or member.terminating:
        return member, ()
    if messages.PlanRanges in member.awaited or now < member.plan_after or not member.positions or member.view_is_stale:
        return member, ()
    kept = OffsetMap({p: o for p, o in member.positions.items() if p not in member.revoking})
    if not kept:
        return member, ()
    return state.asking(member, messages.PlanRanges(positions=kept, view=view))


def _planned(member: state.MemberMachine, now: float) -> state.Driven:
    """Use a plan if the member may still start it; what it found about logs and boundaries is reported in any case."""
    plan, view = member.plan, member.view
    member = replace(member, plan=None)
    if plan is None or view is None or member.incarnation is None or not state.has_claimed(member, view):
        return member, ()
    caller = state.caller(member, view.epoch)
    reports: list[Effect] = []
    if plan.outside:
        reports.append(commands.ReportOutOfRange(caller=caller, observed=plan.outside))
    if plan.boundary_offsets and plan.boundary is not None:
        reports.append(
            commands.StoreBoundaryOffsets(caller=caller, boundary=plan.boundary, found=plan.boundary_offsets)
        )
    if reports:
        member = replace(member, view_is_stale=True)
    ranges = {p: r for p, r in plan.ranges.items() if p not in member.revoking}
    fits = all(member.positions.get(p) == r.from_ for p, r in ranges.items())
    usable = ranges and fits and member.state is state.State.PROCESSING and member.batch is None and not plan.outside
    if not usable or member.terminating:
        pause = 0.0 if reports else min(max(PLAN_PAUSE, member.plan_pause * 1.25), LONGEST_PLAN_PAUSE)
        return replace(member, plan_after=_next_plan(now, pause), plan_pause=pause), tuple(reports)
    batch = state.MyBatch(
        batch=plan.batch,
        ranges=ranges,
        epoch=view.epoch,
        incarnation=state.own(member),
        phase=state.BatchPhase.STARTING,
        since=now,
    )
    start = drawn(commands.StartBatch, batch, member=member.member)
    started = replace(member, batch=batch, read=replace(member.read, was_idle=False), plan_pause=0.0)
    return started, (*reports, start)


def _next_plan(now: float, pause: float) -> float:
    """Return when to plan again: after the pause, or where it is the longest, at the multiple of it about then.

    Members of one process share their clock, so that those without records ask at the same moment, and the brokers are
    asked once for all.
    """
    return (round(now / pause) + 1) * pause if pause == LONGEST_PLAN_PAUSE else now + pause


RULES: Final[tuple[Callable[[state.MemberMachine, float], state.Driven], ...]] = (
    presence.lease,
    presence.report_later,
    doom,
    presence.store_away,
    presence.fenced,
    presence.terminate,
    presence.leave,
    ask_reset,
    pursue,
    presence.register,
    presence.join,
    duties.release,
    duties.claim,
    duties.reset,
    duties.contribute,
    duties.read_back,
    duties.commit,
    duties.publish,
    discovery.discover,
    discovery.report,
    discovery.rejoin,
    place,
    duties.commit_seek,
    presence.reconcile,
    plan,
    presence.read,
)


def drive(member: state.MemberMachine, now: float) -> state.Driven:
    """Return the member in the state that its facts put it in, and the effects it wants.

    Args:
        member: the member, its newest fact recorded.
        now: monotonic seconds.
    """
    wanted: list[Effect] = []
    for rule in RULES:
        member, more = rule(member, now)
        if more:
            wanted.extend(more)
    return member, tuple(wanted)
