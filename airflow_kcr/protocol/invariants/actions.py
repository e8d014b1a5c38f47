"""R5 to R7, R9 to R11: who acted, whether they were allowed to, and what became of what was asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, NamedTuple

from airflow_kcr.protocol import values
from airflow_kcr.protocol.invariants.checkpoints import AT_ONCE, begin_flaw
from airflow_kcr.protocol.invariants.moment import Invariant, Moment, Person
from airflow_kcr.protocol.invariants.tiling import add
from airflow_kcr.protocol.offsets import EMPTY, OffsetMap
from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.region.rows import RESTING, Batch, CheckpointPurpose, RegionState
from airflow_kcr.protocol.values import GroupPartition, Offset


@dataclass(slots=True, kw_only=True)
class Fenced(Invariant):
    """R6 (V) no accepted batch, contribution or commit read-back carries an old epoch, incarnation or claim.

    A batch: at its start, whatever became of it, its epoch and incarnation are the newest, its member has not left and
    holds every range by a claim of both; if it was done, these claims were held without a break until its end, in the
    same epoch and before any newer incarnation, while the region ran or drained; or the sink's progress proved it done
    in the reset that followed. A contribution and a commit read-back: the same at their moment, for every partition
    they name; an acknowledgement: epoch and incarnation.

    It can't see leases, which are renewed without an event, nor whether a member that left gave up its claims or keeps
    its slot; nor what a zombie did in a sink (R1b).
    """

    invariant: ClassVar[str] = "R6"

    def begin(self, moment: Moment, batch: Batch) -> None:
        """See `Invariant`."""
        flaw = begin_flaw(moment, batch)
        if flaw:
            self.add(f"batch {batch.batch} {flaw}", batch.started_after)

    def unproven(self, moment: Moment, batch: Batch, flaw: str) -> None:
        """See `Invariant`."""
        numbers = (batch.started_after, batch.finished_after)
        self.add(f"batch {batch.batch} {flaw}", *(n for n in numbers if n is not None))

    def event(self, moment: Moment, event: events.Event) -> None:
        """See `Invariant`."""
        match event.body:
            case events.Contributed() as body:
                self._act(moment, body, body.offsets, f"a contribution to checkpoint {body.sequence}")
            case events.CommitReadBack(member=member) as body if member is not None:
                self._act(moment, body, body.offsets, f"a commit read-back of checkpoint {body.sequence}")
            case events.Acknowledged() as body:
                self._act(moment, body, EMPTY, "an acknowledgement")

    def _act(
        self,
        moment: Moment,
        body: events.Contributed | events.CommitReadBack | events.Acknowledged,
        offsets: OffsetMap,
        what: str,
    ) -> None:
        if body.member is None:
            return
        incarnation = moment.present.get(body.member)
        strange = [p for p in offsets if not moment.holds(body, p)]
        if body.epoch != moment.epoch:
            detail = f"{what} by {body.member} carries epoch {body.epoch}, the region is in {moment.epoch}"
            self.add(detail, moment.number)
        elif incarnation != body.incarnation:
            was = incarnation or "none"
            detail = f"{what} carries incarnation {body.incarnation} of {body.member}, present is {was}"
            self.add(detail, moment.number)
        elif strange:
            self.add(f"{what} names {strange[0]}, which {body.member} does not hold", moment.number)


@dataclass(slots=True, kw_only=True)
class Still(Invariant):
    """R9 (V) nothing is started between a drain's completion and the resume.

    No batch begins from a checkpoint's drain until the region runs again, nor between the completion of the
    checkpoint of a person's reset and that reset; more generally, none begins while the region's state is not RUNNING.

    It can't see what a pipeline does beside its batch.
    """

    invariant: ClassVar[str] = "R9"
    why: str = ""
    """Why nothing may begin; empty: it may."""

    since: values.EventNumber = values.EventNumber(0)

    def event(self, moment: Moment, event: events.Event) -> None:
        """See `Invariant`."""
        match event.body:
            case events.StateChanged(after=RegionState.DRAINING, why=why):
                self._hold(event.number, why)
            case events.CheckpointCompleted(sequence=sequence):
                self._hold(
                    event.number, f"checkpoint {sequence} is complete and what asked for it has not taken effect"
                )
            case events.StateChanged(before=RegionState.DRAINING) | events.StateChanged(before=RegionState.STOPPED):
                self._hold(event.number, "")

    def _hold(self, number: values.EventNumber, why: str) -> None:
        if why != self.why:
            self.why, self.since = why, number

    def begin(self, moment: Moment, batch: Batch) -> None:
        """See `Invariant`."""
        if self.why or moment.state is not RegionState.RUNNING:
            detail = f"batch {batch.batch} begins while {self.why or f'the region is {moment.state}'}"
            self.add(detail, self.since if self.why else moment.state_since, batch.started_after)


# R11: timelines and sequences only ever grow, and a batch carries those of its start.


@dataclass(slots=True, kw_only=True)
class Done:
    """What was done under one stamp."""

    timeline: values.Timeline
    sequence: values.CheckpointNumber
    ranges: dict[GroupPartition, list[values.Range]] = field(default_factory=dict)
    newest: values.EventNumber = values.EventNumber(0)
    """When the last of it had started."""


@dataclass(slots=True, kw_only=True)
class Increasing(Invariant):
    """R11 (V) (timeline, sequence) strictly increases and no two accepted batches of one (timeline, sequence) overlap.

    Over checkpoints and resets in commit order the sequence grows and the timeline never falls, so that no sequence is
    used twice; a reset that is its own restore point opens the next timeline, any other keeps it, and what it undoes
    are the checkpoints that its map lies below. Every batch is stamped with the timeline of its start and the open
    checkpoint's sequence, else the next one. Done batches, undone later or not, that share a stamp don't overlap.

    It can't see numbers that a restored store had used before: the region is halted then, and its numbers raised above
    all that were seen. Where it is stopped then, and not resumed, its timeline is raised once more.
    """

    invariant: ClassVar[str] = "R11"
    since: values.EventNumber = values.EventNumber(0)
    """Which event had the highest numbers so far."""

    timeline: values.Timeline = values.Timeline(0)
    sequence: values.CheckpointNumber = values.CheckpointNumber(0)
    done: list[Done] = field(default_factory=list)
    """By stamp, oldest first; from the last reset that was done on."""

    def event(self, moment: Moment, event: events.Event) -> None:
        """See `Invariant`."""
        body, number = event.body, event.number
        if isinstance(body, events.ResetDone):
            # What began before it can't finish any more, but for what its sinks have proved now.
            self.done = self.done[-2:]
        elif isinstance(body, events.StoreRestoredSeen) or _may_leave_timeline(body):
            self.since, self.timeline = number, max(event.timeline, self.timeline)
        elif isinstance(body, events.CheckpointOpened | events.ResetBegun):
            if body.sequence <= self.sequence or body.timeline < self.timeline:
                detail = f"({body.timeline}, {body.sequence}) comes after ({self.timeline}, {self.sequence})"
                self.add(detail, self.since, number)
            opens = isinstance(body, events.ResetBegun) and body.opens_timeline
            if body.timeline != self.timeline + opens:
                detail = f"{event.kind} {body.sequence} is of timeline {body.timeline}"
                self.add(f"{detail}, expected was {self.timeline + opens}", self.since, number)
            self.since = number
            self.timeline, self.sequence = max(body.timeline, self.timeline), max(body.sequence, self.sequence)
            if isinstance(body, events.ResetBegun) and tuple(body.undoes) != moment.undone:
                said, found = list(body.undoes), list(moment.undone)
                detail = f"reset {body.sequence} says that it undoes the checkpoints {said}, its map lies below {found}"
                self.add(detail, number)

    def begin(self, moment: Moment, batch: Batch) -> None:
        """See `Invariant`."""
        if batch.timeline != moment.timeline or batch.sequence != moment.stamp:
            was = f"at its begin it was ({moment.timeline}, {moment.stamp})"
            detail = f"batch {batch.batch} is stamped ({batch.timeline}, {batch.sequence}), {was}"
            self.add(detail, batch.started_after)

    def end(self, moment: Moment, batch: Batch, flaw: str) -> None:
        """See `Invariant`."""
        done = self._under(batch.timeline, batch.sequence)
        for partition, range_ in batch.ranges.items():
            ranges = done.ranges.get(partition)
            if ranges is None:
                done.ranges[partition] = [range_]
            elif add(ranges, range_):
                where = f"{partition}, both done in ({batch.timeline}, {batch.sequence})"
                detail = f"batch {batch.batch} overlaps on {where}, what was done there before it"
                self.add(detail, *sorted((done.newest, batch.started_after)))
        done.newest = max(done.newest, batch.started_after)

    def _under(self, timeline: values.Timeline, sequence: values.CheckpointNumber) -> Done:
        for done in reversed(self.done):
            if done.sequence == sequence and done.timeline == timeline:
                return done
        self.done = [*self.done[-7:], Done(timeline=timeline, sequence=sequence)]
        return self.done[-1]


def _may_leave_timeline(body: events.Body) -> bool:
    """Whether a region is stopped out of a halt, which it may be in because its store was restored."""
    return isinstance(body, events.StateChanged) and (body.before, body.after) == (
        RegionState.HALTED,
        RegionState.STOPPED,
    )


# R5, R10: where partitions begin, and where they continue.


class ResumePlace(NamedTuple):
    """Where a partition has to continue; nothing has started there since."""

    number: values.EventNumber
    offset: Offset | None
    """None: its seek entry is open."""


@dataclass(slots=True, kw_only=True)
class Resumed(Invariant):
    """R5 (V) the first range started on a partition after a reset starts at its resume point, whichever member owns it.

    For every resume point (a seek entry, past skipped offsets; in its epoch replaced by the offsets of a completed
    checkpoint), the first range started while it is in force must begin there, and none may begin if there is none
    yet.

    It can't see the first *record* that Spark read in that range: offsets may be missing in a log (compaction, markers
    of transactions).
    """

    invariant: ClassVar[str] = "R5"
    expected: dict[GroupPartition, ResumePlace] = field(default_factory=dict)
    known: set[GroupPartition] = field(default_factory=set)
    """Partitions that have had a resume point, or started without one, which is reported once."""

    def event(self, moment: Moment, event: events.Event) -> None:
        """See `Invariant`."""
        match event.body:
            case events.ResetBegun(seek=seek) | events.SeekWritten(seek=seek):
                for partition, entry in seek.items():
                    place = None if entry.offset is None else moment.past_skips(partition, entry.offset)
                    self.expected[partition] = ResumePlace(event.number, place)
                self.known.update(seek)
            case events.CheckpointCompleted(sequence=sequence, offsets=offsets) if moment.is_current(sequence):
                for partition, offset in offsets.items():
                    self.expected[partition] = ResumePlace(event.number, offset)
                self.known.update(offsets)

    def begin(self, moment: Moment, batch: Batch) -> None:
        """See `Invariant`."""
        if not self.expected and self.known.issuperset(batch.ranges):
            return
        for partition, range_ in batch.ranges.items():
            place = self.expected.pop(partition, None)
            if place is None:
                if partition not in self.known:
                    self.known.add(partition)
                    detail = f"{partition}: batch {batch.batch} begins {range_} without a resume point"
                    self.add(detail, batch.started_after)
                continue
            begins = f"{partition}: batch {batch.batch} begins {range_}"
            if place.offset is None:
                self.add(f"{begins}, its seek entry is open", place.number, batch.started_after)
            elif range_.from_ not in {place.offset, moment.past_skips(partition, place.offset)}:
                self.add(f"{begins}, it resumes at {place.offset}", place.number, batch.started_after)


class Start(NamedTuple):
    """An initial offset that was stored."""

    number: values.EventNumber
    offset: Offset
    topic_id: values.TopicId


@dataclass(slots=True, kw_only=True)
class ResolvedOnce(Invariant):
    """R10 (V) a start position is resolved once per partition.

    No partition has two initial offsets for one topic id. A broker that tells no id can't tell a recreated topic
    either: without two different ids a second one counts as a second resolution.

    It can't see whether the position was resolved as the spec's start asks.
    """

    invariant: ClassVar[str] = "R10"
    starts: dict[GroupPartition, list[Start]] = field(default_factory=dict)

    def event(self, moment: Moment, event: events.Event) -> None:
        """See `Invariant`."""
        if not isinstance(event.body, events.InitialOffsetsStored):
            return
        for partition, offset in event.body.offsets.items():
            log = event.body.bounds.get(partition)
            start = Start(event.number, offset, values.TopicId("") if log is None else log.topic_id)
            earlier = next((e for e in self.starts.get(partition, ()) if _may_be_one_topic(e, start)), None)
            if earlier is not None:
                detail = f"{partition}: the initial offset {start.offset} was stored, it had {earlier.offset} already"
                self.add(detail, earlier.number, start.number)
            self.starts.setdefault(partition, []).append(start)


def _may_be_one_topic(a: Start, b: Start) -> bool:
    return a.topic_id == b.topic_id or not a.topic_id or not b.topic_id


# R7: every request for a reset is carried out or refused with a reason, and every epoch has a cause.

PRELUDE: Final = 5
"""Events of a new epoch that may come before the one that begins it, in its transaction."""


class Automatic(NamedTuple):
    """An automatic request that nothing has followed yet."""

    number: values.EventNumber
    epoch: values.Epoch
    detail: str
    begun: values.EventNumber | None
    """When the first batch began after it."""


@dataclass(slots=True, kw_only=True)
class RequestsEnd(Invariant):
    """R7 (V) automatic requests are followed by an epoch above, persons' requests end, every epoch names its cause.

    An automatic request of the region's epoch is followed by a greater one before anything is started in its own, or by
    a halt, a stop or a kill; one of an older epoch is answered already, and so is one made while the region is halted
    or stopped. A person's request is done, failed or still under way: waiting behind another, draining, or with its
    reset running. Each epoch is started by a reset or a kill and is the next number; only a restored store may jump.
    A person's reset has been accepted before it begins, and it leaves every partition that it was not accepted for
    where that was.

    It can't see requests that never reached the store, nor how long something took (R14).
    """

    invariant: ClassVar[str] = "R7"
    automatic: list[Automatic] = field(default_factory=list)
    checkpoints: dict[values.RequestId, values.EventNumber] = field(default_factory=dict)
    """When the checkpoint of a person's reset was complete that neither has started nor failed."""

    epoch: values.Epoch = values.Epoch(0)
    """Of the events so far."""

    since: values.EventNumber = values.EventNumber(0)
    ahead: dict[values.EventNumber, values.Epoch] = field(default_factory=dict)
    """Changes of the next boundary, in an epoch that was not started yet."""

    def before(self, moment: Moment, event: events.Event) -> None:
        """See `Invariant`."""
        match event.body:
            case events.CheckpointCompleted(sequence=sequence):
                checkpoint = moment.open.get(sequence)
                if checkpoint is not None and checkpoint.opened.purpose is CheckpointPurpose.RESET:
                    self.checkpoints[checkpoint.opened.request_id] = event.number
            case events.ResetBegun(person=person):
                if person is not None:
                    self.checkpoints.pop(person, None)
                    self._scoped(moment, event.number, event.body, person)
            case events.PersonResetFailed(request_id=request_id):
                self.checkpoints.pop(request_id, None)
        late = [request_id for request_id, number in self.checkpoints.items() if event.number >= number + AT_ONCE]
        for request_id in late:
            self._unsettled(request_id, self.checkpoints.pop(request_id))

    def _unsettled(self, request_id: values.RequestId, number: values.EventNumber) -> None:
        self.add(f"the checkpoint of reset {request_id} is complete, neither the reset nor its failure follows", number)

    def _scoped(
        self, moment: Moment, number: values.EventNumber, body: events.ResetBegun, request_id: values.RequestId
    ) -> None:
        person = moment.persons.get(request_id)
        if person is None:
            self.add(f"reset {request_id} begins, it was never accepted", number)
            return
        if not body.opens_timeline:
            return
        for partition, entry in body.seek.items():
            if partition in person.scope or entry.current is None or entry.offset == entry.current:
                continue
            where = "a place of its own" if entry.offset is None else entry.offset
            detail = f"{partition}: reset {body.person} was not accepted for it and moves it to {where}"
            self.add(f"{detail}, it was at {entry.current}", person.number, number)

    def event(self, moment: Moment, event: events.Event) -> None:
        """See `Invariant`."""
        number, body = event.number, event.body
        match body:
            case events.ResetRequested():
                if body.epoch >= moment.epoch and moment.state not in RESTING:
                    detail = f"{body.member} asked for a reset ({body.cause}) in epoch {body.epoch}"
                    self.automatic.append(Automatic(number, body.epoch, detail, None))
            case events.ResetBegun(epoch=epoch) | events.Killed(epoch=epoch):
                self._followed(number, epoch)
            case events.Halted() | events.StateChanged(after=RegionState.STOPPED):
                self._followed(number, None)
        self._cause(event)

    def _followed(self, number: values.EventNumber, epoch: values.Epoch | None) -> None:
        for asked in self.automatic:
            if epoch is not None and epoch <= asked.epoch:
                self.add(f"{asked.detail}, followed by epoch {epoch}", asked.number, number)
            if asked.begun is not None:
                detail = f"{asked.detail}, a batch began before anything followed"
                self.add(detail, asked.number, asked.begun)
        self.automatic = []

    def _cause(self, event: events.Event) -> None:
        number = event.number
        match event.body:
            case events.ResetBegun(epoch=begun) | events.Killed(epoch=begun):
                # What came ahead of it, in its transaction, has its epoch.
                is_reset = isinstance(event.body, events.ResetBegun)
                self._uncaused({n: e for n, e in self.ahead.items() if not is_reset or e != event.epoch})
                if begun != self.epoch + 1:
                    self.add(f"epoch {begun} follows epoch {self.epoch}", self.since, number)
                self.epoch, self.since = begun, number
            case events.StoreRestoredSeen():
                self._uncaused(self.ahead)
                if event.epoch < self.epoch:
                    self.add(f"epoch {event.epoch} follows epoch {self.epoch}", self.since, number)
                self.epoch, self.since = event.epoch, number
            case events.NextBoundaryChanged() if event.epoch != self.epoch and len(self.ahead) < PRELUDE:
                self.ahead = {**self.ahead, number: event.epoch}
                return
            case _:
                self._uncaused(self.ahead)
                self._uncaused({number: event.epoch}, event.kind)
        self.ahead = {}

    def _uncaused(self, ahead: Mapping[values.EventNumber, values.Epoch], kind: str = "NextBoundaryChanged") -> None:
        for number, epoch in ahead.items():
            if epoch != self.epoch:
                self.add(f"epoch {epoch} of {kind} has no cause", self.since, number)
                self.epoch, self.since = epoch, number

    def begin(self, moment: Moment, batch: Batch) -> None:
        """See `Invariant`."""
        if self.automatic:
            self.automatic = [
                a if a.begun is not None else a._replace(begun=batch.started_after) for a in self.automatic
            ]

    def finish(self, moment: Moment) -> None:
        """See `Invariant`."""
        for asked in self.automatic:
            self.add(f"{asked.detail}, nothing followed", asked.number)
        for request_id, person in moment.persons.items():
            why = _abandoned(moment, person)
            if not why and person.begun is None and (person.asked or person.number) < (person.checkpoint_ended or 0):
                why = "the request of its checkpoint has ended"
            if why:
                self.add(f"reset {request_id} was accepted and neither done nor failed: {why}", person.number)
        for request_id, number in self.checkpoints.items():
            self._unsettled(request_id, number)
        self._uncaused(dict(list(self.ahead.items())[:1]))


def _abandoned(moment: Moment, person: Person) -> str:
    """Return why an unfinished request can't be under way any more; empty: it may be."""
    state = moment.state
    if person.begun is None:
        if state in RESTING:
            return f"the region is {state}"
        if state is RegionState.RUNNING and person.asked is None and len(moment.persons) == 1:
            return "the region runs, nothing else is under way, and its checkpoint was not asked for"
        return ""
    if state in RESTING:
        return f"the region is {state}, its reset does not run any more"
    over = person.overtaken
    return "" if over is None else f"the reset of epoch {over} is done, the region goes on without it"
