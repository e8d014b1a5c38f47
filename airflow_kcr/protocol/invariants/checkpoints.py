"""R2, R3, R12, R13: what a checkpoint is made of, how many may be under way, and which may be forgotten."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar, Final

from airflow_kcr.protocol.invariants.history import Violation
from airflow_kcr.protocol.invariants.moment import Invariant, LatestAttempt, Moment, OpenCheckpoint
from airflow_kcr.protocol.offsets import EMPTY, OffsetMap, SeekMap, SeekSource
from airflow_kcr.protocol.region import events, rows
from airflow_kcr.protocol.values import CheckpointNumber, EventNumber, GroupPartition, Offset, RequestId

REMEMBERED: Final = 10_000
"""Requests whose checkpoint R13 remembers."""

AT_ONCE: Final = 10
"""Within this many events one transaction has reported everything."""


@dataclass(slots=True, kw_only=True)
class Complete(Invariant):
    """R2 (V) a complete checkpoint covers every frozen partition once, by distinct participants.

    Every participant has contributed, once, as the incarnation that takes part; their offsets don't overlap, their
    union is the frozen partitions and is what the checkpoint holds. Beyond that it may only hold partitions that
    foreign consumers had, where they stood, and names each as inexact. A partition that was known to be on the brokers
    without an owner is not in it otherwise, and the checkpoint says so: it is inexact there. One without a participant
    is of a region that rests: it is where the restore point is.

    It can't see partitions that no member has found on the brokers yet: they are in no event.
    """

    invariant: ClassVar[str] = "R2"

    def before(self, moment: Moment, event: events.Event) -> None:
        """See `Invariant`."""
        match event.body:
            case events.CheckpointCompleted(sequence=sequence) as body:
                checkpoint = moment.open.get(sequence)
                if checkpoint is None:
                    self.add(f"checkpoint {sequence} is complete and was never opened", event.number)
                elif not checkpoint.opened.participants:
                    self._rest(moment, event.number, body)
                else:
                    self._parts(event.number, checkpoint, body)
                    self._hidden(moment, event.number, body)
            case events.Contributed(sequence=sequence, member=member) if sequence not in moment.open:
                self.add(f"{member} contributed to checkpoint {sequence}, which was never opened", event.number)

    def _rest(self, moment: Moment, number: EventNumber, body: events.CheckpointCompleted) -> None:
        point, attempt = moment.restore_point, moment.attempt
        before = None if point is None else moment.kept.get(point)
        begins = EMPTY if attempt is None else SeekMap(attempt.seek).offsets
        if body.offsets != (begins if before is None else before.offsets):
            self.add(f"checkpoint {body.sequence} has no participant, and is not where the restore point is", number)

    def _parts(self, number: EventNumber, checkpoint: OpenCheckpoint, body: events.CheckpointCompleted) -> None:
        participants, name = dict(checkpoint.opened.participants), f"checkpoint {body.sequence}"
        total: dict[GroupPartition, Offset] = {}
        for at, part in checkpoint.parts.items():
            if participants.pop(part.member, None) != part.incarnation:
                detail = (
                    f"{name}: {part.member}, incarnation {part.incarnation}, is not among the participants or "
                    "contributed twice"
                )
                self.add(detail, checkpoint.number, at)
            twice = sorted(total.keys() & part.offsets.keys())
            if twice:
                self.add(f"{name}: {twice[0]} was contributed twice", at, number)
            total.update(part.offsets)
        if participants:
            self.add(f"{name} is complete without a contribution of {min(participants)}", checkpoint.number, number)
        odd = sorted(total.keys() ^ frozenset(checkpoint.opened.partitions))
        if odd:
            what = "contributed, not frozen" if odd[0] in total else "frozen, not contributed"
            self.add(f"{name}: {odd[0]} was {what}", checkpoint.number, number)
        own = {p: o for p, o in body.offsets.items() if p in total or p not in body.inexact}
        if total != own:
            differ = sorted(p for p in total.keys() | own.keys() if total.get(p) != own.get(p))
            self.add(f"{name}: {differ[0]} is not what was contributed", number)

    def _hidden(self, moment: Moment, number: EventNumber, body: events.CheckpointCompleted) -> None:
        """Note what was known to lack an owner, is not in the checkpoint, and is not named by it."""
        for partition in sorted(moment.unowned - body.offsets.keys() - body.inexact.keys()):
            detail = (
                f"checkpoint {body.sequence} lacks {partition}, which had no owner, and does not say that it is inexact"
            )
            self.add(detail, moment.unowned_since, number)


@dataclass(slots=True, kw_only=True)
class Inside(Invariant):
    """R3 (V) stored offsets are concrete and lay inside the log as read with them, or are marked clamped.

    Contributions and initial offsets, each with the bounds stored with it; a contribution may lie just past skipped
    records at the end of the log. That they are numbers >= 0 is checked wherever an offset map is built, so a history
    with another one can't even be read. A seek entry that was clamped carries what was asked for.

    It can't see whether the bounds were read truly, nor the log of a seek entry or a boundary offset: their bounds are
    not stored.
    """

    invariant: ClassVar[str] = "R3"

    def event(self, moment: Moment, event: events.Event) -> None:
        """See `Invariant`."""
        body = event.body
        if not isinstance(body, events.Contributed | events.InitialOffsetsStored):
            return
        for partition, offset in body.offsets.items():
            log = body.bounds.get(partition)
            is_inside = log is not None and offset in log
            if log is not None and isinstance(body, events.Contributed):
                is_inside = log.start <= offset <= max(log.end, moment.past_skips(partition, log.end))
            if not is_inside:
                seen = "no bounds" if log is None else f"[{log.start}, {log.end}]"
                self.add(f"{event.kind}: {partition} at {offset}, its log as read: {seen}", event.number)


@dataclass(slots=True, kw_only=True)
class RestorePointKept(Invariant):
    """R12 (V) the restore point is never retired.

    Nor what it was built from (the checkpoint before a restore point that is a checkpoint), a pinned checkpoint, one on
    the current timeline that is unpublished, or the newest usable one; each as things were when `CheckpointsRetired`
    was recorded. A person's forced reset gives up the checkpoints whose publication is in its way, in the same
    transaction; of those, only the restore point must stay.

    It can't see which checkpoint a person's reset under way goes to, if not by number, nor that the offsets are really
    still there.
    """

    invariant: ClassVar[str] = "R12"
    pinned: dict[CheckpointNumber, str] = field(default_factory=dict)
    doubted: list[Violation] = field(default_factory=list)
    """Retirements of one transaction that are wrong unless a person's forced reset follows in it."""

    doubted_at: datetime | None = None

    def before(self, moment: Moment, event: events.Event) -> None:
        """See `Invariant`."""
        match event.body:
            case events.ResetBegun(cause=cause, person=request_id):
                person = None if request_id is None else moment.persons.get(request_id)
                forced = cause is rows.ResetCause.PERSON and person is not None and person.forced
                if forced and event.at == self.doubted_at:
                    self.doubted = []
                self._settle()
            case events.CheckpointPinned(sequence=sequence, name=name):
                if name:
                    self.pinned[sequence] = name
                else:
                    self.pinned.pop(sequence, None)
            case events.CheckpointsRetired(sequences=sequences):
                self._retired(moment, event, sequences)
            case _ if self.doubted and event.number >= self.doubted[0].events[0] + AT_ONCE:
                self._settle()

    def _retired(self, moment: Moment, event: events.Event, sequences: tuple[CheckpointNumber, ...]) -> None:
        if event.at != self.doubted_at:
            self._settle()
        self.doubted_at = event.at
        for sequence in sequences:
            if sequence == moment.restore_point:
                self.add(f"checkpoint {sequence} was retired: it is the restore point", event.number)
            elif why := self._protected(moment, sequence):
                detail = f"checkpoint {sequence} was retired: {why}"
                self.doubted.append(Violation(self.invariant, detail, (event.number,)))

    def _protected(self, moment: Moment, sequence: CheckpointNumber) -> str:
        restore_point = None if moment.restore_point is None else moment.kept.get(moment.restore_point)
        checkpoint = moment.kept.get(sequence)
        if restore_point is not None and restore_point.previous == sequence:
            return f"the restore point {moment.restore_point} was built from it"
        if checkpoint is not None and sequence == max(moment.kept):
            return "it is the newest usable one"
        if checkpoint is not None and checkpoint.published is None:
            return "it is not published yet"
        return f"it is pinned as {self.pinned[sequence]}" if sequence in self.pinned else ""

    def _settle(self) -> None:
        for doubted in self.doubted:
            self.add(doubted.detail, *doubted.events)
        self.doubted = []

    def finish(self, moment: Moment) -> None:
        """See `Invariant`."""
        self._settle()


@dataclass(slots=True, kw_only=True)
class OneAtATime(Invariant):
    """R13 (V) one request, one checkpoint at a time.

    No checkpoint opens while another is open; none opens for a request id that has a complete current checkpoint;
    an opened checkpoint ends once; an answer is a complete current checkpoint.

    It can't see requests that were only repeated: asking again for what is there leaves no trace; nor one whose
    checkpoint lies ten thousand requests back.
    """

    invariant: ClassVar[str] = "R13"
    asked: dict[RequestId, CheckpointNumber] = field(default_factory=dict)
    """The checkpoint that was opened last for each request."""

    def before(self, moment: Moment, event: events.Event) -> None:
        """See `Invariant`."""
        number = event.number
        match event.body:
            case events.CheckpointOpened(sequence=sequence, request_id=request_id):
                for other, opened in moment.open.items():
                    self.add(
                        f"checkpoint {sequence} was opened while checkpoint {other} was open", opened.number, number
                    )
                earlier = self.asked.pop(request_id, None)
                if earlier is not None and moment.is_current(earlier):
                    kept = moment.kept.get(earlier)
                    detail = (
                        f"checkpoint {sequence} was opened for {request_id}, which checkpoint {earlier} has answered"
                    )
                    self.add(detail, *([] if kept is None else [kept.number]), number)
                self.asked[request_id] = sequence
                if len(self.asked) > REMEMBERED:
                    del self.asked[next(iter(self.asked))]
            case events.CheckpointCompleted(sequence=sequence) | events.CheckpointAborted(sequence=sequence):
                if sequence not in moment.open:
                    self.add(f"checkpoint {sequence} ended, it was not open", number)
            case events.CheckpointRequestAnswered(request_id=request_id, sequence=sequence):
                if not moment.is_current(sequence):
                    detail = (
                        f"{request_id} was answered by checkpoint {sequence}, which is not a complete checkpoint "
                        "on the current timeline"
                    )
                    self.add(detail, number)


# What speaks against a batch's start and end, and when its sink proves it done all the same.
#
# An end is accepted while the region runs or drains, in the epoch, by the incarnation and under the claims that the
# batch was started with. One more way exists: a batch whose end was refused or never heard of turns out to be done,
# because a fenced sink tells its progress in the reset that follows (`exactly_once`).

WAS_DONE: Final = frozenset({rows.Outcome.DONE, rows.Outcome.UNDONE})


def begin_flaw(moment: Moment, batch: rows.Batch) -> str:
    """Return what speaks against a batch that begins now; empty: nothing."""
    if batch.epoch != moment.epoch:
        return f"was started in epoch {batch.epoch}, the region was in epoch {moment.epoch}"
    incarnation = moment.present.get(batch.member)
    if incarnation != batch.incarnation:
        return f"was started by incarnation {batch.incarnation} of {batch.member}, present was {incarnation or 'none'}"
    for partition in batch.ranges:
        if not moment.holds(batch, partition):
            return f"was started on {partition}, which {batch.member} did not hold"
    return ""


def end_flaw(moment: Moment, batch: rows.Batch) -> str:
    """Return what speaks against the end, now, of a batch that was done; empty: nothing."""
    since, until = batch.started_after, batch.finished_after
    if until is None:
        return f"is {batch.outcome} without an end"
    if until < since:
        return f"began after event {since} and ended after event {until}"
    if moment.epoch != batch.epoch:
        return f"of epoch {batch.epoch} was accepted in epoch {moment.epoch}"
    if moment.newest.get(batch.member) != batch.incarnation:
        return f"of incarnation {batch.incarnation} of {batch.member} was accepted after a newer one was registered"
    for partition in batch.ranges:
        if not moment.holds(batch, partition) or moment.claims[partition].since > since:
            return f"was accepted although the claim of {batch.member} on {partition} had gone meanwhile"
    return "" if moment.state in rows.WORKING else f"was accepted while the region was {moment.state}"


def proves(attempt: LatestAttempt, batch: rows.Batch) -> bool:
    """Whether a reset that is done proves a batch done whose end was not accepted.

    It has to be the first one done after the batch's epoch that `tells_of` it, which the caller sees to, in the same
    timeline, with entries that are progress at or beyond the ends of all its ranges. A batch is one transaction of its
    sink, so a partition that can't be placed, because the brokers no longer have it, says nothing if another partition
    of the batch does.
    """
    if attempt.timeline != batch.timeline:
        return False
    told = False
    for partition, range_ in batch.ranges.items():
        entry = attempt.seek.get(partition)
        if entry is None or entry.offset is None:
            continue
        if entry.source is not SeekSource.SINK_PROGRESS or entry.offset < range_.to:
            return False
        told = True
    return told


def tells_of(attempt: LatestAttempt, batch: rows.Batch) -> bool:
    """Whether a reset that is done says what became of a batch; else a later one may.

    It does unless it was done without any of the batch's partitions, as the brokers did not have them: then the sink
    was not asked of them.
    """
    is_placed = any((entry := attempt.seek.get(p)) is not None and entry.offset is not None for p in batch.ranges)
    return is_placed or not batch.ranges or attempt.timeline != batch.timeline


# R4: what Kafka holds, and what the checkpoints say about it.


@dataclass(slots=True, kw_only=True)
class ReadBacks(Invariant):
    """R4 (V) Kafka's commit read-back equals the checkpoint, or the checkpoint says failed or superseded.

    `CommitResolved` says yes only when the newest commit read-backs of all the checkpoint's partitions equal its
    offsets; a commit read-back that differs while it says yes is followed at once by another resolution; only the
    restore point is ever read back.

    It can't see what another client commits to Kafka after the commit was read back.
    """

    invariant: ClassVar[str] = "R4"
    restore_point: CheckpointNumber | None = None
    """The checkpoint that the rest is about.

    Only the restore point is read back, and only what is read back is resolved.
    """

    told: dict[GroupPartition, Offset] = field(default_factory=dict)
    says: rows.Committed | None = None
    wrong: Violation | None = None
    """A read-back that differs from a checkpoint that says yes, unless that is resolved again at once."""

    def event(self, moment: Moment, event: events.Event) -> None:
        """See `Invariant`."""
        body, number = event.body, event.number
        is_resolved = isinstance(body, events.CommitResolved) and body.sequence == self.restore_point
        if self.wrong is not None and not is_resolved:
            self.add(self.wrong.detail, *self.wrong.events)
        self.wrong = None
        if isinstance(body, events.CommitReadBack):
            if moment.restore_point != body.sequence or body.sequence not in moment.kept:
                self.add(
                    f"checkpoint {body.sequence} was committed to Kafka, the restore point is {moment.restore_point}",
                    number,
                )
                return
            self._about(body.sequence)
            self.told.update(body.offsets)
            differs = self._differing(moment)
            if differs and self.says is rows.Committed.YES:
                detail = f"checkpoint {body.sequence} is called committed, {differs}"
                self.wrong = Violation(self.invariant, detail, (number,))
        elif isinstance(body, events.CommitResolved):
            self._about(body.sequence)
            self.says = body.committed
            lacks = self._differing(moment) or self._unheard(moment)
            if body.committed is rows.Committed.YES and lacks:
                self.add(f"checkpoint {body.sequence} is called committed, {lacks}", number)

    def finish(self, moment: Moment) -> None:
        """See `Invariant`."""
        if self.wrong is not None:
            self.add(self.wrong.detail, *self.wrong.events)

    def _about(self, sequence: CheckpointNumber) -> None:
        if sequence != self.restore_point:
            self.restore_point, self.told, self.says = sequence, {}, None

    def _wanted(self, moment: Moment) -> OffsetMap:
        kept = None if self.restore_point is None else moment.kept.get(self.restore_point)
        return EMPTY if kept is None else kept.offsets

    def _differing(self, moment: Moment) -> str:
        wanted = self._wanted(moment)
        differs = [p for p, o in sorted(self.told.items()) if p in wanted and wanted[p] != o]
        return f"Kafka holds {self.told[differs[0]]} for {differs[0]}, not {wanted[differs[0]]}" if differs else ""

    def _unheard(self, moment: Moment) -> str:
        lacks = [p for p in self._wanted(moment) if p not in self.told]
        if lacks:
            return f"{lacks[0]} was never recorded"
        return "" if self.restore_point in moment.kept else "it was never opened"
