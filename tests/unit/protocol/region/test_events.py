from __future__ import annotations

import inspect
from dataclasses import is_dataclass
from datetime import UTC, datetime

from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.region.events import BODIES, Event
from tests.support.judging import happened
from tests.support.scripts import running

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_everything_that_can_happen_can_be_an_event() -> None:
    named = {
        kind
        for _, kind in inspect.getmembers(events, inspect.isclass)
        if kind.__module__ == events.__name__ and is_dataclass(kind) and kind not in {Event, events.Body}
    }
    assert set(BODIES.values()) == named


def test_every_event_says_in_which_epoch_and_timeline_it_left_the_region() -> None:
    driver = running()
    begun = happened(driver, events.ResetBegun)[0]
    row = next(e for e in driver.events if e.body == begun)
    assert (row.epoch, row.timeline) == (begun.epoch, begun.timeline) == (1, 1)
    assert [e.number for e in driver.events] == list(range(1, driver.region.counter + 1))
