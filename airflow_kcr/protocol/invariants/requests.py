"""R7: whoever asks for a reset gets one or is told why not, and every epoch has a cause."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from airflow_kcr.protocol.invariants.history import Index, PersonRequest, Violation
from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.region.events import Event
from airflow_kcr.protocol.region.rows import CutPurpose, RegionState
from airflow_kcr.protocol.values import Epoch, EventNumber, Nonce

ENDED = frozenset({RegionState.HALTED, RegionState.STOPPED})


def answered(index: Index) -> Iterator[Violation]:
    """R7 (V) automatic requests are followed by an epoch above, persons' requests end, every epoch names its cause.

    An automatic request of the region's epoch is followed by a greater one before anything is begun in its own, or by
    a halt, a stop or a kill; one of an older epoch is answered already, and so is one made while the region is halted
    or stopped. A person's request is done, failed or still under way: waiting behind another, draining, or with its
    reset running. Each epoch is begun by a reset or a kill and is the next number; only a restored store may jump.
    A person's reset has been accepted before it begins, and it leaves every partition that it was not accepted for
    where that was.

    It can't see requests that never reached the store, nor how long something took (R14).
    """
    yield from _automatic(index)
    yield from _persons(index)
    yield from _causes(index)
    yield from _scoped(index)


def _automatic(index: Index) -> Iterator[Violation]:
    later = sorted(
        (e.number, e.body.epoch if isinstance(e.body, events.ResetBegun | events.Killed) else None)
        for e in index.history.events
        if isinstance(e.body, events.ResetBegun | events.Killed | events.Halted | events.Stopped)
    )
    numbers = [n for n, _ in later]
    begins = sorted(b.begun_after for b in index.history.batches)
    for event in index.history.events:
        body, number = event.body, event.number
        if not isinstance(body, events.ResetRequested):
            continue
        if body.epoch < index.epochs.at(number) or index.states.at(number) in ENDED:
            continue
        detail = f"{body.member} asked for a reset ({body.cause}) in epoch {body.epoch}"
        found = bisect_right(numbers, number)
        if found == len(later):
            yield Violation("R7", f"{detail}, nothing followed", (number,))
            continue
        answer, epoch = later[found]
        if epoch is not None and epoch <= body.epoch:
            yield Violation("R7", f"{detail}, followed by epoch {epoch}", (number, answer))
        between = bisect_right(begins, number - 1)
        if between < len(begins) and begins[between] < answer:
            yield Violation("R7", f"{detail}, a batch began before anything followed", (number, begins[between]))


def _persons(index: Index) -> Iterator[Violation]:
    active = [n for n, person in index.persons.items() if person.ended is None]
    cut_ended = {e.body.nonce: e.number for e in index.history.events if isinstance(e.body, events.CutRequestEnded)}
    for nonce in active:
        person = index.persons[nonce]
        why = _abandoned(index, person, alone=len(active) == 1)
        if not why and person.begun is None and (person.asked or person.number) < cut_ended.get(nonce, 0):
            why = "the request of its cut has ended"
        if why:
            yield Violation("R7", f"reset {nonce} was accepted and neither done nor failed: {why}", (person.number,))
    for number, nonce in _own_cuts(index):
        follows = next((e for e in index.following(number) if _settles(e, nonce)), None)
        if follows is None:
            detail = f"the cut of reset {nonce} is complete, neither the reset nor its failure follows"
            yield Violation("R7", detail, (number,))


def _abandoned(index: Index, person: PersonRequest, *, alone: bool) -> str:
    """Return why an unfinished request can't be under way any more; empty: it may be."""
    state = index.states.last
    if person.begun is None:
        if state in ENDED:
            return f"the region is {state}"
        if state is RegionState.RUNNING and person.asked is None and alone:
            return "the region runs, nothing else is under way, and its cut was not asked for"
        return ""
    if state in ENDED:
        return f"the region is {state}, its reset does not run any more"
    finished = next((e for e, a in sorted(index.attempts.items()) if e >= person.begun and a.done is not None), None)
    return "" if finished is None else f"the reset of epoch {finished} is done, the region goes on without it"


def _own_cuts(index: Index) -> Iterator[tuple[EventNumber, Nonce]]:
    for cut in index.cuts.values():
        if cut.opened.purpose is CutPurpose.RESET and cut.completed is not None:
            yield cut.completed[0], cut.opened.nonce


def _settles(event: Event, nonce: Nonce) -> bool:
    match event.body:
        case events.ResetBegun(person=person):
            return person == nonce
        case events.PersonResetFailed(nonce=failed):
            return failed == nonce
        case _:
            return False


def _causes(index: Index) -> Iterator[Violation]:
    epoch, since = Epoch(0), EventNumber(0)
    for place, event in enumerate(index.history.events):
        body, number = event.body, event.number
        match body:
            case events.ResetBegun(epoch=begun) | events.Killed(epoch=begun):
                if begun != epoch + 1:
                    yield Violation("R7", f"epoch {begun} follows epoch {epoch}", (since, number))
                epoch, since = begun, number
            case events.StoreRestoredSeen():
                if event.epoch < epoch:
                    yield Violation("R7", f"epoch {event.epoch} follows epoch {epoch}", (since, number))
                epoch, since = event.epoch, number
            case _ if event.epoch != epoch and not _is_prelude(index, place):
                yield Violation("R7", f"epoch {event.epoch} of {event.kind} has no cause", (since, number))
                epoch, since = event.epoch, number
            case _:
                pass
        if isinstance(body, events.ResetBegun) and body.person is not None:
            person = index.persons.get(body.person)
            if person is None or person.number > number:
                yield Violation("R7", f"reset {body.person} begins, it was never accepted", (number,))


def _scoped(index: Index) -> Iterator[Violation]:
    for attempt in index.attempts.values():
        person = None if attempt.begun.person is None else index.persons.get(attempt.begun.person)
        if person is None or not attempt.opens:
            continue
        for partition, entry in attempt.begun.seek.items():
            if partition in person.scope or entry.current is None or entry.offset == entry.current:
                continue
            where = "a place of its own" if entry.offset is None else entry.offset
            detail = f"{partition}: reset {attempt.begun.person} was not accepted for it and moves it to {where}"
            yield Violation("R7", f"{detail}, it was at {entry.current}", (person.number, attempt.number))


def _is_prelude(index: Index, place: int) -> bool:
    """Whether an event is part of a reset whose `ResetBegun` comes next: its epoch is already the new one."""
    for event in index.history.events[place : place + 5]:
        if isinstance(event.body, events.ResetBegun):
            return event.epoch == index.history.events[place].epoch
        if not isinstance(event.body, events.NextBoundChanged):
            return False
    return False
