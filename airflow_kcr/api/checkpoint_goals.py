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
from airflow_kcr.protocol.values import Sequence

if TYPE_CHECKING:
    from airflow_kcr.api.region import Region


def committed(sequence: Sequence) -> Goal:
    """Return the goal that a checkpoint is published, and that it is settled whether Kafka holds its offsets."""

    def is_reached(region: StoredRegion, now: datetime) -> bool:
        row = require_on_path(region, sequence)
        return row.published_at is not None and row.committed is not Committed.PENDING

    def missing(region: StoredRegion, now: datetime) -> Iterator[str]:
        row = require_checkpoint(region, sequence)
        if row.state is CheckpointState.OPEN:
            yield f"cut {sequence} is not complete yet"
        elif row.published_at is None:
            yield f"cut {sequence} is complete and not published yet"
        elif row.committed is Committed.PENDING:
            held = region.echoes.get(sequence, EMPTY)
            late = [p for p in sorted(offsets_of(region, sequence) or EMPTY) if p not in held]
            owners = sorted({str(c.owner) for p in late if (c := region.claims.get(p)) is not None and c.owner})
            yield (
                f"Kafka's echo of cut {sequence} is outstanding for {len(late)} partition(s), "
                f"{late[0] if late else 'none'} first, held by {', '.join(owners) or 'nobody'}"
            )

    return Goal(what=f"checkpoint {sequence} to be published and committed", is_reached=is_reached, missing=missing)


def require_on_path(region: StoredRegion, sequence: Sequence) -> Checkpoint:
    """Return a checkpoint's row if it describes the region's past, or may yet come to.

    Raises:
        UnknownCheckpoint: there is none of that sequence.
        CheckpointNotUsable: it was aborted, or a reset has undone it; the message says which.
    """
    row = require_checkpoint(region, sequence)
    if row.undone_by is not None:
        raise CheckpointNotUsable(
            f"checkpoint {sequence} of region {region.name} was undone by a reset, which opened lineage "
            f"{row.undone_by}; its records are processed again, and the cut that holds them has another number"
        )
    if row.state is CheckpointState.ABORTED:
        raise CheckpointNotUsable(f"cut {sequence} of region {region.name} was aborted: {row.abort_reason}")
    return row


def exists(*, bound: datetime | None = None, sequence: Sequence | None = None) -> Goal:
    """Return the goal that the path has a published checkpoint at or beyond a bound, and of at least a sequence.

    Args:
        bound: an instant with a zone; None: any, or none.
        sequence: None: any.
    """

    def is_reached(region: StoredRegion, now: datetime) -> bool:
        return _may_exist(region, bound, sequence) and region.archive.published_from(bound, sequence) is not None

    def missing(region: StoredRegion, now: datetime) -> Iterator[str]:
        newest = _newest(region)
        yield "it has no checkpoint yet" if newest is None else f"its newest checkpoint is {_named(newest)}"
        if region.halt is not None:
            yield f"it is halted: {region.halt.text}"
        elif region.cut is not None:
            yield f"cut {region.cut.sequence} is {region.cut.phase}"
        elif region.next_bound is not None:
            yield f"its next bound is {instant(region.next_bound)}"

    wanted = f"sequence {sequence}" if bound is None else f"the bound {instant(bound)}"
    return Goal(what=f"a published checkpoint at or beyond {wanted}", is_reached=is_reached, missing=missing)


def _may_exist(region: StoredRegion, bound: datetime | None, sequence: Sequence | None) -> bool:
    """Whether it is worth asking for one: mostly what has not come yet is waited for, which the region itself shows."""
    newest = path.newest_bounded(region)
    is_beyond = bound is not None and (newest is None or newest.bound is None or newest.bound < bound)
    return not is_beyond and (sequence is None or sequence < region.next_sequence)


def _newest(region: StoredRegion) -> Checkpoint | None:
    """Return the newest checkpoint on the path: the region's base itself, as long as no reset has opened a timeline."""
    if region.base is not None and region.base_epoch is None:
        return region.checkpoints[region.base]
    return region.archive.newest_on_path(None)


def _named(row: Checkpoint) -> str:
    state = "" if row.published_at is not None else ", not published yet"
    return f"{row.sequence} (bound {instant(row.bound) or 'none'}{state})"


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
            f"a reset has undone checkpoint {sequence} of region {name} (it opened lineage {row.undone_by}); its "
            "records are processed again, and the cut that then holds them has an event of its own"
        )
    return ""
