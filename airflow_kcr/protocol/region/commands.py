"""The verbs of the region store, as values: what members, operators and DAG runs ask of it, and the answer's type.

The store handles a command by its rule (`decisions`); a member hears the answer beside the very same value,
so that it knows what it answers. A command may be repeated: it names a batch, a token, an epoch, a request id or a
checkpoint by which the store recognises what it has already done, and finds the first result again. Only
`DeclareRegion` and `DeleteRegion` have nothing to be recognised by.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Generic, TypeVar
from uuid import uuid4

from airflow_kcr.protocol import values
from airflow_kcr.protocol.observations import ForeignConsumer, LogBounds
from airflow_kcr.protocol.offsets import EMPTY, OffsetMap, SeekEntry, SeekMap
from airflow_kcr.protocol.region import events, rows
from airflow_kcr.protocol.region.state import Region, Spec
from airflow_kcr.protocol.region.view import MemberRegion
from airflow_kcr.protocol.table_outputs import TableVersion
from airflow_kcr.protocol.values import DesiredState, GroupPartition, Offset

A_co = TypeVar("A_co", covariant=True)


class Command(Generic[A_co]):
    """A verb of the store, which answers it with an `A_co`; `Region` is the region as decided."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class InEpoch(Command[A_co]):
    """Another command, as long as the region is in the epoch that its caller looked at."""

    epoch: values.Epoch
    command: Command[A_co]


@dataclass(frozen=True, slots=True, kw_only=True)
class FromProcess(Command[A_co]):
    """Another command of a member, as long as it is this process that the store has as the member.

    Its incarnation alone doesn't say so: a store that was restored gives numbers away a second time, and the process
    that has had the number before may still live.
    """

    member: values.MemberId
    token: str
    """What the process registered with."""

    command: Command[A_co]


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks, and in which epoch."""

    member: values.MemberId
    incarnation: values.Incarnation
    epoch: values.Epoch


# -- presence ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Register(Command[values.Incarnation]):
    """Register a new incarnation of a member, with a fresh lease."""

    member: values.MemberId
    token: str
    """Made by the process, unique for each of its starts: the store knows by it which process a member is."""

    label: str = ""
    version: str = ""
    """Of the package that it runs."""

    takeover: bool = False
    """Whether a live lease of another process may be superseded (Airflow's retry of the same task)."""

    previous: values.Incarnation | None = None
    """The incarnation that this very process was, where it returns after a lost lease; what is newer is its own."""

    sinks_fenced: bool = False
    ends_within: timedelta = timedelta(seconds=30)
    spec_digest: str | None = None
    """Of the spec that the process has built the member from; None: it does not say. No revision: a store that was
    restored gives that number to another spec."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventMark:
    """One event of a region's history, as a member remembers it: no other history has it."""

    number: values.EventNumber
    at: datetime
    """When it was recorded, by the store's clock."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a renewal tells: enough to know whether anything is worth reading."""

    now: datetime
    """The store's clock."""

    counter: values.EventNumber
    epoch: values.Epoch
    incarnation: values.Incarnation
    """The member's newest incarnation."""

    renewed: bool
    """Whether the lease was renewed; an expired lease, or one of an older incarnation, never is."""

    reconcile_at: datetime | None
    """When a transition is due in the region without a request."""

    is_other_history: bool
    """Whether the store has another event by the number of the newest one that the member knows of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Renew(Command[Heartbeat]):
    """Renew a member's lease, if its incarnation holds it and it is not over; the answer says whether."""

    member: values.MemberId
    incarnation: values.Incarnation
    lease: timedelta
    """By how much, from now on."""

    newest: EventMark | None = None
    """The newest event that the member knows of; compared with the one that the store has by this number."""

    lacks: str = ""
    """What it lacks to run a batch, for people; empty: nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRegion(Command[MemberRegion]):
    """Read what a member sees of its region; takes no lock."""

    member: values.MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconcile(Command[Region]):
    """Reconcile the region; any caller may, and doing it twice changes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave(Command[Region]):
    """Give up lease and claims: the member left its group."""

    member: values.MemberId
    incarnation: values.Incarnation


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepSlot(Command[Region]):
    """Give up the lease, not the claims: a static member stops and expects to return."""

    member: values.MemberId
    incarnation: values.Incarnation


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportLater(rows.Noted, Command[Region]):
    """Report what a member remembers of later times than the store: a restored store halts its regions."""

    incarnation: values.Incarnation
    timeline: values.Timeline = values.Timeline(0)
    counter: values.EventNumber = values.EventNumber(0)
    """Of the region's events; 0 if that is not known."""

    positions: OffsetMap = EMPTY
    """What the store had accepted, where it now says less of the same claim."""

    event: EventMark | None = None
    """An event that the store had, where it now has another one by this number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportNoted(Command[Region]):
    """Report that Kafka's commit metadata knows later numbers than the store; the region halts, and adopts none."""

    partition: GroupPartition
    noted: rows.Noted


# -- claims and resets ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedPartition:
    """One partition of an assignment, as its new owner sees it."""

    bounds: LogBounds
    initial: SeekEntry | None = None
    """The resolved start position, if the store has no initial offset yet; kept only if it is the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimPartitions(Command[MemberRegion]):
    """Replace the member's claims by its assignment, all of it and nothing else."""

    member: values.MemberId
    incarnation: values.Incarnation
    assignment: values.AssignmentId
    partitions: Mapping[GroupPartition, AssignedPartition]
    cluster: values.ClusterId = values.NO_CLUSTER
    """The cluster that the logs were read in; where the region knows the group on another one, it halts."""

    waited: timedelta = timedelta(0)
    """For how long it has been refused with PartitionBusy, as a batch of another member ran on a partition of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAdvice:
    """What a member should do about the partitions of its group that have no owner."""

    report_again: bool = False
    """Whether the member shall report again: a partition of its group has no owner, or that could not be said."""

    rejoin: bool = False
    """Whether the member shall leave its group and join again, so that Kafka assigns every partition."""

    gone: frozenset[GroupPartition] = frozenset()
    """The partitions of the group that are no part of the region any more; who is assigned one shall join again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPartitions(Command[PartitionAdvice]):
    """Report which partitions the brokers have, as one member read them."""

    member: values.MemberId
    incarnation: values.Incarnation
    partitions: frozenset[GroupPartition]
    """Every partition that they have of the topics that the member's group subscribes to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the first owner found for an open entry."""

    offset: Offset | None
    """None: the sink has no progress in this timeline; it resumes at the restore point, else at the initial offset."""

    clamped_from: int | None = None
    log: LogBounds | None = None
    """The log that it was looked up in; None for a sink's progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerEntries(Command[Region]):
    """Write open seek entries of the member's own partitions; the first writer wins."""

    caller: Caller
    found: Mapping[GroupPartition, Found]


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledge(Command[MemberRegion]):
    """Acknowledge the epoch: the member is quiesced, its fences are raised and its positions set."""

    caller: Caller

    @property
    def member(self) -> values.MemberId:
        """Who acknowledges."""
        return self.caller.member


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestReset(Command[Region]):
    """Request an automatic reset; one requested in an older epoch is already answered."""

    caller: Caller
    cause: rows.ResetCause
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOutOfRange(Command[Region]):
    """Report the logs of the member's partitions, re-read, where a position seemed to be outside."""

    caller: Caller
    observed: Mapping[GroupPartition, LogBounds]
    cluster: values.ClusterId = values.NO_CLUSTER
    """As in `ClaimPartitions`."""


# -- batches -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StartBatch(Command[rows.Batch]):
    """Start a batch; the answer is its row in the ledger."""

    batch: values.BatchId
    """Made by the member, unique for ever; a repeated request is recognised by it."""

    member: values.MemberId
    incarnation: values.Incarnation
    epoch: values.Epoch
    ranges: Mapping[GroupPartition, values.Range]


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishBatch(Command[None]):
    """Finish a batch: its work is accepted, positions advance. A finish that was already accepted is no error."""

    batch: values.BatchId
    member: values.MemberId
    incarnation: values.Incarnation


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardBatch(Command[Region]):
    """Discard a batch: nothing of it runs any more, and nothing of it counts. Already closed is no error."""

    batch: values.BatchId
    member: values.MemberId
    incarnation: values.Incarnation


# -- boundaries and checkpoints ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreBoundaryOffsets(Command[Region]):
    """Store where a boundary falls in some partitions; the first writer wins."""

    caller: Caller
    boundary: datetime
    found: Mapping[GroupPartition, rows.BoundaryOffset]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribute(events.Contributed, Command[MemberRegion]):
    """Contribute a member's part to the draining checkpoint; the last part completes it."""

    committed: OffsetMap = EMPTY
    """Kafka's committed offsets that it saw for its partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPublished(Command[MemberRegion]):
    """Report that the member's sinks show what belongs to a complete checkpoint."""

    sequence: values.CheckpointNumber
    member: values.MemberId
    tables: tuple[TableVersion, ...] = ()
    """What they have committed to tables that people own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportReadBack(Command[Region]):
    """Report what Kafka answered, read back, to a commit of the restore point."""

    sequence: values.CheckpointNumber
    member: values.MemberId | None = None
    """Who has committed its partitions; None: they were repaired while the groups were empty."""

    incarnation: values.Incarnation = values.Incarnation(0)
    offsets: OffsetMap


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSeekCommit(Command[Region]):
    """Report that a member told Kafka where it resumed after a reset, or why it could not."""

    caller: Caller
    failure: str


# -- regions -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclareRegion(Command[Region]):
    """Declare a region; it is stopped until it is started.

    Refused with RegionExists if there is one of that name, and with GroupInOtherRegion, which names it, where one of
    its groups belongs to another region.
    """

    spec: Spec
    region_id: values.RegionId = field(default_factory=lambda: values.RegionId(uuid4().hex))
    """What the region is called beyond its name."""

    clusters: Mapping[values.GroupId, values.ClusterId] = field(default_factory=dict)
    """Which clusters its groups are on, where that is known already; a group of another cluster is another group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeSpec(Command[Region]):
    """Change the spec: part of it at once, the rest at the next checkpoint or start."""

    at_once: Spec
    """The spec in force from now on: the old one with what may change while members run."""

    later: Spec | None = None
    """The whole new spec, where some of it waits; None where `at_once` is all of it."""

    clusters: Mapping[values.GroupId, values.ClusterId] = field(default_factory=dict)
    """Which clusters groups were found on; refused with OtherCluster where the region knows one of them on another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportStartFailures(Command[Region]):
    """Say why a process can't start its members with the spec in force."""

    failures: tuple[rows.StartFailure, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeDesiredState(Command[Region]):
    """Start a stopped or halted region, or resume a paused one; pause it; stop it.

    In a paused region, batches in flight finish, none starts, and membership stays. A stop takes a checkpoint,
    publishes and commits it, then all leave.
    """

    desired_state: DesiredState
    requester: rows.Requester = field(default_factory=rows.Requester)


@dataclass(frozen=True, slots=True, kw_only=True)
class KillRegion(Command[Region]):
    """Kill: all leave now; the next start resumes at the restore point."""

    requester: rows.Requester = field(default_factory=rows.Requester)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRegion(Command[None]):
    """Delete a stopped region and its history.

    Refused with RegionInState where it is not stopped, or a member still holds a lease.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportGroups(Command[Region]):
    """Report the foreign consumers of groups: the region halts or warns by its policy.

    A second report of the same changes nothing, and a clean one counts, whichever member reported the foreign consumer.
    """

    seen: Mapping[values.GroupId, tuple[ForeignConsumer, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportClusters(Command[Region]):
    """Report which Kafka clusters groups are on: the first report of a group reserves it there for the region.

    Refused with OtherCluster where the region knows a group on another cluster, and with GroupInOtherRegion where the
    group of that cluster is another region's.
    """

    found: Mapping[values.GroupId, values.ClusterId]


# -- checkpoints and resets of people and DAG runs -----------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCheckpoint(Command[rows.CheckpointRequest]):
    """Request a checkpoint, or find out where the request of this request id stands."""

    request_id: values.RequestId
    purpose: rows.CheckpointPurpose = rows.CheckpointPurpose.REQUEST
    boundary: datetime | None = None
    """The checkpoint has exactly the records before this instant; None: it is taken as soon as members have drained."""

    allow_inexact: bool = False
    """Whether a checkpoint near the boundary answers, where the exact place can't be reached any more."""

    then: DesiredState | None = None
    """The desired state once the checkpoint is complete; None: as before."""

    requester: rows.Requester = field(default_factory=rows.Requester)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(Command[rows.CheckpointRequest]):
    """Start a stopped region for one checkpoint at a boundary, and stop with it; or find where that request stands."""

    request_id: values.RequestId
    """Names its checkpoint's request, by which another try finds it."""

    boundary: datetime
    """The checkpoint has exactly the records before this instant."""

    is_up_to_now: bool = False
    """Whether the boundary is when the caller came: of several, that of the first one that asked is everybody's."""

    allow_inexact: bool = False
    """As in `RequestCheckpoint`."""

    requester: rows.Requester = field(default_factory=rows.Requester)
    found: Mapping[GroupPartition, rows.BoundaryOffset] = field(default_factory=dict)
    """Where the boundary falls in partitions, as far as the caller knows; the first that was stored counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteAtRest(Command[bool]):
    """Complete the checkpoint of a run that has nothing to read, and say whether it is there; else nothing changes."""

    run: Run
    logs: Mapping[GroupPartition, LogBounds]
    """Every log of the topics that the groups read, as read before the boundary was looked for."""

    begins: Mapping[GroupPartition, rows.InitialOffset] = field(default_factory=dict)
    """Of a region that has never run: where the spec's `start` has its partitions begin; none: only members can say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishCheckpoint(Command[Region]):
    """Say that the sinks show what belongs to a complete checkpoint, if no member can."""

    sequence: values.CheckpointNumber
    tables: tuple[TableVersion, ...] = ()
    """As in `ReportPublished`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PinCheckpoint(Command[Region]):
    """Pin a checkpoint under a label, or unpin it with an empty one."""

    sequence: values.CheckpointNumber
    label: str
    reason: str = ""
    who: str = ""
    """Who asked, where that is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetireCheckpoints(Command[Region]):
    """Forget the checkpoints that age and count retire; many of them in one transaction after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRecomputation(events.RecomputationBegun, Command[rows.Recomputation]):
    """Start to recompute a checkpoint, or find what became of the recomputation of this request id.

    A process that asks under the request id of one that runs takes its place. Refused with RecomputationRefused while
    one of another request id lives.
    """

    token: str
    """Made by the process, unique for each start: a repeated command is recognised by it."""

    lease: timedelta
    """After how long the process counts as lost, if it does not say that it lives."""

    requester: rows.Requester = field(default_factory=rows.Requester)


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewRecomputation(Command[Region]):
    """Say that a recomputation lives, and find out whether it may replace output; the answer is the region.

    Refused with CheckpointNotUsable where its checkpoint has been undone or retired, and with RecomputationRefused
    where another process has taken its place.
    """

    sequence: values.CheckpointNumber
    number: values.EventNumber
    lease: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishRecomputation(events.CheckpointRecomputed, Command[rows.Recomputation]):
    """Say that the sinks show what a recomputation has made; refused as `RenewRecomputation` is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailRecomputation(events.RecomputationFailed, Command[rows.Recomputation]):
    """Say that a recomputation came to nothing; of one that is over, nothing changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordResetAnswer(Command[Region]):
    """Record what a person has answered about a reset, as the system that asked knows it."""

    answer: rows.ResetAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyReset(Command[rows.PersonReset]):
    """Accept a person's reset: a plan, approved. The answer is where it stands."""

    reset: rows.PersonReset
    epoch: values.Epoch
    """In which the plan was made."""

    resolved: SeekMap | None = None
    """The whole map, resolved by the caller, with the positions that it was resolved by.

    Needed where the region is stopped and no member could; else it only decides whether consent has to be asked for.
    """

    logs: Mapping[GroupPartition, LogBounds] = field(default_factory=dict)
    """The logs that it was resolved in; a topic that was recreated is known by its new id from then on."""

    approved_digest: str = ""
    """Of the plan that a person must have approved, who is then named in the history; empty: none must."""


OF_ANY_PROCESS: Final[tuple[type[Command[object]], ...]] = (
    Register,
    Renew,
    ReadRegion,
    Reconcile,
    ReportLater,
    ReportNoted,
    ReportPublished,
    FinishBatch,
)
"""What a member's process asks for whichever process is the member.

A batch is started by the member alone, and its id says whose it is. A renewal in another's place extends that one's
lease once: its answer tells of news, and the view after it whose the number is.
"""


def from_process(member: values.MemberId, token: str, command: Command[A_co]) -> Command[A_co]:
    """Return a member's command as its process gives it: refused where another process is the member."""
    if type(command) in OF_ANY_PROCESS:
        return command
    return FromProcess(member=member, token=token, command=command)
