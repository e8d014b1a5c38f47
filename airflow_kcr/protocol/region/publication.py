"""A complete checkpoint is published, and Kafka's commit of it read back.

Both come after the completion: the store is first, Kafka second, and the difference is visible.
"""

from __future__ import annotations

from datetime import datetime

from airflow_kcr.errors import CheckpointRefused, NotClaimed
from airflow_kcr.protocol.offsets import EMPTY
from airflow_kcr.protocol.region import coverage, events, lookup, resets
from airflow_kcr.protocol.region.commands import PublishCheckpoint, ReportPublished, ReportReadBack
from airflow_kcr.protocol.region.rows import CheckpointState, Committed, RestorePoint
from airflow_kcr.protocol.region.state import Region, put
from airflow_kcr.protocol.values import CheckpointNumber, GroupPartition, drawn, replace


def publish(region: Region, now: datetime, report: ReportPublished | PublishCheckpoint) -> Region:
    """Return the region with a complete checkpoint published; downstream may read it. Repeating it changes nothing.

    Raises:
        UnknownCheckpoint: there is no such checkpoint.
        CheckpointRefused: it is not complete, or an earlier checkpoint has to be published first.
    """
    sequence = report.sequence
    checkpoint = lookup.require_checkpoint(region, sequence)
    if checkpoint.published_at is not None:
        return region
    if checkpoint.state is not CheckpointState.COMPLETE:
        raise CheckpointRefused(f"checkpoint {sequence} is {checkpoint.state}; only a complete checkpoint is published")
    if (first := min(region.complete, default=sequence)) < sequence:
        raise CheckpointRefused(f"checkpoint {first} has to be published before checkpoint {sequence}")
    member, tables = report.member if isinstance(report, ReportPublished) else None, report.tables
    row = replace(checkpoint, state=CheckpointState.PUBLISHED, published_at=now, publish_deadline=None, tables=tables)
    body = events.CheckpointPublished(sequence=sequence, member=member, tables=tables)
    return region.with_checkpoint(row).record(now, body)


def read_back(region: Region, now: datetime, report: ReportReadBack) -> Region:
    """Return the region with what Kafka answered, read back, to a commit of the restore point: a member's, or a repair.

    The checkpoint is *committed* when the commit read-backs of all its partitions equal it; one that differs makes it
    not committed, visibly, and can be repaired.

    Raises:
        CheckpointRefused: the checkpoint is not the restore point any more; nothing moves Kafka back to it (scenario
            C32).
        StaleIncarnation, LeaseExpired, NotClaimed: the member may not speak for these partitions.
    """
    sequence, member = report.sequence, report.member
    if region.restore_point != RestorePoint(sequence):
        raise CheckpointRefused(
            f"checkpoint {sequence} is not the restore point of region {region.name} any more; don't commit it"
        )
    if member is not None:
        region.require_member(member, report.incarnation, now)
        for partition in report.offsets:
            claim = region.claim_of(partition)
            if claim.owner != member or not coverage.is_current(region, claim, now):
                raise NotClaimed(f"{member} does not hold {partition} now; its commit read-back says nothing")
    body = drawn(events.CommitReadBack, report, epoch=region.epoch)
    known = region.read_backs.get(sequence, EMPTY).replace(report.offsets)
    region = replace(region, read_backs=put(region.read_backs, {sequence: known})).record(now, body)
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
    region = region.with_checkpoint(replace(checkpoint, committed=settled, commit_deadline=None))
    return region.record(now, events.CommitResolved(sequence=sequence, committed=settled, why=why))


def _frozen(region: Region, sequence: CheckpointNumber) -> frozenset[GroupPartition]:
    held = region.frozen.get(sequence)
    return region.archive.frozen(sequence) if held is None else held


def overdue(region: Region, now: datetime) -> Region:
    """Return the region after its commit and publish deadlines, and with a stop ended that waited for them only."""
    restore_point = region.uncommitted
    if restore_point is not None and _has_passed(restore_point.commit_deadline, now):
        region = resets.resolve_commit(region, now, Committed.NO, "the commit timeout passed")
    for sequence in region.complete:
        checkpoint = region.checkpoints[sequence]
        if _has_passed(checkpoint.publish_deadline, now):
            region = region.with_checkpoint(replace(checkpoint, publish_deadline=None))
            region = region.record(now, events.PublishLate(sequence=sequence))
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
