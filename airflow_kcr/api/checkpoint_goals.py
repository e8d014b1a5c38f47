"""Goals about checkpoints: that one is committed, and that there is one at all."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from airflow_kcr.api.checkpoint_views import require_checkpoint
from airflow_kcr.api.goals import Goal
from airflow_kcr.api.views import instant
from airflow_kcr.errors import CheckpointNotUsable, UnknownCheckpoint, UnknownRegion
from airflow_kcr.protocol.offsets import EMPTY
from airflow_kcr.protocol.region import path
from airflow_kcr.protocol.region.rows import Checkpoint, CheckpointState, Committed
from airflow_kcr.protocol.region.state import Region as StoredRegion
from airflow_kcr.protocol.region.state import offsets_of
from airflow_kcr.protocol.values import CheckpointNumber

if TYPE_CHECKING:
    from airflow_kcr.api.region import Region


def committed(sequence: CheckpointNumber) -> Goal:
    """Return the goal that a checkpoint is published, and that it is settled whether Kafka holds its offsets."""

    def is_reached(region: StoredRegion, now: datetime) -> bool:
        row = require_on_path(region, sequence)
        return row.published_at is not None and row.committed is not Committed.PENDING

    def missing(region: StoredRegion, now: datetime) -> Iterator[str]:
        row = require_checkpoint(region, sequence)
        if row.state is CheckpointState.OPEN:
            yield f"checkpoint {sequence} is not complete yet"
        elif row.published_at is None:
            yield f"checkpoint {sequence} is complete and not published yet"
        elif row.committed is Committed.PENDING:
            held = region.read_backs.get(sequence, EMPTY)
            late = [p for p in sorted(offsets_of(region, sequence) or EMPTY) if p not in held]
            owners = sorted({str(c.owner) for p in late if (c := region.claims.get(p)) is not None and c.owner})
            yield (
                f"Kafka's commit read-back of checkpoint {sequence} is outstanding for {len(late)} partition(s), "
                f"{late[0] if late else 'none'} first, held by {', '.join(owners) or 'nobody'}"
            )

    return Goal(what=f"checkpoint {sequence} to be published and committed", is_reached=is_reached, missing=missing)


def require_on_path(region: StoredRegion, sequence: CheckpointNumber) -> Checkpoint:
    """Return a checkpoint's row if it describes the region's past, or may yet come to.

    Raises:
        UnknownCheckpoint: there is none of that sequence.
        CheckpointNotUsable: it was aborted, or a reset has undone it; the message says which.
    """
    row = require_checkpoint(region, sequence)
    if row.undone_by is not None:
        raise CheckpointNotUsable(
            f"checkpoint {sequence} of region {region.name} was undone by a reset, which opened timeline "
            f"{row.undone_by}; its records are processed again, and the checkpoint that holds them has another number"
        )
    if row.state is CheckpointState.ABORTED:
        raise CheckpointNotUsable(f"checkpoint {sequence} of region {region.name} was aborted: {row.abort_reason}")
    return row


def exists(*, boundary: datetime | None = None, sequence: CheckpointNumber | None = None) -> Goal:
    """Return the goal that the path has a published checkpoint at or beyond a boundary, and of at least a sequence.

    Args:
        boundary: an instant with a zone; None: any, or none.
        sequence: None: any.
    """

    def is_reached(region: StoredRegion, now: datetime) -> bool:
        return _may_exist(region, boundary, sequence) and region.archive.published_from(boundary, sequence) is not None

    def missing(region: StoredRegion, now: datetime) -> Iterator[str]:
        newest = _newest(region)
        yield "it has no checkpoint yet" if newest is None else f"its newest checkpoint is {_named(newest)}"
        if region.halt is not None:
            yield f"it is halted: {region.halt.text}"
        elif region.checkpoint is not None:
            yield f"checkpoint {region.checkpoint.sequence} is {region.checkpoint.phase}"
        elif region.next_boundary is not None:
            yield f"its next boundary is {instant(region.next_boundary)}"

    wanted = f"sequence {sequence}" if boundary is None else f"the boundary {instant(boundary)}"
    return Goal(what=f"a published checkpoint at or beyond {wanted}", is_reached=is_reached, missing=missing)


def _may_exist(region: StoredRegion, boundary: datetime | None, sequence: CheckpointNumber | None) -> bool:
    """Whether it is worth asking for one: mostly what has not come yet is waited for, which the region itself shows."""
    newest = path.newest_aligned(region)
    is_beyond = boundary is not None and (newest is None or newest.boundary is None or newest.boundary < boundary)
    return not is_beyond and (sequence is None or sequence < region.next_sequence)


def _newest(region: StoredRegion) -> Checkpoint | None:
    """Return the newest checkpoint on the path.

    The region's restore point itself, as long as no reset has opened a timeline.
    """
    if region.restore_point is not None and region.restore_point_epoch is None:
        return region.checkpoints[region.restore_point]
    return region.archive.newest_on_path(None)


def _named(row: Checkpoint) -> str:
    state = "" if row.published_at is not None else ", not published yet"
    return f"{row.sequence} (boundary {instant(row.boundary) or 'none'}{state})"


def gone(region: Region, sequence: int, *, digest: str) -> str:
    """Return why a checkpoint that was published once describes its region's past no more; empty: it does.

    Args:
        region: its region.
        sequence: the checkpoint's.
        digest: the hash over its offsets, as it was told.
    """
    name = region.name
    try:
        row = region.checkpoint(sequence).checkpoint
    except UnknownRegion:
        return f"region {name} does not exist any more"
    except UnknownCheckpoint:
        return f"region {name} has no checkpoint {sequence}: it was made anew, the event is of the one before"
    if row.digest != digest:
        return f"checkpoint {sequence} of region {name} is another one now: the region was made anew"
    if row.undone_by is not None:
        return (
            f"a reset has undone checkpoint {sequence} of region {name} (it opened timeline {row.undone_by}); its "
            "records are processed again, and the checkpoint that then holds them has an event of its own"
        )
    return ""
