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

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from airflow_kcr.errors import InvalidIdentifier, InvalidTarget
from airflow_kcr.protocol.values import GroupId, GroupPartition, TopicName, group_id, topic_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

LARGEST_PARTITION: Final = 2**31 - 1
"""Kafka numbers partitions with a signed 32-bit integer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Which partitions a reset moves."""

    groups: frozenset[GroupId] = frozenset()
    """Empty: every group of the region."""

    topics: Mapping[TopicName, frozenset[int] | None] = field(default_factory=dict)
    """The partitions of each topic, None being all of them. Empty: every topic."""

    planned: frozenset[GroupPartition] | None = None
    """The partitions that were there when the reset was planned, and no others; None: also those that come later."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "topics", MappingProxyType(dict(sorted(self.topics.items()))))

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
    try:
        for text in topics:
            topic, numbers = _parse_topic(text)
            known = numbers_of.get(topic, frozenset())
            numbers_of[topic] = None if numbers is None or known is None else known | numbers
        return Scope(groups=frozenset(group_id(text) for text in groups), topics=numbers_of)
    except InvalidIdentifier as error:
        raise InvalidTarget(error.message) from None


def scope_to_json(scope: Scope) -> dict[str, object]:
    """Return `scope` as JSON: `{"groups": [...], "topics": {"t": [0, 1], "u": null}}`.

    Where it is limited to what was planned there is `"planned": {"g": {"t": [0, 1]}}` as well, by group and topic.
    """
    document: dict[str, object] = {
        "groups": sorted(scope.groups),
        "topics": {topic: None if numbers is None else sorted(numbers) for topic, numbers in scope.topics.items()},
    }
    if scope.planned is not None:
        document["planned"] = _by_group(scope.planned)
    return document


def scope_from_json(document: object) -> Scope:
    """Return the scope that `scope_to_json` has written.

    Raises:
        InvalidTarget: the document is not of that form.
    """
    match document:
        case {"groups": list(groups), "topics": dict(topics), "planned": dict(planned), **rest} if not rest:
            return replace(scope_from_json({"groups": groups, "topics": topics}), planned=_planned(planned))
        case {"groups": list(groups), "topics": dict(topics), **rest} if not rest:
            # Through the text form: it checks names and numbers, and there is only one set of rules.
            texts = [_topic_text(topic, numbers) for topic, numbers in topics.items()]
            if all(isinstance(group, str) for group in groups):
                return parse_scope(groups, texts)
    raise InvalidTarget(f"not a stored scope: {document!r:.200}")


def _planned(document: dict[object, object]) -> frozenset[GroupPartition]:
    found: set[GroupPartition] = set()
    for group, topics in document.items():
        match group, topics:
            case str(), dict():
                scope = parse_scope([group], [_topic_text(topic, numbers) for topic, numbers in topics.items()])
            case _:
                raise InvalidTarget(f"not the planned partitions of a group: {group!r:.100}: {topics!r:.100}")
        for topic, numbers in scope.topics.items():
            if numbers is None:
                raise InvalidTarget(f"the planned partitions of {topic} in group {group} are not listed")
            found.update(GroupPartition(GroupId(group), topic, number) for number in numbers)
    return frozenset(found)


def _parse_topic(text: str) -> tuple[TopicName, frozenset[int] | None]:
    name, colon, listed = text.partition(":")
    if not colon:
        return topic_name(name), None
    numbers = listed.split(",")
    if not all(number.isascii() and number.isdigit() and len(number) <= 10 for number in numbers):
        raise InvalidTarget(f"{text!r} is not a topic with partitions: write topic:0,1,2")
    parsed = frozenset(map(int, numbers))
    if max(parsed) > LARGEST_PARTITION:
        raise InvalidTarget(f"{text!r}: {max(parsed)} is above {LARGEST_PARTITION}, the largest partition number")
    return topic_name(name), parsed


def _topic_options(scope: Scope) -> list[str]:
    return [
        f"--topic {topic}" + ("" if numbers is None else ":" + ",".join(map(str, sorted(numbers))))
        for topic, numbers in scope.topics.items()
    ]


def _topic_text(topic: object, numbers: object) -> str:
    match topic, numbers:
        case str(), None if ":" not in topic:
            return topic
        case str(), [_, *_] if ":" not in topic and all(type(number) is int for number in numbers):
            return f"{topic}:{','.join(map(str, numbers))}"
    raise InvalidTarget(f"not a topic's scope: {topic!r:.100}: {numbers!r:.100}")


def _existing(partitions: Collection[GroupPartition]) -> str:
    """Return the region's partitions for a message: `g: t:0-2, u:0; h: …`."""
    return "; ".join(
        f"{group}: " + ", ".join(f"{topic}:{_spans(numbers)}" for topic, numbers in topics.items())
        for group, topics in _by_group(partitions).items()
    )


def _by_group(partitions: Collection[GroupPartition]) -> dict[GroupId, dict[TopicName, list[int]]]:
    found: dict[GroupId, dict[TopicName, list[int]]] = {}
    for partition in sorted(partitions):
        found.setdefault(partition.group, {}).setdefault(partition.topic, []).append(partition.partition)
    return found


def _spans(numbers: list[int]) -> str:
    """Return ascending numbers in short: `0-2,5`."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][-1] == number - 1:
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    return ",".join("-".join(map(str, span)) for span in spans)
