"""What of a region's past still holds: its current timeline, its topics, and the numbers that Kafka has of it.

A complete checkpoint is on the current timeline when every later timeline opened at or beyond its offset on every
partition that both have. Opening a timeline is the only thing that takes one off, so it is decided there, once, and
stored (`Checkpoint.undone_by`). Targets, request ids, retirement, manifests and rollback all ask this module.

**Topics.** What the region stores of a partition (position, initial offset, checkpoints, boundaries) belongs to the
topic id that its claim names. It moves to another id only if an out-of-range policy or a person's reset has looked a
place up in that other log. Nothing else is carried over, so offsets of two topics are never compared or subtracted.

**Numbers in Kafka's commit metadata** that are later than the store's are of a restored store, or of another writer:
every client with the right to commit to a group can write such a note. So it halts the region and says what it says,
and nothing is taken over by itself. Numbers that the region could have reached are taken over when a person lets it
leave the halt, so that no number is used twice; numbers that no region reaches were written by another program, and are
never taken over.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from airflow_kcr.errors import NumberOutOfRange
from airflow_kcr.protocol import values
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.offsets import OffsetMap, SeekEntry, SeekMap, SeekSource
from airflow_kcr.protocol.region import events, rows
from airflow_kcr.protocol.region.state import CheckpointsUndone, InitialKey, Region, put, without
from airflow_kcr.protocol.values import GroupPartition, Offset, replace


def unpublished(region: Region) -> tuple[rows.Checkpoint, ...]:
    """Return the complete current checkpoints that are not published yet, oldest first."""
    return tuple(row for s in region.complete if (row := region.checkpoints[s]).is_current)


def newest_aligned(region: Region, up_to: values.CheckpointNumber | None = None) -> rows.Checkpoint | None:
    """Return the current checkpoint, at or before `up_to`, that was aligned to the newest boundary.

    Along the current timeline boundaries only grow, because a request is answered by a checkpoint of a later boundary;
    so it is the newest.
    """
    if region.aligned is None:
        return None
    if up_to is None or up_to >= region.aligned:
        return region.checkpoint_of(region.aligned)
    return _newest_stored(region, up_to)


def _newest_stored(region: Region, up_to: values.CheckpointNumber) -> rows.Checkpoint | None:
    # Of the current timeline beyond what this decision has taken off it, the archive knows nothing.
    end = min((up_to, *(values.CheckpointNumber(s - 1) for s in _undone_now(region))))
    held = [row for s, row in region.checkpoints.items() if row.is_current and row.boundary is not None and s <= up_to]
    stored = region.archive.newest_aligned(end)
    held += [stored] if stored is not None and stored.sequence not in region.checkpoints else []
    return max(held, key=lambda row: row.sequence, default=None)


def _undone_now(region: Region) -> frozenset[values.CheckpointNumber]:
    """Return what this decision has taken off the current timeline."""
    changes = (change for change in region.ledger if isinstance(change, CheckpointsUndone))
    return frozenset(sequence for change in changes for sequence in change.sequences)


def covering(region: Region, boundary: datetime) -> rows.Checkpoint | None:
    """Return the first current checkpoint at or beyond `boundary`.

    It answers every request for an earlier boundary.
    """
    newest = newest_aligned(region)
    if newest is None or newest.boundary is None or newest.boundary < boundary:
        return None
    stored = region.archive.covering(boundary)
    found = [row for row in region.checkpoints.values() if row.is_current and row.boundary and row.boundary >= boundary]
    if stored is not None and stored.sequence not in region.checkpoints.keys() | _undone_now(region):
        found.append(stored)
    return min(found, key=lambda row: row.sequence, default=None)


def undone_by(region: Region, opening: OffsetMap) -> tuple[values.CheckpointNumber, ...]:
    """Return the current checkpoints that a timeline opening at these offsets takes off it.

    A retired checkpoint has no offsets any more. It stays on the current timeline when a newer one with offsets does,
    because offsets along the current timeline only grow; otherwise it is taken off, since a wrong "still there" would
    answer an old DAG run with a checkpoint that no longer holds.
    """
    judged = {
        s: opening.covers(region.offsets[s])
        for s, row in region.checkpoints.items()
        if row.is_current and row.is_complete and s in region.offsets
    }
    covered = max((s for s, stays in judged.items() if stays), default=None)
    gone = {s for s, stays in judged.items() if not stays}
    retired = [s for s, row in region.checkpoints.items() if row.is_current and not row.is_complete]
    gone.update(s for s in region.archive.undone_by(opening, covered, retired) if s not in judged)
    return tuple(sorted(gone - _undone_now(region)))


def without_undone(region: Region, sequences: tuple[values.CheckpointNumber, ...]) -> Region:
    """Return the region with these checkpoints marked as undone by its present timeline."""
    if not sequences:
        return region
    held = {s: replace(region.checkpoints[s], undone_by=region.timeline) for s in sequences if s in region.checkpoints}
    undone = CheckpointsUndone(sequences=sequences, by=region.timeline)
    region = replace(region, checkpoints=put(region.checkpoints, held), ledger=(*region.ledger, undone))
    if region.aligned not in sequences:
        return region
    newest = _newest_stored(region, region.aligned)
    return replace(region, aligned=None if newest is None else newest.sequence)


def undone(batch: rows.Batch, lowest: Mapping[GroupPartition, Offset]) -> rows.Batch:
    """Return a batch after resets: what it did at or beyond where they went is undone.

    A reset inside a range leaves the outcome and notes from where on; once every range is undone from its start, the
    outcome is.

    Args:
        batch: as it was accepted.
        lowest: of all resets after that, by partition; one that no reset concerned is missing.
    """
    if batch.outcome is not rows.Outcome.DONE:
        return batch
    marks = {
        partition: Offset(max(lowest[partition], range_.from_))
        for partition, range_ in batch.ranges.items()
        if partition in lowest and lowest[partition] < range_.to
    }
    if not marks:
        return batch
    whole = all(marks.get(p) == r.from_ for p, r in batch.ranges.items())
    return replace(batch, undone_from=marks, outcome=rows.Outcome.UNDONE if whole else rows.Outcome.DONE)


# Topics that were deleted and created again


def is_recreated(known: values.TopicId, seen: values.TopicId) -> bool:
    """Whether two ids are those of two topics; an id that a broker did not tell says nothing."""
    return bool(known and seen) and known != seen


def recreated(region: Region, logs: Mapping[GroupPartition, LogBounds]) -> frozenset[GroupPartition]:
    """Return the partitions whose log, as it was just read, is of another topic than the one that was claimed."""
    return frozenset(
        p for p, log in logs.items() if p in region.claims and is_recreated(region.claims[p].topic_id, log.topic_id)
    )


def followed_topics(region: Region, now: datetime, logs: Mapping[GroupPartition, LogBounds]) -> Region:
    """Return the region knowing the topics of these logs, in each of which a place was looked up.

    A recreated topic is like a partition that was found later: it begins at the start of its log. Records of
    the old one that were to be skipped are no records of the new one.
    """
    anew = recreated(region, logs)
    if not anew:
        return region
    followed: dict[GroupPartition, rows.Claim] = {
        p: replace(region.claims[p], topic_id=logs[p].topic_id, leader_epoch=logs[p].leader_epoch) for p in anew
    }
    initial: dict[InitialKey, rows.InitialOffset] = {
        (p, logs[p].topic_id): rows.InitialOffset(
            offset=logs[p].start, source=str(SeekSource.START_POSITION), bounds=logs[p]
        )
        for p in sorted(anew)
        if (p, logs[p].topic_id) not in region.initial
    }
    skips = without(region.skips, anew & region.skips.keys())
    return replace(region, claims=put(region.claims, followed), skips=skips).with_initial(now, initial)


def with_recreated(
    region: Region, seek: Mapping[GroupPartition, SeekEntry], logs: Mapping[GroupPartition, LogBounds]
) -> SeekMap:
    """Return a seek map that says which of its places are in the log of another topic; see `followed_topics`."""
    anew = {p: logs[p].topic_id for p in recreated(region, logs) & seek.keys()}
    return SeekMap({**seek, **{p: replace(seek[p], recreated=topic_id) for p, topic_id in anew.items()}})


def topics_of(region: Region, sequence: values.CheckpointNumber) -> Mapping[GroupPartition, values.TopicId]:
    """Return the topic ids that a checkpoint's offsets are of, as its contributors saw them."""
    held = [part for (of, _), part in region.contributions.items() if of == sequence]
    if held or sequence == region.open_checkpoint:
        return {p: log.topic_id for part in held for p, log in part.bounds.items()}
    return region.archive.topics(sequence)


def lost_to(region: Region, sequence: values.CheckpointNumber) -> tuple[GroupPartition, ...]:
    """Return the partitions of a checkpoint whose topic the region has since followed to another one."""
    return tuple(
        p
        for p, topic_id in sorted(topics_of(region, sequence).items())
        if p in region.claims and is_recreated(topic_id, region.claims[p].topic_id)
    )


# Numbers in Kafka's commit metadata

REACHABLE: Final = 1_000_000_000
"""How far beyond the store's own number another one can be: with a checkpoint each second, a region is there after
thirty years, and no backup is that old."""


def noted_later(region: Region, noted: rows.Noted) -> tuple[str, ...]:
    """Return what a note says that is later than what the store has, in words."""
    return tuple(
        f"{what} {_shown(seen)}, the store has {held}" for what, seen, held in _pairs(region, noted) if seen > held
    )


def is_reachable_note(region: Region, noted: rows.Noted) -> bool:
    """Whether the region itself can have written a note, before its store was restored."""
    return all(seen <= min(held + REACHABLE, values.MAX_NUMBER) for _, seen, held in _pairs(region, noted))


def require_numbers_left(region: Region) -> None:
    """Refuse to continue in a region that has taken over numbers beyond which there are none.

    Raises:
        NumberOutOfRange: there is no next epoch, sequence or timeline; the message says what to do.
    """
    held = {"epoch": region.epoch, "sequence": region.next_sequence, "timeline": region.timeline}
    for what, number in held.items():
        if number >= values.MAX_NUMBER:
            raise NumberOutOfRange(
                f"region {region.name} has {what} {number}, and none comes after it: an earlier version took over what "
                "another client had written into Kafka's commit metadata. Begin the region anew: end its members, "
                f"`kcr region kill {region.name}`, `kcr region delete {region.name}`, and apply its spec again with "
                "`start: committed`, which begins where Kafka has the groups"
            )


def taken_over_note(region: Region, now: datetime) -> Region:
    """Return the region with its numbers raised above those of the note that it was halted for, if there is one."""
    halt = region.halt
    if halt is None or halt.noted is None:
        return region
    noted, what = halt.noted, "; ".join(noted_later(region, halt.noted))
    raised = with_numbers_above(replace(region, halt=replace(halt, noted=None)), noted)
    return raised.record(now, events.StoreRestoredSeen(member=noted.member, detail=f"taken over: {what}"))


def left_behind(region: Region) -> Region:
    """Return a region whose store was restored in a timeline that no sink knows, which its next start opens.

    It is stopped, not resumed: nothing else tells that start that sinks may hold what the store has forgotten.
    """
    if region.restore_point is None:
        return region
    return replace(region, timeline=values.Timeline(region.timeline + 1))


def is_opened(region: Region) -> bool:
    """Whether the region is in the timeline of its restore point, or has none yet; else it was `left_behind`."""
    checkpoint, epoch = region.restore_checkpoint, region.restore_epoch
    reset = None if epoch is None else region.resets[epoch]
    row = checkpoint or reset
    return row is None or row.timeline == region.timeline


def with_numbers_above(region: Region, seen: rows.Noted) -> Region:
    """Return the region with its numbers raised above these, so that none is ever used twice."""
    return replace(
        region,
        epoch=max(region.epoch, seen.epoch),
        timeline=max(region.timeline, seen.timeline),
        next_sequence=values.CheckpointNumber(max(region.next_sequence, seen.sequence + 1)),
    )


def _pairs(region: Region, noted: rows.Noted) -> tuple[tuple[str, int, int], ...]:
    return (
        ("epoch", noted.epoch, region.epoch),
        ("sequence", noted.sequence, region.next_sequence - 1),
        ("timeline", noted.timeline, region.timeline),
    )


def _shown(number: int) -> str:
    return str(number) if number <= values.MAX_NUMBER else f"of {len(str(number))} digits"
