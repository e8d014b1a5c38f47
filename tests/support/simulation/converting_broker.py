"""The fake Kafka of a group whose members speak either protocol: the first one of the newer kind converts it.

While a member of the consumer protocol is there, the broker decides for all. One of the classic protocol is told so in
its own words: there is a rebalance, it gives everything back, joins again, and is assigned what is free by then. When
the last one of the newer kind has gone, the group is a classic one again, and those who are left join anew.

A consumer of the newer protocol waits for the session of a static id that is in use, as real brokers have it. That a
classic one takes the place at once and the owner is fenced is assumed from Kafka's rule for classic groups, not seen.
"""

from __future__ import annotations

from functools import partial

from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.rules import GroupProtocol
from airflow_kcr.protocol.values import GroupId, GroupPartition
from tests.support.simulation.broker import Broker, Consumer, NotInGroup, Unavailable
from tests.support.simulation.deciding_broker import DecidingBroker
from tests.support.simulation.world import World

_NONE = frozenset[GroupPartition]()


class ConvertingBroker(DecidingBroker):
    """One group of one topic; `classic` while none of its members speaks the consumer protocol.

    Args:
        world: time and chance.
        group: the group.
        partitions: how many the topic has at first.
        session: seconds after which a silent consumer is thrown out.
    """

    def __init__(self, world: World, group: GroupId, partitions: int, session: float) -> None:
        super().__init__(world, group, partitions, session)
        self.is_classic = True
        self.conversions: list[GroupProtocol] = []
        """What the group became, one after the other."""

        self.mixed = 0
        """How many heartbeats of classic members the group answered while the broker decided."""

        self._joining: dict[int, bool] = {}
        """Classic members that were told to join again, and whether they have given everything back."""

    # -- what depends on who decides -----------------------------------------------------------------------------

    def add_partition(self) -> None:
        """Add a partition; noticed by who decides."""
        (Broker if self.is_classic else DecidingBroker).add_partition(self)

    def lose_partition(self) -> None:
        """Lose the last partition; noticed by who decides."""
        (Broker if self.is_classic else DecidingBroker).lose_partition(self)

    def find_partition(self) -> None:
        """Have the lost partition again; noticed by who decides."""
        (Broker if self.is_classic else DecidingBroker).find_partition(self)

    def join(self, consumer: Consumer) -> None:
        """Let a consumer join, in whichever protocol it speaks."""
        if consumer.protocol is GroupProtocol.CLASSIC:
            if self.is_classic:
                Broker.join(self, consumer)
                return
            for holder in [c for c in self.consumers.values() if c.static_id and c.static_id == consumer.static_id]:
                if holder.number not in self._closed:
                    holder.hear("fenced", _NONE)
                    self._closed.add(holder.number)
        elif self.is_classic and not self._is_taken(consumer):
            self._upgrade()
        super().join(consumer)
        self._downgrade_if_last()  # it may be the first one in a group that all of the newer kind have left

    def leave(self, number: int) -> None:
        """Let a consumer leave; a static one of the consumer protocol can only close."""
        consumer = self.consumers.get(number)
        if consumer is not None and consumer.protocol is GroupProtocol.CLASSIC:
            Broker.leave(self, number)
            return
        super().leave(number)

    def close(self, number: int) -> None:
        """Note that a static member closed; one of the classic protocol tells the broker nothing."""
        consumer = self.consumers.get(number)
        if consumer is None or consumer.protocol is GroupProtocol.CONSUMER:
            super().close(number)

    def poll(self, number: int) -> None:
        """Take a heartbeat, and answer it in its protocol."""
        if self.is_classic and number not in self._asking:
            Broker.poll(self, number)
            return
        super().poll(number)

    def commit(self, number: int, offsets: OffsetMap) -> None:
        """Commit; see the brokers of either protocol.

        Raises:
            NotInGroup: the consumer is not in the group, or has yet to join it again.
            Unavailable: its epoch is old, or it is unknown whether it was written; to be sent again.
        """
        consumer = self.consumers.get(number)
        if self.is_classic:
            Broker.commit(self, number, offsets)
        elif consumer is None or consumer.protocol is GroupProtocol.CONSUMER:
            super().commit(number, offsets)
        elif self.is_away:
            raise Unavailable
        elif self._joining.get(number):
            raise NotInGroup
        else:
            self._write(offsets)

    def _rebalance(self) -> None:
        (Broker if self.is_classic else DecidingBroker)._rebalance(self)

    # -- conversion ----------------------------------------------------------------------------------------------

    def _is_taken(self, consumer: Consumer) -> bool:
        held = [c for c in self.consumers.values() if c.static_id is not None and c.static_id == consumer.static_id]
        return any(c.number not in self._closed for c in held)

    def _upgrade(self) -> None:
        self.is_classic = False
        self.conversions.append(GroupProtocol.CONSUMER)
        self.assigned = {number: self.assigned.get(number, _NONE) for number in self.consumers}
        self.target = dict(self.assigned)
        for number, held in self.assigned.items():
            self.ownership.granted(number, held)
            self._since |= {(number, partition): self.generation for partition in held}

    def _downgrade_if_last(self) -> None:
        if self.is_classic or any(c.protocol is GroupProtocol.CONSUMER for c in self.consumers.values()):
            return
        self.is_classic = True
        self.conversions.append(GroupProtocol.CLASSIC)
        self.ownership.owners.clear()
        for about in (self.target, self.revoking, self._joining):
            about.clear()
        self.leader = min(self.consumers, default=0)
        self._rebalance_soon()

    def _remove(self, number: int) -> None:
        super()._remove(number)
        self._joining.pop(number, None)
        if self.consumers:
            self._downgrade_if_last()

    # -- classic members of a group whose broker decides ---------------------------------------------------------

    def _reconcile(self, consumer: Consumer) -> None:
        if consumer.protocol is GroupProtocol.CONSUMER:
            super()._reconcile(consumer)
            return
        self.mixed += 1
        number = consumer.number
        free = self.target.get(number, _NONE) - self.assigned[number] - self._owned()
        if number not in self._joining and (free or consumer.generation != self.generation):
            self._joining[number] = False
            self._tell(consumer, "revoked", _NONE)

    def _heard(self, consumer: Consumer, what: str, held: frozenset[GroupPartition]) -> None:
        super()._heard(consumer, what, held)
        number = consumer.number
        if what != "revoked" or self.is_classic or self._joining.get(number) is not False:
            return
        self._joining[number] = True
        self.ownership.acknowledged(number, self.assigned[number])
        self.moves += len(self.assigned[number] - self.target.get(number, _NONE))
        self.assigned[number] = _NONE
        self.world.soon(partial(self._joined_again, consumer), 0.5)

    def _joined_again(self, consumer: Consumer) -> None:
        number = consumer.number
        if number not in self.consumers or self._joining.pop(number, None) is None:
            return
        consumer.generation = self.generation
        free = self.target.get(number, _NONE) - self._owned()
        self.ownership.granted(number, free)
        self._since |= {(number, partition): self.generation for partition in free}
        self.assigned[number] = free
        self._say(consumer)
