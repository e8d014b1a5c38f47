"""A member's states, and what it remembers between events (docs/reference/states.md).

Times are seconds of a monotonic clock that runs through suspension; they are compared with each other only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final, TypeAlias

from airflow_kcr.errors import IllegalEvent, KcrError
from airflow_kcr.protocol import offsets, values
from airflow_kcr.protocol.member import messages
from airflow_kcr.protocol.member.messages import Effect, GroupRequest
from airflow_kcr.protocol.offsets import EMPTY, OffsetMap
from airflow_kcr.protocol.region import commands
from airflow_kcr.protocol.region.rows import Batch, ResetCause
from airflow_kcr.protocol.region.view import MemberRegion
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import GroupPartition, Offset, few, replace


class State(StrEnum):
    """Where a member stands."""

    JOINING = "joining"
    """It has no claims that count: it registers, joins its group, or claims what it was assigned. Left by a claim."""

    READY = "ready"
    """Its claims are granted, but it may not process yet: the region resets, or it has not acknowledged."""

    PROCESSING = "processing"
    """It plans and runs batches."""

    HOLDING = "holding"
    """It could process but must wait; `why` says for what. Its membership stays, unless the store is away."""

    FENCED = "fenced"
    """A newer incarnation exists, made by another process: it stops its batch and writes nothing. Final."""

    CLOSED = "closed"
    """It has stopped by itself. Final."""


class Why(StrEnum):
    """What a holding member waits for."""

    DRAINED = "drained"
    """A checkpoint: for its completion, then for its own commit."""

    RESET = "reset"
    """Its batch to be quiesced in a new epoch, or a halted region to be resumed."""

    PAUSED = "paused"
    """A resume."""

    RETRY = "retry"
    """The wait after a failed batch to be over; it is longer with each failure in succession."""

    BOUNDARY = "boundary"
    """Every partition is at the boundary; the checkpoint has to be requested, or other partitions have to get there."""

    STORE_AWAY = "store_away"
    """The store; it has left its group, so that its partitions move to those who can work."""


ACTIVE: Final = frozenset({State.JOINING, State.READY, State.PROCESSING, State.HOLDING})

"""States that any other may follow; FENCED and CLOSED are final."""


class BatchPhase(StrEnum):
    """Where the member's batch stands; there is at most one."""

    STARTING = "starting"
    """The store is asked to start it."""

    STARTED = "started"
    """The store has started it; the pipeline is to be called."""

    RUNNING = "running"
    """The pipeline runs."""

    CANCELLING = "cancelling"
    """Cancelled; its tasks may still write."""

    FINISHING = "finishing"
    """The store was asked to finish it."""

    QUIESCED = "quiesced"
    """Nothing of it runs; the store has to know that it is discarded."""

    DISCARDING = "discarding"
    """The store was told that it is discarded."""


Asked: TypeAlias = type[object] | GroupRequest
"""A kind of effect: its class, or what is asked of the group, where both ways to leave it are `LEAVE`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MyBatch:
    """The member's batch."""

    batch: values.BatchId
    ranges: Mapping[GroupPartition, values.Range]
    epoch: values.Epoch
    incarnation: values.Incarnation
    phase: BatchPhase
    since: float
    """When it entered its phase."""

    row: Batch | None = None
    """As the store has it; None before it was started there."""

    doomed: bool = False
    """Whether it is not to be finished, whatever becomes of it."""

    def failed(self, why: str) -> str:
        """Return why it failed; with its records, once it was narrowed to one of each partition."""
        if any(range_.width > 1 for range_ in self.ranges.values()):
            return why
        records = few(f"{p} offset {range_.from_}" for p, range_ in sorted(self.ranges.items()) if range_.width)
        return f"{why}; the batch was {records} alone"


OwnClaim: TypeAlias = tuple[values.AssignmentId, values.Epoch]
"""The assignment whose claim was granted, and in which epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """What the member knows of the partitions that the brokers have, and of those that have no owner."""

    asked_at: float = 0.0
    asked_for: OwnClaim | None = None
    """The claim that was granted when the brokers were asked last."""

    found: frozenset[GroupPartition] | None = None
    """Their answer, until the store has it."""

    reported: frozenset[GroupPartition] | None = None
    """What was reported to the store since that claim; None if it is to be reported again."""

    claim_lacks_logs: bool = False
    """Whether the last claim was refused because the brokers did not have a log of the assignment."""

    lacks_since: float | None = None
    """When the brokers first said, without a break, that they do not have a partition of the assignment."""

    lacks: bool = False
    """Whether they have said so for long enough: the assignment is an old one, which can't be claimed."""

    gone: frozenset[GroupPartition] = frozenset()
    """Partitions that are no part of the region any more; an assignment with one of them can't be claimed."""

    rejoin: bool = False
    """Whether a rebalance would give partitions an owner, and this member is to cause it."""

    rejoins: int = 0
    """How often it has done so in vain."""

    rejoined_at: float = 0.0


Failure: TypeAlias = tuple[ResetCause, str]
"""Why a batch, or a sink, ended badly, with details; a reset is asked for with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The highest numbers that the member has been or seen: a store that shows lower ones was restored."""

    incarnation: values.Incarnation = values.Incarnation(0)
    epoch: values.Epoch = values.Epoch(0)
    sequence: values.CheckpointNumber = values.CheckpointNumber(0)
    timeline: values.Timeline = values.Timeline(0)
    counter: values.EventNumber = values.EventNumber(0)
    newest_event: commands.EventMark | None = None
    """The newest event that a view has shown: a store that has another one by its number was restored."""

    is_store_older: bool = False
    """Whether the store was found to be older than this; to be reported."""

    lost_event: commands.EventMark | None = None
    """An event that the store had shown, and has not; to be reported."""

    forgotten: OffsetMap = EMPTY
    """Positions that the store had accepted and does not have any more; to be reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRead:
    """The last time that the region was asked for."""

    at: float = 0.0
    counter: values.EventNumber = values.EventNumber(0)
    """Of the view that the member had then: an answer below it comes from a store that was restored."""

    was_idle: bool = False
    """Whether the member has had no batch since then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnReset:
    """The member's part of a reset."""

    epoch: values.Epoch | None = None
    """The epoch whose reset is being carried out."""

    found: Mapping[GroupPartition, commands.Found] | None = None
    """The sinks' answers for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnContribution:
    """The member's part of a checkpoint."""

    sequence: values.CheckpointNumber | None = None
    """The checkpoint that the sinks prepare for."""

    prepared: messages.SinksPrepared | None = None
    """What the contribution to it needs, once they have."""

    stored: values.CheckpointNumber | None = None
    """The checkpoint that was contributed to last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCommit:
    """The member's commit of the restore point to Kafka."""

    since: float = 0.0
    assignment: values.AssignmentId | None = None
    """The assignment in which it was asked for."""

    answer: messages.CommitAnswered | None = None
    """To be reported to the store."""

    done: values.CheckpointNumber | None = None


@dataclass(frozen=True, kw_only=True)
class MemberMachine:
    """One member, between two events."""

    process: commands.Register
    """How its process registers; what it was before is completed for each registration."""

    timeouts: Timeouts
    static: bool = True
    state: State = State.JOINING
    why: Why | None = None
    incarnation: values.Incarnation | None = None
    """None while it has no lease."""

    previous: values.Incarnation | None = None
    """The newest incarnation that this process was."""

    lease_sent_at: float = 0.0
    memory: Memory = Memory()
    view: MemberRegion | None = None
    view_is_stale: bool = True
    """Whether something happened since that only a new view tells."""

    heard: values.EventNumber = values.EventNumber(0)
    """The counter of the last notification since it last asked for the region."""

    read: LastRead = LastRead()
    in_group: bool = False
    fenced_at: float | None = None
    """When Kafka fenced its client last; it joins again only by a lease that was renewed since."""

    join_backoff: float = 0.0
    """How long after being fenced it does not join again."""

    assignment: messages.Assigned | None = None
    """None from a revoke to the next assignment."""

    revoking: frozenset[GroupPartition] = frozenset()
    """What Kafka takes of the assignment; nothing is started there any more, only on what is kept."""

    claimed: OwnClaim | None = None
    claim_after: float = 0.0
    """A refused claim is not made again before."""

    claim_backoff: float = 0.0
    busy_since: float | None = None
    """Since when the claim has been refused because batches of others still run on partitions of it."""

    positions: OffsetMap = EMPTY
    """Next offsets of the claimed partitions, as far as they are known."""

    discovery: Discovery = Discovery()
    batch: MyBatch | None = None
    failure: Failure | None = None
    retry_at: float = 0.0
    """A batch failed somewhere in the region; none is started before."""

    lacks: str = ""
    """What its engine lacks to run a batch, or what slows it down; empty: nothing."""

    plan_after: float = 0.0
    """Nothing was there to process; the planner is not asked again before."""

    plan_pause: float = 0.0
    """How long it waits so; longer each time in succession."""

    reset: OwnReset = OwnReset()
    seek_committed: values.Epoch | None = None
    plan: messages.RangesPlanned | None = None
    """The planner's answer, to be used or dropped."""

    contribution: OwnContribution = OwnContribution()
    commit: OwnCommit = OwnCommit()
    reconciled_for: values.CheckpointNumber | None = None
    """The approaching checkpoint for which the region was asked to check whether all members are there."""

    needs_reconciling: bool = False
    """Whether a transition is due in the region without a request."""

    store_lost_at: float | None = None
    awaited: frozenset[Asked] = frozenset()
    """Effects whose answer is still to come, so that none is asked for twice."""

    terminated_at: float | None = None
    """Since when the process shall end."""

    in_use_since: float | None = None
    """Since when another process has been found to hold its index, in vain."""

    register_after: float = 0.0
    """It does not register again before."""

    refusal: KcrError | None = None
    """Why the store had no place for it."""

    @property
    def member(self) -> values.MemberId:
        """Who it is."""
        return self.process.member

    @property
    def terminating(self) -> bool:
        """Whether the process shall end."""
        return self.terminated_at is not None


def moved(member: MemberMachine, state: State, why: Why | None = None) -> MemberMachine:
    """Return the member in another state; the single writer of `state`.

    Raises:
        IllegalEvent: its state is final.
    """
    if (state, why) == (member.state, member.why):
        return member
    if member.state not in ACTIVE:
        raise IllegalEvent(f"{member.member} can't go from {member.state} to {state}")
    return replace(member, state=state, why=why)


def awaiting(member: MemberMachine, kind: Asked) -> MemberMachine:
    """Return the member with an effect of a kind outstanding."""
    return replace(member, awaited=member.awaited | {kind})


def asking(member: MemberMachine, effect: Effect) -> Driven:
    """Return the member with an effect outstanding, and that effect."""
    return awaiting(member, effect if isinstance(effect, GroupRequest) else type(effect)), (effect,)


def answered(member: MemberMachine, kind: Asked) -> MemberMachine:
    """Return the member without an effect of that kind outstanding."""
    return replace(member, awaited=member.awaited - {kind})


def seconds(duration: timedelta) -> float:
    """Return a duration in seconds, as the member's clock counts."""
    return duration.total_seconds()


def in_phase(member: MemberMachine, batch: MyBatch, phase: BatchPhase, now: float) -> MemberMachine:
    """Return the member with its batch, in a phase from now on."""
    return replace(member, batch=replace(batch, phase=phase, since=now))


def doomed(member: MemberMachine) -> MemberMachine:
    """Return the member whose batch, if it has one, is not to be finished any more."""
    if member.batch is None or member.batch.doomed:
        return member
    return replace(member, batch=replace(member.batch, doomed=True))


def unprepared(member: MemberMachine) -> MemberMachine:
    """Return the member whose contribution has to be prepared anew."""
    return replace(member, contribution=OwnContribution(stored=member.contribution.stored))


def without_lease(member: MemberMachine) -> MemberMachine:
    """Return the member whose lease is lost: its batch is void, and it comes back as a new incarnation."""
    lost = replace(
        unprepared(doomed(member)),
        incarnation=None,
        failure=None,
        claimed=None,
        positions=EMPTY,
        reset=OwnReset(),
        view=None,
        view_is_stale=True,
        plan=None,
    )
    return moved(lost, State.JOINING) if member.state in ACTIVE else lost


def has_claimed(member: MemberMachine, view: MemberRegion) -> bool:
    """Whether the member's present assignment is claimed in the region's present epoch."""
    assignment = member.assignment
    return (
        assignment is not None
        and member.claimed == (assignment.assignment, view.epoch)
        and view.claims.keys() == assignment.partitions
    )


def is_doubtful(member: MemberMachine) -> bool:
    """Whether Kafka has fenced the member's client, and no lease renewed since says that it is this process."""
    return member.fenced_at is not None and member.lease_sent_at <= member.fenced_at


def is_well(member: MemberMachine) -> bool:
    """Whether the member holds a lease and means to stay."""
    return (
        member.incarnation is not None
        and member.state in ACTIVE
        and not member.terminating
        and member.why is not Why.STORE_AWAY
    )


def is_at_limit(member: MemberMachine, view: MemberRegion) -> bool:
    """Whether every partition of the member is at the boundary, or beyond."""
    if view.limit is None or not view.claims:
        return view.limit is not None and view.checkpoint is not None
    return all(
        p in view.boundary_offsets and member.positions.get(p, -1) >= view.boundary_offsets[p].offset
        for p in view.claims
    )


def past_skips(view: MemberRegion | None, partition: GroupPartition, offset: Offset) -> Offset:
    """Return the next offset at or after `offset` that is not skipped, as far as the view tells."""
    return offset if view is None else offsets.past_skips(offset, view.skips.get(partition, ()))


def own(member: MemberMachine) -> values.Incarnation:
    """Return the incarnation of a member that holds a lease."""
    if member.incarnation is None:
        raise IllegalEvent(f"{member.member} has no lease; nothing can be asked in its name")
    return member.incarnation


def caller(member: MemberMachine, epoch: values.Epoch) -> commands.Caller:
    """Return a member that holds a lease, as who asks in an epoch."""
    return commands.Caller(member=member.member, incarnation=own(member), epoch=epoch)


def next_due(member: MemberMachine, now: float) -> float:
    """Return the first moment after `now` at which the member has something to do because of the time alone.

    It covers what comes often (a renewal, the next plan, a claim or a batch after a refusal) and what others count on
    (the end of the lease, and what a batch may take). The rest may come a little late.
    """
    timeouts, batch = member.timeouts, member.batch
    interval = seconds(timeouts.renew)
    moments = [
        (now // interval + 1) * interval,
        member.plan_after,
        member.claim_after,
        member.retry_at,
        member.register_after,
        member.lease_sent_at + seconds(timeouts.lease),
    ]
    if batch is not None:
        may_take = timeouts.process_end_limit if batch.phase is BatchPhase.CANCELLING else timeouts.batch
        moments.append(batch.since + seconds(may_take))
    return min(moment for moment in moments if moment > now)


Driven: TypeAlias = "tuple[MemberMachine, tuple[Effect, ...]]"
"""What a rule of the member returns: the member, and what it wants done."""
