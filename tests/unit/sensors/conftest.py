"""What the tests of the sensors share: a region that runs, and how Airflow drives a sensor."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from airflow.providers.common.compat.sdk import TaskDeferred

from airflow_kcr.goals import WaitingFor
from airflow_kcr.sensors.region import RegionSensor
from airflow_kcr.triggers.payloads import waiting_for_from_json
from airflow_kcr.triggers.waits import RegionTrigger
from tests.support.airflow_tasks import task_context
from tests.support.driver import Driver


@pytest.fixture
def driver(driver: Driver) -> Driver:
    """A running region in the store of the connection `kcr_default`."""
    driver.up()
    return driver


def deferral(sensor: RegionSensor) -> TaskDeferred:
    """Return how a sensor that is not content gives its slot up."""
    with pytest.raises(TaskDeferred) as raised:
        sensor.execute(task_context())
    return raised.value


def waited_for(found: TaskDeferred) -> WaitingFor:
    """Return what a deferred sensor waits for."""
    assert isinstance(found.trigger, RegionTrigger)
    return waiting_for_from_json(found.trigger.waiting_for)


def resume(sensor: RegionSensor, found: TaskDeferred, event: Mapping[str, object]) -> None:
    """Resume a sensor as Airflow does."""
    sensor.resume_execution(found.method_name, {**(found.kwargs or {}), "event": event}, task_context())
