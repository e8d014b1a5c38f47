"""When batches may begin: once Spark has an executor that is ready, and not much later than it has one."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from airflow_kcr.embedded.processes import happened
from airflow_kcr.spark import executors as executors_module
from airflow_kcr.spark.executors import Executors
from airflow_kcr.spark.pulse import Pulse
from airflow_kcr.spark.reads import RECORD
from tests.support.runtime_fakes import eventually


class Jobs:
    """The jobs that get Spark ready: each waits until it may end."""

    def __init__(self) -> None:
        self.started, self.may_end = 0, threading.Event()

    def __call__(self) -> int:
        self.started += 1
        assert self.may_end.wait(20)
        return 7


@pytest.fixture
def pulse() -> Pulse:
    return Pulse({})


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    jobs = Jobs()
    yield jobs
    jobs.may_end.set()


@pytest.fixture
def executors(pulse: Pulse, jobs: Jobs) -> Executors:
    return Executors(pulse, jobs)


@pytest.mark.parametrize("count", [None, 1])
def test_where_there_is_an_executor_it_is_got_ready_once(
    pulse: Pulse, jobs: Jobs, executors: Executors, count: int | None
) -> None:
    pulse.executors = count
    assert (executors.lack(), executors.are_ready(), executors.record) == ("", False, RECORD)
    jobs.may_end.set()
    eventually(executors.are_ready, "the end of the job")
    assert (executors.lack(), jobs.started, executors.record) == ("", 1, 7)


def test_where_all_have_gone_another_is_asked_for_and_got_ready(
    pulse: Pulse, jobs: Jobs, executors: Executors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors_module, "ASKED_EVERY", 0.0)
    jobs.may_end.set()
    eventually(executors.are_ready, "the end of the first job")
    jobs.may_end.clear()
    pulse.executors = 0
    assert {executors.lack() for _ in range(10)} == {"Spark has no executor yet"}
    assert not executors.are_ready()
    eventually(lambda: jobs.started == 2, "a second job")
    pulse.executors = 1
    assert (executors.lack(), executors.are_ready()) == ("", False)
    jobs.may_end.set()
    eventually(executors.are_ready, "the end of the second job")
    assert jobs.started == 2


def test_a_job_that_fails_at_once_is_not_tried_at_once(pulse: Pulse) -> None:
    jobs = Jobs()
    jobs.may_end.set()
    executors = Executors(pulse, jobs)
    eventually(executors.are_ready, "the end of the job")
    pulse.executors = 0
    assert {executors.lack() for _ in range(10)} == {"Spark has no executor yet"}
    assert jobs.started == 1


@pytest.mark.parametrize(
    ("loss", "why"),
    [
        ("", "Spark has no executor: Initial job has not accepted any resources"),
        ("Executor killed by driver.", "Spark has no executor: Initial job has not accepted any resources"),
        ("worker lost", "Spark has no executor: worker lost"),
    ],
    ids=["none has been there", "the last was let go", "the last was lost"],
)
def test_after_a_while_it_is_named_once_with_spark_s_reason(
    pulse: Pulse,
    executors: Executors,
    loss: str,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(executors_module, "NAMED_AFTER", 0.0)
    pulse.executors, pulse.loss = 0, loss
    assert executors.lack().startswith(why)
    assert executors.lack().startswith(why)
    assert caplog.text.count(f"no batch can run: {why}") == 1
    pulse.executors = 1
    assert executors.lack() == ""
    assert "Spark has an executor" in caplog.text


def test_what_the_cluster_says_of_pending_executors_is_the_reason(
    pulse: Pulse, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors_module, "NAMED_AFTER", 0.0)
    executors = Executors(pulse, jobs, lambda: "pod x: Unschedulable: 1 Insufficient cpu")
    pulse.executors, pulse.loss = 0, "worker lost"
    named = "Spark has no executor: pod x: Unschedulable: 1 Insufficient cpu"
    eventually(lambda: executors.lack() == named, "what the cluster says")
    pulse.executors = 1
    assert executors.lack() == ""


def test_without_a_record_its_size_is_guessed(pulse: Pulse) -> None:
    executors = Executors(pulse, lambda: 0)
    eventually(executors.are_ready, "the end of the job")
    assert executors.record == RECORD


def test_what_fails_is_told_and_keeps_nobody_waiting(pulse: Pulse, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    def fail() -> int:
        raise ValueError("no such topic")

    eventually(Executors(pulse, fail).are_ready, "the end of the job")
    assert "the first batch takes longer: ValueError: no such topic" in caplog.text


@pytest.mark.parametrize("seconds", [0.05, 0.0, -1.0])
def test_nobody_waits_for_longer_than_the_boundary(
    pulse: Pulse, jobs: Jobs, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr(executors_module, "WARM_WITHIN", seconds)
    eventually(Executors(pulse, jobs).are_ready, "the boundary")


def test_the_wait_starts_when_there_is_something_to_warm_up(
    pulse: Pulse, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors_module, "WARM_WITHIN", 0.05)
    pulse.executors = 0
    executors = Executors(pulse, jobs)
    assert not happened(executors.are_ready, within=0.5)
    pulse.executors = 1
    eventually(executors.are_ready, "the boundary")
