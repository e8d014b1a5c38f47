from __future__ import annotations

import threading
from functools import partial

import pytest

from airflow_kcr.embedded.processes import happened
from airflow_kcr.spark import executors as executors_module
from airflow_kcr.spark.executors import Executors
from airflow_kcr.spark.pipelines import imports_of
from airflow_kcr.spark.pulse import Pulse
from airflow_kcr.spark.reads import RECORD
from tests.support.runtime_fakes import eventually


def wait_for(go: threading.Event) -> int:
    assert go.wait(20)
    return 7


def with_executor() -> Pulse:
    pulse = Pulse({})
    pulse.executors = 1
    return pulse


def test_batches_may_begin_once_spark_is_ready() -> None:
    go = threading.Event()
    executors = Executors(with_executor(), lambda: wait_for(go))
    assert not executors.are_ready()
    assert executors.record == RECORD
    go.set()
    eventually(executors.are_ready, "the end of the work")
    assert executors.record == 7


def test_without_a_record_its_size_is_guessed() -> None:
    executors = Executors(with_executor(), lambda: 0)
    eventually(executors.are_ready, "the end of the work")
    assert executors.record == RECORD


def test_what_fails_is_told_and_keeps_nobody_waiting(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    def fail() -> int:
        raise ValueError("no such topic")

    executors = Executors(with_executor(), fail)
    eventually(executors.are_ready, "the end of the work")
    assert "the first batch takes longer: ValueError: no such topic" in caplog.text


@pytest.mark.parametrize("seconds", [0.05, 0.0, -1.0])
def test_nobody_waits_for_longer_than_the_boundary(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr(executors_module, "WARM_WITHIN", seconds)
    go = threading.Event()
    executors = Executors(with_executor(), lambda: wait_for(go))
    eventually(executors.are_ready, "the boundary")
    go.set()


def test_the_wait_starts_when_there_is_something_to_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors_module, "WARM_WITHIN", 0.05)
    go, pulse = threading.Event(), Pulse({})
    pulse.executors = 0
    executors = Executors(pulse, lambda: wait_for(go))
    assert not happened(executors.are_ready, within=0.5)
    pulse.executors = 1
    eventually(executors.are_ready, "the boundary")
    go.set()


def pipeline(batch: object, context: object) -> None:
    pass


def test_what_a_pipeline_s_module_imports_is_known() -> None:
    assert {"pytest", "threading"} <= set(imports_of(pipeline))


def test_a_pipeline_without_a_module_imports_nothing() -> None:
    assert imports_of(partial(pipeline)) == ()
