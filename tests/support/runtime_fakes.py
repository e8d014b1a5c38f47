"""Tiny fakes behind the ports of a member: logs, a membership that answers at once, an engine with a gate, sinks.

What decides is real: the store in memory under the real verbs. Only what would need a broker or Spark is played.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Concatenate, Final, ParamSpec, TypeVar

from airflow_kcr.embedded.processes import happened
from airflow_kcr.errors import BatchCancelled, KcrError, StoreUnavailable
from airflow_kcr.ports import BatchCall, BatchReport, CommitAnswer, CommittedOffset, MembershipListener, always
from airflow_kcr.protocol.member.messages import ResetSinks
from airflow_kcr.protocol.observations import LogBounds, TimeAnswer
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region.rows import Batch
from airflow_kcr.protocol.table_outputs import TableVersion
from airflow_kcr.protocol.values import (
    NO_CLUSTER,
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
    RegionId,
    RegionName,
    Timeline,
    TopicName,
)
from tests.support.memory import MemoryTransactions
from tests.support.simulation.broker import Log

T = TypeVar("T")
P = ParamSpec("P")

GROUP = GroupId("g")
TOPIC = TopicName("t")
FLIGHTS = RegionName("flights")
REGION_ID = RegionId("id of flights")
MEMBER = MemberId(GROUP, 0)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def p(number: int) -> GroupPartition:
    """Return a partition of the one topic."""
    return GroupPartition(GROUP, TOPIC, number)


CALL: Final = BatchCall(
    region=FLIGHTS,
    member=MEMBER,
    batch=BatchId("b"),
    epoch=Epoch(1),
    timeline=Timeline(1),
    sequence=CheckpointNumber(1),
    ranges={p(0): Range(Offset(0), Offset(10))},
    progress=OffsetMap(),
)
"""A batch of the first ten records."""


def records(number: int, *, at: datetime = NOON) -> Log:
    """Return a log of N records, all stamped `at`."""
    return Log(stamps=[at] * number)


def eventually(condition: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    """Wait until a condition holds; fail with `what` was waited for."""
    if not happened(condition, within=seconds, pause=0.002):
        raise AssertionError(f"{what}: not within {seconds} seconds")


class Hands:
    """A member's clock, moved by hand."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@dataclass(slots=True)
class FakeLogs:
    """The brokers' answers, from logs in memory; a log that is not there is unknown to the cluster."""

    logs: dict[GroupPartition, Log]
    asked: list[str] = field(default_factory=list)
    failures: list[KcrError] = field(default_factory=list)
    """Raised by the next calls, one each."""

    cluster: ClusterId = NO_CLUSTER

    in_between: Callable[[], None] = lambda: None
    """Done after the ends of the logs were read, before the time index is asked."""

    def bounds(self, partitions: Collection[GroupPartition]) -> dict[GroupPartition, LogBounds]:
        """See `ports.Logs`."""
        self._ask("bounds")
        return {p: self.logs[p].bounds() for p in partitions if p in self.logs}

    def stable_ends(self, partitions: Collection[GroupPartition]) -> dict[GroupPartition, Offset]:
        """See `ports.Logs`."""
        self._ask("ends")
        return {p: self.logs[p].bounds().end for p in partitions if p in self.logs}

    def high_watermarks(self, partitions: Collection[GroupPartition]) -> dict[GroupPartition, Offset]:
        """See `ports.Logs`."""
        self._ask("highs")
        return {p: Offset(len(self.logs[p].stamps)) for p in partitions if p in self.logs}

    def first_at_or_after(self, instants: Mapping[GroupPartition, datetime]) -> dict[GroupPartition, TimeAnswer]:
        """See `ports.Logs`."""
        self.in_between()
        self._ask("times")
        return {p: self.logs[p].first_at_or_after(i) for p, i in instants.items()}

    def topics(self, names: Collection[TopicName] = ()) -> Mapping[TopicName, int]:
        """See `ports.Logs`."""
        return {TOPIC: len(self.logs)}

    def cluster_id(self) -> ClusterId:
        """See `ports.Logs`."""
        return self.cluster

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        if self.failures:
            raise self.failures.pop(0)


@dataclass(slots=True)
class FakeMembership:
    """Records what it was told to do; what is awaited from it, it answers at once."""

    listener: MembershipListener
    partitions: frozenset[GroupPartition] = frozenset()
    """What Kafka assigns to consumers that join."""

    held: dict[GroupPartition, CommittedOffset] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    commit_failure: str = ""
    failures: list[KcrError] = field(default_factory=list)
    """Raised by the next look-ups of committed offsets, one each."""

    may_write: Callable[[], bool] = always
    """What came with the last commit."""

    def join(self) -> None:
        """See `ports.Membership`."""
        self.calls.append("join")
        self.listener.assigned(self.partitions)

    def leave(self) -> None:
        """See `ports.Membership`."""
        self.calls.append("leave")
        self.listener.revoked()
        self.listener.left()

    def close_keeping_slot(self) -> None:
        """See `ports.Membership`."""
        self.calls.append("close_keeping_slot")
        self.listener.left()

    def commit(
        self,
        offsets: OffsetMap,
        metadata: str,
        timeout: timedelta,
        answered: Callable[[CommitAnswer], None],
        may_write: Callable[[], bool] = always,
    ) -> None:
        """See `ports.Membership`; what Kafka holds is answered of every partition, not only of those asked for."""
        self.calls.append("commit")
        self.notes.append(metadata)
        self.may_write = may_write
        if not self.commit_failure:
            self.held.update({p: CommittedOffset(offset=o, metadata=metadata) for p, o in offsets.items()})
        answered(CommitAnswer(held=dict(self.held), failure=self.commit_failure))

    def committed(
        self, partitions: frozenset[GroupPartition], timeout: timedelta
    ) -> Mapping[GroupPartition, CommittedOffset]:
        """See `ports.Membership`."""
        if self.failures:
            raise self.failures.pop(0)
        return {p: self.held[p] for p in partitions if p in self.held}

    def end(self, timeout: timedelta) -> bool:
        """See `ports.Membership`."""
        self.calls.append("end")
        return True


@dataclass(slots=True)
class FakeEngine:
    """Runs nothing: each call waits at the gate, and is recorded once it has passed."""

    gate: threading.Event = field(default_factory=threading.Event)
    started: list[BatchCall] = field(default_factory=list)
    done: list[BatchCall] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)
    """Raised by the next calls that pass the gate, one each."""

    cancels: list[BatchId] = field(default_factory=list)
    stubborn: bool = False
    """Whether a cancelled batch goes on."""

    report: BatchReport = field(default_factory=BatchReport)

    def __post_init__(self) -> None:
        self.gate.set()

    def run(self, call: BatchCall) -> BatchReport:
        """See `ports.Engine`."""
        self.started.append(call)
        is_open = False
        while not is_open:
            is_open = self.gate.wait(0.005)
            # Also where the gate was opened right after: a batch that was cancelled first must not do its work.
            if call.batch in self.cancels and not self.stubborn:
                raise BatchCancelled(f"batch {call.batch} was cancelled")
        if self.failures:
            raise self.failures.pop(0)
        self.done.append(call)
        return self.report

    def cancel(self, batch: BatchId) -> None:
        """See `ports.Engine`."""
        self.cancels.append(batch)


def closed() -> FakeEngine:
    """Return an engine whose gate is closed."""
    engine = FakeEngine()
    engine.gate.clear()
    return engine


@dataclass(slots=True)
class FakeSinks:
    """Records what it was asked; answers resets with `progress`."""

    fenced: bool = False
    progress: dict[GroupPartition, Offset | None] = field(default_factory=dict)
    tables: tuple[TableVersion, ...] = ()
    """What publications answer."""

    asked: list[str] = field(default_factory=list)
    orders: list[ResetSinks] = field(default_factory=list)
    failures: list[KcrError] = field(default_factory=list)
    """Raised by the next calls, one each."""

    failing: str = ""
    """What calls that fail begin with; empty: any."""

    def reset(self, order: ResetSinks) -> Mapping[GroupPartition, Offset | None]:
        """See `ports.Sinks`."""
        self.orders.append(order)
        self._ask(f"reset {order.epoch}")
        return self.progress

    def prepare(self, sequence: CheckpointNumber) -> None:
        """See `ports.Sinks`."""
        self._ask(f"prepare {sequence}")

    def publish(self, sequence: CheckpointNumber) -> tuple[TableVersion, ...]:
        """See `ports.Sinks`."""
        self._ask(f"publish {sequence}")
        return self.tables

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        if self.failures and what.startswith(self.failing):
            raise self.failures.pop(0)


def _alone(method: Callable[Concatenate[MemoryTransactions, P], T]) -> Callable[Concatenate[SharedTransactions, P], T]:
    """Return a method of the store in memory for one thread at a time, unless the store is away."""

    @wraps(method)
    def run(self: SharedTransactions, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._do(lambda: method(self, *args, **kwargs))

    return run


class SharedTransactions(MemoryTransactions):
    """The store in memory for several threads, on the wall clock, that can be away.

    `MemoryTransactions` wants one caller at a time, and its `wait` has no other process that could change anything
    meanwhile.
    """

    def __init__(self) -> None:
        super().__init__(lambda: datetime.now(UTC))
        self._away = False
        self.refused = 0
        """How many calls met an outage."""

        self._changed = threading.Condition(threading.RLock())

    @property
    def away(self) -> bool:
        """Whether every call is refused."""
        return self._away

    @away.setter
    def away(self, away: bool) -> None:
        with self._changed:
            self._away = away
            self._changed.notify_all()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Give no caller an answer, nor an error, for as long as this lasts."""
        with self._changed:
            yield

    create = _alone(MemoryTransactions.create)
    decide = _alone(MemoryTransactions.decide)
    admit = _alone(MemoryTransactions.admit)
    renew = _alone(MemoryTransactions.renew)
    read = _alone(MemoryTransactions.read)
    read_as = _alone(MemoryTransactions.read_as)
    names = _alone(MemoryTransactions.names)
    delete = _alone(MemoryTransactions.delete)
    events = _alone(MemoryTransactions.events)
    batch = _alone(MemoryTransactions.batch)
    newest_work = _alone(MemoryTransactions.newest_work)
    batches_since = _alone(MemoryTransactions.batches_since)
    batches_with = _alone(MemoryTransactions.batches_with)
    readers = _alone(MemoryTransactions.readers)
    taken = _alone(MemoryTransactions.taken)
    take = _alone(MemoryTransactions.take)
    let_go = _alone(MemoryTransactions.let_go)
    signs = _alone(MemoryTransactions.signs)
    replays = _alone(MemoryTransactions.replays)
    registered = _alone(MemoryTransactions.registered)
    history = _alone(MemoryTransactions.history)

    def batches(self, name: RegionName) -> Iterator[Batch]:
        """See `RegionStore`."""
        return iter(self._do(lambda: tuple(super(SharedTransactions, self).batches(name))))

    def wait(self, name: RegionName, after: EventNumber, timeout: timedelta) -> EventNumber:
        """See `RegionStore`; an outage is met by waiters, too."""
        with self._changed:
            self._changed.wait_for(lambda: self.away or self._counter(name) > after, timeout.total_seconds())
            return max(self._do(lambda: self._counter(name)), after)

    def _counter(self, name: RegionName) -> EventNumber:
        return super().read(name)[0].counter

    def _do(self, action: Callable[[], T]) -> T:
        with self._changed:
            if self.away:
                self.refused += 1
                raise StoreUnavailable("the store is away")
            done = action()
            self._changed.notify_all()
            return done
