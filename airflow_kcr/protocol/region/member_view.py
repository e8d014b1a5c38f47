"""What one member sees of a region, made from its rows (`view.MemberRegion`)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from airflow_kcr.errors import UnknownMember
from airflow_kcr.protocol.offsets import EMPTY
from airflow_kcr.protocol.region import batches, boundaries, foreign_consumers, resets, specs
from airflow_kcr.protocol.region.rows import (
    Checkpoint,
    CheckpointState,
    Claim,
    Committed,
)
from airflow_kcr.protocol.region.state import Region, live_members, restore_point_offsets
from airflow_kcr.protocol.region.view import MemberRegion, OpenCheckpointView
from airflow_kcr.protocol.values import (
    CheckpointNumber,
    GroupPartition,
    Incarnation,
    MemberId,
)

PUBLISHER_TURN: Final = timedelta(seconds=20)
"""How long one member may try to publish a checkpoint before it is the next one's turn."""


def of_member(region: Region, member: MemberId, now: datetime) -> MemberRegion:
    """Return what `member` sees of `region`.

    Args:
        region: may hold only this member's claims, and those of its group's rows that its rules touch.
        member: a registered member.
        now: the store's clock.

    Raises:
        UnknownMember: it was never registered; a member that was has to do with a restored store.
    """
    row = region.members.get(member)
    if row is None:
        raise UnknownMember(f"{member} is not registered in region {region.name}; register it first")
    claims = {p: c for p, c in region.claims.items() if _holds(region, c, member, row.incarnation)}
    limit = boundaries.limit(region)
    located = {p: boundaries.boundary_offset(region, p, limit) for p in claims} if limit is not None else {}
    reset = region.reset
    person = None if reset is None or reset.person is None else region.person_resets.get(reset.person)
    return MemberRegion(
        counter=region.counter,
        recorded_at=region.recorded_at,
        epoch=region.epoch,
        timeline=region.timeline,
        state=region.state,
        desired_state=region.desired_state,
        next_sequence=region.next_sequence,
        spec_revision=region.spec.revision,
        incarnation=row.incarnation,
        proposed=specs.proposed_to(region, member, row.incarnation),
        left=row.left,
        acknowledged=row.acknowledged == region.epoch,
        failures=region.failures,
        stopping=region.stopping is not None,
        held_by=foreign_consumers.held_by(region),
        checkpoint=_checkpoint(region, member, row.incarnation),
        publish=_publish(region, member, now),
        commit=_commit(region, claims),
        claims=claims,
        open=resets.open_targets(region, member) if any(c.resume is None for c in claims.values()) else {},
        target=None if person is None else person.target,
        limit=limit,
        boundary_offsets={p: row for p, row in located.items() if row is not None},
        restore_point=EMPTY if limit is None else restore_point_offsets(region).restrict(claims),
        skips={p: region.skips[p] for p in claims if p in region.skips},
        records_left=batches.records_left(region),
        initialised=region.initialised,
    )


def _holds(region: Region, claim: Claim, member: MemberId, incarnation: Incarnation) -> bool:
    return claim.owner == member and claim.incarnation == incarnation and claim.epoch == region.epoch


def _checkpoint(region: Region, member: MemberId, incarnation: Incarnation) -> OpenCheckpointView | None:
    checkpoint = region.checkpoint
    if checkpoint is None or checkpoint.phase is None:
        return None
    return OpenCheckpointView(
        sequence=checkpoint.sequence,
        phase=checkpoint.phase,
        boundary=checkpoint.boundary,
        takes_part=checkpoint.participants.get(member) == incarnation,
        contributed=(checkpoint.sequence, member) in region.contributions,
    )


def publisher(region: Region, checkpoint: Checkpoint, now: datetime) -> MemberId | None:
    """Return whose turn it is to publish a checkpoint.

    The live member of lowest group and index, then the next.
    """
    live = live_members(region, now)
    if not live or checkpoint.finished_at is None:
        return None
    return live[int((now - checkpoint.finished_at) / PUBLISHER_TURN) % len(live)]


def _publish(region: Region, member: MemberId, now: datetime) -> tuple[CheckpointNumber, ...]:
    due = [c for _, c in sorted(region.checkpoints.items()) if c.state is CheckpointState.COMPLETE]
    return tuple(c.sequence for c in due) if due and publisher(region, due[0], now) == member else ()


def _commit(region: Region, claims: Mapping[GroupPartition, Claim]) -> CheckpointNumber | None:
    """Return the restore point if its commit is pending and this member's part of the commit read-back is missing.

    Until then no reset has started since its completion, so the resume points of the member's claims are its offsets.
    """
    if region.restore_point is None or region.restore_point_epoch is not None:
        return None
    restore_point = region.checkpoints[region.restore_point]
    if restore_point.committed is not Committed.PENDING or not claims:
        return None
    known_read_back = region.read_backs.get(region.restore_point, EMPTY)
    return region.restore_point if any(p not in known_read_back for p in claims) else None
