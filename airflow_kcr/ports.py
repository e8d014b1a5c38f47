"""What the core needs from the world, as protocols.

An adapter implements one of them; its contract suite runs against every implementation, the real one first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from airflow_kcr.errors import RefusedError
from airflow_kcr.protocol.commands import Command, FinishBatch, Heartbeat, Renew, StartBatch
from airflow_kcr.protocol.invariants.history import History
from airflow_kcr.protocol.member.messages import ResetSinks
from airflow_kcr.protocol.observations import LogBounds, TimeAnswer
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region.events import Event
from airflow_kcr.protocol.region.rows import Batch
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.values import (
    BatchId,
    CheckpointNumber,
    ClusterId,
    Epoch,
    EventNumber,
    GroupId,
    GroupPartition,
    Incarnation,
    MemberId,
    Offset,
    Range,
    RegionName,
    Timeline,
    TopicName,
    TopicPartition,
)

# -- the store -----------------------------------------------------------------------------------------------------


class Sign(NamedTuple):
    """Whether it is worth reading a region again: while it stays the same, no wait can be over."""

    counter: EventNumber
    is_due: bool
    """Whether something is to be done in it."""

    leases: int
    """How many of its leases are not over: time alone ends one."""

    running: int
    """How many batches run in a region that begins none, also as it is paused; their ends move no counter. Else 0."""


class Span(NamedTuple):
    """The epochs of one reset: of its first attempt and its last, and the epoch of the attempt before it."""

    since: Epoch
    first: Epoch
    last: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What a reset made to be processed again, in offsets: where the region was, where it went, how far it came since.

    What lies between counts as a whole, also offsets that an earlier reset had stepped over.
    """

    rewound: int = 0
    """From where it went back to up to where the region had come, batches that were not accepted among it."""

    replayed: int = 0
    """How much of that was started again since."""


A = TypeVar("A")
B = TypeVar("B", StartBatch, FinishBatch)
V = TypeVar("V")

Rule: TypeAlias = Callable[[Region, datetime], tuple[Region, A]]
"""A pure decision: the region and the store's clock in, the region and an answer out; or it raises, and nothing has
changed."""

BatchRule: TypeAlias = Callable[[Region, datetime, B], tuple[Region, A]]
"""A decision about a batch, which is started or finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizon:
    """How far a region has got: whatever lies within is committed, and nothing is added to it any more."""

    counter: EventNumber
    """The newest event."""

    ledger: int
    """The place of the batch that was started last; 0: there is none. Places only grow, and those of batches that lie
    between the same two events say which was started first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryStart:
    """Where the history that a store keeps of a region starts: what happened before was judged, and may be dropped."""

    horizon: Horizon
    """The last that may be dropped."""

    open: tuple[BatchId, ...]
    """Batches within that have no final outcome there, and so are kept."""

    proof: bytes
    """What the proof of what follows has to know: see `api.verdict`."""


class Dropped(NamedTuple):
    """Rows that left the store."""

    events: int
    batches: int


class Chronicle(Protocol):
    """What is recorded of one region, read page by page in the order in which it happened.

    Every page is a short statement of its own, so that nothing is held open or in memory, however long it is. Each call
    may raise as those of `Transactions` do.
    """

    def horizon(self) -> Horizon:
        """Return how far the region has got; waits for the batches that are beginning or ending at this moment."""
        ...

    def events(self, after: EventNumber, upto: EventNumber) -> Iterator[Event]:
        """Yield the events after a number, up to another."""
        ...

    def batches(self, after: int, upto: int) -> Iterator[Batch]:
        """Yield the ledger after a place, up to another, in the order of the starts.

        What later resets have undone is not told: the events say it. Such a batch is simply done.
        """
        ...

    def rows(self, batches: Collection[BatchId]) -> tuple[Batch, ...]:
        """Return the rows of some batches as they are now, in the order of the starts, told as in `batches`."""
        ...

    def start(self) -> HistoryStart | None:
        """Return where the kept history starts; None: it is whole."""
        ...

    def horizon_before(self, instant: datetime, after: Horizon, events: int) -> Horizon | None:
        """Return the furthest horizon within which all happened before an instant; None: there is no further one.

        Args:
            instant: the newest event of the region is never before it.
            after: where it is looked for from.
            events: how many it may hold at most beyond that.
        """
        ...

    def move_start(self, earlier: HistoryStart | None, start: HistoryStart) -> bool:
        """Let the kept history start later; False: another process has moved its start meanwhile, nothing changes."""
        ...

    def drop(self, start: HistoryStart, floor: CheckpointNumber) -> Iterator[Dropped]:
        """Drop what lies before the start of the kept history, in pieces: one for each time that it is asked.

        Batches stay that the start has open, that run, or that are stamped with a later sequence than `floor`. A later
        call finds them. Any piece may be the last for now.

        Args:
            start: as it is stored.
            floor: the newest sequence whose batches are no longer read.
        """
        ...


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


class Transactions(Protocol):
    """A store of regions: each call is one transaction, the region's lock first.

    Every call may raise StoreUnavailable or StoreBusy (nothing was changed), SchemaMissing, SchemaTooOld or
    SchemaTooNew, and OutcomeUnknown where the answer to COMMIT was lost.
    """

    def create(self, name: RegionName, rule: Callable[[datetime], Region]) -> Region:
        """Store a new region as `rule` makes it from the store's clock.

        Raises:
            RegionExists: there is one of that name.
            GroupInOtherRegion: one of its groups belongs to another region, which the message names.
        """
        ...

    def decide(self, name: RegionName, rule: Rule[A]) -> tuple[Region, A]:
        """Run `rule` under the exclusive lock and store what it returns: rows, events and ledger changes.

        Waiters are notified after the commit. Returns the region as stored, with its events and ledger changes
        written, and the rule's answer.

        Raises:
            UnknownRegion: there is no such region.
            GroupInOtherRegion: the rule's spec claims a group of another region.
        """
        ...

    def admit(self, name: RegionName, command: B, rule: BatchRule[B, A]) -> A:
        """Run `rule` under the shared lock, on a region that holds no more than a batch's start or finish needs.

        That is: the region's own row, the open checkpoint, this member and its lease, the claims of the batch's ranges,
        their boundary offsets and skips, the running batch of this id; all claims and the restore point only where the
        region checkpoints by count. Returns the rule's answer.

        Raises:
            UnknownRegion: there is no such region.
        """
        ...

    def renew(self, renewals: Collection[Renewal]) -> Heartbeats:
        """Extend leases, each if its incarnation holds it and it is not over; one statement for all of any regions.

        Each is answered by itself. The statement waits for no row: one that another transaction writes has no answer,
        so that it does not keep the others waiting.
        """
        ...

    def read(self, name: RegionName) -> tuple[Region, datetime]:
        """Return the region as committed at one moment, and the store's clock then; takes no region lock.

        Raises:
            UnknownRegion: there is no such region.
        """
        ...

    def read_as(self, name: RegionName, member: MemberId, see: Callable[[Region, datetime], V]) -> V:
        """Return what `see` makes of the region and the store's clock, all of one moment; takes no region lock.

        The region has only this member's claims, unless it checkpoints by count. What `see` does not ask for is not
        read, so its answer holds values, and none of the region's tables.

        Raises:
            UnknownRegion: there is no such region.
        """
        ...

    def names(self) -> tuple[RegionName, ...]:
        """Return the names of all regions, in order."""
        ...

    def names_with(self, groups: Collection[GroupId]) -> tuple[RegionName, ...]:
        """Return the names of the regions that have a group of one of these names, on whatever cluster, in order."""
        ...

    def delete(self, name: RegionName, check: Callable[[Region, datetime], None]) -> None:
        """Forget a region and its history, if `check` does not raise.

        A long history goes in pieces. If that is interrupted, every other call raises RegionBeingDeleted, and this one,
        asked again, continues without another check.

        Raises:
            UnknownRegion: there is no such region.
        """
        ...

    def events(self, name: RegionName, after: EventNumber, limit: int = 1000) -> tuple[Event, ...]:
        """Return up to `limit` events after that number, in commit order."""
        ...

    def batch(self, name: RegionName, batch: BatchId) -> Batch | None:
        """Return one row of the ledger, whatever its outcome."""
        ...

    def batches(self, name: RegionName) -> Iterator[Batch]:
        """Yield the ledger in the order in which batches began."""
        ...

    def batches_since(self, name: RegionName, after: CheckpointNumber) -> tuple[Batch, ...]:
        """Return the batches that are stamped with a later sequence than this, oldest first; reads no older ones."""
        ...

    def newest_work(self, name: RegionName) -> datetime | None:
        """Return when the batch that was started last began or ended; None: there was none. Reads that batch alone."""
        ...

    def batches_with(self, name: RegionName, partition: GroupPartition, offset: Offset) -> tuple[Batch, ...]:
        """Return every batch whose ranges contain this offset of this partition, oldest first.

        It reads what there is near the offset, not the ledger.
        """
        ...

    def readers(self, name: RegionName, partition: TopicPartition) -> tuple[GroupPartition, ...]:
        """Return the partitions of which batches of any group were started, of this topic and number, by group."""
        ...

    def taken(self, name: RegionName) -> frozenset[SinkPlace]:
        """Return the places that sinks of this region have taken, and that hold what its progress counts."""
        ...

    def take(self, name: RegionName, place: SinkPlace) -> None:
        """Note that a sink has taken a place; noted before, it changes nothing."""
        ...

    def let_go(self, name: RegionName, place: SinkPlace) -> None:
        """Forget that a sink has taken a place, so that it may start there with nothing."""
        ...

    def signs(self, names: Collection[RegionName]) -> Mapping[RegionName, tuple[Sign, datetime]]:
        """Return the signs of those of these regions that there are, and the store's clock; one statement for all."""
        ...

    def replays(self, name: RegionName, spans: Collection[Span]) -> Mapping[Epoch, Replayed]:
        """Count, by the first epoch of each reset, the offsets that it rewound and those processed again since.

        Args:
            name: the region's.
            spans: resets, the oldest first; the progress of the last of them follows from the current claims.
        """
        ...

    def registered(self, name: RegionName, member: MemberId, incarnation: Incarnation) -> str:
        """Return how the process of an incarnation called itself when it registered; empty: no event tells."""
        ...

    def history(self, name: RegionName) -> History:
        """Return all events and the whole ledger as committed at one moment; takes no region lock.

        Read one after the other, a batch that finished in between would look like unprocessed records.

        Raises:
            UnknownRegion: there is no such region.
        """
        ...

    def chronicle(self, name: RegionName) -> Chronicle:
        """Return what is recorded of a region; raises UnknownRegion, if there is none, when it is read."""
        ...

    def wait(self, name: RegionName, after: EventNumber, timeout: timedelta) -> EventNumber:
        """Return the region's counter once it has moved beyond `after`; else, after `timeout`, `after`.

        Of what each of several members does (`events.PARTS`) it may not hear: who has to know reads now and then.
        """
        ...


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


# -- Kafka ---------------------------------------------------------------------------------------------------------


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


# -- Spark and the sinks -------------------------------------------------------------------------------------------


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

    def publish(self, sequence: CheckpointNumber) -> None:
        """Show what belongs to a checkpoint; may be repeated.

        Raises:
            SinkError: a sink could not.
        """
        ...
