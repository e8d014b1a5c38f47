"""Which checkpoints retention has overtaken, and when it will reach the others: from what members saw of the logs.

Every contribution to a cut has the bounds of its logs, so this asks nobody. It is as fresh as the newest cut; a plan
reads the logs themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from airflow_kcr.protocol.region import recreated
from airflow_kcr.protocol.region.state import Region as StoredRegion
from airflow_kcr.protocol.values import GroupPartition, Offset, Sequence, TopicId


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


class _Seen(NamedTuple):
    at: datetime
    start: Offset
    topic: TopicId


def reach(region: StoredRegion) -> Mapping[Sequence, Reach]:
    """Return, for every checkpoint that has offsets, whether it can still be gone back to."""
    seen = _seen(region)
    # Walked through, so that the store is asked once; one that was retired since it was read is not among them.
    return {
        sequence: _reach(offsets, seen, recreated.topics_of(region, sequence))
        for sequence, offsets in region.offsets.items()
        if sequence in region.checkpoints and region.checkpoints[sequence].is_complete
    }


def reach_of(region: StoredRegion, sequence: Sequence) -> Reach:
    """Return whether one checkpoint can still be gone back to; no other one's offsets are read.

    An aborted one has no offsets of its own, so there is nothing that could be overtaken.
    """
    offsets = region.offsets.get(sequence)
    return Reach() if offsets is None else _reach(offsets, _seen(region), recreated.topics_of(region, sequence))


def _seen(region: StoredRegion) -> dict[GroupPartition, list[_Seen]]:
    """The begin of each log as members saw it, oldest first."""
    seen: dict[GroupPartition, list[_Seen]] = {}
    for part in region.contributions.values():
        for partition, log in part.bounds.items():
            seen.setdefault(partition, []).append(_Seen(part.contributed_at, log.start, log.topic_id))
    for rows in seen.values():
        rows.sort()
    return seen


def _reach(
    offsets: Mapping[GroupPartition, Offset],
    seen: Mapping[GroupPartition, list[_Seen]],
    topics: Mapping[GroupPartition, TopicId],
) -> Reach:
    lost = tuple(
        p
        for p, offset in offsets.items()
        if p in seen
        and (offset < seen[p][-1].start or recreated.is_another(topics.get(p, TopicId("")), seen[p][-1].topic))
    )
    if lost:
        return Reach(lost=lost)
    moments = [m for p, offset in offsets.items() if (m := _overtaken(offset, seen.get(p, []))) is not None]
    return Reach(overtaken_at=min(moments, default=None))


def _overtaken(offset: Offset, rows: list[_Seen]) -> datetime | None:
    if not rows:
        return None
    first, last = next(row for row in rows if row.topic == rows[-1].topic), rows[-1]
    moved, took = last.start - first.start, last.at - first.at
    if moved <= 0 or took <= timedelta(0):
        return None
    try:
        return last.at + took * ((offset - last.start) / moved)
    except OverflowError:
        return None  # beyond what a calendar can say
