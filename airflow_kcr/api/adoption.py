"""Taking over from another consumer: where it stands, and the plan of a reset that lets a region go on from there.

Another consumer is a Structured Streaming query (`spark.query_checkpoint` reads its checkpoint) or a consumer group.
It has to be stopped; neither its checkpoint nor its group is changed. The plan is one of offsets that a person names:
it is applied, and kept in the history, as any other. In a region that has never run they are its initial offsets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from airflow_kcr.api.regions import Handle, require_groups
from airflow_kcr.api.resets import RegionResets
from airflow_kcr.api.views import AnswerColumns, View, of
from airflow_kcr.errors import CheckpointNotUsable, ConfigurationError, InvalidTarget
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region.plans import Plan
from airflow_kcr.protocol.region.rows import ResetRequest
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.scopes import Scope
from airflow_kcr.protocol.target_resolution import PlanLine
from airflow_kcr.protocol.targets import FromFile
from airflow_kcr.protocol.values import GroupId, Offset, TopicName, TopicPartition, few
from airflow_kcr.spec import stored_spec

BEGINNING: Final = Offset(0)
"""Where a partition is read from that another consumer has never finished anything of; clamped into the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOffsets(View):
    """Up to where another consumer has read."""

    shown = AnswerColumns["ConsumerOffsets"](
        "consumer",
        ("offsets", lambda one: [{**p._asdict(), "offset": o} for p, o in sorted(one.offsets.items())]),
        ("started", lambda one: [{**p._asdict(), "offset": o} for p, o in sorted(one.started.items())]),
        "notes",
    )

    consumer: str
    """Which one, in words."""

    offsets: Mapping[TopicPartition, Offset]
    """The next offset of each log; what lies below is done."""

    topics: frozenset[TopicName]
    """Those that it reads. A partition of them without an offset was never finished."""

    started: Mapping[TopicPartition, Offset]
    """Up to where it has started and not finished: what its sink has of that is processed twice."""

    notes: tuple[str, ...] = ()
    """What else to know of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptedPartition(View):
    """Where a region goes on in one partition, compared with its log."""

    shown = AnswerColumns["AdoptedPartition"](
        *of("line.partition", "group", "topic", "partition"),
        ("offset", lambda one: one.line.target),
        *of("line", "log_start", "log_end"),
        *("to_read", "may_repeat", "left_out", "note"),
    )

    line: PlanLine
    started: Offset | None
    is_known: bool
    """Whether the other consumer has finished anything of it."""

    @property
    def to_read(self) -> int:
        """How many offsets lie between where the region goes on and the end of the log, so at most as many records."""
        return (self.line.log_end or 0) - (self.line.target or 0)

    @property
    def may_repeat(self) -> int:
        """How many offsets the other consumer has started and not finished: its sink may have their records."""
        return max((self.started or 0) - (self.line.target or 0), 0)

    @property
    def left_out(self) -> int:
        """How many offsets neither has read: retention has deleted them."""
        return 0 if self.line.asked is None else (self.line.target or 0) - self.line.asked

    @property
    def note(self) -> str:
        """Why it is so."""
        found = [] if self.is_known else ["nothing of it was finished, so it is read from its beginning"]
        if self.left_out:
            found.append(f"retention has deleted offsets {self.line.asked} to {self.line.target}")
        if self.may_repeat:
            found.append(f"started up to {self.started} and not finished")
        return "; ".join(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """A region that takes over: a plan, and each partition that it takes over compared with its log."""

    standing: ConsumerOffsets
    plan: Plan
    partitions: tuple[AdoptedPartition, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """Return it as `kcr adopt -o json` writes it."""
        return {
            "consumer": self.standing.consumer,
            "notes": list(self.notes),
            "partitions": [one.to_json() for one in self.partitions],
            "plan": self.plan.to_json(),
        }


def group_offsets(handle: Handle, group: str) -> ConsumerOffsets:
    """Return what a consumer group has committed, in the one cluster of a region's groups.

    Args:
        handle: the region.
        group: any group of that cluster, also one of the region's.

    Raises:
        GroupNotEmpty: it has members; the message names them.
        InvalidTarget: it has committed nothing.
        ConfigurationError: the region's groups are on several clusters, and it is none of them.
        BrokerUnavailable, CredentialsRefused: the cluster does not answer, or refuses.
    """
    region = handle.read()
    spec, wanted = stored_spec(region.spec.text), GroupId(group)
    own = sorted(region.rules.groups)
    if wanted not in own and any(spec.cluster_of(one) != spec.cluster_of(own[0]) for one in own):
        raise ConfigurationError(
            f"the groups of region {region.name} are on several clusters, and {group} may be on any of them; export "
            "its offsets with Kafka's tool, and plan a reset with --from-file"
        )
    with handle.clusters(spec, wanted if wanted in own else own[0]) as cluster:
        cluster.require_empty(wanted)
        held = cluster.committed(wanted, None)
    if not held:
        raise InvalidTarget(f"group {group} has no committed offset: there is no such group, or its offsets expired")
    offsets = {p.topic_partition: row.offset for p, row in held.items()}
    topics = frozenset(p.topic for p in offsets)
    return ConsumerOffsets(consumer=f"group {group}", offsets=offsets, topics=topics, started={})


def adopt(handle: Handle, resets: RegionResets, standing: ConsumerOffsets, into: Collection[str] = ()) -> Adoption:
    """Return the plan by which a region goes on where another consumer stands; changes nothing.

    Args:
        handle: the region.
        resets: its resets.
        standing: where the other consumer stands.
        into: which of the region's groups; none: all that read its topics.

    Raises:
        ConfigurationError: the region has no such group.
        InvalidTarget: the region reads none of the topics, or Kafka has no log of one of the partitions.
        CheckpointNotUsable: the consumer stands beyond the end of a log, which is another log then.
        BrokerUnavailable, CredentialsRefused: a cluster does not answer, or refuses.
    """
    region = resets.met()
    require_groups(region, into)
    groups = frozenset(map(GroupId, into)) or frozenset(region.rules.groups)
    places = {
        p: standing.offsets.get(p.topic_partition, BEGINNING)
        for p in region.universe()
        if p.group in groups and p.topic in standing.topics
    }
    _require_logs(region, standing, groups, {p.topic_partition for p in places})
    request = ResetRequest(
        target=FromFile(entries=OffsetMap(places)), scope=Scope(groups=frozenset(map(GroupId, into)))
    )
    plan = resets.plan(request)
    partitions = tuple(
        AdoptedPartition(
            line=line,
            started=standing.started.get(line.partition.topic_partition),
            is_known=line.partition.topic_partition in standing.offsets,
        )
        for line in plan.entries
        if line.partition in places
    )
    _require_in_logs(standing, partitions)
    notes = (*standing.notes, *_notes(region, standing, groups))
    return Adoption(standing=standing, plan=plan, partitions=partitions, notes=notes)


def _require_logs(
    region: Region, standing: ConsumerOffsets, groups: Collection[GroupId], found: Collection[TopicPartition]
) -> None:
    if not found:
        raise InvalidTarget(
            f"{standing.consumer} reads {few(sorted(standing.topics))}, of which region {region.name} reads none"
        )
    gone = [
        str(p)
        for p in sorted(standing.offsets)
        if p not in found and any(region.rules.subscribes(group, p.topic) for group in groups)
    ]
    if gone:
        raise InvalidTarget(
            f"{standing.consumer} has offsets of {few(gone)}, which region {region.name} does not have: the topic was "
            "deleted, has fewer partitions now, or is on another cluster"
        )


def _require_in_logs(standing: ConsumerOffsets, partitions: Collection[AdoptedPartition]) -> None:
    beyond = [
        f"{one.line.partition} at {one.line.asked}, where the log ends at {one.line.log_end}"
        for one in partitions
        if one.left_out < 0
    ]
    if beyond:
        raise CheckpointNotUsable(
            f"{standing.consumer} stands beyond the end of {len(beyond)} log(s): {few(beyond, separator='; ')}. A "
            "transaction is open there, then try again when it is over; or the topic was deleted and created again, or "
            "the region's cluster is another one. To begin elsewhere, plan a reset to offsets of your choice"
        )


def _notes(region: Region, standing: ConsumerOffsets, groups: Collection[GroupId]) -> Iterator[str]:
    """Yield which topics only one of the two reads."""
    unread = [t for t in sorted(standing.topics) if not any(region.rules.subscribes(group, t) for group in groups)]
    if unread:
        yield f"left out: {few(unread)}, which the region does not read"
    others = sorted({p.topic for p in region.universe() if p.topic not in standing.topics or p.group not in groups})
    if others:
        where = "keep their positions" if region.initialised else "begin where the spec's start says"
        yield f"not taken over: other partitions, of {few(others)}, {where}"
