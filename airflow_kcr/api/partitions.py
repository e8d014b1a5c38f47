"""A region's partitions held against Kafka: lag, a checkpoint beside what the brokers have, and its repair in Kafka."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from airflow_kcr.api.clusters import Cluster, Clusters, ask_each
from airflow_kcr.api.validation import noted
from airflow_kcr.api.views import OF_PARTITION, WHY, AnswerColumns, View
from airflow_kcr.errors import CheckpointNotUsable, CheckpointRefused, ConfigurationError, KcrError
from airflow_kcr.ports import CommittedOffset
from airflow_kcr.protocol.assignors import assign
from airflow_kcr.protocol.log_checks import is_strange_commit, strange_commit
from airflow_kcr.protocol.observations import LogBounds, LogView
from airflow_kcr.protocol.offsets import EMPTY, OffsetMap
from airflow_kcr.protocol.region import first_starts, lookup, lost_logs, timelines
from airflow_kcr.protocol.region.commands import ReportReadBack
from airflow_kcr.protocol.region.lag import NO_SAMPLE, LagFinding
from airflow_kcr.protocol.region.rows import InitialOffset, RestorePoint
from airflow_kcr.protocol.region.state import Region as StoredRegion
from airflow_kcr.protocol.rules import COMMITTED, Assignor, GroupRules
from airflow_kcr.protocol.values import (
    CheckpointNumber,
    GroupId,
    GroupPartition,
    MemberId,
    RegionName,
    Timeline,
    TopicId,
    TopicName,
    TopicPartition,
)
from airflow_kcr.runtime.leases import CommitNote
from airflow_kcr.runtime.positions import bounds_and_times
from airflow_kcr.spec import stored_spec
from airflow_kcr.store.regions import RegionStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag(View):
    """How far one partition is behind. What is not known is None."""

    shown = AnswerColumns["Lag"](
        *OF_PARTITION,
        *("position", "committed", "log_start", "log_end", "lag"),
        ("lag_seconds", lambda row: row.behind),
        *("finding.verdict", WHY),
        ("member_id", lambda row: row.member),
        "trouble",
        table=(
            *("group", "topic", "partition", "position", "committed", "log_end"),
            *("lag", "lag_seconds", "verdict", "member_id", "trouble"),
        ),
    )

    partition: GroupPartition
    position: int | None
    """The next offset to process."""

    committed: int | None
    log_start: int | None
    log_end: int | None
    """The last stable offset."""

    member: MemberId | None
    """Who claims it."""

    trouble: str = ""
    """Why the position is not in this log, or what Kafka holds for the group is not what the region committed."""

    is_recreated: bool = False
    """Whether the position is of a topic that was deleted, and the log of another one of that name."""

    is_gone: bool = False
    """Whether it is no part of the region any more, as the brokers do not have it: nothing of it is left to read."""

    begins: int | None = None
    """Where it will be read from, where it has no position yet and that is known."""

    is_read_up: bool = False
    """Whether nothing lies beyond the position but markers of transactions, aborted records and gaps."""

    behind: timedelta | None = None
    """How old the first record beyond the position is; None: that is not known."""

    finding: LagFinding = NO_SAMPLE

    @property
    def lag(self) -> int | None:
        """How many offsets are left, so at most as many records.

        None where position and end are not of one log, or the log ends before it.
        """
        if self.is_gone or self.is_read_up:
            return 0
        place = self.begins if self.position is None else self.position
        if place is None or self.log_end is None or self.is_recreated:
            return None
        # A position behind a skipped record may lie one past the end, and that is no trouble.
        left = self.log_end - place
        return None if left < 0 and self.trouble else max(left, 0)


class CommitFinding(StrEnum):
    """How a checkpoint's offset and Kafka go together, the worst first."""

    NO_LOG = "no_log"
    """The topic or the partition does not exist."""

    RECREATED = "recreated"
    """The topic was deleted and created again: the offset means another record now."""

    OVERTAKEN = "overtaken"
    """Retention has deleted records at or beyond the offset: a reset to it would miss them."""

    BEYOND_END = "beyond_end"
    """The log ends before the offset: it was truncated."""

    NOT_COMMITTED = "not_committed"
    """Kafka holds no offset for the group."""

    KAFKA_BEHIND = "kafka_behind"
    KAFKA_AHEAD = "kafka_ahead"
    """As after every later checkpoint; or another program commits."""

    EQUAL = "equal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(View):
    """One partition of a checkpoint beside what Kafka has."""

    shown = AnswerColumns["Comparison"](*OF_PARTITION, "offset", "committed", "log_start", "log_end", "finding")

    partition: GroupPartition
    offset: int
    """The checkpoint's."""

    committed: int | None
    log_start: int | None
    log_end: int | None
    is_recreated: bool = False
    """Whether the log is of another topic than the checkpoint."""

    @property
    def finding(self) -> CommitFinding:
        """The worst that can be said."""
        if self.log_start is None or self.log_end is None:
            return CommitFinding.NO_LOG
        if self.is_recreated:
            return CommitFinding.RECREATED
        if self.offset < self.log_start:
            return CommitFinding.OVERTAKEN
        if self.offset > self.log_end:
            return CommitFinding.BEYOND_END
        if self.committed is None:
            return CommitFinding.NOT_COMMITTED
        if self.committed == self.offset:
            return CommitFinding.EQUAL
        return CommitFinding.KAFKA_BEHIND if self.committed < self.offset else CommitFinding.KAFKA_AHEAD


def lag(
    region: StoredRegion,
    clusters: Clusters,
    read: Callable[[], StoredRegion],
    groups: Collection[GroupId] | None = None,
) -> tuple[Lag, ...]:
    """Return the lag of every partition, including unclaimed ones.

    The positions were read before the logs are, so a running region's lag is never too small. Work goes on between
    the reads, so trouble is named only where the region, read once more, still shows it.

    Args:
        region: as it was just read.
        clusters: how Kafka is reached.
        read: reads the region once more.
        groups: whose partitions; None: all.
    """

    def ask(
        cluster: Cluster, rules: GroupRules
    ) -> list[tuple[GroupPartition, CommittedOffset | None, LogBounds | None]]:
        group = rules.group_id
        known = {p for p in region.claims if p.group == group and region.rules.subscribes(group, p.topic)}
        partitions = sorted(known | rules.partitions(cluster.logs.topics(rules.topics)))
        held, bounds = cluster.committed(group, partitions), cluster.logs.bounds(partitions)
        return [(p, held.get(p), bounds.get(p)) for p in partitions]

    asked = ask_each(region, clusters, ask, groups)
    now = read()
    return tuple(_lag(region, now, *row) for rows in asked.values() for row in rows)


def _lag(
    region: StoredRegion,
    now: StoredRegion,
    partition: GroupPartition,
    held: CommittedOffset | None,
    bounds: LogBounds | None,
) -> Lag:
    claim = region.claims.get(partition)
    seen = {} if bounds is None else {partition: bounds}
    lost = lost_logs.out_of_range_throughout(region, now, seen)
    trouble = lost[0].why if lost else _strange(region, now, partition, held)
    absence = region.unserved.get(partition) if bounds is None else None
    if absence is not None and not absence.is_there:
        trouble = lost_logs.absence_text(region, absence)
    # A partition found later, in a region that was covered before, is read from its beginning; it need not be claimed
    # yet.
    found_later = bounds is not None and region.initialised and (claim is None or claim.resume is None)
    return Lag(
        partition=partition,
        position=None if claim is None else claim.position if claim.position is not None else claim.resume,
        committed=None if held is None else held.offset,
        log_start=None if bounds is None else bounds.start,
        log_end=None if bounds is None else bounds.end,
        member=None if claim is None else claim.owner,
        trouble=trouble,
        is_recreated=bool(timelines.recreated(region, seen)),
        is_gone=absence is not None and absence.is_gone,
        begins=bounds.start if bounds is not None and found_later else None,
    )


def _strange(before: StoredRegion, now: StoredRegion, partition: GroupPartition, held: CommittedOffset | None) -> str:
    own = {} if held is None else noted(before, {partition: held})
    place = partition, None if held is None else held.offset, own.get(partition)
    return strange_commit(now, *place) if is_strange_commit(before, now, *place) else ""


def compare(region: StoredRegion, sequence: CheckpointNumber, clusters: Clusters) -> tuple[Comparison, ...]:
    """Return a checkpoint partition by partition, beside Kafka's committed offsets and the bounds of the logs.

    Raises:
        UnknownCheckpoint: there is none of that sequence.
        CheckpointNotUsable: it has no offsets.
    """
    row = lookup.require_checkpoint(region, sequence)
    if not row.is_complete:
        raise CheckpointNotUsable(f"checkpoint {sequence} is {row.state}; only a complete one has offsets to compare")
    spec, offsets = stored_spec(region.spec.text), region.offsets_of(sequence) or EMPTY
    topics = timelines.topics_of(region, sequence)
    found: list[Comparison] = []
    for group, own in sorted(grouped(offsets).items()):
        with clusters(spec, group) as cluster:
            held, bounds = cluster.committed(group, own), cluster.logs.bounds(own)
        found += [_comparison(p, offsets[p], held.get(p), bounds.get(p), topics.get(p, TopicId(""))) for p in own]
    return tuple(found)


def grouped(partitions: Iterable[GroupPartition]) -> Mapping[GroupId, list[GroupPartition]]:
    """Return partitions by their group, in their order."""
    found: dict[GroupId, list[GroupPartition]] = {}
    for partition in partitions:
        found.setdefault(partition.group, []).append(partition)
    return found


def _comparison(
    partition: GroupPartition, offset: int, held: CommittedOffset | None, bounds: LogBounds | None, topic_id: TopicId
) -> Comparison:
    return Comparison(
        partition=partition,
        offset=offset,
        committed=None if held is None else held.offset,
        log_start=None if bounds is None else bounds.start,
        log_end=None if bounds is None else bounds.end,
        is_recreated=bounds is not None and timelines.is_recreated(topic_id, bounds.topic_id),
    )


def begins(cluster: Cluster, group: GroupRules, now: datetime) -> dict[GroupPartition, InitialOffset]:
    """Return where the spec's `start` has the partitions of a group begin, as members that meet them would find it.

    Args:
        cluster: the group's.
        group: its rules.
        now: the store's clock, from which durations count back.

    Raises:
        BrokerUnavailable, CredentialsRefused: the cluster does not answer, or refuses.
    """
    partitions = group.partitions(cluster.logs.topics(group.topics))
    # What was committed was in the log before, and the log only grows.
    held = cluster.committed(group.group_id, partitions) if group.start == COMMITTED else {}
    bounds, answers = bounds_and_times(cluster.logs, partitions, group.start.time_needed(now))
    committed = {p: row.offset for p, row in held.items()}
    view = LogView(bounds=bounds, answers=answers, committed=committed, read_at=now)
    return first_starts.initial({p: group.start.entry(p, view) for p in bounds}, bounds)


# A checkpoint's offsets are committed to Kafka from outside, if no member can commit them.
#
# The store comes first and Kafka second, so a checkpoint is complete whatever Kafka holds; but lag tools believe
# Kafka. Only the restore point is ever told, or Kafka would move back, and only while its groups are empty: with
# members in them the broker refuses, and they commit by themselves.


def is_restore_point(region: StoredRegion, sequence: CheckpointNumber) -> bool:
    """Whether a checkpoint is the region's restore point, and so the one that Kafka should hold."""
    return region.restore_point == RestorePoint(sequence)


def repair(store: RegionStore, name: RegionName, sequence: CheckpointNumber, clusters: Clusters) -> StoredRegion:
    """Alter every group's committed offsets to the restore point's, read them back, and return the region.

    If one group fails, the others are committed all the same; repeating it is harmless.

    Args:
        store: where the region is.
        name: the region's.
        sequence: the restore point.
        clusters: how Kafka is reached.

    Raises:
        UnknownCheckpoint, CheckpointNotUsable: there is no such checkpoint, or it is undone.
        CheckpointRefused: it is not the restore point, and nothing moves Kafka back to it; or the restore point is a
            reset.
        GroupNotEmpty: a group has a consumer.
        KcrError: Kafka refused a partition, or holds something else.
        BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse.
    """
    region, _ = store.read(name)
    if region.restore_epoch is not None and region.restore_sequence == sequence:
        raise CheckpointRefused(
            f"{sequence}, the restore point of region {name}, is a reset and no checkpoint; Kafka is told its "
            "offsets when the "
            "region is started, or by applying its plan once more"
        )
    row = lookup.require_current(region, sequence)
    if not is_restore_point(region, sequence):
        raise CheckpointRefused(
            f"checkpoint {sequence} is not the restore point of region {name}; Kafka is told no other checkpoint"
        )
    offsets = region.offsets[sequence]
    if failed := commit(region, offsets, row.timeline, sequence, clusters):
        raise next(iter(failed.values()))
    return store.handle(name, ReportReadBack(sequence=sequence, offsets=offsets))


def commit(
    region: StoredRegion, offsets: OffsetMap, timeline: Timeline, sequence: CheckpointNumber, clusters: Clusters
) -> dict[GroupId, KcrError]:
    """Alter the committed offsets of the region's empty groups, read back; return why those fail that do.

    Args:
        region: as stored.
        offsets: what Kafka is told.
        timeline: the timeline that they are of.
        sequence: the checkpoint, or reset, that they are of.
        clusters: how Kafka is reached.
    """
    spec, by_group, failed = stored_spec(region.spec.text), grouped(offsets), dict[GroupId, KcrError]()
    note = CommitNote(
        region=region.name, region_id=region.region_id, timeline=timeline, sequence=sequence, epoch=region.epoch
    ).text()
    for group in sorted(region.rules.groups.keys() & by_group.keys()):
        try:
            with clusters(spec, group) as cluster:
                cluster.alter(group, offsets.restrict(by_group[group]), note)
        except KcrError as error:
            failed[group] = error
    return failed


# Who would own what: a region's groups dealt out by the assignor, before anything is scaled.


def preview(
    group: GroupRules,
    topics: Mapping[TopicName, int],
    owned: Mapping[MemberId, Iterable[TopicPartition]],
    *,
    members: int | None = None,
    assignor: Assignor | None = None,
) -> dict[MemberId, tuple[TopicPartition, ...]]:
    """Return what each member of a group would be assigned.

    Args:
        group: as the spec has it.
        topics: those that exist on its cluster, with how many partitions each has.
        owned: what its members own at present, which `sticky` leaves where it is as far as it can.
        members: another number of members than the spec's.
        assignor: another one than the spec's.

    Raises:
        ConfigurationError: `members` is not positive.
    """
    count = group.members if members is None else members
    if count < 1:
        raise ConfigurationError(f"a group has at least one member, not {count}")
    subscribed = frozenset(topic for topic in topics if group.subscribes(topic))
    # Kafka puts members in the order of their names as text; these sort as their indexes do.
    names = {f"{index:09}": MemberId(GroupId(group.group_id), index) for index in range(count)}
    previous = {name: owned.get(member, ()) for name, member in names.items()}
    dealt = assign(assignor or group.assignor, dict.fromkeys(names, subscribed), topics, previous)
    return {names[name]: partitions for name, partitions in dealt.items()}
