"""Which part of a pipeline's output counts, by the ledger alone.

A folder of output is there whether its batch was accepted or not: the batch may have been discarded, its member may
have vanished, a reset may have undone it. Only accepted ranges below a checkpoint's offsets describe that checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from airflow_kcr.errors import CheckpointNotUsable, UnknownCheckpoint
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region.retirement import newest_usable
from airflow_kcr.protocol.region.rows import Batch, Outcome
from airflow_kcr.protocol.region.state import Region, checkpoint_of, offsets_of
from airflow_kcr.protocol.values import BatchId, CheckpointNumber, GroupId, GroupPartition, Offset, Range


class Standing(StrEnum):
    """How the output of one batch for one partition stands towards a checkpoint."""

    WHOLE = "whole"
    """All of it counts."""

    PART = "part"
    """A reset undid it from an offset within the range on; what is below that counts."""

    LATER = "later"
    """It was accepted, and is of a later checkpoint."""

    OPEN = "open"
    """The batch has not ended."""

    VOID = "void"
    """It does not count: discarded, of a vanished member, or undone. Its records are processed a second time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPart:
    """One partition of one batch."""

    batch: BatchId
    place: GroupPartition
    range_: Range
    standing: Standing
    counts_to: Offset
    """Where that which counts ends; the start of the range, if nothing does."""

    @property
    def counted(self) -> Range:
        """The offsets that count."""
        return Range(self.range_.from_, self.counts_to)


def pieces(
    batches: Iterable[Batch], group: GroupId, checkpoint: Mapping[GroupPartition, Offset]
) -> tuple[BatchPart, ...]:
    """Return how each partition of each batch of a group stands towards a checkpoint.

    Args:
        batches: the ledger.
        group: whose batches.
        checkpoint: its offsets; a partition that it does not have was found later.
    """
    return tuple(
        _piece(batch, place, range_, checkpoint.get(place, Offset(0)))
        for batch in batches
        if batch.member.group == group
        for place, range_ in sorted(batch.ranges.items())
    )


_NAMED: Final = 20
"""Checkpoints among which a message searches for others to choose."""


def _usable(region: Region) -> list[str]:
    rows = {row.sequence: row for row in region.archive.checkpoints(last=_NAMED)} | dict(region.checkpoints)
    return [str(sequence) for sequence, row in sorted(rows.items()) if row.is_complete and row.is_current]


def checkpoint_offsets(region: Region, group: GroupId, sequence: CheckpointNumber | None = None) -> OffsetMap:
    """Return the offsets that a checkpoint has for one group.

    Args:
        region: as the store has it.
        group: whose partitions.
        sequence: of the checkpoint; None: the newest one.

    Raises:
        UnknownCheckpoint: there is none, or none of that sequence.
        CheckpointNotUsable: it is open, aborted, undone or retired, so the ledger can't be compared with it.
    """
    if sequence is None:
        newest = newest_usable(region)
        sequence = None if newest is None else newest.sequence
    found = None if sequence is None else checkpoint_of(region, sequence)
    if sequence is None or found is None:
        wanted = "no checkpoint yet" if sequence is None else f"no checkpoint {sequence}"
        raise UnknownCheckpoint(
            f"region {region.name} has {wanted}; let it make a checkpoint: kcr region drain {region.name}"
        )
    offsets = offsets_of(region, sequence)
    if offsets is None or not found.is_current:
        what = "undone" if found.undone_by is not None else found.state.value
        raise CheckpointNotUsable(
            f"checkpoint {sequence} of region {region.name} is {what}; those that can be compared with are "
            f"{', '.join(_usable(region)) or 'none'}"
        )
    return OffsetMap({place: offset for place, offset in offsets.items() if place.group == group})


def _piece(batch: Batch, place: GroupPartition, range_: Range, checkpoint: Offset) -> BatchPart:
    standing, to = _standing(batch, place, range_, checkpoint)
    return BatchPart(batch=batch.batch, place=place, range_=range_, standing=standing, counts_to=to)


def _standing(batch: Batch, place: GroupPartition, range_: Range, checkpoint: Offset) -> tuple[Standing, Offset]:
    if batch.outcome is None:
        return Standing.OPEN, range_.from_
    undone_from = batch.undone_from.get(place, range_.to)
    if batch.outcome is not Outcome.DONE or undone_from <= range_.from_:
        return Standing.VOID, range_.from_
    if checkpoint <= range_.from_:
        return Standing.LATER, range_.from_
    to = min(range_.to, undone_from, checkpoint)
    return (Standing.WHOLE if to == range_.to else Standing.PART), to
