"""Being there: a member's lease, its registration, its group, what it reads, and how it ends."""

from __future__ import annotations

from typing import Final

from airflow_kcr.protocol.member import messages, state
from airflow_kcr.protocol.member.messages import Effect, GroupRequest
from airflow_kcr.protocol.region import commands
from airflow_kcr.protocol.region.rows import CLAIM_STATES, CheckpointState, RegionState
from airflow_kcr.protocol.region.view import MemberRegion
from airflow_kcr.protocol.values import CheckpointNumber, EventNumber, drawn, replace

_SHOWING: Final = frozenset({commands.Contribute, commands.Acknowledge})
"""Requests whose answers show the region; what is asked after them would be answered after them."""


def lease(member: state.MemberMachine, now: float) -> state.Driven:
    """A lease is judged by the age of its last renewal, from before that was sent."""
    if member.incarnation is None or member.state not in state.ACTIVE:
        return member, ()
    age = now - member.lease_sent_at
    if age >= state.seconds(member.timeouts.lease):
        return state.without_lease(member), ()
    if (state.is_doubtful(member) or _is_due(member, now)) and commands.Renew not in member.awaited:
        renewal = commands.Renew(
            member=member.member,
            incarnation=member.incarnation,
            lease=member.timeouts.lease,
            newest=member.memory.newest_event,
            lacks=member.lacks,
        )
        return state.asking(member, renewal)
    return member, ()


def _is_due(member: state.MemberMachine, now: float) -> bool:
    """Whether the clock has passed a multiple of the interval since the last renewal: no more than an interval.

    Members of one process share their clock, so that they ask at the same moment, and the store is asked once for all.
    """
    interval = state.seconds(member.timeouts.renew)
    return now // interval > member.lease_sent_at // interval


def register(member: state.MemberMachine, now: float) -> state.Driven:
    """Ask for a new incarnation, at the start and after a lost lease."""
    if member.incarnation is not None or member.state not in state.ACTIVE or commands.Register in member.awaited:
        return member, ()
    if member.terminating or member.refusal is not None or now < member.register_after:
        return member, ()
    return state.asking(member, replace(member.process, previous=member.previous))


def read(member: state.MemberMachine, now: float) -> state.Driven:
    """Read the region when a notification says that it changed; once a lease without one, as it may get lost."""
    if member.incarnation is None or member.state not in state.ACTIVE or commands.ReadRegion in member.awaited:
        return member, ()
    if not member.view_is_stale and now - member.read.at < state.seconds(member.timeouts.lease):
        return member, ()
    if member.awaited & _SHOWING:
        return member, ()
    counter = EventNumber(0) if member.view is None else member.view.counter
    asked = replace(
        member, heard=EventNumber(0), read=state.LastRead(at=now, counter=counter, was_idle=member.batch is None)
    )
    return state.asking(asked, commands.ReadRegion(member=member.member))


def reconcile(member: state.MemberMachine, now: float) -> state.Driven:
    """Have the region reconciled: a transition is due, or this member is where the next checkpoint will be."""
    view = member.view
    if view is None or member.state not in state.ACTIVE:
        return member, ()
    reached = _reached(member, view)
    if reached is None and member.reconciled_for is not None:
        member = replace(member, reconciled_for=None)  # a reset may have gone back: it is reached once more
    if reached is not None and member.reconciled_for != reached and member.batch is None:
        return replace(member, reconciled_for=reached, needs_reconciling=False), (commands.Reconcile(),)
    if member.needs_reconciling:
        return replace(member, needs_reconciling=False), (commands.Reconcile(),)
    return member, ()


def _reached(member: state.MemberMachine, view: MemberRegion) -> CheckpointNumber | None:
    """Return the approaching checkpoint whose boundary the member is at, or the next one where its count is reached."""
    checkpoint = view.checkpoint
    if checkpoint is not None:
        arrived = checkpoint.state is CheckpointState.APPROACHING and state.is_at_limit(member, view)
        return checkpoint.sequence if arrived else None
    return CheckpointNumber(view.next_sequence) if view.records_left == 0 else None


def report_later(member: state.MemberMachine, now: float) -> state.Driven:
    """A store that shows lower numbers than the member has seen was restored: the region must not resume by itself."""
    if member.state not in state.ACTIVE or not (member.memory.is_store_older or _shows_less(member)):
        return member, ()
    memory = member.memory
    given = {"member": member.member, "positions": memory.forgotten, "event": memory.lost_event}
    later = drawn(commands.ReportLater, memory, **given)
    kept = state.Memory(
        incarnation=memory.incarnation, epoch=memory.epoch, sequence=memory.sequence, timeline=memory.timeline
    )
    return replace(member, view_is_stale=True, memory=kept), (later,)


def _shows_less(member: state.MemberMachine) -> bool:
    view = member.view
    if view is None or member.incarnation is None or member.view_is_stale:
        return False
    return view.epoch < member.memory.epoch or view.incarnation < member.memory.incarnation


def join(member: state.MemberMachine, now: float) -> state.Driven:
    """Join the group, once registered and while the region takes claims.

    Where Kafka has fenced the client, the store is asked first whether the member is still this process: by joining, a
    former one would fence the one that has its place now.
    """
    view = member.view
    if member.in_group or view is None or not state.is_well(member) or GroupRequest.LEAVE in member.awaited:
        return member, ()
    if view.state not in CLAIM_STATES or state.is_doubtful(member):
        return member, ()
    if member.fenced_at is not None and now - member.fenced_at < member.join_backoff:
        return member, ()
    return replace(member, in_group=True), (GroupRequest.JOIN,)


def store_away(member: state.MemberMachine, now: float) -> state.Driven:
    """Leave the group when the store has been away too long, so that the partitions move to those who can work."""
    if member.state not in state.ACTIVE or member.terminating:
        return member, ()
    if member.store_lost_at is None:
        back = member.state is state.State.HOLDING and member.why is state.Why.STORE_AWAY
        return (state.moved(member, state.State.JOINING), ()) if back else (member, ())
    if now - member.store_lost_at < state.seconds(member.timeouts.store_grace):
        return member, ()
    member = state.moved(state.doomed(member), state.State.HOLDING, state.Why.STORE_AWAY)
    return _leave_group(member, GroupRequest.LEAVE)


def _leave_group(member: state.MemberMachine, how: GroupRequest) -> state.Driven:
    if not member.in_group or GroupRequest.LEAVE in member.awaited:
        return member, ()
    return state.awaiting(member, GroupRequest.LEAVE), (how,)


def fenced(member: state.MemberMachine, now: float) -> state.Driven:
    """Write nothing; stop the batch, and close without touching the slot, which belongs to the newer incarnation."""
    if member.state is not state.State.FENCED:
        return member, ()
    return _leave_group(state.doomed(member), GroupRequest.CLOSE_KEEPING_SLOT)


def terminate(member: state.MemberMachine, now: float) -> state.Driven:
    """End within the close time: half of it for the batch to finish, the rest for its cancellation."""
    if member.terminated_at is None or member.state not in state.ACTIVE:
        return member, ()
    if member.batch is not None:
        spent = now - member.terminated_at
        if spent >= state.seconds(member.timeouts.close):
            return member, (messages.EndProcess(why="the batch did not end within the close time"),)
        return (state.doomed(member) if spent >= state.seconds(member.timeouts.close) / 2 else member), ()
    if member.in_group:
        return _leave_group(member, GroupRequest.CLOSE_KEEPING_SLOT if member.static else GroupRequest.LEAVE)
    leaving: tuple[Effect, ...] = ()
    if member.incarnation is not None:
        kind = commands.KeepSlot if member.static else commands.Leave
        leaving = (kind(member=member.member, incarnation=member.incarnation),)
    return state.moved(member, state.State.CLOSED), leaving


def leave(member: state.MemberMachine, now: float) -> state.Driven:
    """Leave for good: the region stopped, the spec has no place for this member, or the store refused it."""
    view = member.view
    if member.state not in state.ACTIVE or member.terminating:
        return member, ()
    out = view is not None and (view.state is RegionState.STOPPED or view.left)
    if not out and member.refusal is None:
        return member, ()
    member = state.doomed(member)
    if member.batch is not None and member.incarnation is not None:
        return member, ()
    if member.in_group:
        return _leave_group(member, GroupRequest.LEAVE)
    if member.incarnation is None:
        return state.moved(member, state.State.CLOSED), ()
    leaving = commands.Leave(member=member.member, incarnation=member.incarnation)
    return state.moved(member, state.State.CLOSED), (leaving,)
