from __future__ import annotations

import inspect
from dataclasses import is_dataclass
from datetime import UTC, datetime
from typing import get_args

from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.region.events import Body, Event, Stopped
from airflow_kcr.protocol.region.rows import HaltReason
from airflow_kcr.protocol.values import Epoch, EventNumber, Timeline
from tests.support.judging import happened
from tests.support.scripts import running

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def event(body: Body) -> Event:
    return Event(number=EventNumber(1), at=NOON, epoch=Epoch(1), timeline=Timeline(1), body=body)


def test_an_event_is_stored_under_the_name_of_what_happened() -> None:
    assert event(Stopped(drained=True)).kind == "Stopped"
    assert event(events.Halted(reason=HaltReason.FAILURES, text="", choices=())).kind == "Halted"


def test_everything_that_can_happen_can_be_an_event() -> None:
    named = {
        kind
        for _, kind in inspect.getmembers(events, inspect.isclass)
        if kind.__module__ == events.__name__ and is_dataclass(kind) and kind is not Event
    }
    assert set(get_args(Body)) == named


def test_events_are_equal_by_what_they_say() -> None:
    assert event(Stopped(drained=True)) == event(Stopped(drained=True))
    assert event(Stopped(drained=True)) != event(Stopped(drained=False))


def test_every_event_says_in_which_epoch_and_timeline_it_left_the_region() -> None:
    driver = running()
    begun = happened(driver, events.ResetBegun)[0]
    row = next(e for e in driver.events if e.body == begun)
    assert (row.epoch, row.timeline) == (begun.epoch, begun.timeline) == (1, 1)
    assert [e.number for e in driver.events] == list(range(1, driver.region.counter + 1))
