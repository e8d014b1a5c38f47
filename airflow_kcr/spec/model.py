"""The region spec as values: the same fields as the file, frozen, and sound.

A `RegionSpec` that exists has no findings, whether a file was read or a program built it: its construction checks it
as a whole (`checks`). What the file leaves out has the default written here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final, Self

from airflow_kcr.errors import SpecError
from airflow_kcr.kafka_settings import KafkaSettings
from airflow_kcr.protocol.delivery import Delivery
from airflow_kcr.protocol.rules import (
    Assignor,
    CheckpointMode,
    CheckpointRules,
    ForeignConsumerPolicy,
    GroupRules,
    OutOfRangePolicy,
    RegionRules,
    RetentionRules,
    Schedule,
)
from airflow_kcr.protocol.sinks import UpsertSink
from airflow_kcr.protocol.start_positions import EARLIEST, StartPosition
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import GroupId, TopicName
from airflow_kcr.schedules import CronSchedule, Every
from airflow_kcr.spec.checks import findings_of
from airflow_kcr.spec.findings import path_text
from airflow_kcr.spec.sinks import SinkSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """One consumer group of the region. It reads `topics`, or what matches `pattern`."""

    group_id: str
    pipeline: str
    """`module:function`, or `path/to/file.py:function`."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    """A regular expression that begins a topic's name: starts with `^`, and leaves the end open as librdkafka does."""

    members: int = 1
    start: StartPosition = EARLIEST
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    assignor: Assignor | None = None
    """None: `effective_assignor` chooses."""

    kafka: Mapping[str, str] | None = None
    """Client settings where this group's cluster is another one; they replace the region's altogether."""

    kafka_conn_id: str | None = None
    static_membership: bool = True
    sinks: tuple[SinkSpec, ...] = ()
    """Where its pipeline writes to; in the file a mapping of names."""

    def __post_init__(self) -> None:
        topics: object = self.topics  # a lone text, as no type checker would allow: else each letter is a topic
        object.__setattr__(self, "topics", (topics,) if isinstance(topics, str) else tuple(self.topics))
        object.__setattr__(self, "kafka", _settings(self.kafka))
        object.__setattr__(self, "sinks", tuple(sorted(self.sinks, key=lambda sink: sink.name)))

    @property
    def effective_assignor(self) -> Assignor:
        """How partitions are spread: as asked, else `range`, and `roundrobin` where `range` would pile them up.

        `range` spreads each topic by itself, so the first members get the first partitions of every topic.
        """
        if self.assignor is not None:
            return self.assignor
        return Assignor.RANGE if self.pattern is None and len(self.topics) == 1 else Assignor.ROUNDROBIN

    def rules(self) -> GroupRules:
        """Return what the protocol decides by."""
        return GroupRules(
            group_id=GroupId(self.group_id),
            topics=tuple(TopicName(topic) for topic in self.topics),
            pattern=self.pattern,
            members=self.members,
            delivery=self.delivery,
            start=self.start,
            assignor=self.effective_assignor,
            static_membership=self.static_membership,
            upserts=tuple(
                UpsertSink(GroupId(self.group_id), sink.name, sink.table or "")
                for sink in self.sinks
                if not sink.mode.restorable
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSpec:
    """When checkpoints are made: by one of `every`, `cron` and `records`, or only on request."""

    every: timedelta | None = None
    """Aligned to 1970-01-01T00:00Z."""

    cron: str | None = None
    records: int | None = None
    """Offsets counted from the restore point; only where the region has one member in total."""

    timezone: str = "UTC"
    """Whose clock `cron` goes by."""

    request: CheckpointMode = CheckpointMode.AUTO
    grace: timedelta = timedelta(seconds=2)
    catchup: bool = False

    @property
    def schedule(self) -> Schedule | None:
        """The instants of the boundaries; None: there are none."""
        if self.every is not None:
            return Every(self.every)
        return None if self.cron is None else CronSchedule(self.cron, self.timezone)

    def rules(self) -> CheckpointRules:
        """Return what the protocol decides by."""
        return CheckpointRules(
            schedule=self.schedule,
            records=self.records,
            mode=self.request,
            grace=self.grace,
            catchup=self.catchup,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSpec:
    """How large batches are, and how long one may take."""

    target: timedelta = timedelta(seconds=2)
    """How long a batch should take; its size adapts to that."""

    linger: timedelta = timedelta(0)
    """How long fewer than `min_records` are waited with, before a boundary or a checkpoint wants them."""

    min_records: int = 1_000
    max_records: int = 2_000_000
    timeout: timedelta = timedelta(minutes=2)


FOREVER: Final = timedelta.max
"""The age at which nothing of a history is dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySpec:
    """When certified history leaves the store, and where it goes. No decision depends on it."""

    keep: timedelta = timedelta(days=90)
    """How old everything in a certificate must be before it may be closed; `FOREVER`: nothing ever is."""

    archive: str | None = None
    """The folder of the archive files; None: nothing is dropped, whatever its age."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionSpec:
    """A region as its owner wants it.

    Raises:
        SpecError: with everything that is wrong, each with its path.
    """

    region: str
    groups: tuple[GroupSpec, ...]
    kafka: Mapping[str, str] | None = None
    """librdkafka's settings, `${NAME}` unresolved; or `kafka_conn_id`."""

    kafka_conn_id: str | None = None
    checkpoint: CheckpointSpec = field(default_factory=CheckpointSpec)
    batch: BatchSpec = field(default_factory=BatchSpec)
    timeouts: Timeouts = field(default_factory=Timeouts)
    """All times; its `batch` is always `batch.timeout`, whatever it was given as."""

    max_failures: int = 5
    """How many failures in a row are answered by a reset; one more halts the region."""

    foreign_consumers: ForeignConsumerPolicy = ForeignConsumerPolicy.FAIL
    out_of_range: OutOfRangePolicy = OutOfRangePolicy.FAIL
    beyond_end: OutOfRangePolicy = OutOfRangePolicy.FAIL
    retention: RetentionRules = field(default_factory=RetentionRules)
    history: HistorySpec = field(default_factory=HistorySpec)

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", tuple(self.groups))
        object.__setattr__(self, "kafka", _settings(self.kafka))
        object.__setattr__(self, "timeouts", replace(self.timeouts, batch=self.batch.timeout))
        findings = tuple((path_text(path), text) for path, text in findings_of(self))
        if findings:
            raise SpecError(findings)

    def group(self, group_id: str) -> GroupSpec:
        """Return the group of that id.

        Raises:
            KeyError: the region has none.
        """
        for group in self.groups:
            if group.group_id == group_id:
                return group
        raise KeyError(group_id)

    def cluster_of(self, group_id: str) -> tuple[Mapping[str, str] | None, str | None]:
        """Return how a group's cluster is reached: its client settings or its connection id, the other being None.

        Raises:
            KeyError: the region has no such group.
        """
        group = self.group(group_id)
        if group.kafka is not None or group.kafka_conn_id is not None:
            return group.kafka, group.kafka_conn_id
        return self.kafka, self.kafka_conn_id

    def rules(self) -> RegionRules:
        """Return what the protocol decides by."""
        return RegionRules(
            groups={GroupId(group.group_id): group.rules() for group in self.groups},
            checkpoint=self.checkpoint.rules(),
            timeouts=self.timeouts,
            max_failures=self.max_failures,
            foreign_consumers=self.foreign_consumers,
            out_of_range=self.out_of_range,
            beyond_end=self.beyond_end,
            retention=self.retention,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the spec as JSON values, defaults written out, so that a later default doesn't change it.

        What is None is left out; Kafka settings keep their references. `from_json` of it is equal to this.
        """
        from airflow_kcr.spec.json_form import to_json

        return to_json(self)

    def to_json_text(self) -> str:
        """Return the one text of `to_json`: sorted keys, no spaces. Equal specs have equal texts."""
        from airflow_kcr.spec.json_form import to_json_text

        return to_json_text(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | str) -> Self:
        """Return the spec that JSON values, or a JSON text, say; what is left out has its default.

        Raises:
            SpecError: with everything that is wrong, each with its path.
        """
        from airflow_kcr.spec.json_form import from_json

        return from_json(value, cls)


def _settings(settings: Mapping[str, str] | None) -> KafkaSettings | None:
    return None if settings is None else KafkaSettings(settings)
