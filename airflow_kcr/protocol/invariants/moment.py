"""A moment of a history, what holds after the events so far; and a check, one invariant as a fold over moments.

It is built from the words of the invariants alone, not with the rules that decided: a check that used the same
code would agree with its mistakes. It grows with members, partitions, checkpoints that are kept and requests that are
open, and not with how long the region has lived; checkpoints that were retired are runs of numbers.

A check gets everything once, in the order in which it happened, and keeps only what it needs to judge what comes next:
its fields, which are values, are what the start of the kept history stores of it. `Moment` holds what several of them
need.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, NamedTuple, TypeAlias

from airflow_kcr.protocol import values
from airflow_kcr.protocol.invariants.history import Violation
from airflow_kcr.protocol.offsets import OffsetMap, SeekEntry, past_skips
from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.region.rows import Batch, RegionState
from airflow_kcr.protocol.rules import Delivery
from airflow_kcr.protocol.scopes import Scope
from airflow_kcr.protocol.values import GroupPartition, Offset


class HeldClaim(NamedTuple):
    """Whose a claim is, and since which event."""

    member: values.MemberId
    incarnation: values.Incarnation
    epoch: values.Epoch
    since: values.EventNumber


@dataclass(slots=True, kw_only=True)
class OpenCheckpoint:
    """A checkpoint from its opening to its end."""

    number: values.EventNumber
    """When it was opened."""

    opened: events.CheckpointOpened
    parts: dict[values.EventNumber, events.Contributed] = field(default_factory=dict)
    """What members have contributed, and when."""


@dataclass(slots=True, kw_only=True)
class KeptCheckpoint:
    """A complete current checkpoint that has its offsets."""

    number: values.EventNumber
    """When it was opened."""

    offsets: OffsetMap
    previous: values.CheckpointNumber | None
    published: values.EventNumber | None = None


@dataclass(slots=True, kw_only=True)
class LatestAttempt:
    """The epoch that a reset began last."""

    epoch: values.Epoch
    timeline: values.Timeline
    person: values.RequestId | None
    seek: dict[GroupPartition, SeekEntry]
    """Its seek map, as far as it is written."""

    done: values.EventNumber | None = None


@dataclass(slots=True, kw_only=True)
class Person:
    """A person's reset that is neither done nor failed."""

    number: values.EventNumber
    forced: bool
    scope: Scope
    asked: values.EventNumber | None = None
    """When its checkpoint was asked for."""

    checkpoint_ended: values.EventNumber | None = None
    """When the request of its checkpoint ended."""

    begun: values.Epoch | None = None
    overtaken: values.Epoch | None = None
    """A reset that was done meanwhile and is not its own."""


Actor: TypeAlias = Batch | events.Claimed | events.Contributed | events.CommitReadBack | events.Acknowledged
"""Who acts by a claim."""


@dataclass(slots=True, kw_only=True)
class Moment:
    """What holds after an event."""

    number: values.EventNumber = values.EventNumber(0)
    epoch: values.Epoch = values.Epoch(0)
    """By the events that begin one and by no other, so that one without a cause stands out."""

    timeline: values.Timeline = values.Timeline(0)
    state: RegionState = RegionState.STOPPED
    state_since: values.EventNumber = values.EventNumber(0)
    unowned: frozenset[GroupPartition] = frozenset()
    """The partitions that the brokers have and no member owns, as far as a member told of them."""

    unowned_since: values.EventNumber = values.EventNumber(0)
    restore_point: values.CheckpointNumber | None = None
    stamp: values.CheckpointNumber = values.CheckpointNumber(1)
    """The sequence that a batch is stamped with: the open checkpoint's, else the next one."""

    deliveries: dict[str, str] = field(default_factory=dict)
    newest: dict[values.MemberId, values.Incarnation] = field(default_factory=dict)
    """The newest incarnation of each member."""

    present: dict[values.MemberId, values.Incarnation] = field(default_factory=dict)
    """The same, without those that have left."""

    claims: dict[GroupPartition, HeldClaim] = field(default_factory=dict)
    skips: dict[GroupPartition, list[Offset]] = field(default_factory=dict)
    """Ascending."""

    open: dict[values.CheckpointNumber, OpenCheckpoint] = field(default_factory=dict)
    kept: dict[values.CheckpointNumber, KeptCheckpoint] = field(default_factory=dict)
    """By number, ascending."""

    retired: list[values.Range] = field(default_factory=list)
    """The complete current checkpoints that have no offsets any more, as ranges of their numbers."""

    undone: tuple[values.CheckpointNumber, ...] = ()
    """What the reset that began last took off the current timeline."""

    attempt: LatestAttempt | None = None
    persons: dict[values.RequestId, Person] = field(default_factory=dict)

    # -- questions -----------------------------------------------------------------------------------------------

    def delivery(self, group: values.GroupId) -> Delivery:
        """Return the delivery of a group."""
        found = self.deliveries.get(group)
        return Delivery.AT_LEAST_ONCE if found is None else Delivery(found)

    def holds(self, actor: Actor, partition: GroupPartition) -> bool:
        """Whether a partition's claim is that of who acts, by epoch and incarnation."""
        held = self.claims.get(partition)
        return held is not None and held[:3] == (actor.member, actor.incarnation, actor.epoch)

    def past_skips(self, partition: GroupPartition, offset: Offset) -> Offset:
        """Return the next offset at or after `offset` that was not skipped."""
        return past_skips(offset, self.skips.get(partition, ()))

    def skipped(self, partition: GroupPartition) -> list[values.Range]:
        """Return the offsets that were skipped."""
        return [values.Range(o, Offset(o + 1)) for o in self.skips.get(partition, ())]

    def is_current(self, sequence: values.CheckpointNumber) -> bool:
        """Whether a checkpoint is complete and not undone."""
        return sequence in self.kept or any(run.from_ <= sequence < run.to for run in self.retired)

    # -- continuing ------------------------------------------------------------------------------------------------

    def take(self, event: events.Event) -> None:
        """Go on to the moment after an event, taken as it is: what contradicts itself is for the checks to find."""
        self.number, self.timeline = event.number, event.timeline
        if isinstance(event.body, events.StoreRestoredSeen):
            self.epoch = event.epoch
        for continues in (self._reset, self._member, self._person, self._region, self._checkpoint):
            continues(event.number, event.body)

    def _region(self, number: values.EventNumber, body: events.Body) -> None:
        match body:
            case events.RegionCreated(deliveries=found) | events.SpecChanged(deliveries=found):
                self.deliveries = dict(found)
            case events.StateChanged(after=after):
                if after is not self.state:
                    self.state, self.state_since = after, number
                if after is RegionState.STOPPED:
                    self._without_owner(number, frozenset())
            case events.Skipped(offsets=offsets):
                for partition, offset in offsets.items():
                    self.skips[partition] = sorted({*self.skips.get(partition, ()), offset})
            case events.PartitionsUnowned(partitions=partitions):
                self._without_owner(number, frozenset(partitions))
            case events.Killed(epoch=epoch):
                self.epoch = epoch

    def _member(self, number: values.EventNumber, body: events.Body) -> None:
        match body:
            case events.MemberRegistered(member=member, incarnation=incarnation):
                self.newest[member] = self.present[member] = incarnation
            case events.MemberLeft(member=member, dropped=dropped):
                self.present.pop(member, None)
                for partition in dropped:
                    self.claims.pop(partition, None)
            case events.Claimed():
                for partition in body.dropped:
                    self.claims.pop(partition, None)
                for partition in body.partitions:
                    if not self.holds(body, partition):
                        self.claims[partition] = HeldClaim(body.member, body.incarnation, body.epoch, number)
                if self.unowned:
                    self._without_owner(number, self.unowned.difference(body.partitions))

    def _without_owner(self, number: values.EventNumber, partitions: frozenset[GroupPartition]) -> None:
        if partitions != self.unowned:
            self.unowned, self.unowned_since = partitions, number

    def _person(self, number: values.EventNumber, body: events.Body) -> None:
        match body:
            case events.PersonResetAccepted(request_id=request_id, forced=forced, scope=scope):
                self.persons[request_id] = Person(number=number, forced=forced, scope=scope)
            case events.PersonResetFailed(request_id=request_id):
                self.persons.pop(request_id, None)
            case events.CheckpointRequested(request_id=request_id):
                if request_id in self.persons:
                    self.persons[request_id].asked = number
            case events.CheckpointRequestEnded(request_id=request_id):
                if request_id in self.persons:
                    self.persons[request_id].checkpoint_ended = number

    def _reset(self, number: values.EventNumber, body: events.Body) -> None:
        match body:
            case events.ResetBegun():
                self._begin(body)
            case events.SeekWritten(epoch=epoch, seek=seek):
                if self.attempt is not None and self.attempt.epoch == epoch:
                    self.attempt.seek.update(seek)
                point = self.restore_point
                if point is not None and point not in self.open and not self.is_current(point):
                    self._undo(seek.offsets)
            case events.ResetDone(epoch=epoch):
                if self.attempt is not None and self.attempt.epoch == epoch:
                    self._done(number, self.attempt)

    def _begin(self, body: events.ResetBegun) -> None:
        self.epoch = body.epoch
        self.attempt = LatestAttempt(epoch=body.epoch, timeline=body.timeline, person=body.person, seek=dict(body.seek))
        self.restore_point, self.stamp = body.restore_point, values.CheckpointNumber(body.sequence + 1)
        self.undone = self._undo(body.seek.offsets) if body.opens_timeline else ()
        if body.person in self.persons:
            self.persons[body.person].begun = body.epoch

    def _done(self, number: values.EventNumber, attempt: LatestAttempt) -> None:
        attempt.done = number
        if attempt.person is not None:
            self.persons.pop(attempt.person, None)
        for person in self.persons.values():
            if person.begun is not None and person.begun <= attempt.epoch and person.overtaken is None:
                person.overtaken = attempt.epoch

    def _undo(self, opening: Mapping[GroupPartition, Offset]) -> tuple[values.CheckpointNumber, ...]:
        """Take the checkpoints off the current timeline that a timeline opening at these offsets lies below.

        A retired one no longer has offsets to decide by; it stays if a newer one with offsets does.
        """
        place = OffsetMap(opening)
        gone = [s for s, checkpoint in self.kept.items() if not place.covers(checkpoint.offsets)]
        for sequence in gone:
            del self.kept[sequence]
        stays = max(self.kept, default=values.CheckpointNumber(0))
        runs, self.retired = self.retired, []
        for run in runs:
            if run.from_ < stays:
                self.retired.append(values.Range(run.from_, Offset(min(run.to, stays))))
            gone += map(values.CheckpointNumber, range(max(run.from_, stays), run.to))
        return tuple(sorted(gone))

    def _checkpoint(self, number: values.EventNumber, body: events.Body) -> None:
        match body:
            case events.CheckpointOpened(sequence=sequence):
                self.open[sequence] = OpenCheckpoint(number=number, opened=body)
                self.stamp = sequence
            case events.Contributed(sequence=sequence) if sequence in self.open:
                self.open[sequence].parts[number] = body
            case events.CheckpointAborted(sequence=sequence) if sequence in self.open:
                del self.open[sequence]
                self.stamp = values.CheckpointNumber(sequence + 1)
            case events.CheckpointCompleted(sequence=sequence) if sequence in self.open:
                opened = self.open.pop(sequence)
                self.kept[sequence] = KeptCheckpoint(number=opened.number, offsets=body.offsets, previous=body.previous)
                self.stamp, self.restore_point = values.CheckpointNumber(sequence + 1), sequence
            case events.CheckpointPublished(sequence=sequence) if sequence in self.kept:
                self.kept[sequence].published = number
            case events.CheckpointsRetired(sequences=sequences):
                self._retire([s for s in sequences if self.kept.pop(s, None) is not None])

    def _retire(self, gone: list[values.CheckpointNumber]) -> None:
        runs = (values.Range(Offset(sequence), Offset(sequence + 1)) for sequence in gone)
        self.retired = list(values.joined([*self.retired, *runs]))


# Checks

KEPT: Final = 1_000
"""Violations of one invariant that are listed one by one: a store that was altered may hold millions."""


@dataclass(slots=True, kw_only=True)
class Invariant:
    """One invariant, and what contradicts it; an implementation overrides what concerns it."""

    invariant: ClassVar[str] = ""
    """Its number in tests/annex/invariants.md."""

    first: list[Violation] = field(default_factory=list)
    """The first violations."""

    count: int = 0
    """How many there are."""

    def add(self, detail: str, *numbers: values.EventNumber) -> None:
        """Note a violation: what is wrong, and the events that contradict each other."""
        self.count += 1
        if len(self.first) < KEPT:
            self.first.append(Violation(self.invariant, detail, numbers))

    @property
    def violations(self) -> list[Violation]:
        """The violations by their last events, the last of them saying how many more there are."""
        kept = sorted(self.first, key=lambda violation: violation.events[-1:])
        if self.count <= KEPT:
            return kept
        return [*kept, Violation(self.invariant, f"and {self.count - KEPT} more violations", kept[-1].events)]

    def before(self, moment: Moment, event: events.Event) -> None:
        """Take an event, the moment being the one before it."""

    def event(self, moment: Moment, event: events.Event) -> None:
        """Take an event, the moment being the one after it."""

    def begin(self, moment: Moment, batch: Batch) -> None:
        """Take a batch that begins now."""

    def end(self, moment: Moment, batch: Batch, flaw: str) -> None:
        """Take a batch whose row says that it was done: it ends now, and `flaw` says what speaks against that."""

    def accept(self, moment: Moment, batch: Batch, number: values.EventNumber) -> None:
        """Take a batch that counts as accepted from now on, after event `number`."""

    def unproven(self, moment: Moment, batch: Batch, flaw: str) -> None:
        """Take a batch whose end had a flaw and that no sink's progress has proved either."""

    def finish(self, moment: Moment) -> None:
        """Judge what is still open at the end; beside that it changes nothing, as the history may continue."""
