"""A checkpoint from its first contribution to its last commit read-back (docs/explanation/what-if.md).

The last contribution completes the checkpoint in its own transaction: every participant contributed *and* every frozen
partition is covered exactly once. Then, in the same transaction, the region ends in what asked for the checkpoint.
Publication and Kafka's commit read-back come afterwards; the store is first, Kafka second, and the difference is
visible.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime

from airflow_kcr.errors import (
    BatchRefused,
    CheckpointRefused,
    ConflictingContribution,
    NotClaimed,
    OffsetOutsideLog,
    OverlappingOffsets,
    StrangeContribution,
    UnknownCheckpoint,
)
from airflow_kcr.protocol.commands import Contribute
from airflow_kcr.protocol.offsets import EMPTY, OffsetMap
from airflow_kcr.protocol.region import (
    boundaries,
    checkpoints,
    events,
    membership,
    person_resets,
    resets,
    specs,
    timelines,
)
from airflow_kcr.protocol.region.rows import (
    Checkpoint,
    CheckpointPhase,
    CheckpointPurpose,
    CheckpointState,
    Claim,
    Committed,
    Contribution,
    DesiredState,
    RegionState,
    ResetCause,
)
from airflow_kcr.protocol.region.state import (
    Region,
    belongs,
    checkpoint_of,
    contributions_to,
    digest,
    moved_to,
    past_skips,
    put,
    record,
    require_member,
    restore_point_offsets,
    with_checkpoint,
)
from airflow_kcr.protocol.values import CheckpointNumber, GroupPartition, Incarnation, MemberId, Offset, replace


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
    earlier = contributions_to(region, part.sequence).get(part.member)
    if earlier is not None and earlier.incarnation == part.incarnation and earlier.offsets == part.offsets:
        return region
    require_member(region, part.member, part.incarnation, now, epoch=part.epoch)
    checkpoint = region.checkpoint
    if checkpoint is None or checkpoint.sequence != part.sequence or checkpoint.phase is not CheckpointPhase.DRAINING:
        raise CheckpointRefused(
            f"checkpoint {part.sequence} of region {region.name} is not draining; nothing was stored"
        )
    if checkpoint.participants.get(part.member) != part.incarnation:
        raise StrangeContribution(
            f"{part.member}, incarnation {part.incarnation}, is not among the participants of checkpoint "
            f"{checkpoint.sequence}"
        )
    if earlier is not None:
        raise ConflictingContribution(
            f"{part.member} has already contributed other offsets to checkpoint {checkpoint.sequence}"
        )
    _require_own_positions(region, now, part)
    row = Contribution(
        incarnation=part.incarnation,
        offsets=part.offsets,
        committed=part.committed,
        bounds=dict(part.bounds),
        contributed_at=now,
    )
    region = replace(region, contributions=put(region.contributions, {(part.sequence, part.member): row}))
    body = events.Contributed(
        sequence=part.sequence,
        member=part.member,
        incarnation=part.incarnation,
        epoch=part.epoch,
        offsets=part.offsets,
        bounds=dict(part.bounds),
    )
    return _completed(record(region, now, body), now, checkpoint)


def _require_own_positions(region: Region, now: datetime, part: Contribute) -> None:
    running = [b.batch for b in region.running.values() if b.member == part.member]
    if running:
        raise BatchRefused(f"{part.member} contributes while its batch {running[0]} is running")
    held = membership.held_by(region, part.member, now)
    strange = sorted(part.offsets.keys() ^ held.keys())
    if strange:
        raise NotClaimed(
            f"{part.member} must contribute exactly the partitions it holds; not so: {', '.join(map(str, strange[:5]))}"
        )
    for partition, offset in part.offsets.items():
        claim = held[partition]
        if claim.is_in_flight:
            raise BatchRefused(
                f"{partition}: a batch started up to {claim.started_to} was not accepted; a reset "
                "follows, no checkpoint"
            )
        if claim.position != offset:
            raise ConflictingContribution(
                f"{part.member} contributes {offset} for {partition}, the store has {claim.position}"
            )
        log = part.bounds.get(partition)
        if log is None or not (
            log.start <= offset and (offset <= log.end or offset <= past_skips(region, partition, log.end))
        ):
            seen = "no bounds" if log is None else f"[{log.start}, {log.end}]"
            raise OffsetOutsideLog(f"{partition}: the position {offset} is not in the log as read ({seen})")
        if timelines.is_recreated(claim.topic_id, log.topic_id):
            raise OffsetOutsideLog(
                f"{partition}: the position {offset} is of topic id {claim.topic_id}, the log as read is of "
                f"{log.topic_id}: the topic was deleted and created again"
            )


def merged(contributions: Mapping[MemberId, Contribution]) -> OffsetMap:
    """Return the union of the contributions: the checkpoint's offsets, whatever order they came in.

    Raises:
        OverlappingOffsets: two members contributed one partition; a double claim is never resolved silently.
    """
    total: dict[GroupPartition, Offset] = {}
    for member in sorted(contributions):
        shared = sorted(total.keys() & contributions[member].offsets.keys())
        if shared:
            raise OverlappingOffsets(
                f"{', '.join(map(str, shared))}: more than one owner's offset, {member}'s among them"
            )
        total.update(contributions[member].offsets)
    return OffsetMap(total)


def lacking(region: Region, checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return what a draining checkpoint still lacks, by name: participants, and uncontributed frozen partitions.

    Complete needs both: participants alone would miss a partition that no member held, coverage alone a member that has
    yet to say that it is idle.
    """
    parts = contributions_to(region, checkpoint.sequence)
    waiting = [f"{m} has not contributed" for m in sorted(checkpoint.participants) if m not in parts]
    covered = {p for c in parts.values() for p in c.offsets}
    gaps = [f"no member contributed {p}" for p in sorted(region.frozen[checkpoint.sequence] - covered)]
    extra = [f"{p} was contributed but not frozen" for p in sorted(covered - region.frozen[checkpoint.sequence])]
    return (*waiting, *gaps, *extra)


def _failures(region: Region, offsets: OffsetMap) -> int:
    """Return the failures that still count.

    A checkpoint where nothing has moved says nothing about the batch that fails.
    """
    return region.failures if region.failures and offsets == restore_point_offsets(region) else 0


def _completed(region: Region, now: datetime, checkpoint: Checkpoint) -> Region:
    if any((checkpoint.sequence, member) not in region.contributions for member in checkpoint.participants):
        return region
    try:
        offsets = merged(contributions_to(region, checkpoint.sequence))
    except OverlappingOffsets as overlap:
        return resets.demand(region, now, ResetCause.DOUBLE_CLAIM, overlap.message)
    if lacking(region, checkpoint):
        return region
    strangers = _left_out(region, checkpoint)
    if strangers:
        offsets = offsets.union(strangers)
    timeouts = region.rules.timeouts
    complete = replace(
        checkpoint,
        state=CheckpointState.COMPLETE,
        phase=None,
        drain_deadline=None,
        previous=region.restore_point,
        finished_at=now,
        inexact=_inexact(region, checkpoint, offsets, strangers),
        commit_deadline=now + timeouts.commit,
        publish_deadline=now + timeouts.publish,
        digest=digest(offsets),
    )
    region = resets.resolve_commit(region, now, Committed.SUPERSEDED, f"checkpoint {checkpoint.sequence} is complete")
    placed = {p: region.claims[p].at(o) for p, o in offsets.items()} | _gone(region)
    region = replace(
        with_checkpoint(region, complete),
        open_checkpoint=None,
        restore_point=checkpoint.sequence,
        restore_point_epoch=None,
        aligned=region.aligned if checkpoint.boundary is None else checkpoint.sequence,
        failures=_failures(region, offsets),
        offsets=put(region.offsets, {checkpoint.sequence: offsets}),
        claims=put(region.claims, placed),
        retire_at=now,
    )
    body = events.CheckpointCompleted(
        sequence=checkpoint.sequence,
        timeline=region.timeline,
        epoch=region.epoch,
        previous=complete.previous,
        offsets=offsets,
        inexact=complete.inexact,
    )
    region = boundaries.after_completion(record(region, now, body), now, checkpoint.boundary)
    return _ended_in_what_asked(checkpoints.release(region, now, complete), now, complete)


def _gone(region: Region) -> dict[GroupPartition, Claim]:
    """Return the claims of partitions that are gone, each where it stands.

    A checkpoint doesn't hold them, but it has their batches: of what was accepted, nothing is left to go back for.
    """
    return {
        p: claim.at(claim.position)
        for p, absence in region.absent.items()
        if absence.is_gone and (claim := region.claims.get(p)) is not None and not claim.is_in_flight
    }


def _left_out(region: Region, checkpoint: Checkpoint) -> dict[GroupPartition, Offset]:
    """Return the partitions that a foreign consumer had when the checkpoint was opened, each where it stands.

    No member can move it.
    """
    frozen = region.frozen[checkpoint.sequence]
    return {
        p: claim.position
        for p, claim in region.claims.items()
        if p not in frozen and claim.position is not None and belongs(region, p)
    }


def _inexact(
    region: Region, checkpoint: Checkpoint, offsets: OffsetMap, strangers: Collection[GroupPartition]
) -> dict[GroupPartition, str]:
    """Return why the checkpoint does not hold exactly the records up to its boundary, or nothing new of a partition.

    `strangers` are the partitions that a foreign consumer had.
    """
    found = checkpoints.unread(region, offsets)
    found |= {
        p: f"no member owned it, but {_strangers(region, p)}; nothing of it was processed for this checkpoint"
        for p in strangers
    }
    if checkpoint.boundary is None:
        return found
    found |= boundaries.overshoot(region, checkpoint.boundary, frozenset(offsets))
    for partition in offsets:
        row = boundaries.boundary_offset(region, partition, checkpoint.boundary)
        if row is not None and row.inexact:
            found[partition] = row.inexact
    return found


def _strangers(region: Region, partition: GroupPartition) -> str:
    return "; ".join(str(o) for o in region.foreign_consumers if o.group == partition.group) or "a foreign consumer"


def _ended_in_what_asked(region: Region, now: datetime, checkpoint: Checkpoint) -> Region:
    if checkpoint.purpose is CheckpointPurpose.RESET:
        return person_resets.begin_at_checkpoint(region, now, checkpoint)
    if specs.is_accepted(region, now) and region.desired_state is not DesiredState.STOPPED:
        return specs.restart(region, now)
    if checkpoint.purpose is CheckpointPurpose.STOP and region.desired_state is DesiredState.STOPPED:
        return replace(region, stopping=checkpoint.sequence)
    return moved_to(region, now, RegionState.RUNNING, f"checkpoint {checkpoint.sequence} is complete")


def publish(region: Region, now: datetime, sequence: CheckpointNumber, member: MemberId | None) -> Region:
    """Return the region with a complete checkpoint published; downstream may read it. Repeating it changes nothing.

    Args:
        region: the region.
        now: the store's clock.
        sequence: the checkpoint.
        member: who published; None where the region was stopped and something else repaired it.

    Raises:
        UnknownCheckpoint: there is no such checkpoint.
        CheckpointRefused: it is not complete, or an earlier checkpoint has to be published first.
    """
    checkpoint = checkpoint_of(region, sequence)
    if checkpoint is None:
        raise UnknownCheckpoint(f"region {region.name} has no checkpoint {sequence}")
    if checkpoint.published_at is not None:
        return region
    if checkpoint.state is not CheckpointState.COMPLETE:
        raise CheckpointRefused(f"checkpoint {sequence} is {checkpoint.state}; only a complete checkpoint is published")
    earlier = [s for s, c in region.checkpoints.items() if c.state is CheckpointState.COMPLETE and s < sequence]
    if earlier:
        raise CheckpointRefused(f"checkpoint {min(earlier)} has to be published before checkpoint {sequence}")
    row = replace(checkpoint, state=CheckpointState.PUBLISHED, published_at=now, publish_deadline=None)
    return record(with_checkpoint(region, row), now, events.CheckpointPublished(sequence=sequence, member=member))


def read_back(
    region: Region,
    now: datetime,
    sequence: CheckpointNumber,
    member: MemberId,
    incarnation: Incarnation,
    offsets: OffsetMap,
) -> Region:
    """Return the region with what Kafka answered, read back, to a member's commit of the restore point.

    The checkpoint is *committed* when the commit read-backs of all its partitions equal it; one that differs makes it
    not committed, visibly, and can be repaired.

    Raises:
        CheckpointRefused: the checkpoint is not the restore point any more; nothing moves Kafka back to it (scenario
            C32).
        StaleIncarnation, LeaseExpired, NotClaimed: the member may not speak for these partitions.
    """
    if sequence != region.restore_point or region.restore_point_epoch is not None:
        raise CheckpointRefused(
            f"checkpoint {sequence} is not the restore point of region {region.name} any more; don't commit it"
        )
    require_member(region, member, incarnation, now)
    for partition in offsets:
        claim = region.claims.get(partition)
        if claim is None or claim.owner != member or not membership.is_current(region, claim, now):
            raise NotClaimed(f"{member} does not hold {partition} now; its commit read-back says nothing")
    body = events.CommitReadBack(
        sequence=sequence, member=member, incarnation=incarnation, epoch=region.epoch, offsets=offsets
    )
    return _with_read_back(region, now, sequence, offsets, body)


def repair(region: Region, now: datetime, sequence: CheckpointNumber, offsets: OffsetMap) -> Region:
    """Return the region with Kafka's commit read-back of the restore point as repaired while its groups were empty.

    Raises:
        CheckpointRefused: the checkpoint is not the restore point any more.
    """
    if sequence != region.restore_point or region.restore_point_epoch is not None:
        raise CheckpointRefused(
            f"checkpoint {sequence} is not the restore point of region {region.name} any more; don't commit it"
        )
    body = events.CommitReadBack(
        sequence=sequence, member=None, incarnation=Incarnation(0), epoch=region.epoch, offsets=offsets
    )
    return _with_read_back(region, now, sequence, offsets, body)


def _with_read_back(
    region: Region, now: datetime, sequence: CheckpointNumber, offsets: OffsetMap, body: events.CommitReadBack
) -> Region:
    known = region.read_backs.get(sequence, EMPTY).replace(offsets)
    region = record(replace(region, read_backs=put(region.read_backs, {sequence: known})), now, body)
    wanted, checkpoint = region.offsets[sequence], region.checkpoints[sequence]
    differs = [p for p in known if p in wanted and known[p] != wanted[p]]
    # What a foreign consumer had is named as inexact; of a checkpoint without such a name the frozen partitions need
    # not be read.
    foreign = sorted(wanted.keys() - _frozen(region, sequence)) if checkpoint.inexact else []
    if known.keys() >= wanted.keys() and not differs:
        settled, why = Committed.YES, "every partition's commit read-back equals the checkpoint"
    elif differs:
        settled, why = Committed.NO, f"Kafka holds {known[differs[0]]} for {differs[0]}, not {wanted[differs[0]]}"
    elif foreign and known.keys() >= wanted.keys() - foreign:
        settled, why = Committed.NO, f"{foreign[0]} was not a member's to commit: a foreign consumer had it"
    else:
        return region
    if checkpoint.committed is settled:
        return region
    region = with_checkpoint(region, replace(checkpoint, committed=settled, commit_deadline=None))
    return record(region, now, events.CommitResolved(sequence=sequence, committed=settled, why=why))


def _frozen(region: Region, sequence: CheckpointNumber) -> frozenset[GroupPartition]:
    held = region.frozen.get(sequence)
    return region.archive.frozen(sequence) if held is None else held


def overdue(region: Region, now: datetime) -> Region:
    """Return the region after its commit and publish deadlines, and with a stop ended that waited for them only."""
    restore_point = (
        region.checkpoints.get(region.restore_point)
        if region.restore_point is not None and region.restore_point_epoch is None
        else None
    )
    if (
        restore_point is not None
        and restore_point.committed is Committed.PENDING
        and _has_passed(restore_point.commit_deadline, now)
    ):
        region = resets.resolve_commit(region, now, Committed.NO, "the commit timeout passed")
    for sequence, checkpoint in region.checkpoints.items():
        if checkpoint.state is CheckpointState.COMPLETE and _has_passed(checkpoint.publish_deadline, now):
            region = with_checkpoint(region, replace(checkpoint, publish_deadline=None))
            region = record(region, now, events.PublishLate(sequence=sequence))
    return region


def _has_passed(deadline: datetime | None, now: datetime) -> bool:
    return deadline is not None and deadline <= now


def is_stop_done(region: Region) -> bool:
    """Whether the checkpoint of a stop is committed (or its timeout passed) and published (or late).

    All may leave (C21).
    """
    if region.stopping is None:
        return False
    checkpoint = region.checkpoints[region.stopping]
    published = checkpoint.published_at is not None or checkpoint.publish_deadline is None
    return checkpoint.committed is not Committed.PENDING and published
