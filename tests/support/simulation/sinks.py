"""Where output goes: an unfenced sink that keeps whatever was written, and a fenced one that publishes transactions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_kcr.protocol.values import BatchId, Epoch, GroupPartition, Offset, Range, Timeline


@dataclass(slots=True)
class OpenSink:
    """Keeps every record that a task wrote, by which batch; discarded work stays visible."""

    written: list[tuple[GroupPartition, int, BatchId]] = field(default_factory=list)

    def write(self, batch: BatchId, ranges: Mapping[GroupPartition, Range], share: float = 1.0) -> None:
        """Write the first `share` of each range: a task that dies has written some of it."""
        for partition, range_ in ranges.items():
            upto = range_.from_ + round(range_.width * share)
            self.written.extend((partition, offset, batch) for offset in range(range_.from_, upto))

    def count(self) -> Counter[tuple[GroupPartition, int]]:
        """How often each record was written."""
        return Counter((partition, offset) for partition, offset, _ in self.written)


@dataclass(slots=True)
class FencedSink:
    """One database: a fence row per group, a progress row per partition, and rows; one transaction a batch."""

    fence: Epoch = Epoch(0)
    timeline: Timeline = Timeline(0)
    progress: dict[GroupPartition, tuple[Timeline, Offset]] = field(default_factory=dict)
    rows: Counter[tuple[GroupPartition, int]] = field(default_factory=Counter)
    refused: int = 0

    def raise_fence(self, epoch: Epoch) -> bool:
        """Raise the fence, and say whether it stands at `epoch` now; it never goes down."""
        self.fence = max(self.fence, epoch)
        return self.fence == epoch

    def found(self, partition: GroupPartition, timeline: Timeline) -> Offset | None:
        """The progress of a partition in this timeline; that of a lower one is none."""
        row = self.progress.get(partition)
        return row[1] if row is not None and row[0] == timeline else None

    def roll_back(self, partition: GroupPartition, timeline: Timeline, offset: Offset) -> None:
        """A new timeline begins at `offset`: what is newer goes, and progress is set there."""
        row = self.progress.get(partition)
        if row is not None and row[0] >= timeline:
            return
        for key in [k for k in self.rows if k[0] == partition and k[1] >= offset]:
            del self.rows[key]
        self.progress[partition] = (timeline, offset)

    def step_over(self, skips: Mapping[GroupPartition, tuple[Offset, ...]]) -> None:
        """Move progress that stands at a skipped record past it."""
        for partition, skipped in skips.items():
            for offset in skipped:
                row = self.progress.get(partition)
                if row is not None and row[1] == offset:
                    self.progress[partition] = (row[0], Offset(offset + 1))

    def publish(
        self,
        epoch: Epoch,
        timeline: Timeline,
        ranges: Mapping[GroupPartition, Range],
        progress: Mapping[GroupPartition, Offset],
    ) -> bool:
        """Publish a batch: only under the present fence, only from where progress is."""
        ok = epoch == self.fence and all(
            self.progress.get(p, (timeline, r.from_)) == (timeline, r.from_) for p, r in ranges.items()
        )
        if not ok:
            self.refused += 1
            return False
        for partition, range_ in ranges.items():
            self.rows.update((partition, offset) for offset in range(range_.from_, range_.to))
            self.progress[partition] = (timeline, progress[partition])
        return True

    def replace(self, ranges: Mapping[GroupPartition, tuple[Range, ...]]) -> None:
        """Exchange the rows of ranges in one transaction: what is there goes, and each record is there once."""
        for partition, its in ranges.items():
            for range_ in its:
                self.rows.update({(partition, o): 1 - self.rows[partition, o] for o in range(range_.from_, range_.to)})
