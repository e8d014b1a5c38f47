"""Kafka's `sticky` assignor: as balanced as can be, and then as much as possible of the previous assignment.

Two cases, as in Apache Kafka's AbstractStickyAssignor (no racks, one generation):

- *Constrained*: all members subscribe to the same topics. Each member keeps what it owned up to its quota; the rest is
  dealt around. The quota is the even share; where it doesn't divide, as many members as needed get one more, first
  those who owned that many.
- *General*: subscriptions differ. What is owned and still subscribed to is kept, the rest goes, scarcest topics first,
  to the least loaded subscriber. Then partitions are moved from loaded to less loaded members until none can be moved
  for the better; if that did not improve the balance, it is undone.

Where Kafka iterates over a hash map, and the order decides, members go in their order here; every such answer is one
that Kafka could give. A partition that two members claim to have owned, or that no longer exists, counts as unowned.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

from airflow_kcr.protocol.values import TopicName, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence, Set


def assign_sticky(
    members: Mapping[str, Set[TopicName]],
    counts: Mapping[TopicName, int],
    previous: Mapping[str, Iterable[TopicPartition]],
) -> dict[str, tuple[TopicPartition, ...]]:
    """Return who owns what.

    Args:
        members: names and subscriptions, in the members' order.
        counts: the partition counts, each > 0, of every topic with a subscriber, in the topics' order.
        previous: what each member owned; members that are gone are ignored.
    """
    if not members:
        return {}
    existing = {TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)}
    claims = Counter(tp for name in members for tp in set(previous.get(name, ())))
    # Eager members report what they owned; if two report a partition, one had lost it, but which one is unknown.
    owned = {
        name: [tp for tp in dict.fromkeys(previous.get(name, ())) if tp in existing and claims[tp] == 1]
        for name in members
    }
    if len(set(map(frozenset, members.values()))) == 1:
        assignment = _constrained(counts, owned)
    else:
        assignment = _General(members, counts, owned).balanced()
    return {name: tuple(assignment[name]) for name in members}


def _constrained(
    counts: Mapping[TopicName, int], owned: Mapping[str, Sequence[TopicPartition]]
) -> dict[str, list[TopicPartition]]:
    """Return the assignment of members that all subscribe to the same topics."""
    share, extra = divmod(sum(counts.values()), len(owned))
    assignment: dict[str, list[TopicPartition]] = {}
    for name, partitions in owned.items():
        quota = share
        if extra and len(partitions) > share:
            quota += 1
            extra -= 1
        # By number first: what a member gives up are the high partitions of every topic, not all of one topic.
        assignment[name] = sorted(partitions, key=lambda tp: (tp.partition, tp.topic))[:quota]
    kept = {tp for partitions in assignment.values() for tp in partitions}
    rest = deque(
        tp
        for topic, count in counts.items()
        for tp in (TopicPartition(topic, number) for number in range(count))
        if tp not in kept
    )
    # Around those below their share, one each, until all are there ...
    below = [name for name, partitions in assignment.items() if len(partitions) < share]
    ready = [name for name, partitions in assignment.items() if len(partitions) == share]
    while below:
        for name in below:
            assignment[name].append(rest.popleft())
        ready += [name for name in below if len(assignment[name]) == share]
        below = [name for name in below if len(assignment[name]) < share]
    # ... and what is left is one more for the first ones that have no more than it.
    for name, tp in zip(ready, rest, strict=False):
        assignment[name].append(tp)
    return assignment


class _General:
    """The general case; lives for one assignment."""

    def __init__(
        self,
        members: Mapping[str, Set[TopicName]],
        counts: Mapping[TopicName, int],
        owned: Mapping[str, Sequence[TopicPartition]],
    ) -> None:
        self._subscribers = {t: [n for n, subscribed in members.items() if t in subscribed] for t in counts}
        self._assignment = {n: [tp for tp in owned[n] if tp.topic in members[n]] for n in members}
        self._revoked = any(len(self._assignment[n]) != len(owned[n]) for n in members)
        self._owner = {tp: n for n, partitions in self._assignment.items() for tp in partitions}
        scarcest_first = sorted(counts, key=lambda t: len(self._subscribers[t]))
        self._all = [TopicPartition(t, number) for t in scarcest_first for number in range(counts[t])]
        self._order = {name: place for place, name in enumerate(members)}
        self._moves: dict[TopicPartition, tuple[str, str]] = {}
        """Partitions moved while balancing: from whom at first, and to whom at last."""

    def balanced(self) -> dict[str, list[TopicPartition]]:
        """Return the assignment, everything dealt and balanced."""
        fresh = not any(self._assignment.values())
        unassigned = [tp for tp in self._all if tp not in self._owner]
        for tp in unassigned:
            owner = self._least_loaded(tp.topic)
            self._assignment[owner].append(tp)
            self._owner[tp] = owner
        movable = [tp for tp in self._all if len(self._subscribers[tp.topic]) > 1]
        before = {name: list(partitions) for name, partitions in self._assignment.items()}
        # New partitions can be placed without taking any away, unless one is taken away anyway.
        if not self._revoked:
            new = set(unassigned)
            self._move([tp for tp in movable if tp in new])
        moved = self._move(movable)
        # Members that share no topic with another can't take part and must not tip the scales.
        sharing = {name for tp in movable for name in self._subscribers[tp.topic]}
        if not fresh and moved and _imbalance(self._assignment, sharing) >= _imbalance(before, sharing):
            return before
        return self._assignment

    def _move(self, partitions: Sequence[TopicPartition]) -> bool:
        """Move partitions to less loaded subscribers, around and around until none can be moved; whether any was."""
        moved = False
        going = True
        while going:
            going = False
            for tp in partitions:
                target = self._least_loaded(tp.topic)
                if self._load(self._owner[tp]) > self._load(target) + 1:
                    self._hand_over(self._instead_of(tp, target), target)
                    going = moved = True
        return moved

    def _least_loaded(self, topic: TopicName) -> str:
        return min(self._subscribers[topic], key=lambda name: (self._load(name), self._order[name]))

    def _load(self, name: str) -> int:
        return len(self._assignment[name])

    def _instead_of(self, tp: TopicPartition, target: str) -> TopicPartition:
        """Return the partition to move to `target` instead of `tp`.

        If one of the same topic came from `target` to where `tp` was at first, that one goes back: two members never
        swap partitions of a topic.
        """
        source = self._moves[tp][0] if tp in self._moves else self._owner[tp]
        back = [p for p, move in self._moves.items() if p.topic == tp.topic and move == (target, source)]
        return min(back, default=tp)

    def _hand_over(self, tp: TopicPartition, target: str) -> None:
        source = self._owner[tp]
        origin = self._moves.pop(tp)[0] if tp in self._moves else source
        if origin != target:
            self._moves[tp] = (origin, target)
        self._assignment[source].remove(tp)
        self._assignment[target].append(tp)
        self._owner[tp] = target


def _imbalance(assignment: Mapping[str, Sequence[TopicPartition]], members: Set[str]) -> int:
    """Return the sum of the differences in load over all pairs of `members`; 0 is perfect."""
    loads = sorted(len(assignment[name]) for name in members)
    return sum(load * (2 * place - len(loads) + 1) for place, load in enumerate(loads))
