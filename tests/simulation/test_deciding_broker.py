"""Regions in the consumer protocol, where the broker decides: the same faults and invariants, and ownership's own."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from airflow_kcr.protocol.member import drive, duties, messages
from airflow_kcr.protocol.member.state import Driven, MemberMachine
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.rules import GroupProtocol
from airflow_kcr.protocol.values import GroupId, GroupPartition, Offset
from tests.support.simulation.broker import HEARTBEAT, Consumer, NotInGroup, Unavailable
from tests.support.simulation.deciding_broker import DecidingBroker
from tests.support.simulation.run import Simulation, drawn_in
from tests.support.simulation.world import World

SEEDS = int(os.environ.get("KCR_SIMULATION_SEEDS", "1000")) // 10
FIRST = int(os.environ.get("KCR_SIMULATION_FIRST_SEED", "0"))
CHUNK = 20


def brokers(simulation: Simulation) -> list[DecidingBroker]:
    return [side.broker for side in simulation.sides if isinstance(side.broker, DecidingBroker)]


@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, CHUNK))
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


# -- the broker alone -------------------------------------------------------------------------------------------------


@dataclass
class Client:
    """A consumer that heartbeats until it is stopped, and acknowledges when the test says so."""

    broker: DecidingBroker
    static_id: str | None = None
    protocol: GroupProtocol = GroupProtocol.CONSUMER
    told: list[tuple[str, set[int]]] = field(default_factory=list)
    alive: bool = True

    def __post_init__(self) -> None:
        self.number = self.broker.new_number()
        self.broker.join(
            Consumer(
                number=self.number,
                static_id=self.static_id,
                hear=self._hear,
                protocol=self.protocol,
                drains=True,
                polls=lambda: self.alive,
            )
        )
        self._beat()

    def _hear(self, what: str, held: frozenset[GroupPartition]) -> None:
        self.told.append((what, {p.partition for p in held}))

    def _beat(self) -> None:
        if self.alive:
            self.broker.poll(self.number)
            self.broker.world.after(HEARTBEAT, self._beat)

    @property
    def owns(self) -> set[int]:
        return next((held for what, held in reversed(self.told) if what == "assigned"), set())

    @property
    def gives_back(self) -> set[int]:
        what, held = self.told[-1] if self.told else ("", set())
        return held if what == "revoking" else set()

    def acknowledge(self) -> None:
        self.broker.acknowledge(self.number, frozenset(self.broker.partition(n) for n in self.gives_back))

    def commit(self, *numbers: int) -> None:
        self.broker.commit(self.number, OffsetMap({self.broker.partition(n): Offset(1) for n in numbers}))


def broker(seed: int = 1) -> DecidingBroker:
    return DecidingBroker(World(seed), GroupId("g"), 4, 8.0)


def passes(broker: DecidingBroker, seconds: float) -> None:
    broker.world.run_until(broker.world.now + seconds)


def test_a_newcomer_gets_only_what_the_owner_has_acknowledged_and_the_rest_stays_where_it_is() -> None:
    here = broker()
    first = Client(here)
    passes(here, 3)
    assert first.owns == {0, 1, 2, 3}
    second = Client(here)
    passes(here, 5)
    taken = first.gives_back
    assert (len(taken), second.owns) == (2, set())
    first.commit(*taken)
    first.acknowledge()
    passes(here, 2)
    assert (first.owns, second.owns) == ({0, 1, 2, 3} - taken, taken)
    assert here.ownership.wrong == []
    assert here.moves == 2


def test_a_member_that_does_not_acknowledge_in_time_is_thrown_out_and_may_not_commit() -> None:
    here = broker()
    first = Client(here)
    passes(here, 3)
    second = Client(here)
    passes(here, 55)
    assert second.owns == set()
    passes(here, 15)
    assert second.owns == {0, 1, 2, 3}
    with pytest.raises(NotInGroup):
        first.commit(0)


def test_the_partitions_of_one_that_dies_move_when_its_session_is_over() -> None:
    here = broker()
    first, second = Client(here), Client(here)
    passes(here, 3)
    first.alive = False
    passes(here, 7)
    assert len(second.owns) == 2
    passes(here, 4)
    assert second.owns == {0, 1, 2, 3}
    assert here.ownership.wrong == []


def test_the_successor_of_a_static_member_that_died_is_refused_until_its_session_is_over() -> None:
    here = broker()
    first = Client(here, "one")
    passes(here, 3)
    first.alive = False
    second = Client(here, "one")
    passes(here, 6)
    assert (here.knows(second.number), second.number in here.consumers, second.owns) == (True, False, set())
    passes(here, 6)
    assert second.owns == {0, 1, 2, 3}


def test_the_successor_of_a_static_member_that_closed_takes_its_place_over_without_a_rebalance() -> None:
    here = broker()
    first, other = Client(here, "one"), Client(here, "two")
    passes(here, 3)
    held, before = first.owns, here.rebalances
    here.leave(first.number)
    first.alive = False
    passes(here, 2)
    assert held & other.owns == set()
    second = Client(here, "one")
    passes(here, 2)
    assert (second.owns, here.rebalances) == (held, before)
    with pytest.raises(NotInGroup):
        first.commit(*held)
    second.commit(*held)
    assert here.ownership.wrong == []


def test_a_partition_that_is_added_is_given_without_taking_any() -> None:
    here = broker()
    first = Client(here)
    passes(here, 3)
    here.add_partition()
    passes(here, 2)
    assert [what for what, _ in first.told] == ["assigned"] * len(first.told)
    assert first.owns == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("accepts", [False, True])
def test_a_commit_of_an_old_epoch_is_refused_or_judged_by_partition(accepts: bool) -> None:
    here = broker()
    here.accepts_older_epochs = accepts
    first = Client(here)
    passes(here, 3)
    kept = min(first.owns)
    here._known[first.number] = here.consumers[first.number].generation - 1
    with pytest.raises(Unavailable):
        first.commit(kept)
    here.consumers[first.number].generation += 1
    here._known[first.number] += 1
    if accepts:
        first.commit(kept)
    else:
        with pytest.raises(Unavailable):
            first.commit(kept)
    assert (here.partition(kept) in here.committed) is accepts


def test_one_that_is_given_nothing_is_told_so() -> None:
    here = broker()
    clients = [Client(here) for _ in range(5)]
    passes(here, 6)
    assert sorted(len(client.owns) for client in clients) == [0, 1, 1, 1, 1]
    assert all(client.told for client in clients)
