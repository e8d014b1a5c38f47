"""The rows of one region: what the store keeps, and all that the region's rules ever read.

Each class is one table of the store (tests/annex/tables-and-locks.md); a row is immutable, a decision replaces it.
`Region` (in `state`) holds them together. Enumerations cross JSON and SQL and are therefore strings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, TypeAlias

from airflow_kcr.protocol import values
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.offsets import EMPTY, OffsetMap
from airflow_kcr.protocol.scopes import EVERYTHING, Scope
from airflow_kcr.protocol.table_outputs import TableVersion
from airflow_kcr.protocol.targets import Target
from airflow_kcr.protocol.values import GroupPartition, Offset


class RegionState(StrEnum):
    """What a region is doing."""

    STARTING = "starting"
    """A reset whose deadlines don't run: members with leases can't yet cover the partitions."""

    RUNNING = "running"
    """Members may process, if the desired state is `running`."""

    DRAINING = "draining"
    """A checkpoint is being taken: no batch starts until it is complete or aborted."""

    RESETTING = "resetting"
    """Every member goes to the seek map of the current epoch; nothing is processed."""

    HALTED = "halted"
    """The region can't continue by itself; a person chooses."""

    STOPPED = "stopped"
    """No member holds anything; the next start resumes at the restore point."""


WORKING: Final = frozenset({RegionState.RUNNING, RegionState.DRAINING})
"""Those in which batches may end."""

RESTING: Final = frozenset({RegionState.HALTED, RegionState.STOPPED})
"""Those in which nothing goes on until a person, or a run, starts the region."""

RESET_STATES: Final = frozenset({RegionState.STARTING, RegionState.RESETTING})
"""Those in which the present epoch's seek map is at work."""

CLAIM_STATES: Final = RESET_STATES | WORKING
"""Those in which members may own partitions."""


class Outcome(StrEnum):
    """What became of a batch."""

    DONE = "done"
    """Its finish was accepted; its output counts unless a reset undoes it."""

    DISCARDED = "discarded"
    """Its member gave it up; nothing of it counts."""

    UNKNOWN = "unknown"
    """Its member vanished between start and finish."""

    UNDONE = "undone"
    """Done, then undone by a reset on every partition; a reset inside a range leaves `done`."""

    # It is not stored: it follows from the resets after the batch (`timelines`), as does `undone_from`.


class CheckpointPurpose(StrEnum):
    """What asked for a checkpoint, and so what its completion ends in."""

    REQUEST = "request"
    """A DAG run or a script; gives way to a person."""

    SCHEDULE = "schedule"
    """The region itself, at a boundary or a count; gives way to a person."""

    DRAIN = "drain"
    """A person; the region continues, or stays paused."""

    STOP = "stop"
    """Ends in STOPPED, once published and committed."""

    RESET = "reset"
    """A person's reset begins in the transaction that completes it."""


class RequestState(StrEnum):
    """Where a checkpoint request stands."""

    QUEUED = "queued"
    """It waits for its checkpoint to be opened."""

    OPEN = "open"
    """Its checkpoint is open."""

    ANSWERED = "answered"
    """A complete checkpoint answers it."""

    SUPERSEDED = "superseded"
    """Its reason is gone (the region was stopped, its reset failed, a reset took its count back)."""

    REFUSED = "refused"
    """Its checkpoint can't be exact, and an inexact one was not allowed."""

    ABORTED = "aborted"
    """Its checkpoint was not complete in time; the next ask opens a new one."""


class CheckpointState(StrEnum):
    """The life of a checkpoint; one that approaches or drains is open."""

    APPROACHING = "approaching"
    """Members continue to the boundary offsets; no deadline runs."""

    DRAINING = "draining"
    """No batch starts; the drain deadline runs."""

    COMPLETE = "complete"
    """It has one offset for every frozen partition, and is the restore point."""

    PUBLISHED = "published"
    """The sinks show what belongs to it; downstream may read."""

    ABORTED = "aborted"
    """The checkpoint was given up; its sequence is burnt."""

    RETIRED = "retired"
    """Its offsets are forgotten; its digest and the answers to its requests stay."""


class Committed(StrEnum):
    """Whether Kafka holds the offsets of a checkpoint."""

    PENDING = "pending"
    """Members commit and read back."""

    YES = "yes"
    """Kafka holds exactly its offsets."""

    NO = "no"
    """Kafka does not hold them, or not in time."""

    SUPERSEDED = "superseded"
    """A newer checkpoint, or a reset, took its place before that was known."""


class ResetCause(StrEnum):
    """Why an epoch began."""

    START = "start"
    """A person started or resumed the region."""

    PERSON = "person"
    """A person chose where to go."""

    CLAIM = "claim"
    """A partition was claimed on which a batch of another member, or incarnation, will not be accepted any more."""

    BATCH_FAILED = "batch_failed"
    """The pipeline raised."""

    BATCH_TIMEOUT = "batch_timeout"
    """A batch took longer than `batch.timeout`."""

    BATCH_REFUSED = "batch_refused"
    """A started batch could not end: its claims had gone."""

    LEASE_LOST = "lease_lost"
    """A participant that had started something lost its lease under an open checkpoint."""

    DOUBLE_CLAIM = "double_claim"
    """Two members contributed one partition to a checkpoint."""

    ATTEMPT_EXPIRED = "attempt_expired"
    """The attempt before was not done within `timeouts.reset`."""

    OUT_OF_RANGE = "out_of_range"
    """A position is no longer in its log, and the policy is `earliest` or `latest`."""

    SPEC_CHANGED = "spec_changed"
    """A changed spec took effect at a completed checkpoint; members restart there."""

    SINK_FAILED = "sink_failed"
    """A sink could not roll back, raise its fence or read its progress."""


FAILURE_CAUSES: Final = frozenset(
    {ResetCause.BATCH_FAILED, ResetCause.BATCH_TIMEOUT, ResetCause.ATTEMPT_EXPIRED, ResetCause.SINK_FAILED}
)
"""What counts against `max_failures`: a batch that failed, or an attempt used up; never a membership change."""


class ResetState(StrEnum):
    """What became of one attempt."""

    RUNNING = "running"
    """Members cancel, quiesce, claim and acknowledge."""

    DONE = "done"
    """The region went on as its desired state says."""

    SUPERSEDED = "superseded"
    """A further attempt, or another reset, took its place."""


class PersonResetState(StrEnum):
    """Where a person's accepted reset stands."""

    WAITING = "waiting"
    """Another reset runs."""

    DRAINING = "draining"
    """Its checkpoint is queued or open."""

    STARTED = "started"
    """Its reset runs."""

    DONE = "done"
    """Its reset is done."""

    FAILED = "failed"
    """It was given up; `failure` says why."""


class HaltReason(StrEnum):
    """Why a region can't help itself."""

    FAILURES = "failures"
    """`max_failures` is used up."""

    OUT_OF_RANGE = "out_of_range"
    """A position is no longer in its log, and the policy is `fail`."""

    RESTORED = "restored"
    """The store is older than what a member has already acted on."""

    FOREIGN_CONSUMER = "foreign_consumer"
    """A foreign consumer is in a group, and the policy is `fail`."""

    OTHER_CLUSTER = "other_cluster"
    """A group's address leads to another Kafka cluster than before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One member's newest incarnation."""

    member: values.MemberId
    incarnation: values.Incarnation
    token: str = ""
    """What its process calls itself; empty: the store has never heard of one."""

    label: str = ""
    """Host, process and application, for people."""

    version: str = ""
    """Of the package that it runs; empty: it did not say."""

    acknowledged: values.Epoch | None = None
    """The newest epoch in which it said: quiesced, fences raised, positions set."""

    claimed: values.Epoch | None = None
    """The newest epoch in which it claimed, be it nothing."""

    spec_revision: int = 0
    """The revision of the spec it was started with."""

    sinks_fenced: bool = False
    """Whether every sink of its pipeline refuses an older epoch by itself."""

    ends_within: timedelta = timedelta(seconds=30)
    """After the end of its lease, the process ends itself within this, whatever a batch does."""

    left: bool = False
    arrived_at: datetime | None = None
    """When it registered, or its newest claim was granted; None: an earlier version of the package wrote the row."""

    def quiesced_after(self, lease_until: datetime) -> datetime:
        """Return when this incarnation can't write any more, given the end of its last lease."""
        return lease_until if self.sinks_fenced else lease_until + self.ends_within


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right of one incarnation to act, by the store's clock. Renewals write only this, outside the region lock."""

    incarnation: values.Incarnation
    until: datetime
    lacks: str = ""
    """What the member lacks to run a batch, or slows it down, as it said with its last renewal; empty: nothing."""


@dataclass(frozen=True)
class Claim:
    """One partition of the region: who may process it, from where. The row stays without an owner.

    Without slots, as every batch replaces some of each of its partitions (see `values.replace`).
    """

    owner: values.MemberId | None = None
    incarnation: values.Incarnation = values.Incarnation(0)
    epoch: values.Epoch = values.Epoch(0)
    """The epoch in which the present owner claimed it."""

    last_owner: values.MemberId | None = None
    topic_id: values.TopicId = values.TopicId("")
    leader_epoch: int = -1
    resume: Offset | None = None
    """The **resume point**; None while its seek entry is open."""

    position: Offset | None = None
    """The next offset a batch may begin at."""

    started_to: Offset | None = None
    """The furthest end of a batch started in this epoch; at least `position`."""

    @property
    def is_started(self) -> bool:
        """Whether anything was started here, in this epoch, beyond the resume point."""
        return self.resume is not None and self.started_to is not None and self.started_to > self.resume

    @property
    def is_in_flight(self) -> bool:
        """Whether a batch was started here that has not been accepted."""
        return self.started_to != self.position

    def is_of(self, member: values.MemberId, incarnation: values.Incarnation, epoch: values.Epoch) -> bool:
        """Whether a member has claimed it, as this incarnation and in this epoch."""
        return self.epoch == epoch and self.incarnation == incarnation and self.owner == member

    def at(self, place: Offset | None) -> Claim:
        """Return the claim where a checkpoint or a reset has put its partition: nothing is done or started beyond."""
        if self.resume == self.position == self.started_to == place:
            return self
        return values.replace(self, resume=place, position=place, started_to=place)


UNCLAIMED: Final = Claim()
"""What a region knows of a partition that no member has claimed yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unserved:
    """A partition that no member can read, as it has no owner, or the brokers say they do not have it."""

    since: datetime
    """When that was first said without a break."""

    is_there: bool = True
    """Whether the brokers have it."""

    is_gone: bool = False
    """Whether it has not been there for long enough that the partition no longer belongs to the region."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One row of the ledger."""

    batch: values.BatchId
    member: values.MemberId
    incarnation: values.Incarnation
    epoch: values.Epoch
    timeline: values.Timeline
    sequence: values.CheckpointNumber
    ranges: Mapping[GroupPartition, values.Range]
    started_at: datetime
    started_after: values.EventNumber
    """The region's event counter at begin: places the batch between two transitions."""

    outcome: Outcome | None = None
    """None while it runs."""

    finished_at: datetime | None = None
    finished_after: values.EventNumber | None = None
    proven_in: values.Epoch | None = None
    """The epoch of the reset whose sinks' progress proved it done; None: its own end was accepted, or nothing was."""

    undone_from: Mapping[GroupPartition, Offset] = field(default_factory=dict)
    """From where on a later reset has undone a range; derived when it is read (`timelines`)."""

    quiesced_after: datetime | None = None
    """Set when its incarnation was superseded: from then on it can't write any more."""

    @property
    def accepted_in(self) -> values.Epoch:
        """The epoch in which it was accepted, if it was: only the resets of later ones undo any of it."""
        return self.epoch if self.proven_in is None else self.proven_in


@dataclass(frozen=True, slots=True)
class InitialOffset:
    """Where a partition begins for this region; the first writer wins, for ever."""

    offset: Offset
    source: str
    """Which start position or rule gave it."""

    bounds: LogBounds


@dataclass(frozen=True, slots=True)
class BoundaryOffset:
    """Where a boundary falls in one partition.

    The first writer wins, so another checkpoint of a boundary, in a later timeline, is at the same place.
    """

    offset: Offset
    inexact: str = ""
    """Why the offset may not separate the records exactly; empty: it does."""

    leader_epoch: int = -1


BoundaryKey: TypeAlias = tuple[GroupPartition, values.TopicId, datetime]
"""Which log, and the boundary in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requester:
    """Who asked: a person by the name they act under, or a DAG run."""

    who: str = ""
    dag_id: str = ""
    run_id: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRequest:
    """One request for a checkpoint; outlives its checkpoint as a tombstone, so that an old run keeps its answer."""

    request_id: values.RequestId
    purpose: CheckpointPurpose
    state: RequestState
    requested_at: datetime
    order: int
    """Position in the queue, from the event counter."""

    boundary: datetime | None = None
    allow_inexact: bool = False
    then: values.DesiredState | None = None
    """What the region shall want when this checkpoint is complete; None: as before."""

    requester: Requester = field(default_factory=Requester)
    sequence: values.CheckpointNumber | None = None
    """The checkpoint that was last opened for it, or answered it."""

    answered_at: datetime | None = None
    refusal: str = ""

    @property
    def is_of_run(self) -> bool:
        """Whether the region was started for it, and stops with it."""
        return self.then is values.DesiredState.STOPPED


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """What one member stored in a checkpoint."""

    incarnation: values.Incarnation
    contributed_at: datetime
    offsets: OffsetMap = EMPTY
    committed: OffsetMap = EMPTY
    """Kafka's committed offsets that the member saw for its partitions."""

    bounds: Mapping[GroupPartition, LogBounds] = field(default_factory=dict)


class RecomputationState(StrEnum):
    """Where a recomputation stands."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    """Its process said so, or was lost, or another one took its place; whatever output there was is what it was."""


class RecomputationPurpose(StrEnum):
    """What becomes of what a recomputation makes."""

    REPLACE = "replace"
    """It takes the place of the checkpoint's output."""

    INTO = "into"
    """It goes into other sinks; the checkpoint's output stays as it is."""

    COMPARE = "compare"
    """It is compared with the checkpoint's output, and dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputation:
    """One attempt at processing the records of a checkpoint once more."""

    request_id: values.RequestId
    number: values.EventNumber
    """Of the event that it began with: the output of a later attempt takes the place of an earlier one's."""

    token: str
    """What its process calls itself: it recognises its own attempt by that."""

    groups: tuple[values.GroupId, ...]
    """Whose records it processes."""

    purpose: RecomputationPurpose = RecomputationPurpose.REPLACE
    into: tuple[str, ...] = ()
    """With `INTO`: the places that its output goes to."""

    revision: int = 0
    """Which revision of the checkpoint's output it has made, from 1; 0: none."""

    state: RecomputationState = RecomputationState.RUNNING
    requester: Requester = field(default_factory=Requester)
    started_at: datetime
    until: datetime
    """When its process counts as lost, unless it says before that it lives."""

    finished_at: datetime | None = None
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One checkpoint's record. Offsets live beside it (`Region.offsets`), contributions until it is retired."""

    sequence: values.CheckpointNumber
    timeline: values.Timeline
    epoch: values.Epoch
    state: CheckpointState
    purpose: CheckpointPurpose
    request_id: values.RequestId
    participants: Mapping[values.MemberId, values.Incarnation]
    opened_at: datetime
    boundary: datetime | None = None
    drain_deadline: datetime | None = None
    previous: values.CheckpointNumber | None = None
    """The restore point it was built on; set at completion."""

    inexact: Mapping[GroupPartition, str] = field(default_factory=dict)
    committed: Committed = Committed.PENDING
    commit_deadline: datetime | None = None
    publish_deadline: datetime | None = None
    finished_at: datetime | None = None
    """When it became complete or aborted."""

    published_at: datetime | None = None
    abort_reason: str = ""
    undone_by: values.Timeline | None = None
    """The timeline whose opening took it off the current timeline."""

    pinned_as: str = ""
    pin_reason: str = ""
    digest: str = ""
    """Hash over the offsets; stays when they are retired."""

    recomputations: tuple[Recomputation, ...] = ()
    """In the order in which they began; of many, the newest, and the one that made the output in force."""

    tables: tuple[TableVersion, ...] = ()
    """The output in force in tables that people own, as the sinks have committed it."""

    @property
    def revision(self) -> int:
        """How often its output was replaced."""
        return max((one.revision for one in self.recomputations), default=0)

    def revision_of(self, group: values.GroupId) -> int:
        """Return the newest revision that replaced a group's output; 0: none has."""
        return max((one.revision for one in self.recomputations if group in one.groups), default=0)

    @property
    def is_open(self) -> bool:
        """Whether its members contribute, or will."""
        return self.state in {CheckpointState.APPROACHING, CheckpointState.DRAINING}

    @property
    def is_complete(self) -> bool:
        """Whether it has its offsets: COMPLETE or PUBLISHED."""
        return self.state in {CheckpointState.COMPLETE, CheckpointState.PUBLISHED}

    @property
    def is_current(self) -> bool:
        """Whether it is complete (or was, before it was retired) and not undone."""
        was_complete = self.is_complete or (self.state is CheckpointState.RETIRED and self.previous is not None)
        return was_complete and self.undone_by is None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetAttempt:
    """One attempt of a reset; its seek map is `Region.seek_maps[epoch]`."""

    epoch: values.Epoch
    sequence: values.CheckpointNumber
    timeline: values.Timeline
    cause: ResetCause
    state: ResetState
    started_at: datetime
    attempt: int = 1
    restore_point: values.CheckpointNumber | None = None
    """The number of what it goes back to: the restore point before it, or its own where it opened a timeline."""

    deadline: datetime | None = None
    """Runs only while members with leases could cover the partitions."""

    must_publish: tuple[values.CheckpointNumber, ...] = ()
    """Complete checkpoints that have to be published before the region continues."""

    person: values.RequestId | None = None
    """The accepted request it carries out."""

    detail: str = ""
    done_at: datetime | None = None

    @property
    def opens_timeline(self) -> bool:
        """Whether it went to a seek map of its own, and not back to the restore point before it."""
        return self.restore_point == self.sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetRequest:
    """What a person asks of a reset: where to, for which partitions, and what is allowed to get there.

    It goes through JSON unchanged: a plan contains it, so that applying the plan needs nothing else and resolves the
    target again.
    """

    target: Target
    scope: Scope = EVERYTHING
    skip: OffsetMap = EMPTY
    """Single records to step over: partition to the offset that is not to be processed again."""

    forward: bool = False
    """Whether a checkpoint of another branch may be jumped to."""

    allow_partial: bool = False
    """Whether a checkpoint that was never complete may be used, its gaps filled and marked."""

    forced: bool = False
    """Without a drain, from the last done positions; the only way from a halted or starting region."""

    consent_upsert: bool = False
    """The requester knows that tables of mode `upsert` can't be restored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonReset(ResetRequest):
    """A person's accepted reset."""

    request_id: values.RequestId
    state: PersonResetState
    requester: Requester
    requested_at: datetime
    order: int
    epoch: values.Epoch | None = None
    failure: str = ""
    finished_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetAnswer:
    """A person's answer to a question about a reset: which checkpoint, or an approval of its plan."""

    request_id: values.RequestId
    """The plan that was approved, or the DAG run for which a checkpoint was chosen."""

    who: str
    answered_at: datetime
    reason: str = ""
    digest: str = ""
    """Of the approved plan as it was shown; empty: a checkpoint was chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFailure:
    """Why a process could not start a member with the spec in force."""

    member: values.MemberId
    revision: int
    digest: str
    """Of the spec's text: a revision that was taken back may name another text later."""

    refusal: str
    incarnation: values.Incarnation = values.Incarnation(0)
    """The member's newest when it was said; once it lives again, it says nothing any more."""


@dataclass(frozen=True, slots=True)
class RestorePoint:
    """Where a region goes back to: a checkpoint's offsets, or the seek map of a reset that opened a timeline."""

    sequence: values.CheckpointNumber
    epoch: values.Epoch | None = None
    """The reset's; None: it is a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """What a region's numbers were, as a member remembers them, or Kafka's commit metadata says.

    Any client that may commit can have written the latter.
    """

    member: values.MemberId
    """Who remembers it, or has read it."""

    epoch: values.Epoch
    sequence: values.CheckpointNumber
    timeline: values.Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Halt:
    """Why the region is halted, and what a person can do."""

    reason: HaltReason
    text: str
    choices: tuple[str, ...]
    noted: Noted | None = None
    """Numbers that are taken over when a person lets the region continue."""
