"""Lag: samples of how far groups are behind, and the verdict on them.

A **sample** has the end of each log of a group, and where the group is in it, at one moment. The process of its
members takes some, and so does an exporter. Older ones are thinned out, so that a region has a bounded number of them.

The **verdict** says what the lag means. It is made of the samples of the last `WINDOW`, and of what the region waits
for (`liveness`): the same reasons as everywhere. A partition gets the first verdict of `LagVerdict` that fits; a group
and a region get the worst of theirs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

from airflow_kcr.protocol.region import rows
from airflow_kcr.protocol.region.liveness import NEVER, Liveness
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.region.waits import Rule, Wait
from airflow_kcr.protocol.values import Epoch, GroupId, GroupPartition, Offset, format_instant

WINDOW: Final = timedelta(minutes=10)
"""How far back a verdict looks."""

FEW: Final = 3
"""Of fewer samples than this, no trend is read."""

TREND: Final = timedelta(minutes=7)
"""Nor of samples that lie closer together."""

# Samples


class LagPoint(NamedTuple):
    """One partition in a sample; what was not known is None."""

    end: Offset | None
    """The last stable offset; the position, where nothing but markers lies beyond it."""

    position: Offset | None
    """The next offset to process."""

    committed: Offset | None
    """What Kafka holds for the group."""

    @property
    def lag(self) -> int | None:
        """How many offsets are left, so at most as many records."""
        return None if self.end is None or self.position is None else max(self.end - self.position, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LagSample:
    """The partitions of one group at one moment."""

    group: GroupId
    at: datetime
    """By the store's clock."""

    epoch: Epoch
    """Of the region: a position that goes back within one was moved by no reset of the region."""

    points: Mapping[GroupPartition, LagPoint]

    @property
    def lags(self) -> list[int | None]:
        """The lag of each point."""
        # As `LagPoint.lag`, which a page of 1,000 regions would call a million times.
        return [
            None if end is None or position is None else max(end - position, 0)
            for end, position, _ in self.points.values()
        ]


TIERS: Final = (
    (timedelta(hours=1), timedelta(minutes=1)),
    (timedelta(days=1), timedelta(minutes=15)),
    (timedelta(days=7), timedelta(hours=2)),
)
"""Up to which age one sample is kept in how much time: 60, 92 and 72 of each group."""

RECENT: Final = TIERS[0][0]
"""How far back samples are read to judge, and to tell how old a record is."""

MAX_POINTS: Final = 500_000
"""How many points are kept of a region: of more partitions than 2,000, fewer samples than the tiers have."""


class SampleKey(NamedTuple):
    """A kept sample, without what is in it."""

    group: GroupId
    at: datetime
    points: int


def surplus(kept: Iterable[SampleKey], now: datetime) -> list[SampleKey]:
    """Return the samples that need not be kept any more.

    In each stretch of time that has one sample of a group, the oldest stays, so that thinning again drops nothing
    else; and of all groups the newest, up to `MAX_POINTS`.

    Args:
        kept: all of a region.
        now: the store's clock.
    """
    newest_first = sorted(kept, key=lambda key: key.at, reverse=True)
    stays: dict[tuple[GroupId, timedelta, int], SampleKey] = {}
    newest: dict[GroupId, SampleKey] = {}
    for key in newest_first:
        newest.setdefault(key.group, key)
        step = next((step for age, step in TIERS if now - key.at <= age), None)
        if step is not None:
            stays[key.group, step, int(key.at.timestamp() // step.total_seconds())] = key
    wanted = {*stays.values(), *newest.values()}
    points, dropped = 0, []
    for key in newest_first:
        points += key.points if key in wanted else 0
        if key not in wanted or (points > MAX_POINTS and key != newest[key.group]):
            dropped.append(key)
    return dropped


# The verdict


class LagVerdict(StrEnum):
    """What the lag of a partition means: the first that fits, from above."""

    UNKNOWN = "unknown"
    """The position, or the end of the log, is not known: no sample is newer than ten minutes, the log is not there, or
    it is another one than that of the position."""

    REWOUND = "rewound"
    """Within ten minutes, the position or the committed offset went back, and no reset of the region did it: another
    program moved it. A reset or a recomputation is never this."""

    OK = "ok"
    """Nothing is left to read; or none of the following holds."""

    STOPPED = "stopped"
    """Records are left, and no member is there to read them: the region is halted or paused; its members, or the
    partition's owner, are away for longer than they may; no DAG run has asked for a checkpoint for two periods; or it
    is stopped, and not only until its next interval, for which it has two periods."""

    STALLED = "stalled"
    """Records are left, and the region waits for something for longer than it may; or the position has not moved in any
    sample of the last ten minutes, of which there are seven minutes or more, and nothing that the region waits for
    explains it."""

    WARN = "warn"
    """The position moves, but in the same time the lag has not become smaller from any sample to the next, and it is
    larger than it was: what reads is slower than what is written."""


_SEVERITY: Final = (
    LagVerdict.OK,
    LagVerdict.UNKNOWN,
    LagVerdict.WARN,
    LagVerdict.REWOUND,
    LagVerdict.STOPPED,
    LagVerdict.STALLED,
)
"""From the best to the worst."""

STANDING: Final = frozenset({LagVerdict.STOPPED, LagVerdict.STALLED})
"""Records are left, and no progress is made."""

TO_DO: Final[Mapping[Rule, str]] = {
    Rule.PERSON: "choose what `kcr region show` offers",
    Rule.MEMBERS: "start the members; their logs say why they ended",
    Rule.PARTITIONS: "look for the owner's process, and for foreign consumers with `kcr group validate`",
    Rule.RESET: "look at the members that it names, and at their logs",
    Rule.CHECKPOINT: "look at the member that it names, and at its running batch",
    Rule.PUBLISH: "look at the sink, and at the log of the member that publishes",
    Rule.RUN: "let Airflow run the DAG, or ask with `kcr region drain`",
    Rule.BOUNDARY: "look at the members' logs",
    Rule.REQUEST: "look at the members' logs",
    Rule.BATCH: "look at the batch in Spark's page; its sink may be locked",
    Rule.ENGINE: "give Spark executors, or raise the quota",
    Rule.RECORDS: "look at Spark's page and at the members' logs",
    Rule.RECONCILE: "look at the members' logs",
}
"""What to do about what a region waits for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LagFinding:
    """A verdict, and how it came about."""

    verdict: LagVerdict
    what: str = ""
    """A sentence; empty: there is nothing to say."""

    since: datetime | None = None
    """None: that is not known."""

    to_do: str = ""

    def text(self) -> str:
        """Return the finding as people read it."""
        since = "" if self.since is None else f" since {format_instant(self.since)}"
        told = f": {self.what}" if self.what else ""
        return f"{self.verdict}{since}{told}{f'; {self.to_do}' if self.to_do else ''}"


_OK: Final = LagFinding(verdict=LagVerdict.OK)
_EXPLAINED: Final = LagFinding(verdict=LagVerdict.OK, what="what the region waits for may last")
"""Why a position may stay where it is for a while."""

NO_SAMPLE: Final = LagFinding(verdict=LagVerdict.UNKNOWN, what="no sample is newer than ten minutes")
_NOT_KNOWN: Final = LagFinding(verdict=LagVerdict.UNKNOWN, what="its position or the end of its log is not known")


_Place: TypeAlias = tuple[LagSample, LagPoint]
"""A partition in one of its samples."""


def worst(findings: Iterable[LagFinding]) -> LagFinding:
    """Return the worst of several findings, of equal ones the earliest; of none, that nothing is known."""
    return min(
        findings,
        key=lambda f: (-_SEVERITY.index(f.verdict), NEVER if f.since is None else f.since),
        default=NO_SAMPLE,
    )


def judge(
    region: Region, now: datetime, waits: Liveness, samples: Sequence[LagSample]
) -> dict[GroupPartition, LagFinding]:
    """Return the verdict on each partition of the newest sample of each group.

    Args:
        region: as stored.
        now: the store's clock.
        waits: what the region waits for.
        samples: those of its groups, oldest first.
    """
    found: dict[GroupPartition, LagFinding] = {}
    for group, newest in {sample.group: sample for sample in samples if sample.at > now - WINDOW}.items():
        of_group = tuple(_group_findings(region, now, waits, group))
        own = [sample for sample in samples if sample.group == group]
        recent = [sample for sample in own if sample.at > now - WINDOW]
        earlier = own[: len(own) - len(recent)]
        for partition in newest.points:
            window = [(sample, point) for sample in recent if (point := sample.points.get(partition)) is not None]
            found[partition] = _of_partition(now, partition, window, earlier, of_group)
    return found


def _group_findings(region: Region, now: datetime, waits: Liveness, group: GroupId) -> Iterator[LagFinding]:
    """Yield what holds for all partitions of a group that have records left, stops before stalls."""
    concerned = [wait for wait in waits.waits if wait.group in {None, group}]
    resting = _resting(region, now)
    if resting is not None:
        yield resting
    for wait in concerned:
        if _is_unread(region, now, wait):
            yield _because(LagVerdict.STOPPED, wait)
    stalled = [wait for wait in concerned if wait.is_over(now)]
    # What a member lacks explains whatever has lasted for too long.
    lacking = [wait for wait in concerned if wait.rule is Rule.ENGINE]
    for wait in (*lacking, *stalled) if stalled else ():
        yield _because(LagVerdict.STALLED, wait)
    if concerned or region.state is not rows.RegionState.RUNNING:
        yield _EXPLAINED


def _because(verdict: LagVerdict, wait: Wait) -> LagFinding:
    return LagFinding(verdict=verdict, what=f"{wait.rule}: {wait.what}", since=wait.since, to_do=TO_DO[wait.rule])


def _is_unread(region: Region, now: datetime, wait: Wait) -> bool:
    match wait.rule:
        case Rule.PERSON:
            return True
        case Rule.MEMBERS | Rule.PARTITIONS:
            return wait.is_over(now)
        case Rule.RUN:
            return wait.since is not None and _periods_after(region, wait.since) <= now
        case _:
            return False


def _periods_after(region: Region, boundary: datetime) -> datetime:
    """Return two periods after a boundary; the boundary itself, where the region has none."""
    schedule = region.rules.checkpoint.schedule
    return boundary if schedule is None else schedule.after(schedule.after(boundary))


def _resting(region: Region, now: datetime) -> LagFinding | None:
    """Return what is to be said of a stopped region; None: it is not stopped."""
    if region.state is not rows.RegionState.STOPPED:
        return None
    checkpoint = region.restore_checkpoint
    since = None if checkpoint is None else checkpoint.boundary or checkpoint.finished_at
    if checkpoint is not None and checkpoint.boundary is not None:
        due = _periods_after(region, checkpoint.boundary)
        if now < due:
            return LagFinding(verdict=LagVerdict.OK, what="it rests until its next interval")
    what = "the region is stopped, and records are left to read"
    to_do = "start it with `kcr region start`; or, if it runs by intervals, let Airflow run the DAG"
    return LagFinding(verdict=LagVerdict.STOPPED, what=what, since=since, to_do=to_do)


def _of_partition(
    now: datetime,
    partition: GroupPartition,
    window: Sequence[_Place],
    before: Sequence[LagSample],
    of_group: Sequence[LagFinding],
) -> LagFinding:
    points = [point for _, point in window]
    left = points[-1].lag
    if left is None:
        return _NOT_KNOWN
    # Of thousands of partitions most stay as they are from sample to sample.
    changed = window if points.count(points[-1]) < len(points) else ()
    back = next((later for earlier, later in pairwise(changed) if _went_back(earlier, later)), None)
    if back is not None:
        what = f"it went back to {_lowest(back[1])}, and no reset of the region did it"
        to_do = "find out who moved it (`kcr group validate`), then reset the region to a checkpoint"
        return LagFinding(verdict=LagVerdict.REWOUND, what=what, since=back[0].at, to_do=to_do)
    if left == 0:
        return _OK
    if of_group and of_group[0] is not _EXPLAINED:
        return of_group[0]
    if len(window) < FEW or now - window[0][0].at < TREND:
        return _OK
    stays = all(point.position == points[-1].position and point.lag for _, point in changed)
    if stays and not of_group:
        return _unmoved(partition, window, before)
    return _OK if stays else _falling_behind(changed) or _OK


def _went_back(earlier: _Place, later: _Place) -> bool:
    (sample, (_, position, committed)), (next_sample, (_, next_position, next_committed)) = earlier, later
    return sample.epoch == next_sample.epoch and (
        (position is not None and next_position is not None and next_position < position)
        or (committed is not None and next_committed is not None and next_committed < committed)
    )


def _lowest(point: LagPoint) -> int:
    return min(offset for offset in (point.position, point.committed) if offset is not None)


def _unmoved(partition: GroupPartition, window: Sequence[_Place], before: Sequence[LagSample]) -> LagFinding:
    """The position stays, though there were records to read in each sample of the window."""
    since, position = window[0][0].at, window[-1][1].position
    for sample in reversed(before):
        point = sample.points.get(partition)
        if point is not None:
            if point.position != position or not point.lag:
                break
            since = sample.at
    what = f"records are left, and the position stays at {position}"
    to_do = "look at the owner's log, and at the batch in Spark's page"
    return LagFinding(verdict=LagVerdict.STALLED, what=what, since=since, to_do=to_do)


def _falling_behind(window: Sequence[_Place]) -> LagFinding | None:
    """The position moves, and the lag grows from sample to sample."""
    lags = [point.lag or 0 for _, point in window]
    grows = all(earlier <= later for earlier, later in pairwise(lags)) and lags[0] < lags[-1]
    if not grows or window[0][1].position == window[-1][1].position:
        return None
    what = f"its lag grows: from {lags[0]:,} to {lags[-1]:,} offsets"
    to_do = "give the group more members, or its Spark more executors"
    return LagFinding(verdict=LagVerdict.WARN, what=what, since=window[0][0].at, to_do=to_do)


# Sums, and time


def totals(lags: Iterable[int | None]) -> tuple[int | None, int | None]:
    """Return the sum of lags, None if there is none or one is not known; and the largest of those that are known."""
    found = [*lags]
    known = [lag for lag in found if lag is not None]
    return (sum(known) if known and len(known) == len(found) else None), max(known, default=None)


def stands_still(samples: Iterable[LagSample]) -> bool:
    """Whether a partition with records left is, in the newest sample of its group, where it was in the oldest."""
    oldest: dict[GroupId, LagSample] = {}
    newest: dict[GroupId, LagSample] = {}
    for sample in samples:
        oldest.setdefault(sample.group, sample)
        newest[sample.group] = sample
    return any(
        point.lag and before is not None and before.position == point.position
        for group, sample in newest.items()
        if sample is not oldest[group]
        for partition, point in sample.points.items()
        for before in (oldest[group].points.get(partition),)
    )


def course(groups: Collection[GroupId], samples: Iterable[LagSample]) -> tuple[int | None, ...]:
    """Return how many offsets groups had left at each sample, by the newest of each group then; the last one is now.

    It starts where there is a sample of each group. None: of a partition it was not known.

    Args:
        groups: all of the region.
        samples: of these groups, oldest first.
    """
    newest: dict[GroupId, int | None] = {}
    found: list[int | None] = []
    for sample in samples:
        newest[sample.group] = totals(sample.lags)[0]
        if newest.keys() >= {*groups}:
            found.append(totals(newest.values())[0])
    return tuple(found)


def came_before(samples: Iterable[LagSample], partition: GroupPartition, position: Offset) -> datetime | None:
    """Return by when the record at a position had come, by the history of ends; None: the history does not say.

    It is the first sample whose log ended beyond it, so the record is at least that old: nothing is extrapolated. The
    oldest kept sample says nothing, as the record may have come long before.
    """
    is_known = False
    for sample in samples:
        point = sample.points.get(partition)
        if point is None or point.end is None:
            continue
        if point.end > position:
            return sample.at if is_known else None
        is_known = True
    return None


def caught_up_in(now: datetime, lags: Sequence[tuple[datetime, int]]) -> timedelta | None:
    """Return how long a group needs to read what is left, as fast as its lag fell in the last ten minutes.

    None: it does not fall, or there are too few samples to tell.

    Args:
        now: the store's clock.
        lags: when, and how many offsets were left; oldest first.
    """
    window = [(at, lag) for at, lag in lags if at > now - WINDOW]
    if len(window) < FEW or window[-1][1] >= window[0][1]:
        return None
    fell, took = window[0][1] - window[-1][1], window[-1][0] - window[0][0]
    return took * window[-1][1] / fell
