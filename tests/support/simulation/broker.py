"""A fake Kafka: logs with open transactions, retention and timestamps; one eager group with generations and sessions.

It has just what the protocol can notice: who is assigned what and when they hear of it, which commits are accepted, and
what a log look-up answers. Revoke and assign reach a consumer in separate polls, possibly far apart; a frozen consumer
hears nothing and is thrown out when its session is over, while its static id keeps its place, and with it what it was
assigned: no member is assigned anything new without a rebalance, and a topic that has grown causes one only where the
    group's leader lives to see it grow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import count

from airflow_kcr.errors import UnknownTopics
from airflow_kcr.protocol.assignors import assign
from airflow_kcr.protocol.observations import LogBounds, TimeAnswer
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.rules import Assignor
from airflow_kcr.protocol.values import GroupId, GroupPartition, Offset, TopicId, TopicName
from tests.support.simulation.world import EPOCH, World

HEARTBEAT = 0.5


@dataclass(slots=True)
class Log:
    """One partition: when each record was stamped, from where on it is kept, and where an open transaction begins."""

    stamps: list[datetime] = field(default_factory=list)
    start: int = 0
    open_from: int | None = None
    topic_id: str = "topic-1"

    @property
    def stable_end(self) -> int:
        """The last stable offset: an open transaction hides what comes after its start."""
        return len(self.stamps) if self.open_from is None else min(self.open_from, len(self.stamps))

    def bounds(self) -> LogBounds:
        """The log as an admin client reads it."""
        return LogBounds(start=Offset(self.start), end=Offset(self.stable_end), topic_id=TopicId(self.topic_id))

    def first_at_or_after(self, instant: datetime) -> TimeAnswer:
        """First offset in log order stamped at or after `instant`, below the last stable offset."""
        for offset in range(self.start, self.stable_end):
            if self.stamps[offset] >= instant:
                return TimeAnswer(offset=Offset(offset), found=self.stamps[offset])
        return TimeAnswer(offset=None)


class NotInGroup(Exception):
    """A commit was refused: unknown member, or an older generation."""


class Unavailable(Exception):
    """The coordinator moved, or the answer was lost."""


@dataclass(slots=True)
class Consumer:
    """One consumer instance, as its coordinator and its process see it."""

    number: int
    static_id: str | None
    hear: Callable[[str, frozenset[GroupPartition]], None]
    """Called with 'revoked', 'revoking', 'assigned' or 'fenced'."""

    last_poll: float = 0.0
    generation: int = 0
    known: int = 0
    """How many partitions the topic had when it last looked; the group's leader joins again when that changes."""

    drains: bool = False
    """Whether it acknowledges itself what it is to give back; else it does so as soon as it hears of it."""

    polls: Callable[[], bool] = lambda: True
    waiting: list[tuple[str, frozenset[GroupPartition]]] = field(default_factory=list)


class Broker:
    """One group of one topic.

    Args:
        world: time and chance.
        group: the group.
        partitions: how many the topic has at first.
        session: seconds after which a silent consumer is thrown out.
    """

    topic = TopicName("t")

    def __init__(self, world: World, group: GroupId, partitions: int, session: float) -> None:
        self.world, self.group, self.session = world, group, session
        self.logs = [Log() for _ in range(partitions)]
        self.committed: dict[GroupPartition, Offset] = {}
        self.consumers: dict[int, Consumer] = {}
        self.assigned: dict[int, frozenset[GroupPartition]] = {}
        """What each consumer was assigned in the last rebalance."""

        self.has_lost = False
        """Whether a partition was lost."""

        self.lost: Log | None = None
        """The log of the partition that was lost, until it is found again."""

        self.leader = 0
        """The number of the consumer that assigns; who takes a static place takes that over, too."""

        self.generation = 0
        self.lost_answers = 0.0
        self.back_at = 0.0
        """Until then it answers no client."""

        self.late = 0.0
        """By how many seconds its answers come late."""

        self.rebalances = 0
        self._numbers = count(1)
        self._pending = False
        world.after(HEARTBEAT, self._expire)

    @property
    def is_away(self) -> bool:
        """Whether it answers no client."""
        return self.world.now < self.back_at

    def heal(self) -> None:
        """Answer at once and everything, from now on."""
        self.lost_answers = self.late = self.back_at = 0.0
        for log in self.logs:
            log.open_from = None

    # -- logs ----------------------------------------------------------------------------------------------------

    def partition(self, number: int) -> GroupPartition:
        """The key of one partition."""
        return GroupPartition(self.group, self.topic, number)

    def log(self, partition: GroupPartition) -> Log:
        """One partition's log.

        Raises:
            UnknownTopics: it was deleted.
        """
        if partition.partition >= len(self.logs):
            raise UnknownTopics(f"there is no log {partition}")
        return self.logs[partition.partition]

    def has(self, partition: GroupPartition) -> bool:
        """Whether a partition is there."""
        return partition.partition < len(self.logs)

    def produce(self, number: int, records: int, *, ahead: timedelta = timedelta(0)) -> None:
        """Append records, stamped now (plus `ahead`: a producer's wrong clock)."""
        stamp = EPOCH + timedelta(seconds=self.world.now) + ahead
        self.logs[number].stamps.extend([stamp] * records)

    def add_partition(self) -> None:
        """Add a partition; the group's leader sees it with its next poll."""
        if not self.has_lost:
            self.logs.append(Log())

    def lose_partition(self) -> None:
        """Lose the last partition, as if it were a topic that is deleted; the leader sees that with its next poll.

        None is added afterwards: it would have the old one's name.
        """
        self.has_lost = True
        self.lost = self.logs.pop()

    def find_partition(self) -> None:
        """Have the lost partition again, with its log, as a cluster does that comes back with all its brokers."""
        if self.lost is not None:
            self.logs.append(self.lost)
            self.lost = None

    # -- membership ----------------------------------------------------------------------------------------------

    def join(self, consumer: Consumer) -> None:
        """Let a consumer join. The same static id takes its place without a rebalance, and fences the consumer that had
        it."""
        holder = next(
            (c for c in self.consumers.values() if c.static_id is not None and c.static_id == consumer.static_id), None
        )
        consumer.last_poll, consumer.known = self.world.now, len(self.logs)
        self.consumers[consumer.number] = consumer
        if holder is None:
            self._rebalance_soon()
            return
        del self.consumers[holder.number]
        holder.hear("fenced", frozenset())
        consumer.generation = self.generation
        held = self.assigned[consumer.number] = self.assigned.pop(holder.number, frozenset())
        self.leader = consumer.number if self.leader == holder.number else self.leader
        self.world.soon(lambda: self._tell(consumer, "assigned", held))

    def knows(self, number: int) -> bool:
        """Whether a consumer is in the group."""
        return number in self.consumers

    def close(self, number: int) -> None:
        """Note that a static member closed: here it tells the broker nothing."""

    def acknowledge(self, number: int, partitions: frozenset[GroupPartition]) -> None:
        """Take what a member has given back.

        Raises:
            NotImplementedError: here an assignment is taken as a whole.
        """
        raise NotImplementedError

    def new_number(self) -> int:
        """Name a consumer instance."""
        return next(self._numbers)

    def leave(self, number: int) -> None:
        """Let a consumer leave at once."""
        if number in self.consumers:
            self._remove(number)
            self._rebalance_soon()

    def _remove(self, number: int) -> None:
        del self.consumers[number]

    def poll(self, number: int) -> None:
        """Count as alive; one that was thrown out hears that it lost everything, and joins again."""
        consumer = self.consumers.get(number)
        if consumer is None:
            return
        consumer.last_poll = self.world.now
        if number == self.leader and consumer.known != len(self.logs):
            self._rebalance_soon()
        consumer.known = len(self.logs)

    def _expire(self) -> None:
        if self.is_away:  # no session runs; a coordinator that is back gives every member a whole one
            for consumer in self.consumers.values():
                consumer.last_poll = self.world.now
        gone = [c for c in self.consumers.values() if self.world.now - c.last_poll > self.session]
        for consumer in gone:
            self._remove(consumer.number)
        if gone:
            self._rebalance_soon()
        self.world.after(HEARTBEAT, self._expire)

    def _rebalance_soon(self) -> None:
        if not self._pending:
            self._pending = True
            self.world.after(self.world.random.uniform(0.05, 0.5), self._rebalance)

    def _rebalance(self) -> None:
        if self.is_away:
            self.world.after(self.back_at - self.world.now + 0.01, self._rebalance)
            return
        self._pending = False
        self.generation += 1
        self.rebalances += 1
        self.assigned = self._assignment()
        if self.leader not in self.consumers:
            self.leader = min(self.consumers, default=0)
        for number, held in self.assigned.items():
            consumer = self.consumers[number]
            consumer.generation = self.generation
            first = self.world.random.uniform(0.001, 0.3)
            revoked = partial(self._tell_in, self.generation, consumer, "revoked", frozenset[GroupPartition]())
            self.world.after(first, revoked)
            second = first + self.world.random.uniform(0.001, 0.5)
            self.world.after(second, partial(self._tell_in, self.generation, consumer, "assigned", held))

    def _tell_in(self, generation: int, consumer: Consumer, what: str, held: frozenset[GroupPartition]) -> None:
        """Tell it what belongs to a generation; once the next one has started, that is what a client hears of."""
        if consumer.generation == generation:
            self._tell(consumer, what, held)

    def _tell(self, consumer: Consumer, what: str, held: frozenset[GroupPartition]) -> None:
        """Have a callback wait for the consumer's next poll; callbacks come in order."""
        consumer.waiting.append((what, held))
        if len(consumer.waiting) == 1:
            self._deliver(consumer)

    def _deliver(self, consumer: Consumer) -> None:
        """Call back inside a poll: a frozen process hears it on waking, if it is still true."""
        if consumer.number not in self.consumers or not consumer.waiting:
            consumer.waiting.clear()
            return
        if not consumer.polls():
            self.world.after(0.2, lambda: self._deliver(consumer))
            return
        what, held = consumer.waiting.pop(0)
        if what != "assigned" or held == self.assigned.get(consumer.number):
            self._heard(consumer, what, held)
        self._deliver(consumer)

    def _heard(self, consumer: Consumer, what: str, held: frozenset[GroupPartition]) -> None:
        consumer.hear(what, held)

    def _assignment(self) -> dict[int, frozenset[GroupPartition]]:
        names = {f"{c.static_id or 'dynamic'}/{n:06}": n for n, c in self.consumers.items()}
        if not names:
            return {}
        dealt = assign(Assignor.RANGE, {n: {self.topic} for n in names}, {self.topic: len(self.logs)})
        return {names[name]: frozenset(self.partition(tp.partition) for tp in held) for name, held in dealt.items()}

    # -- commits -------------------------------------------------------------------------------------------------

    def commit(self, number: int, offsets: OffsetMap) -> None:
        """Commit; the broker checks the member and its generation, not who owns what.

        Raises:
            NotInGroup: the consumer is not in the group in its present generation.
            Unavailable: it is unknown whether it was written.
        """
        if self.is_away:
            raise Unavailable
        consumer = self.consumers.get(number)
        if consumer is None or self._pending or consumer.generation != self.generation:
            raise NotInGroup
        self._write(offsets)

    def _write(self, offsets: OffsetMap) -> None:
        lost = self.world.chance(self.lost_answers)
        if not lost or self.world.chance(0.5):
            self.committed.update(offsets)
        if lost:
            raise Unavailable
