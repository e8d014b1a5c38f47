"""What the judge of a run excuses: output that died with a process, and nothing that a process kept after it was asked.

With at_most_once a reset never goes back, so what a process holds that no checkpoint can ask is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_kcr.protocol.member import messages
from airflow_kcr.protocol.rules import CheckpointMode, Delivery
from airflow_kcr.protocol.values import MemberId
from tests.support.simulation.host import Host
from tests.support.simulation.run import FAULTS_END, GROUP, LIVENESS, GroupShape, Shape, Simulation

if TYPE_CHECKING:
    import pytest

HOLDING = Shape(
    groups=(GroupShape(members=2, partitions=2, delivery=Delivery.AT_MOST_ONCE, static=False, holds_output=True),),
    period=15,
    mode=CheckpointMode.AUTO,
    catchup=False,
    faults=0,
)
FIRST, SECOND = (MemberId(GROUP, index) for index in range(2))
BETWEEN = 40.0
"""A moment at which processes hold what no checkpoint has yet."""


def holding(simulation: Simulation, member: MemberId) -> Host:
    host = simulation.hosts[member]
    assert host.held
    return host


def test_what_a_process_holds_that_is_frozen_to_the_end_is_as_lost_as_what_a_dead_one_held() -> None:
    simulation = Simulation(1, HOLDING)
    simulation.world.after(BETWEEN, lambda: holding(simulation, SECOND).freeze(FAULTS_END + LIVENESS))
    assert simulation.run() == ()


def test_what_a_process_held_that_is_killed_is_lost_with_it() -> None:
    simulation = Simulation(1, HOLDING)
    simulation.world.after(BETWEEN, lambda: holding(simulation, SECOND).crash())
    assert simulation.run() == ()


def test_what_a_process_kept_that_a_checkpoint_asked_for_is_missing_though_it_dies_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepared = Host._prepared

    def keeping(host: Host, effect: messages.PrepareSinks) -> None:
        kept, host.held = host.held, []
        prepared(host, effect)
        host.held = kept

    monkeypatch.setattr(Host, "_prepared", keeping)
    simulation = Simulation(1, HOLDING)

    def from_now_on_processes_hand_over() -> None:
        monkeypatch.setattr(Host, "_prepared", prepared)
        for member in (FIRST, SECOND):
            holding(simulation, member).crash()

    simulation.world.after(BETWEEN, from_now_on_processes_hand_over)
    (text,) = simulation.run()
    assert "missing and not explained: g:t-0@0, g:t-0@1," in text
