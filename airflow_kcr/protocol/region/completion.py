"""Contributions to a checkpoint, and its completion (docs/explanation/what-if.md).

The last contribution completes the checkpoint in its own transaction: every participant contributed *and* every frozen
partition is covered exactly once. Then, in the same transaction, the region ends in what asked for the checkpoint.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime

from airflow_kcr import errors
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region import (
    boundaries,
    checkpoints,
    coverage,
    events,
    person_resets,
    requests,
    resets,
    rows,
    specs,
    timelines,
)
from airflow_kcr.protocol.region.commands import Contribute
from airflow_kcr.protocol.region.state import Region, digest, put
from airflow_kcr.protocol.values import DesiredState, GroupPartition, MemberId, Offset, drawn, few, replace


def contribute(region: Region, now: datetime, part: Contribute) -> Region:
    """Return the region with a member's contribution stored; the last one completes the checkpoint.

    Storing the same part twice changes nothing.

    Raises:
        StaleEpoch, StaleIncarnation, LeaseExpired, UnknownMember: fenced like a batch end.
        CheckpointRefused: the checkpoint is not draining (aborted, complete, or still approaching).
        StrangeContribution: the member, or this incarnation, is not among the participants.
        BatchRefused: a batch of the member is still running.
        NotClaimed, ConflictingContribution: it is not what the store knows of the member's claims and positions.
        OffsetOutsideLog: an offset does not lie in the log as read with it (retention overtook it, or truncation).
    """
    earlier = region.contributions_to(part.sequence).get(part.member)
    if earlier is not None and earlier.incarnation == part.incarnation and earlier.offsets == part.offsets:
        return region
    region.require_member(part.member, part.incarnation, now, epoch=part.epoch)
    checkpoint = region.checkpoint
    if (
        checkpoint is None
        or checkpoint.sequence != part.sequence
        or checkpoint.state is not rows.CheckpointState.DRAINING
    ):
        raise errors.CheckpointRefused(
            f"checkpoint {part.sequence} of region {region.name} is not draining; nothing was stored"
        )
    if checkpoint.participants.get(part.member) != part.incarnation:
        raise errors.StrangeContribution(
            f"{part.member}, incarnation {part.incarnation}, is not among the participants of checkpoint "
            f"{checkpoint.sequence}"
        )
    if earlier is not None:
        raise errors.ConflictingContribution(
            f"{part.member} has already contributed other offsets to checkpoint {checkpoint.sequence}"
        )
    _require_own_positions(region, now, part)
    row = drawn(rows.Contribution, part, contributed_at=now)
    region = replace(region, contributions=put(region.contributions, {(part.sequence, part.member): row}))
    return _completed(region.record(now, drawn(events.Contributed, part)), now, checkpoint)


def _require_own_positions(region: Region, now: datetime, part: Contribute) -> None:
    running = [b.batch for b in region.running.values() if b.member == part.member]
    if running:
        raise errors.BatchRefused(f"{part.member} contributes while its batch {running[0]} is running")
    held = coverage.held_by(region, part.member, now)
    strange = sorted(part.offsets.keys() ^ held.keys())
    if strange:
        raise errors.NotClaimed(
            f"{part.member} must contribute exactly the partitions it holds; not so: {few(strange)}"
        )
    for partition, offset in part.offsets.items():
        claim = held[partition]
        if claim.is_in_flight:
            raise errors.BatchRefused(
                f"{partition}: a batch started up to {claim.started_to} was not accepted; a reset "
                "follows, no checkpoint"
            )
        if claim.position != offset:
            raise errors.ConflictingContribution(
                f"{part.member} contributes {offset} for {partition}, the store has {claim.position}"
            )
        log = part.bounds.get(partition)
        if log is None or not (
            log.start <= offset and (offset <= log.end or offset <= region.past_skips(partition, log.end))
        ):
            seen = "no bounds" if log is None else f"[{log.start}, {log.end}]"
            raise errors.OffsetOutsideLog(f"{partition}: the position {offset} is not in the log as read ({seen})")
        if timelines.is_recreated(claim.topic_id, log.topic_id):
            raise errors.OffsetOutsideLog(
                f"{partition}: the position {offset} is of topic id {claim.topic_id}, the log as read is of "
                f"{log.topic_id}: the topic was deleted and created again"
            )


def merged(contributions: Mapping[MemberId, rows.Contribution]) -> OffsetMap:
    """Return the union of the contributions: the checkpoint's offsets, whatever order they came in.

    Raises:
        OverlappingOffsets: two members contributed one partition; a double claim is never resolved silently.
    """
    total: dict[GroupPartition, Offset] = {}
    for member in sorted(contributions):
        shared = sorted(total.keys() & contributions[member].offsets.keys())
        if shared:
            raise errors.OverlappingOffsets(
                f"{', '.join(map(str, shared))}: more than one owner's offset, {member}'s among them"
            )
        total.update(contributions[member].offsets)
    return OffsetMap(total)


def lacking(region: Region, checkpoint: rows.Checkpoint) -> tuple[str, ...]:
    """Return what a draining checkpoint still lacks, by name: participants, and uncontributed frozen partitions.

    Complete needs both: participants alone would miss a partition that no member held, coverage alone a member that has
    yet to say that it is idle.
    """
    parts = region.contributions_to(checkpoint.sequence)
    waiting = [f"{m} has not contributed" for m in sorted(checkpoint.participants) if m not in parts]
    covered = {p for c in parts.values() for p in c.offsets}
    gaps = [f"no member contributed {p}" for p in sorted(region.frozen[checkpoint.sequence] - covered)]
    extra = [f"{p} was contributed but not frozen" for p in sorted(covered - region.frozen[checkpoint.sequence])]
    return (*waiting, *gaps, *extra)


def _completed(region: Region, now: datetime, checkpoint: rows.Checkpoint) -> Region:
    if checkpoints.awaited(region):
        return region
    try:
        offsets = merged(region.contributions_to(checkpoint.sequence))
    except errors.OverlappingOffsets as overlap:
        return resets.demand(region, now, rows.ResetCause.DOUBLE_CLAIM, overlap.message)
    if lacking(region, checkpoint):
        return region
    strangers = _left_out(region, checkpoint)
    if strangers:
        offsets = offsets.union(strangers)
    region = complete(region, now, checkpoint, offsets, strangers)
    return _ended_in_what_asked(region, now, region.checkpoints[checkpoint.sequence])


def complete(
    region: Region,
    now: datetime,
    checkpoint: rows.Checkpoint,
    offsets: OffsetMap,
    strangers: Collection[GroupPartition] = (),
) -> Region:
    """Return the region with its open checkpoint complete, and the requests that it answers answered.

    Args:
        region: the region.
        now: the store's clock.
        checkpoint: the open one.
        offsets: the next to read of every partition of it.
        strangers: those of the partitions that foreign consumers had.
    """
    timeouts = region.rules.timeouts
    row = replace(
        checkpoint,
        state=rows.CheckpointState.COMPLETE,
        drain_deadline=None,
        previous=region.restore_sequence,
        finished_at=now,
        inexact=_inexact(region, checkpoint, offsets, strangers),
        commit_deadline=now + timeouts.commit,
        publish_deadline=now + timeouts.publish,
        digest=digest(offsets),
    )
    region = resets.resolve_commit(
        region, now, rows.Committed.SUPERSEDED, f"checkpoint {checkpoint.sequence} is complete"
    )
    placed = {p: region.claims[p].at(o) for p, o in offsets.items()} | _gone(region)
    region = replace(
        region.with_checkpoint(row),
        open_checkpoint=None,
        restore_point=rows.RestorePoint(checkpoint.sequence),
        aligned=region.aligned if checkpoint.boundary is None else checkpoint.sequence,
        # A checkpoint where nothing has moved says nothing about the batch that fails.
        failures=region.failures if region.failures and offsets == region.restore_point_offsets() else 0,
        offsets=put(region.offsets, {checkpoint.sequence: offsets}),
        claims=put(region.claims, placed),
        retire_at=now,
    )
    region = region.record(now, drawn(events.CheckpointCompleted, row, offsets=offsets))
    region = boundaries.after_completion(region, now, checkpoint.boundary)
    return requests.release(region, now, row)


def _gone(region: Region) -> dict[GroupPartition, rows.Claim]:
    """Return the claims of partitions that are gone, each where it stands.

    A checkpoint doesn't hold them, but it has their batches: of what was accepted, nothing is left to go back for.
    """
    return {
        p: claim.at(claim.position)
        for p in region.gone()
        if (claim := region.claims.get(p)) is not None and not claim.is_in_flight
    }


def _left_out(region: Region, checkpoint: rows.Checkpoint) -> dict[GroupPartition, Offset]:
    """Return the partitions that a foreign consumer had when the checkpoint was opened, each where it stands.

    No member can move it.
    """
    frozen = region.frozen[checkpoint.sequence]
    return {
        p: claim.position
        for p, claim in region.claims.items()
        if p not in frozen and claim.position is not None and region.belongs(p)
    }


def _inexact(
    region: Region, checkpoint: rows.Checkpoint, offsets: OffsetMap, strangers: Collection[GroupPartition]
) -> dict[GroupPartition, str]:
    """Return why the checkpoint does not hold exactly the records up to its boundary, or nothing new of a partition.

    `strangers` are the partitions that a foreign consumer had.
    """
    found = checkpoints.unread(region, offsets)
    for p in strangers:
        who = coverage.strangers(region, p) or "a foreign consumer"
        found[p] = f"no member owned it, but {who}; nothing of it was processed for this checkpoint"
    if checkpoint.boundary is None:
        return found
    found |= boundaries.overshoot(region, checkpoint.boundary, frozenset(offsets))
    for partition in offsets:
        row = boundaries.boundary_offset(region, partition, checkpoint.boundary)
        if row is not None and row.inexact:
            found[partition] = row.inexact
    return found


def _ended_in_what_asked(region: Region, now: datetime, checkpoint: rows.Checkpoint) -> Region:
    if checkpoint.purpose is rows.CheckpointPurpose.RESET:
        return person_resets.begin_at_checkpoint(region, now, checkpoint)
    if region.next_spec is not None and region.desired_state is not DesiredState.STOPPED:
        return specs.restart(region, now)
    request = region.request_of(checkpoint.request_id)
    is_last = checkpoint.purpose is rows.CheckpointPurpose.STOP or (request is not None and request.is_of_run)
    if region.desired_state is DesiredState.STOPPED and is_last:
        return replace(region, stopping=checkpoint.sequence)
    return region.moved_to(now, rows.RegionState.RUNNING, f"checkpoint {checkpoint.sequence} is complete")
