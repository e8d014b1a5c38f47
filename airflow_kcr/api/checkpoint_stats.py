"""How long checkpoints took: by phase, and by member."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from math import ceil
from statistics import median

from airflow_kcr.api.views import AnswerColumns, View
from airflow_kcr.protocol.region.rows import Checkpoint, CheckpointState
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.values import CheckpointNumber, MemberId


class Phase(StrEnum):
    """A phase of a checkpoint."""

    DRAIN = "drain"
    """From its opening, or from its boundary, until all members had contributed."""

    PUBLISH = "publish"
    """From then until all sinks showed it."""


def phases(checkpoint: Checkpoint) -> Mapping[Phase, timedelta]:
    """Return how long the phases of a complete checkpoint took, as far as they are over."""
    complete, published = checkpoint.finished_at, checkpoint.published_at
    found = {} if complete is None else {Phase.DRAIN: _positive(complete - _begun(checkpoint))}
    return found if complete is None or published is None else found | {Phase.PUBLISH: _positive(published - complete)}


def _begun(checkpoint: Checkpoint) -> datetime:
    """Return when it could drain: what it is opened before its boundary is no work of it."""
    return max(checkpoint.opened_at, checkpoint.boundary or checkpoint.opened_at)


def _positive(time: timedelta) -> timedelta:
    return max(time, timedelta(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStats(View):
    """How long something took in several checkpoints."""

    shown = AnswerColumns["CheckpointStats"](
        ("phase", lambda s: s.what),
        "checkpoints",
        ("median_seconds", lambda s: s.median.total_seconds()),
        ("p90_seconds", lambda s: s.p90.total_seconds()),
        ("max_seconds", lambda s: s.longest.total_seconds()),
        "slowest",
    )

    what: str
    """A phase, or a member: until it had contributed."""

    checkpoints: int
    median: timedelta
    p90: timedelta
    """At most nine in ten took longer than this; one of the times, nothing between two."""

    longest: timedelta
    slowest: CheckpointNumber
    """The checkpoint that took longest."""


def stats(region: Region, after: datetime) -> tuple[CheckpointStats, ...]:
    """Return how long the phases took, and each member, in the checkpoints complete since an instant; slowest first.

    Retired checkpoints have no members' times any more.
    """
    taken: defaultdict[tuple[bool, str], list[tuple[timedelta, CheckpointNumber]]] = defaultdict(list)
    for row in _since(region, after):
        for phase, took in phases(row).items():
            taken[False, str(phase)].append((took, row.sequence))
        for member, took in _by_member(region, row):
            taken[True, str(member)].append((took, row.sequence))
    found = [(is_member, _stats(what, times)) for (is_member, what), times in taken.items()]
    return tuple(one for _, one in sorted(found, key=lambda pair: (pair[0], -pair[1].median, pair[1].what)))


def _since(region: Region, after: datetime) -> Iterator[Checkpoint]:
    before: CheckpointNumber | None = None
    while page := region.archive.checkpoints(before=before, last=100):
        yield from (row for row in page if row.finished_at is not None and row.finished_at > after and row.is_current)
        if page[0].opened_at <= after:
            return
        before = page[0].sequence


def _by_member(region: Region, row: Checkpoint) -> Iterable[tuple[MemberId, timedelta]]:
    if row.state is CheckpointState.RETIRED:
        return  # asked for each, they would cost as much as the history is long
    for member, part in region.archive.contributions(row.sequence).items():
        yield member, _positive(part.contributed_at - _begun(row))


def _stats(what: str, times: list[tuple[timedelta, CheckpointNumber]]) -> CheckpointStats:
    ordered = sorted(times)
    took = [time for time, _ in ordered]
    return CheckpointStats(
        what=what,
        checkpoints=len(took),
        median=timedelta(seconds=median(time.total_seconds() for time in took)),
        p90=took[ceil(0.9 * len(took)) - 1],
        longest=took[-1],
        slowest=ordered[-1][1],
    )
