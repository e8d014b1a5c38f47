"""What a member wants done, as values. Executing one never blocks the machine; its result returns as an event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeAlias

from airflow_kcr.protocol.commands import Caller, Command
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region.rows import Batch, OpenTarget
from airflow_kcr.protocol.region.view import MemberRegion
from airflow_kcr.protocol.targets import Target
from airflow_kcr.protocol.values import (
    AssignmentId,
    BatchId,
    CheckpointNumber,
    Epoch,
    GroupPartition,
    Incarnation,
    Offset,
    Timeline,
)

if TYPE_CHECKING:
    from airflow_kcr.protocol.member.state import MemberMachine


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Give the store a command; answered by `Answered` or `Refused`, which are not awaited for some commands."""

    command: Command[object]


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
class ClaimAssignment:
    """Read the logs of an assignment, then claim it; answered as `ClaimPartitions` is.

    Where the logs can't be read, that is refused too, without partitions.
    """

    incarnation: Incarnation
    assignment: AssignmentId
    partitions: frozenset[GroupPartition]
    waited: timedelta = timedelta(0)
    """As in `ClaimPartitions`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasePartitions:
    """Let Kafka take the partitions that it is revoking: nothing runs on them; answered by `Assigned`."""

    partitions: frozenset[GroupPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoverPartitions:
    """Ask the brokers which partitions they have of what the group subscribes to; answered by `PartitionsDiscovered`.

    Kafka does not tell by itself: a static member that returns gets its old assignment, whatever was added since.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRanges:
    """Plan the next ranges of these positions; answered by `RangesPlanned`."""

    positions: OffsetMap
    view: MemberRegion


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBatch:
    """Call the pipeline; answered by `BatchFinished` or `PipelineFailed`."""

    row: Batch
    """As the store has it: the pipeline gets its epoch, timeline and sequence."""

    progress: OffsetMap
    """What a fenced sink stores as its progress with the output: the ends of the ranges, past skipped records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Cancel the running batch; answered by `BatchQuiesced` when its tasks have ended."""

    batch: BatchId


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
class PrepareSinks:
    """Make durable what the sinks hold for a checkpoint, and read the logs; answered by `SinksPrepared`."""

    sequence: CheckpointNumber
    partitions: frozenset[GroupPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """Publish a complete checkpoint through the sinks, then tell the store; answered as `ReportPublished` is."""

    sequence: CheckpointNumber


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Commit the restore point's offsets of the member's partitions, then read them; answered by `CommitAnswered`."""

    sequence: CheckpointNumber
    offsets: OffsetMap
    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitSeek:
    """Tell Kafka where the member's partitions resumed after a reset, or lag tools lie; no answer is awaited."""

    caller: Caller
    offsets: OffsetMap


@dataclass(frozen=True, slots=True, kw_only=True)
class EndProcess:
    """End the process at once: a cancelled batch does not quiesce; sibling members return as one reset."""

    why: str


Effect: TypeAlias = (
    Ask
    | Join
    | LeaveGroup
    | CloseKeepingSlot
    | ClaimAssignment
    | ReleasePartitions
    | DiscoverPartitions
    | PlanRanges
    | RunBatch
    | Cancel
    | ResetSinks
    | PrepareSinks
    | Publish
    | Commit
    | CommitSeek
    | EndProcess
)

Driven: TypeAlias = "tuple[MemberMachine, tuple[Effect, ...]]"
"""What a rule of the member returns: the member, and what it wants done."""
