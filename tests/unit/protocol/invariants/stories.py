"""Histories that really happened, and ways to falsify them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_kcr.protocol.invariants.history import History, Violation
from airflow_kcr.protocol.region.events import Body, Event
from airflow_kcr.protocol.region.rows import Batch
from airflow_kcr.protocol.rules import Delivery
from airflow_kcr.protocol.targets import ToCheckpoint
from airflow_kcr.protocol.values import BatchId, EventNumber, GroupPartition, Offset, Range
from tests.support.driver import Driver
from tests.support.verifying import verify

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

B = TypeVar("B")
T = TypeVar("T", bound="DataclassInstance")


def recorded(driver: Driver) -> History:
    """Return what happened, having made sure that it is sound."""
    history = History(driver.events, driver.batches)
    assert verify(history) == ()
    return history


def two_checkpoints(delivery: Delivery = Delivery.AT_LEAST_ONCE) -> Driver:
    """Two complete checkpoints, with a batch of each of two members before each."""
    driver = Driver(partitions=4, members=2, delivery=delivery)
    driver.up()
    driver.process()
    driver.checkpoint("first")
    driver.process()
    driver.checkpoint("second")
    return driver


def crash_between(delivery: Delivery = Delivery.AT_LEAST_ONCE) -> Driver:
    """As `two_checkpoints`; after the first, one member crashes in a batch and all is recovered by a reset."""
    driver = Driver(partitions=4, members=2, delivery=delivery)
    driver.up()
    driver.process()
    driver.checkpoint("first")
    driver.process()
    driver.start_batch(driver.member(1))
    driver.crash(driver.member(1))
    driver.recover()
    driver.process()
    driver.checkpoint("second")
    return driver


def rewound() -> Driver:
    """As `two_checkpoints`; then a person goes back to the first checkpoint, and a further one follows."""
    driver = two_checkpoints()
    driver.process()
    driver.reset(ToCheckpoint(sequence=min(driver.region.offsets)), request_id="back")
    driver.complete()
    driver.finish_reset()
    driver.process()
    driver.checkpoint("third")
    return driver


def numbers(history: History, kind: type[Any]) -> list[EventNumber]:
    """Return the numbers of the events of one kind."""
    return [e.number for e in history.events if isinstance(e.body, kind)]


def body(history: History, number: EventNumber, kind: type[B]) -> B:
    """Return the body of one event."""
    found = next(e.body for e in history.events if e.number == number)
    assert isinstance(found, kind)
    return found


def altered(history: History, number: EventNumber, **changes: object) -> History:
    """Return the history with one event's body changed."""
    events = [replace(e, body=_changed(e.body, changes)) if e.number == number else e for e in history.events]
    return History(events, history.batches)


def replaced(history: History, number: EventNumber, instead: Body) -> History:
    """Return the history with something else in the place of one event."""
    return History([replace(e, body=instead) if e.number == number else e for e in history.events], history.batches)


def _changed(row: T, changes: Mapping[str, object]) -> T:
    values = {f.name: getattr(row, f.name) for f in fields(row)}
    return type(row)(**{**values, **changes})


def dropped(history: History, *gone: EventNumber) -> History:
    """Return the history without some events."""
    return History([e for e in history.events if e.number not in gone], history.batches)


def appended(history: History, *bodies: Body) -> History:
    """Return the history with more events at its end."""
    events: list[Event] = list(history.events)
    for more in bodies:
        events.append(replace(events[-1], number=EventNumber(events[-1].number + 1), body=more))
    return History(events, history.batches)


def batch(history: History, place: int) -> Batch:
    """Return a batch by its place in the ledger."""
    return history.batches[place]


def altered_batch(history: History, place: int, **changes: object) -> History:
    """Return the history with one row of the ledger changed."""
    batches = list(history.batches)
    batches[place] = _changed(batches[place], changes)
    return History(history.events, batches)


def without_batch(history: History, place: int) -> History:
    """Return the history with one row of the ledger gone."""
    return History(history.events, [b for i, b in enumerate(history.batches) if i != place])


def with_copy(history: History, place: int, **changes: object) -> History:
    """Return the history with one row of the ledger in it twice, under another id."""
    copy = _changed(history.batches[place], {"batch": BatchId("copy"), **changes})
    return History(history.events, [*history.batches, copy])


def shifted(ranges: Mapping[GroupPartition, Range], by: int) -> dict[GroupPartition, Range]:
    """Return ranges moved by some offsets."""
    return {p: Range(Offset(r.from_ + by), Offset(r.to + by)) for p, r in ranges.items()}


def reported(history: History) -> set[str]:
    """Return the invariants that report something."""
    return {v.invariant for v in verify(history)}


def found(history: History, invariant: str) -> tuple[Violation, ...]:
    """Return the violations of one invariant, of which there must be some, each naming events that are there."""
    violations = tuple(v for v in verify(history) if v.invariant == invariant)
    assert violations, f"{invariant} does not notice; found {[v.invariant for v in verify(history)]}"
    for violation in violations:
        assert violation.events
        assert all(1 <= n <= history.events[-1].number for n in violation.events)
        assert violation.detail
    return violations
