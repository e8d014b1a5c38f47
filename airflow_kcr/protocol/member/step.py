"""What an event changes in a member.

Rules of this module: an event only records facts (the handlers below); what follows from the facts is decided in one
place, `drive`, after every event. Events come in any state, since answers may come late; one that no run of the member
could cause (a batch that is not the member's, or not in that phase) raises `IllegalEvent` and changes nothing. An
answer to something that no longer matters (an older assignment, another epoch) is recognised by what it names, and
changes nothing either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias, TypeVar

from airflow_kcr.errors import GroupInOtherRegion, IllegalEvent, MemberInUse, PartitionBusy, UnknownTopics
from airflow_kcr.protocol.member import drive, messages, state
from airflow_kcr.protocol.member.drive import PLAN_PAUSE
from airflow_kcr.protocol.member.messages import Answered, Effect, GroupRequest, Notice, Refused
from airflow_kcr.protocol.member.state import (
    Asked,
    BatchPhase,
    MemberMachine,
    MyBatch,
    OwnReset,
    State,
    answered,
    moved,
)
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region import commands
from airflow_kcr.protocol.region.rows import WORKING, Batch, ResetCause
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.region.view import MemberRegion
from airflow_kcr.protocol.values import BatchId, CheckpointNumber, EventNumber, Incarnation, replace

C = TypeVar("C", bound=commands.Command[object])
A = TypeVar("A")
Reply: TypeAlias = "Answered[C, A] | Refused[C]"

CLAIM_BACKOFF: Final = (0.2, 5.0)
"""First and longest wait, in seconds, before a refused claim is made again."""

REJOIN_BACKOFF: Final = (0.5, 30.0)
"""First and longest wait, in seconds, before a member whose client Kafka fenced joins again."""

REGISTER_PAUSE: Final = 0.5
"""Seconds between two attempts to register while another process holds the index."""

CALM: Final = 60.0
"""Seconds without being fenced after which the wait is short again."""


def step(member: MemberMachine, event: messages.Event, now: float) -> tuple[MemberMachine, tuple[Effect, ...]]:
    """Return the member after an event, and what it wants done.

    Args:
        member: the member so far.
        event: what happened.
        now: monotonic seconds, never less than at the event before.

    Raises:
        IllegalEvent: the event can't happen now; nothing has changed.
    """
    if member.state is State.CLOSED:
        return member, ()
    awaited, record = _row(event)
    heard = member if awaited is None else answered(member, awaited)
    return drive.drive(record(heard, event, now), now)


def _row(event: messages.Event) -> Row:
    if isinstance(event, Answered | Refused):
        return TABLE.get((type(event), type(event.command)), (None, _unchanged))
    return TABLE[event if isinstance(event, Notice) else type(event)]


def _registered(member: MemberMachine, event: Answered[commands.Register, Incarnation], now: float) -> MemberMachine:
    if member.state is State.FENCED:
        return member
    if member.incarnation is not None:
        raise IllegalEvent(f"{member.member} is registered already, as incarnation {member.incarnation}")
    memory = member.memory
    fresh = replace(
        member,
        incarnation=event.result,
        previous=event.result,
        memory=replace(
            memory,
            is_store_older=memory.is_store_older or event.result <= memory.incarnation,
            incarnation=max(memory.incarnation, event.result),
        ),
        lease_sent_at=event.sent_at,
        in_use_since=None,
    )
    return _stale(_store_seen(fresh))


def _registration_refused(member: MemberMachine, event: Refused[commands.Register], now: float) -> MemberMachine:
    if member.state is State.FENCED:
        return member
    if member.incarnation is not None:
        raise IllegalEvent(f"{member.member} is registered already, as incarnation {member.incarnation}")
    if isinstance(event.error, MemberInUse):
        since = now if member.in_use_since is None else member.in_use_since
        if now - since <= _patience(member):
            return _store_seen(replace(member, in_use_since=since, register_after=now + REGISTER_PAUSE))
    return replace(member, refusal=event.error)


def _patience(member: MemberMachine) -> float:
    """Return how long another process that holds the index is waited for, in seconds.

    Two leases, as it may be dead; a takeover waits as long as a drain may take besides, and then fences.
    """
    times = member.timeouts
    return state.seconds(2 * times.lease + (times.drain if member.process.takeover else times.renew / 2))


def _renewed(member: MemberMachine, event: Answered[commands.Renew, commands.Heartbeat], now: float) -> MemberMachine:
    member, heartbeat = _store_seen(member), event.result
    if not heartbeat.renewed:
        return _without_renewal(_compared(member, event), heartbeat.incarnation)
    due = heartbeat.reconcile_at is not None and heartbeat.reconcile_at <= heartbeat.now
    sent_at = max(member.lease_sent_at, event.sent_at)
    member = replace(member, lease_sent_at=sent_at, needs_reconciling=member.needs_reconciling or due)
    is_old = member.view is None or heartbeat.counter != member.view.counter
    member = _compared(member, event)
    return _notified(member, heartbeat.counter) if is_old else member


def _renewal_refused(member: MemberMachine, event: Refused[commands.Renew], now: float) -> MemberMachine:
    """A store that was restored has never heard of the member."""
    return _without_renewal(_store_seen(member), Incarnation(0))


def _without_renewal(member: MemberMachine, newest: Incarnation) -> MemberMachine:
    """Return the member whose lease is over, or is another process's; `newest` is what the store has."""
    if member.incarnation is not None and newest > member.memory.incarnation:
        return fenced(member)
    is_older = member.memory.is_store_older or newest < member.memory.incarnation
    return state.without_lease(replace(member, memory=replace(member.memory, is_store_older=is_older)))


def _compared(member: MemberMachine, event: Answered[commands.Renew, commands.Heartbeat]) -> MemberMachine:
    """Return the member after it heard where the region stands.

    A late answer resembles a restored store; the store, asked about it, finds out, and nothing happens. A restored
    store may have got as far again before the member hears of it: then it has other events by the same numbers.
    """
    heartbeat = event.result
    if heartbeat.is_other_history:
        memory = replace(member.memory, is_store_older=True, lost_event=event.command.newest)
        return replace(member, memory=memory)
    less = heartbeat.epoch < member.memory.epoch or heartbeat.counter < member.memory.counter
    return _of_older_store(member) if less else member


def fenced(member: MemberMachine) -> MemberMachine:
    """Return the member fenced: another process is this member now; its own batch is void."""
    return moved(state.doomed(member), State.FENCED)


def _view_read(member: MemberMachine, event: Answered[commands.ReadRegion, MemberRegion], now: float) -> MemberMachine:
    member = _store_seen(member)
    if member.view is not None and event.result.counter < member.read.counter:
        # The store had shown more when it was asked: it was restored, and what it shows now is what counts.
        member = replace(_of_older_store(member), view=None)
    seen = _seen(member, event.result, now)
    was_idle = member.read.was_idle and member.batch is None and seen.view is event.result
    return _against(member, seen, event.result) if was_idle else seen


def _against(before: MemberMachine, member: MemberMachine, view: MemberRegion) -> MemberMachine:
    """Return the member after a view that no batch of its own has overtaken, so that both must know the same.

    A position that the store accepted and does not have any more: it was restored. A batch that the store has as
    started and that is not here will never end, and nothing starts behind it: only a reset gets past it.
    """
    if before.view is not None and before.view.epoch == view.epoch:
        places = {p: c.position for p, c in view.claims.items() if c.position is not None}
        forgotten = OffsetMap({p: o for p, o in before.positions.items() if places.get(p, o) < o})
        if forgotten:
            memory = replace(member.memory, forgotten=forgotten, is_store_older=True)
            member = replace(member, positions=OffsetMap(places), memory=memory)
    runs = view.state in WORKING
    if runs and any(claim.is_in_flight for claim in view.claims.values()):
        detail = "the store has a batch as started that this member does not have"
        member = replace(member, failure=(ResetCause.BATCH_REFUSED, detail))
    return member


def _read_refused(member: MemberMachine, event: Refused[commands.ReadRegion], now: float) -> MemberMachine:
    return state.without_lease(_of_older_store(_store_seen(member)))


def _seen(member: MemberMachine, view: MemberRegion, now: float) -> MemberMachine:
    mine = member.incarnation
    if mine is None:
        return member
    if view.incarnation > member.memory.incarnation:
        return fenced(member)
    if view.incarnation > mine:
        # It has been that one itself: a restored store got that report, and its number is raised.
        return state.without_lease(member)
    if view.incarnation == mine and view.token not in {"", member.process.token}:
        # A restored store has given the number away a second time: it has not what this process has seen as that one.
        memory = replace(member.memory, is_store_older=True, lost_event=member.memory.newest_event)
        return state.without_lease(replace(member, memory=memory))
    is_old = member.view is not None and view.counter < member.view.counter
    if is_old and view.epoch >= member.memory.epoch and view.incarnation == mine:
        return member
    is_reset = member.view is not None and view.epoch > member.view.epoch
    retry_at = now + state.seconds(member.timeouts.retry_after(view.failures))
    memory = member.memory
    return replace(
        member,
        view=view,
        view_is_stale=member.heard > view.counter,
        # Once progress was accepted, fewer failures count, and members stop waiting out the longer time.
        retry_at=retry_at if is_reset else min(member.retry_at, retry_at),
        positions=_positions(member, view),
        memory=replace(
            memory,
            epoch=max(memory.epoch, view.epoch),
            sequence=max(memory.sequence, CheckpointNumber(view.next_sequence - 1)),
            timeline=max(memory.timeline, view.timeline),
            counter=max(memory.counter, view.counter),
            newest_event=None
            if view.recorded_at is None
            else commands.EventMark(number=view.counter, at=view.recorded_at),
        ),
    )


def _positions(member: MemberMachine, view: MemberRegion) -> OffsetMap:
    """Return the positions of what the view shows as held; a view may be older than a batch that has ended since."""
    held = {p: c.position for p, c in view.claims.items() if c.position is not None}
    if member.view is None or view.epoch != member.view.epoch:
        return OffsetMap(held)
    return OffsetMap({p: max(o, member.positions.get(p, o)) for p, o in held.items()})


def _claim_granted(
    member: MemberMachine, event: Answered[commands.ClaimPartitions, MemberRegion], now: float
) -> MemberMachine:
    member = _store_seen(member)
    assignment = member.assignment
    if assignment is None or assignment.assignment != event.command.assignment or member.incarnation is None:
        # The assignment changed before the answer came: this claim is void and recreated.
        return _stale(member)
    if event.result.claims.keys() != assignment.partitions:
        # The claim began a reset, or found a position out of range: what is held now is for the next claim to say.
        return _seen(replace(member, claimed=None, claim_after=now + CLAIM_BACKOFF[0]), event.result, now)
    granted = replace(
        state.unprepared(member),
        claimed=(event.command.assignment, event.result.epoch),
        claim_backoff=0.0,
        busy_since=None,
        plan_after=0.0,
        reset=OwnReset(),
    )
    return _seen(granted, event.result, now)


def _claim_refused(member: MemberMachine, event: Refused[commands.ClaimPartitions], now: float) -> MemberMachine:
    first, longest = CLAIM_BACKOFF
    if isinstance(event.error, PartitionBusy):
        since = now if member.busy_since is None else member.busy_since
        return _stale(replace(member, busy_since=since, claim_after=now + first))
    wait = min(max(member.claim_backoff * 2, first), longest)
    known = replace(member.discovery, claim_lacks_logs=isinstance(event.error, UnknownTopics))
    if isinstance(event.error, GroupInOtherRegion):
        # It will not be this region's while the other one lives: joining again would only disturb that one.
        return replace(member, refusal=event.error)
    refused = replace(member, claim_backoff=wait, claim_after=now + wait, discovery=known)
    return _stale(refused)


def _shown(
    member: MemberMachine,
    event: Answered[commands.Acknowledge | commands.ReportPublished, MemberRegion],
    now: float,
) -> MemberMachine:
    return _seen(_store_seen(member), event.result, now)


def _acknowledgement_refused(member: MemberMachine, event: Refused[commands.Acknowledge], now: float) -> MemberMachine:
    return replace(_stale(member), reset=OwnReset(), claimed=None, claim_after=now + CLAIM_BACKOFF[0])


def _contributed(
    member: MemberMachine, event: Answered[commands.Contribute, MemberRegion], now: float
) -> MemberMachine:
    stored = replace(member.contribution, stored=event.command.sequence)
    return _seen(replace(member, contribution=stored), event.result, now)


def _contribution_refused(member: MemberMachine, event: Refused[commands.Contribute], now: float) -> MemberMachine:
    return _stale(state.unprepared(member))


def _store_lost(member: MemberMachine, event: messages.StoreLost, now: float) -> MemberMachine:
    return replace(member, store_lost_at=now if member.store_lost_at is None else member.store_lost_at)


def _store_back(member: MemberMachine, event: Notice, now: float) -> MemberMachine:
    return _stale(_store_seen(member))


def _changed(member: MemberMachine, event: messages.Changed, now: float) -> MemberMachine:
    # A lower counter than the view's is worth a read too: it may be a store that was restored.
    is_known = member.view is not None and member.view.counter == event.counter
    return member if is_known else _notified(member, event.counter)


def _notified(member: MemberMachine, counter: EventNumber) -> MemberMachine:
    """Return the member after a notification; an answer that is on its way may be from before it."""
    return replace(_stale(member), heard=counter)


def _of_older_store(member: MemberMachine) -> MemberMachine:
    """Return the member that has found the store to be older than what it has seen."""
    return replace(member, memory=replace(member.memory, is_store_older=True))


def _store_seen(member: MemberMachine) -> MemberMachine:
    return replace(member, store_lost_at=None)


def _stale(member: MemberMachine) -> MemberMachine:
    return replace(member, view_is_stale=True)


def _planned(member: MemberMachine, event: messages.RangesPlanned, now: float) -> MemberMachine:
    return replace(member, plan=event)


def _in_phase(member: MemberMachine, batch: BatchId, phases: frozenset[BatchPhase]) -> MyBatch:
    mine = member.batch
    if mine is None or mine.batch != batch or mine.phase not in phases:
        stands = "none" if mine is None else f"{mine.batch}, {mine.phase}"
        raise IllegalEvent(f"{member.member}: batch {batch} is not {' or '.join(sorted(phases))} (its batch: {stands})")
    return mine


def _batch_started(member: MemberMachine, event: Answered[commands.StartBatch, Batch], now: float) -> MemberMachine:
    batch = replace(_in_phase(member, event.command.batch, frozenset({BatchPhase.STARTING})), row=event.result)
    return state.in_phase(member, batch, BatchPhase.STARTED, now)


def _start_refused(member: MemberMachine, event: Refused[commands.StartBatch], now: float) -> MemberMachine:
    _in_phase(member, event.command.batch, frozenset({BatchPhase.STARTING}))
    return _stale(replace(member, batch=None, plan_after=now + PLAN_PAUSE))


def _batch_ended(member: MemberMachine, event: messages.BatchEnded, now: float) -> MemberMachine:
    batch = _in_phase(member, event.batch, frozenset({BatchPhase.RUNNING, BatchPhase.CANCELLING}))
    if event.failure is not None:
        if batch.phase is BatchPhase.RUNNING and not batch.doomed:
            member = replace(member, failure=(ResetCause.BATCH_FAILED, batch.failed(event.failure)))
        batch = replace(batch, doomed=True)
    return state.in_phase(member, batch, BatchPhase.QUIESCED, now)


def _batch_accepted(member: MemberMachine, event: Answered[commands.FinishBatch, None], now: float) -> MemberMachine:
    batch = _in_phase(member, event.command.batch, frozenset({BatchPhase.FINISHING}))
    view = member.view
    places = {p: state.past_skips(view, p, r.to) for p, r in batch.ranges.items() if p in member.positions}
    same_epoch = view is not None and view.epoch == batch.epoch
    positions = member.positions.replace(places) if same_epoch else member.positions
    counts = view is not None and view.records_left is not None
    stale = member.view_is_stale or counts
    return replace(member, batch=None, positions=positions, plan_after=0.0, view_is_stale=stale)


def _finish_refused(member: MemberMachine, event: Refused[commands.FinishBatch], now: float) -> MemberMachine:
    batch = _in_phase(member, event.command.batch, frozenset({BatchPhase.FINISHING}))
    member = replace(member, failure=(ResetCause.BATCH_REFUSED, event.why))
    return _stale(state.in_phase(member, replace(batch, doomed=True), BatchPhase.QUIESCED, now))


def _discarded(member: MemberMachine, event: Reply[commands.DiscardBatch, Region], now: float) -> MemberMachine:
    """Whatever the store says of it, nothing of the batch runs."""
    _in_phase(member, event.command.batch, frozenset({BatchPhase.DISCARDING}))
    return _stale(replace(member, batch=None))


def _assigned(member: MemberMachine, event: messages.Assigned, now: float) -> MemberMachine:
    return replace(_with_assignment(member, event), claim_after=0.0, claim_backoff=0.0, busy_since=None)


def _revoking(member: MemberMachine, event: messages.Revoking, now: float) -> MemberMachine:
    return replace(member, revoking=event.partitions)


def _revoked(member: MemberMachine, event: Notice, now: float) -> MemberMachine:
    return _with_assignment(member, None)


def _with_assignment(member: MemberMachine, assignment: messages.Assigned | None) -> MemberMachine:
    return replace(answered(member, messages.ReleasePartitions), assignment=assignment, revoking=frozenset())


def _left_group(member: MemberMachine, event: Notice, now: float) -> MemberMachine:
    return replace(_with_assignment(member, None), in_group=False, claimed=None)


def _instance_fenced(member: MemberMachine, event: Notice, now: float) -> MemberMachine:
    first, most = REJOIN_BACKOFF
    again = member.fenced_at is not None and now - member.fenced_at < CALM
    backoff = min(member.join_backoff * 2, most) if again else first
    return replace(_with_assignment(member, None), in_group=False, fenced_at=now, join_backoff=backoff)


def _committed(member: MemberMachine, event: messages.CommitAnswered, now: float) -> MemberMachine:
    return replace(member, commit=replace(member.commit, answer=event))


def _partitions_discovered(member: MemberMachine, event: messages.PartitionsDiscovered, now: float) -> MemberMachine:
    known = replace(member.discovery, found=event.partitions, rejoin=False)
    held = frozenset() if member.assignment is None else member.assignment.partitions
    if event.partitions is not None:
        since = None if held <= event.partitions else now if known.lacks_since is None else known.lacks_since
        lacks = since is not None and now - since >= state.seconds(member.timeouts.rejoin_after)
        known = replace(known, lacks_since=since, lacks=lacks)
    return replace(member, discovery=known)


def _partitions_reported(
    member: MemberMachine, event: Reply[commands.ReportPartitions, commands.PartitionAdvice], now: float
) -> MemberMachine:
    known = member.discovery
    advice = event.result if isinstance(event, Answered) else commands.PartitionAdvice(report_again=True)
    advised = replace(
        known,
        reported=None if advice.report_again else known.reported,
        gone=advice.gone,
        rejoin=advice.rejoin,
        rejoins=known.rejoins if advice.report_again else 0,
    )
    return replace(member, discovery=advised)


def _sinks_reset(member: MemberMachine, event: messages.SinksReset, now: float) -> MemberMachine:
    if event.epoch != member.reset.epoch:
        return member
    return replace(member, reset=replace(member.reset, found=dict(event.found)))


def _sink_failed(member: MemberMachine, event: messages.SinkFailed, now: float) -> MemberMachine:
    if event.fence > member.memory.epoch or event.timeline > member.memory.timeline:
        fence, timeline = max(event.fence, member.memory.epoch), max(event.timeline, member.memory.timeline)
        memory = replace(member.memory, epoch=fence, timeline=timeline, is_store_older=True)
        member = replace(member, memory=memory)
    if event.epoch != member.reset.epoch:
        return member
    if event.epoch != member.memory.epoch:
        # What failed belongs to an epoch that is over; asking for a reset of the present one would count against it.
        return replace(member, reset=OwnReset())
    return replace(member, failure=(ResetCause.SINK_FAILED, event.why), reset=OwnReset())


def _sinks_prepared(member: MemberMachine, event: messages.SinksPrepared, now: float) -> MemberMachine:
    part = event if event.sequence == member.contribution.sequence else None
    return replace(member, contribution=replace(member.contribution, prepared=part))


def _engine_lacks(member: MemberMachine, event: messages.EngineLacks, now: float) -> MemberMachine:
    """Time in which no task can run, or gets its records at the pace of a quota, is not the batch's own."""
    batch = member.batch
    if event.why and event.excuses and batch is not None and batch.phase is BatchPhase.RUNNING:
        batch = replace(batch, since=now)
    return replace(member, lacks=event.why, batch=batch)


def _publication_failed(member: MemberMachine, event: Refused[commands.ReportPublished], now: float) -> MemberMachine:
    """It is tried again in its turn."""
    return _stale(member)


def _terminated(member: MemberMachine, event: Notice, now: float) -> MemberMachine:
    return member if member.terminating else replace(member, terminated_at=now)


def _unchanged(member: MemberMachine, event: messages.Event, now: float) -> MemberMachine:
    """Time is no fact of the member; nor is the answer to a command that only reports something to the store."""
    return member


Kind: TypeAlias = "Notice | type[object] | tuple[type[object], type[commands.Command[object]]]"

Row: TypeAlias = tuple[Asked | None, Callable[..., MemberMachine]]

TABLE: Final[Mapping[Kind, Row]] = {
    (Answered, commands.Register): (commands.Register, _registered),
    (Refused, commands.Register): (commands.Register, _registration_refused),
    (Answered, commands.Renew): (commands.Renew, _renewed),
    (Refused, commands.Renew): (commands.Renew, _renewal_refused),
    (Answered, commands.ReadRegion): (commands.ReadRegion, _view_read),
    (Refused, commands.ReadRegion): (commands.ReadRegion, _read_refused),
    (Answered, commands.ClaimPartitions): (messages.ClaimAssignment, _claim_granted),
    (Refused, commands.ClaimPartitions): (messages.ClaimAssignment, _claim_refused),
    (Answered, commands.Acknowledge): (commands.Acknowledge, _shown),
    (Refused, commands.Acknowledge): (commands.Acknowledge, _acknowledgement_refused),
    (Answered, commands.Contribute): (commands.Contribute, _contributed),
    (Refused, commands.Contribute): (commands.Contribute, _contribution_refused),
    (Answered, commands.ReportPublished): (commands.ReportPublished, _shown),
    (Refused, commands.ReportPublished): (commands.ReportPublished, _publication_failed),
    (Answered, commands.ReportPartitions): (commands.ReportPartitions, _partitions_reported),
    (Refused, commands.ReportPartitions): (commands.ReportPartitions, _partitions_reported),
    (Answered, commands.StartBatch): (None, _batch_started),
    (Refused, commands.StartBatch): (None, _start_refused),
    (Answered, commands.FinishBatch): (None, _batch_accepted),
    (Refused, commands.FinishBatch): (None, _finish_refused),
    (Answered, commands.DiscardBatch): (None, _discarded),
    (Refused, commands.DiscardBatch): (None, _discarded),
    messages.StoreLost: (None, _store_lost),
    Notice.STORE_BACK: (None, _store_back),
    messages.Changed: (None, _changed),
    messages.RangesPlanned: (messages.PlanRanges, _planned),
    messages.BatchEnded: (None, _batch_ended),
    messages.Assigned: (None, _assigned),
    messages.Revoking: (messages.ReleasePartitions, _revoking),
    Notice.REVOKED: (None, _revoked),
    Notice.LEFT_GROUP: (GroupRequest.LEAVE, _left_group),
    Notice.INSTANCE_FENCED: (None, _instance_fenced),
    messages.CommitAnswered: (messages.Commit, _committed),
    messages.PartitionsDiscovered: (GroupRequest.DISCOVER_PARTITIONS, _partitions_discovered),
    messages.SinksReset: (messages.ResetSinks, _sinks_reset),
    messages.SinkFailed: (messages.ResetSinks, _sink_failed),
    messages.SinksPrepared: (messages.PrepareSinks, _sinks_prepared),
    messages.EngineLacks: (None, _engine_lacks),
    Notice.TICK: (None, _unchanged),
    Notice.TERMINATED: (None, _terminated),
}
"""One row an event: the effect whose answer it is, and what records it."""
