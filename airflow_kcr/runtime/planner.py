"""What the next batch reads: from the positions to the ends of the logs, never across a boundary.

The order of the questions is what makes a boundary exact: the ends of the logs are read first, then the time index is
asked, so a batch planned from such a pair holds no record that the look-up did not see
(docs/explanation/checkpoints-and-dag-runs.md, scenarios C5, C26).
The pair is kept: while it shows enough to do, plans are cut from it without asking the brokers again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from airflow_kcr.ports import Logs
from airflow_kcr.protocol.member.messages import RangesPlanned
from airflow_kcr.protocol.observations import LogBounds, TimeAnswer
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region import boundaries, timelines
from airflow_kcr.protocol.region.rows import BoundaryOffset
from airflow_kcr.protocol.region.view import MemberRegion
from airflow_kcr.protocol.values import BatchId, GroupPartition, Offset, Range
from airflow_kcr.runtime.leases import Clock, StoreClock

KEPT: Final = 2.0
"""Seconds for which what was read of the logs is planned from, as long as it has enough for a whole batch.

Longer, and retention could overtake a position unseen; the end of a log only ever grows meanwhile.
"""

AT_END: Final = 10.0
"""As `KEPT`, while a member is at the end of each of its logs, and asks only whether they still end there.

There is nothing that retention could overtake. A topic that was made again shows by its end; where that is the same,
by its id when the logs are read again, which every plan with a record does.
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
class ReadableRanges:
    """How far one partition may be read now."""

    ranges: dict[GroupPartition, int] = field(default_factory=dict)
    """Partition to the offset at which reading has to stop; only those with something to read."""

    boundary_offsets: dict[GroupPartition, BoundaryOffset] = field(default_factory=dict)
    outside: dict[GroupPartition, LogBounds] = field(default_factory=dict)


NOTHING: Final = ReadableRanges()
"""Nothing to read, nothing to tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a batch may be; `batch` in the spec."""

    target: timedelta
    least: int
    """Records; the floor of the size, not of a batch: one with less to read is smaller."""

    most: int
    linger: timedelta = timedelta(0)
    """How long a batch of fewer than `least` is waited with, from when the first of them was seen.

    Each batch costs something whatever its size: start and finish in the store, a Spark job, a file of the pipeline's.
    """

    longest: timedelta = timedelta(seconds=30)
    """No batch is made larger than what is estimated to take this long: well below its timeout."""


class Planner:
    """Plans the batches of one member; used by one thread.

    Args:
        logs: the cluster's.
        clock: the member's.
        store_clock: what is known of the store's.
        grace: `checkpoint.grace`.
        limits: of a batch.
    """

    def __init__(self, logs: Logs, clock: Clock, store_clock: StoreClock, grace: timedelta, limits: Limits) -> None:
        self._logs, self._clock, self._store_clock = logs, clock, store_clock
        self.grace = grace
        """Of boundaries; may be changed at any time, from any thread: a plan reads it once."""

        self.limits = limits
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
        limits, available = self.limits, _available(reach, positions)
        awaited = (
            view.checkpoint is not None
            or view.records_left is not None
            or view.boundary_offsets
            or reach.boundary_offsets
        )
        if not 0 < available < min(limits.least, size) or awaited:
            self._few_since = None
            return False
        if self._few_since is None:
            self._few_since = self._clock()
        if self._clock() - self._few_since < limits.linger.total_seconds():
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
        if seen.boundary != view.limit or not positions.keys() <= seen.logs.keys():
            return False
        is_at_end = all(position == seen.logs[p].end for p, position in positions.items())
        return self._clock() - seen.at < (AT_END if is_at_end else KEPT)

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
    if claim is not None and timelines.is_recreated(claim.topic_id, log.topic_id):
        return True
    # A position behind a skipped record may lie one past the end that does not count it.
    return position not in log and position - 1 not in view.skips.get(partition, ())


GROWTH: Final = 8.0
"""How much larger one batch may be than the one before it."""

SHRINKAGE: Final = 0.25
"""How much smaller."""

FULL: Final = 0.9
"""The share of the size from which on a batch counts as full."""

REMEMBERED: Final = 8
"""How many batches the estimate is made from: some, so that one odd measurement does not throw it far off."""

PATIENCE: Final = 32
"""How many full batches stay below half of one that failed, before one as large is tried again."""

IMPATIENCE: Final = 4
"""How many times as many once that has failed again."""

SPREAD: Final = 1.5
"""How much the largest of them must exceed the smallest before the two costs can be told apart."""

Measured: TypeAlias = tuple[int, float]
"""Records of a batch, and the seconds that it took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSize:
    """The size of the next batch, in records, and what is known of the last ones."""

    limits: Limits
    records: int
    measured: tuple[Measured, ...] = ()
    overhead: float = 0.0
    """Seconds that a batch costs by itself, as last estimated."""

    tried: bool = False
    """Whether a larger batch was made only to tell the two costs apart."""

    failures: int = 0
    """Batches in a row that failed or ran into their timeout."""

    lowered: int | None = None
    """The floor after such a batch; None: that of the limits. It lasts until the pipeline is fast enough for that."""

    failed: int | None = None
    """Records of the smallest batch that failed; None: since then one as large has done its work."""

    held: int = 0
    """How many full batches have to stay below half of that yet."""

    patience: int = PATIENCE
    """What `held` becomes with the next failure."""

    @classmethod
    def first(cls, limits: Limits) -> BatchSize:
        """Return the size that a member begins with: the floor, as nothing is known of the pipeline."""
        return cls(limits=limits, records=limits.least)

    def within(self, limits: Limits) -> BatchSize:
        """Return the size under other limits; what was measured stays."""
        within = replace(self, limits=limits)
        return replace(within, records=within._allowed(max(self.records, within._floor())))  # noqa: SLF001 (its own)

    def after(self, records: int, seconds: float) -> BatchSize:
        """Return the size after a batch.

        Args:
            records: how many offsets its ranges spanned.
            seconds: how long the pipeline's call took, reading included.
        """
        if records <= 0:
            return self
        measured = (*self.measured, (records, max(seconds, 1e-3)))[-REMEMBERED:]
        overhead = min(_overhead(measured, self.overhead), *(s for _, s in measured))
        known = replace(self._trusting(records), measured=measured, overhead=overhead, failures=0)
        is_full = records >= self.records * FULL
        if is_full and known._is_in_the_dark():  # noqa: SLF001 (its own)
            return replace(known, records=known._allowed(2 * self.records), tried=True)  # noqa: SLF001
        wanted = known._wanted()  # noqa: SLF001
        if wanted >= self.limits.least:
            known = replace(known, lowered=None)
        if wanted > self.records and not is_full:
            return known
        bounded = min(max(wanted, self.records * SHRINKAGE, known._floor()), self.records * GROWTH)  # noqa: SLF001
        return replace(known, records=known._allowed(bounded))  # noqa: SLF001

    def slowed(self, records: int, seconds: float) -> BatchSize:
        """Return the size after a batch that waited for its records: of fewer it takes less, so the floor gives way.

        Args:
            records: how many offsets its ranges spanned.
            seconds: how long the pipeline's call took, reading included.
        """
        known, fits = self.after(records, seconds), int(records * self.limits.longest.total_seconds() / seconds)
        # A fetch may wait for ten seconds however few it asks for.
        if 2 * fits >= records or fits >= known._floor():  # noqa: SLF001 (its own)
            return known
        return replace(known, lowered=max(fits, 1), records=max(fits, 1))

    def after_failure(self, records: int, seconds: float) -> BatchSize:
        """Return the size after a batch that failed, or was cancelled because it ran into its timeout.

        What was measured before is forgotten: the pipeline is another one now, or the records are.

        Args:
            records: how many offsets its ranges spanned.
            seconds: how long it ran.
        """
        failures = self.failures + 1
        share = SHRINKAGE**failures
        fits = self.limits.target.total_seconds() / max(seconds, 1e-3)
        lowered = max(min(self.lowered or self.limits.least, int(records * share)), 1)
        again = self.failed is not None and self.failures == 0
        patience = self.patience * IMPATIENCE if again else self.patience
        known = BatchSize(
            limits=self.limits,
            records=records,
            failures=failures,
            lowered=lowered,
            failed=records if self.failed is None else min(self.failed, records),
            held=patience,
            patience=patience,
        )
        return replace(known, records=known._allowed(max(records * min(share, fits), lowered)))

    def warned(self, failures: int) -> BatchSize:
        """Return the size of a member that has run no batch yet, in a region that counts failures.

        Args:
            failures: of the region, since progress was last accepted; they may be another process' batches.
        """
        if not failures or self.measured or self.failures:
            return self
        # As far down as `after_failure` would have come one by one.
        failed = max(int(self.limits.least * SHRINKAGE ** (failures * (failures - 1) // 2)), 2)
        size = max(int(failed * SHRINKAGE**failures), 1)
        return replace(self, records=size, lowered=size, failures=failures, failed=failed, held=PATIENCE)

    def _trusting(self, records: int) -> BatchSize:
        """Return what is held against large batches after one of this size has done its work."""
        if self.failed is None or records < self.failed:
            full = records >= self._ceiling() * FULL
            return replace(self, held=max(self.held - 1, 0)) if full else self
        return replace(self, failed=None, held=0, patience=PATIENCE)

    def _ceiling(self) -> int:
        if self.failed is None or not self.held:
            return self.limits.most
        return min(max(self.failed // 2, 1), self.limits.most)

    def _floor(self) -> int:
        return self.limits.least if self.lowered is None else min(self.lowered, self.limits.least)

    def _allowed(self, records: float) -> int:
        return max(round(min(records, self._ceiling())), 1)

    def _is_in_the_dark(self) -> bool:
        """Whether even the smallest batch takes too long: a larger one then tells whether it is the records' doing."""
        slowest = max(s for _, s in self.measured)
        at_floor = self.records <= self.limits.least and not _differ(self.measured)
        affordable = 2 * slowest <= self.limits.longest.total_seconds()
        return at_floor and not self.tried and affordable and slowest > self.limits.target.total_seconds()

    def _wanted(self) -> float:
        target, longest = self.limits.target.total_seconds(), self.limits.longest.total_seconds()
        total, seconds = sum(n for n, _ in self.measured), sum(s for _, s in self.measured)
        each = max((seconds - self.overhead * len(self.measured)) / total, 1e-9)
        fits = (target - self.overhead) / each
        worth = self.overhead / each if self.overhead > target / 2 else 0.0
        return min(max(fits, worth), (longest - self.overhead) / each)


def _differ(measured: tuple[Measured, ...]) -> bool:
    sizes = [n for n, _ in measured]
    return max(sizes) >= SPREAD * min(sizes)


def _overhead(measured: tuple[Measured, ...], before: float) -> float:
    """Return what a batch costs by itself: where the straight line through the last ones begins.

    Batches of one size tell nothing of it; then the estimate stays what it was.
    """
    if not _differ(measured):
        return before
    count = len(measured)
    mean_n, mean_s = sum(n for n, _ in measured) / count, sum(s for _, s in measured) / count
    slope = sum((n - mean_n) * (s - mean_s) for n, s in measured) / sum((n - mean_n) ** 2 for n, _ in measured)
    return max(mean_s - max(slope, 0.0) * mean_n, 0.0)


def shares(backlog: Mapping[GroupPartition, int], size: int) -> dict[GroupPartition, int]:
    """Return how many records each partition gives to a batch of at most `size`; none of it is 0.

    Args:
        backlog: records that each partition has; those with none are left out of the answer.
        size: of the batch, >= 1.
    """
    waiting = {p: n for p, n in sorted(backlog.items()) if n > 0}
    total = sum(waiting.values())
    if total <= size:
        return waiting
    # One for each first, or a short backlog beside a long one would have to wait for the end of that.
    least = 1 if len(waiting) <= size else 0
    size, total = size - least * len(waiting), total - least * len(waiting)
    given = {p: least + (n - least) * size // total for p, n in waiting.items()}
    # What the division left over goes to those that it shortened most, the longest backlog first where equal.
    rest = size + least * len(waiting) - sum(given.values())
    by_loss = sorted(waiting, key=lambda p: (-((waiting[p] - least) * size % total), -waiting[p], p))
    for partition in by_loss[:rest]:
        given[partition] += 1
    return {p: n for p, n in given.items() if n > 0}
