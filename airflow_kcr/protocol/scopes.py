"""The scope of a reset: which partitions of a region move, while all others keep their position.

Rules (docs/reference/targets.md; the text form `topic:0,1` is that of `kafka-consumer-groups --topic`):

- Nothing named means everything. Groups and topics narrow down independently: a partition is in scope where its group
  *and* its topic are.
- A topic may be narrowed to some of its partitions; named with and without partitions, the whole topic is meant.
- A scope may be limited to the partitions that a plan has shown. One that is found later was in no plan, and a place
  that was meant for others may lie ahead of it.
- Every part of a scope must match something in the region. A slip of the pen in one of two topics would otherwise be
  found in the data, months later.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from airflow_kcr.errors import InvalidIdentifier, InvalidTarget
from airflow_kcr.protocol.values import GroupId, GroupPartition, TopicName, by_group, group_id, topic_name

LARGEST_PARTITION: Final = 2**31 - 1
"""Kafka numbers partitions with a signed 32-bit integer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Which partitions a reset moves.

    Raises:
        InvalidTarget: a name is none that Kafka takes, or a topic is narrowed to no partition.
    """

    groups: frozenset[GroupId] = frozenset()
    """Empty: every group of the region."""

    topics: Mapping[TopicName, frozenset[int] | None] = field(default_factory=dict)
    """The partitions of each topic, None being all of them. Empty: every topic."""

    planned: frozenset[GroupPartition] | None = None
    """The partitions that were there when the reset was planned, and no others; None: also those that come later."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "topics", MappingProxyType(dict(sorted(self.topics.items()))))
        try:
            for group in self.groups:
                group_id(group)
            for topic in self.topics:
                topic_name(topic)
        except InvalidIdentifier as error:
            raise InvalidTarget(error.message) from None
        for topic, numbers in self.topics.items():
            if numbers is not None and not (numbers and 0 <= min(numbers) <= max(numbers) <= LARGEST_PARTITION):
                raise InvalidTarget(
                    f"topic {topic}: a partition is a number from 0 to {LARGEST_PARTITION}, got {sorted(numbers)}"
                )

    def __hash__(self) -> int:
        return hash((self.groups, tuple(self.topics.items()), self.planned))

    def __contains__(self, partition: GroupPartition) -> bool:
        """Whether `partition` is in scope."""
        if self.planned is not None and partition not in self.planned:
            return False
        if self.groups and partition.group not in self.groups:
            return False
        if not self.topics:
            return True
        if partition.topic not in self.topics:
            return False
        numbers = self.topics[partition.topic]
        return numbers is None or partition.partition in numbers

    def __str__(self) -> str:
        """Return the scope as its command line options, which is how it was asked for."""
        groups = [f"--group {group}" for group in sorted(self.groups)]
        return " ".join(groups + _topic_options(self)) or "everything"

    @property
    def as_asked(self) -> Scope:
        """The scope without its limit to what was planned."""
        return replace(self, planned=None)

    def select(self, partitions: Collection[GroupPartition]) -> frozenset[GroupPartition]:
        """Return those of a region's partitions that are in scope; never none.

        Args:
            partitions: every partition of the region.

        Raises:
            InvalidTarget: a part of the scope matches nothing; the message names every such part, and what exists.
        """
        if not partitions:
            raise InvalidTarget(
                "the region has no partitions yet, nothing can be reset; its members find them once it is started"
            )
        selected = frozenset(partition for partition in partitions if partition in self)
        missing = [f"group {group}" for group in sorted(self.groups - {p.group for p in partitions})]
        for topic, numbers in self.topics.items():
            there = {p.partition for p in selected if p.topic == topic}
            if numbers is not None:
                missing += [f"partition {topic}:{number}" for number in sorted(numbers - there)]
            elif not there:
                others = {p.group for p in partitions if p.topic == topic}
                named = f" of group {', '.join(sorted(self.groups))}" if others else ""
                missing.append(f"topic {topic}{named}")
        if not missing:
            missing = [
                f"{' '.join(_topic_options(self))} in group {g}"
                for g in sorted(self.groups - {p.group for p in selected})
            ]
        if missing or not selected:
            what = ", ".join(missing) or str(self)
            raise InvalidTarget(f"{what}: there is none in scope of this region, which has {_existing(partitions)}")
        return selected


EVERYTHING: Final = Scope()
"""The whole region."""


def parse_scope(groups: Iterable[str] = (), topics: Iterable[str] = ()) -> Scope:
    """Return the scope that command line options say.

    Args:
        groups: the values of `--group`, each a group id.
        topics: the values of `--topic`, each a topic or `topic:0,1,2`.

    Raises:
        InvalidTarget: a value is not of that form.
    """
    numbers_of: dict[TopicName, frozenset[int] | None] = {}
    for text in topics:
        topic, numbers = _parse_topic(text)
        known = numbers_of.get(topic, frozenset())
        numbers_of[topic] = None if numbers is None or known is None else known | numbers
    return Scope(groups=frozenset(map(GroupId, groups)), topics=numbers_of)


def _parse_topic(text: str) -> tuple[TopicName, frozenset[int] | None]:
    name, colon, listed = text.partition(":")
    if not colon:
        return TopicName(name), None
    numbers = listed.split(",")
    if not all(number.isascii() and number.isdigit() and len(number) <= 10 for number in numbers):
        raise InvalidTarget(f"{text!r} is not a topic with partitions: write topic:0,1,2")
    return TopicName(name), frozenset(map(int, numbers))


def _topic_options(scope: Scope) -> list[str]:
    return [
        f"--topic {topic}" + ("" if numbers is None else ":" + ",".join(map(str, sorted(numbers))))
        for topic, numbers in scope.topics.items()
    ]


def _existing(partitions: Collection[GroupPartition]) -> str:
    """Return the region's partitions for a message: `g: t:0-2, u:0; h: …`."""
    return "; ".join(
        f"{group}: " + ", ".join(f"{topic}:{_spans(numbers)}" for topic, numbers in topics.items())
        for group, topics in by_group(partitions).items()
    )


def _spans(numbers: list[int]) -> str:
    """Return ascending numbers in short: `0-2,5`."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][-1] == number - 1:
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    return ",".join("-".join(map(str, span)) for span in spans)
