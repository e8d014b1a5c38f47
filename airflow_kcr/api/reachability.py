"""Which checkpoints retention has overtaken, and when it will reach the others: from what members saw of the logs.

Every contribution to a checkpoint has the bounds of its logs, so this asks nobody. It is as fresh as the newest
checkpoint; a plan reads the logs themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from airflow_kcr.protocol.region import recreated
from airflow_kcr.protocol.region.archive import LogStart
from airflow_kcr.protocol.region.rows import Checkpoint
from airflow_kcr.protocol.region.state import Region as StoredRegion
from airflow_kcr.protocol.region.state import offsets_of
from airflow_kcr.protocol.values import CheckpointNumber, GroupPartition, Offset, TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Whether a checkpoint can still be gone back to."""

    lost: tuple[GroupPartition, ...] = ()
    """Partitions whose log began beyond the checkpoint when it was last seen, or is of another topic than then."""

    overtaken_at: datetime | None = None
    """When the first log start will have passed the checkpoint, at the speed at which it moved; None: it did not move,
    was seen once only, or has passed it already."""

    @property
    def is_unreachable(self) -> bool:
        """Whether a reset to it would be refused."""
        return bool(self.lost)


def reach(region: StoredRegion, rows: Iterable[Checkpoint]) -> Mapping[CheckpointNumber, Reach]:
    """Return, for each of these checkpoints that has offsets, whether it can still be gone back to."""
    complete = [row.sequence for row in rows if row.is_complete]
    if not complete:
        return {}
    seen, topics = region.archive.log_starts(), region.archive.topics(complete)
    # One that was retired since it was read is not among them.
    return {
        sequence: _reach(offsets, seen, topics[sequence])
        for sequence, offsets in region.archive.offsets(complete).items()
    }


def reach_of(region: StoredRegion, sequence: CheckpointNumber) -> Reach:
    """Return whether one checkpoint can still be gone back to; no other one's offsets are read.

    An aborted one has no offsets of its own, so there is nothing that could be overtaken.
    """
    offsets = offsets_of(region, sequence)
    if offsets is None:
        return Reach()
    return _reach(offsets, region.archive.log_starts(), recreated.topics_of(region, sequence))


def _reach(
    offsets: Mapping[GroupPartition, Offset],
    seen: Mapping[GroupPartition, tuple[LogStart, ...]],
    topics: Mapping[GroupPartition, TopicId],
) -> Reach:
    lost = tuple(
        p
        for p, offset in offsets.items()
        if p in seen
        and (offset < seen[p][-1].offset or recreated.is_another(topics.get(p, TopicId("")), seen[p][-1].topic_id))
    )
    if lost:
        return Reach(lost=lost)
    moments = [m for p, offset in offsets.items() if (m := _overtaken(offset, seen.get(p, ()))) is not None]
    return Reach(overtaken_at=min(moments, default=None))


def _overtaken(offset: Offset, rows: tuple[LogStart, ...]) -> datetime | None:
    if not rows:
        return None
    last = rows[-1]
    first = min((row for row in rows if row.topic_id == last.topic_id), key=lambda row: row.first_seen)
    moved, took = last.offset - first.offset, last.last_seen - first.first_seen
    if moved <= 0 or took <= timedelta(0):
        return None
    try:
        return last.last_seen + took * ((offset - last.offset) / moved)
    except OverflowError:
        return None  # beyond what a calendar can say
