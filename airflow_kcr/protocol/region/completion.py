"""Checkpoints from their first contribution to their retirement (docs/explanation/what-if.md).

The last contribution completes the checkpoint in its own transaction: every participant contributed *and* every frozen
partition is covered exactly once. Then, in the same transaction, the region ends in what asked for the checkpoint.
Publication and Kafka's commit read-back come afterwards; the store is first, Kafka second, and the difference is
visible.

**Retirement** is by age and by count; never the restore point or what it was built from, one on the current timeline
that is unpublished, the newest usable, a pinned one, or one being restored. Its digest and the answer to its request id
stay. With it goes where its boundary falls, and where every older one does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Final

from airflow_kcr.errors import (
    BatchRefused,
    CheckpointNotUsable,
    CheckpointRefused,
    ConflictingContribution,
    NotClaimed,
    OffsetOutsideLog,
    OverlappingOffsets,
    StrangeContribution,
    UnknownCheckpoint,
)
from airflow_kcr.protocol.commands import (
    Contribute,
    PinCheckpoint,
    PublishCheckpoint,
    RepairReadBack,
    ReportPublished,
    ReportReadBack,
)
from airflow_kcr.protocol.offsets import EMPTY, OffsetMap
from airflow_kcr.protocol.region import (
    boundaries,
    checkpoints,
    coverage,
    events,
    person_resets,
    resets,
    specs,
    timelines,
)
from airflow_kcr.protocol.region.archive import ACTIVE
from airflow_kcr.protocol.region.rows import (
    Checkpoint,
    CheckpointPhase,
    CheckpointPoint,
    CheckpointPurpose,
    CheckpointState,
    Claim,
    Committed,
    Contribution,
    DesiredState,
    RegionState,
    ResetCause,
    ResetPoint,
)
from airflow_kcr.protocol.region.state import (
    BoundariesForgotten,
    OffsetsForgotten,
    Region,
    belongs,
    checkpoint_of,
    contributions_to,
    digest,
    moved_to,
    past_skips,
    person_reset_of,
    put,
    record,
    require_member,
    restore_point_offsets,
    with_checkpoint,
)
from airflow_kcr.protocol.targets import ToCheckpoint, ToRun
from airflow_kcr.protocol.values import CheckpointNumber, GroupPartition, Incarnation, MemberId, Offset, few, replace


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
    held = coverage.held_by(region, part.member, now)
    strange = sorted(part.offsets.keys() ^ held.keys())
    if strange:
        raise NotClaimed(f"{part.member} must contribute exactly the partitions it holds; not so: {few(strange)}")
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
        previous=region.restore_sequence,
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
        restore_point=CheckpointPoint(checkpoint.sequence),
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
    if region.next_spec is not None and region.desired_state is not DesiredState.STOPPED:
        return specs.restart(region, now)
    if checkpoint.purpose is CheckpointPurpose.STOP and region.desired_state is DesiredState.STOPPED:
        return replace(region, stopping=checkpoint.sequence)
    return moved_to(region, now, RegionState.RUNNING, f"checkpoint {checkpoint.sequence} is complete")


def publish(region: Region, now: datetime, report: ReportPublished | PublishCheckpoint) -> Region:
    """Return the region with a complete checkpoint published; downstream may read it. Repeating it changes nothing.

    Raises:
        UnknownCheckpoint: there is no such checkpoint.
        CheckpointRefused: it is not complete, or an earlier checkpoint has to be published first.
    """
    sequence = report.sequence
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
    member = report.member if isinstance(report, ReportPublished) else None
    row = replace(checkpoint, state=CheckpointState.PUBLISHED, published_at=now, publish_deadline=None)
    return record(with_checkpoint(region, row), now, events.CheckpointPublished(sequence=sequence, member=member))


def read_back(region: Region, now: datetime, report: ReportReadBack) -> Region:
    """Return the region with what Kafka answered, read back, to a member's commit of the restore point.

    The checkpoint is *committed* when the commit read-backs of all its partitions equal it; one that differs makes it
    not committed, visibly, and can be repaired.

    Raises:
        CheckpointRefused: the checkpoint is not the restore point any more; nothing moves Kafka back to it (scenario
            C32).
        StaleIncarnation, LeaseExpired, NotClaimed: the member may not speak for these partitions.
    """
    _require_restore_point(region, report.sequence)
    member = report.member
    require_member(region, member, report.incarnation, now)
    for partition in report.offsets:
        claim = region.claims.get(partition)
        if claim is None or claim.owner != member or not coverage.is_current(region, claim, now):
            raise NotClaimed(f"{member} does not hold {partition} now; its commit read-back says nothing")
    body = events.CommitReadBack(
        sequence=report.sequence,
        member=member,
        incarnation=report.incarnation,
        epoch=region.epoch,
        offsets=report.offsets,
    )
    return _with_read_back(region, now, body)


def repair(region: Region, now: datetime, report: RepairReadBack) -> Region:
    """Return the region with Kafka's commit read-back of the restore point as repaired while its groups were empty.

    Raises:
        CheckpointRefused: the checkpoint is not the restore point any more.
    """
    _require_restore_point(region, report.sequence)
    body = events.CommitReadBack(
        sequence=report.sequence, member=None, incarnation=Incarnation(0), epoch=region.epoch, offsets=report.offsets
    )
    return _with_read_back(region, now, body)


def _require_restore_point(region: Region, sequence: CheckpointNumber) -> None:
    if region.restore_point != CheckpointPoint(sequence):
        raise CheckpointRefused(
            f"checkpoint {sequence} is not the restore point of region {region.name} any more; don't commit it"
        )


def _with_read_back(region: Region, now: datetime, body: events.CommitReadBack) -> Region:
    sequence = body.sequence
    known = region.read_backs.get(sequence, EMPTY).replace(body.offsets)
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
    restore_point = region.restore_checkpoint
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


# Retirement

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
    return {CheckpointState.COMPLETE: "it is not published yet", CheckpointState.OPEN: "it is open"}.get(row.state, "")


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
    opened = region.resets.get(point.epoch) if isinstance(point, ResetPoint) else None
    person = None if opened is None or opened.person is None else person_reset_of(region, opened.person)
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
    if _goes_to_a_run(region):
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
    sequences = tuple(row.sequence for row in gone)
    old = _past_boundaries(region, gone, kept)
    region = replace(
        region,
        checkpoints=put(
            region.checkpoints, {row.sequence: replace(row, state=CheckpointState.RETIRED) for row in gone}
        ),
        ledger=(*region.ledger, OffsetsForgotten(sequences=sequences), *old),
        retire_at=now,
    )
    return record(region, now, events.CheckpointsRetired(sequences=sequences))


def _past_boundaries(
    region: Region, gone: list[Checkpoint], kept: dict[CheckpointNumber, str]
) -> tuple[BoundariesForgotten, ...]:
    """Return what forgets where boundaries fall that no reset to a checkpoint comes to again, but to a pinned one.

    Boundaries only grow along the current timeline, and after a reset the region continues with those beyond its
    target's. A checkpoint off the current timeline says nothing: its boundary may be the one that the region is coming
    to again. After a reset to an older one, which is pinned or being restored, or to no checkpoint at all, members ask
    the brokers again.
    """
    oldest = min(kept, default=None)
    boundaries = [
        row.boundary
        for row in gone
        if row.is_current and row.boundary is not None and (oldest is None or row.sequence < oldest)
    ]
    # Twice as many as a piece of checkpoints leaves behind, so that what an older version has left goes as well.
    limit = 2 * max(RETIRED_AT_ONCE, len(region.claims))
    return (BoundariesForgotten(up_to=max(boundaries), limit=limit),) if boundaries else ()


def _goes_to_a_run(region: Region) -> bool:
    """Whether a person's reset goes to a DAG run, and so to any checkpoint that is usable when its turn comes."""
    return any(r.state in ACTIVE and isinstance(r.target, ToRun) for r in region.person_resets.values())


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
    sequence, label, reason = request.sequence, request.label, request.reason
    row = checkpoint_of(region, sequence)
    if row is None:
        raise UnknownCheckpoint(f"region {region.name} has no checkpoint {sequence}")
    if not row.is_complete:
        raise CheckpointNotUsable(f"checkpoint {sequence} is {row.state}; only a complete one can be pinned")
    if (row.pinned_as, row.pin_reason) == (label, reason):
        return region
    region = with_checkpoint(replace(region, retire_at=now), replace(row, pinned_as=label, pin_reason=reason))
    return record(region, now, events.CheckpointPinned(sequence=sequence, name=label, reason=reason))
