"""The current timeline: which complete checkpoints and ranges still describe the region's past.

A complete checkpoint is on the current timeline when every later timeline opened at or beyond its offset on every
partition that both have. Opening a timeline is the only thing that takes one off, so it is decided there, once, and
stored (`Checkpoint.undone_by`). Targets, request ids, retirement, manifests and rollback all ask this module.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from datetime import datetime

from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region.rows import Batch, Checkpoint, CheckpointState, Outcome
from airflow_kcr.protocol.region.state import CheckpointsUndone, Region, checkpoint_of, put
from airflow_kcr.protocol.seek_map import SeekMap
from airflow_kcr.protocol.values import CheckpointNumber, Epoch, GroupPartition, Offset, replace


def unpublished(region: Region) -> tuple[Checkpoint, ...]:
    """Return the complete current checkpoints that are not published yet, oldest first."""
    complete = (row for _, row in sorted(region.checkpoints.items()) if row.state is CheckpointState.COMPLETE)
    return tuple(row for row in complete if row.is_current)


def newest_aligned(region: Region, up_to: CheckpointNumber | None = None) -> Checkpoint | None:
    """Return the current checkpoint, at or before `up_to`, that was aligned to the newest boundary.

    Along the current timeline boundaries only grow, because a request is answered by a checkpoint of a later boundary;
    so it is the newest.
    """
    if region.aligned is None:
        return None
    if up_to is None or up_to >= region.aligned:
        return checkpoint_of(region, region.aligned)
    return _newest_stored(region, up_to)


def _newest_stored(region: Region, up_to: CheckpointNumber) -> Checkpoint | None:
    # Of the current timeline beyond what this decision has taken off it, the archive knows nothing.
    end = min((up_to, *(CheckpointNumber(s - 1) for s in _undone_now(region))))
    held = [row for s, row in region.checkpoints.items() if row.is_current and row.boundary is not None and s <= up_to]
    stored = region.archive.newest_aligned(end)
    held += [stored] if stored is not None and stored.sequence not in region.checkpoints else []
    return max(held, key=lambda row: row.sequence, default=None)


def _undone_now(region: Region) -> frozenset[CheckpointNumber]:
    """Return what this decision has taken off the current timeline."""
    changes = (change for change in region.ledger if isinstance(change, CheckpointsUndone))
    return frozenset(sequence for change in changes for sequence in change.sequences)


def covering(region: Region, boundary: datetime) -> Checkpoint | None:
    """Return the first current checkpoint at or beyond `boundary`.

    It answers every request for an earlier boundary.
    """
    newest = newest_aligned(region)
    if newest is None or newest.boundary is None or newest.boundary < boundary:
        return None
    stored = region.archive.covering(boundary)
    found = [row for row in region.checkpoints.values() if row.is_current and row.boundary and row.boundary >= boundary]
    if stored is not None and stored.sequence not in region.checkpoints.keys() | _undone_now(region):
        found.append(stored)
    return min(found, key=lambda row: row.sequence, default=None)


def undone_by(region: Region, opening: OffsetMap) -> tuple[CheckpointNumber, ...]:
    """Return the current checkpoints that a timeline opening at these offsets takes off it.

    A retired checkpoint has no offsets any more. It stays on the current timeline when a newer one with offsets does,
    because offsets along the current timeline only grow; otherwise it is taken off, since a wrong "still there" would
    answer an old DAG run with a checkpoint that no longer holds.
    """
    judged = {
        s: opening.covers(region.offsets[s])
        for s, row in region.checkpoints.items()
        if row.is_current and row.is_complete and s in region.offsets
    }
    covered = max((s for s, stays in judged.items() if stays), default=None)
    gone = {s for s, stays in judged.items() if not stays}
    retired = [s for s, row in region.checkpoints.items() if row.is_current and not row.is_complete]
    gone.update(s for s in region.archive.undone_by(opening, covered, retired) if s not in judged)
    return tuple(sorted(gone - _undone_now(region)))


def without_undone(region: Region, sequences: tuple[CheckpointNumber, ...]) -> Region:
    """Return the region with these checkpoints marked as undone by its present timeline."""
    if not sequences:
        return region
    held = {s: replace(region.checkpoints[s], undone_by=region.timeline) for s in sequences if s in region.checkpoints}
    undone = CheckpointsUndone(sequences=sequences, by=region.timeline)
    region = replace(region, checkpoints=put(region.checkpoints, held), ledger=(*region.ledger, undone))
    if region.aligned not in sequences:
        return region
    newest = _newest_stored(region, region.aligned)
    return replace(region, aligned=None if newest is None else newest.sequence)


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
