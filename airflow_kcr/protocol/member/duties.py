"""What a member owes its region: being there, its claims and contributions, and looking for new partitions.

Kafka is not believed about partitions: it gives a static member that comes back its old assignment without a rebalance,
and only the leader of a group rejoins when it sees that a topic has grown. So every member asks the brokers itself,
after each claim and once a lease, and tells the store what it has not told yet; the store knows what has an owner.

The old assignment may also hold partitions that are there no more. No member can claim those, so the brokers are asked
then too. Once the store knows that they are gone, or the brokers have lacked one for as long that no member ever
claimed, the member joins again.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from airflow_kcr.protocol.member import messages, state
from airflow_kcr.protocol.member.messages import Ask, Effect
from airflow_kcr.protocol.member.state import (
    ACTIVE,
    Awaited,
    Driven,
    LastRead,
    MemberMachine,
    Memory,
    OwnContribution,
    OwnReset,
    State,
    Why,
    awaiting,
    moved,
)
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region import timelines
from airflow_kcr.protocol.region.commands import (
    Acknowledge,
    AnswerEntries,
    Caller,
    Contribute,
    KeepSlot,
    Leave,
    ReadRegion,
    Reconcile,
    Renew,
    ReportLater,
    ReportOutOfRange,
    ReportPartitions,
    ReportReadBack,
)
from airflow_kcr.protocol.region.rows import CLAIM_STATES, RESET_STATES, CheckpointPhase, RegionState
from airflow_kcr.protocol.region.view import MemberRegion
from airflow_kcr.protocol.values import CheckpointNumber, EventNumber, GroupPartition, replace

# Presence

_SHOWING: Final = frozenset({Awaited.CONTRIBUTE, Awaited.ACKNOWLEDGE})
"""Requests whose answers show the region; what is asked after them would be answered after them."""

_CONTRIBUTING: Final = frozenset({Awaited.PREPARE, Awaited.CONTRIBUTE, Awaited.PLAN})
"""Effects that a contribution waits for."""

_OUT: Final = frozenset({RegionState.STOPPED})


def lease(member: MemberMachine, now: float) -> Driven:
    """A lease is judged by the age of its last renewal, from before that was sent."""
    if member.incarnation is None or member.state not in ACTIVE:
        return member, ()
    age = now - member.lease_sent_at
    if age >= state.seconds(member.timeouts.lease):
        return state.without_lease(member), ()
    if (state.is_doubtful(member) or _is_due(member, now)) and Awaited.RENEW not in member.awaited:
        renewal = Renew(
            member=member.member,
            incarnation=member.incarnation,
            lease=member.timeouts.lease,
            newest=member.memory.newest_event,
            lacks=member.lacks,
        )
        return awaiting(member, Awaited.RENEW), (Ask(command=renewal),)
    return member, ()


def _is_due(member: MemberMachine, now: float) -> bool:
    """Whether the clock has passed a multiple of the interval since the last renewal: no more than an interval.

    Members of one process share their clock, so that they ask at the same moment, and the store is asked once for all.
    """
    interval = state.seconds(member.timeouts.renew)
    return now // interval > member.lease_sent_at // interval


def register(member: MemberMachine, now: float) -> Driven:
    """Ask for a new incarnation, at the start and after a lost lease."""
    if member.incarnation is not None or member.state not in ACTIVE or Awaited.REGISTER in member.awaited:
        return member, ()
    if member.terminating or member.refusal is not None or now < member.register_after:
        return member, ()
    token = f"{member.process.token}/{member.previous}"
    registration = replace(member.process, token=token, previous=member.previous)
    return awaiting(member, Awaited.REGISTER), (Ask(command=registration),)


def read(member: MemberMachine, now: float) -> Driven:
    """Read the region when a notification says that it changed; once a lease without one, as it may get lost."""
    if member.incarnation is None or member.state not in ACTIVE or Awaited.READ in member.awaited:
        return member, ()
    if not member.view_is_stale and now - member.read.at < state.seconds(member.timeouts.lease):
        return member, ()
    if member.awaited & _SHOWING:
        return member, ()
    counter = EventNumber(0) if member.view is None else member.view.counter
    asked = replace(member, heard=EventNumber(0), read=LastRead(at=now, counter=counter, was_idle=member.batch is None))
    return awaiting(asked, Awaited.READ), (Ask(command=ReadRegion(member=member.member)),)


def reconcile(member: MemberMachine, now: float) -> Driven:
    """Have the region reconciled: a transition is due, or this member is where the next checkpoint will be."""
    view = member.view
    if view is None or member.state not in ACTIVE:
        return member, ()
    reached = _reached(member, view)
    if reached is None and member.reconciled_for is not None:
        member = replace(member, reconciled_for=None)  # a reset may have gone back: it is reached once more
    if reached is not None and member.reconciled_for != reached and member.batch is None:
        return replace(member, reconciled_for=reached, needs_reconciling=False), (Ask(command=Reconcile()),)
    if member.needs_reconciling:
        return replace(member, needs_reconciling=False), (Ask(command=Reconcile()),)
    return member, ()


def _reached(member: MemberMachine, view: MemberRegion) -> CheckpointNumber | None:
    """Return the approaching checkpoint whose boundary the member is at, or the next one where its count is reached."""
    checkpoint = view.checkpoint
    if checkpoint is not None:
        arrived = checkpoint.phase is CheckpointPhase.APPROACHING and state.is_at_limit(member, view)
        return checkpoint.sequence if arrived else None
    return CheckpointNumber(view.next_sequence) if view.records_left == 0 else None


def report_later(member: MemberMachine, now: float) -> Driven:
    """A store that shows lower numbers than the member has seen was restored: the region must not resume by itself."""
    if member.state not in ACTIVE or not (member.memory.is_store_older or _shows_less(member)):
        return member, ()
    later = ReportLater(
        member=member.member,
        epoch=member.memory.epoch,
        incarnation=member.memory.incarnation,
        sequence=member.memory.sequence,
        timeline=member.memory.timeline,
        counter=member.memory.counter,
        positions=member.memory.forgotten,
        event=member.memory.lost_event,
    )
    memory = member.memory
    kept = Memory(
        incarnation=memory.incarnation, epoch=memory.epoch, sequence=memory.sequence, timeline=memory.timeline
    )
    return replace(member, view_is_stale=True, memory=kept), (Ask(command=later),)


def _shows_less(member: MemberMachine) -> bool:
    view = member.view
    if view is None or member.incarnation is None or member.view_is_stale:
        return False
    return view.epoch < member.memory.epoch or view.incarnation < member.memory.incarnation


def join(member: MemberMachine, now: float) -> Driven:
    """Join the group, once registered and while the region takes claims.

    Where Kafka has fenced the client, the store is asked first whether the member is still this process: by joining, a
    former one would fence the one that has its place now.
    """
    view = member.view
    if member.in_group or view is None or not state.is_well(member) or Awaited.LEAVE in member.awaited:
        return member, ()
    if view.state not in CLAIM_STATES or state.is_doubtful(member):
        return member, ()
    if member.fenced_at is not None and now - member.fenced_at < member.join_backoff:
        return member, ()
    return replace(member, in_group=True), (messages.Join(),)


def store_away(member: MemberMachine, now: float) -> Driven:
    """Leave the group when the store has been away too long, so that the partitions move to those who can work."""
    if member.state not in ACTIVE or member.terminating:
        return member, ()
    if member.store_lost_at is None:
        back = member.state is State.HOLDING and member.why is Why.STORE_AWAY
        return (moved(member, State.JOINING), ()) if back else (member, ())
    if now - member.store_lost_at < state.seconds(member.timeouts.store_grace):
        return member, ()
    member = moved(state.doomed(member), State.HOLDING, Why.STORE_AWAY)
    return _leave_group(member, messages.LeaveGroup())


def _leave_group(member: MemberMachine, how: messages.LeaveGroup | messages.CloseKeepingSlot) -> Driven:
    if not member.in_group or Awaited.LEAVE in member.awaited:
        return member, ()
    return awaiting(member, Awaited.LEAVE), (how,)


def fenced(member: MemberMachine, now: float) -> Driven:
    """Write nothing; stop the batch, and close without touching the slot, which belongs to the newer incarnation."""
    if member.state is not State.FENCED:
        return member, ()
    return _leave_group(state.doomed(member), messages.CloseKeepingSlot())


def terminate(member: MemberMachine, now: float) -> Driven:
    """End within the close time: half of it for the batch to finish, the rest for its cancellation."""
    if member.terminated_at is None or member.state not in ACTIVE:
        return member, ()
    if member.batch is not None:
        spent = now - member.terminated_at
        if spent >= state.seconds(member.timeouts.close):
            return member, (messages.EndProcess(why="the batch did not end within the close time"),)
        return (state.doomed(member) if spent >= state.seconds(member.timeouts.close) / 2 else member), ()
    if member.in_group:
        return _leave_group(member, messages.CloseKeepingSlot() if member.static else messages.LeaveGroup())
    told: tuple[Effect, ...] = ()
    if member.incarnation is not None:
        kind = KeepSlot if member.static else Leave
        told = (Ask(command=kind(member=member.member, incarnation=member.incarnation)),)
    return moved(member, State.CLOSED), told


def leave(member: MemberMachine, now: float) -> Driven:
    """Leave for good: the region stopped, the spec has no place for this member, or the store refused it."""
    view = member.view
    if member.state not in ACTIVE or member.terminating:
        return member, ()
    out = view is not None and (view.state in _OUT or view.left)
    if not out and member.refusal is None:
        return member, ()
    member = state.doomed(member)
    if member.batch is not None and member.incarnation is not None:
        return member, ()
    if member.in_group:
        return _leave_group(member, messages.LeaveGroup())
    if member.incarnation is None:
        return moved(member, State.CLOSED), ()
    leaving = Leave(member=member.member, incarnation=member.incarnation)
    return moved(member, State.CLOSED), (Ask(command=leaving),)


# Claims, resets and checkpoints


def claim(member: MemberMachine, now: float) -> Driven:
    """Claim the assignment, when nothing of an older epoch runs and Kafka still says that it is assigned."""
    view, assignment = member.view, member.assignment
    if view is None or assignment is None or not state.is_well(member) or Awaited.CLAIM in member.awaited:
        return member, ()
    if view.state not in CLAIM_STATES or state.has_claimed(member, view) or now < member.claim_after:
        return member, ()
    batch = member.batch
    if batch is not None and (batch.doomed or batch.epoch != view.epoch):
        return member, ()
    if batch is not None and not batch.ranges.keys() <= assignment.partitions:
        # What it reads is held until it has ended: it counts while its claims stand, and the next owner waits for it.
        return member, ()
    waited = 0.0 if member.busy_since is None else now - member.busy_since
    claim = messages.ClaimAssignment(
        incarnation=state.own(member),
        assignment=assignment.assignment,
        partitions=assignment.partitions,
        waited=timedelta(seconds=waited),
    )
    return awaiting(member, Awaited.CLAIM), (claim,)


def release(member: MemberMachine, now: float) -> Driven:
    """Let Kafka take what it is revoking, once no batch of this member runs there."""
    if not member.revoking or Awaited.RELEASE in member.awaited:
        return member, ()
    if member.batch is not None and not member.revoking.isdisjoint(member.batch.ranges):
        return member, ()
    return awaiting(member, Awaited.RELEASE), (messages.ReleasePartitions(partitions=member.revoking),)


def reset(member: MemberMachine, now: float) -> Driven:
    """Carry out the reset: the sinks first, with their fences before anything is read, then the acknowledgement."""
    view = member.view
    if view is None or view.state not in RESET_STATES or not state.is_well(member) or member.batch is not None:
        return member, ()
    if not state.has_claimed(member, view) or (view.acknowledged and not view.open) or member.view_is_stale:
        return member, ()
    if member.reset.epoch != view.epoch:
        if Awaited.RESET_SINKS in member.awaited:
            return member, ()
        member = awaiting(replace(member, reset=OwnReset(epoch=view.epoch)), Awaited.RESET_SINKS)
        resume = OffsetMap({p: c.resume for p, c in view.claims.items() if c.resume is not None})
        reset = messages.ResetSinks(
            epoch=view.epoch,
            timeline=view.timeline,
            resume=resume,
            open=view.open,
            target=view.target,
            skips=view.skips,
        )
        return member, (reset,)
    if member.reset.found is None or Awaited.ACKNOWLEDGE in member.awaited:
        return member, ()
    caller = Caller(member=member.member, incarnation=state.own(member), epoch=view.epoch)
    answer = (Ask(command=AnswerEntries(caller=caller, found=member.reset.found)),) if member.reset.found else ()
    return awaiting(member, Awaited.ACKNOWLEDGE), (*answer, Ask(command=Acknowledge(caller=caller)))


def contribute(member: MemberMachine, now: float) -> Driven:
    """Prepare the sinks, then contribute, once nothing of this member runs."""
    view = member.view
    checkpoint = None if view is None else view.checkpoint
    if (
        view is None
        or checkpoint is None
        or checkpoint.phase is not CheckpointPhase.DRAINING
        or checkpoint.participants.get(member.member) != member.incarnation
        or view.contributed
    ):
        return member, ()
    if member.batch is not None or not state.is_well(member) or not state.has_claimed(member, view):
        return member, ()
    if member.positions.keys() != view.claims.keys():
        return member, ()
    if member.contribution.stored == checkpoint.sequence or member.awaited & _CONTRIBUTING:
        return member, ()
    if member.contribution.prepared is None or member.contribution.sequence != checkpoint.sequence:
        partitions = frozenset(member.positions)
        prepare = messages.PrepareSinks(sequence=checkpoint.sequence, partitions=partitions)
        begun = OwnContribution(sequence=checkpoint.sequence, stored=member.contribution.stored)
        return awaiting(replace(member, contribution=begun), Awaited.PREPARE), (prepare,)
    outside = {p: log for p, log in member.contribution.prepared.bounds.items() if _is_outside(member, view, p, log)}
    if outside:
        # No plan will find it out while the region drains, and no checkpoint can hold it.
        caller = Caller(member=member.member, incarnation=state.own(member), epoch=view.epoch)
        told = replace(state.unprepared(member), view_is_stale=True)
        return told, (Ask(command=ReportOutOfRange(caller=caller, observed=outside)),)
    part = Contribute(
        sequence=checkpoint.sequence,
        member=member.member,
        incarnation=state.own(member),
        epoch=view.epoch,
        offsets=member.positions,
        committed=member.contribution.prepared.committed,
        bounds=member.contribution.prepared.bounds,
    )
    return awaiting(member, Awaited.CONTRIBUTE), (Ask(command=part),)


def _is_outside(member: MemberMachine, view: MemberRegion, partition: GroupPartition, log: LogBounds) -> bool:
    position, claim = member.positions.get(partition), view.claims.get(partition)
    if claim is not None and timelines.is_recreated(claim.topic_id, log.topic_id):
        return True
    return position is not None and not log.start <= position <= state.past_skips(view, partition, log.end)


def commit(member: MemberMachine, now: float) -> Driven:
    """Commit the restore point's offsets, only while assigned; read back they are the commit read-back."""
    view = member.view
    if view is None or view.commit is None or view.commit == member.commit.done or not state.is_well(member):
        return member, ()
    if not state.has_claimed(member, view) or member.assignment is None or Awaited.COMMIT in member.awaited:
        return member, ()
    offsets = OffsetMap({p: c.resume for p, c in view.claims.items() if c.resume is not None})
    asked = replace(member.commit, since=now, assignment=member.assignment.assignment)
    member = awaiting(replace(member, commit=asked), Awaited.COMMIT)
    return member, (messages.Commit(sequence=view.commit, offsets=offsets, epoch=view.epoch),)


def read_back(member: MemberMachine, now: float) -> Driven:
    """Tell the store what Kafka answered to the commit.

    A client that was fenced, or whose session was over, has committed nothing, and knows nothing or what Kafka held
    before: if nothing moves, no checkpoint comes that would mend it. So the member commits again in its next
    assignment, for as long as the store waits for it, and says nothing of the first try.
    """
    committed = member.commit.answer
    if committed is None:
        return member, ()
    is_same = member.assignment is not None and member.assignment.assignment == member.commit.assignment
    if (committed.failed or not committed.offsets) and not is_same:
        return replace(member, commit=replace(member.commit, answer=None)), ()
    member = replace(member, commit=replace(member.commit, answer=None, done=committed.sequence))
    if not committed.offsets or member.incarnation is None or member.state not in ACTIVE:
        return member, ()
    read_back = ReportReadBack(
        sequence=committed.sequence,
        member=member.member,
        incarnation=member.incarnation,
        offsets=committed.offsets,
    )
    return member, (Ask(command=read_back),)


def publish(member: MemberMachine, now: float) -> Driven:
    """Publish the next complete checkpoint, where it is this member's turn."""
    view = member.view
    if view is None or not view.publish or not state.is_well(member) or Awaited.PUBLISH in member.awaited:
        return member, ()
    if member.view_is_stale:
        # The view that follows a publication no longer names it; by an old one it would be published twice.
        return member, ()
    return awaiting(member, Awaited.PUBLISH), (messages.Publish(sequence=view.publish[0]),)


def commit_seek(member: MemberMachine, now: float) -> Driven:
    """After a reset, tell Kafka where the partitions resumed; a checkpoint's own commit comes first."""
    view = member.view
    if view is None or view.state is not RegionState.RUNNING or not state.is_well(member) or view.commit is not None:
        return member, ()
    if member.seek_committed == view.epoch or not state.has_claimed(member, view) or not view.acknowledged:
        return member, ()
    member = replace(member, seek_committed=view.epoch)
    resume = OffsetMap({p: c.resume for p, c in view.claims.items() if c.resume is not None})
    caller = Caller(member=member.member, incarnation=state.own(member), epoch=view.epoch)
    return member, (messages.CommitSeek(caller=caller, offsets=resume),) if resume else ()


# Partition discovery

REJOIN_PAUSE: Final = 30.0
"""Seconds between the first rejoin and the second; each further pause is `REJOIN_FACTOR` times as long.

A rebalance may cost the group a reset. Where rejoining does not help, a region must still get to its next
checkpoints.
"""

REJOIN_FACTOR: Final = 4.0


def discover(member: MemberMachine, now: float) -> Driven:
    """Ask the brokers what they have: after each claim, once a lease, and where a claim lacks logs."""
    view, known = member.view, member.discovery
    if view is None or not state.is_well(member) or member.awaited & {Awaited.DISCOVER, Awaited.REPORT_PARTITIONS}:
        return member, ()
    if known.claim_lacks_logs:
        asked = replace(known, claim_lacks_logs=False, told=None)
        return awaiting(replace(member, discovery=asked), Awaited.DISCOVER), (messages.DiscoverPartitions(),)
    # A reset and a drain wait for every partition that was known, so in them, too, it matters which are there no more.
    if view.state not in CLAIM_STATES or not state.has_claimed(member, view):
        return member, ()
    if known.asked_for == member.claimed:
        if now - known.asked_at < state.seconds(member.timeouts.lease):
            return member, ()
    else:
        known = replace(known, told=None)
    asked = replace(known, asked_at=now, asked_for=member.claimed)
    return awaiting(replace(member, discovery=asked), Awaited.DISCOVER), (messages.DiscoverPartitions(),)


def report(member: MemberMachine, now: float) -> Driven:
    """Report to the store what was found, if it differs from the last report."""
    found = member.discovery.found
    if found is None or not state.is_well(member):
        return member, ()
    is_known = found == member.discovery.told
    member = replace(member, discovery=replace(member.discovery, found=None, told=found))
    if is_known:
        return member, ()
    inventory = ReportPartitions(member=member.member, incarnation=state.own(member), partitions=found)
    return awaiting(member, Awaited.REPORT_PARTITIONS), (Ask(command=inventory),)


def rejoin(member: MemberMachine, now: float) -> Driven:
    """Leave the group, between two batches, so as to join it again: Kafka then assigns what there is, all of it."""
    known, view = member.discovery, member.view
    if (
        view is None
        or member.batch is not None
        or not member.in_group
        or not {Awaited.CLAIM, Awaited.LEAVE}.isdisjoint(member.awaited)
    ):
        return member, ()
    # What can't be claimed keeps a member from everything, a drain too; what has no owner waits until that is over.
    held = frozenset() if member.assignment is None else member.assignment.partitions
    can_claim = member.claim_backoff == 0 or (held.isdisjoint(known.gone) and not known.lacks)
    is_asked = bool({Awaited.DISCOVER, Awaited.REPORT_PARTITIONS} & member.awaited)
    if can_claim and (not known.rejoin or is_asked or view.state is RegionState.DRAINING):
        return member, ()
    if view.state not in CLAIM_STATES or not state.is_well(member):
        return member, ()
    if known.rejoins and now - known.rejoined_at < REJOIN_PAUSE * REJOIN_FACTOR ** (known.rejoins - 1):
        return member, ()
    left = replace(known, rejoin=False, lacks_since=None, lacks=False, rejoins=known.rejoins + 1, rejoined_at=now)
    # Nothing is started on what is given back in the same breath.
    return awaiting(replace(member, discovery=left, assignment=None), Awaited.LEAVE), (messages.LeaveGroup(),)
