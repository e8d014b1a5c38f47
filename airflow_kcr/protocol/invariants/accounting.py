"""What became of one record, and which records were delivered more than once and why: answers from the ledger.

Invariant R8 is that each time but the first has a reset that accounts for it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import ClassVar

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
from airflow_kcr.protocol.invariants.moment import Invariant, Moment, Violations
from airflow_kcr.protocol.invariants.tiling import add, below, common, joined, lacking
from airflow_kcr.protocol.offsets import OffsetMap, SeekMap
from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.region.events import Event, InitialOffsetsStored, ResetBegun, SeekWritten
from airflow_kcr.protocol.region.rows import Batch, Outcome, ResetCause
from airflow_kcr.protocol.region.timelines import is_recreated
from airflow_kcr.protocol.rules import Delivery
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
    TopicId,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """A range that was started again, in one piece, because of one reset."""

    partition: GroupPartition
    range: Range
    batch: Batch
    """The batch that began it again."""

    reset: EventNumber | None
    """The event that rewound it; None: nothing accounts for it."""


@dataclass(slots=True, kw_only=True)
class Accounted(Invariant):
    """R8 (V) ranges started more than once are exactly those that the resets between them account for.

    A range that overlaps one started before needs a seek entry at or below the overlap, written between the two starts.

    It can't see how many *records* those offsets hold, nor repetitions inside Spark (a task's second attempt).
    """

    invariant: ClassVar[str] = "R8"
    sees_batches: ClassVar[bool] = True
    standing: dict[GroupPartition, list[Range]] = field(default_factory=dict)
    """What was started of its present topic, joined, and not rewound since."""

    topics: dict[GroupPartition, TopicId] = field(default_factory=dict)

    def event(self, moment: Moment, event: Event, findings: Violations) -> None:
        """See `Invariant`."""
        match event.body:
            case ResetBegun(seek=seek) | SeekWritten(seek=seek):
                for partition, entry in seek.items():
                    standing = self.standing.get(partition)
                    if standing and entry.offset is not None and entry.offset < standing[-1].to:
                        self.standing[partition] = list(below(standing, entry.offset))
            case InitialOffsetsStored(bounds=bounds):
                for partition, log in bounds.items():
                    if is_recreated(self.topics.get(partition, TopicId("")), log.topic_id):
                        self.standing.pop(partition, None)
                    self.topics[partition] = log.topic_id or self.topics.get(partition, TopicId(""))
            case _:
                pass

    def begin(self, moment: Moment, batch: Batch, findings: Violations) -> None:
        """See `Invariant`."""
        for partition, range_ in batch.ranges.items():
            standing = self.standing.get(partition)
            if standing is None:
                self.standing[partition] = [range_]
                continue
            for piece in add(standing, range_):
                detail = f"{partition}: batch {batch.batch} begins {piece} again, no reset went back there"
                findings.add(detail, batch.started_after)


def started_again(index: Index) -> Iterator[Again]:
    """Yield every range that was started again, partition by partition, in the order of the starts."""
    for partition in sorted(index.begun):
        yield from _Track(index=index, partition=partition).walk()


@dataclass(slots=True, kw_only=True)
class _Track:
    """One partition: what was started, and what of it a reset has rewound since."""

    index: Index
    partition: GroupPartition
    standing: tuple[Range, ...] = ()
    """Started, and not rewound since."""

    topic_id: TopicId = TopicId("")
    pending: list[tuple[Range, EventNumber]] = field(default_factory=list)
    """Started, rewound by the reset of that event, and not started again since."""

    def walk(self) -> Iterator[Again]:
        """Yield what is started again."""
        steps: list[tuple[EventNumber, int, Offset, Handled | Place | Start]] = []
        steps += [(s.number, 0, Offset(0), s) for s in self.index.starts.get(self.partition, ())]
        steps += [(p.number, 0, Offset(0), p) for p in self.index.seeks.get(self.partition, ())]
        steps += [(h.number, 1, h.range.from_, h) for h in self.index.begun.get(self.partition, ())]
        for _, _, _, step in sorted(steps, key=lambda s: s[:3]):
            if isinstance(step, Handled):
                yield from self._begin(step)
            elif isinstance(step, Start):
                self._follow(step.topic_id)
            elif step.offset is not None:
                self._rewind(step.number, step.offset)

    def _follow(self, topic_id: TopicId) -> None:
        if is_recreated(self.topic_id, topic_id):
            # The offsets of a recreated topic are those of other records: none of them was started yet.
            self.standing, self.pending = (), []
        self.topic_id = topic_id or self.topic_id

    def _rewind(self, number: EventNumber, offset: Offset) -> None:
        if not self.standing or offset >= self.standing[-1].to:
            return
        back = common(self.standing, [Range(offset, self.standing[-1].to)])
        self.standing = lacking(self.standing, back)
        self.pending += [(r, number) for r in back]

    def _begin(self, handled: Handled) -> Iterator[Again]:
        range_, batch = handled.range, handled.batch
        if self.standing and range_.from_ < self.standing[-1].to:
            for piece in common(self.standing, [range_]):
                yield Again(partition=self.partition, range=piece, batch=batch, reset=None)
        left: list[tuple[Range, EventNumber]] = []
        for back, number in self.pending:
            for piece in common([back], [range_]):
                yield Again(partition=self.partition, range=piece, batch=batch, reset=number)
            left += [(r, number) for r in lacking([back], [range_])]
        self.pending = left
        if self.standing and self.standing[-1].to == range_.from_:
            # By far the most frequent case: the range continues where the last one ended.
            self.standing = (*self.standing[:-1], Range(self.standing[-1].from_, range_.to))
        else:
            self.standing = joined([*self.standing, range_])


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
