"""Every metric: its name, kind, unit, labels, what it says, and how it is read from what is known of a region.

The names of lag are those that dashboards of kafka-lag-exporter look for; all others begin with `kcr_`. A value that is
not known has no sample: it is absent, and never 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Generic, TypeAlias, TypeVar

from airflow_kcr.api.checkpoint_stats import phases
from airflow_kcr.api.checkpoints import Reach
from airflow_kcr.api.lag import GroupLag, RegionLag
from airflow_kcr.api.partitions import Lag
from airflow_kcr.protocol.member.state import State
from airflow_kcr.protocol.region import boundaries, coverage, retention
from airflow_kcr.protocol.region.lag import LagVerdict
from airflow_kcr.protocol.region.liveness import Liveness
from airflow_kcr.protocol.region.rows import Checkpoint, RegionState
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.region.waits import Rule
from airflow_kcr.protocol.values import NO_CLUSTER, GroupId, RegionName
from airflow_kcr.runtime.metrics import UNKNOWN, Counts, Snapshot

F = TypeVar("F")

MOST_PARTITIONS: Final = 1_000
"""Above this number of partitions, a region has no series for each of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionFacts:
    """What is known of a region at one moment."""

    region: Region
    now: datetime
    liveness: Liveness
    lag: RegionLag | None
    """None: Kafka could not be asked."""

    reach: Reach | None = None
    """Whether retention has passed the restore point, and when it will; None: it is no checkpoint."""

    replayed: int | None = None
    """Offsets processed again because of resets; None: not counted."""

    with_partitions: bool = True
    """Whether each partition is to have series of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberFacts:
    """What a process knows of one of its members at one moment."""

    region: RegionName
    snapshot: Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFacts:
    """What a task of Airflow knows when it ends."""

    region: RegionName
    checkpoint: Checkpoint | None = None
    """With which it ends."""

    rewound: int | None = None
    """Offsets that a reset, with which it ends, went back; None: there is none."""


class Unit(StrEnum):
    """What a value counts."""

    OFFSETS = "offsets"
    SECONDS = "seconds"
    NUMBER = "number"
    STATE = "0 or 1"


Sample: TypeAlias = tuple[tuple[str, ...], float]
"""The values of the labels, and the value."""


@dataclass(frozen=True, slots=True)
class Metric(Generic[F]):
    """One metric, a gauge; or a counter, if its name ends with `_total`."""

    name: str
    unit: Unit
    labels: tuple[str, ...]
    help: str
    read: Callable[[F], Iterator[Sample]]

    @property
    def is_counter(self) -> bool:
        """Whether it only grows, but for a restart."""
        return self.name.endswith("_total")


_OF_MEMBER: Final = ("region", "group", "member")


def _of_partition(name: str, unit: Unit, help_: str, value: Callable[[Lag], float | None]) -> Metric[RegionFacts]:
    def read(facts: RegionFacts) -> Iterator[Sample]:
        if facts.lag is None or not facts.with_partitions or len(facts.lag.partitions) > MOST_PARTITIONS:
            return
        for row in facts.lag.partitions:
            found = value(row)
            if found is not None:
                group, topic, number = row.partition
                yield (_cluster(facts, group), group, topic, str(number)), found

    return Metric(name, unit, ("cluster_name", "group", "topic", "partition"), help_, read)


def _of_group(name: str, unit: Unit, help_: str, value: Callable[[GroupLag], float | None]) -> Metric[RegionFacts]:
    def read(facts: RegionFacts) -> Iterator[Sample]:
        for group in () if facts.lag is None else facts.lag.groups:
            found = value(group)
            if found is not None:
                yield (_cluster(facts, group.group), group.group), found

    return Metric(name, unit, ("cluster_name", "group"), help_, read)


def _of_region(name: str, unit: Unit, help_: str, value: Callable[[RegionFacts], float | None]) -> Metric[RegionFacts]:
    return Metric(name, unit, ("region",), help_, _single(lambda facts: (facts.region.name,), value))


def _of_member(name: str, unit: Unit, help_: str, value: Callable[[Snapshot], float | None]) -> Metric[MemberFacts]:
    return Metric(name, unit, _OF_MEMBER, help_, _single(_who, lambda facts: value(facts.snapshot)))


def _of_task(name: str, unit: Unit, help_: str, value: Callable[[TaskFacts], float | None]) -> Metric[TaskFacts]:
    return Metric(name, unit, ("region",), help_, _single(lambda facts: (facts.region,), value))


def _single(
    labels: Callable[[F], tuple[str, ...]], value: Callable[[F], float | None]
) -> Callable[[F], Iterator[Sample]]:
    def read(facts: F) -> Iterator[Sample]:
        found = value(facts)
        if found is not None:
            yield labels(facts), found

    return read


def _cluster(facts: RegionFacts, group: GroupId) -> str:
    return facts.region.clusters.get(group, NO_CLUSTER)


def _seconds(time: timedelta | None) -> float | None:
    return None if time is None else time.total_seconds()


def _checkpoint_age(facts: RegionFacts) -> float | None:
    checkpoint = facts.region.restore_checkpoint
    at = None if checkpoint is None else checkpoint.published_at
    return None if at is None else (facts.now - at).total_seconds()


def _states(facts: RegionFacts) -> Iterator[Sample]:
    for state in RegionState:
        yield (facts.region.name, str(state)), float(facts.region.state is state)


def _waits(facts: RegionFacts) -> Iterator[Sample]:
    for rule in Rule:
        yield (facts.region.name, str(rule)), float(sum(wait.rule is rule for wait in facts.liveness.waits))


def _verdicts(facts: RegionFacts) -> Iterator[Sample]:
    for group in () if facts.lag is None else facts.lag.groups:
        for verdict in LagVerdict:
            yield (facts.region.name, group.group, str(verdict)), float(group.finding.verdict is verdict)


def _members(facts: RegionFacts, *, present: bool) -> Iterator[Sample]:
    for group in sorted(facts.region.rules.groups):
        own = [member for member in coverage.expected_members(facts.region) if member.group == group]
        count = sum(facts.region.is_live(member, facts.now) for member in own) if present else len(own)
        yield (facts.region.name, group), float(count)


def _durations(facts: RegionFacts) -> Iterator[Sample]:
    newest = retention.newest_usable(facts.region)
    for phase, took in phases(newest).items() if newest is not None else ():
        yield (facts.region.name, str(phase)), took.total_seconds()


def _retention(facts: RegionFacts) -> float | None:
    if facts.reach is None or facts.reach.is_unreachable:
        return None if facts.reach is None else 0.0
    at = facts.reach.overtaken_at
    return None if at is None else max((at - facts.now).total_seconds(), 0.0)


def _who(facts: MemberFacts) -> tuple[str, ...]:
    member = facts.snapshot.machine.member
    return facts.region, member.group, str(member.index)


def _member_states(facts: MemberFacts) -> Iterator[Sample]:
    for state in State:
        yield (*_who(facts), str(state)), float(facts.snapshot.machine.state is state)


FAILURES: Final[dict[str, Callable[[Counts], int]]] = {
    "batch": lambda counts: counts.failed_batches,
    "discarded_batch": lambda counts: counts.discarded_batches,
    "commit": lambda counts: counts.failed_commits,
    "store": lambda counts: counts.store_losses,
    "complaint": lambda counts: counts.troubles,
}
"""What failed, and how often it did."""


def _failures(facts: MemberFacts) -> Iterator[Sample]:
    for cause, count in FAILURES.items():
        yield (*_who(facts), cause), float(count(facts.snapshot.counts))


def _lag_of_member(snapshot: Snapshot) -> float | None:
    return None if UNKNOWN in snapshot.lag.values() else float(sum(snapshot.lag.values()))


METRICS: Final[tuple[Metric[RegionFacts], ...]] = (
    _of_partition(
        "kafka_consumergroup_group_lag",
        Unit.OFFSETS,
        "Offsets from the position to the last stable offset; 0 if only markers or gaps are left.",
        lambda row: row.lag,
    ),
    _of_partition(
        "kafka_consumergroup_group_lag_seconds",
        Unit.SECONDS,
        "Age of the first record to process.",
        lambda row: _seconds(row.behind),
    ),
    _of_partition(
        "kafka_consumergroup_group_offset",
        Unit.OFFSETS,
        "Committed offset, which moves at checkpoints only.",
        lambda row: row.committed,
    ),
    _of_partition("kafka_partition_latest_offset", Unit.OFFSETS, "Last stable offset.", lambda row: row.log_end),
    _of_group(
        "kafka_consumergroup_group_sum_lag",
        Unit.OFFSETS,
        "Lag of all partitions of a group.",
        lambda group: group.records,
    ),
    _of_group(
        "kafka_consumergroup_group_max_lag",
        Unit.OFFSETS,
        "Largest lag of a partition of a group.",
        lambda group: group.largest,
    ),
    _of_group(
        "kafka_consumergroup_group_max_lag_seconds",
        Unit.SECONDS,
        "Age of the oldest record that a group has to process.",
        lambda group: _seconds(group.behind),
    ),
    Metric(
        "kcr_lag_verdict",
        Unit.STATE,
        ("region", "group", "verdict"),
        "1 for the verdict on a group, 0 for the others.",
        _verdicts,
    ),
    _of_region(
        "kcr_region_kafka_up",
        Unit.STATE,
        "Whether the brokers answered; if not, the region has no value that only they know.",
        lambda facts: float(facts.lag is not None),
    ),
    Metric(
        "kcr_region_state", Unit.STATE, ("region", "state"), "1 for the state of a region, 0 for the others.", _states
    ),
    _of_region(
        "kcr_region_stalled",
        Unit.STATE,
        "Whether a region waits for something for longer than it may.",
        lambda facts: float(bool(facts.liveness.stalled)),
    ),
    Metric("kcr_region_waits", Unit.NUMBER, ("region", "rule"), "What a region waits for, by rule.", _waits),
    _of_region(
        "kcr_batch_failures_in_a_row",
        Unit.NUMBER,
        "Resets for failed batches since a batch last succeeded.",
        lambda facts: float(facts.region.failures),
    ),
    Metric(
        "kcr_members_expected",
        Unit.NUMBER,
        ("region", "group"),
        "Members that the spec asks for.",
        lambda facts: _members(facts, present=False),
    ),
    Metric(
        "kcr_members_present",
        Unit.NUMBER,
        ("region", "group"),
        "Of those, members that hold a lease.",
        lambda facts: _members(facts, present=True),
    ),
    _of_region(
        "kcr_checkpoint_age_seconds",
        Unit.SECONDS,
        "Time since the newest current checkpoint was published.",
        _checkpoint_age,
    ),
    _of_region(
        "kcr_checkpoint_overdue_seconds",
        Unit.SECONDS,
        "Time since a boundary passed without a checkpoint; 0 if none is overdue.",
        lambda facts: _seconds(boundaries.overdue(facts.region, facts.now) or timedelta(0)),
    ),
    Metric(
        "kcr_checkpoint_duration_seconds",
        Unit.SECONDS,
        ("region", "phase"),
        "How long each phase of the newest complete checkpoint took: `drain`, from its opening or its boundary until "
        "all members had contributed; `publish`, until all sinks showed it.",
        _durations,
    ),
    _of_region(
        "kcr_restore_point_retention_seconds",
        Unit.SECONDS,
        "Estimated time until retention deletes a record that a reset to the restore point needs; 0 if it has.",
        _retention,
    ),
    _of_region(
        "kcr_resets_total",
        Unit.NUMBER,
        "Attempts of resets, the one of each start among them: the region's epoch.",
        lambda facts: float(facts.region.epoch),
    ),
    _of_region(
        "kcr_reset_replayed_records_total",
        Unit.OFFSETS,
        "Offsets that were processed again because of resets, of those that the exporter has seen.",
        lambda facts: facts.replayed,
    ),
)
"""Those of a region, which `kcr export` serves."""

MEMBER_METRICS: Final[tuple[Metric[MemberFacts], ...]] = (
    Metric(
        "kcr_member_state",
        Unit.STATE,
        (*_OF_MEMBER, "state"),
        "1 for the state of a member, 0 for the others.",
        _member_states,
    ),
    _of_member(
        "kcr_member_partitions",
        Unit.NUMBER,
        "Partitions that a member has claimed.",
        lambda one: len(one.machine.positions),
    ),
    _of_member(
        "kcr_member_lag",
        Unit.OFFSETS,
        "Offsets from its positions to the ends of its logs, as it last read them.",
        _lag_of_member,
    ),
    _of_member(
        "kcr_batches_total", Unit.NUMBER, "Batches that the store has accepted.", lambda one: one.counts.batches
    ),
    _of_member("kcr_batch_records_total", Unit.OFFSETS, "Offsets of those batches.", lambda one: one.counts.records),
    _of_member(
        "kcr_batch_seconds_total",
        Unit.SECONDS,
        "Time in batches, whatever became of them.",
        lambda one: one.counts.batch_time.total_seconds(),
    ),
    _of_member(
        "kcr_member_checkpoints_total",
        Unit.NUMBER,
        "Checkpoints that a member has contributed to.",
        lambda one: one.counts.checkpoints,
    ),
    _of_member(
        "kcr_member_longest_drain_seconds",
        Unit.SECONDS,
        "The longest time that a member has taken to stop at a checkpoint and contribute.",
        lambda one: _seconds(one.counts.longest_drain),
    ),
    _of_member(
        "kcr_rebalances_total",
        Unit.NUMBER,
        "Rebalances of its group that a member has taken part in.",
        lambda one: one.counts.rebalances,
    ),
    Metric(
        "kcr_failures_total",
        Unit.NUMBER,
        (*_OF_MEMBER, "cause"),
        "What failed: a `batch`, a `discarded_batch`, a `commit`, the `store`, or what the client, Kafka or a sink "
        "complained about (`complaint`).",
        _failures,
    ),
)
"""Those of a member, which its process serves and counts since its start."""


def _task_durations(facts: TaskFacts) -> Iterator[Sample]:
    for phase, took in phases(facts.checkpoint).items() if facts.checkpoint is not None else ():
        yield (facts.region, str(phase)), took.total_seconds()


TASK_METRICS: Final[tuple[Metric[TaskFacts], ...]] = (
    Metric(
        "kcr_task_checkpoint_seconds",
        Unit.SECONDS,
        ("region", "phase"),
        "How long each phase took, of the checkpoint that the last task ended with.",
        _task_durations,
    ),
    _of_task(
        "kcr_task_checkpoints_total",
        Unit.NUMBER,
        "Checkpoints that tasks ended with.",
        lambda facts: None if facts.checkpoint is None else 1,
    ),
    _of_task(
        "kcr_task_resets_total",
        Unit.NUMBER,
        "Resets that tasks carried out.",
        lambda facts: None if facts.rewound is None else 1,
    ),
    _of_task(
        "kcr_task_rewound_records_total",
        Unit.OFFSETS,
        "Offsets that those resets went back; at most as many are processed again.",
        lambda facts: facts.rewound,
    ),
)
"""Those of Airflow's tasks; of a counter, a sample is what a task adds to it."""
