"""What a member wants done, as values. Executing one never blocks the machine; its result comes back as an event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias

from airflow_kcr.protocol import commands
from airflow_kcr.protocol.commands import Caller, Found, StartBatch
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region.rows import BoundaryOffset, OpenTarget, ResetCause
from airflow_kcr.protocol.region.view import MemberView
from airflow_kcr.protocol.targets import Target
from airflow_kcr.protocol.values import (
    AssignmentId,
    BatchId,
    CheckpointNumber,
    Epoch,
    GroupPartition,
    Incarnation,
    Offset,
    Range,
    Timeline,
)

if TYPE_CHECKING:
    from airflow_kcr.protocol.member.state import Member


@dataclass(frozen=True, slots=True, kw_only=True)
class Register:
    """Ask the store for a new incarnation; answered by `Registered` or `RegistrationRefused`."""

    previous: Incarnation | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Renew:
    """Renew the lease; answered by `Renewed` or `RenewalRefused`."""

    incarnation: Incarnation


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """Read the region; answered by `ViewRead` or `ReadRefused`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconcile:
    """Do what is due in the region; no answer is awaited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """Subscribe, every partition paused; answered by `Assigned`, sooner or later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroup:
    """Unsubscribe and poll to the revoke, so that the group is left at once; answered by `LeftGroup`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseKeepingSlot:
    """Close the consumer without leaving: a static member's slot waits for it; answered by `LeftGroup`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Claim an assignment; answered by `ClaimGranted` or `ClaimRefused`."""

    incarnation: Incarnation
    assignment: AssignmentId
    partitions: frozenset[GroupPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoverPartitions:
    """Ask the brokers which partitions they have of what the group subscribes to; answered by `PartitionsDiscovered`.

    Kafka does not tell by itself: a static member that comes back gets its old assignment, whatever was added since.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPartitions:
    """Tell the store which partitions the brokers have; answered by `PartitionsReported`."""

    inventory: commands.ReportPartitions


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Plan the next ranges of these positions; answered by `Planned`."""

    positions: OffsetMap
    view: MemberView


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreBounds:
    """Store where a boundary falls; no answer is awaited, the next view has it."""

    caller: Caller
    boundary: datetime
    found: Mapping[GroupPartition, BoundaryOffset]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOutOfRange:
    """Tell the store that positions are no longer in their logs; no answer is awaited."""

    caller: Caller
    observed: Mapping[GroupPartition, LogBounds]


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """Begin a batch in the store; answered by `Begun` or `BeginRefused`."""

    request: StartBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Call the pipeline; answered by `BatchFinished` or `BatchFailed`."""

    batch: BatchId
    ranges: Mapping[GroupPartition, Range]
    progress: OffsetMap
    """What a fenced sink stores as its progress with the output: the ends of the ranges, past skipped records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Cancel the running batch; answered by `BatchQuiesced` when its tasks have ended."""

    batch: BatchId


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """End a batch in the store; answered by `Ended` or `EndRefused`."""

    batch: BatchId
    incarnation: Incarnation


@dataclass(frozen=True, slots=True, kw_only=True)
class Discard:
    """Tell the store that nothing of a batch runs any more; answered by `Discarded`."""

    batch: BatchId
    incarnation: Incarnation


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestReset:
    """Ask for a reset, in the epoch that it was needed in; no answer is awaited, the epoch is."""

    caller: Caller
    cause: ResetCause
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetSinks:
    """Raise the sinks' fences, then read progress, roll back or skip, and answer the open entries; `SinksReset`."""

    epoch: Epoch
    timeline: Timeline
    """The timeline of that epoch; by the time the sinks are reached the region may be in another."""

    resume: OffsetMap
    """Where the member's partitions resume, as far as that is known."""

    open: Mapping[GroupPartition, OpenTarget]
    target: Target | None
    skips: Mapping[GroupPartition, tuple[Offset, ...]]
    """Records that a person chose to step over: a sink's progress that stands at one moves past it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledge:
    """Write the answers, then acknowledge; answered by `Acknowledged` or `AcknowledgementRefused`."""

    caller: Caller
    found: Mapping[GroupPartition, Found]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareSinks:
    """Make durable what the sinks hold for a checkpoint, and read the logs; answered by `SinksPrepared`."""

    sequence: CheckpointNumber
    partitions: frozenset[GroupPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribute:
    """Contribute to a checkpoint; answered by `Contributed` or `ContributionRefused`."""

    part: commands.Contribute


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """Publish a complete checkpoint through the sinks, then tell the store; answered by `Published`."""

    sequence: CheckpointNumber


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Commit the restore point's offsets of the member's partitions and read them back; answered by `Committed`."""

    sequence: CheckpointNumber
    offsets: OffsetMap
    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportReadBack:
    """Store what Kafka answered; no answer is awaited."""

    sequence: CheckpointNumber
    incarnation: Incarnation
    offsets: OffsetMap


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitSeek:
    """Tell Kafka where the member's partitions resumed after a reset, or lag tools lie; no answer is awaited."""

    caller: Caller
    offsets: OffsetMap


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveStore:
    """Give up lease and claims; no answer is awaited."""

    incarnation: Incarnation


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepSlot:
    """Give up the lease, not the claims; no answer is awaited."""

    incarnation: Incarnation


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportLater:
    """Tell the store that it is older than what the member remembers; no answer is awaited."""

    memory: commands.ReportLater


@dataclass(frozen=True, slots=True, kw_only=True)
class EndProcess:
    """End the process at once: a cancelled batch does not quiesce; sibling members come back as one reset."""

    why: str


Effect: TypeAlias = (
    Register
    | Renew
    | Read
    | Reconcile
    | Join
    | LeaveGroup
    | CloseKeepingSlot
    | Claim
    | DiscoverPartitions
    | ReportPartitions
    | Plan
    | StoreBounds
    | ReportOutOfRange
    | Begin
    | Run
    | Cancel
    | End
    | Discard
    | RequestReset
    | ResetSinks
    | Acknowledge
    | PrepareSinks
    | Contribute
    | Publish
    | Commit
    | ReportReadBack
    | CommitSeek
    | LeaveStore
    | KeepSlot
    | ReportLater
    | EndProcess
)

Driven: TypeAlias = "tuple[Member, tuple[Effect, ...]]"
"""What a rule of the member returns: the member, and what it wants done."""
