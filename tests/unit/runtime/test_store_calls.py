from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from airflow_kcr.errors import (
    KcrError,
    OutcomeUnknown,
    SchemaMissing,
    SchemaTooNew,
    SchemaTooOld,
    StaleEpoch,
    StoreBusy,
    StoreUnavailable,
)
from airflow_kcr.protocol.member import events
from airflow_kcr.protocol.values import BatchId, Epoch
from airflow_kcr.runtime.store_calls import StoreCalls
from tests.support.runtime_fakes import Hands, eventually

SILENCE = timedelta(seconds=8)


class Desk:
    """A thread of requests, with what it delivered and what it could not answer."""

    def __init__(self) -> None:
        self.heard: list[events.Event] = []
        self.failed: list[BaseException] = []
        self.hands = Hands()
        self.gate = threading.Event()
        self.calls = StoreCalls("store", self.heard.append, self.failed.append, self.hands, SILENCE)

    def answers(self, number: int, what: str = "epoch") -> None:
        eventually(lambda: self.news().count(what) >= number, f"{number} answers")

    def news(self) -> list[str]:
        """The kinds of what was heard, repeated losses told once."""
        names = ["epoch" if isinstance(e, events.Acknowledged) else type(e).__name__ for e in self.heard]
        return [n for i, n in enumerate(names) if n != "StoreLost" or i == 0 or names[i - 1] != "StoreLost"]

    def hang(self) -> events.Event:
        self.gate.wait(20)
        return answer(1)


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.gate.set()
    desk.calls.end(0)


def answer(number: int) -> events.Event:
    return events.Acknowledged(epoch=Epoch(number))


def failing(*errors: BaseException, then: events.Event | None = None) -> Callable[[], events.Event]:
    """A request that fails so often, and then is answered."""
    left = list(errors)

    def ask() -> events.Event:
        if left:
            raise left.pop(0)
        return then or answer(1)

    return ask


def test_requests_are_made_in_the_order_in_which_they_were_asked_for(desk: Desk) -> None:
    for number in range(50):
        desk.calls.call(lambda number=number: answer(number))  # type: ignore[misc]
    desk.answers(50)
    assert desk.heard == [answer(n) for n in range(50)]


def test_an_outage_delays_later_requests_it_does_not_let_them_pass(desk: Desk) -> None:
    desk.calls.call(failing(StoreUnavailable("away"), StoreUnavailable("away"), then=answer(1)))
    desk.calls.call(lambda: answer(2))
    desk.answers(2)
    assert [e for e in desk.heard if isinstance(e, events.Acknowledged)] == [answer(1), answer(2)]


def test_a_refusal_is_an_answer_and_no_loss_of_the_store(desk: Desk) -> None:
    refused: list[KcrError] = []

    def answer_of(error: KcrError) -> events.Event:
        refused.append(error)
        return events.EndRefused(batch=BatchId("b"), why=error.message)

    desk.calls.call(failing(StaleEpoch("epoch 3 is over")), answer_of)
    eventually(lambda: bool(desk.heard), "an answer")
    assert desk.heard == [events.EndRefused(batch=BatchId("b"), why="epoch 3 is over")]
    assert [type(e) for e in refused] == [StaleEpoch]


def test_a_refusal_that_nobody_expects_is_a_fault(desk: Desk) -> None:
    desk.calls.call(failing(StaleEpoch("epoch 3 is over")))
    eventually(lambda: bool(desk.failed), "the fault")
    assert [type(e) for e in desk.failed] == [StaleEpoch]
    assert desk.heard == []


def test_a_bug_is_a_fault_even_where_refusals_are_expected(desk: Desk) -> None:
    desk.calls.call(failing(ZeroDivisionError("a bug")), lambda _: answer(1))
    eventually(lambda: bool(desk.failed), "the fault")
    assert [str(e) for e in desk.failed] == ["a bug"]


@pytest.mark.parametrize("error", [StoreUnavailable("away"), StoreBusy("locked"), OutcomeUnknown("lost")])
def test_the_same_request_is_made_again_until_the_store_answers(desk: Desk, error: KcrError) -> None:
    desk.calls.call(failing(error, error))
    desk.answers(1)
    assert desk.news() == ["StoreLost", "StoreBack", "epoch"]
    assert desk.failed == []


def test_the_store_is_told_to_be_back_once_for_each_outage(desk: Desk) -> None:
    away = StoreUnavailable("away")
    desk.calls.call(failing(away))
    desk.calls.call(lambda: answer(2))
    desk.calls.call(failing(away, away))
    desk.answers(3)
    assert desk.news() == ["StoreLost", "StoreBack", "epoch", "epoch", "StoreLost", "StoreBack", "epoch"]


def test_a_refusal_after_an_outage_says_that_the_store_is_back(desk: Desk) -> None:
    desk.calls.call(failing(StoreUnavailable("away"), StaleEpoch("over")), lambda _: answer(1))
    desk.answers(1)
    assert desk.news() == ["StoreLost", "StoreBack", "epoch"]


@pytest.mark.parametrize("error", [SchemaMissing("no"), SchemaTooOld("old"), SchemaTooNew("new")])
def test_a_store_of_another_version_is_a_fault_at_once(desk: Desk, error: KcrError) -> None:
    desk.calls.call(failing(error), lambda _: answer(1))
    eventually(lambda: bool(desk.failed), "the fault")
    assert desk.failed == [error]
    assert desk.heard == []


def test_what_is_told_needs_no_answer_and_may_be_refused(desk: Desk) -> None:
    told: list[str] = []
    desk.calls.tell(lambda: told.append("told"))
    desk.calls.tell(failing(StaleEpoch("over")))
    desk.calls.tell(failing(StoreUnavailable("away")))
    desk.calls.call(lambda: answer(1))
    desk.answers(1)
    assert told == ["told"]
    assert desk.news() == ["Tick", "Tick", "StoreLost", "StoreBack", "Tick", "epoch"]
    assert desk.failed == []


def test_a_request_without_an_answer_for_too_long_is_noticed(desk: Desk) -> None:
    assert not desk.calls.is_silent()
    began = threading.Event()

    def ask() -> events.Event:
        began.set()
        return desk.hang()

    desk.calls.call(ask)
    assert began.wait(10)
    desk.hands.now += SILENCE.total_seconds() - 0.01
    assert not desk.calls.is_silent()
    desk.hands.now += 0.01
    assert desk.calls.is_silent()
    desk.gate.set()
    desk.answers(1)
    assert not desk.calls.is_silent()


def test_the_pause_between_two_attempts_is_no_silence(desk: Desk) -> None:
    desk.calls.call(failing(*[StoreUnavailable("away")] * 30))
    eventually(lambda: len(desk.heard) >= 2, "a second attempt")
    desk.hands.now += 100
    eventually(lambda: not desk.calls.is_silent(), "an attempt of its own time")


def test_at_the_end_all_that_was_asked_for_is_still_asked(desk: Desk) -> None:
    for number in range(20):
        desk.calls.call(lambda number=number: answer(number))  # type: ignore[misc]
    assert desk.calls.end(10)
    assert len(desk.heard) == 20


def test_the_end_gives_up_a_store_that_is_away(desk: Desk) -> None:
    def away() -> events.Event:
        raise StoreUnavailable("away")

    desk.calls.call(away)
    desk.calls.call(lambda: answer(2))
    assert not desk.calls.end(0.05)
    heard = len(desk.heard)
    assert desk.calls.end(10)
    assert answer(2) not in desk.heard
    assert len(desk.heard) <= heard + 1


def test_the_end_does_not_wait_for_a_store_that_hangs(desk: Desk) -> None:
    desk.calls.call(desk.hang)
    assert not desk.calls.end(0.01)
