from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from datetime import timedelta
from typing import TypeVar, cast

import pytest

from airflow_kcr import errors
from airflow_kcr.errors import KcrError, OutcomeUnknown, SchemaMissing, SchemaTooNew, StaleEpoch, StoreUnavailable
from airflow_kcr.ports import Heartbeats, Renewal
from airflow_kcr.protocol.member import messages
from airflow_kcr.protocol.region.commands import Command, FromProcess, KeepSlot, ReportPublished
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import CheckpointNumber, EventNumber, Incarnation, RegionName
from airflow_kcr.runtime.host import StoreCalls
from airflow_kcr.runtime.leases import Identity
from tests.support.driver import group_rules
from tests.support.runtime_fakes import FLIGHTS, MEMBER, REGION_ID, Hands, eventually

A = TypeVar("A")
SILENCE = timedelta(seconds=8)


Script = Callable[[], object]


class Scripted:
    """A store that answers each command as a test says."""

    def __init__(self) -> None:
        self.scripts: dict[Command[object], Script] = {}
        self.given: list[Command[object]] = []

    def handle(self, name: RegionName, command: Command[A]) -> A:
        self.given.append(command)
        return cast("A", self.scripts[command]() if command in self.scripts else None)

    def renew(self, renewals: Collection[Renewal]) -> Heartbeats:
        raise AssertionError("no renewal is asked for here")

    def wait(self, name: RegionName, after: EventNumber, timeout: timedelta) -> EventNumber:
        raise AssertionError("nobody waits here")


class Desk:
    """A thread of commands, with what it delivered and what it could not answer."""

    def __init__(self) -> None:
        self.heard: list[messages.Event] = []
        self.failed: list[BaseException] = []
        self.hands = Hands()
        self.gate = threading.Event()
        self.store = Scripted()
        who = Identity(region=FLIGHTS, region_id=REGION_ID, member=MEMBER, group=group_rules(), timeouts=Timeouts())
        self.token = who.token
        self.calls = StoreCalls(self.store, who, self.heard.append, self.failed.append, self.hands, SILENCE)

    def ask(self, script: Script) -> Command[object]:
        """Give a command that is answered so, and return it."""
        command = ReportPublished(sequence=CheckpointNumber(len(self.store.scripts)), member=MEMBER)
        self.store.scripts[command] = script
        self.calls.ask(command)
        return command

    def answers(self, number: int, what: str = "Answered") -> None:
        eventually(lambda: self.news().count(what) >= number, f"{number} answers")

    @property
    def results(self) -> list[object]:
        return [e.result for e in self.heard if isinstance(e, messages.Answered)]

    def news(self) -> list[str]:
        """The kinds of what was heard, repeated losses told once."""
        names = [getattr(e, "name", type(e).__name__) for e in self.heard]
        return [n for i, n in enumerate(names) if n != "StoreLost" or i == 0 or names[i - 1] != "StoreLost"]

    def hang(self) -> object:
        return self.gate.wait(20)


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.gate.set()
    desk.calls.end(0)


def failing(*errors: BaseException, then: object = 1) -> Script:
    """A command that fails so often, and then is answered."""
    left = list(errors)

    def script() -> object:
        if left:
            raise left.pop(0)
        return then

    return script


def test_requests_are_made_in_the_order_in_which_they_were_asked_for(desk: Desk) -> None:
    for number in range(50):
        desk.ask(lambda number=number: number)  # type: ignore[misc]
    desk.answers(50)
    assert desk.results == list(range(50))


def test_an_outage_delays_later_requests_it_does_not_let_them_pass(desk: Desk) -> None:
    desk.ask(failing(StoreUnavailable("away"), StoreUnavailable("away"), then=1))
    desk.ask(lambda: 2)
    desk.answers(2)
    assert desk.results == [1, 2]


def test_a_refusal_is_an_answer_and_no_loss_of_the_store(desk: Desk) -> None:
    error = StaleEpoch("epoch 3 is over")
    command = desk.ask(failing(error))
    eventually(lambda: bool(desk.heard), "an answer")
    assert desk.heard == [messages.Refused(command=command, error=error)]


def test_an_answer_names_its_command_and_when_it_was_sent(desk: Desk) -> None:
    command = desk.ask(lambda: "done")
    desk.answers(1)
    assert desk.heard == [messages.Answered(command=command, result="done", sent_at=desk.hands.now)]


def test_what_is_asked_in_a_members_name_is_asked_as_its_process(desk: Desk) -> None:
    kept = KeepSlot(member=MEMBER, incarnation=Incarnation(1))
    desk.calls.ask(kept)
    desk.answers(1)
    assert desk.store.given == [FromProcess(member=MEMBER, token=desk.token, command=kept)]
    assert [e.command for e in desk.heard if isinstance(e, messages.Answered)] == [kept]


def test_a_bug_is_a_fault(desk: Desk) -> None:
    desk.ask(failing(ZeroDivisionError("a bug")))
    eventually(lambda: bool(desk.failed), "the fault")
    assert [str(e) for e in desk.failed] == ["a bug"]


@pytest.mark.parametrize("error", [StoreUnavailable("away"), errors.StoreBusy("locked"), OutcomeUnknown("lost")])
def test_the_same_request_is_made_again_until_the_store_answers(desk: Desk, error: KcrError) -> None:
    desk.ask(failing(error, error))
    desk.answers(1)
    assert desk.news() == ["StoreLost", "STORE_BACK", "Answered"]
    assert desk.failed == []


def test_the_store_is_told_to_be_back_once_for_each_outage(desk: Desk) -> None:
    away = StoreUnavailable("away")
    desk.ask(failing(away))
    desk.ask(lambda: 2)
    desk.ask(failing(away, away))
    desk.answers(3)
    assert desk.news() == ["StoreLost", "STORE_BACK", "Answered", "Answered", "StoreLost", "STORE_BACK", "Answered"]


def test_a_refusal_after_an_outage_says_that_the_store_is_back(desk: Desk) -> None:
    desk.ask(failing(StoreUnavailable("away"), StaleEpoch("over")))
    desk.answers(1, "Refused")
    assert desk.news() == ["StoreLost", "STORE_BACK", "Refused"]


@pytest.mark.parametrize("error", [SchemaMissing("no"), errors.SchemaTooOld("old"), SchemaTooNew("new")])
def test_a_store_of_another_version_is_a_fault_at_once(desk: Desk, error: KcrError) -> None:
    desk.ask(failing(error))
    eventually(lambda: bool(desk.failed), "the fault")
    assert desk.failed == [error]
    assert desk.heard == []


def test_a_request_without_an_answer_for_too_long_is_noticed(desk: Desk) -> None:
    assert not desk.calls.is_silent()
    began = threading.Event()

    def script() -> object:
        began.set()
        return desk.hang()

    desk.ask(script)
    assert began.wait(10)
    desk.hands.now += SILENCE.total_seconds() - 0.01
    assert not desk.calls.is_silent()
    desk.hands.now += 0.01
    assert desk.calls.is_silent()
    desk.gate.set()
    desk.answers(1)
    assert not desk.calls.is_silent()


def test_the_pause_between_two_attempts_is_no_silence(desk: Desk) -> None:
    desk.ask(failing(*[StoreUnavailable("away")] * 30))
    eventually(lambda: len(desk.heard) >= 2, "a second attempt")
    desk.hands.now += 100
    eventually(lambda: not desk.calls.is_silent(), "an attempt of its own time")


def test_at_the_end_all_that_was_asked_for_is_still_asked(desk: Desk) -> None:
    for number in range(20):
        desk.ask(lambda number=number: number)  # type: ignore[misc]
    assert desk.calls.end(10)
    assert len(desk.heard) == 20


def test_the_end_gives_up_a_store_that_is_away(desk: Desk) -> None:
    def away() -> object:
        raise StoreUnavailable("away")

    desk.ask(away)
    desk.ask(lambda: 2)
    assert not desk.calls.end(0.05)
    heard = len(desk.heard)
    assert desk.calls.end(10)
    assert 2 not in desk.results
    assert len(desk.heard) <= heard + 1


def test_the_end_does_not_wait_for_a_store_that_hangs(desk: Desk) -> None:
    desk.ask(desk.hang)
    assert not desk.calls.end(0.01)
