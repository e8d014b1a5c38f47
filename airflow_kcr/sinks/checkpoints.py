"""What belongs to a checkpoint, as every sink that shows output with its checkpoint has it, users' own among them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from airflow_kcr.protocol.values import BatchId, CheckpointNumber, Epoch, Range, Timeline, TopicPartition, joined


class CheckpointId(NamedTuple):
    """Which checkpoint: (timeline, sequence) only ever grows, and no other checkpoint of the region has it."""

    timeline: Timeline
    sequence: CheckpointNumber

    def __str__(self) -> str:
        """Return it as folders name it, so that names sort as checkpoints do."""
        return f"{self.timeline:06d}.{self.sequence:010d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedBatch:
    """A batch of which something counts."""

    batch_id: BatchId
    epoch: Epoch
    checkpoint: CheckpointId
    """What its context said: the checkpoint that it belonged to when it began."""

    ranges: Mapping[TopicPartition, Range]
    """Offsets [from, to) that count. Less than the batch had where a reset has undone the rest of it."""

    is_whole: bool
    """Whether all that it had counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteCheckpoint:
    """A complete checkpoint, as far as one group of the region is concerned."""

    id: CheckpointId
    epoch: Epoch
    """In which it was made."""

    previous: CheckpointId | None
    """The published checkpoint before it on the current timeline; None: it is the first."""

    boundary: datetime | None
    """The instant that it is aligned to, if it has one."""

    batches: tuple[AcceptedBatch, ...]
    """All that counts of it, by the ledger: everything accepted since `previous`, in the order of the starts. A batch
    of an undone checkpoint is among them where a reset has left a part of it standing."""

    digest: str = ""
    """Hash over its offsets."""

    recomputation: int = 0
    """The number of the recomputation that made these batches: a later one has a higher; 0: they were published."""


def ranges_of(batches: Iterable[AcceptedBatch]) -> dict[TopicPartition, tuple[Range, ...]]:
    """Return what counts of batches by partition, in order, ranges that touch joined."""
    found: dict[TopicPartition, list[Range]] = {}
    for batch in batches:
        for place, range_ in batch.ranges.items():
            found.setdefault(place, []).append(range_)
    return {place: joined(found[place]) for place in sorted(found)}


def ranges_in_order(checkpoint: CompleteCheckpoint) -> list[tuple[TopicPartition, Range]]:
    """Return what counts of a checkpoint, one range after the other."""
    return [(place, range_) for place, its in ranges_of(checkpoint.batches).items() for range_ in its]
