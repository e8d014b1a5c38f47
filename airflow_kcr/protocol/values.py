"""The words of the protocol as types: names, numbers and the places in a log.

An **offset** is always the next one to read; there is no "last offset" anywhere in this project. Every number with a
meaning of its own is a type of its own, so that an epoch can't be handed over where a sequence is meant. Numbers that
reach the store are signed 64-bit there; `checked` refuses what would not fit.

Everything here is immutable and ordered, so that two runs over the same values take the same decisions.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, NewType, TypeVar

from airflow_kcr.errors import InvalidIdentifier, NumberOutOfRange

D = TypeVar("D")

if TYPE_CHECKING:
    from dataclasses import replace as replace  # noqa: PLC0414 (mypy asks for it)
else:

    def replace(row: D, /, **changes: object) -> D:
        """Return a copy of a dataclass with some fields changed, as `dataclasses.replace` does.

        A value of many fields, as a region or a member's machine, has no slots, so that its fields are copied at once:
        that takes a twentieth of the time of giving each of them to a constructor.
        """
        if not hasattr(row, "__dict__"):
            return dataclasses.replace(row, **changes)
        copy = object.__new__(type(row))
        copy.__dict__.update(row.__dict__, **changes)
        return copy


RegionName = NewType("RegionName", str)
GroupId = NewType("GroupId", str)
TopicName = NewType("TopicName", str)

ClusterId = NewType("ClusterId", str)
"""What a Kafka cluster calls itself, by whatever address it is reached."""

NO_CLUSTER: Final = ClusterId("")
"""Of a group whose cluster is not known yet."""

TopicId = NewType("TopicId", str)
"""What the broker calls the topic internally; changes when a topic is deleted and created again. Empty: not known."""

Offset = NewType("Offset", int)
"""The next offset to read, >= 0."""

Epoch = NewType("Epoch", int)
"""`region_epoch`: the fencing token, +1 at every start, kill and reset attempt."""

Timeline = NewType("Timeline", int)
"""+1 whenever a seek map is not what the automatic reset would have used."""

CheckpointNumber = NewType("CheckpointNumber", int)
"""Numbers checkpoints and resets; each burns one, none is ever used twice."""

Incarnation = NewType("Incarnation", int)
"""Counts the starts of one member."""

AssignmentId = NewType("AssignmentId", int)
"""Counts the assignments one consumer instance received, so that two equal ones at different times stay distinct."""

EventNumber = NewType("EventNumber", int)
"""Position of an event in a region's history, from 1; commit order."""

BatchId = NewType("BatchId", str)
RequestId = NewType("RequestId", str)

MAX_NUMBER: Final = 2**63 - 1
"""The largest number the store can hold."""

_REGION = re.compile(r"[a-z0-9_-]{1,100}")
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class TopicPartition(NamedTuple):
    """One log: a topic's name and the number of a partition in it, from 0."""

    topic: TopicName
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class GroupPartition(NamedTuple):
    """One log as consumed by one group: what claims, offsets and seek maps are keyed by."""

    group: GroupId
    topic: TopicName
    partition: int

    @property
    def topic_partition(self) -> TopicPartition:
        """The log itself."""
        return TopicPartition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.group}:{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True, order=True)
class MemberId:
    """One member of a region: its group and its index in it, from 0; stable over restarts."""

    group: GroupId
    index: int

    def __str__(self) -> str:
        return f"{self.group}[{self.index}]"


class Range(NamedTuple):
    """Records [from_, to) of one partition: `from_` is the first one read, `to` the next one after the last.

    Raises nothing by itself; `checked_range` refuses what is not a range.
    """

    from_: Offset
    to: Offset

    @property
    def width(self) -> int:
        """How many offsets the range spans; at least the number of records in it (markers, compaction)."""
        return self.to - self.from_

    def __str__(self) -> str:
        return f"[{self.from_}, {self.to})"


def checked(number: int, what: str) -> int:
    """Return `number` if the store can hold it.

    Args:
        number: any count, offset or id that will be stored.
        what: its name for the message.

    Raises:
        NumberOutOfRange: it is negative or above `MAX_NUMBER`.
    """
    if not 0 <= number <= MAX_NUMBER:
        raise NumberOutOfRange(f"{what} is {number}; it must be between 0 and {MAX_NUMBER}")
    return number


def checked_range(range_: Range, where: object) -> Range:
    """Return `range_` if it is one: 0 <= from < to, and the store can hold it.

    Args:
        range_: offsets [from, to).
        where: the partition, for the message.

    Raises:
        NumberOutOfRange: an offset is negative, too large, or the range is empty or reversed.
    """
    if 0 <= range_.from_ < range_.to <= MAX_NUMBER:  # nearly always, and then there is nothing to say
        return range_
    checked(range_.from_, f"the begin of the range of {where}")
    checked(range_.to, f"the end of the range of {where}")
    raise NumberOutOfRange(f"{where}: {range_} holds no record; leave empty ranges out")


def region_name(text: str) -> RegionName:
    """Return `text` as a region's name: 1 to 100 of `a-z 0-9 _ -`.

    Raises:
        InvalidIdentifier: it has other characters, or is too long.
    """
    if not _REGION.fullmatch(text):
        raise InvalidIdentifier(f"{text!r} is not a region's name: use 1 to 100 of a-z, 0-9, '_' and '-'")
    return RegionName(text)


def topic_name(text: str) -> TopicName:
    """Return `text` as a topic's name, by Kafka's own rule: 1 to 249 of `a-z A-Z 0-9 . _ -`, not `.` or `..`.

    Raises:
        InvalidIdentifier: Kafka would refuse it.
    """
    if not _TOPIC.fullmatch(text) or text in {".", ".."}:
        raise InvalidIdentifier(f"{text!r} is not a topic's name: Kafka takes 1 to 249 of a-z, A-Z, 0-9, '.', '_', '-'")
    return TopicName(text)


def group_id(text: str) -> GroupId:
    """Return `text` as a group id: 1 to 255 printable characters without a leading or trailing space.

    Kafka accepts any string; control characters, NUL and surrogates would not survive Postgres, a terminal or a CSV.

    Raises:
        InvalidIdentifier: it is empty, too long, or has such characters.
    """
    if not 1 <= len(text) <= 255 or not text.isprintable() or text.strip() != text:
        raise InvalidIdentifier(
            f"{text!r} is not a usable group id: 1 to 255 printable characters, no space at either end"
        )
    return GroupId(text)
