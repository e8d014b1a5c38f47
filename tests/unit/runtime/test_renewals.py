from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from airflow_kcr import errors
from airflow_kcr.ports import Heartbeats, Renewal
from airflow_kcr.protocol.member import messages
from airflow_kcr.protocol.region.commands import Heartbeat, Renew
from airflow_kcr.protocol.values import Epoch, EventNumber, GroupId, Incarnation, MemberId, RegionName
from airflow_kcr.runtime.leases import LeaseCalls, Renewals, StoreClock, boot_time
from tests.support.memory import MemoryTransactions
from tests.support.runtime_fakes import NOON, eventually

SILENCE = timedelta(seconds=30)


def heartbeat(renewal: Renewal) -> Heartbeat:
    return Heartbeat(
        now=NOON,
        counter=EventNumber(1),
        epoch=Epoch(1),
        incarnation=renewal.command.incarnation,
        renewed=True,
        reconcile_at=None,
        is_other_history=False,
    )


def renewal(index: int, region: str = "flights") -> Renewal:
    return Renewal(
        region=RegionName(region),
        command=Renew(member=MemberId(GroupId("g"), index), incarnation=Incarnation(1), lease=timedelta(seconds=10)),
    )


class Answering(MemoryTransactions):
    """A store of which only the renewals are asked; each call is recorded, and answered as `says` has it."""

    def __init__(self) -> None:
        super().__init__(lambda: NOON)
        self.asked: list[frozenset[Renewal]] = []
        self.failures: list[BaseException] = []
        """Raised by the next calls, one each."""

        self.says: Callable[[Renewal], Heartbeat | errors.RefusedError | None] = heartbeat
        self.gate = threading.Event()
        self.gate.set()

    def renew(self, renewals: Collection[Renewal]) -> Heartbeats:
        self.asked.append(frozenset(renewals))
        self.gate.wait(20)
        if self.failures:
            raise self.failures.pop(0)
        return {one: answer for one in renewals if (answer := self.says(one)) is not None}


@dataclass
class Asker:
    """One member, and what it heard."""

    renewal: Renewal
    calls: LeaseCalls
    heard: list[str] = field(default_factory=list)
    failed: list[BaseException] = field(default_factory=list)

    def ask(self) -> None:
        one = self.renewal
        self.calls.ask(one.region, one.command)

    def news(self) -> list[str]:
        """What it heard, repeated losses told once."""
        return [one for i, one in enumerate(self.heard) if one != "StoreLost" or i == 0 or self.heard[i - 1] != one]


class Office:
    """Members that renew together."""

    def __init__(self) -> None:
        self.store = Answering()
        self.renewals = Renewals(self.store, boot_time)

    def member(self, index: int, region: str = "flights", silence: timedelta = SILENCE) -> Asker:
        heard, failed = list[str](), list[BaseException]()

        def deliver(event: messages.Event) -> None:
            match event:
                case messages.Answered(result=told) | messages.Refused(error=told):
                    heard.append(type(told).__name__)
                case _:
                    heard.append(getattr(event, "name", type(event).__name__))

        calls = self.renewals.member(deliver, failed.append, StoreClock(boot_time, NOON), silence)
        return Asker(renewal(index, region), calls, heard, failed)


@pytest.fixture
def office() -> Iterator[Office]:
    office = Office()
    yield office
    office.store.gate.set()
    office.renewals.end()


def answered(*members: Asker, times: int = 1) -> None:
    eventually(lambda: all(one.heard.count("Heartbeat") >= times for one in members), f"{times} answers each")


def test_members_of_any_regions_that_ask_together_are_one_request(office: Office) -> None:
    members = [office.member(index, region) for index in range(3) for region in ("flights", "trains")]
    for _ in range(2):
        for one in members:
            one.ask()
        answered(*members, times=len(office.store.asked) + 1)
    assert office.store.asked == [frozenset(one.renewal for one in members)] * 2


def test_only_who_asks_is_renewed(office: Office) -> None:
    # The loop of the other one may hang: its lease has to end.
    asks, hangs = office.member(0), office.member(1)
    asks.ask()
    hangs.ask()
    answered(asks, hangs)
    asks.ask()
    answered(asks, times=2)
    assert office.store.asked[1] == {asks.renewal}


def test_one_that_is_refused_harms_no_other(office: Office) -> None:
    good, bad = office.member(0), office.member(1)
    office.store.says = lambda one: errors.UnknownMember("gone") if one == bad.renewal else heartbeat(one)
    good.ask()
    bad.ask()
    eventually(lambda: bool(good.heard and bad.heard), "both answers")
    assert (good.heard, bad.heard) == (["Heartbeat"], ["UnknownMember"])


def test_one_whose_lease_is_being_written_is_asked_for_again_and_keeps_nobody_waiting(office: Office) -> None:
    free, written = office.member(0), office.member(1)
    office.store.says = lambda one: None if one == written.renewal else heartbeat(one)
    free.ask()
    written.ask()
    answered(free)
    eventually(lambda: {written.renewal} in office.store.asked, "the other one alone")
    assert written.heard == []
    office.store.says = heartbeat
    answered(written)
    assert "StoreLost" not in written.heard


@pytest.mark.parametrize("error", [errors.StoreUnavailable("away"), errors.StoreBusy("locked")])
def test_an_outage_is_told_to_everybody_who_asked_and_so_is_its_end(office: Office, error: errors.KcrError) -> None:
    members = [office.member(0), office.member(1)]
    office.store.failures += [error, error]
    for one in members:
        one.ask()
    answered(*members)
    assert [one.news() for one in members] == [["StoreLost", "STORE_BACK", "Heartbeat"]] * 2
    for one in members:
        one.ask()
    answered(*members, times=2)
    assert [one.news() for one in members] == [["StoreLost", "STORE_BACK", "Heartbeat", "Heartbeat"]] * 2


def test_who_asks_during_an_outage_is_asked_for_with_the_others(office: Office) -> None:
    first, second = office.member(0), office.member(1)
    office.store.failures += [errors.StoreUnavailable("away")] * 50
    first.ask()
    eventually(lambda: "StoreLost" in first.heard, "the outage")
    second.ask()
    eventually(lambda: office.store.asked[-1] == {first.renewal, second.renewal}, "both in one request")
    office.store.failures.clear()
    answered(first, second)


def test_a_store_that_says_nothing_is_noticed_by_everybody_who_waits(office: Office) -> None:
    waits, idle = office.member(0, silence=timedelta(0)), office.member(1, silence=timedelta(0))
    office.store.gate.clear()
    waits.ask()
    eventually(waits.calls.is_silent, "silence")
    assert not idle.calls.is_silent()
    office.store.gate.set()
    answered(waits)
    assert not waits.calls.is_silent()


def test_who_has_ended_hears_nothing_and_is_not_renewed(office: Office) -> None:
    gone, there = office.member(0), office.member(1)
    office.store.failures += [errors.StoreUnavailable("away")]
    gone.ask()
    there.ask()
    eventually(lambda: "StoreLost" in gone.heard, "the outage")
    gone.calls.end()
    answered(there)
    assert office.store.asked[-1] == {there.renewal}
    assert gone.news() == ["StoreLost"]


@pytest.mark.parametrize(
    "error", [errors.SchemaMissing("no"), errors.SchemaTooOld("old"), errors.SchemaTooNew("new"), ZeroDivisionError()]
)
def test_what_can_not_be_answered_ends_every_member_that_asked(office: Office, error: BaseException) -> None:
    members = [office.member(0), office.member(1)]
    office.store.failures.append(error)
    for one in members:
        one.ask()
    eventually(lambda: all(one.failed for one in members), "the fault")
    assert [one.failed for one in members] == [[error]] * 2


def test_it_ends_while_somebody_still_waits_for_an_answer(office: Office) -> None:
    office.store.says = lambda _: None
    office.member(0).ask()
    eventually(lambda: len(office.store.asked) >= 2, "an attempt")
    office.renewals.end()
    eventually(lambda: not office.renewals._thread.is_alive(), "its end")
