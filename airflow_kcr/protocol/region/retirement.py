"""Retirement: forgetting checkpoints that newer ones have replaced (design section 7.8).

By age and by count; never the base or what it was built from, one on the path that is unpublished, the newest usable,
a pinned one, or one being restored. Its digest and the answer to its nonce stay.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Final

from airflow_kcr.errors import CheckpointNotUsable, UnknownCheckpoint
from airflow_kcr.protocol.region import events, path, person
from airflow_kcr.protocol.region.rows import Checkpoint, CheckpointState, PersonReset, RegionState
from airflow_kcr.protocol.region.state import OffsetsForgotten, Region, put, record, with_checkpoint, without
from airflow_kcr.protocol.targets import ToCheckpoint, ToRun
from airflow_kcr.protocol.values import Sequence

PIECE: Final = 10_000
"""Offsets that are forgotten in one transaction; of one checkpoint all are, however many partitions it has."""


def protected(region: Region) -> dict[Sequence, str]:
    """Return the checkpoints that must stay, each with the reason."""
    kept: dict[Sequence, str] = {}
    usable = path.usable(region)
    if usable:
        kept[usable[-1].sequence] = "it is the newest usable one"
    for row in region.checkpoints.values():
        reason = _own_reason(row)
        if reason:
            kept[row.sequence] = reason
    kept.update(_base_reasons(region))
    for reset in region.person_resets.values():
        if reset.state in person.ACTIVE:
            kept.update(dict.fromkeys(_targets(region, reset), f"reset {reset.nonce} goes to it"))
    return kept


def _own_reason(row: Checkpoint) -> str:
    if row.pinned_as:
        return f"it is pinned as {row.pinned_as}"
    return {CheckpointState.COMPLETE: "it is not published yet", CheckpointState.OPEN: "it is open"}.get(row.state, "")


def _base_reasons(region: Region) -> dict[Sequence, str]:
    """The base, and the checkpoint that it was built from: a cut's predecessor, or the target of the reset."""
    base = region.base
    if base is None:
        return {}
    kept = {base: "it is the base"}
    cut = region.checkpoints.get(base)
    if cut is not None and cut.previous is not None:
        kept[cut.previous] = f"the base {base} was built from it"
    for reset in region.resets.values():
        if reset.sequence == base and reset.person is not None:
            opened = region.person_resets[reset.person]
            kept.update(dict.fromkeys(_targets(region, opened), f"the base, reset {base}, was built from it"))
    return kept


def _targets(region: Region, reset: PersonReset) -> tuple[Sequence, ...]:
    """Return the checkpoints that a person's reset may go to."""
    match reset.target:
        case ToCheckpoint(sequence=sequence):
            return (sequence,)
        case ToRun():
            return tuple(c.sequence for c in path.usable(region))
        case _:
            return ()


def due(region: Region, now: datetime) -> tuple[Sequence, ...]:
    """Return the checkpoints that age or count retires, oldest first."""
    rules = region.rules.retention
    alive = [row for row in region.checkpoints.values() if row.state is not CheckpointState.RETIRED]
    if rules.max_age is None and len(alive) <= rules.keep:
        return ()
    kept = protected(region)
    candidates = sorted((row for row in alive if row.sequence not in kept), key=lambda row: row.sequence)
    complete = [row.sequence for row in candidates if row.is_complete]
    surplus = max(sum(1 for row in alive if row.is_complete) - rules.keep, 0)
    gone = set(complete[:surplus])
    # An aborted cut is of no more use once as many complete ones as are kept are newer.
    newer = [row.sequence for row in path.usable(region)][-rules.keep :]
    if len(newer) == rules.keep:
        gone.update(
            row.sequence for row in candidates if row.state is CheckpointState.ABORTED and row.sequence < newer[0]
        )
    if rules.max_age is not None:
        gone.update(row.sequence for row in candidates if (row.ended_at or row.opened_at) < now - rules.max_age)
    return tuple(sorted(gone))


def retire(region: Region, now: datetime) -> Region:
    """Return the region without the oldest checkpoints that are due, no more of them than one transaction can forget.

    Asked until nothing is due, it has forgotten all; asked again then, it changes nothing.
    """
    gone = due(region, now)
    if not gone:
        return region
    gone = gone[: max(PIECE // max(len(region.claims), 1), 1)]
    rows = {s: replace(region.checkpoints[s], state=CheckpointState.RETIRED) for s in gone}
    forgotten = frozenset(gone)
    region = replace(
        region,
        checkpoints=put(region.checkpoints, rows),
        ledger=(*region.ledger, OffsetsForgotten(sequences=gone)),
        frozen=without(region.frozen, forgotten),
    )
    return record(region, now, events.CheckpointsRetired(sequences=gone))


def by_itself(region: Region, now: datetime) -> Region:
    """Return the region as `retire` does, while it runs; who looks at one that does not shall find what there was."""
    return retire(region, now) if region.state is RegionState.RUNNING else region


def pin(region: Region, now: datetime, sequence: Sequence, name: str, reason: str) -> Region:
    """Return the region with a checkpoint pinned under a name; an empty name releases it.

    Raises:
        UnknownCheckpoint: there is none of that number.
        CheckpointNotUsable: it has no offsets (open, aborted or retired), so that pinning would keep nothing.
    """
    row = region.checkpoints.get(sequence)
    if row is None:
        raise UnknownCheckpoint(f"region {region.name} has no checkpoint {sequence}")
    if not row.is_complete:
        raise CheckpointNotUsable(f"checkpoint {sequence} is {row.state}; only a complete one can be pinned")
    if (row.pinned_as, row.pin_reason) == (name, reason):
        return region
    region = with_checkpoint(region, replace(row, pinned_as=name, pin_reason=reason))
    return record(region, now, events.CheckpointPinned(sequence=sequence, name=name, reason=reason))
