from __future__ import annotations

from collections.abc import Iterator

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from airflow_kcr.operators.region import KcrPauseOperator
from airflow_kcr.protocol.region.rows import DesiredState
from airflow_kcr.triggers.waits import RegionTrigger
from tests.support.airflow_tasks import FakeTask, task_context
from tests.support.driver import Driver
from tests.support.live_region import live_region


@pytest.fixture
def driver(store_connection: str) -> Iterator[Driver]:
    with live_region(store_connection) as driver:
        yield driver


def test_an_idle_region_is_paused_at_once_and_again(driver: Driver) -> None:
    driver.up()
    task = FakeTask()
    made = KcrPauseOperator(task_id="pause", region="flights")
    said = made.execute(task_context(task, user="ada"))
    assert (said["state"], said["desired_state"], said["epoch"]) == ("running", "paused", driver.region.epoch)
    assert task.xcoms == {"_link_RegionLink": "/plugin/kcr/kcr/regions/flights"}
    assert "ada" in repr(driver.events[-1])
    assert made.execute(task_context()) == said


def test_a_batch_in_flight_is_waited_for_without_a_slot(driver: Driver) -> None:
    driver.up()
    batch = driver.start_batch(driver.member(0))
    made = KcrPauseOperator(task_id="pause", region="flights")
    with pytest.raises(TaskDeferred) as deferred:
        made.execute(task_context())
    assert isinstance(deferred.value.trigger, RegionTrigger)
    assert deferred.value.trigger.waiting_for == {"kind": "region_reaches", "state": "paused"}
    driver.finish_batch(batch)
    said = getattr(made, deferred.value.method_name)(
        task_context(), event={"status": "reached"}, **(deferred.value.kwargs or {})
    )
    assert said["desired_state"] == "paused"
    assert driver.region.desired_state is DesiredState.PAUSED


def test_a_region_that_can_not_be_paused_is_not_retried(driver: Driver, store_connection: str) -> None:
    with pytest.raises(AirflowFailException):
        KcrPauseOperator(task_id="pause", region="nowhere").execute(task_context())
