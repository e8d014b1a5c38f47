"""Members of a first start that come one after the other, and one that never comes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.region.commands import DeclareRegion, StartRegion
from airflow_kcr.protocol.region.rows import RegionState
from airflow_kcr.protocol.region.state import Spec
from airflow_kcr.protocol.values import MemberId
from tests.support.simulation.run import GROUP, NAME, TIMEOUTS, Simulation

SEEDS = range(10)
WAIT = TIMEOUTS.arrival_wait.total_seconds()
SETTLED = 10.0
"""Virtual seconds in which a region that waits for no member runs, and its members have read what there is."""


def begun(seed: int, *arrivals: float) -> Simulation:
    """A region of three members that has started, its members on their way; no fault strikes it."""
    drawn = Simulation(seed).shape
    alone = replace(drawn, groups=(replace(drawn.groups[0], members=3),), records=None, clusters=())
    simulation = Simulation(seed, alone)
    simulation.around.slow = 0.0
    simulation.store.handle(NAME, DeclareRegion(spec=Spec(text="{}", rules=simulation.rules())))
    simulation.store.handle(NAME, StartRegion())
    for index, at in enumerate(arrivals):
        simulation.world.after(at, partial(simulation.launch, MemberId(GROUP, index)))
    for number in range(len(simulation.broker.logs)):
        simulation.broker.produce(number, 20)
    return simulation


def state(simulation: Simulation) -> RegionState:
    """What the region does now."""
    return simulation.region.state


def resets(simulation: Simulation) -> int:
    """How many resets there were, the start among them."""
    return sum(isinstance(e.body, events.ResetBegun) for e in simulation.events())


def batches(simulation: Simulation) -> int:
    """How many batches were started."""
    return len(list(simulation.store.batches(NAME)))


@pytest.mark.parametrize("seed", SEEDS)
def test_members_that_come_one_after_the_other_cost_no_reset(seed: int) -> None:
    simulation = begun(seed, 0.0, 0.4 * WAIT, 0.8 * WAIT)
    simulation.world.run_until(2 * WAIT + SETTLED)
    assert state(simulation) is RegionState.RUNNING
    assert batches(simulation) > 0
    assert resets(simulation) == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_a_start_goes_on_without_a_member_that_never_comes(seed: int) -> None:
    simulation = begun(seed, 0.0, 0.4 * WAIT)
    simulation.world.run_until(0.9 * WAIT)
    assert batches(simulation) == 0
    assert state(simulation) in {RegionState.STARTING, RegionState.RESETTING}
    simulation.world.run_until(2 * WAIT + SETTLED)
    assert state(simulation) is RegionState.RUNNING
    assert batches(simulation) > 0
    assert resets(simulation) == 1
