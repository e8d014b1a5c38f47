"""How far a region is behind, in records and in time, and what that means.

What Kafka says now is held against the samples that the store keeps; `take` keeps one more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from airflow_kcr.api import partitions
from airflow_kcr.api.clusters import Clusters, ask_each
from airflow_kcr.api.partitions import Lag
from airflow_kcr.api.views import AnswerColumns, View
from airflow_kcr.protocol.region import lag, liveness
from airflow_kcr.protocol.region.lag import LagFinding, LagPoint, LagSample
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.values import GroupId, GroupPartition, Offset, RegionName
from airflow_kcr.store.regions import RegionStore

ALL: Final = lag.TIERS[-1][0]
"""How far back it goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLag:
    """How far one group is behind."""

    group: GroupId
    records: int | None
    """Of all its partitions, in offsets; None: of one of them it is not known."""

    largest: int | None
    """Of one partition, of those whose lag is known; None: it is of none."""

    behind: timedelta | None
    """The longest of its partitions; None: of one of them it is not known."""

    finding: LagFinding
    caught_up_in: timedelta | None = None
    """If it goes on as in the last ten minutes; None: it does not, or there are too few samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionLag:
    """How far a region is behind, as asked at one moment."""

    region: Region
    now: datetime
    partitions: tuple[Lag, ...]
    groups: tuple[GroupLag, ...]
    samples: tuple[LagSample, ...]
    """What was found, by group; empty if the region was reset meanwhile: then nothing of it goes together."""

    @property
    def finding(self) -> LagFinding:
        """The worst of its groups."""
        return lag.worst(group.finding for group in self.groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class LagAt(View):
    """One group in one sample."""

    shown = AnswerColumns["LagAt"]("at", "group", "lag", "max_lag", "partitions", "rate")

    at: datetime
    group: GroupId
    lag: int | None
    """Of all partitions; None: of one of them it is not known."""

    max_lag: int | None
    partitions: int
    rate: float | None = None
    """Offsets processed a second since the sample before; None: there is none, or a reset lies between the two."""

    @classmethod
    def of(cls, sample: LagSample) -> LagAt:
        """Return a sample in one line."""
        total, largest = lag.totals(sample.lags)
        return cls(at=sample.at, group=sample.group, lag=total, max_lag=largest, partitions=len(sample.points))

    @classmethod
    def history(cls, samples: Iterable[LagSample]) -> Iterator[LagAt]:
        """Yield samples, oldest first, each in one line with its rate."""
        before: dict[GroupId, LagSample] = {}
        for sample in samples:
            yield replace(cls.of(sample), rate=_rate(before.get(sample.group), sample))
            before[sample.group] = sample


def _rate(before: LagSample | None, sample: LagSample) -> float | None:
    if before is None or before.epoch != sample.epoch or before.at >= sample.at:
        return None
    known = [(before.points[p].position, point.position) for p, point in sample.points.items() if p in before.points]
    moved = sum(to - from_ for from_, to in known if from_ is not None and to is not None)
    return round(moved / (sample.at - before.at).total_seconds(), 3)


def measure(store: RegionStore, name: RegionName, clusters: Clusters) -> RegionLag:
    """Return how far a region is behind; Kafka is asked, and nothing is kept.

    Args:
        store: where the region is.
        name: the region's.
        clusters: how Kafka is reached.

    Raises:
        UnknownRegion: there is no such region.
        BrokerUnavailable, CredentialsRefused: a cluster does not answer, or refuses.
    """
    region, now, seen = store.look(name)
    rows = partitions.lag(region, clusters, lambda: store.read(name)[0])
    kept = store.lag_since(name, now - lag.RECENT)
    rows = tuple(_with_time(now, row, kept) for row in _with_first_records(region, rows, clusters, now))
    samples = () if store.read(name)[0].epoch != region.epoch else samples_of(region, now, rows)
    history = (*kept, *samples)
    findings = lag.judge(region, now, liveness.judge(region, now, seen), history)
    rows = tuple(replace(row, finding=findings.get(row.partition, row.finding)) for row in rows)
    groups = tuple(_of_group(now, group, rows, history) for group in sorted(region.rules.groups))
    return RegionLag(region=region, now=now, partitions=rows, groups=groups, samples=samples)


def take(store: RegionStore, name: RegionName, clusters: Clusters, groups: Collection[GroupId]) -> None:
    """Keep a sample of some groups of a region; none, if it is reset meanwhile.

    Raises:
        UnknownRegion: there is no such region.
        BrokerUnavailable, CredentialsRefused: a cluster does not answer, or refuses.
    """
    region, now = store.read(name)
    rows = partitions.lag(region, clusters, lambda: store.read(name)[0], groups)
    if store.read(name)[0].epoch == region.epoch:
        store.add_lag(name, samples_of(region, now, rows))


def samples_of(region: Region, now: datetime, rows: Iterable[Lag]) -> tuple[LagSample, ...]:
    """Return rows of one moment as a sample of each group."""
    points: dict[GroupId, dict[GroupPartition, LagPoint]] = {}
    for row in rows:
        points.setdefault(row.partition.group, {})[row.partition] = _point(row)
    return tuple(LagSample(group=g, at=now, epoch=region.epoch, points=found) for g, found in points.items())


def _point(row: Lag) -> LagPoint:
    place = _place(row)
    left = row.lag
    return LagPoint(
        end=None if place is None or left is None else Offset(place + left),
        position=place,
        committed=None if row.committed is None else Offset(row.committed),
    )


def _place(row: Lag) -> Offset | None:
    place = row.begins if row.position is None else row.position
    return None if place is None else Offset(place)


def _with_first_records(region: Region, rows: Sequence[Lag], clusters: Clusters, now: datetime) -> Iterable[Lag]:
    """Yield rows with how old the first record beyond the position is, as far as Kafka says so."""
    left: dict[GroupId, dict[GroupPartition, Offset]] = {}
    for row in sorted(rows, key=lambda row: -(row.lag or 0)):
        if row.lag and (place := _place(row)) is not None:
            left.setdefault(row.partition.group, {})[row.partition] = place
    answers = ask_each(region, clusters, lambda cluster, rules: cluster.first_records(left[rules.group_id]), left)
    found = {p: (one.offset is None, one.found) for each in answers.values() for p, one in each.items()}
    for row in rows:
        is_read_up, came = found.get(row.partition, (row.lag == 0, None))
        behind = timedelta(0) if is_read_up else None if came is None else max(now - came, timedelta(0))
        yield replace(row, is_read_up=is_read_up and row.lag is not None, behind=behind)


def _with_time(now: datetime, row: Lag, kept: Iterable[LagSample]) -> Lag:
    """Return a row with the time that the history of ends gives, where Kafka gave none."""
    place = _place(row)
    if row.behind is not None or not row.lag or place is None:
        return row
    came = lag.came_before(kept, row.partition, place)
    return row if came is None else replace(row, behind=now - came)


def _of_group(now: datetime, group: GroupId, rows: Iterable[Lag], history: Iterable[LagSample]) -> GroupLag:
    own = [row for row in rows if row.partition.group == group]
    records, largest = lag.totals(row.lag for row in own)
    times = [row.behind for row in own]
    known = [time for time in times if time is not None]
    lags = [(at.at, at.lag) for at in (LagAt.of(s) for s in history if s.group == group) if at.lag is not None]
    return GroupLag(
        group=group,
        records=records,
        largest=largest,
        behind=max(known, default=None) if len(known) == len(times) else None,
        finding=lag.worst(row.finding for row in own),
        caught_up_in=lag.caught_up_in(now, lags),
    )
