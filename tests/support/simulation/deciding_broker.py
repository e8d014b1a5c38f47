"""The fake Kafka by the consumer protocol (KIP-848): the broker decides, and moves one partition after the other.

Each change of the group makes a new epoch and a target for every member. A member hears of it with its next heartbeat:
first that it is to give something back, which it keeps, and may commit, until it acknowledges that nothing of it runs
there; then, when it has caught up, of what is free by now. The others keep what they have.

As seen of real brokers: the session and the heartbeat run whatever the member does; who does not acknowledge within the
rebalance timeout is thrown out; the place of a static member that closed is kept for its session, and so is that of one
that died, whose successor is refused until then (UNRELEASED_INSTANCE_ID). A commit has to have the member's epoch;
from Kafka 4.3 on an older one will do that the member has had the partition since (KIP-1251).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from random import Random

from airflow_kcr.protocol.assignors import assign
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.rules import Assignor
from airflow_kcr.protocol.values import GroupId, GroupPartition
from tests.support.simulation.broker import Broker, Consumer, NotInGroup, Unavailable
from tests.support.simulation.world import World

ASK_AGAIN = 1.0
"""Seconds between two attempts at a static member's place."""

EMPTY_HANDED = 2.0
"""Seconds after which a client that was given nothing says so."""

REBALANCE_TIMEOUT = 60.0
"""Seconds that a member has to acknowledge; the longest interval between two polls."""

_NONE = frozenset[GroupPartition]()


@dataclass(slots=True)
class Ownership:
    """Who owns what by what the broker was seen to do, kept apart from what it thinks; and what must not be."""

    owners: dict[GroupPartition, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def granted(self, number: int, partitions: frozenset[GroupPartition]) -> None:
        """A member was given partitions."""
        for partition in sorted(partitions):
            owner = self.owners.setdefault(partition, number)
            if owner != number:
                self.wrong.append(
                    f"{partition} was given to consumer {number} before consumer {owner} had acknowledged its loss"
                )

    def acknowledged(self, number: int, partitions: frozenset[GroupPartition]) -> None:
        """A member has let partitions go."""
        for partition in sorted(partitions):
            if self.owners.pop(partition, None) != number:
                self.wrong.append(f"consumer {number} acknowledged the loss of {partition}, which it did not own")

    def removed(self, number: int) -> None:
        """A member is out of the group: whatever it commits is refused."""
        self.owners = {p: owner for p, owner in self.owners.items() if owner != number}

    def moved(self, number: int, successor: int) -> None:
        """A static member's place was taken over, all of it."""
        self.owners = {p: successor if owner == number else owner for p, owner in self.owners.items()}


class DecidingBroker(Broker):
    """One group of one topic, in the consumer protocol.

    Args:
        world: time and chance.
        group: the group.
        partitions: how many the topic has at first.
        session: seconds after which a silent consumer is thrown out.
    """

    def __init__(self, world: World, group: GroupId, partitions: int, session: float) -> None:
        super().__init__(world, group, partitions, session)
        self.ownership = Ownership()
        self.target: dict[int, frozenset[GroupPartition]] = {}
        self.revoking: dict[int, frozenset[GroupPartition]] = {}
        """What each member was told to give back and has not acknowledged."""

        self.moves = 0
        """How many partitions were given back while their owner lived."""

        self.accepts_older_epochs = Random(f"epochs {world.seed}").random() < 0.5
        """Whether commits are checked as from Kafka 4.3 on."""

        self._since: dict[tuple[int, GroupPartition], int] = {}
        self._known: dict[int, int] = {}
        """The epoch that each client has heard of."""

        self._closed: set[int] = set()
        """Static members that closed and whose place is kept."""

        self._asking: dict[int, tuple[Consumer, float]] = {}
        """Those that wait for the place of another with their id, and when they ask again."""

        self._told: set[int] = set()

    # -- logs ----------------------------------------------------------------------------------------------------

    def add_partition(self) -> None:
        """Add a partition; the broker itself notices it, and no member has to."""
        super().add_partition()
        self._rebalance_soon()

    def lose_partition(self) -> None:
        """Lose the last partition; its owner is told to give it back."""
        super().lose_partition()
        self._rebalance_soon()

    def find_partition(self) -> None:
        """Have the lost partition again; the broker itself notices it."""
        super().find_partition()
        self._rebalance_soon()

    # -- membership ----------------------------------------------------------------------------------------------

    def knows(self, number: int) -> bool:
        """Whether a consumer is in the group, or is still asking for a place in it."""
        return number in self.consumers or number in self._asking

    def join(self, consumer: Consumer) -> None:
        """Let a consumer join. A static id's place is taken over once the one before has closed, else refused."""
        holder = next(
            (c for c in self.consumers.values() if c.static_id is not None and c.static_id == consumer.static_id), None
        )
        if holder is not None and holder.number not in self._closed:
            self._asking[consumer.number] = (consumer, self.world.now + ASK_AGAIN)
            return
        self._asking.pop(consumer.number, None)
        consumer.last_poll = self.world.now
        self.consumers[consumer.number] = consumer
        self.world.after(EMPTY_HANDED, partial(self._say_at_last, consumer))
        if holder is None:
            self.assigned[consumer.number] = _NONE
            self._rebalance_soon()
            return
        held = self.assigned.pop(holder.number, _NONE)
        self.assigned[consumer.number] = held
        self.target[consumer.number] = self.target.pop(holder.number, _NONE)
        self._since |= {(consumer.number, p): self._since[holder.number, p] for p in held}
        self.ownership.moved(holder.number, consumer.number)
        self._remove(holder.number)
        self._catch_up(consumer, holder.generation)
        self._say(consumer)

    def leave(self, number: int) -> None:
        """Let a consumer leave; a static one can only close."""
        consumer = self.consumers.get(number)
        if consumer is not None and consumer.static_id is not None:
            self.close(number)
            return
        self._asking.pop(number, None)
        super().leave(number)

    def close(self, number: int) -> None:
        """Note that a static member closed: its place waits for the next one of its id, until its session is over."""
        self._asking.pop(number, None)
        consumer = self.consumers.get(number)
        if consumer is not None:
            self._closed.add(number)
            consumer.waiting.clear()
            consumer.hear = _silent

    def poll(self, number: int) -> None:
        """Take a heartbeat, and answer it with the next part of the way to the target."""
        if number in self._asking:
            consumer, at = self._asking[number]
            if self.world.now >= at:
                self.join(consumer)
        waiting = self.consumers.get(number)
        if waiting is None or number in self._closed:
            return
        waiting.last_poll = self.world.now
        self._reconcile(waiting)

    def acknowledge(self, number: int, partitions: frozenset[GroupPartition]) -> None:
        """Take what a member has given back; one that is out of the group has nothing to give."""
        if number not in self.consumers or self.revoking.get(number) != partitions:
            return
        del self.revoking[number]
        self.ownership.acknowledged(number, partitions)
        self.moves += len(partitions)
        self.assigned[number] -= partitions
        self._say(self.consumers[number])

    def _remove(self, number: int) -> None:
        super()._remove(number)
        self.ownership.removed(number)
        self._closed.discard(number)
        for about in (self.assigned, self.target, self.revoking, self._known):
            about.pop(number, None)

    def _rebalance(self) -> None:
        if self.is_away:
            self.world.after(self.back_at - self.world.now + 0.01, self._rebalance)
            return
        self._pending = False
        self.generation += 1
        self.rebalances += 1
        names = {n: f"{c.static_id or 'dynamic'}/{n:06}" for n, c in self.consumers.items()}
        held = {names[n]: [p.topic_partition for p in sorted(self.assigned[n])] for n in names}
        counts = {self.topic: len(self.logs)}
        dealt = assign(Assignor.UNIFORM, {name: {self.topic} for name in names.values()}, counts, held)
        self.target = {n: frozenset(self.partition(p.partition) for p in dealt[name]) for n, name in names.items()}

    def _reconcile(self, consumer: Consumer) -> None:
        number = consumer.number
        if number in self.revoking:
            return
        held, target = self.assigned[number], self.target.get(number, _NONE)
        if lost := held - target:
            self.revoking[number] = lost
            self.world.after(REBALANCE_TIMEOUT, partial(self._throw_out, consumer, lost, self.generation))
            self._tell(consumer, "revoking", lost)
            return
        self._catch_up(consumer, self.generation)
        free = (target - held) - self._owned()
        if free:
            self.ownership.granted(number, free)
            self._since |= {(number, partition): self.generation for partition in free}
            self.assigned[number] = held | free
            self._say(consumer)

    def _owned(self) -> frozenset[GroupPartition]:
        return _NONE.union(*(self.assigned[number] for number in self.consumers))

    def _catch_up(self, consumer: Consumer, epoch: int) -> None:
        """Give a member its epoch; it hears of it a little later, and its commits are of the older one until then."""
        if consumer.generation != epoch or consumer.number not in self._known:
            consumer.generation = epoch
            self.world.soon(partial(self._known.__setitem__, consumer.number, epoch), 0.3)

    def _throw_out(self, consumer: Consumer, lost: frozenset[GroupPartition], epoch: int) -> None:
        if self.revoking.get(consumer.number) == lost and epoch >= consumer.generation and not self.is_away:
            self._remove(consumer.number)
            self._rebalance_soon()

    def _say(self, consumer: Consumer) -> None:
        self._told.add(consumer.number)
        self._tell(consumer, "assigned", self.assigned[consumer.number])

    def _say_at_last(self, consumer: Consumer) -> None:
        if consumer.number in self.consumers and consumer.number not in self._told:
            self._say(consumer)

    def _heard(self, consumer: Consumer, what: str, held: frozenset[GroupPartition]) -> None:
        super()._heard(consumer, what, held)
        if what == "revoking" and not consumer.drains:
            self.acknowledge(consumer.number, held)

    # -- commits -------------------------------------------------------------------------------------------------

    def commit(self, number: int, offsets: OffsetMap) -> None:
        """Commit; the broker checks the member and its epoch.

        Raises:
            NotInGroup: the consumer is not in the group.
            Unavailable: its epoch is old, or it is unknown whether it was written; to be sent again.
        """
        if self.is_away:
            raise Unavailable
        consumer = self.consumers.get(number)
        if consumer is None or number in self._closed:
            raise NotInGroup
        known = self._known.get(number, 0)
        if known != consumer.generation and not self._is_recent(number, offsets, known):
            raise Unavailable
        self._write(offsets)

    def _is_recent(self, number: int, offsets: OffsetMap, known: int) -> bool:
        return self.accepts_older_epochs and all(
            p in self.assigned[number] and self._since[number, p] <= known for p in offsets
        )


def _silent(what: str, held: frozenset[GroupPartition]) -> None:
    """Hear nothing: the client was closed."""
