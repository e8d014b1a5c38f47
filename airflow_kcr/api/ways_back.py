"""The checkpoints that a region can go back to, and what each would mean, as far as the store knows.

A plan is exact, but asks Kafka. This is for whoever has to choose before there is a plan.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from airflow_kcr.api.checkpoint_views import CheckpointSummary
from airflow_kcr.errors import CheckpointNotUsable
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region import automatic
from airflow_kcr.protocol.region.rows import Checkpoint, Requester
from airflow_kcr.protocol.region.state import Region as StoredRegion
from airflow_kcr.protocol.values import CheckpointNumber

_PAGE: Final = 50
"""Checkpoints that are looked at together, at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WayBack:
    """A checkpoint that a region can go back to."""

    checkpoint: Checkpoint
    runs: tuple[Requester, ...]
    """The DAG runs that it answers, in the order in which they asked."""

    moved: int
    """How many partitions are elsewhere now."""

    replay: int
    """How many offsets would be processed again."""


def ways_back(region: StoredRegion, newest: int) -> tuple[WayBack, ...]:
    """Return the newest checkpoints that a region can go back to, the newest first.

    Args:
        region: as it was read.
        newest: how many, at most.

    Raises:
        CheckpointNotUsable: there is none; the message says whether retention is the reason.
    """
    usable = _usable(region, newest)
    reachable = [one.checkpoint for one in usable if _is_reachable(one)]
    if not reachable:
        lost = f" that the logs still have (the newest {len(usable)} are unreachable)" if usable else ""
        raise CheckpointNotUsable(
            f"region {region.name} has no complete checkpoint on its path{lost}; plan with another target"
        )
    chosen = [row.sequence for row in reachable[-newest:]]
    runs, current = _runs(region, chosen), automatic.last_done(region)
    offsets = region.archive.offsets(chosen)
    return tuple(
        _way_back(row, tuple(runs[row.sequence]), offsets[row.sequence], current)
        for row in reversed(reachable[-newest:])
        if row.sequence in offsets  # or it was retired since
    )


def _usable(region: StoredRegion, newest: int) -> list[CheckpointSummary]:
    """Return usable checkpoints, oldest first: as many that can be reached, where there are, and perhaps more.

    Where a page has usable ones and none can be reached, those before it can't be either: logs lose their beginnings.
    """
    found: list[CheckpointSummary] = []
    before: CheckpointNumber | None = None
    while page := CheckpointSummary.newest_of(region, before=before, last=max(newest, _PAGE)):
        usable = [one for one in page if one.checkpoint.is_complete and one.checkpoint.is_on_path]
        found[:0] = usable
        before = page[0].checkpoint.sequence
        is_last = len(page) < max(newest, _PAGE) or not any(one.checkpoint.is_complete for one in page)
        is_overtaken = bool(usable) and not any(map(_is_reachable, usable))
        if is_last or is_overtaken or sum(map(_is_reachable, found)) >= newest:
            break
    return found


def _is_reachable(one: CheckpointSummary) -> bool:
    return one.reach is None or not one.reach.is_unreachable


def _way_back(row: Checkpoint, runs: tuple[Requester, ...], offsets: OffsetMap, current: OffsetMap) -> WayBack:
    moves = [current[p] - offset for p, offset in offsets.items() if p in current and current[p] != offset]
    return WayBack(checkpoint=row, runs=runs, moved=len(moves), replay=sum(max(by, 0) for by in moves))


def _runs(region: StoredRegion, sequences: list[CheckpointNumber]) -> defaultdict[CheckpointNumber, list[Requester]]:
    found: defaultdict[CheckpointNumber, list[Requester]] = defaultdict(list)
    for request in region.archive.requests_for(sequences):
        if request.sequence is not None:
            found[request.sequence].append(request.requester)
    return found
