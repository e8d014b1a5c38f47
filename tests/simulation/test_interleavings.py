"""Every order of two members' steps around a rebalance, a reset and a checkpoint, to the last one."""

from __future__ import annotations

import pytest

from airflow_kcr.protocol.region import coverage, liveness, resets
from airflow_kcr.protocol.region.waits import Rule, Wait
from airflow_kcr.protocol.rules import Delivery
from tests.support.simulation.interleavings import Explorer

WAITS = Wait(rule=Rule.RECONCILE, since=None, what="somebody")

SCOPES = [
    pytest.param(("checkpoint",), 2, id="checkpoint"),
    pytest.param(("rebalance",), 2, id="rebalance"),
    pytest.param(
        ("rebalance", "reset", "checkpoint"), 1, id="rebalance, person's reset and checkpoint", marks=pytest.mark.long
    ),
    pytest.param(
        ("rebalance", "forced", "checkpoint"), 1, id="rebalance, forced reset and checkpoint", marks=pytest.mark.long
    ),
    pytest.param(
        ("rebalance", "failure", "checkpoint"), 1, id="rebalance, failing batch and checkpoint", marks=pytest.mark.long
    ),
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("happenings", "records"), SCOPES)
def test_no_order_of_steps_breaks_an_invariant(happenings: tuple[str, ...], records: int) -> None:
    found = Explorer(happenings, records=records).explore()
    assert found.wrong == []
    assert found.ends > 0


@pytest.mark.timeout(300)
@pytest.mark.parametrize("delivery", [Delivery.ALMOST_ONCE, Delivery.AT_MOST_ONCE])
def test_no_order_of_steps_breaks_another_delivery(delivery: Delivery) -> None:
    assert Explorer(("rebalance",), records=1, delivery=delivery).explore().wrong == []


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("reset", ["reset", "forced", "failure"])
def test_no_order_breaks_an_invariant_with_more_records_either(reset: str) -> None:
    assert Explorer(("rebalance", reset, "checkpoint"), records=2).explore(most=5_000_000).wrong == []


def test_the_explorer_sees_a_reset_that_moves_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    explorer = Explorer(("failure",), records=1)
    monkeypatch.setattr(resets, "_placed", lambda region, seek: region)
    assert explorer.explore().wrong != []


def test_the_explorer_sees_a_region_that_never_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    explorer = Explorer(("rebalance",), records=1)
    monkeypatch.setattr(coverage, "busy", lambda *_: iter(("somebody",)))
    assert explorer.explore().wrong != []


@pytest.mark.parametrize("silent", ["_checkpoint", "_reset"])
def test_the_explorer_sees_a_region_that_stands_still_and_says_nothing(
    monkeypatch: pytest.MonkeyPatch, silent: str
) -> None:
    explorer = Explorer(("checkpoint", "forced"), records=1)
    rules = tuple(rule for rule in liveness._RULES if rule.__name__ != silent)
    monkeypatch.setattr(liveness, "_RULES", rules)
    assert "nobody says what it waits for" in explorer.explore().wrong[0]


def test_the_explorer_sees_a_region_that_waits_for_nothing_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    explorer = Explorer(("checkpoint",), records=1)
    monkeypatch.setattr(liveness, "_RULES", (*liveness._RULES, lambda *_: iter((WAITS,))))
    assert "nobody has a step left, and it says" in explorer.explore().wrong[0]
