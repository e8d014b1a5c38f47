"""Start positions: where a group begins on a partition that it has never read.

Rules:

- A start position is resolved once per partition, by its first owner, and stored as the partition's initial offset;
  from then on the stored offset wins, whatever the spec says later.
- There are five: `earliest`, `latest`, `committed` (else earliest), `timestamp:…` and `duration:…` (back from when the
  log was read). An offset is none of them: Kafka decides who owns which partition, and offset 42 of one says nothing
  about another.
- Partitions found later start at their beginning, whatever the start position is. What was written into them before
  they were noticed would be skipped otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, assert_never

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol.seek_map import SeekEntry, SeekSource
from airflow_kcr.protocol.times import (
    back_from,
    checked_instant,
    format_duration,
    format_instant,
    parse_duration,
    parse_instant,
)
from airflow_kcr.protocol.values import GroupPartition, Offset

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from airflow_kcr.protocol.observations import LogBounds, LogView
    from airflow_kcr.protocol.values import GroupPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Earliest:
    """The first offset that the log still has. The default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latest:
    """The end of the log: only what is written from now on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOrEarliest:
    """What Kafka has committed for the group, else the earliest: takes over from an application that ran before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FromTimestamp:
    """The first record at or after an instant.

    Raises:
        ConfigurationError: the instant has no zone, or lies before 1970.
    """

    instant: datetime
    """Given in any zone, kept in UTC: equal instants are equal values, also where local clocks were turned back."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "instant", checked_instant(self.instant))


@dataclass(frozen=True, slots=True, kw_only=True)
class FromDuration:
    """The first record at or after this long before the moment when the log is read.

    Raises:
        ConfigurationError: the duration is negative.
    """

    back: timedelta
    """>= 0."""

    def __post_init__(self) -> None:
        format_duration(self.back)


StartPosition = Earliest | Latest | CommittedOrEarliest | FromTimestamp | FromDuration

EARLIEST: Final = Earliest()
LATEST: Final = Latest()
COMMITTED: Final = CommittedOrEarliest()

_ACCEPTED: Final = "earliest, latest, committed, timestamp:2026-01-01T00:00:00Z or duration:PT6H"


def parse_start(text: str) -> StartPosition:
    """Return the start position that a spec's `start:` says.

    Raises:
        ConfigurationError: it is none of the five forms, or its time or duration can't be read. An offset gets a
            message of its own.
    """
    kind, colon, value = text.partition(":")
    match kind, colon:
        case "earliest", "":
            return EARLIEST
        case "latest", "":
            return LATEST
        case "committed", "":
            return COMMITTED
        case "timestamp", ":":
            return FromTimestamp(instant=parse_instant(value))
        case "duration", ":":
            return FromDuration(back=parse_duration(value))
        case "offset", _:
            raise ConfigurationError(_no_offset(text))
        case _ if text.lstrip("+-").isdecimal():
            raise ConfigurationError(_no_offset(text))
        case _:
            raise ConfigurationError(f"{text!r} is not a start position: use {_ACCEPTED}")


def format_start(start: StartPosition) -> str:
    """Return the text of a start position; `parse_start` of it is the same start position again."""
    match start:
        case Earliest():
            return "earliest"
        case Latest():
            return "latest"
        case CommittedOrEarliest():
            return "committed"
        case FromTimestamp(instant=instant):
            return f"timestamp:{format_instant(instant)}"
        case FromDuration(back=back):
            return f"duration:{format_duration(back)}"
        case _:
            assert_never(start)


def start_time_needed(start: StartPosition, read_at: datetime) -> datetime | None:
    """Return the instant that must be looked up before `resolve_start`, in UTC; None: no look-up is needed.

    Args:
        start: the group's start position.
        read_at: the store's clock when the log is read, as it will be in the log view.
    """
    match start:
        case FromTimestamp(instant=instant):
            return instant
        case FromDuration(back=back):
            return back_from(read_at, back)
        case _:
            return None


def resolve_start(start: StartPosition, partition: GroupPartition, log: LogView) -> SeekEntry:
    """Return where `start` lies in one partition's log, as a concrete offset inside of it.

    A timestamp with no record at or after it, also one in the future, is the end of the log as it was read. A
    committed offset that the log does not have any more, or yet, is clamped and marked.

    Args:
        start: the group's start position.
        partition: a partition without an initial offset.
        log: its bounds, its committed offset if there is one, and the look-up that `start_time_needed` asked for.

    Returns:
        A seek entry whose source is `START_POSITION`.

    Raises:
        KeyError: `log` was read without this partition, or without the look-up.
    """
    bounds = log.bounds[partition]
    match start:
        case Earliest():
            return at_start(bounds, SeekSource.START_POSITION)
        case Latest():
            return at_end(bounds, SeekSource.START_POSITION)
        case CommittedOrEarliest():
            committed = log.committed.get(partition)
            if committed is None:
                return at_start(bounds, SeekSource.START_POSITION)
            return at_offset(committed, bounds, SeekSource.START_POSITION)
        case FromTimestamp(instant=instant):
            return at_time(partition, instant, log, SeekSource.START_POSITION)
        case FromDuration(back=back):
            return at_time(partition, back_from(log.read_at, back), log, SeekSource.START_POSITION)
        case _:
            assert_never(start)


def discovered_later(partition: GroupPartition, log: LogView) -> SeekEntry:
    """Return where a partition begins that was found after the group's first partitions: at the start of its log.

    This holds for every start position, `latest` above all: records are written between the creation of a partition and
    its discovery, and no member has read them.

    Raises:
        KeyError: `log` was read without this partition.
    """
    return at_start(log.bounds[partition], SeekSource.START_POSITION)


def _no_offset(text: str) -> str:
    return (
        f"{text!r} is an offset, which is never a start position: Kafka decides which partitions a member owns, and an "
        f"offset of one means nothing in another. Use {_ACCEPTED}; a reset can seek one partition to an offset"
    )


def at_start(bounds: LogBounds, source: SeekSource) -> SeekEntry:
    """Return the entry for the first offset that the log still has."""
    return SeekEntry(offset=bounds.start, source=source)


def at_end(bounds: LogBounds, source: SeekSource) -> SeekEntry:
    """Return the entry for the end of the log, its last stable offset."""
    return SeekEntry(offset=bounds.end, source=source)


def at_offset(asked: int, bounds: LogBounds, source: SeekSource) -> SeekEntry:
    """Return the entry for `asked`, clamped into [start, end] and marked if the log does not have it.

    Args:
        asked: an offset; negative where a shift leads there.
        bounds: the log as it was read.
        source: where the offset comes from.
    """
    offset = Offset(min(max(asked, bounds.start), bounds.end))
    return SeekEntry(offset=offset, source=source, clamped_from=None if offset == asked else asked)


def at_time(partition: GroupPartition, instant: datetime, log: LogView, source: SeekSource) -> SeekEntry:
    """Return the entry for the first record at or after `instant`, or for the end if there is none.

    The answer is clamped like any offset: log start and time index are two reads, and retention may act between them.

    Raises:
        KeyError: the log view has no bounds, or no such look-up, for this partition; its reader knew what was needed.
    """
    bounds = log.bounds[partition]
    answer = log.times.first_at_or_after(partition, instant)
    return at_end(bounds, source) if answer.offset is None else at_offset(answer.offset, bounds, source)
