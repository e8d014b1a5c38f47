"""Regions whose groups are converted to the other protocol while they run, and back: member by member, under faults."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from airflow_kcr.protocol.rules import GroupProtocol
from airflow_kcr.protocol.values import GroupPartition
from tests.support.simulation.converting_broker import ConvertingBroker
from tests.support.simulation.run import Shape, Simulation, drawn_in

SEEDS = int(os.environ.get("KCR_SIMULATION_SEEDS", "1000")) // 50
FIRST = int(os.environ.get("KCR_SIMULATION_FIRST_SEED", "0"))


def converting(seed: int, protocol: GroupProtocol) -> Shape:
    """Draw a region whose groups are converted once or twice, beginning with a protocol."""
    random = Random(f"conversions {seed}")
    there, back = sorted(random.uniform(6.0, 36.0) for _ in range(2))
    return replace(drawn_in(seed, protocol), conversions=(there, back) if random.random() < 0.7 else (there,))


def wrong(seed: int, protocol: GroupProtocol) -> tuple[tuple[str, ...], Simulation]:
    simulation = Simulation(seed, converting(seed, protocol))
    return simulation.run(), simulation


def brokers(simulation: Simulation) -> list[ConvertingBroker]:
    return [side.broker for side in simulation.sides if isinstance(side.broker, ConvertingBroker)]


@pytest.mark.parametrize("protocol", GroupProtocol)
def test_every_invariant_holds_while_groups_are_converted(protocol: GroupProtocol) -> None:
    found, became, mixed = [], Counter[GroupProtocol](), 0
    for seed in range(FIRST, FIRST + SEEDS):
        said, simulation = wrong(seed, protocol)
        for broker in brokers(simulation):
            became.update(broker.conversions)
            mixed += bool(broker.mixed)
        if said:
            faults = ", ".join(simulation.faults)
            found.append(f"seed {seed}: {simulation.shape}\n  faults: {faults}\n  " + "\n  ".join(said[:10]))
    assert not found, "\n".join(found)
    assert became.keys() == set(GroupProtocol), "the group was not converted both ways"
    assert mixed, "no group had members of both protocols"


def test_a_broker_that_gives_out_what_a_classic_member_has_not_given_back_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nothing: Callable[[ConvertingBroker], frozenset[GroupPartition]] = lambda self: frozenset()  # noqa: E731
    monkeypatch.setattr(ConvertingBroker, "_owned", nothing)
    assert any("before consumer" in text for seed in range(10) for text in wrong(seed, GroupProtocol.CLASSIC)[0])
