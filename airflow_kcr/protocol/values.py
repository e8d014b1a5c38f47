"""The words of the protocol as types: names, numbers, the places in a log; and durations and instants as text.

An **offset** is always the next one to read; there is no "last offset" anywhere in this project. Every number with a
meaning of its own is a type of its own, so that an epoch can't be handed over where a sequence is meant. Numbers that
reach the store are signed 64-bit there; `checked` refuses what would not fit.

Everything here is immutable and ordered, so that two runs over the same values take the same decisions.

An instant is ISO 8601 with a zone, and nothing else. A duration is ISO 8601 (`PT5M`, `P1DT2H`) or short (`5m`, `1d12h`,
`500ms`), by these rules:

- A duration has a fixed length, so weeks and days (of 24 hours) are the longest units. Months and years are refused:
  `M` before the `T`, and any `Y`.
- It is never negative, and never finer than a microsecond; nothing is rounded.
- ISO 8601 is upper case, each unit at most once and from long to short; only seconds may have a fraction.
- The short form is lower case, whole numbers, from long to short: `w d h m s ms us`. `m` is minutes.
- A number without a unit is refused: seconds for one reader are milliseconds for the next.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NewType, TypeVar, cast

from airflow_kcr.errors import ConfigurationError, InvalidIdentifier, NumberOutOfRange

D = TypeVar("D")

if TYPE_CHECKING:
    from dataclasses import replace as replace  # noqa: PLC0414 (mypy asks for it)
else:

    def replace(row: D, /, **changes: object) -> D:
        """Return a copy of a dataclass with some fields changed, as `dataclasses.replace` does.

        A value of many fields, as a region or a member's machine, and one of which there are many, as a claim, has no
        slots, so that its fields are copied at once: of many that takes a twentieth of the time of giving each of them
        to a constructor, of few half of it.
        """
        try:
            held = row.__dict__
        except AttributeError:
            return dataclasses.replace(row, **changes)
        copy = object.__new__(row.__class__)
        copy.__dict__.update(held, **changes)
        return copy


def drawn(kind: type[D], value: object, /, **given: object) -> D:
    """Return a dataclass of this kind: with the fields that are given, the others as the value has them by their names.

    So an event says what its row or its command does, field for field. One that neither has takes its default.
    """
    names = _field_names(cast("Any", kind)) - given.keys()
    return kind(**{name: getattr(value, name) for name in names if hasattr(value, name)}, **given)


@cache
def _field_names(kind: type) -> frozenset[str]:
    return frozenset(part.name for part in dataclasses.fields(kind))


RegionName = NewType("RegionName", str)
RegionId = NewType("RegionId", str)
"""Which region, beyond its name: made when it is declared, never again. Every trace outside the store carries it."""

UNDECLARED: Final = RegionId("")
"""The id of a region that no store has: what is built for it is checked, and never written with."""

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


class DesiredState(StrEnum):
    """What was asked of a region; a reset or start ends in it, so it survives a crash. A task may wait for it."""

    RUNNING = "running"
    """Process."""

    PAUSED = "paused"
    """Start nothing; keep claims and membership."""

    STOPPED = "stopped"
    """Checkpoint, publish, commit, then leave."""


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


def by_group(partitions: Iterable[GroupPartition]) -> dict[GroupId, dict[TopicName, list[int]]]:
    """Return the numbers of partitions by group and topic, in order."""
    found: dict[GroupId, dict[TopicName, list[int]]] = {}
    for group, topic, partition in sorted(partitions):
        found.setdefault(group, {}).setdefault(topic, []).append(partition)
    return found


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


def joined(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Return the union of `ranges` as ascending ranges that neither overlap nor touch."""
    found: list[Range] = []
    for range_ in sorted(ranges):
        if range_.from_ >= range_.to:
            continue
        if found and range_.from_ <= found[-1].to:
            found[-1] = Range(found[-1].from_, max(found[-1].to, range_.to))
        else:
            found.append(range_)
    return tuple(found)


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


# Durations and instants

_ISO: Final = re.compile(
    r"P(?:(?P<w>[0-9]+)W)?(?:(?P<d>[0-9]+)D)?"
    r"(?:T(?=[0-9])(?:(?P<h>[0-9]+)H)?(?:(?P<m>[0-9]+)M)?(?:(?P<s>[0-9]+)(?:[.,](?P<fraction>[0-9]{1,6})0*)?S)?)?"
)
_SHORT: Final = re.compile(
    r"(?:(?P<w>[0-9]+)w)?(?:(?P<d>[0-9]+)d)?(?:(?P<h>[0-9]+)h)?(?:(?P<m>[0-9]+)m)?(?:(?P<s>[0-9]+)s)?"
    r"(?:(?P<ms>[0-9]+)ms)?(?:(?P<us>[0-9]+)us)?"
)
_MICROSECONDS: Final = {
    "w": 7 * 86_400_000_000,
    "d": 86_400_000_000,
    "h": 3_600_000_000,
    "m": 60_000_000,
    "s": 1_000_000,
    "ms": 1_000,
    "us": 1,
}
_MICROSECOND: Final = timedelta(microseconds=1)
_LONGEST: Final = timedelta.max // _MICROSECOND


def parse_duration(text: str) -> timedelta:
    """Return the duration that `text` says, 0 included.

    Args:
        text: ISO 8601 or short form; surrounding space is not part of either.

    Raises:
        ConfigurationError: it is neither form, negative, of months or years, or longer than Python can hold; the
            message says which, and what is accepted.
    """
    match = (_ISO if text[:1] == "P" else _SHORT).fullmatch(text)
    found = {unit: digits for unit, digits in match.groupdict().items() if digits} if match else {}
    if not found:
        raise ConfigurationError(_why_not(text))
    # Integers throughout: a float of seconds loses microseconds from some 200 days on.
    total = int(found.pop("fraction", "0").ljust(6, "0"))
    # A number of more digits than this is too long in any unit, and Python refuses to read endless ones.
    if any(len(digits) > 30 for digits in found.values()):
        raise ConfigurationError(f"{text[:40]!r}… is longer than any duration may be ({timedelta.max.days} days)")
    total += sum(int(digits) * _MICROSECONDS[unit] for unit, digits in found.items())
    if total > _LONGEST:
        raise ConfigurationError(f"{text!r} is longer than any duration may be ({timedelta.max.days} days)")
    return total * _MICROSECOND


def format_duration(duration: timedelta) -> str:
    """Return `duration` in ISO 8601, the one canonical text: `parse_duration` of it is `duration` again.

    Args:
        duration: >= 0.

    Raises:
        ConfigurationError: it is negative.
    """
    if duration < timedelta(0):
        raise ConfigurationError(f"{duration} is negative; a duration never is")
    hours, seconds = divmod(duration.seconds, 3600)
    minutes, seconds = divmod(seconds, 60)
    fraction = f".{duration.microseconds:06}".rstrip("0") if duration.microseconds else ""
    time = (
        (f"{hours}H" if hours else "")
        + (f"{minutes}M" if minutes else "")
        + (f"{seconds}{fraction}S" if seconds or fraction else "")
    )
    days = f"{duration.days}D" if duration.days else ""
    if not days and not time:
        return "PT0S"
    return f"P{days}T{time}" if time else f"P{days}"


def _why_not(text: str) -> str:
    """Return the sentence for a text that is no duration; the likely slips have one of their own."""
    accepted = "write ISO 8601 (PT5M, P1DT2H) or short (5m, 2h, 500ms, 7d)"
    date = text.partition("T")[0]
    if "-" in text:
        return f"{text!r} has a minus; a duration is never negative: {accepted}"
    if text[:1] == "P" and any(unit in date for unit in "YM"):
        return f"{text!r} has years or months, whose length depends on when they begin; say days: {accepted}"
    if re.fullmatch(r"[0-9]+([.,][0-9]+)?", text):
        return f"{text!r} has no unit: {accepted}"
    return f"{text!r} is not a duration: {accepted}"


EPOCH_START: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""The earliest instant that a Kafka timestamp can name."""


def parse_instant(text: str) -> datetime:
    """Return the instant that `text` names, in UTC.

    Raises:
        ConfigurationError: it is not ISO 8601, has no zone, or lies before 1970.
    """
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(
            f"{text!r} is not a time: write ISO 8601 with a zone, such as 2026-01-01T00:00:00Z"
        ) from None
    return checked_instant(instant)


def format_instant(instant: datetime) -> str:
    """Return the canonical text of `instant`: `parse_instant` of it is the same instant again.

    Raises:
        ConfigurationError: it has no zone, or lies before 1970.
    """
    return checked_instant(instant).isoformat().replace("+00:00", "Z")


def checked_instant(instant: datetime) -> datetime:
    """Return `instant` in UTC if it is one that Kafka can look up.

    Raises:
        ConfigurationError: it has no zone, or lies before 1970 or beyond what a calendar of UTC can say.
    """
    if instant.utcoffset() is None:
        raise ConfigurationError(f"{instant.isoformat()} has no zone; add one, such as Z or +01:00")
    try:
        moment = instant.astimezone(UTC)
    except OverflowError:
        raise ConfigurationError(f"{instant.isoformat()} is out of the calendar") from None
    if moment < EPOCH_START:
        raise ConfigurationError(f"{instant.isoformat()} is before 1970, where Kafka's timestamps begin")
    return moment


def instant_of(field: str, value: datetime | str) -> datetime:
    """Return the instant that a field has, in UTC.

    Raises:
        ConfigurationError: as for `parse_instant`; the message begins with the field.
    """
    try:
        return checked_instant(value) if isinstance(value, datetime) else parse_instant(value)
    except ConfigurationError as error:
        raise ConfigurationError(f"{field}: {error.message}") from None


def back_from(read_at: datetime, duration: timedelta) -> datetime:
    """Return the instant `duration` before `read_at`, in UTC; not before 1970, where every log has started.

    Args:
        read_at: the store's clock when the log was read; has a zone.
        duration: >= 0.

    Raises:
        ConfigurationError: `read_at` has no zone.
    """
    now = checked_instant(read_at)
    return EPOCH_START if duration > now - EPOCH_START else now - duration


def few(items: Iterable[object], most: int = 5, separator: str = ", ") -> str:
    """Return the first few of a list as text, and how many more there are: `a, b and 3 more`."""
    texts = [str(item) for item in items]
    joint = " " if separator == ", " else separator
    return separator.join(texts[:most]) + (f"{joint}and {len(texts) - most} more" if len(texts) > most else "")
