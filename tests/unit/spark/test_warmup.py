from __future__ import annotations

import threading
from functools import partial

import pytest

from airflow_kcr.embedded.processes import happened
from airflow_kcr.spark.pipelines import Warming, imports_of
from airflow_kcr.spark.reads import RECORD
from tests.support.runtime_fakes import eventually


def test_batches_may_begin_once_spark_is_ready() -> None:
    go = threading.Event()
    warming = Warming(lambda: wait_for(go))
    assert not warming.is_over()
    assert warming.record == RECORD
    go.set()
    eventually(warming.is_over, "the end of the work")
    assert warming.record == 7


def wait_for(go: threading.Event) -> int:
    assert go.wait(20)
    return 7


def test_without_a_record_its_size_is_guessed() -> None:
    warming = Warming(lambda: 0)
    eventually(warming.is_over, "the end of the work")
    assert warming.record == RECORD


def test_what_fails_is_told_and_keeps_nobody_waiting(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    def fail() -> int:
        raise ValueError("no such topic")

    warming = Warming(fail)
    eventually(warming.is_over, "the end of the work")
    assert "the first batch takes longer: ValueError: no such topic" in caplog.text


def test_nobody_waits_for_longer_than_the_boundary() -> None:
    go = threading.Event()
    warming = Warming(lambda: wait_for(go), within=0.05)
    eventually(warming.is_over, "the boundary")
    go.set()


def test_the_wait_starts_when_there_is_something_to_warm_up() -> None:
    go, lacking = threading.Event(), ["no executor"]
    warming = Warming(lambda: wait_for(go), within=0.05, lacks=lambda: lacking[0])
    assert not happened(warming.is_over, within=0.5)
    lacking[0] = ""
    eventually(warming.is_over, "the boundary")
    go.set()


def pipeline(batch: object, context: object) -> None:
    pass


def test_what_a_pipeline_s_module_imports_is_known() -> None:
    assert {"pytest", "threading"} <= set(imports_of(pipeline))


def test_a_pipeline_without_a_module_imports_nothing() -> None:
    assert imports_of(partial(pipeline)) == ()


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_without_time_to_wait_nobody_waits(seconds: float) -> None:
    go = threading.Event()
    assert Warming(lambda: wait_for(go), within=seconds).is_over()
    go.set()
