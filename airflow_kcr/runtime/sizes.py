"""How many records the next batch takes, and how they are shared out (docs/explanation/decisions.md).

Rules:

- A batch costs something by itself and something for each record. Both are estimated from the last batches, and the
  next one takes as many records as fit into the target duration, within a factor of the one before it.
- If a batch by itself costs more than half of the target, small batches would do nothing else: it then takes enough
  records to cost as much as the batch does.
- A batch that took less than was allowed, because there was no more, says nothing about larger ones.
- A batch that failed, or ran into its timeout, makes the next one smaller, and each further one in a row more so, below
  the floor too: else the same batch would be planned again until the region halts. Its records in the time that it ran
  are the most that the pipeline can be trusted with. No batch comes near its size again before many smaller ones have
  done their work, and many more each time that it fails again: between two failures there has to be time for a
  checkpoint. A process that has run no batch yet uses the failures that the region counts: the process that saw them
  may be gone.
- Shares follow the backlog of each partition, so that all come to their ends together and a skewed one is not left
  behind. Every partition with a backlog gets at least one record, if there are enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final, TypeAlias

from airflow_kcr.protocol.values import GroupPartition

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
class Limits:
    """What a batch may be; `batch` in the spec."""

    target: timedelta
    least: int
    """Records; the floor of the size, not of a batch: one with less to read is smaller."""

    most: int
    linger: timedelta = timedelta(0)
    """How long a batch of fewer than `least` is waited with; see `planner.Linger`."""

    longest: timedelta = timedelta(seconds=30)
    """No batch is made larger than what is estimated to take this long: well below its timeout."""


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
        if known._is_in_the_dark():  # noqa: SLF001 (its own)
            return replace(known, records=known._allowed(2 * self.records), tried=True)  # noqa: SLF001
        wanted = known._wanted()  # noqa: SLF001
        if wanted >= self.limits.least:
            known = replace(known, lowered=None)
        if wanted > self.records and records < self.records * FULL:
            return known
        bounded = min(max(wanted, self.records * SHRINKAGE, known._floor()), self.records * GROWTH)  # noqa: SLF001
        return replace(known, records=known._allowed(bounded))  # noqa: SLF001

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
