"""A region in a real store with a real spec, so that the command line and the API can look at what a driver does."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime

from airflow_kcr.api.clusters import Cluster, Clusters
from airflow_kcr.errors import BrokerUnavailable, GroupNotEmpty
from airflow_kcr.ports import CommittedOffset, Logs
from airflow_kcr.protocol.observations import GroupSeen, LogBounds, TimeAnswer
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.timeouts import BrokerTimes
from airflow_kcr.protocol.values import (
    NO_CLUSTER,
    ClusterId,
    GroupId,
    GroupPartition,
    Offset,
    RegionName,
    TopicId,
    TopicName,
)
from airflow_kcr.spec import RegionSpec, parse
from airflow_kcr.store.regions import RegionStore
from tests.support.driver import Driver

SPEC = """\
region: flights
kafka: {bootstrap.servers: 'broker.invalid:9092'}
groups:
  - {group_id: g, topics: [t], members: 2, pipeline: 'jobs.flights:process'}
timeouts: {lease: 60s}
"""
"""Long leases: a test on a busy machine may be slow, and no member of its shall be lost by that."""


class _Declaring(RegionStore):
    """A store in which a driver's region is declared with the text of a real spec."""

    text = ""

    def create(self, name: RegionName, rule: Callable[[datetime], Region]) -> Region:
        def with_text(now: datetime) -> Region:
            region = rule(now)
            return replace(region, spec=replace(region.spec, text=self.text))

        return super().create(name, with_text)


@contextmanager
def live_region(url: str, spec: str = SPEC, *, partitions: int = 4) -> Iterator[Driver]:
    """Lend a driver of a newly declared region, stopped, in a store on Postgres."""
    parsed = parse(spec)
    with _Declaring.connect(url, lambda text: RegionSpec.from_json(text).rules()) as transactions:
        transactions.text = parsed.to_json_text()
        yield Driver(
            partitions=partitions, rules=parsed.rules(), transactions=transactions, name=RegionName(parsed.region)
        )


@dataclass(slots=True)
class FakeCluster:
    """A cluster that says what a test wants it to."""

    counts: dict[TopicName, int] = field(default_factory=lambda: {TopicName("t"): 4})
    ends: dict[int, int] = field(default_factory=dict)
    """The end of each partition of every topic; 1,000 where it is not said."""

    starts: dict[int, int] = field(default_factory=dict)
    held: dict[GroupPartition, int] = field(default_factory=dict)
    notes: dict[GroupPartition, str] = field(default_factory=dict)
    """The metadata of what was altered."""

    found: dict[int, int] = field(default_factory=dict)
    """The first offset of each partition at or after whatever instant; none where it is not said."""

    firsts: dict[int, TimeAnswer] = field(default_factory=dict)
    """The first record beyond the position of each partition; not known where it is not said."""

    asked: list[datetime] = field(default_factory=list)
    """The instants that were looked up."""

    inside: str = ""
    """Who is in the groups."""

    is_away: bool = False
    cluster: ClusterId = NO_CLUSTER
    topic_id: TopicId = TopicId("")
    """Of every topic; empty where the brokers tell none."""

    @property
    def logs(self) -> Logs:
        return self

    def bounds(self, partitions: object) -> dict[GroupPartition, LogBounds]:
        self._require_there()
        found = {}
        for p in self._partitions(partitions):
            if p.partition < self.counts.get(p.topic, 0):
                start, end = self.starts.get(p.partition, 0), self.ends.get(p.partition, 1_000)
                found[p] = LogBounds(start=Offset(start), end=Offset(end), topic_id=self.topic_id)
        return found

    def stable_ends(self, partitions: Collection[GroupPartition]) -> dict[GroupPartition, Offset]:
        return {p: bounds.end for p, bounds in self.bounds(partitions).items()}

    def high_watermarks(self, partitions: object) -> dict[GroupPartition, Offset]:
        return {p: bounds.end for p, bounds in self.bounds(partitions).items()}

    def first_at_or_after(self, instants: Mapping[GroupPartition, datetime]) -> dict[GroupPartition, TimeAnswer]:
        self.asked += instants.values()
        known = {p: self.found.get(p.partition) for p in instants if p.partition < self.counts.get(p.topic, 0)}
        return {p: TimeAnswer(offset=None if offset is None else Offset(offset)) for p, offset in known.items()}

    def cluster_id(self) -> ClusterId:
        self._require_there()
        return self.cluster

    def topics(self, names: Collection[TopicName] = ()) -> Mapping[TopicName, int]:
        self._require_there()
        return self.counts

    def committed(self, group: GroupId, partitions: object) -> Mapping[GroupPartition, CommittedOffset]:
        wanted = [p for p in self.held if p.group == group] if partitions is None else self._partitions(partitions)
        return {
            p: CommittedOffset(offset=Offset(self.held[p]), metadata=self.notes.get(p, ""))
            for p in wanted
            if p in self.held
        }

    def first_records(self, places: Mapping[GroupPartition, Offset]) -> dict[GroupPartition, TimeAnswer]:
        return {p: self.firsts[p.partition] for p in places if p.partition in self.firsts}

    def require_empty(self, group: GroupId) -> None:
        self._require_there()
        if self.inside:
            raise GroupNotEmpty(f"group {group} is stable, with 1 member(s): {self.inside}; stop them")

    def alter(self, group: GroupId, offsets: Mapping[GroupPartition, Offset], metadata: str) -> None:
        self.require_empty(group)
        self.held.update(offsets)
        self.notes.update(dict.fromkeys(offsets, metadata))

    client: str | None = None

    def describe(self, group: GroupId) -> GroupSeen:
        raise BrokerUnavailable("this cluster describes no groups")

    def times(self, seen: GroupSeen) -> BrokerTimes:
        raise NotImplementedError

    def compacted(self, names: Collection[TopicName]) -> frozenset[TopicName]:
        return frozenset()

    def unreadable(self, group: GroupId, topics: Collection[TopicName]) -> tuple[str, ...]:
        return ()

    def _require_there(self) -> None:
        if self.is_away:
            raise BrokerUnavailable("no broker of broker.invalid:9092 answered; tried for 5.0 s")

    def _partitions(self, partitions: object) -> list[GroupPartition]:
        if not isinstance(partitions, list | set | frozenset | tuple):
            raise TypeError(partitions)
        return list(partitions)

    @property
    def clusters(self) -> Clusters:
        """As the API opens it, whatever the spec says."""

        def opened(spec: RegionSpec, group: GroupId) -> AbstractContextManager[Cluster]:
            return self._lent()

        return opened

    @contextmanager
    def _lent(self) -> Iterator[Cluster]:
        yield self
