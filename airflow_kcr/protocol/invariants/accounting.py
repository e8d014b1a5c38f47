"""What became of one record, and which records were delivered more than once and why: answers from the ledger."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate

from airflow_kcr.protocol.delivery import Delivery
from airflow_kcr.protocol.invariants.history import (
    Attempt,
    CheckpointHistory,
    Handled,
    History,
    Holder,
    Index,
    PersonRequest,
    Place,
    Series,
    Start,
    offsets_of,
)
from airflow_kcr.protocol.invariants.replays import started_again
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.region.events import ResetBegun
from airflow_kcr.protocol.region.rows import Batch, Outcome, ResetCause
from airflow_kcr.protocol.seek_map import SeekMap
from airflow_kcr.protocol.values import (
    BatchId,
    CheckpointNumber,
    Epoch,
    EventNumber,
    GroupId,
    GroupPartition,
    Incarnation,
    MemberId,
    Offset,
    Range,
    Timeline,
)


def indexed(history: History) -> Index:
    """Return the index of a history.

    It takes the events as they are: what contradicts itself is for the checks to find.
    """
    index = Index(history=history)
    for event in history.events:
        _note_numbers(index, event)
        _note(index, event.number, event.body)
    last = index.last
    for batch in history.batches:
        if batch.started_after > last:
            continue
        for partition, range_ in batch.ranges.items():
            index.begun[partition].append(Handled(batch.started_after, range_, batch))
    for handled in index.begun.values():
        handled.sort(key=lambda h: (h.number, h.range))
    return index


def _note_numbers(index: Index, event: events.Event) -> None:
    """Note the epoch from the events that begin one; from no other, so that one without a cause stands out."""
    number = event.number
    match event.body:
        case events.ResetBegun(epoch=epoch) | events.Killed(epoch=epoch):
            index.epochs.put(number, epoch)
        case events.StoreRestoredSeen():
            index.epochs.put(number, event.epoch)
        case _:
            pass
    index.timelines.put(number, event.timeline)


def _note(index: Index, number: EventNumber, body: events.Body) -> None:
    match body:
        case events.RegionCreated(deliveries=found) | events.SpecChanged(deliveries=found):
            index.deliveries.put(number, {GroupId(g): Delivery(d) for g, d in found.items()})
        case events.StateChanged(after=after):
            index.states.put(number, after)
        case events.InitialOffsetsStored(offsets=offsets, bounds=bounds):
            for partition, offset in offsets.items():
                index.starts[partition].append(Start(number, offset, bounds[partition].topic_id))
        case events.Skipped(offsets=offsets):
            for partition, offset in offsets.items():
                index.skips[partition].setdefault(offset, number)
        case events.MemberRegistered() | events.MemberLeft() | events.Claimed():
            _note_member(index, number, body)
        case events.PersonResetAccepted() | events.PersonResetFailed() | events.CheckpointRequested():
            _note_person(index, number, body)
        case events.ResetBegun() | events.SeekWritten() | events.ResetDone():
            _note_reset(index, number, body)
        case _:
            _note_region(index, number, body)


def _note_member(
    index: Index, number: EventNumber, body: events.MemberRegistered | events.MemberLeft | events.Claimed
) -> None:
    member = body.member
    newest = index.newest.setdefault(member, Series(Incarnation(0)))
    present = index.present.setdefault(member, Series[Incarnation | None](None))
    match body:
        case events.MemberRegistered(incarnation=incarnation):
            newest.put(number, incarnation)
            present.put(number, incarnation)
        case events.MemberLeft(dropped=dropped):
            present.put(number, None)
            for partition in dropped:
                index.claims.setdefault(partition, Series(None)).put(number, None)
        case events.Claimed():
            holder = Holder(member, body.incarnation, body.epoch)
            for partition in body.dropped:
                index.claims.setdefault(partition, Series(None)).put(number, None)
            for partition in body.partitions:
                index.claims.setdefault(partition, Series(None)).put(number, holder)
            index.unowned.put(number, index.unowned.last.difference(body.partitions))


def _note_person(
    index: Index,
    number: EventNumber,
    body: events.PersonResetAccepted | events.PersonResetFailed | events.CheckpointRequested,
) -> None:
    match body:
        case events.PersonResetAccepted(request_id=request_id, forced=forced, scope=scope):
            index.persons[request_id] = PersonRequest(number=number, forced=forced, scope=scope)
        case events.PersonResetFailed(request_id=request_id):
            if request_id in index.persons:
                index.persons[request_id].ended = number
        case events.CheckpointRequested(request_id=request_id):
            if request_id in index.persons:
                index.persons[request_id].asked = number


def _note_reset(
    index: Index, number: EventNumber, body: events.ResetBegun | events.SeekWritten | events.ResetDone
) -> None:
    match body:
        case events.ResetBegun():
            opens = body.restore_point == body.sequence
            attempt = Attempt(number=number, begun=body, seek=dict(body.seek), opens=opens)
            index.attempts[body.epoch] = attempt
            index.restore_points.put(number, body.restore_point)
            index.stamps.put(number, CheckpointNumber(body.sequence + 1))
            if opens:
                attempt.undone = _undo(index, number, body.seek.offsets)
            _place(index, number, body.seek, opens=opens)
            if body.person in index.persons:
                index.persons[body.person].begun = body.epoch
        case events.SeekWritten(epoch=epoch, seek=seek):
            written = index.attempts.get(epoch)
            if written is not None:
                written.seek.update(seek)
            restore_point = index.restore_points.at(number)
            if restore_point is not None and restore_point not in index.checkpoints:
                _undo(index, number, seek.offsets)
            _place(index, number, seek, opens=False)
        case events.ResetDone(epoch=epoch):
            done = index.attempts.get(epoch)
            if done is None:
                return
            done.done = number
            if done.begun.person in index.persons and index.persons[done.begun.person].ended is None:
                index.persons[done.begun.person].ended = number


def _place(index: Index, number: EventNumber, seek: SeekMap, *, opens: bool) -> None:
    for partition, entry in seek.items():
        index.seeks[partition].append(Place(number, entry.offset, opens))
        place = None if entry.offset is None else index.past_skips(partition, entry.offset, number)
        index.resumes[partition].append(Place(number, place, opens))


def _undo(index: Index, number: EventNumber, opening: Mapping[GroupPartition, Offset]) -> tuple[CheckpointNumber, ...]:
    """Mark the checkpoints that a timeline opening at these offsets takes off the current timeline.

    A retired one no longer has offsets to decide by; it stays if a newer one with offsets does.
    """
    gone: list[CheckpointNumber] = []
    place = OffsetMap(opening)
    kept_newer = False
    for sequence in sorted(index.checkpoints, reverse=True):
        checkpoint = index.checkpoints[sequence]
        if not checkpoint.is_current(number):
            continue
        if checkpoint.is_usable(number):
            stays = place.covers(offsets_of(checkpoint))
            kept_newer = kept_newer or stays
        else:
            stays = kept_newer
        if not stays:
            checkpoint.undone = number
            gone.append(sequence)
    return tuple(reversed(gone))


def _note_region(index: Index, number: EventNumber, body: events.Body) -> None:
    match body:
        case events.CheckpointOpened():
            index.checkpoints[body.sequence] = CheckpointHistory(number=number, opened=body)
            index.stamps.put(number, body.sequence)
        case events.PartitionsUnowned(partitions=partitions):
            index.unowned.put(number, frozenset(partitions))
        case events.Stopped():
            index.unowned.put(number, frozenset())
        case events.CheckpointsRetired(sequences=sequences):
            for sequence in sequences:
                if sequence in index.checkpoints:
                    index.checkpoints[sequence].retired = number
        case (
            events.DrainBegun(sequence=sequence)
            | events.Contributed(sequence=sequence)
            | events.CheckpointCompleted(sequence=sequence)
            | events.CheckpointAborted(sequence=sequence)
            | events.CheckpointPublished(sequence=sequence)
        ):
            # A checkpoint that was never opened is judged by its own check; here an empty opening stands for it.
            checkpoint = index.checkpoints.get(sequence)
            if checkpoint is not None:
                _note_progress(index, number, checkpoint, body)
        case _:
            pass


def _note_progress(index: Index, number: EventNumber, checkpoint: CheckpointHistory, body: events.Body) -> None:
    match body:
        case events.DrainBegun():
            checkpoint.drained = number
        case events.Contributed():
            checkpoint.parts.append((number, body))
        case events.CheckpointPublished():
            checkpoint.published = number
        case events.CheckpointAborted():
            checkpoint.aborted = number
            index.stamps.put(number, CheckpointNumber(checkpoint.opened.sequence + 1))
        case events.CheckpointCompleted(sequence=sequence, offsets=offsets):
            checkpoint.completed = (number, body)
            index.stamps.put(number, CheckpointNumber(sequence + 1))
            index.restore_points.put(number, sequence)
            for partition, offset in offsets.items():
                index.resumes[partition].append(Place(number, offset, False))
        case _:
            pass


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDelivery:
    """One time that an offset was started."""

    batch: BatchId
    member: MemberId
    incarnation: Incarnation
    epoch: Epoch
    timeline: Timeline
    sequence: CheckpointNumber
    started_after: EventNumber
    outcome: Outcome | None
    """Of the batch at this offset: UNDONE where a reset went back to it or before; None: it still runs."""

    @property
    def is_accepted(self) -> bool:
        """Whether it counts: done and not undone."""
        return self.outcome is Outcome.DONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Redelivery:
    """Offsets that were started again."""

    partition: GroupPartition
    range: Range
    batch: BatchId
    """The batch that began them again."""

    earlier: tuple[BatchId, ...]
    """Who had started them before, oldest first."""

    epoch: Epoch | None
    """The reset that went back; None: nothing accounts for it (a violation of R8)."""

    cause: ResetCause | None


def delivery_of(batch: Batch, partition: GroupPartition, offset: Offset) -> OffsetDelivery:
    """Return the time that an offset was started in a batch that has it."""
    mark = batch.undone_from.get(partition)
    is_undone = batch.outcome is Outcome.DONE and mark is not None and mark <= offset
    return OffsetDelivery(
        batch=batch.batch,
        member=batch.member,
        incarnation=batch.incarnation,
        epoch=batch.epoch,
        timeline=batch.timeline,
        sequence=batch.sequence,
        started_after=batch.started_after,
        outcome=Outcome.UNDONE if is_undone else batch.outcome,
    )


def redeliveries(index: Index) -> Iterator[Redelivery]:
    """Yield the offsets that were started more than once, each with the reset that made it so."""
    begins: dict[GroupPartition, _Begins] = {}
    for again in started_again(index):
        if again.partition not in begins:
            begins[again.partition] = _Begins(index.begun[again.partition])
        epoch = None if again.reset is None else index.epochs.at(again.reset)
        attempt = None if epoch is None else index.attempts.get(epoch)
        begun: ResetBegun | None = None if attempt is None else attempt.begun
        earlier = [
            (h.number, h.batch.batch)
            for h in begins[again.partition].within(again.range)
            if h.number <= again.batch.started_after and h.batch.batch != again.batch.batch
        ]
        yield Redelivery(
            partition=again.partition,
            range=again.range,
            batch=again.batch.batch,
            earlier=tuple(batch for _, batch in sorted(earlier)),
            epoch=epoch,
            cause=None if begun is None else begun.cause,
        )


class _Begins:
    """What was started of one partition, by offset; found without reading all, as a replay repeats thousands."""

    def __init__(self, begun: Iterable[Handled]) -> None:
        self._begun = sorted(begun, key=lambda h: h.range.from_)
        self._reach = list(accumulate((h.range.to for h in self._begun), max))
        """How far any of them reaches, up to each."""

    def within(self, range_: Range) -> Iterator[Handled]:
        """Yield what was started of a range, in no order."""
        beyond = bisect_left(self._begun, range_.to, key=lambda h: h.range.from_)
        for i in reversed(range(beyond)):
            if self._reach[i] <= range_.from_:
                return
            if self._begun[i].range.to > range_.from_:
                yield self._begun[i]
