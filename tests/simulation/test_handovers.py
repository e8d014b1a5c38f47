"""Members that leave in good order and come back, at every moment: no reset, nothing lost, nothing twice."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random

import pytest

from airflow_kcr.protocol.region import claims, events, rows
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.rules import Delivery, GroupProtocol
from airflow_kcr.protocol.values import GroupPartition
from tests.support.simulation.faults import reset
from tests.support.simulation.handovers import During
from tests.support.simulation.judge import handovers
from tests.support.simulation.run import FAULTS_END, NAME, Shape, Simulation, drawn_in

SEEDS = int(os.environ.get("KCR_SIMULATION_SEEDS", "1000")) // 50
FIRST = int(os.environ.get("KCR_SIMULATION_FIRST_SEED", "0"))

LOOK = 0.1
"""Seconds between two looks for the moment at which a member ends."""

PAUSE = 4.0
"""Seconds between two ends."""


def _phase(region: Region) -> rows.CheckpointState | None:
    return None if region.checkpoint is None else region.checkpoint.state


MOMENTS: dict[str, Callable[[Region], bool]] = {
    "runs": lambda region: region.state is rows.RegionState.RUNNING and region.checkpoint is None,
    "approaches": lambda region: _phase(region) is rows.CheckpointState.APPROACHING,
    "drains": lambda region: _phase(region) is rows.CheckpointState.DRAINING,
    "drains for a person's reset": lambda region: (
        region.checkpoint is not None and region.checkpoint.purpose is rows.CheckpointPurpose.RESET
    ),
    "resets": lambda region: region.state in rows.RESET_STATES,
}


def peaceful(seed: int, protocol: GroupProtocol, *, holds_output: bool = False) -> Shape:
    """Draw a region in which nothing but comings and goings happens, and persons' resets."""
    shape = drawn_in(seed, protocol)
    groups = tuple(
        replace(
            one,
            members=max(one.members, 2),
            partitions=max(one.partitions, 3),
            delivery=Delivery.AT_LEAST_ONCE if holds_output else one.delivery,
            holds_output=holds_output,
        )
        for one in shape.groups
    )
    return replace(shape, groups=groups, faults=0, specs=(), clusters=(), loses_at=0.0, finds_at=0.0, idle=(0.0, 0.0))


class Moves:
    """Ends one process after the other in good order, each at a moment that is drawn, and has it come back.

    Args:
        simulation: the run, not started yet.
    """

    def __init__(self, simulation: Simulation) -> None:
        self._simulation, self._random = simulation, Random(f"moves {simulation.world.seed}")
        self._moment = "runs"
        self.at: Counter[str] = Counter()
        for side in simulation.sides:
            side.slow = 0.0
        for at in (15.0, 30.0):
            simulation.world.after(at, partial(reset, simulation))
        simulation.world.after(12.0, self._look)

    def _look(self) -> None:
        simulation = self._simulation
        if simulation.world.now > FAULTS_END - 2:
            return
        region = simulation.store.read(NAME)[0]
        host = simulation.hosts.get(self._random.choice(simulation.members))
        if host is None or not MOMENTS[self._moment](region):
            simulation.world.after(LOOK, self._look)
            return
        self.at[self._moment] += 1
        host.terminate()
        self._moment = self._random.choice(list(MOMENTS))
        simulation.world.after(PAUSE, self._look)


def wrong(seed: int, protocol: GroupProtocol, *, holds_output: bool = False) -> tuple[tuple[str, ...], Simulation]:
    simulation = Simulation(seed, peaceful(seed, protocol, holds_output=holds_output))
    Moves(simulation)
    return simulation.run(), simulation


def causes(simulation: Simulation) -> Counter[rows.ResetCause]:
    return Counter(e.body.cause for e in simulation.events() if isinstance(e.body, events.ResetBegun))


@pytest.mark.long
@pytest.mark.parametrize("protocol", GroupProtocol)
def test_members_that_leave_in_good_order_and_come_back_cost_no_reset(protocol: GroupProtocol) -> None:
    found, seen = [], Counter[During]()
    for seed in range(FIRST, FIRST + SEEDS):
        said, simulation = wrong(seed, protocol)
        resets = causes(simulation).keys() - {rows.ResetCause.START, rows.ResetCause.PERSON}
        if said or resets:
            found.append(f"seed {seed}: {sorted(resets)} {said[:5]}")
        seen.update(one.during for one in handovers(simulation).found)
    assert not found, "\n".join(found)
    # A person's reset drains for a moment only, which few of the runs meet.
    assert {During.RUNNING, During.APPROACH, During.DRAIN} <= seen.keys()


@pytest.mark.parametrize(
    "protocol", [pytest.param(GroupProtocol.CLASSIC, marks=pytest.mark.long), GroupProtocol.CONSUMER]
)
def test_where_sinks_hold_output_they_cost_resets_and_nothing_is_lost(protocol: GroupProtocol) -> None:
    found, resets = [], Counter[rows.ResetCause]()
    for seed in range(FIRST, FIRST + SEEDS // 2):
        said, simulation = wrong(seed, protocol, holds_output=True)
        resets += causes(simulation)
        if said:
            found.append(f"seed {seed}: {said[:5]}")
    assert not found, "\n".join(found)
    assert resets[rows.ResetCause.CLAIM]


# -- what the runs notice ---------------------------------------------------------------------------------------------


def unsettled_by(monkeypatch: pytest.MonkeyPatch, rule: Callable[[Region, GroupPartition, rows.Claim], bool]) -> None:
    monkeypatch.setattr(Region, "is_unsettled", rule)


def test_output_that_only_the_owner_before_has_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    unsettled_by(monkeypatch, lambda region, partition, claim: claim.is_in_flight)
    lost = (text for seed in range(10) for text in wrong(seed, GroupProtocol.CLASSIC, holds_output=True)[0])
    assert any("missing" in text for text in lost)


def test_a_partition_that_goes_on_at_its_resume_point_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    granted = claims._granted

    def at_the_resume_point(region: Region, partition: GroupPartition, proposal: object) -> object:
        row, new = region.claims[partition], granted(region, partition, proposal)  # type: ignore[arg-type]
        return new if claims._is_own(row, proposal, region.epoch) else new.at(row.resume)  # type: ignore[arg-type]

    monkeypatch.setattr(claims, "_granted", at_the_resume_point)
    assert any("R8" in text for seed in range(5) for text in wrong(seed, GroupProtocol.CLASSIC)[0])


def test_a_claim_that_resets_where_nothing_runs_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    unsettled_by(monkeypatch, lambda region, partition, claim: claim.is_started)
    assert any("handover" in text for seed in range(5) for text in wrong(seed, GroupProtocol.CLASSIC)[0])
