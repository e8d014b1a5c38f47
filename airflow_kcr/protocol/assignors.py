"""Who would own what: Kafka's classic assignors as pure functions, for the preview before a group is scaled.

Rules, as Apache Kafka defines them (no racks):

- `range`: topic by topic. The partitions of a topic in their order are dealt to its subscribers in theirs, in
  contiguous ranges; where they don't divide evenly, the first subscribers get one more.
- `roundrobin`: all partitions, by topic and number, go around all members in their order; a member that is not
  subscribed to the topic is stepped over.
- `sticky`: see `sticky_assignor`.
- Topics without a subscriber, and topics that don't exist or have no partition, are left out. A member may end up
  with nothing.

Members and topics are ordered as Java orders strings. Kafka orders static members by `group.instance.id` and puts them
before dynamic ones; for a preview, give each member the name that sorts.
"""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, TypeAlias

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol.rules import Assignor
from airflow_kcr.protocol.sticky_assignor import assign_sticky
from airflow_kcr.protocol.values import TopicName, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Set

Members: TypeAlias = "Mapping[str, Set[TopicName]]"
"""Each member's name and the topics that it subscribes to."""

Assignment: TypeAlias = "dict[str, tuple[TopicPartition, ...]]"
"""Each member's partitions, in the order in which they were dealt; every member has an entry."""


def assign(
    assignor: Assignor,
    members: Members,
    topics: Mapping[TopicName, int],
    previous: Mapping[str, Iterable[TopicPartition]] | None = None,
) -> Assignment:
    """Return who owns what, members in their order.

    Args:
        assignor: which of Kafka's definitions.
        members: names and subscriptions; may be empty.
        topics: how many partitions each topic has, >= 0; topics without a subscriber are ignored.
        previous: the last assignment, if there is one; only `sticky` uses it.

    Raises:
        ConfigurationError: a partition count is negative.
    """
    negative = [f"{topic}: {count}" for topic, count in topics.items() if count < 0]
    if negative:
        raise ConfigurationError(f"partition counts are never negative, got {', '.join(negative)}")
    ordered = {name: members[name] for name in sorted(members, key=java_order)}
    subscribed = set[TopicName]().union(*ordered.values())
    counts = {topic: topics[topic] for topic in sorted(subscribed, key=java_order) if topics.get(topic)}
    match assignor:
        case Assignor.RANGE:
            return _assign_range(ordered, counts)
        case Assignor.ROUNDROBIN:
            return _assign_roundrobin(ordered, counts)
        case Assignor.STICKY:
            return assign_sticky(ordered, counts, previous or {})


def assignment_from_json(document: object, assignor: Assignor) -> dict[str, list[list[str | int]]]:
    """Return the answer of `kcr group assignment` to its input, both ready for `json`.

    Args:
        document: `{"members": {"C0": ["t0", "t1"]}, "topics": {"t0": 3, "t1": 3}}`; for `sticky` also an optional
            `"previous"` in the form of the answer.
        assignor: which of Kafka's definitions.

    Returns:
        `{"C0": [["t0", 0], …]}`.

    Raises:
        ConfigurationError: the document is not of that form; the message names the field.
    """
    if not isinstance(document, dict) or not {"members", "topics"} <= document.keys() <= {
        "members",
        "topics",
        "previous",
    }:
        raise ConfigurationError('the input must be {"members": {…}, "topics": {…}}, and may have "previous": {…}')
    members = {
        name: frozenset(TopicName(topic) for topic in _texts(listed, f"members.{name}"))
        for name, listed in _mapping(document["members"], "members").items()
    }
    topics = {
        TopicName(topic): _count(count, f"topics.{topic}")
        for topic, count in _mapping(document["topics"], "topics").items()
    }
    previous = {
        name: [_partition(row, f"previous.{name}") for row in _list(listed, f"previous.{name}")]
        for name, listed in _mapping(document.get("previous", {}), "previous").items()
    }
    assignment = assign(assignor, members, topics, previous)
    return {name: [[tp.topic, tp.partition] for tp in owned] for name, owned in assignment.items()}


def java_order(text: str) -> bytes:
    """Return a key that sorts as Java's `String.compareTo` does: by UTF-16 code units, not by code points."""
    return text.encode("utf-16-be", "surrogatepass")


def _assign_range(members: Members, counts: Mapping[TopicName, int]) -> Assignment:
    assignment: dict[str, list[TopicPartition]] = {name: [] for name in members}
    for topic, count in counts.items():
        subscribers = [name for name, subscribed in members.items() if topic in subscribed]
        share, extra = divmod(count, len(subscribers))
        begin = 0
        for place, name in enumerate(subscribers):
            end = begin + share + (place < extra)
            assignment[name] += [TopicPartition(topic, number) for number in range(begin, end)]
            begin = end
    return {name: tuple(owned) for name, owned in assignment.items()}


def _assign_roundrobin(members: Members, counts: Mapping[TopicName, int]) -> Assignment:
    assignment: dict[str, list[TopicPartition]] = {name: [] for name in members}
    around = cycle(members)
    for topic, count in counts.items():
        for number in range(count):
            owner = next(name for name in around if topic in members[name])
            assignment[owner].append(TopicPartition(topic, number))
    return {name: tuple(owned) for name, owned in assignment.items()}


def _mapping(value: object, field: str) -> dict[str, object]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ConfigurationError(f"{field} must be an object, got {value!r:.100}")
    return value


def _list(value: object, field: str) -> list[object]:
    if not isinstance(value, list):
        raise ConfigurationError(f"{field} must be a list, got {value!r:.100}")
    return value


def _texts(value: object, field: str) -> list[str]:
    texts = [text for text in _list(value, field) if isinstance(text, str)]
    if len(texts) != len(_list(value, field)):
        raise ConfigurationError(f"{field} must be a list of topics, got {value!r:.100}")
    return texts


def _count(value: object, field: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ConfigurationError(f"{field} must be a number of partitions, got {value!r:.100}")
    return value


def _partition(value: object, field: str) -> TopicPartition:
    match value:
        case [str(topic), int(number)] if not isinstance(number, bool):
            return TopicPartition(TopicName(topic), number)
    raise ConfigurationError(f'{field} must be a list of ["topic", partition], got {value!r:.100}')
