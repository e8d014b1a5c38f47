"""R7: every request for a reset is carried out or refused with a reason, and every epoch has a cause."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final, NamedTuple

from airflow_kcr.protocol.invariants.check import Invariant, Violations
from airflow_kcr.protocol.invariants.checkpoints import AT_ONCE
from airflow_kcr.protocol.invariants.moment import Moment, Person
from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.region.events import Event
from airflow_kcr.protocol.region.rows import Batch, CheckpointPurpose, RegionState
from airflow_kcr.protocol.values import Epoch, EventNumber, RequestId

ENDED: Final = frozenset({RegionState.HALTED, RegionState.STOPPED})
PRELUDE: Final = 5
"""Events of a new epoch that may come before the one that begins it, in its transaction."""


class Automatic(NamedTuple):
    """An automatic request that nothing has followed yet."""

    number: EventNumber
    epoch: Epoch
    detail: str
    begun: EventNumber | None
    """When the first batch began after it."""


class OwnCheckpoint(NamedTuple):
    """A complete checkpoint of a person's reset that neither has started nor failed."""

    number: EventNumber
    request_id: RequestId


class Ahead(NamedTuple):
    """An event of an epoch that was not started yet."""

    number: EventNumber
    epoch: Epoch
    kind: str


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
    sees_batches: ClassVar[bool] = True
    automatic: list[Automatic] = field(default_factory=list)
    checkpoints: list[OwnCheckpoint] = field(default_factory=list)
    epoch: Epoch = Epoch(0)
    """Of the events so far."""

    since: EventNumber = EventNumber(0)
    ahead: list[Ahead] = field(default_factory=list)

    def before(self, moment: Moment, event: Event, findings: Violations) -> None:
        """See `Invariant`."""
        match event.body:
            case events.CheckpointCompleted(sequence=sequence):
                checkpoint = moment.open.get(sequence)
                if checkpoint is not None and checkpoint.purpose is CheckpointPurpose.RESET:
                    self.checkpoints.append(OwnCheckpoint(event.number, checkpoint.request_id))
                    return
            case events.ResetBegun(person=person):
                self.checkpoints = [checkpoint for checkpoint in self.checkpoints if checkpoint.request_id != person]
                self._scoped(moment, event.number, event.body, findings)
            case events.PersonResetFailed(request_id=request_id):
                self.checkpoints = [
                    checkpoint for checkpoint in self.checkpoints if checkpoint.request_id != request_id
                ]
            case _:
                pass
        if self.checkpoints and event.number >= self.checkpoints[0].number + AT_ONCE:
            self._unsettled(self.checkpoints[:1], findings)
            del self.checkpoints[0]

    def _unsettled(self, checkpoints: list[OwnCheckpoint], findings: Violations) -> None:
        for number, request_id in checkpoints:
            findings.add(
                f"the checkpoint of reset {request_id} is complete, neither the reset nor its failure follows", number
            )

    def _scoped(self, moment: Moment, number: EventNumber, body: events.ResetBegun, findings: Violations) -> None:
        if body.person is None:
            return
        person = moment.persons.get(body.person)
        if person is None:
            findings.add(f"reset {body.person} begins, it was never accepted", number)
            return
        if body.restore_point != body.sequence:
            return
        for partition, entry in body.seek.items():
            if partition in person.scope or entry.current is None or entry.offset == entry.current:
                continue
            where = "a place of its own" if entry.offset is None else entry.offset
            detail = f"{partition}: reset {body.person} was not accepted for it and moves it to {where}"
            findings.add(f"{detail}, it was at {entry.current}", person.number, number)

    def event(self, moment: Moment, event: Event, findings: Violations) -> None:
        """See `Invariant`."""
        number, body = event.number, event.body
        match body:
            case events.ResetRequested():
                if body.epoch >= moment.epoch and moment.state not in ENDED:
                    detail = f"{body.member} asked for a reset ({body.cause}) in epoch {body.epoch}"
                    self.automatic.append(Automatic(number, body.epoch, detail, None))
            case events.ResetBegun(epoch=epoch) | events.Killed(epoch=epoch):
                self._followed(number, epoch, findings)
            case events.Halted() | events.Stopped():
                self._followed(number, None, findings)
            case _:
                pass
        self._cause(event, findings)

    def _followed(self, number: EventNumber, epoch: Epoch | None, findings: Violations) -> None:
        for asked in self.automatic:
            if epoch is not None and epoch <= asked.epoch:
                findings.add(f"{asked.detail}, followed by epoch {epoch}", asked.number, number)
            if asked.begun is not None:
                detail = f"{asked.detail}, a batch began before anything followed"
                findings.add(detail, asked.number, asked.begun)
        self.automatic = []

    def _cause(self, event: Event, findings: Violations) -> None:
        number = event.number
        match event.body:
            case events.ResetBegun(epoch=begun) | events.Killed(epoch=begun):
                # What came ahead of it, in its transaction, has its epoch.
                is_reset = isinstance(event.body, events.ResetBegun)
                self._uncaused([a for a in self.ahead if not is_reset or a.epoch != event.epoch], findings)
                if begun != self.epoch + 1:
                    findings.add(f"epoch {begun} follows epoch {self.epoch}", self.since, number)
                self.epoch, self.since = begun, number
            case events.StoreRestoredSeen():
                self._uncaused(self.ahead, findings)
                if event.epoch < self.epoch:
                    findings.add(f"epoch {event.epoch} follows epoch {self.epoch}", self.since, number)
                self.epoch, self.since = event.epoch, number
            case events.NextBoundaryChanged() if event.epoch != self.epoch and len(self.ahead) < PRELUDE:
                self.ahead = [*self.ahead, Ahead(number, event.epoch, event.kind)]
                return
            case _:
                self._uncaused(self.ahead, findings)
                if event.epoch != self.epoch:
                    self._uncaused([Ahead(number, event.epoch, event.kind)], findings)
        self.ahead = []

    def _uncaused(self, ahead: list[Ahead], findings: Violations) -> None:
        for number, epoch, kind in ahead:
            if epoch != self.epoch:
                findings.add(f"epoch {epoch} of {kind} has no cause", self.since, number)
                self.epoch, self.since = epoch, number

    def begin(self, moment: Moment, batch: Batch, findings: Violations) -> None:
        """See `Invariant`."""
        if self.automatic:
            self.automatic = [
                a if a.begun is not None else a._replace(begun=batch.started_after) for a in self.automatic
            ]

    def finish(self, moment: Moment, findings: Violations) -> None:
        """See `Invariant`."""
        for asked in self.automatic:
            findings.add(f"{asked.detail}, nothing followed", asked.number)
        for request_id, person in moment.persons.items():
            why = _abandoned(moment, person)
            if not why and person.begun is None and (person.asked or person.number) < (person.checkpoint_ended or 0):
                why = "the request of its checkpoint has ended"
            if why:
                findings.add(f"reset {request_id} was accepted and neither done nor failed: {why}", person.number)
        self._unsettled(self.checkpoints, findings)
        if self.ahead:
            number, epoch, kind = self.ahead[0]
            findings.add(f"epoch {epoch} of {kind} has no cause", self.since, number)


def _abandoned(moment: Moment, person: Person) -> str:
    """Return why an unfinished request can't be under way any more; empty: it may be."""
    state = moment.state
    if person.begun is None:
        if state in ENDED:
            return f"the region is {state}"
        if state is RegionState.RUNNING and person.asked is None and len(moment.persons) == 1:
            return "the region runs, nothing else is under way, and its checkpoint was not asked for"
        return ""
    if state in ENDED:
        return f"the region is {state}, its reset does not run any more"
    over = person.overtaken
    return "" if over is None else f"the reset of epoch {over} is done, the region goes on without it"
