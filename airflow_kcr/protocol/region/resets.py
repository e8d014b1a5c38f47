"""A reset: every partition of the region goes to its seek entry, as one; members stay in their groups.

A begin is one decision: a new epoch, a burnt sequence, the open checkpoint aborted, the seek map written; by that alone
what lies beyond it is undone (`timelines`). Members then cancel, quiesce, raise their sinks' fences, claim and
acknowledge; `finish` resumes the region when nothing is missing. A start is a reset with cause `start`; `STARTING`
is `RESETTING` without deadlines.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final, assert_never

from airflow_kcr.errors import BatchRefused, NotClaimed
from airflow_kcr.protocol import values
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.offsets import OffsetMap, SeekEntry, SeekMap, SeekSource, filled, from_offsets
from airflow_kcr.protocol.region import batches, boundaries, checkpoints, coverage, events, rows, timelines
from airflow_kcr.protocol.region.commands import Acknowledge, AnswerEntries, ReportSeekCommit, RequestReset
from airflow_kcr.protocol.region.state import NO_SEEK, BatchesProven, Region, put
from airflow_kcr.protocol.rules import Delivery
from airflow_kcr.protocol.values import GroupPartition, Offset, drawn, few, replace

RESETS_BACK: Final = 100
"""How many resets that were done without a partition may lie between a batch of it and the one that proves it done."""


def restore_point_map(region: Region) -> SeekMap:
    """Return the restore point as a seek map, entries that are still open among them."""
    point = region.restore_point
    if point is None:
        return NO_SEEK
    if point.epoch is not None:
        return region.seek_maps[point.epoch]
    return from_offsets(region.offsets[point.sequence], SeekSource.MERGED)


def target(region: Region) -> SeekMap:
    """Return the seek map of an automatic reset or a start.

    It is total over the region's partitions. Of those that are gone it has what a process may hold output of, so that
    this is undone.
    """
    gone = (p for p in region.gone() if _may_be_held(region, p))
    known = restore_point_map(region)
    entries = filled(known, initial=region.initial_offsets(), partitions=[*region.universe_in_order(), *gone])
    # What the restore point lacks was gone then, and goes where it was left; or it was first seen since.
    left = {
        p: SeekEntry(offset=place, source=SeekSource.RESUME_POINT)
        for p in entries.keys() - known.keys()
        if (place := _left_at(region, p)) not in {None, entries[p].offset}
    }
    return SeekMap({p: _entry(region, p, left.get(p, entry)) for p, entry in entries.items()})


def _left_at(region: Region, partition: GroupPartition) -> Offset | None:
    """Return where a partition was left; an attempt before this one may not have come to ask its sink for it."""
    claim, entry = region.claims.get(partition, rows.UNCLAIMED), region.seek.get(partition)
    return entry.current if claim.resume is None and entry is not None else claim.resume


def late(region: Region, partition: GroupPartition) -> SeekEntry:
    """Return the seek entry of a partition that is there again in a reset that began without it."""
    resume = region.claims[partition].resume
    return _entry(region, partition, SeekEntry(offset=resume, source=SeekSource.RESUME_POINT))


def _entry(region: Region, partition: GroupPartition, restore_point: SeekEntry) -> SeekEntry:
    claim = region.claims.get(partition, rows.UNCLAIMED)
    resume, current = claim.resume, claim.position
    if current is None and restore_point.source is SeekSource.RESUME_POINT:
        current = restore_point.offset
    # An entry that is still open is asked again, from where the partition was when it was first asked.
    asked_from = restore_point.current if restore_point.offset is None else current
    to_restore_point = SeekEntry(
        offset=restore_point.offset,
        source=restore_point.source,
        current=asked_from,
        clamped_from=restore_point.clamped_from,
    )
    rules = region.rules.groups[partition.group]
    if rules.is_done_by_checkpoints:
        return to_restore_point
    match rules.delivery:
        case Delivery.AT_LEAST_ONCE:
            return to_restore_point
        case Delivery.ALMOST_ONCE:
            return to_restore_point if resume is None else _reached(claim.position, resume, current)
        case Delivery.AT_MOST_ONCE:
            return to_restore_point if resume is None else _reached(claim.started_to, resume, current)
        case Delivery.EXACTLY_ONCE:
            # While the restore point's own entry is open nothing was processed in its timeline, so no sink has progress
            # in it.
            is_open = restore_point.offset is None
            return (
                to_restore_point
                if is_open
                else SeekEntry(offset=None, source=SeekSource.SINK_PROGRESS, current=current)
            )
        case _:
            assert_never(rules.delivery)


def _reached(offset: Offset | None, resume: Offset, current: Offset | None) -> SeekEntry:
    if offset is None or offset <= resume:
        return SeekEntry(offset=resume, source=SeekSource.RESUME_POINT, current=current)
    return SeekEntry(offset=offset, source=SeekSource.BATCH_END, current=current)


def positions(region: Region) -> OffsetMap:
    """Return, per partition, up to where everything is accepted.

    That is its position; while a reset has not yet found out where that is, the restore point's offset, else where it
    was left, else the initial one.
    """
    restore_point, initial = region.restore_point_offsets(), region.initial_offsets()
    known: dict[GroupPartition, Offset] = {}
    for partition in region.universe_in_order():
        place = region.claims.get(partition, rows.UNCLAIMED).position
        if place is None:
            place = restore_point.get(partition, _left_at(region, partition))
        if place is None:
            place = initial.get(partition)
        if place is not None:
            known[partition] = place
    return OffsetMap(known)


def last_done(region: Region) -> OffsetMap:
    """Return, per partition, the furthest place up to which everything is known to be done.

    That is its position. Where a process may hold output of accepted batches, it is the resume point. A sink may have
    gone further; rolled back to here it holds each record once.
    """
    held = {p: claim.resume for p, claim in _holding(region) if claim.resume is not None}
    return OffsetMap({**positions(region), **held})


def _holding(region: Region) -> Iterator[tuple[GroupPartition, rows.Claim]]:
    """Yield the partitions on which a batch has started whose output may be in a process alone, until a checkpoint."""
    if not any(rules.is_done_by_checkpoints for rules in region.rules.groups.values()):
        return
    for partition, claim in region.claims.items():
        if _may_be_held(region, partition):
            yield partition, claim


def _may_be_held(region: Region, partition: GroupPartition) -> bool:
    rules = region.rules.groups.get(partition.group)
    return (
        rules is not None
        and region.claims.get(partition, rows.UNCLAIMED).is_started
        and rules.is_done_by_checkpoints
        and rules.subscribes(partition.topic)
    )


def output_lost(region: Region, now: datetime) -> Region:
    """Return the region after a reset, if a process has died that may have held output of a partition that is gone.

    No member can claim the partition, so no claim begins that reset. A process that lives hands the output over with
    the next checkpoint.
    """
    if region.state is not rows.RegionState.RUNNING:
        return region
    for partition in sorted(region.gone()):
        if _may_be_held(region, partition):
            claim = region.claims[partition]
            holder = claim.owner or claim.last_owner
            lives = holder is not None and region.is_live(holder, now)
            if holder is None or not lives or region.members[holder].incarnation != claim.incarnation:
                return demand(
                    region,
                    now,
                    rows.ResetCause.LEASE_LOST,
                    f"{holder} may have held output of {partition}, and is gone",
                )
    return region


def gone_back_for_output(region: Region, now: datetime, cause: rows.ResetCause) -> Region:
    """Return the region after a reset to its restore point, if a process may hold output of accepted batches.

    Whatever opens a timeline without a drain begins with this. A place beyond a resume point would leave what is
    accepted below it standing, and that is lost with its process (at_least_once, almost_once: never lost). So it is
    undone first; the opening then says that it passes over it, where its log no longer has it.
    """
    held = [partition for partition, _ in _holding(region)]
    if not held:
        return region
    return begin(region, now, cause, detail=f"sinks may hold output of {few(held)} that no checkpoint has")


def without_progress(region: Region, partition: GroupPartition, stood: Offset | None = None) -> Offset | None:
    """Return where a sink resumes that has no progress in this timeline.

    The restore point's offset; without one, where the partition stood, which was gone when the timeline was opened,
    else the initial one.
    """
    place = region.restore_point_offset(partition)
    if place is not None or stood is not None:
        return stood if place is None else place
    initial = region.initial_offset(partition)
    return None if initial is None else initial.offset


def begin(region: Region, now: datetime, cause: rows.ResetCause, detail: str = "") -> Region:
    """Return the region in a new epoch, on its way to the automatic target: a further attempt, where a reset runs.

    Args:
        region: in any state.
        now: the store's clock.
        cause: why.
        detail: a sentence for people.
    """
    if region.restore_point is None:
        return open_timeline(region, now, cause, target(region), detail)
    earlier = region.reset
    region = _interrupted(region, now, cause)
    if earlier is not None:
        region = _superseded(region, now, earlier)
    region = resolve_commit(region, now, rows.Committed.SUPERSEDED, "a reset began")
    seek = target(region)
    attempt, person = (1, None) if earlier is None else (earlier.attempt + 1, earlier.person)
    return _begun(_in_new_epoch(region, seek), now, cause, detail, seek=seek, attempt=attempt, person=person)


def open_timeline(
    region: Region,
    now: datetime,
    cause: rows.ResetCause,
    opening: SeekMap,
    detail: str = "",
    *,
    checkpoint: values.CheckpointNumber | None = None,
    person: values.RequestId | None = None,
) -> Region:
    """Return the region in a new epoch and timeline, on its way to a seek map that is its restore point from then on.

    A running reset is given up, and the person's request that it carries out fails.

    Args:
        region: in any state.
        now: the store's clock.
        cause: why.
        opening: where to; not what the automatic reset would have used.
        detail: a sentence for people.
        checkpoint: the checkpoint that is reset to, which decides the next boundary; None for any other target.
        person: the accepted request that it carries out.
    """
    region = give_up(
        _interrupted(region, now, cause), now, f"another reset ({cause}) opened a timeline before it was done"
    )
    region = resolve_commit(region, now, rows.Committed.SUPERSEDED, "a reset began")
    seek = filled(opening, initial=region.initial_offsets(), partitions=region.universe_in_order())
    region = _in_new_epoch(replace(region, timeline=values.Timeline(region.timeline + 1)), seek)
    region = replace(region, restore_point=rows.RestorePoint(_burnt(region), region.epoch))
    undoes = timelines.undone_by(region, seek.offsets)
    region = boundaries.after_reset(timelines.without_undone(region, undoes), now, checkpoint)
    return _begun(region, now, cause, detail, seek=seek, undoes=undoes, person=person)


def _interrupted(region: Region, now: datetime, cause: rows.ResetCause) -> Region:
    timelines.require_numbers_left(region)
    return timelines.taken_over_note(checkpoints.abort(region, now, f"a reset began ({cause})"), now)


def _in_new_epoch(region: Region, seek: SeekMap) -> Region:
    epoch = values.Epoch(region.epoch + 1)
    region = replace(
        region,
        epoch=epoch,
        next_sequence=values.CheckpointNumber(region.next_sequence + 1),
        seek_maps=put(region.seek_maps, {epoch: seek}),
        stopping=None,
        halt=None,
    )
    return _placed(region, seek)


def _burnt(region: Region) -> values.CheckpointNumber:
    """Return the number that the present epoch has burnt, which no checkpoint is opened under."""
    return values.CheckpointNumber(region.next_sequence - 1)


def _begun(
    region: Region,
    now: datetime,
    cause: rows.ResetCause,
    detail: str,
    *,
    seek: SeekMap,
    undoes: tuple[values.CheckpointNumber, ...] = (),
    attempt: int = 1,
    person: values.RequestId | None,
) -> Region:
    sequence = _burnt(region)
    reset = rows.ResetAttempt(
        epoch=region.epoch,
        sequence=sequence,
        timeline=region.timeline,
        cause=cause,
        state=rows.ResetState.RUNNING,
        started_at=now,
        attempt=attempt,
        restore_point=region.restore_sequence,
        must_publish=region.complete,
        person=person,
        detail=detail,
    )
    region = region.with_reset(reset)
    region = region.record(now, drawn(events.ResetBegun, reset, seek=seek, undoes=undoes))
    return _timed(region.moved_to(now, rows.RegionState.STARTING, f"reset {sequence} began ({cause})"), now)


def done_stopped(region: Region, now: datetime) -> Region:
    """Return a region that was stopped before its reset began, stopped again with another restore point.

    A new epoch and timeline, so no zombie can win. The next start resumes there; Kafka's committed offsets of the empty
    groups are altered by the caller, after this. Every partition has a place: one that is found later begins at its
    start.
    """
    region = replace(region, initialised=True)
    reset = region.resets[region.epoch]
    why = f"reset {reset.sequence} moved the restore point of a stopped region"
    return _marked_done(region.moved_to(now, rows.RegionState.STOPPED, why), now, reset)


def _superseded(region: Region, now: datetime, reset: rows.ResetAttempt) -> Region:
    return region.with_reset(replace(reset, state=rows.ResetState.SUPERSEDED, done_at=now))


def give_up(region: Region, now: datetime, why: str) -> Region:
    """Return the region with its running reset superseded, and the person's request failed that it carries out."""
    reset = region.reset
    if reset is None:
        return region
    region = _superseded(region, now, reset)
    person = region.person_of(reset)
    if person is None or person.state is not rows.PersonResetState.STARTED:
        return region
    return region.with_person_reset_failed(now, person, why)


def resolve_commit(region: Region, now: datetime, committed: rows.Committed, why: str) -> Region:
    """Return the region with the outcome of its restore point's commit, if that is a pending checkpoint's."""
    restore_point = region.uncommitted
    if restore_point is None:
        return region
    region = region.with_checkpoint(replace(restore_point, committed=committed))
    return region.record(now, events.CommitResolved(sequence=restore_point.sequence, committed=committed, why=why))


def _placed(region: Region, seek: SeekMap) -> Region:
    offsets = {p: None if e.offset is None else region.past_skips(p, e.offset) for p, e in seek.items()}
    placed = {p: region.claims.get(p, rows.UNCLAIMED).at(offset) for p, offset in offsets.items()}
    return replace(region, claims=put(region.claims, placed))


def write_seek(region: Region, now: datetime, entries: SeekMap) -> Region:
    """Return the region with open seek entries written; those already known stay (first writer wins).

    The restore point's own map learns them too where the restore point is a reset, so that the next automatic reset
    goes there as well.
    """
    fresh = SeekMap({p: e for p, e in entries.items() if p not in region.seek or region.seek[p].offset is None})
    if not fresh:
        return region
    maps = {region.epoch: region.seek.write(fresh)}
    if region.restore_epoch is not None and region.restore_epoch != region.epoch:
        maps[region.restore_epoch] = region.seek_maps[region.restore_epoch].write(fresh)
    region = _placed(replace(region, seek_maps=put(region.seek_maps, maps)), fresh)
    region = region.record(now, events.SeekWritten(epoch=region.epoch, seek=fresh))
    if region.restore_epoch is None:
        return region
    undoes = timelines.undone_by(region, fresh.offsets)
    return timelines.without_undone(region, undoes)


def _timed(region: Region, now: datetime) -> Region:
    """Return the region in STARTING or RESETTING, by whether members with leases could cover the partitions.

    Moving between the two changes neither epoch, target nor attempt; the deadline begins again with each RESETTING.
    """
    reset = region.reset
    if reset is None:
        return region
    able = coverage.could_cover(region, now)
    if able == (region.state is rows.RegionState.RESETTING):
        return region
    deadline = now + region.rules.timeouts.reset if able else None
    region = region.with_reset(replace(reset, deadline=deadline))
    going_to = rows.RegionState.RESETTING if able else rows.RegionState.STARTING
    why = "members can cover every partition" if able else "members with leases can't cover every partition yet"
    return region.moved_to(now, going_to, why)


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
            region, now, rows.ResetCause.ATTEMPT_EXPIRED, f"attempt {reset.attempt} was not done in time: {reasons}"
        )
    return region


def _finished(region: Region, now: datetime, reset: rows.ResetAttempt) -> Region:
    region = _with_ledger_resolved(replace(region, initialised=True), now, reset)
    region = _marked_done(region, now, reset)
    return region.moved_to(now, rows.RegionState.RUNNING, f"reset {reset.sequence} is done")


def _with_ledger_resolved(region: Region, now: datetime, reset: rows.ResetAttempt) -> Region:
    """Close what an older epoch left running: it can't finish any more; a sink's progress may prove it done."""
    for batch in tuple(region.running.values()):
        region = batches.closed(region, now, batch, rows.Outcome.UNKNOWN)
    placed = {p: e for p, e in region.seek.items() if e.offset is not None}
    told = {p: e.offset for p, e in placed.items() if e.source is SeekSource.SINK_PROGRESS}
    if not told:
        return region
    progress = {p: told.get(p) or Offset(0) for p in placed}
    ran = region.archive.last_done(reset.epoch)
    # What a sink held of an older timeline is no progress in this one; the entries are this timeline's restore point.
    for _ in range(RESETS_BACK):
        if not progress or ran is None or ran.timeline != reset.timeline:
            break
        proven = BatchesProven(epoch=ran.epoch, proven_in=reset.epoch, progress=OffsetMap(progress))
        region = replace(region, ledger=(*region.ledger, proven))
        # What the reset before was done without did not run in its epoch: the sink tells of the one before that.
        then = region.archive.seek_map(ran.epoch) or NO_SEEK
        progress = {p: o for p, o in progress.items() if p in told and (p not in then or then[p].offset is None)}
        ran = region.archive.last_done(ran.epoch)
    return region


def _marked_done(region: Region, now: datetime, reset: rows.ResetAttempt) -> Region:
    region = region.with_reset(replace(reset, state=rows.ResetState.DONE, done_at=now, deadline=None))
    region = region.record(now, events.ResetDone(epoch=reset.epoch, sequence=reset.sequence))
    person = region.person_of(reset)
    if person is not None and person.state is rows.PersonResetState.STARTED:
        region = region.with_person_reset(replace(person, state=rows.PersonResetState.DONE, finished_at=now))
    return region


def demand(region: Region, now: datetime, cause: rows.ResetCause, detail: str) -> Region:
    """Return the region in a further reset, or halted where failures are used up."""
    if cause not in rows.FAILURE_CAUSES:
        return begin(region, now, cause, detail=detail)
    failures = region.failures + 1
    region = replace(region, failures=failures)
    if failures <= region.rules.max_failures:
        return begin(region, now, cause, detail=detail)
    reason = rows.Halt(
        reason=rows.HaltReason.FAILURES,
        text=f"{failures} resets since progress was last accepted, the last one because: {detail or cause}",
        choices=(
            "repair the pipeline or sink, then resume the region: it goes back to the restore point",
            "apply a forced reset to another place",
            "skip the named offset, if one record is the cause",
        ),
    )
    return halt(region, now, reason)


def halt(region: Region, now: datetime, reason: rows.Halt) -> Region:
    """Return the region halted: no checkpoint, no attempt, nothing begins or ends until a person chooses."""
    region = checkpoints.abort(region, now, f"the region was halted ({reason.reason})")
    region = give_up(region, now, f"the region was halted ({reason.reason}); a resume goes to the restore point")
    region = replace(region, halt=reason, stopping=None).record(now, drawn(events.Halted, reason))
    return region.moved_to(now, rows.RegionState.HALTED, reason.text)


def open_targets(region: Region, member: values.MemberId) -> dict[GroupPartition, SeekEntry]:
    """Return the open entries of the partitions that a member holds: what it has to answer before it acknowledges.

    The current position of one that had none is where a sink without progress begins.
    """
    found: dict[GroupPartition, SeekEntry] = {}
    for partition, entry in region.seek.items():
        if entry.offset is None and region.claims.get(partition, rows.UNCLAIMED).owner == member:
            # Written out: a wide region has many, and `replace` makes as many calls again for each.
            current = without_progress(region, partition) if entry.current is None else entry.current
            found[partition] = replace(entry, current=current)
    return found


def answer(region: Region, now: datetime, report: AnswerEntries) -> Region:
    """Return the region with open seek entries written by the owner of their partitions; the first writer wins.

    A place that was looked up in the log of a recreated topic takes the partition over to that topic.

    Raises:
        StaleEpoch, StaleIncarnation, LeaseExpired: the member may not act, or not in this epoch.
        NotClaimed: it does not hold a partition that it answers for.
    """
    caller = report.caller
    region.require_member(caller.member, caller.incarnation, now, epoch=caller.epoch)
    entries: dict[GroupPartition, SeekEntry] = {}
    logs: dict[GroupPartition, LogBounds] = {}
    for partition, answered in report.found.items():
        claim = region.claim_of(partition)
        if claim.owner != caller.member or not coverage.is_current(region, claim, now):
            raise NotClaimed(f"{caller.member} does not hold {partition} now; it can't say where that resumes")
        entry = region.seek.get(partition)
        if entry is None or entry.offset is not None:
            continue
        offset = answered.offset
        if offset is None and entry.source is SeekSource.SINK_PROGRESS:
            offset = without_progress(region, partition, entry.current)
        entries[partition] = replace(entry, offset=offset, clamped_from=answered.clamped_from)
        if answered.log is not None:
            logs[partition] = answered.log
    if not entries:
        return region
    seek = timelines.with_recreated(region, entries, logs)
    return write_seek(timelines.followed_topics(region, now, logs), now, seek)


def acknowledge(region: Region, now: datetime, report: Acknowledge) -> Region:
    """Return the region with a member's acknowledgement, and its reset done if that was the last thing missing.

    Whatever this incarnation left running is discarded with it: the member says that nothing of it runs any more. Said
    twice in one epoch, it changes nothing.

    Raises:
        StaleEpoch, StaleIncarnation, LeaseExpired: the member may not act, or not in this epoch.
        RegionInState: no reset runs.
        NotClaimed: it has not claimed in this epoch.
        BatchRefused: an open entry of its partitions is unanswered.
    """
    caller = report.caller
    row = region.require_member(caller.member, caller.incarnation, now, epoch=caller.epoch)
    if row.acknowledged == region.epoch:
        return region
    region.require_state(rows.RESET_STATES, "an acknowledgement")
    if row.claimed != region.epoch:
        raise NotClaimed(f"{caller.member} has not claimed in epoch {region.epoch}; claim first, then acknowledge")
    unanswered = open_targets(region, caller.member)
    if unanswered:
        raise BatchRefused(f"{caller.member} has open seek entries: {few(sorted(unanswered))}")
    for batch in tuple(region.running.values()):
        if batch.member == caller.member and batch.incarnation == caller.incarnation:
            region = batches.closed(region, now, batch, rows.Outcome.DISCARDED)
    region = replace(region, members=put(region.members, {caller.member: replace(row, acknowledged=region.epoch)}))
    body = events.Acknowledged(member=caller.member, incarnation=caller.incarnation, epoch=region.epoch)
    return progress(region.record(now, body), now)


def request(region: Region, now: datetime, report: RequestReset) -> Region:
    """Return the region after an automatic request, which carries the epoch it was made in.

    Lower than the region's: it is already answered. Equal: it begins, or halts where failures are used up. So a
    requested reset is never swallowed and never doubled.

    Raises:
        StaleIncarnation, LeaseExpired, UnknownMember: the member may not act; its next incarnation's claim decides.
        StaleEpoch: it names an epoch that the store has not reached: the store was restored, the member will say so.
    """
    caller, cause, detail = report.caller, report.cause, report.detail
    region.require_member(caller.member, caller.incarnation, now)
    if caller.epoch > region.epoch:
        region.require_epoch(caller.epoch)
    body = events.ResetRequested(member=caller.member, epoch=caller.epoch, cause=cause, detail=detail)
    region = region.record(now, body)
    if caller.epoch < region.epoch or region.state in rows.RESTING:
        return region
    return demand(region, now, cause, f"{caller.member}: {detail}" if detail else str(caller.member))


def seek_committed(region: Region, now: datetime, report: ReportSeekCommit) -> Region:
    """Return the region with what became of a member's commit of where it resumed.

    Raises:
        StaleIncarnation, LeaseExpired, UnknownMember: the member may not act.
    """
    caller = report.caller
    region.require_member(caller.member, caller.incarnation, now)
    return region.record(now, events.SeekCommitted(epoch=caller.epoch, member=caller.member, failure=report.failure))
