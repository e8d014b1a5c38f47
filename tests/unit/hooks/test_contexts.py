from __future__ import annotations

from datetime import timedelta

import pytest
from airflow.sdk.api.datamodels._generated import DagRunType

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.hooks.kcr import interval_of, request_id, requester
from airflow_kcr.protocol.region.rows import Requester
from tests.support.airflow_tasks import NOON, FakeTask, task_context

TASK = FakeTask(task_id="drain", dag_id="d", run_id="r")


def test_who_asks_is_airflow_for_a_run_that_nobody_triggered() -> None:
    assert requester(task_context(TASK)) == Requester(who="airflow", dag_id="d", run_id="r")


def test_who_asks_is_the_person_who_triggered_the_run() -> None:
    context = task_context(TASK, user="ada", run_type=DagRunType.MANUAL)
    assert requester(context, "because") == Requester(who="ada", dag_id="d", run_id="r", reason="because")


def test_a_request_id_is_the_same_for_every_try_and_another_for_each_mapped_task() -> None:
    assert request_id(task_context(TASK)) == "d/r/drain/-1"
    again = FakeTask(task_id="drain", dag_id="d", run_id="r", try_number=2)
    assert request_id(task_context(again)) == "d/r/drain/-1"
    mapped = FakeTask(task_id="drain", dag_id="d", run_id="r", map_index=3)
    assert request_id(task_context(mapped)) == "d/r/drain/3"
    unknown = FakeTask(task_id="drain", dag_id="d", run_id="r", map_index=None)
    assert request_id(task_context(unknown)) == "d/r/drain/-1"


def test_the_interval_is_the_run_s() -> None:
    interval = (NOON, NOON + timedelta(minutes=5))
    assert interval_of(task_context(TASK, interval=interval)) == interval


def test_an_interval_of_no_length_is_refused_with_the_timetables_that_make_one() -> None:
    context = task_context(TASK, interval=(NOON, NOON))
    with pytest.raises(ConfigurationError, match=r"run r of DAG d .*CronDataIntervalTimetable.*DeltaDataIntervalTime"):
        interval_of(context)
