from __future__ import annotations

from collections.abc import Iterator

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from airflow_kcr.operators.region import KcrResumeOperator, KcrStartOperator
from airflow_kcr.protocol.region.commands import PauseRegion
from airflow_kcr.protocol.region.rows import DesiredState, RegionState
from airflow_kcr.triggers.waits import RegionTrigger
from tests.support.airflow_tasks import FakeTask, task_context
from tests.support.driver import Driver
from tests.support.live_region import live_region


@pytest.fixture
def driver(store_connection: str) -> Iterator[Driver]:
    with live_region(store_connection) as driver:
        yield driver


@pytest.mark.parametrize("made", [KcrResumeOperator, KcrStartOperator])
def test_a_paused_region_goes_on_in_the_name_of_the_run(driver: Driver, made: type[KcrStartOperator]) -> None:
    driver.up()
    driver.handle(PauseRegion())
    task = FakeTask()
    said = made(task_id="resume", region="flights").execute(task_context(task, user="ada"))
    assert (said["state"], said["desired_state"], said["epoch"]) == ("running", "running", driver.region.epoch)
    assert driver.region.desired_state is DesiredState.RUNNING
    assert "ada" in repr(driver.events[-1])
    assert task.xcoms == {"_link_RegionLink": "/plugin/kcr/kcr/regions/flights"}


@pytest.mark.parametrize("made", [KcrResumeOperator, KcrStartOperator])
def test_a_stopped_region_is_started_and_nobody_waits_for_its_members(
    driver: Driver, made: type[KcrStartOperator]
) -> None:
    said = made(task_id="resume", region="flights").execute(task_context())
    assert said["state"] == "starting"
    assert driver.region.state is RegionState.STARTING


def test_a_task_that_waits_goes_on_when_the_region_runs(driver: Driver) -> None:
    made = KcrStartOperator(task_id="start", region="flights", wait_for_completion=True)
    with pytest.raises(TaskDeferred) as deferred:
        made.execute(task_context())
    assert isinstance(deferred.value.trigger, RegionTrigger)
    assert deferred.value.trigger.waiting_for == {"kind": "region_reaches", "state": "running"}
    driver.up()
    said = getattr(made, deferred.value.method_name)(
        task_context(), event={"status": "reached"}, **(deferred.value.kwargs or {})
    )
    assert said["state"] == "running"


def test_an_unknown_region_is_not_retried(store_connection: str) -> None:
    with pytest.raises(AirflowFailException):
        KcrResumeOperator(task_id="resume", region="nowhere").execute(task_context())
