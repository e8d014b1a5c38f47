"""What a region's spec asks for, as the protocol reads it.

The file format and its validation live in `airflow_kcr.spec`; these are the values that remain when it is found sound.
Durations are `timedelta`, instants carry a zone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol

from airflow_kcr.protocol.delivery import Delivery, UpsertSink
from airflow_kcr.protocol.start_positions import EARLIEST, StartPosition
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import GroupId, GroupPartition, TopicName


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
    HOLD = "hold"
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

    group_id: GroupId
    topics: tuple[TopicName, ...] = ()
    """Topics by name; empty where `pattern` is given."""

    pattern: str | None = None
    """A regular expression that begins a topic's name; starts with `^` and leaves the end open (librdkafka's rules)."""

    exclude: tuple[TopicName, ...] = ()
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

    def subscribes(self, topic: TopicName) -> bool:
        """Whether this group reads `topic`."""
        if self.pattern is not None and self.protocol is GroupProtocol.CONSUMER:
            return re.fullmatch(self.pattern, topic) is not None
        if self.pattern is not None:
            return topic not in self.exclude and re.search(self.pattern, topic) is not None
        return topic in self.topics

    def partitions(self, topics: Mapping[TopicName, int]) -> frozenset[GroupPartition]:
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
    """Which checkpoints are kept: a checkpoint beyond either limit is retired, unless `retirement` protects it."""

    keep: int = 20
    """How many complete checkpoints are kept."""

    max_age: timedelta | None = None
    """How long checkpoints are kept; absent: age alone retires nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionRules:
    """Everything of a region's spec that decisions depend on."""

    groups: Mapping[GroupId, GroupRules]
    checkpoint: CheckpointRules = field(default_factory=CheckpointRules)
    timeouts: Timeouts = field(default_factory=Timeouts)
    max_failures: int = 5
    foreign_consumers: ForeignConsumerPolicy = ForeignConsumerPolicy.FAIL
    out_of_range: OutOfRangePolicy = OutOfRangePolicy.FAIL
    beyond_end: OutOfRangePolicy = OutOfRangePolicy.FAIL
    retention: RetentionRules = field(default_factory=RetentionRules)

    def subscribes(self, group: GroupId, topic: TopicName) -> bool:
        """Whether `group` is in the region and reads `topic`."""
        rules = self.groups.get(group)
        return rules is not None and rules.subscribes(topic)
