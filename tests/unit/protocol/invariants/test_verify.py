from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_kcr.protocol.invariants.history import History
from airflow_kcr.protocol.invariants.proof import CHECKS
from airflow_kcr.protocol.rules import Delivery
from airflow_kcr.protocol.values import EventNumber
from tests.support.verifying import verify
from tests.unit.protocol.invariants.stories import crash_between, recorded, two_checkpoints


@pytest.mark.parametrize("delivery", list(Delivery))
def test_what_really_happened_violates_nothing(delivery: Delivery) -> None:
    recorded(two_checkpoints(delivery))
    recorded(crash_between(delivery))


def test_no_history_violates_nothing() -> None:
    assert verify(History((), ())) == ()


def test_every_invariant_that_a_history_can_prove_has_its_check() -> None:
    stated = [str(check.__doc__).split(" ", maxsplit=1)[0] for check in CHECKS]
    assert stated == ["R1a", *(f"R{n}" for n in range(2, 14)), "R15"]
    assert all("can't see" in str(check.__doc__) for check in CHECKS)


def test_batches_begun_after_the_last_event_are_not_judged() -> None:
    history = recorded(two_checkpoints())
    later = EventNumber(history.events[-1].number + 1)
    later_ones = [replace(b, started_after=later, finished_after=None, outcome=None) for b in history.batches]
    assert verify(History(history.events, [*history.batches, *later_ones])) == ()
