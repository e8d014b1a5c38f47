"""The path: which complete checkpoints still describe the region's past (design section 3).

A complete checkpoint is on the path when every later lineage opened at or beyond its offset on every partition that
both have. Opening a lineage is the only thing that takes one off, so it is decided there, once, and stored
(`Checkpoint.undone_by`). Targets, nonces, retirement, manifests and rollback all ask this module.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region.rows import Checkpoint, CheckpointState
from airflow_kcr.protocol.region.state import Region, put
from airflow_kcr.protocol.values import Sequence


def on_path(region: Region) -> tuple[Checkpoint, ...]:
    """Return the checkpoints on the path, retired ones too, oldest first."""
    return tuple(region.checkpoints[s] for s in sorted(region.checkpoints) if region.checkpoints[s].is_on_path)


def usable(region: Region) -> tuple[Checkpoint, ...]:
    """Return the checkpoints on the path that still have their offsets, oldest first."""
    return tuple(c for c in on_path(region) if c.is_complete)


def unpublished(region: Region) -> tuple[Checkpoint, ...]:
    """Return the complete cuts on the path that are not published yet, oldest first."""
    return tuple(c for c in on_path(region) if c.state is CheckpointState.COMPLETE)


def newest_bound(region: Region, up_to: Sequence | None = None) -> datetime | None:
    """Return the newest bound that a cut on the path, at or before `up_to`, was aligned to."""
    newest = newest_bounded(region, up_to)
    return None if newest is None else newest.bound


def newest_bounded(region: Region, up_to: Sequence | None = None) -> Checkpoint | None:
    """Return the cut on the path, at or before `up_to`, that was aligned to the newest bound."""
    bounded = [
        (c.bound, c.sequence) for c in on_path(region) if c.bound is not None and (up_to is None or c.sequence <= up_to)
    ]
    return region.checkpoints[max(bounded)[1]] if bounded else None


def undone_by(region: Region, opening: OffsetMap) -> tuple[Sequence, ...]:
    """Return the checkpoints on the path that a lineage opening at these offsets takes off it.

    A retired checkpoint has no offsets any more. It stays on the path when a newer one with offsets does, because
    offsets along the path only grow; otherwise it is taken off, since a wrong "still there" would answer an old DAG run
    with a cut that no longer holds.
    """
    gone: list[Sequence] = []
    held = dict(region.offsets.items())  # at once: one by one, each would be a question to the store
    kept_newer = False
    for checkpoint in reversed(on_path(region)):
        if checkpoint.is_complete:
            stays = opening.covers(held[checkpoint.sequence])
            kept_newer = kept_newer or stays
        else:
            stays = kept_newer
        if not stays:
            gone.append(checkpoint.sequence)
    return tuple(sorted(gone))


def without_undone(region: Region, sequences: tuple[Sequence, ...]) -> Region:
    """Return the region with these checkpoints marked as undone by its present lineage."""
    rows = {s: replace(region.checkpoints[s], undone_by=region.lineage) for s in sequences}
    return replace(region, checkpoints=put(region.checkpoints, rows))
