"""What a member owes its region: its claims, its part of resets and checkpoints, its commits."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from airflow_kcr.protocol.member import messages, state
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region import commands, timelines
from airflow_kcr.protocol.region.rows import CLAIM_STATES, RESET_STATES, CheckpointState, RegionState
from airflow_kcr.protocol.region.view import MemberRegion
from airflow_kcr.protocol.values import CheckpointNumber, GroupPartition, drawn, replace

_CONTRIBUTING: Final = frozenset({messages.PrepareSinks, commands.Contribute, messages.PlanRanges})
"""Effects that a contribution waits for."""


def claim(member: state.MemberMachine, now: float) -> state.Driven:
    """Claim the assignment, when nothing of an older epoch runs and Kafka still says that it is assigned."""
    view, assignment = member.view, member.assignment
    if view is None or assignment is None or not state.is_well(member) or messages.ClaimAssignment in member.awaited:
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
    claim = commands.ClaimPartitions(
        member=member.member,
        incarnation=state.own(member),
        assignment=assignment.assignment,
        partitions={},
        waited=timedelta(seconds=waited),
    )
    read = messages.ClaimAssignment(claim=claim, partitions=assignment.partitions)
    return state.asking(member, read)


def release(member: state.MemberMachine, now: float) -> state.Driven:
    """Let Kafka take what it is revoking, once no batch of this member runs there."""
    if not member.revoking or messages.ReleasePartitions in member.awaited:
        return member, ()
    if member.batch is not None and not member.revoking.isdisjoint(member.batch.ranges):
        return member, ()
    return state.asking(member, messages.ReleasePartitions(partitions=member.revoking))


def reset(member: state.MemberMachine, now: float) -> state.Driven:
    """Carry out the reset: the sinks first, with their fences before anything is read, then the acknowledgement."""
    view = member.view
    if view is None or view.state not in RESET_STATES or not state.is_well(member) or member.batch is not None:
        return member, ()
    if not state.has_claimed(member, view) or (view.acknowledged and not view.open) or member.view_is_stale:
        return member, ()
    if member.reset.epoch != view.epoch:
        if messages.ResetSinks in member.awaited:
            return member, ()
        resume = OffsetMap({p: c.resume for p, c in view.claims.items() if c.resume is not None})
        reset = drawn(messages.ResetSinks, view, resume=resume)
        return state.asking(replace(member, reset=state.OwnReset(epoch=view.epoch)), reset)
    if member.reset.found is None or commands.Acknowledge in member.awaited:
        return member, ()
    caller = state.caller(member, view.epoch)
    answer = (commands.AnswerEntries(caller=caller, found=member.reset.found),) if member.reset.found else ()
    return state.awaiting(member, commands.Acknowledge), (*answer, commands.Acknowledge(caller=caller))


def contribute(member: state.MemberMachine, now: float) -> state.Driven:
    """Prepare the sinks, then contribute, once nothing of this member runs."""
    view = member.view
    checkpoint = None if view is None else view.checkpoint
    if (
        view is None
        or checkpoint is None
        or checkpoint.state is not CheckpointState.DRAINING
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
        begun = state.OwnContribution(sequence=checkpoint.sequence, stored=member.contribution.stored)
        return state.asking(replace(member, contribution=begun), prepare)
    outside = {p: log for p, log in member.contribution.prepared.bounds.items() if _is_outside(member, view, p, log)}
    if outside:
        # No plan will find it out while the region drains, and no checkpoint can hold it.
        unprepared = replace(state.unprepared(member), view_is_stale=True)
        return unprepared, (commands.ReportOutOfRange(caller=state.caller(member, view.epoch), observed=outside),)
    prepared = member.contribution.prepared
    part = drawn(
        commands.Contribute,
        prepared,
        member=member.member,
        incarnation=state.own(member),
        epoch=view.epoch,
        offsets=member.positions,
        prepared_in=prepared.took,
    )
    return state.asking(member, part)


def _is_outside(member: state.MemberMachine, view: MemberRegion, partition: GroupPartition, log: LogBounds) -> bool:
    position, claim = member.positions.get(partition), view.claims.get(partition)
    if claim is not None and timelines.is_recreated(claim.topic_id, log.topic_id):
        return True
    return position is not None and not log.start <= position <= state.past_skips(view, partition, log.end)


def commit(member: state.MemberMachine, now: float) -> state.Driven:
    """Commit the restore point's offsets, only while assigned; read back they are the commit read-back."""
    view = member.view
    if view is None or view.commit is None or view.commit == member.commit.done or not state.is_well(member):
        return member, ()
    if not state.has_claimed(member, view) or member.assignment is None or messages.Commit in member.awaited:
        return member, ()
    offsets = OffsetMap({p: c.resume for p, c in view.claims.items() if c.resume is not None})
    asked = replace(member.commit, since=now, assignment=member.assignment.assignment)
    timeline = member.memory.timeline
    commit = messages.Commit(sequence=view.commit, timeline=timeline, epoch=view.epoch, offsets=offsets)
    return state.asking(replace(member, commit=asked), commit)


def read_back(member: state.MemberMachine, now: float) -> state.Driven:
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
    if not committed.offsets or member.incarnation is None or member.state not in state.ACTIVE:
        return member, ()
    given = {"member": member.member, "incarnation": member.incarnation}
    return member, (drawn(commands.ReportReadBack, committed, **given),)


def publish(member: state.MemberMachine, now: float) -> state.Driven:
    """Publish the next complete checkpoint, where it is this member's turn."""
    view = member.view
    if view is None or not view.publish or not state.is_well(member) or commands.ReportPublished in member.awaited:
        return member, ()
    if member.view_is_stale:
        # The view that follows a publication no longer names it; by an old one it would be published twice.
        return member, ()
    return state.asking(member, commands.ReportPublished(sequence=view.publish[0], member=member.member))


def commit_seek(member: state.MemberMachine, now: float) -> state.Driven:
    """After a reset, tell Kafka where the partitions resumed; a checkpoint's own commit comes first."""
    view = member.view
    if view is None or view.state is not RegionState.RUNNING or not state.is_well(member) or view.commit is not None:
        return member, ()
    if member.seek_committed == view.epoch or not state.has_claimed(member, view) or not view.acknowledged:
        return member, ()
    member = replace(member, seek_committed=view.epoch)
    resume = OffsetMap({p: c.resume for p, c in view.claims.items() if c.resume is not None})
    caller, newest = state.caller(member, view.epoch), CheckpointNumber(view.next_sequence - 1)
    seek = messages.CommitSeek(caller=caller, sequence=newest, timeline=view.timeline, offsets=resume)
    return member, (seek,) if resume else ()
