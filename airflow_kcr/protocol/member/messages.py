"""What happens to a member, and what it wants done, as values.

Executing an effect never blocks the machine. The host that executes it feeds its result back as an event, in any order
and late if need be: each names what it answers (the command, an assignment, a batch, an epoch, a sequence), so that an
old answer is recognised and ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Generic, TypeAlias, TypeVar

from airflow_kcr.errors import KcrError
from airflow_kcr.protocol import values
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.offsets import OffsetMap, SeekEntry
from airflow_kcr.protocol.region.commands import Caller, ClaimPartitions, Command, Found
from airflow_kcr.protocol.region.rows import Batch, BoundaryOffset
from airflow_kcr.protocol.region.view import MemberRegion
from airflow_kcr.protocol.targets import Target
from airflow_kcr.protocol.values import GroupPartition, Offset

# Events

C_co = TypeVar("C_co", bound=Command[object], covariant=True)
A_co = TypeVar("A_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered(Generic[C_co, A_co]):
    """The store has done what a command asks for."""

    command: C_co
    result: A_co
    sent_at: float = 0.0
    """When the command was sent, by the member's clock: a lease counts from then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused(Generic[C_co]):
    """A command was refused, or what it needs could not be had; nothing has changed."""

    command: C_co
    error: KcrError

    @property
    def why(self) -> str:
        """What the error says."""
        return self.error.message


class Notice(StrEnum):
    """What happens to a member that needs no more words."""

    TICK = "tick"
    """Time passed."""

    TERMINATED = "terminated"
    """The process shall end (Ctrl-C, SIGTERM): finish or cancel the batch, keep a static member's slot."""

    STORE_BACK = "store_back"
    """The store answers again."""

    REVOKED = "revoked"
    """Kafka revoked all of the assignment, or said that it was lost. It only notifies: the claim decides."""

    LEFT_GROUP = "left_group"
    """The consumer has left its group, or closed keeping its slot."""

    INSTANCE_FENCED = "instance_fenced"
    """Kafka fenced the client, which is of no use any more: its static id joined again, or its session was over.

    That is no proof of another process: a broker that restarts says so too. The lease decides who the member is.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLost:
    """A request to the store could not be answered; what it was for is asked again when the store is back."""

    why: str = ""
    """What the error says; empty: there was no answer so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """The region may have changed; a notification may be late, repeated or lost."""

    counter: values.EventNumber
    """Of the newest event, as far as the sender knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """The assignment is these partitions now; `assignment` counts them, so that two equal ones stay distinct.

    Another member may have claimed the partitions in between.
    """

    assignment: values.AssignmentId
    partitions: frozenset[GroupPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoking:
    """Kafka takes a part of the assignment back once nothing of the member runs on it; `Assigned` tells what is left.

    It waits for `ReleasePartitions`, within a bound.
    """

    partitions: frozenset[GroupPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitAnswered:
    """A commit was awaited and read back."""

    sequence: values.CheckpointNumber
    offsets: OffsetMap
    """What Kafka holds now, as read; empty if nothing is known."""

    failed: bool = False
    """Whether Kafka does not hold what was committed, or nothing is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsDiscovered:
    """The brokers were asked which partitions they have of what the group subscribes to."""

    partitions: frozenset[GroupPartition] | None
    """None: they did not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangesPlanned:
    """The planner's answer: ranges to process next, possibly none, and what it found on the way."""

    batch: values.BatchId
    ranges: Mapping[GroupPartition, values.Range]
    boundary: datetime | None = None
    boundary_offsets: Mapping[GroupPartition, BoundaryOffset] = field(default_factory=dict)
    """Where `boundary` falls in partitions for which the store did not know it yet."""

    outside: Mapping[GroupPartition, LogBounds] = field(default_factory=dict)
    """Logs, re-read, that do not have the position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchEnded:
    """The tasks of a batch have all ended: its pipeline returned or raised, or it was cancelled."""

    batch: values.BatchId
    failure: str | None = None
    """Why it raised; None: it returned, or was cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinksReset:
    """The sinks' fences are raised, progress is read, and they have rolled back or will skip; open entries answered."""

    epoch: values.Epoch
    found: Mapping[GroupPartition, Found]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkFailed:
    """A sink could not do its part of a reset."""

    epoch: values.Epoch
    why: str
    fence: values.Epoch = values.Epoch(0)
    timeline: values.Timeline = values.Timeline(0)
    """Where it stands, if that is later than what was asked of it: a newer epoch came, or the store was restored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinksPrepared:
    """What the sinks hold for a checkpoint is durable, and the logs were read for the contribution."""

    sequence: values.CheckpointNumber
    bounds: Mapping[GroupPartition, LogBounds]
    committed: OffsetMap
    took: timedelta | None = None
    """How long the sinks took; None: they were not ready in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLacks:
    """What a batch waits for, told as long as it does: an executor of Spark, or records that a quota lets through."""

    why: str
    """Empty: nothing any more."""

    excuses: bool = True
    """Whether that time is not the batch's own; it is, once the batch has taken far too long even so."""


Event: TypeAlias = (
    Answered[Command[object], object]
    | Refused[Command[object]]
    | Notice
    | StoreLost
    | Changed
    | Assigned
    | Revoking
    | CommitAnswered
    | PartitionsDiscovered
    | RangesPlanned
    | BatchEnded
    | SinksReset
    | SinkFailed
    | SinksPrepared
    | EngineLacks
)


# Effects


class GroupRequest(StrEnum):
    """What is asked of Kafka about the group."""

    JOIN = "join"
    """Subscribe, every partition paused; answered by `Assigned`, sooner or later."""

    LEAVE = "leave"
    """Unsubscribe and poll to the revoke, so that the group is left at once; answered by `Notice.LEFT_GROUP`."""

    CLOSE_KEEPING_SLOT = "close_keeping_slot"
    """Close the consumer without leaving: a static member's slot waits for it; answered by `Notice.LEFT_GROUP`."""

    DISCOVER_PARTITIONS = "discover_partitions"
    """Ask the brokers which partitions they have of what the group subscribes to; answered by `PartitionsDiscovered`.

    Kafka does not tell by itself: a static member that returns gets its old assignment, whatever was added since.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimAssignment:
    """Read the logs of an assignment, then claim it; answered as the claim is.

    Where the logs can't be read, the claim is refused too, without partitions.
    """

    claim: ClaimPartitions
    """The claim, without what is to be read."""

    partitions: frozenset[GroupPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasePartitions:
    """Let Kafka take the partitions that it is revoking: nothing runs on them; answered by `Assigned`."""

    partitions: frozenset[GroupPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRanges:
    """Plan the next ranges of these positions; answered by `RangesPlanned`."""

    positions: OffsetMap
    view: MemberRegion


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBatch:
    """Call the pipeline; answered by `BatchEnded`."""

    row: Batch
    """As the store has it: the pipeline gets its epoch, timeline and sequence."""

    progress: OffsetMap
    """What a fenced sink stores as its progress with the output: the ends of the ranges, past skipped records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Cancel the running batch; answered by `BatchEnded` when its tasks have ended."""

    batch: values.BatchId


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetSinks:
    """Raise the sinks' fences, then read progress, roll back or skip, and answer the open entries; `SinksReset`."""

    epoch: values.Epoch
    timeline: values.Timeline
    """The timeline of that epoch; by the time the sinks are reached the region may be in another."""

    resume: OffsetMap
    """Where the member's partitions resume, as far as that is known."""

    open: Mapping[GroupPartition, SeekEntry]
    target: Target | None
    skips: Mapping[GroupPartition, tuple[Offset, ...]]
    """Records that a person chose to step over: a sink's progress that stands at one moves past it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareSinks:
    """Make durable what the sinks hold for a checkpoint, and read the logs; answered by `SinksPrepared`."""

    sequence: values.CheckpointNumber
    partitions: frozenset[GroupPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Commit the restore point's offsets of the member's partitions, then read them; answered by `CommitAnswered`."""

    sequence: values.CheckpointNumber
    timeline: values.Timeline
    epoch: values.Epoch
    offsets: OffsetMap


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitSeek:
    """Tell Kafka where the member's partitions resumed after a reset, or lag tools lie; no answer is awaited."""

    caller: Caller
    sequence: values.CheckpointNumber
    """The newest that the region has used."""

    timeline: values.Timeline
    offsets: OffsetMap


@dataclass(frozen=True, slots=True, kw_only=True)
class EndProcess:
    """End the process at once: a cancelled batch does not quiesce; sibling members return as one reset."""

    why: str


Effect: TypeAlias = (
    Command[object]
    | GroupRequest
    | ClaimAssignment
    | ReleasePartitions
    | PlanRanges
    | RunBatch
    | Cancel
    | ResetSinks
    | PrepareSinks
    | Commit
    | CommitSeek
    | EndProcess
)
"""What is wanted of the process around; a command is one for the store.

A command is answered by `Answered` or `Refused`, which are not awaited for some commands. What it reports is done
first: for `ReportPublished`, the checkpoint is published through the sinks.
"""
