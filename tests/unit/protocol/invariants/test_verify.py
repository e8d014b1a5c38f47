from __future__ import annotations

import json
from dataclasses import replace

import pytest

from airflow_kcr.protocol.delivery import Delivery
from airflow_kcr.protocol.invariants import History, report, verify
from airflow_kcr.protocol.invariants.verify import CHECKS
from airflow_kcr.protocol.values import EventNumber, RegionName
from tests.unit.protocol.invariants.stories import crash_between, recorded, two_checkpoints, without_batch


@pytest.mark.parametrize("delivery", list(Delivery))
def test_what_really_happened_violates_nothing(delivery: Delivery) -> None:
    recorded(two_checkpoints(delivery))
    recorded(crash_between(delivery))


def test_no_history_violates_nothing() -> None:
    assert verify(History((), ())) == ()


def test_the_report_is_the_json_of_the_interface() -> None:
    history = without_batch(recorded(two_checkpoints()), 0)
    found = json.loads(
        json.dumps(report(RegionName("flights"), len(history.events), len(history.batches), verify(history)))
    )
    assert found["region"] == "flights"
    assert found["checked_events"] == len(history.events)
    assert set(found["violations"][0]) == {"invariant", "detail", "events"}
    assert found["violations"][0]["events"] == sorted(found["violations"][0]["events"])


def test_every_invariant_that_a_history_can_prove_has_its_check() -> None:
    stated = [str(check.__doc__).split(" ", maxsplit=1)[0] for check in CHECKS]
    assert stated == ["R1a", *(f"R{n}" for n in range(2, 14))]
    assert all("can't see" in str(check.__doc__) for check in CHECKS)


def test_batches_begun_after_the_last_event_are_not_judged() -> None:
    history = recorded(two_checkpoints())
    later = EventNumber(history.events[-1].number + 1)
    later_ones = [replace(b, begun_after=later, ended_after=None, outcome=None) for b in history.batches]
    assert verify(History(history.events, [*history.batches, *later_ones])) == ()
