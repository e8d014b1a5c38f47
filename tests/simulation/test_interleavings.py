"""Every order of two members' steps around a rebalance, a reset and a cut, to the last one."""

from __future__ import annotations

import pytest

from airflow_kcr.protocol.delivery import Delivery
from airflow_kcr.protocol.region import claims, coverage
from tests.support.simulation.interleavings import Explorer

SCOPES = [
    pytest.param(("cut",), 2, id="cut"),
    pytest.param(("rebalance",), 2, id="rebalance"),
    pytest.param(("reset",), 1, id="person's reset"),
    pytest.param(("forced",), 1, id="forced reset"),
    pytest.param(("failure",), 1, id="failing batch"),
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
def test_no_order_of_a_rebalance_a_reset_and_a_cut_breaks_an_invariant(reset: str) -> None:
    assert Explorer(("rebalance", reset, "cut"), records=1).explore(most=5_000_000).wrong == []


def test_the_explorer_sees_a_claim_that_does_not_reset_where_another_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "_is_contested", lambda *_: False)
    assert Explorer(("rebalance",), records=2).explore().wrong != []


def test_the_explorer_sees_a_region_that_goes_on_before_everybody_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coverage, "busy", lambda *_: iter(()))
    assert Explorer(("rebalance",), records=2).explore().wrong != []
