"""What a region's spec asks for, as the protocol reads it.

The file format and its validation live in `airflow_kcr.spec`; these are the values that remain when it is found sound.
Durations are `timedelta`, instants carry a zone. docs/explanation/delivery.md says what each delivery means, and what
follows for a reset. Of start positions:

- A start position is resolved once per partition, by its first owner, and stored as the partition's initial offset;
  from then on the stored offset wins, whatever the spec says later.
- There are five: `earliest`, `latest`, `committed` (else earliest), `timestamp:…` and `duration:…` (back from when the
  log was read). An offset is none of them: Kafka decides who owns which partition, and offset 42 of one says nothing
  about another.
- Partitions found later start at their beginning, whatever the start position is. What was written into them before
  they were noticed would be skipped otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol import values
from airflow_kcr.protocol.offsets import SeekEntry, SeekSource
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import GroupPartition, Offset, format_instant

if TYPE_CHECKING:
    from airflow_kcr.protocol.observations import LogBounds, LogView


# Delivery


class Delivery(StrEnum):
    """What one group promises about each record."""

    AT_LEAST_ONCE = "at_least_once"
    """Everything since the restore point is processed again after a failure; nothing is lost. The default."""

    ALMOST_ONCE = "almost_once"
    """Only the batch in flight is processed again."""

    AT_MOST_ONCE = "at_most_once"
    """Nothing is processed twice; the start of a batch is the consumption, so the batch in flight may be lost."""

    EXACTLY_ONCE = "exactly_once"
    """Processed exactly once: the sink's own progress, stored with its output, says where to continue."""


# Sinks as the protocol sees them: what becomes of output when a region goes back (docs/explanation/delivery.md).


class SinkMode(StrEnum):
    """How a sink adds output to its table."""

    APPEND = "append"
    """Rows are added; a reset to an older place removes those beyond it."""

    UPSERT = "upsert"
    """A row replaces the one that has the same key; what it replaced is gone, so no reset can restore it."""

    @property
    def restorable(self) -> bool:
        """Whether a reset can bring the table back to what it was."""
        return self is SinkMode.APPEND


@dataclass(frozen=True, slots=True, order=True)
class UpsertSink:
    """A sink that no reset can restore, as people know it."""

    group: values.GroupId
    name: str
    table: str

    def __str__(self) -> str:
        return f"sink {self.name} of group {self.group} (table {self.table})"


# Start positions


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPosition:
    """Where a partition begins that has no initial offset yet.

    Raises:
        ConfigurationError: the instant has no zone, or lies before 1970; the duration is negative.
    """

    kind: str
    """The word that its text begins with, of the five."""

    instant: datetime | None = None
    """Of `timestamp`: the first record at or after it, or the end of the log, also where it lies in the future.

    Given in any zone, kept in UTC: equal instants are equal values, also where local clocks were turned back.
    """

    back: timedelta | None = None
    """Of `duration`: the first record at or after this long before the moment when the log is read; >= 0."""

    def __post_init__(self) -> None:
        if self.instant is not None:
            object.__setattr__(self, "instant", values.checked_instant(self.instant))
        if self.back is not None:
            values.format_duration(self.back)

    @property
    def text(self) -> str:
        """What a spec's `start:` says; `parse_start` of it is the same start position again."""
        if self.instant is not None:
            return f"{self.kind}:{format_instant(self.instant)}"
        return self.kind if self.back is None else f"{self.kind}:{values.format_duration(self.back)}"

    def time_needed(self, read_at: datetime) -> datetime | None:
        """Return the instant that must be looked up before `entry`, in UTC; None: no look-up is needed.

        Args:
            read_at: the store's clock when the log is read, as it will be in the log view.
        """
        return self.instant if self.back is None else values.back_from(read_at, self.back)

    def entry(self, partition: GroupPartition, log: LogView) -> SeekEntry:
        """Return where it lies in one partition's log, as a concrete offset inside of it.

        A committed offset that the log does not have any more, or yet, is clamped and marked.

        Args:
            partition: a partition without an initial offset.
            log: its bounds, its committed offset if there is one, and the look-up that `time_needed` asked for.

        Raises:
            KeyError: `log` was read without this partition, or without the look-up.
        """
        bounds = log.bounds[partition]
        if self.time_needed(log.read_at) is not None:
            return at_time(partition, log, SeekSource.START_POSITION)
        offset = bounds.end if self == LATEST else bounds.start
        if self == COMMITTED:
            offset = log.committed.get(partition, offset)
        return at_offset(offset, bounds, SeekSource.START_POSITION)


EARLIEST: Final = StartPosition(kind="earliest")
"""The first offset that the log still has. The default."""

LATEST: Final = StartPosition(kind="latest")
"""The end of the log: only what is written from now on."""

COMMITTED: Final = StartPosition(kind="committed")
"""What Kafka has committed for the group, else the earliest: takes over from an application that ran before."""

_ACCEPTED: Final = "earliest, latest, committed, timestamp:2026-01-01T00:00:00Z or duration:PT6H"


def parse_start(text: str) -> StartPosition:
    """Return the start position that a spec's `start:` says.

    Raises:
        ConfigurationError: it is none of the five forms, or its time or duration can't be read. An offset gets a
            message of its own.
    """
    kind, colon, value = text.partition(":")
    match kind, colon:
        case "earliest" | "latest" | "committed", "":
            return StartPosition(kind=kind)
        case "timestamp", ":":
            return StartPosition(kind=kind, instant=values.parse_instant(value))
        case "duration", ":":
            return StartPosition(kind=kind, back=values.parse_duration(value))
    if kind == "offset" or text.lstrip("+-").isdecimal():
        raise ConfigurationError(
            f"{text!r} is an offset, which is never a start position: Kafka decides which partitions a member owns, "
            f"and an offset of one means nothing in another. Use {_ACCEPTED}; a reset can seek one partition to an "
            "offset"
        )
    raise ConfigurationError(f"{text!r} is not a start position: use {_ACCEPTED}")


def at_offset(asked: int, bounds: LogBounds, source: SeekSource) -> SeekEntry:
    """Return the entry for `asked`, clamped into [start, end] and marked if the log does not have it.

    Args:
        asked: an offset; negative where a shift leads there.
        bounds: the log as it was read.
        source: where the offset comes from.
    """
    offset = Offset(min(max(asked, bounds.start), bounds.end))
    return SeekEntry(offset=offset, source=source, clamped_from=None if offset == asked else asked)


def at_time(partition: GroupPartition, log: LogView, source: SeekSource) -> SeekEntry:
    """Return the entry for the first record at or after the instant that was looked up, or else for the end.

    The answer is clamped like any offset: log start and time index are two reads, and retention may act between them.

    Raises:
        KeyError: the log view has no bounds, or no such look-up, for this partition; its reader knew what was needed.
    """
    bounds = log.bounds[partition]
    answer = log.answers[partition]
    return at_offset(bounds.end if answer.offset is None else answer.offset, bounds, source)


# Rules


class Assignor(StrEnum):
    """How Kafka spreads partitions over the members: of the client's assignors only eager ones."""

    RANGE = "range"
    ROUNDROBIN = "roundrobin"
    STICKY = "sticky"
    """Only in the preview: librdkafka has no eager sticky assignor."""

    UNIFORM = "uniform"
    """The broker's own, of `GroupProtocol.CONSUMER` alone, which also has a `range`."""


class GroupProtocol(StrEnum):
    """How a group's members agree on who owns what."""

    CLASSIC = "classic"
    """One of the members decides; each rebalance revokes everything from everyone and assigns it again."""

    CONSUMER = "consumer"
    """The broker decides (KIP-848): it takes and gives single partitions, and the others stay where they are."""


class CheckpointMode(StrEnum):
    """Who asks for the checkpoint of a scheduled boundary."""

    AUTO = "auto"
    """The region checkpoints itself at each boundary; a DAG run finds its checkpoint."""

    DAG_RUN = "dag_run"
    """Members hold at the boundary until the run asks."""


class OutOfRangePolicy(StrEnum):
    """What happens when a position is no longer inside its log; never silent."""

    FAIL = "fail"
    EARLIEST = "earliest"
    LATEST = "latest"


class ForeignConsumerPolicy(StrEnum):
    """What happens when a foreign consumer is in the group."""

    FAIL = "fail"
    WARN = "warn"


class Schedule(Protocol):
    """The instants of a region's boundaries. Implementations are pure: same question, same answer."""

    def after(self, instant: datetime) -> datetime:
        """Return the first scheduled instant strictly after `instant` (both with zone)."""
        ...

    def at_or_before(self, instant: datetime) -> datetime:
        """Return the last scheduled instant at or before `instant` (both with zone)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRules:
    """One consumer group of a region."""

    group_id: values.GroupId
    topics: tuple[values.TopicName, ...] = ()
    """Topics by name; empty where `pattern` is given."""

    pattern: str | None = None
    """A regular expression that begins a topic's name; starts with `^` and leaves the end open (librdkafka's rules)."""

    exclude: tuple[values.TopicName, ...] = ()
    """Topics by name that match `pattern` and are not read."""

    members: int = 1
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    start: StartPosition = EARLIEST
    protocol: GroupProtocol = GroupProtocol.CLASSIC
    assignor: Assignor = Assignor.RANGE
    static_membership: bool = True
    upserts: tuple[UpsertSink, ...] = ()
    """Sinks that keep no history: going back needs a person's consent."""

    holds_output: bool = False
    """Whether a member may hold output of accepted batches until a checkpoint: a sink of a user's own does, before its
    `prepare`. Then a partition on which a batch has started can't go on with another member without a reset."""

    @property
    def is_done_by_checkpoints(self) -> bool:
        """Whether only what a checkpoint has is done: a reset goes back for output that a dead process may have held.

        `at_most_once` goes back for nothing.
        """
        return self.holds_output and self.delivery is not Delivery.AT_MOST_ONCE

    def subscribes(self, topic: values.TopicName) -> bool:
        """Whether this group reads `topic`."""
        if self.pattern is not None and self.protocol is GroupProtocol.CONSUMER:
            return re.fullmatch(self.pattern, topic) is not None
        if self.pattern is not None:
            return topic not in self.exclude and re.search(self.pattern, topic) is not None
        return topic in self.topics

    def partitions(self, topics: Mapping[values.TopicName, int]) -> frozenset[GroupPartition]:
        """Return the partitions that this group reads.

        Args:
            topics: how many partitions each topic has; those that the group does not read are left out.
        """
        return frozenset(
            GroupPartition(self.group_id, topic, number)
            for topic, count in topics.items()
            if self.subscribes(topic)
            for number in range(count)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRules:
    """When checkpoints are made."""

    schedule: Schedule | None = None
    """Boundaries by time; absent: only on request, or by count."""

    records: int | None = None
    """A checkpoint after this many records, as offsets of all members counted from the restore point.

    Members that start a batch at the same moment don't see each other's: each but the first may add one.
    """

    mode: CheckpointMode = CheckpointMode.AUTO
    grace: timedelta = timedelta(seconds=2)
    """How long after a boundary its records may still be on their way, and how far the brokers' clocks may be off."""

    catchup: bool = False
    """Whether every boundary missed during an outage gets a checkpoint of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRules:
    """Which checkpoints are kept: a checkpoint beyond either limit is retired, unless `retention` protects it."""

    keep: int = 20
    """How many complete checkpoints are kept."""

    max_age: timedelta | None = None
    """How long checkpoints are kept; absent: age alone retires nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionRules:
    """Everything of a region's spec that decisions depend on."""

    groups: Mapping[values.GroupId, GroupRules]
    checkpoint: CheckpointRules = field(default_factory=CheckpointRules)
    timeouts: Timeouts = field(default_factory=Timeouts)
    max_failures: int = 5
    foreign_consumers: ForeignConsumerPolicy = ForeignConsumerPolicy.FAIL
    out_of_range: OutOfRangePolicy = OutOfRangePolicy.FAIL
    beyond_end: OutOfRangePolicy = OutOfRangePolicy.FAIL
    retention: RetentionRules = field(default_factory=RetentionRules)

    def subscribes(self, group: values.GroupId, topic: values.TopicName) -> bool:
        """Whether `group` is in the region and reads `topic`."""
        rules = self.groups.get(group)
        return rules is not None and rules.subscribes(topic)
