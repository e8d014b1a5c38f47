"""The child process for admin calls, where it is stopped: every wait for it has a deadline."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path

import psutil
import pytest

from airflow_kcr.embedded.processes import happened
from airflow_kcr.errors import KcrError
from airflow_kcr.kafka import admin_process as child_module
from airflow_kcr.kafka import questions
from airflow_kcr.kafka.admin_process import Child, ChildDied
from airflow_kcr.kafka.calls import AdminCalls
from airflow_kcr.settings import KafkaSettings

# No broker is asked, so none need be there.
SETTINGS = KafkaSettings({"bootstrap.servers": "127.0.0.1:1", "log_level": "0"})
SMALL = partial(questions.cluster)
BEYOND_A_SOCKET = partial(len, "x" * 10_000_000)


@pytest.fixture
def child() -> Iterator[Child]:
    found = Child(SETTINGS)
    yield found
    found.close()


class Unreadable:
    """What can be sent, and not be read."""

    def __reduce__(self) -> tuple[object, ...]:
        return int, ("no number",)


def unreadable(calls: AdminCalls, within: timedelta) -> Unreadable:
    return Unreadable()


def stop(child: Child) -> None:
    os.kill(child.pid, signal.SIGSTOP)
    assert happened(lambda: psutil.Process(child.pid).status() == psutil.STATUS_STOPPED, within=10)


def test_a_question_beyond_what_a_socket_holds_arrives_whole_and_one_that_means_nothing_is_answered(
    child: Child,
) -> None:
    with pytest.raises(KcrError, match=r"^an admin call could not be made \(TypeError\)$"):
        child.ask(BEYOND_A_SOCKET, 20)
    assert child.alive


@pytest.mark.timeout(60)
def test_an_answer_that_can_t_be_read_ends_the_child_for_all_who_wait(child: Child) -> None:
    with pytest.raises(ChildDied, match=r"ended by signal 9; its answer can't be read \(ValueError\)$"):
        child.ask(partial(unreadable), 30)
    assert not child.alive


@pytest.mark.timeout(60)
@pytest.mark.parametrize("question", [BEYOND_A_SOCKET, SMALL], ids=["beyond a socket", "small"])
def test_a_stopped_child_is_waited_for_no_longer_than_told(child: Child, question: object) -> None:
    stop(child)
    with pytest.raises(ChildDied, match=r"^the process for admin calls did not answer within 0\.3 s$"):
        child.ask(question, 0.3, grace=0)
    assert happened(lambda: not child.alive, within=10)


@pytest.mark.timeout(60)
def test_one_answer_that_does_not_come_ends_the_child_for_all_who_wait(child: Child) -> None:
    stop(child)
    with ThreadPoolExecutor(1) as other:
        patient = other.submit(child.ask, SMALL, 30)
        assert happened(lambda: len(child._waiting) == 1, within=10)
        with pytest.raises(ChildDied, match=r"did not answer within 0\.3 s"):
            child.ask(SMALL, 0.3, grace=0)
        with pytest.raises(ChildDied, match="ended by signal 9"):
            patient.result(10)
    with pytest.raises(ChildDied, match="ended by signal 9"):
        child.ask(SMALL, 30)


@pytest.mark.timeout(60)
def test_a_stopped_child_is_closed_with_a_request_half_sent(child: Child) -> None:
    stop(child)
    with pytest.raises(ChildDied):
        child.ask(BEYOND_A_SOCKET, 0.3, grace=0)
    child.close()
    assert not Path(f"/proc/{child.pid}").exists()


@pytest.mark.timeout(60)
def test_a_child_that_never_says_that_it_is_ready_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_module, "START_WITHIN", 0.5)
    with pytest.raises(ChildDied, match=r"did not answer within 0\.5 s"):
        Child(SETTINGS, "json.tool")  # reads to the end, and says nothing before
