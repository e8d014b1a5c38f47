"""What happened to a region, in commit order: the history that `kcr events` shows and `kcr verify` judges.

An event says what was decided, with all the values that the invariants need, so that events and batch rows alone prove
or refute them. It is appended in the transaction that decided it and never changed. Field names and class names are
stored; renaming one needs a migration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Final

from airflow_kcr.protocol import values
from airflow_kcr.protocol.observations import ForeignConsumer, LogBounds
from airflow_kcr.protocol.offsets import OffsetMap, SeekMap
from airflow_kcr.protocol.region import rows
from airflow_kcr.protocol.rules import ForeignConsumerPolicy
from airflow_kcr.protocol.scopes import EVERYTHING, Scope
from airflow_kcr.protocol.table_outputs import TableVersion
from airflow_kcr.protocol.values import DesiredState, GroupPartition


@dataclass(frozen=True, slots=True)
class Body:
    """What happened: a class for each kind, whose name is stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionCreated(Body):
    """The region was declared."""

    region_id: values.RegionId
    deliveries: Mapping[str, str]
    """Delivery by group id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecChanged(Body):
    """A new spec took effect, whole or in the parts that may change while members run."""

    revision: int
    deliveries: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecProposed(Body):
    """A changed spec waits for the next checkpoint."""

    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFailed(Body):
    """A process could not start a member with the spec in force."""

    member: values.MemberId
    revision: int
    refusal: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredStateChanged(Body):
    """A verb changed the desired state."""

    desired_state: DesiredState
    requester: rows.Requester


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChanged(Body):
    """The region moved to another state."""

    before: rows.RegionState
    after: rows.RegionState
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Halted(Body):
    """The region can't continue by itself."""

    reason: rows.HaltReason
    text: str
    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Killed(Body):
    """A new epoch without a reset: whatever runs is void."""

    epoch: values.Epoch
    requester: rows.Requester


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRegistered(Body):
    """A new incarnation of a member exists; older ones are fenced."""

    member: values.MemberId
    incarnation: values.Incarnation
    label: str
    took_over: bool
    """Whether another process held a live lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFound(Body):
    """A group was found on a Kafka cluster for the first time; it stays that one."""

    group: values.GroupId
    cluster: values.ClusterId


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberLeft(Body):
    """A member has left by itself, or a changed spec has no place for it."""

    member: values.MemberId
    incarnation: values.Incarnation
    dropped: tuple[GroupPartition, ...] = ()
    """The claims that went with it; a static member keeps its slot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialOffsetsStored(Body):
    """Start positions were resolved, each once."""

    offsets: OffsetMap
    bounds: Mapping[GroupPartition, LogBounds]
    sources: Mapping[GroupPartition, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed(Body):
    """A member's claims were replaced by these."""

    member: values.MemberId
    incarnation: values.Incarnation
    assignment: values.AssignmentId
    epoch: values.Epoch
    partitions: tuple[GroupPartition, ...]
    dropped: tuple[GroupPartition, ...]
    taken: Mapping[GroupPartition, values.MemberId]
    """Partitions that another member held until now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRequested(Body):
    """A checkpoint was requested."""

    request_id: values.RequestId
    purpose: rows.CheckpointPurpose
    boundary: datetime | None
    requester: rows.Requester


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRequestAnswered(Body):
    """A request has its answer."""

    request_id: values.RequestId
    sequence: values.CheckpointNumber


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRequestEnded(Body):
    """A request ended without a checkpoint."""

    request_id: values.RequestId
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointOpened(Body):
    """A checkpoint was opened; participants and partitions are frozen."""

    sequence: values.CheckpointNumber
    timeline: values.Timeline
    request_id: values.RequestId
    purpose: rows.CheckpointPurpose
    boundary: datetime | None
    participants: Mapping[values.MemberId, values.Incarnation]
    partitions: tuple[GroupPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contributed(Body):
    """One member stored its part of a checkpoint."""

    sequence: values.CheckpointNumber
    member: values.MemberId
    incarnation: values.Incarnation
    epoch: values.Epoch
    offsets: OffsetMap
    """The next offset of every partition that it holds."""

    bounds: Mapping[GroupPartition, LogBounds]
    """The logs' bounds."""

    prepared_in: timedelta | None = None
    """How long its sinks took to prepare, by its own clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCompleted(Body):
    """A checkpoint is complete and is the restore point."""

    sequence: values.CheckpointNumber
    timeline: values.Timeline
    epoch: values.Epoch
    previous: values.CheckpointNumber | None
    offsets: OffsetMap
    inexact: Mapping[GroupPartition, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointAborted(Body):
    """A checkpoint was given up; its sequence is burnt."""

    sequence: values.CheckpointNumber
    reason: str
    late: tuple[str, ...]
    """Members and partitions that were late, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPublished(Body):
    """The sinks show what belongs to the checkpoint; downstream may read it."""

    sequence: values.CheckpointNumber
    member: values.MemberId | None
    tables: tuple[TableVersion, ...] = ()
    """What they have committed to Iceberg and Delta tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishLate(Body):
    """A complete checkpoint is not published within its time; later checkpoints wait for it."""

    sequence: values.CheckpointNumber


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitReadBack(Body):
    """The offsets that Kafka has after one member's commit of a checkpoint."""

    sequence: values.CheckpointNumber
    member: values.MemberId | None
    """None: a repair while the group was empty."""

    incarnation: values.Incarnation
    epoch: values.Epoch
    offsets: OffsetMap


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResolved(Body):
    """It is known whether Kafka holds the checkpoint's offsets."""

    sequence: values.CheckpointNumber
    committed: rows.Committed
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SeekCommitted(Body):
    """A member committed to Kafka where it resumed after a reset, or failed to."""

    epoch: values.Epoch
    member: values.MemberId
    failure: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointsRetired(Body):
    """Checkpoints were forgotten; their digests stay."""

    sequences: tuple[values.CheckpointNumber, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPinned(Body):
    """A checkpoint was pinned under a name, or released (empty name)."""

    sequence: values.CheckpointNumber
    name: str
    reason: str
    who: str = ""
    """Who asked, where that is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryStored(Body):
    """Where a boundary falls in some partitions."""

    boundary: datetime
    offsets: OffsetMap
    inexact: Mapping[GroupPartition, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class NextBoundaryChanged(Body):
    """The boundary that no batch may cross."""

    boundary: datetime | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryHeld(Body):
    """Members wait at a boundary for longer than a period, and no DAG run has requested its checkpoint."""

    boundary: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetRequested(Body):
    """An automatic request arrived."""

    member: values.MemberId
    epoch: values.Epoch
    """The epoch it was made in."""

    cause: rows.ResetCause
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetAnswered(Body):
    """A person has chosen a reset's checkpoint in Airflow, or approved its plan."""

    answer: rows.ResetAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonResetAccepted(Body):
    """A person's reset was stored."""

    request_id: values.RequestId
    target: str
    forced: bool
    requester: rows.Requester
    consent_upsert: bool = False
    scope: Scope = EVERYTHING
    """Which partitions it may move."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonResetFailed(Body):
    """A person's reset failed; nothing else has changed."""

    request_id: values.RequestId
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputationBegun(Body):
    """The records of a checkpoint are processed once more; the event's number is the recomputation's."""

    sequence: values.CheckpointNumber
    request_id: values.RequestId
    groups: tuple[values.GroupId, ...]
    ranges: Mapping[GroupPartition, tuple[values.Range, ...]]
    """What the checkpoint has of them, by the ledger."""

    purpose: rows.RecomputationPurpose = rows.RecomputationPurpose.REPLACE
    into: tuple[str, ...] = ()
    """With `INTO`: the places that its output goes to."""

    requester: rows.Requester


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecomputed(Body):
    """The records of a checkpoint were processed once more."""

    sequence: values.CheckpointNumber
    number: values.EventNumber
    """The recomputation's."""

    batches: tuple[Mapping[GroupPartition, values.Range], ...]
    """What was processed, by batch."""

    tables: tuple[TableVersion, ...] = ()
    """What replaced the checkpoint's output in Iceberg and Delta tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputationFailed(Body):
    """A recomputation failed; the output of its checkpoint is what it was."""

    sequence: values.CheckpointNumber
    number: values.EventNumber
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetBegun(Body):
    """A new epoch: every partition goes to its seek entry."""

    epoch: values.Epoch
    sequence: values.CheckpointNumber
    timeline: values.Timeline
    cause: rows.ResetCause
    attempt: int
    restore_point: values.CheckpointNumber | None
    seek: SeekMap
    undoes: tuple[values.CheckpointNumber, ...]
    person: values.RequestId | None
    detail: str

    @property
    def opens_timeline(self) -> bool:
        """Whether it goes to a seek map of its own, and not back to the restore point before it."""
        return self.restore_point == self.sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class SeekWritten(Body):
    """Open seek entries were written."""

    epoch: values.Epoch
    seek: SeekMap


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged(Body):
    """A member is quiesced, its fences are raised and its positions set."""

    member: values.MemberId
    incarnation: values.Incarnation
    epoch: values.Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetDone(Body):
    """Every partition is covered and every member quiesced: the region continues as its desired state says."""

    epoch: values.Epoch
    sequence: values.CheckpointNumber


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRestoredSeen(Body):
    """A member has already seen later numbers than the store's: the store was restored."""

    member: values.MemberId
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignConsumersChanged(Body):
    """Foreign consumers came to groups of the region, or went."""

    foreign_consumers: tuple[ForeignConsumer, ...]
    """All that are there now."""

    policy: ForeignConsumerPolicy
    """What the spec then made of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsUnowned(Body):
    """Which partitions of the region have no owner has changed, by what the brokers have.

    A claim of a partition ends that (`Claimed`); so does the stop of the region.
    """

    partitions: tuple[GroupPartition, ...]
    """Those that have none now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsGone(Body):
    """The brokers have long lacked partitions of the region, which continues without them.

    A claim of such a partition ends that (`Claimed`).
    """

    partitions: tuple[GroupPartition, ...]
    """All that are gone now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped(Body):
    """A single record will not be processed again, by a person's choice."""

    offsets: OffsetMap


BODIES: Final[Mapping[str, type[Body]]] = MappingProxyType({body.__name__: body for body in Body.__subclasses__()})
"""The kinds of events, by the name that is stored."""

PARTS: Final = (Contributed, CommitReadBack, Acknowledged)
"""What each of several members does, and the others need not look at: the last one's comes with an event of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event of a region's history."""

    number: values.EventNumber
    at: datetime
    epoch: values.Epoch
    """The region's epoch after the decision."""

    timeline: values.Timeline
    body: Body

    @property
    def kind(self) -> str:
        """The name of what happened, as stored."""
        return type(self.body).__name__
