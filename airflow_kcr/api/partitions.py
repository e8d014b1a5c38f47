"""A region's partitions held against Kafka: lag, and a checkpoint beside what the brokers have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from airflow_kcr.api.checkpoint_views import require_checkpoint
from airflow_kcr.api.clusters import Clusters
from airflow_kcr.api.validation import noted
from airflow_kcr.errors import CheckpointNotUsable
from airflow_kcr.ports import CommittedOffset
from airflow_kcr.protocol.log_checks import strange_commit
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.offsets import EMPTY, OffsetMap
from airflow_kcr.protocol.region import absent, out_of_range, recreated
from airflow_kcr.protocol.region.state import Region as StoredRegion
from airflow_kcr.protocol.region.state import offsets_of
from airflow_kcr.protocol.values import CheckpointNumber, GroupId, GroupPartition, MemberId, TopicId
from airflow_kcr.spec import RegionSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """How far one partition is behind. What is not known is None."""

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

    @property
    def lag(self) -> int | None:
        """How many offsets are left, so at most as many records.

        None where position and end are not of one log, or the log ends before it.
        """
        if self.is_gone:
            return 0
        place = self.begins if self.position is None else self.position
        if place is None or self.log_end is None or self.is_recreated:
            return None
        # A position behind a skipped record may lie one past the end, and that is no trouble.
        left = self.log_end - place
        return None if left < 0 and self.trouble else max(left, 0)

    def to_json(self) -> dict[str, object]:
        """Return it as in `lag`."""
        return {
            "group": self.partition.group,
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            "position": self.position,
            "committed": self.committed,
            "log_start": self.log_start,
            "log_end": self.log_end,
            "lag": self.lag,
            "member_id": None if self.member is None else str(self.member),
            "trouble": self.trouble,
        }


class Finding(StrEnum):
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
    """As after every later checkpoint; or somebody else commits."""

    EQUAL = "equal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One partition of a checkpoint beside what Kafka has."""

    partition: GroupPartition
    offset: int
    """The checkpoint's."""

    committed: int | None
    log_start: int | None
    log_end: int | None
    is_recreated: bool = False
    """Whether the log is of another topic than the checkpoint."""

    @property
    def finding(self) -> Finding:
        """The worst that can be said."""
        if self.log_start is None or self.log_end is None:
            return Finding.NO_LOG
        if self.is_recreated:
            return Finding.RECREATED
        if self.offset < self.log_start:
            return Finding.OVERTAKEN
        if self.offset > self.log_end:
            return Finding.BEYOND_END
        if self.committed is None:
            return Finding.NOT_COMMITTED
        if self.committed == self.offset:
            return Finding.EQUAL
        return Finding.KAFKA_BEHIND if self.committed < self.offset else Finding.KAFKA_AHEAD

    def to_json(self) -> dict[str, object]:
        """Return it as in `checkpoint compare`."""
        return {
            "group": self.partition.group,
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            "offset": self.offset,
            "committed": self.committed,
            "log_start": self.log_start,
            "log_end": self.log_end,
            "finding": str(self.finding),
        }


def lag(region: StoredRegion, clusters: Clusters) -> tuple[Lag, ...]:
    """Return how far every partition is behind, those that nobody has claimed yet included.

    The positions were read before the logs are, so a running region's lag is never too small.
    """
    spec = RegionSpec.from_json(region.spec.text)
    found: list[Lag] = []
    for group, rules in sorted(region.rules.groups.items()):
        known = {p for p in region.claims if p.group == group and region.rules.subscribes(group, p.topic)}
        with clusters(spec, group) as cluster:
            partitions = sorted(known | rules.partitions(cluster.logs.topics(rules.topics)))
            held, bounds = cluster.committed(group, partitions), cluster.logs.bounds(partitions)
        found += [_lag(region, p, held.get(p), bounds.get(p)) for p in partitions]
    return tuple(found)


def _lag(
    region: StoredRegion, partition: GroupPartition, held: CommittedOffset | None, bounds: LogBounds | None
) -> Lag:
    claim = region.claims.get(partition)
    seen = {} if bounds is None else {partition: bounds}
    trouble = next((t.why for t in out_of_range.found(region, seen)), "") or _strange(region, partition, held)
    absence = region.absent.get(partition) if bounds is None else None
    if absence is not None:
        trouble = absent.told(region, absence)
    # What a region that was covered before finds later is read from its beginning; nobody need have claimed it.
    found_later = bounds is not None and region.initialised and (claim is None or claim.resume is None)
    return Lag(
        partition=partition,
        position=None if claim is None else claim.position if claim.position is not None else claim.resume,
        committed=None if held is None else held.offset,
        log_start=None if bounds is None else bounds.start,
        log_end=None if bounds is None else bounds.end,
        member=None if claim is None else claim.owner,
        trouble=trouble,
        is_recreated=bool(recreated.found(region, seen)),
        is_gone=absence is not None and absence.is_gone,
        begins=bounds.start if bounds is not None and found_later else None,
    )


def _strange(region: StoredRegion, partition: GroupPartition, held: CommittedOffset | None) -> str:
    own = {} if held is None else noted(region, {partition: held})
    return strange_commit(region, partition, None if held is None else held.offset, own.get(partition))


def compare(region: StoredRegion, sequence: CheckpointNumber, clusters: Clusters) -> tuple[Comparison, ...]:
    """Return a checkpoint partition by partition, beside Kafka's committed offsets and the bounds of the logs.

    Raises:
        UnknownCheckpoint: there is none of that sequence.
        CheckpointNotUsable: it has no offsets.
    """
    row = require_checkpoint(region, sequence)
    if not row.is_complete:
        raise CheckpointNotUsable(f"checkpoint {sequence} is {row.state}; only a complete one has offsets to compare")
    spec, offsets = RegionSpec.from_json(region.spec.text), offsets_of(region, sequence) or EMPTY
    topics = recreated.topics_of(region, sequence)
    found: list[Comparison] = []
    for group, own in sorted(_by_group(offsets).items()):
        with clusters(spec, group) as cluster:
            held, bounds = cluster.committed(group, own), cluster.logs.bounds(own)
        found += [_comparison(p, offsets[p], held.get(p), bounds.get(p), topics.get(p, TopicId(""))) for p in own]
    return tuple(found)


def _by_group(offsets: OffsetMap) -> Mapping[GroupId, list[GroupPartition]]:
    found: dict[GroupId, list[GroupPartition]] = {}
    for partition in offsets:
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
        is_recreated=bounds is not None and recreated.is_another(topic_id, bounds.topic_id),
    )
