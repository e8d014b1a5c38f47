"""Retirement of checkpoints, by age and by count, and pins.

Never the restore point or what it was built from, one on the current timeline that is unpublished, the newest usable, a
pinned one, or one being restored. Its digest and the answer to its request id stay. With it goes where its boundary
falls, and where every older one does.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from airflow_kcr.errors import CheckpointNotUsable
from airflow_kcr.protocol.region import events, lookup
from airflow_kcr.protocol.region.archive import ACTIVE
from airflow_kcr.protocol.region.commands import PinCheckpoint
from airflow_kcr.protocol.region.rows import Checkpoint, CheckpointState, RegionState
from airflow_kcr.protocol.region.state import Forgotten, Region, put
from airflow_kcr.protocol.targets import ToCheckpoint, ToRun
from airflow_kcr.protocol.values import CheckpointNumber, replace

RETIRED_AT_ONCE: Final = 10_000
"""Offsets that are forgotten in one transaction; of one checkpoint all are, however many partitions it has."""


def protected(region: Region) -> dict[CheckpointNumber, str]:
    """Return the checkpoints that must stay, each with the reason; of pinned ones only those that the region holds."""
    kept: dict[CheckpointNumber, str] = {}
    newest = newest_usable(region)
    if newest is not None:
        kept[newest.sequence] = "it is the newest usable one"
    for row in region.checkpoints.values():
        reason = own_reason(row)
        if reason:
            kept[row.sequence] = reason
    kept.update(_restore_point_reasons(region))
    for reset in region.person_resets.values():
        if reset.state in ACTIVE and isinstance(reset.target, ToCheckpoint):
            kept[reset.target.sequence] = f"reset {reset.request_id} goes to it"
    return kept


def newest_usable(region: Region) -> Checkpoint | None:
    """Return the newest current checkpoint that has its offsets; a region holds it."""
    held = [row for row in region.checkpoints.values() if row.is_complete and row.is_current]
    return max(held, key=lambda row: row.sequence, default=None)


def own_reason(row: Checkpoint) -> str:
    """Return why a checkpoint must stay for what its own row says; empty: nothing in it does."""
    if row.pinned_as:
        return f"it is pinned as {row.pinned_as}"
    if row.is_open:
        return "it is open"
    return "it is not published yet" if row.state is CheckpointState.COMPLETE else ""


def _restore_point_reasons(region: Region) -> dict[CheckpointNumber, str]:
    """The restore point, and the checkpoint that it was built from.

    A checkpoint's predecessor, or the target of the reset.
    """
    point, checkpoint = region.restore_point, region.restore_checkpoint
    if point is None:
        return {}
    kept = {point.sequence: "it is the restore point"}
    if checkpoint is not None and checkpoint.previous is not None:
        kept[checkpoint.previous] = f"the restore point {point.sequence} was built from it"
    opened = None if point.epoch is None else region.resets.get(point.epoch)
    person = None if opened is None or opened.person is None else region.person_reset_of(opened.person)
    if person is not None and isinstance(person.target, ToCheckpoint):
        kept[person.target.sequence] = f"the restore point, reset {point.sequence}, was built from it"
    return kept


def retire(region: Region, now: datetime) -> Region:
    """Return the region without the oldest checkpoints that are due, no more of them than one transaction can forget.

    Asked until it changes nothing, it has forgotten all.

    Args:
        region: as it is stored: what a decision has already changed in it is not counted.
        now: the store's clock.
    """
    # A person's reset to a DAG run goes to any checkpoint that is usable when its turn comes.
    if any(r.state in ACTIVE and isinstance(r.target, ToRun) for r in region.person_resets.values()):
        return replace(region, retire_at=None)  # the next checkpoint that ends asks again
    rules = region.rules.retention
    complete = region.archive.kept()
    if rules.max_age is None and complete < rules.keep:
        return replace(region, retire_at=None)  # nothing is over, and an aborted checkpoint is kept as long
    piece = max(RETIRED_AT_ONCE // max(len(region.claims), 1), 1)
    kept = protected(region)
    stored = region.archive.oldest_kept(piece + len(kept))
    candidates = [row for row in stored if row.sequence not in kept]
    gone = _due(region, now, complete, candidates)[:piece]
    if not gone:
        return replace(region, retire_at=_next(region, candidates))
    # Twice as many as a piece of checkpoints leaves behind, so that what an older version has left goes as well.
    limit = 2 * max(RETIRED_AT_ONCE, len(region.claims))
    return retired(replace(region, retire_at=now), now, gone, boundaries=_past_boundary(gone, kept), limit=limit)


def retired(
    region: Region, now: datetime, gone: Iterable[Checkpoint], *, boundaries: datetime | None = None, limit: int = 0
) -> Region:
    """Retire checkpoints: their offsets are forgotten, and the boundaries as far as said (see `Forgotten`)."""
    rows = {row.sequence: replace(row, state=CheckpointState.RETIRED, pinned_as="") for row in gone}
    forgotten = Forgotten(sequences=tuple(rows), boundaries=boundaries, limit=limit)
    region = replace(region, checkpoints=put(region.checkpoints, rows), ledger=(*region.ledger, forgotten))
    return region.record(now, events.CheckpointsRetired(sequences=forgotten.sequences))


def _past_boundary(gone: list[Checkpoint], kept: dict[CheckpointNumber, str]) -> datetime | None:
    """Return the newest boundary that no reset to a checkpoint comes to again, but to a pinned one.

    Boundaries only grow along the current timeline, and after a reset the region continues with those beyond its
    target's. A checkpoint off the current timeline says nothing: its boundary may be the one that the region is coming
    to again. After a reset to an older one, which is pinned or being restored, or to no checkpoint at all, members ask
    the brokers again.
    """
    oldest = min(kept, default=None)
    past = (row for row in gone if row.is_current and (oldest is None or row.sequence < oldest))
    return max((row.boundary for row in past if row.boundary is not None), default=None)


def _due(region: Region, now: datetime, complete: int, candidates: list[Checkpoint]) -> list[Checkpoint]:
    """Return those of the oldest checkpoints that age or count retires, oldest first."""
    rules = region.rules.retention
    surplus = max(complete - rules.keep, 0)
    # An aborted checkpoint is of no more use once as many complete ones as are kept are newer.
    is_any_aborted = any(row.state is CheckpointState.ABORTED for row in candidates)
    first = region.archive.nth_complete(rules.keep) if is_any_aborted else None
    found: list[Checkpoint] = []
    for row in candidates:
        is_old = rules.max_age is not None and (row.finished_at or row.opened_at) < now - rules.max_age
        is_surplus = row.is_complete and surplus > 0
        is_useless = row.state is CheckpointState.ABORTED and first is not None and row.sequence < first
        surplus -= is_surplus
        if is_old or is_surplus or is_useless:
            found.append(row)
    return found


def _next(region: Region, candidates: list[Checkpoint]) -> datetime | None:
    """Return when age retires the next one; a count does at the end of a checkpoint, which asks by itself."""
    age = region.rules.retention.max_age
    if age is None:
        return None
    return min(((row.finished_at or row.opened_at) + age for row in candidates), default=None)


def by_itself(region: Region, now: datetime) -> Region:
    """Return the region as `retire` does when that is due, while it runs.

    A region that does not run keeps what it had, for its readers.
    """
    is_due = region.retire_at is not None and region.retire_at <= now
    return retire(region, now) if is_due and region.state is RegionState.RUNNING else region


def pin(region: Region, now: datetime, request: PinCheckpoint) -> Region:
    """Return the region with a checkpoint pinned under a label; an empty one releases it.

    Raises:
        UnknownCheckpoint: there is none of that number.
        CheckpointNotUsable: it has no offsets (open, aborted or retired), so that pinning would keep nothing.
    """
    row = lookup.require_checkpoint(region, request.sequence)
    if not row.is_complete:
        raise CheckpointNotUsable(f"checkpoint {row.sequence} is {row.state}; only a complete one can be pinned")
    pinned = replace(row, pinned_as=request.label, pin_reason=request.reason)
    if pinned == row:
        return region
    region = replace(region, retire_at=now).with_checkpoint(pinned)
    body = events.CheckpointPinned(sequence=row.sequence, name=request.label, reason=request.reason, who=request.who)
    return region.record(now, body)
