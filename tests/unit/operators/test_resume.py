from __future__ import annotations

from collections.abc import Iterator

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_kcr.operators.region import KcrResumeOperator
from airflow_kcr.protocol.commands import PauseRegion
from airflow_kcr.protocol.region.rows import DesiredState, RegionState
from tests.support.airflow_tasks import FakeTask, task_context
from tests.support.driver import Driver
from tests.support.live_region import live_region


@pytest.fixture
def driver(store_connection: str) -> Iterator[Driver]:
    with live_region(store_connection) as driver:
        yield driver


def test_a_paused_region_goes_on_in_the_name_of_the_run(driver: Driver) -> None:
    driver.up()
    driver.handle(PauseRegion())
    task = FakeTask()
    said = KcrResumeOperator(task_id="resume", region="flights").execute(task_context(task, user="ada"))
    assert said == {"region": "flights", "state": "running", "desired_state": "running", "epoch": driver.region.epoch}
    assert driver.region.desired_state is DesiredState.RUNNING
    assert "ada" in repr(driver.events[-1])
    assert task.xcoms == {"_link_RegionLink": "/plugin/kcr/kcr/regions/flights"}


def test_a_stopped_region_is_started_and_nobody_waits_for_its_members(driver: Driver) -> None:
    said = KcrResumeOperator(task_id="resume", region="flights").execute(task_context())
    assert said["state"] == "starting"
    assert driver.region.state is RegionState.STARTING


def test_an_unknown_region_is_not_retried(store_connection: str) -> None:
    with pytest.raises(AirflowFailException):
        KcrResumeOperator(task_id="resume", region="nowhere").execute(task_context())
