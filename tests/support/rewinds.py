"""What resets have undone of batches, found out from whole seek maps: the store finds it out in SQL."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

from airflow_kcr.protocol.offsets import SeekMap
from airflow_kcr.protocol.region import rows
from airflow_kcr.protocol.region.timelines import undone
from airflow_kcr.protocol.values import Epoch, GroupPartition, Offset


class Rewinds:
    """How far back resets went on each partition, by epoch.

    Args:
        seek_maps: of all epochs that had one; open entries don't count.
    """

    __slots__ = ("_steps",)

    def __init__(self, seek_maps: Mapping[Epoch, SeekMap]) -> None:
        newest_first: dict[GroupPartition, list[tuple[Epoch, Offset]]] = {}
        for epoch in sorted(seek_maps, reverse=True):
            for partition, entry in seek_maps[epoch].items():
                if entry.offset is None:
                    continue
                steps = newest_first.setdefault(partition, [])
                steps.append((epoch, min(entry.offset, steps[-1][1]) if steps else entry.offset))
        self._steps = {partition: steps[::-1] for partition, steps in newest_first.items()}
        """Of each epoch with an entry the lowest offset of it and all later ones; ascending in both."""

    def lowest_after(self, partition: GroupPartition, epoch: Epoch) -> Offset | None:
        """Return the lowest offset that a reset of a later epoch sent a partition to; None: none did."""
        steps = self._steps.get(partition, [])
        after = bisect_right(steps, epoch, key=lambda step: step[0])
        return steps[after][1] if after < len(steps) else None

    def seen_in(self, batch: rows.Batch) -> rows.Batch:
        """Return a batch as the ledger shows it: with what these resets have undone of it."""
        if batch.outcome is not rows.Outcome.DONE:
            return batch
        epoch = batch.accepted_in
        lowest = {p: o for p in batch.ranges if (o := self.lowest_after(p, epoch)) is not None}
        return undone(batch, lowest)
