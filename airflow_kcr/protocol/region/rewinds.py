"""What resets have undone: derived on demand from where they sent the partitions.

A reset is a fact about offsets. It undoes whatever had been accepted before it at or beyond its seek offsets, so what
is undone of a batch follows from the lowest seek offset of all epochs after the one it was accepted in. Nothing is
written for that in any batch: a reset costs what its seek map costs, however much it undoes.

Why the epoch says it all: while an entry of a seek map is open, nothing is started on its partition, so an entry that
is written late undoes nothing of its own epoch; nothing of an older epoch is accepted once the next one has started,
but for what a sink's progress proves, and that says in which epoch it was proven (`Batch.accepted_in`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import replace

from airflow_kcr.protocol.region.rows import Batch, Outcome
from airflow_kcr.protocol.seek_map import SeekMap
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

    def seen_in(self, batch: Batch) -> Batch:
        """Return a batch as the ledger shows it: with what these resets have undone of it."""
        if batch.outcome is not Outcome.DONE:
            return batch
        epoch = batch.accepted_in
        lowest = {p: o for p in batch.ranges if (o := self.lowest_after(p, epoch)) is not None}
        return undone(batch, lowest)


def undone(batch: Batch, lowest: Mapping[GroupPartition, Offset]) -> Batch:
    """Return a batch after resets: what it did at or beyond where they went is undone.

    A reset inside a range leaves the outcome and notes from where on; once every range is undone from its start, the
    outcome is.

    Args:
        batch: as it was accepted.
        lowest: of all resets after that, by partition; one that no reset concerned is missing.
    """
    if batch.outcome is not Outcome.DONE:
        return batch
    marks = {
        partition: Offset(max(lowest[partition], range_.from_))
        for partition, range_ in batch.ranges.items()
        if partition in lowest and lowest[partition] < range_.to
    }
    if not marks:
        return batch
    whole = all(marks.get(p) == r.from_ for p, r in batch.ranges.items())
    return replace(batch, undone_from=marks, outcome=Outcome.UNDONE if whole else Outcome.DONE)
