"""A reset: every partition of the region goes to its seek entry, as one; members stay in their groups.

A begin is one decision: a new epoch, a burnt sequence, the open checkpoint aborted, the seek map written; by that alone
what lies beyond it is undone (`rewinds`). Members then cancel, quiesce, raise their sinks' fences, claim and
acknowledge; `finish` lets the region go on when nothing is missing. A start is a reset with cause `start`; `STARTING`
is `RESETTING` without deadlines.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region import (
    automatic_resets,
    batches,
    boundaries,
    checkpoints,
    commit_notes,
    coverage,
    events,
    timelines,
)
from airflow_kcr.protocol.region.rows import (
    FAILURE_CAUSES,
    CheckpointState,
    Claim,
    Committed,
    Halt,
    HaltReason,
    Outcome,
    PersonResetState,
    RegionState,
    ResetAttempt,
    ResetCause,
    ResetState,
)
from airflow_kcr.protocol.region.state import (
    BatchesProven,
    Region,
    initial_offsets,
    moved_to,
    past_skips,
    put,
    record,
    universe_in_order,
    with_checkpoint,
)
from airflow_kcr.protocol.seek_map import SeekEntry, SeekMap, SeekSource, filled
from airflow_kcr.protocol.values import CheckpointNumber, Epoch, GroupPartition, Offset, RequestId, Timeline

_UNCLAIMED: Final = Claim()


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """A seek map that is not what the automatic reset would have used: it opens a timeline and is its restore point."""

    seek: SeekMap
    checkpoint: CheckpointNumber | None = None
    """The checkpoint that was reset to, which decides the next boundary; None for any other target."""

    person: RequestId | None = None


def begin(
    region: Region, now: datetime, cause: ResetCause, *, opening: Opening | None = None, detail: str = ""
) -> Region:
    """Return the region in a new epoch, on its way to the automatic target or to an opening.

    Args:
        region: in any state; a running reset is superseded by this further attempt.
        now: the store's clock.
        cause: why.
        opening: a seek map of its own; None: the automatic target, or the one that the running reset has, kept.
        detail: a sentence for people.
    """
    commit_notes.require_numbers_left(region)
    earlier = region.reset
    region = commit_notes.taken_over(checkpoints.abort(region, now, f"a reset began ({cause})"), now)
    must_publish = tuple(sorted(s for s, c in region.checkpoints.items() if c.state is CheckpointState.COMPLETE))
    if opening is not None:
        region = give_up(region, now, f"another reset ({cause}) opened a timeline before it was done")
    region = _superseded(region, now, earlier)
    first = opening is None and region.restore_point is None
    if first:
        opening = Opening(seek=automatic_resets.target(region))
    if opening is None:
        seek = automatic_resets.target(region)
    else:
        seek = filled(opening.seek, initial=initial_offsets(region), partitions=universe_in_order(region))
    region = replace(
        region,
        epoch=Epoch(region.epoch + 1),
        next_sequence=CheckpointNumber(region.next_sequence + 1),
        timeline=region.timeline if opening is None else Timeline(region.timeline + 1),
        stopping=None,
        halt=None,
    )
    sequence = CheckpointNumber(region.next_sequence - 1)
    region = _placed(replace(region, seek_maps=put(region.seek_maps, {region.epoch: seek})), seek)
    undoes: tuple[CheckpointNumber, ...] = ()
    if opening is not None:
        region = replace(region, restore_point=sequence, restore_point_epoch=region.epoch)
        undoes = timelines.undone_by(region, seek.offsets)
        region = timelines.without_undone(region, undoes)
        region = boundaries.after_reset(region, now, opening.checkpoint)
    is_attempt = opening is None and earlier is not None
    reset = ResetAttempt(
        epoch=region.epoch,
        sequence=sequence,
        timeline=region.timeline,
        cause=cause,
        state=ResetState.RUNNING,
        started_at=now,
        attempt=earlier.attempt + 1 if is_attempt and earlier is not None else 1,
        restore_point=region.restore_point,
        must_publish=must_publish,
        undoes=undoes,
        person=earlier.person if is_attempt and earlier is not None else opening.person if opening else None,
        detail=detail,
    )
    region = replace(region, resets=put(region.resets, {reset.epoch: reset}))
    body = events.ResetBegun(
        epoch=reset.epoch,
        sequence=sequence,
        timeline=region.timeline,
        cause=cause,
        attempt=reset.attempt,
        restore_point=region.restore_point,
        seek=seek,
        undoes=undoes,
        person=reset.person,
        detail=detail,
    )
    region = record(region, now, body)
    return _timed(moved_to(region, now, RegionState.STARTING, f"reset {sequence} began ({cause})"), now)


def begin_stopped(region: Region, now: datetime, opening: Opening, detail: str) -> Region:
    """Return the stopped region with another restore point, still stopped.

    A new epoch and timeline, so no zombie can win.

    The next start resumes there; Kafka's committed offsets of the empty groups are altered by the caller, after this.
    """
    region = begin(region, now, ResetCause.PERSON, opening=opening, detail=detail)
    reset = region.resets[region.epoch]
    region = moved_to(
        region, now, RegionState.STOPPED, f"reset {reset.sequence} moved the restore point of a stopped region"
    )
    return _marked_done(region, now, reset)


def _superseded(region: Region, now: datetime, earlier: ResetAttempt | None) -> Region:
    if earlier is not None:
        row = replace(earlier, state=ResetState.SUPERSEDED, done_at=now)
        region = replace(region, resets=put(region.resets, {row.epoch: row}))
    return resolve_commit(region, now, Committed.SUPERSEDED, "a reset began")


def give_up(region: Region, now: datetime, why: str) -> Region:
    """Return the region with its running reset superseded, and the person's request failed that it carries out."""
    reset = region.reset
    if reset is None:
        return region
    row = replace(reset, state=ResetState.SUPERSEDED, done_at=now)
    region = replace(region, resets=put(region.resets, {row.epoch: row}))
    person = None if reset.person is None else region.person_resets.get(reset.person)
    if person is None or person.state is not PersonResetState.STARTED:
        return region
    failed = replace(person, state=PersonResetState.FAILED, failure=why, finished_at=now)
    region = replace(region, person_resets=put(region.person_resets, {failed.request_id: failed}))
    return record(region, now, events.PersonResetFailed(request_id=failed.request_id, why=why))


def resolve_commit(region: Region, now: datetime, committed: Committed, why: str) -> Region:
    """Return the region with the outcome of its restore point's commit, if that is a pending checkpoint's."""
    restore_point = (
        None
        if region.restore_point is None or region.restore_point_epoch is not None
        else region.checkpoints[region.restore_point]
    )
    if restore_point is None or restore_point.committed is not Committed.PENDING:
        return region
    region = with_checkpoint(region, replace(restore_point, committed=committed))
    return record(region, now, events.CommitResolved(sequence=restore_point.sequence, committed=committed, why=why))


def _placed(region: Region, seek: SeekMap) -> Region:
    rows = {p: region.claims.get(p, _UNCLAIMED).at(_place(region, p, entry)) for p, entry in seek.items()}
    return replace(region, claims=put(region.claims, rows))


def _place(region: Region, partition: GroupPartition, entry: SeekEntry) -> Offset | None:
    return None if entry.offset is None else past_skips(region, partition, entry.offset)


def write_seek(region: Region, now: datetime, entries: SeekMap) -> Region:
    """Return the region with open seek entries written; those already known stay (first writer wins).

    The restore point's own map learns them too where the restore point is a reset, so that the next automatic reset
    goes there as well.
    """
    fresh = SeekMap({p: e for p, e in entries.items() if p not in region.seek or region.seek[p].offset is None})
    if not fresh:
        return region
    maps = {region.epoch: region.seek.write(fresh)}
    if region.restore_point_epoch is not None and region.restore_point_epoch != region.epoch:
        maps[region.restore_point_epoch] = region.seek_maps[region.restore_point_epoch].write(fresh)
    region = _placed(replace(region, seek_maps=put(region.seek_maps, maps)), fresh)
    region = record(region, now, events.SeekWritten(epoch=region.epoch, seek=fresh))
    if region.restore_point_epoch is None:
        return region
    undoes = timelines.undone_by(region, fresh.offsets)
    return timelines.without_undone(region, undoes)


def _timed(region: Region, now: datetime) -> Region:
    """Return the region in STARTING or RESETTING, by whether members with leases could cover the partitions.

    Moving between the two changes neither epoch, target nor attempt; the deadline begins anew with each RESETTING.
    """
    reset = region.reset
    if reset is None:
        return region
    able = coverage.could_cover(region, now)
    if able == (region.state is RegionState.RESETTING):
        return region
    deadline = now + region.rules.timeouts.reset if able else None
    region = replace(region, resets=put(region.resets, {reset.epoch: replace(reset, deadline=deadline)}))
    state = RegionState.RESETTING if able else RegionState.STARTING
    why = "members can cover every partition" if able else "members with leases can't cover every partition yet"
    return moved_to(region, now, state, why)


def progress(region: Region, now: datetime) -> Region:
    """Return the region after whatever time and leases have done to its running reset: timed, expired or finished."""
    region = _timed(region, now)
    reset = region.reset
    if reset is None:
        return region
    if not any(True for _ in coverage.unready(region, now)):
        return _finished(region, now, reset)
    if reset.deadline is not None and reset.deadline <= now:
        reasons = "; ".join(coverage.unready(region, now))
        return demand(
            region, now, ResetCause.ATTEMPT_EXPIRED, f"attempt {reset.attempt} was not done in time: {reasons}"
        )
    return region


def _finished(region: Region, now: datetime, reset: ResetAttempt) -> Region:
    region = _with_ledger_resolved(replace(region, initialised=True), now, reset)
    region = _marked_done(region, now, reset)
    return moved_to(region, now, RegionState.RUNNING, f"reset {reset.sequence} is done")


def _with_ledger_resolved(region: Region, now: datetime, reset: ResetAttempt) -> Region:
    """Close what an older epoch left running: it can't finish any more; a sink's progress may prove it done."""
    for batch in tuple(region.running.values()):
        region = batches.closed(region, now, batch, Outcome.UNKNOWN)
    placed = {p: e for p, e in region.seek.items() if e.offset is not None}
    if not any(e.source is SeekSource.SINK_PROGRESS for e in placed.values()):
        return region
    ran = region.archive.last_done(reset.epoch)
    if ran is None or ran.timeline != reset.timeline:
        # What a sink held of an older timeline is no progress in this one; the entries are this timeline's restore
        # point.
        return region
    progress = OffsetMap({p: _progress(e) for p, e in placed.items()})
    proven = BatchesProven(epoch=ran.epoch, proven_in=reset.epoch, progress=progress)
    return replace(region, ledger=(*region.ledger, proven))


def _progress(entry: SeekEntry) -> Offset:
    return (entry.offset or Offset(0)) if entry.source is SeekSource.SINK_PROGRESS else Offset(0)


def _marked_done(region: Region, now: datetime, reset: ResetAttempt) -> Region:
    row = replace(reset, state=ResetState.DONE, done_at=now, deadline=None)
    region = replace(region, resets=put(region.resets, {row.epoch: row}))
    region = record(region, now, events.ResetDone(epoch=reset.epoch, sequence=reset.sequence))
    person = None if reset.person is None else region.person_resets.get(reset.person)
    if person is not None and person.state is PersonResetState.STARTED:
        done = replace(person, state=PersonResetState.DONE, finished_at=now)
        region = replace(region, person_resets=put(region.person_resets, {done.request_id: done}))
    return region


def demand(region: Region, now: datetime, cause: ResetCause, detail: str) -> Region:
    """Return the region in a further reset, or halted where failures are used up."""
    if cause not in FAILURE_CAUSES:
        return begin(region, now, cause, detail=detail)
    failures = region.failures + 1
    region = replace(region, failures=failures)
    if failures <= region.rules.max_failures:
        return begin(region, now, cause, detail=detail)
    reason = Halt(
        reason=HaltReason.FAILURES,
        text=f"{failures} resets since progress was last accepted, the last one because: {detail or cause}",
        choices=(
            "repair the pipeline or sink, then resume the region: it goes back to the restore point",
            "apply a forced reset to another place",
            "skip the named offset, if one record is the cause",
        ),
    )
    return halt(region, now, reason)


def halt(region: Region, now: datetime, reason: Halt) -> Region:
    """Return the region halted: no checkpoint, no attempt, nothing begins or ends until a person chooses."""
    region = checkpoints.abort(region, now, f"the region was halted ({reason.reason})")
    region = give_up(region, now, f"the region was halted ({reason.reason}); a resume goes to the restore point")
    region = record(
        replace(region, halt=reason, stopping=None),
        now,
        events.Halted(reason=reason.reason, text=reason.text, choices=reason.choices),
    )
    return moved_to(region, now, RegionState.HALTED, reason.text)
