"""What happens to a member: facts from the store, from Kafka, from Spark and the sinks, and time.

The host that executes an effect feeds its result back as one of these, in any order and late if need be: each names
what it answers (the command, an assignment, a batch, an epoch, a sequence), so that an old answer is recognised and
ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, TypeAlias, TypeVar

from airflow_kcr.errors import KcrError
from airflow_kcr.protocol.commands import Command, Found
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region.rows import BoundaryOffset
from airflow_kcr.protocol.values import (
    AssignmentId,
    BatchId,
    CheckpointNumber,
    Epoch,
    EventNumber,
    GroupPartition,
    Range,
    Timeline,
)

# -- the store -----------------------------------------------------------------------------------------------------


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


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLost:
    """A request to the store could not be answered; what it was for is asked again when the store is back."""

    why: str = ""
    """What the error says; empty: there was no answer so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreBack:
    """The store answers again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """The region may have changed; a notification may be late, repeated or lost."""

    counter: EventNumber
    """Of the newest event, as far as the sender knows."""


# -- Kafka ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """The assignment is these partitions now; `assignment` counts them, so that two equal ones stay distinct."""

    assignment: AssignmentId
    partitions: frozenset[GroupPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoking:
    """Kafka takes a part of the assignment back once nothing of the member runs on it; `Assigned` tells what is left.

    It waits for `ReleasePartitions`, within a bound.
    """

    partitions: frozenset[GroupPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoked:
    """Kafka revoked all of the assignment, or said that it was lost. It only notifies: the claim decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftGroup:
    """The consumer has left its group, or closed keeping its slot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceFenced:
    """Kafka fenced the client, which is of no use any more: its static id joined again, or its session was over.

    That is no proof of another process: a broker that restarts says so too. The lease decides who the member is.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitAnswered:
    """A commit was awaited and read back."""

    sequence: CheckpointNumber
    offsets: OffsetMap
    """What Kafka holds now, as read; empty if nothing is known."""

    failed: bool = False
    """Whether Kafka does not hold what was committed, or nothing is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsDiscovered:
    """The brokers were asked which partitions they have of what the group subscribes to."""

    partitions: frozenset[GroupPartition] | None
    """None: they did not answer."""


# -- Spark and the sinks -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RangesPlanned:
    """The planner's answer: ranges to process next, possibly none, and what it found on the way."""

    batch: BatchId
    ranges: Mapping[GroupPartition, Range]
    boundary: datetime | None = None
    boundary_offsets: Mapping[GroupPartition, BoundaryOffset] = field(default_factory=dict)
    """Where `boundary` falls in partitions for which the store did not know it yet."""

    outside: Mapping[GroupPartition, LogBounds] = field(default_factory=dict)
    """Logs, re-read, that do not have the position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFinished:
    """The pipeline returned; its tasks have ended."""

    batch: BatchId


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineFailed:
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


# -- time and signals ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminated:
    """The process shall end (Ctrl-C, SIGTERM): finish or cancel the batch, keep a static member's slot."""


Event: TypeAlias = (
    Answered[Command[object], object]
    | Refused[Command[object]]
    | StoreLost
    | StoreBack
    | Changed
    | Assigned
    | Revoking
    | Revoked
    | LeftGroup
    | InstanceFenced
    | CommitAnswered
    | PartitionsDiscovered
    | RangesPlanned
    | BatchFinished
    | PipelineFailed
    | BatchQuiesced
    | SinksReset
    | SinkFailed
    | SinksPrepared
    | Tick
    | Terminated
)
