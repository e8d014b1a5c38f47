"""What the next batch reads: from the positions to the ends of the logs, never across a boundary.

The order of the questions is what makes a boundary exact: the ends of the logs are read first, then the time index is
asked, so a batch planned from such a pair holds no record that the look-up did not see
(docs/explanation/checkpoints-and-dag-runs.md, scenarios C5, C26).
The pair is kept: while it shows enough to do, plans are cut from it without asking the brokers again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from airflow_kcr.ports import Logs
from airflow_kcr.protocol.member.events import RangesPlanned
from airflow_kcr.protocol.observations import LogBounds, TimeAnswer
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region import boundaries, recreated_topics
from airflow_kcr.protocol.region.rows import BoundaryOffset
from airflow_kcr.protocol.region.view import MemberRegion
from airflow_kcr.protocol.values import BatchId, GroupPartition, Offset, Range
from airflow_kcr.runtime.clocks import Clock, StoreClock
from airflow_kcr.runtime.sizes import shares

KEPT: Final = 2.0
"""Seconds for which what was read of the logs is planned from, as long as it has enough for a whole batch.

Longer, and retention could overtake a position unseen; the end of a log only ever grows meanwhile.
"""

RECENT: Final = 0.25
"""Seconds for which what was read of the logs may be told to others: where they begin moves behind our back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogsSeen:
    """The logs as they were read, and the time index as it was asked after that."""

    logs: Mapping[GroupPartition, LogBounds]
    boundary: datetime | None
    answers: Mapping[GroupPartition, TimeAnswer]
    """For the boundary, where its offset was not known."""

    at: float
    """When the first of it was asked, by the member's clock."""

    now: datetime
    """A moment that the store's clock had reached then: records of before it that were in the logs have been seen."""

    highs: Mapping[GroupPartition, Offset] = field(default_factory=dict)
    """The high watermarks, read before the logs' bounds; only where the boundary may be decided without a record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Linger:
    """How long a member waits for records before it takes the few that there are; `batch.linger` in the spec.

    Each batch costs something whatever its size: begin and end in the store, a Spark job, a file of the pipeline's.
    """

    least: int = 0
    """Records that are not few any more."""

    longest: timedelta = timedelta(0)
    """From when the first of them was seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadableRanges:
    """How far one partition may be read now."""

    ranges: dict[GroupPartition, int] = field(default_factory=dict)
    """Partition to the offset at which reading has to stop; only those with something to read."""

    boundary_offsets: dict[GroupPartition, BoundaryOffset] = field(default_factory=dict)
    outside: dict[GroupPartition, LogBounds] = field(default_factory=dict)


NOTHING: Final = ReadableRanges()
"""Nothing to read, nothing to tell."""

NO_LINGER: Final = Linger()
"""Whatever there is is taken at once."""


class Planner:
    """Plans the batches of one member; used by one thread.

    Args:
        logs: the cluster's.
        clock: the member's.
        store_clock: what is known of the store's.
        grace: `checkpoint.grace`.
        linger: how long few records are waited with.
    """

    def __init__(
        self, logs: Logs, clock: Clock, store_clock: StoreClock, grace: timedelta, linger: Linger = NO_LINGER
    ) -> None:
        self._logs, self._clock, self._store_clock = logs, clock, store_clock
        self.grace = grace
        """Of boundaries; may be changed at any time, from any thread: a plan reads it once."""

        self.linger = linger
        """As `grace`."""

        self._seen: LogsSeen | None = None
        self._few_since: float | None = None
        """Since when there have been records, too few to be taken."""

    def plan(self, batch: BatchId, positions: OffsetMap, view: MemberRegion, size: int) -> RangesPlanned:
        """Return the next ranges, and where the boundary falls in partitions that lacked it.

        Args:
            batch: what the batch will be called.
            positions: the member's, of every claimed partition.
            view: what it sees of its region: the boundary, skipped records, the count of the next checkpoint.
            size: how many records the batch may take.

        Raises:
            BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse.
        """
        seen = self._seen
        reach = (
            None if seen is None or not self._is_fresh(seen, positions, view) else self._reach(positions, view, seen)
        )
        if seen is not None and reach == NOTHING and self._has_nothing_new(seen, positions, view):
            self._few_since = None
            return RangesPlanned(batch=batch, ranges={}, boundary=view.limit)
        # Outside of a log is declared only after it was read again, and a boundary only from a look-up of its own.
        if reach is None or reach.outside or _available(reach, positions) < size:
            seen = self._seen = self._read_logs(positions, view)
            reach = self._reach(positions, view, seen)
        if self._lingers(positions, view, reach, size):
            return RangesPlanned(batch=batch, ranges={}, boundary=view.limit, outside=reach.outside)
        most = size if view.records_left is None else min(size, view.records_left)
        backlog = {p: to - positions[p] for p, to in reach.ranges.items()}
        taken = shares(backlog, most) if most > 0 else {}
        ranges = {p: Range(positions[p], Offset(positions[p] + n)) for p, n in sorted(taken.items())}
        return RangesPlanned(
            batch=batch,
            ranges=ranges,
            boundary=view.limit,
            boundary_offsets=reach.boundary_offsets,
            outside=reach.outside,
        )

    def _lingers(self, positions: OffsetMap, view: MemberRegion, reach: ReadableRanges, size: int) -> bool:
        """Whether there is so little to read that more is waited for.

        Never if something waits for the records: a boundary that has passed, an open checkpoint, or a count of records
        to be reached. Nor where the batch may take no more than there is.
        """
        linger, available = self.linger, _available(reach, positions)
        awaited = (
            view.checkpoint is not None
            or view.records_left is not None
            or view.boundary_offsets
            or reach.boundary_offsets
        )
        if not 0 < available < min(linger.least, size) or awaited:
            self._few_since = None
            return False
        if self._few_since is None:
            self._few_since = self._clock()
        if self._clock() - self._few_since < linger.longest.total_seconds():
            return True
        self._few_since = None
        return False

    def logs_seen(self, partitions: frozenset[GroupPartition]) -> dict[GroupPartition, LogBounds]:
        """Return the logs' bounds, read just now: a contribution tells where the logs begin, and resets rely on it.

        Raises:
            BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse.
        """
        seen = self._seen
        if seen is not None and self._clock() - seen.at < RECENT and partitions <= seen.logs.keys():
            return {p: seen.logs[p] for p in partitions}
        return self._logs.bounds(partitions)

    def forget(self) -> None:
        """Read the logs again for the next plan: partitions, epoch or positions are others now."""
        self._seen = None

    @property
    def ends(self) -> Mapping[GroupPartition, LogBounds]:
        """The logs as they were last read; for what is shown, from any thread."""
        seen = self._seen
        return {} if seen is None else seen.logs

    def _is_fresh(self, seen: LogsSeen, positions: OffsetMap, view: MemberRegion) -> bool:
        young = self._clock() - seen.at < KEPT
        return young and seen.boundary == view.limit and positions.keys() <= seen.logs.keys()

    def _has_nothing_new(self, seen: LogsSeen, positions: OffsetMap, view: MemberRegion) -> bool:
        """Whether the logs still end where they did when there was nothing to read, which is asked most of the time.

        Where a boundary is looked for that has passed, time itself may tell where it falls, so all is asked.
        """
        awaited = view.limit is not None and not positions.keys() <= view.boundary_offsets.keys()
        if awaited and view.limit is not None and self._store_clock.now() >= view.limit:
            return False
        ends = self._logs.stable_ends(positions.keys())
        return all(p in ends and ends[p] == seen.logs[p].end for p in positions)

    def _read_logs(self, positions: OffsetMap, view: MemberRegion) -> LogsSeen:
        at, now, boundary = self._clock(), self._store_clock.now(), view.limit
        unknown = {p for p in positions if p in view.claims and p not in view.boundary_offsets}
        is_late = boundary is not None and now >= boundary + self.grace
        highs = self._logs.high_watermarks(unknown) if is_late and unknown else {}
        logs = self._logs.bounds(positions.keys())
        answers: Mapping[GroupPartition, TimeAnswer] = {}
        if boundary is not None:
            asked = dict.fromkeys(unknown & logs.keys(), boundary)
            answers = self._logs.first_at_or_after(asked) if asked else {}
        return LogsSeen(logs=logs, boundary=boundary, answers=answers, at=at, now=now, highs=highs)

    def _reach(self, positions: OffsetMap, view: MemberRegion, seen: LogsSeen) -> ReadableRanges:
        reach = ReadableRanges()
        for partition, position in positions.items():
            log = seen.logs.get(partition)
            if log is None:
                # The topic is gone, or not there yet for this broker: nothing can be read, and its claim will say why.
                continue
            if _is_outside(position, log, partition, view):
                reach.outside[partition] = log
                continue
            row = self._boundary_offset(partition, view, log, seen)
            if row is not None and partition not in view.boundary_offsets:
                reach.boundary_offsets[partition] = row
            to = int(log.end) if row is None else min(int(log.end), max(int(row.offset), int(position)))
            to = min((int(s) for s in view.skips.get(partition, ()) if position <= s < to), default=to)
            if to > position:
                reach.ranges[partition] = to
        return reach

    def _boundary_offset(
        self, partition: GroupPartition, view: MemberRegion, log: LogBounds, seen: LogsSeen
    ) -> BoundaryOffset | None:
        known, answer = view.boundary_offsets.get(partition), seen.answers.get(partition)
        if known is not None or answer is None or seen.boundary is None:
            return known
        return boundaries.locate(
            boundary=seen.boundary,
            end_before=log,
            answer=answer,
            restore_point=view.restore_point.get(partition, Offset(0)),
            now=seen.now,
            grace=self.grace,
            high_before=seen.highs.get(partition),
        )


def _available(reach: ReadableRanges, positions: OffsetMap) -> int:
    return sum(to - positions[p] for p, to in reach.ranges.items())


def _is_outside(position: Offset, log: LogBounds, partition: GroupPartition, view: MemberRegion) -> bool:
    claim = view.claims.get(partition)
    if claim is not None and recreated_topics.is_another(claim.topic_id, log.topic_id):
        return True
    # A position behind a skipped record may lie one past the end that does not count it.
    return position not in log and position - 1 not in view.skips.get(partition, ())
