"""Regions in the consumer protocol, where the broker decides: the same faults and invariants, and ownership's own."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from airflow_kcr.protocol.member import drive, duties, messages
from airflow_kcr.protocol.member.state import Driven, MemberMachine
from airflow_kcr.protocol.rules import GroupProtocol
from airflow_kcr.protocol.values import GroupPartition
from tests.support.simulation.deciding_broker import DecidingBroker
from tests.support.simulation.run import Simulation, drawn_in

SEEDS = int(os.environ.get("KCR_SIMULATION_SEEDS", "1000")) // 10
FIRST = int(os.environ.get("KCR_SIMULATION_FIRST_SEED", "0"))
CHUNK = 10
ALWAYS = 10
"""How many of the seeds are run every time, where the others take turns."""


def brokers(simulation: Simulation) -> list[DecidingBroker]:
    return [side.broker for side in simulation.sides if isinstance(side.broker, DecidingBroker)]


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=() if first < FIRST + ALWAYS else pytest.mark.long)
        for first in range(FIRST, FIRST + SEEDS, CHUNK)
    ],
)
def test_every_invariant_holds_under_drawn_faults(first: int) -> None:
    found, moves = [], 0
    for seed in range(first, first + CHUNK):
        simulation = Simulation(seed, drawn_in(seed, GroupProtocol.CONSUMER))
        wrong = simulation.run()
        moves += sum(broker.moves for broker in brokers(simulation))
        if wrong:
            faults = ", ".join(simulation.faults) or "none"
            said = "\n    ".join(wrong[:10])
            again = f"replay: python -m tests.support.simulation.run {seed} {GroupProtocol.CONSUMER}"
            found.append(f"seed {seed}: {simulation.shape}\n  faults: {faults}\n    {said}\n  {again}")
    assert not found, "\n".join(found)
    assert moves, "no partition was ever given back by an owner that lived"


def finds(limit: int) -> bool:
    """Whether one of the first seeds finds something wrong."""
    return any(Simulation(seed, drawn_in(seed, GroupProtocol.CONSUMER)).run() for seed in range(limit))


def test_a_broker_that_does_not_wait_for_the_acknowledgement_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing: Callable[[DecidingBroker], frozenset[GroupPartition]] = lambda self: frozenset()  # noqa: E731
    monkeypatch.setattr(DecidingBroker, "_owned", nothing)
    assert finds(10)


def test_a_member_that_releases_what_a_batch_of_its_reads_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(member: MemberMachine, now: float) -> Driven:
        wanted = (messages.ReleasePartitions(partitions=member.revoking),) if member.revoking else ()
        return member, wanted

    monkeypatch.setattr("airflow_kcr.protocol.member.drive.RULES", _with(at_once))
    assert finds(20)


def _with(rule: Callable[[MemberMachine, float], Driven]) -> tuple[Callable[[MemberMachine, float], Driven], ...]:
    assert duties.release in drive.RULES
    return tuple(rule if one is duties.release else one for one in drive.RULES)
