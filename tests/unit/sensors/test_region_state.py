from __future__ import annotations

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_kcr.goals import RegionReaches
from airflow_kcr.protocol.region.commands import KillRegion
from airflow_kcr.protocol.values import DesiredState
from airflow_kcr.sensors.region import KcrRegionStateSensor
from tests.support.airflow_tasks import task_context
from tests.support.driver import START, Driver
from tests.unit.sensors.conftest import deferral, waited_for


def test_a_region_that_runs_is_one_that_runs(driver: Driver) -> None:
    KcrRegionStateSensor(task_id="wait", region="flights").execute(task_context())


def test_a_region_that_starts_is_waited_for(driver: Driver) -> None:
    driver.handle(KillRegion())
    driver.handle(START)
    made = KcrRegionStateSensor(task_id="wait", region="flights", state="running")
    assert waited_for(deferral(made)) == RegionReaches(state=DesiredState.RUNNING)


def test_a_stop_is_over_when_the_members_have_left(driver: Driver) -> None:
    driver.handle(KillRegion())
    made = KcrRegionStateSensor(task_id="wait", region="flights", state="stopped")
    assert waited_for(deferral(made)) == RegionReaches(state=DesiredState.STOPPED)
    for member in sorted(driver.processes):
        driver.leave(member)
    made.execute(task_context())


def test_a_state_that_there_is_not_is_refused_with_those_that_there_are(driver: Driver) -> None:
    with pytest.raises(AirflowFailException, match="running, paused, stopped"):
        KcrRegionStateSensor(task_id="wait", region="flights", state="asleep").execute(task_context())
