"""What happens to a member: facts from the store, from Kafka, from Spark and the sinks, and time.

Whoever executes an effect feeds its result back as one of these, in any order and late if need be: each names what it
answers (an assignment, a batch, an epoch, a sequence), so that an old answer is recognised and ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias

from airflow_kcr.protocol.commands import Found, Standing
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region.rows import BoundaryOffset
from airflow_kcr.protocol.region.view import MemberView
from airflow_kcr.protocol.values import (
    AssignmentId,
    BatchId,
    CheckpointNumber,
    Epoch,
    EventNumber,
    GroupPartition,
    Incarnation,
    Range,
    Timeline,
)

# -- the store -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """The store made this incarnation; its lease counts from `sent_at`, when the request was sent."""

    incarnation: Incarnation
    sent_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationRefused:
    """The store has no place for this member: no such index, or another live process holds it."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed:
    """The lease was renewed; its age counts from `sent_at`."""

    sent_at: float
    counter: EventNumber
    """The region's event counter: another than the view's means that there is something to read."""

    needs_reconciling: bool = False
    """Whether something is due in the region that nobody has asked for."""

    epoch: Epoch | None = None
    """The region's; a lower one than was seen before comes from a store that was restored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewalRefused:
    """The lease is over, or a newer incarnation holds it."""

    incarnation: Incarnation
    """The member's newest incarnation in the store; 0 where the store, restored, has never heard of it."""

    epoch: Epoch | None = None
    counter: EventNumber | None = None
    """The region's; lower ones than were seen before come from a store that was restored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewRead:
    """The region was read."""

    view: MemberView


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRefused:
    """The region could not be read for this member: the store, restored, has never heard of it."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimGranted:
    """The claim of an assignment was answered; the view says what is held, and in which epoch."""

    assignment: AssignmentId
    view: MemberView


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRefused:
    """The claim of an assignment was refused; it is made again, with back-off."""

    assignment: AssignmentId
    why: str
    lacks_logs: bool = False
    """Whether that was because the brokers do not have one of its logs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A batch was begun."""

    batch: BatchId


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginRefused:
    """A batch was not begun; nothing runs."""

    batch: BatchId
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A batch was accepted."""

    batch: BatchId


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRefused:
    """A batch was not accepted; its work is discarded."""

    batch: BatchId
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Discarded:
    """The store knows that a batch is discarded."""

    batch: BatchId


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """The store has the acknowledgement of this epoch."""

    epoch: Epoch
    view: MemberView | None = None
    """As in `Contributed`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcknowledgementRefused:
    """The acknowledgement (or an answer before it) was refused; the view will say why."""

    epoch: Epoch
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Contributed:
    """The store has this member's part of a checkpoint."""

    sequence: CheckpointNumber
    view: MemberView | None = None
    """The region in the same transaction, so that nobody has to look again; None: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContributionRefused:
    """The part was refused: the checkpoint is gone, or positions differ."""

    sequence: CheckpointNumber
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLost:
    """A request to the store could not be answered; what it was for is asked again when the store is back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreBack:
    """The store answers again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """Somebody says that the region changed; a hint, which may be late, repeated or lost."""

    counter: EventNumber
    """Of the newest event, as far as whoever says so knows."""


# -- Kafka ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """Kafka assigned these partitions; `assignment` counts them, so that two equal ones stay distinct."""

    assignment: AssignmentId
    partitions: frozenset[GroupPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoked:
    """Kafka revoked the assignment, or said that it was lost. A hint: the claim decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftGroup:
    """The consumer has left its group, or closed keeping its slot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceFenced:
    """Kafka fenced the client, which is of no use any more: its static id joined anew, or its session was over.

    That is no proof of another process: a broker that restarts says so too. The lease decides who the member is.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A commit was awaited and read back."""

    sequence: CheckpointNumber
    offsets: OffsetMap
    """What Kafka holds now, as read; empty where nothing is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsDiscovered:
    """The brokers were asked which partitions they have of what the group subscribes to."""

    partitions: frozenset[GroupPartition] | None
    """None: they did not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsReported:
    """The store knows which partitions the brokers have; or it refused to hear it, and is told again."""

    standing: Standing


# -- Spark and the sinks -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The planner's answer: ranges to process next, possibly none, and what it found on the way."""

    batch: BatchId
    ranges: Mapping[GroupPartition, Range]
    boundary: datetime | None = None
    bounds: Mapping[GroupPartition, BoundaryOffset] = field(default_factory=dict)
    """Where `boundary` falls in partitions for which the store did not know it yet."""

    outside: Mapping[GroupPartition, LogBounds] = field(default_factory=dict)
    """Logs, re-read, that do not have the position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFinished:
    """The pipeline returned; its tasks have ended."""

    batch: BatchId


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFailed:
    """The pipeline raised; its tasks have ended."""

    batch: BatchId
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchQuiesced:
    """A cancelled batch's tasks have all ended."""

    batch: BatchId


@dataclass(frozen=True, slots=True, kw_only=True)
class SinksReset:
    """The sinks' fences are raised, progress is read, and they have rolled back or will skip; open entries answered."""

    epoch: Epoch
    found: Mapping[GroupPartition, Found]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkFailed:
    """A sink could not do its part of a reset."""

    epoch: Epoch
    why: str
    fence: Epoch = Epoch(0)
    timeline: Timeline = Timeline(0)
    """Where it stands, if that is later than what was asked of it: a newer epoch came, or the store was restored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinksPrepared:
    """What the sinks hold for a checkpoint is durable, and the logs were read for the contribution."""

    sequence: CheckpointNumber
    bounds: Mapping[GroupPartition, LogBounds]
    committed: OffsetMap


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The sinks show what belongs to a checkpoint and the store knows.

    Or it failed, and it is tried again in its turn.
    """

    sequence: CheckpointNumber
    view: MemberView | None = None
    """The region in the same transaction; None: not known, or it failed."""


# -- time and signals ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminated:
    """The process shall end (Ctrl-C, SIGTERM): finish or cancel the batch, keep a static member's slot."""


Event: TypeAlias = (
    Registered
    | RegistrationRefused
    | Renewed
    | RenewalRefused
    | ViewRead
    | ReadRefused
    | ClaimGranted
    | ClaimRefused
    | Begun
    | BeginRefused
    | Ended
    | EndRefused
    | Discarded
    | Acknowledged
    | AcknowledgementRefused
    | Contributed
    | ContributionRefused
    | StoreLost
    | StoreBack
    | Changed
    | Assigned
    | Revoked
    | LeftGroup
    | InstanceFenced
    | Committed
    | PartitionsDiscovered
    | PartitionsReported
    | Planned
    | BatchFinished
    | BatchFailed
    | BatchQuiesced
    | SinksReset
    | SinkFailed
    | SinksPrepared
    | Published
    | Tick
    | Terminated
)
