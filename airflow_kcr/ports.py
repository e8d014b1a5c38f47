"""What the core needs from the world, as protocols; the whole region store is `store.regions.RegionStore`.

An adapter implements one of them; its contract suite runs against every implementation, the real one first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from airflow_kcr.errors import RefusedError
from airflow_kcr.protocol.member.messages import ResetSinks
from airflow_kcr.protocol.observations import LogBounds, TimeAnswer
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region.commands import Command, Heartbeat, Renew
from airflow_kcr.protocol.table_outputs import TableVersion
from airflow_kcr.protocol.values import (
    BatchId,
    CheckpointNumber,
    ClusterId,
    Epoch,
    EventNumber,
    GroupId,
    GroupPartition,
    MemberId,
    Offset,
    Range,
    RegionName,
    Timeline,
    TopicName,
)

# The store


V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """A member's renewal, and the region that it is in: renewals of many regions are asked for at once."""

    region: RegionName
    command: Renew


Heartbeats: TypeAlias = "Mapping[Renewal, Heartbeat | RefusedError]"
"""Renewals and their answers: UnknownRegion or UnknownMember if there is no such row. A lease that another
transaction is writing at that moment has no answer; ask again."""


class SinkPlace(NamedTuple):
    """Where a sink writes to."""

    group: GroupId
    sink: str
    """Its name in the spec."""

    place: str
    """A folder, or a table and its database; without credentials."""


class MemberStore(Protocol):
    """What a member uses of the region store; `store.regions.RegionStore` is one."""

    def handle(self, name: RegionName, command: Command[V]) -> V:
        """Handle a command and return its answer; the same command again finds the first one's result.

        Raises:
            RefusedError: it is refused; nothing has changed.
            StoreError: the store did not answer.
        """
        ...

    def renew(self, renewals: Collection[Renewal]) -> Heartbeats:
        """Renew leases of any regions."""
        ...

    def wait(self, name: RegionName, after: EventNumber, timeout: timedelta) -> EventNumber:
        """Wait to be notified that the region's counter moved beyond `after`, and return what is known of it."""
        ...


# Kafka


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    """What Kafka holds for one partition of a group."""

    offset: Offset
    metadata: str = ""
    """What was written with it; a region writes its name, timeline, sequence and epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitAnswer:
    """What became of a commit: Kafka's answer is not believed, what it holds is read back."""

    held: Mapping[GroupPartition, CommittedOffset]
    """What Kafka holds now; a partition is absent if that is not known."""

    failure: str = ""
    """Why the commit, or a partition of it, failed or its outcome is unknown; empty: Kafka said yes."""


class MembershipListener(Protocol):
    """Hears what happens to a member's place in its group; called in the event thread, so it only notes and returns."""

    def assigned(self, partitions: frozenset[GroupPartition]) -> None:
        """The assignment is these partitions now, all of them and nothing else; they are paused.

        Where the broker decides, it comes and goes in parts, and this is told after each part that changed it.
        """
        ...

    def revoking(self, partitions: frozenset[GroupPartition], released: Callable[[], None]) -> None:
        """Kafka takes a part of the assignment back, and gives it to no other member before `released` is called.

        It waits within a bound, then takes them all the same; `assigned` tells what is left.

        Args:
            partitions: what it takes.
            released: says that nothing runs any more on them; to be called from any thread, any number of times.
        """
        ...

    def revoked(self) -> None:
        """Kafka revoked all of the assignment, or it was lost."""
        ...

    def left(self) -> None:
        """What `leave` or `close_keeping_slot` asked for is done, as far as the client can know."""
        ...

    def fenced(self, why: str) -> None:
        """Kafka fenced the client, and with it the assignment is gone; `join` takes a new one."""
        ...

    def failed(self, error: Exception) -> None:
        """The event thread failed, or can't make a client; there is no way on."""
        ...

    def troubled(self, why: str) -> None:
        """The client or a broker complained about something that may heal by itself."""
        ...


def always() -> bool:
    """Return that it may."""
    return True


def nothing() -> str:
    """Return that nothing is lacking."""
    return ""


class Membership(Protocol):
    """A member's place in its Kafka group: the control consumer.

    Nothing here blocks but `committed` and `end`, which wait for the event thread under a deadline. Only that thread
    touches the client.
    """

    def join(self) -> None:
        """Subscribe, every partition paused; also again after having left."""
        ...

    def leave(self) -> None:
        """Leave the group so that its partitions move at once: unsubscribe, poll to the revoke, close."""
        ...

    def close_keeping_slot(self) -> None:
        """Close without leaving: a static member's partitions wait for it until its session is over."""
        ...

    def commit(
        self,
        offsets: OffsetMap,
        metadata: str,
        timeout: timedelta,
        answered: Callable[[CommitAnswer], None],
        may_write: Callable[[], bool] = always,
    ) -> None:
        """Commit in one request and read back.

        Args:
            offsets: by partition.
            metadata: written beside them.
            timeout: within which it is answered.
            answered: called once, in the event thread.
            may_write: asked in the event thread, right before anything is sent: whether who asked for it still may.
                A process that was frozen gets its partitions back; nothing but its lease tells that others had them.
        """
        ...

    def committed(
        self, partitions: frozenset[GroupPartition], timeout: timedelta
    ) -> Mapping[GroupPartition, CommittedOffset]:
        """Return what Kafka holds for the group; a partition without a committed offset is absent.

        Raises:
            BrokerUnavailable: there was no answer in time.
        """
        ...

    def end(self, timeout: timedelta) -> bool:
        """End the event thread, leaving nothing to be heard; return whether it ended in time."""
        ...


class Logs(Protocol):
    """What the brokers of one cluster say about the logs that a group reads. Calls block, each under a deadline."""

    def bounds(self, partitions: Collection[GroupPartition]) -> dict[GroupPartition, LogBounds]:
        """Return start and last stable offset of each log, read now; one that the cluster doesn't have is absent.

        Raises:
            BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse.
        """
        ...

    def stable_ends(self, partitions: Collection[GroupPartition]) -> dict[GroupPartition, Offset]:
        """Return the last stable offset of each log, read now; one that the cluster doesn't have is absent.

        One request to the brokers where `bounds` has three, to find out only whether there is anything to read.

        Raises:
            BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse.
        """
        ...

    def high_watermarks(self, partitions: Collection[GroupPartition]) -> dict[GroupPartition, Offset]:
        """Return where each log ends with open transactions counted; one that the cluster doesn't have is absent.

        Raises:
            BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse.
        """
        ...

    def first_at_or_after(self, instants: Mapping[GroupPartition, datetime]) -> dict[GroupPartition, TimeAnswer]:
        """Return each log's first record at or after an instant (read_committed), with its own timestamp.

        Raises:
            BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse.
        """
        ...

    def topics(self, names: Collection[TopicName] = ()) -> Mapping[TopicName, int]:
        """Return the topics that exist, internal ones left out, with how many partitions each has.

        Args:
            names: which ones; none named: all of the cluster.

        Raises:
            BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse.
        """
        ...

    def cluster_id(self) -> ClusterId:
        """Return what the cluster calls itself, asked now: another one may have come to the same address.

        Raises:
            BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse.
        """
        ...


# Spark and the sinks


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCall:
    """One call of the pipeline: everything that the store let start, and what the pipeline gets."""

    region: RegionName
    member: MemberId
    batch: BatchId
    epoch: Epoch
    timeline: Timeline
    sequence: CheckpointNumber
    ranges: Mapping[GroupPartition, Range]
    progress: OffsetMap
    """What a fenced sink stores as its progress with the output."""

    boundary: datetime | None = None
    """The boundary that the next checkpoint is aligned to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """What is known of a batch that did its work."""

    scans: int | None = None
    """How often its ranges were read; None if the engine can't tell, or did not count."""

    warnings: tuple[str, ...] = ()


class Engine(Protocol):
    """Runs batches: one at a time for one member, each in the thread that calls `run`."""

    def run(self, call: BatchCall) -> BatchReport:
        """Read the ranges, call the pipeline, and return when it has returned and none of its tasks runs any more.

        Raises:
            BatchCancelled: it was cancelled; its tasks have ended.
            BatchFailed: it failed; its tasks have ended.
        """
        ...

    def cancel(self, batch: BatchId) -> None:
        """Cancel a batch, from any thread; returns at once, `run` raises when its tasks have ended."""
        ...


class Sinks(Protocol):
    """The sinks of one member's pipeline, as one. Calls block."""

    @property
    def fenced(self) -> bool:
        """Whether every sink refuses an older epoch by itself."""
        ...

    def reset(self, order: ResetSinks) -> Mapping[GroupPartition, Offset | None]:
        """Raise the fences to the epoch, then read progress, and roll back or skip.

        Returns:
            The progress of each open partition that a sink answers; None: it has none in this timeline.

        Raises:
            SinkError: a sink could not.
            SinkAhead: a sink has seen a later epoch or timeline than the order names.
        """
        ...

    def prepare(self, sequence: CheckpointNumber) -> None:
        """Make durable what is held for a checkpoint.

        Raises:
            SinkError: a sink could not.
        """
        ...

    def publish(self, sequence: CheckpointNumber) -> tuple[TableVersion, ...]:
        """Show what belongs to a checkpoint, and return what tables that people own have of it; may be repeated.

        Raises:
            SinkError: a sink could not.
        """
        ...
