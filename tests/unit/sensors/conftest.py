"""What the tests of the sensors share: a region that runs, Kafka as a test wants it, how Airflow drives a sensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager

import pytest
from airflow.sdk.exceptions import TaskDeferred

from airflow_kcr.goals import WaitingFor
from airflow_kcr.hooks.kcr import KcrHook
from airflow_kcr.protocol.values import GroupId
from airflow_kcr.sensors.region import RegionSensor
from airflow_kcr.spec import RegionSpec
from airflow_kcr.triggers.payloads import waiting_for_from_json
from airflow_kcr.triggers.waits import RegionTrigger
from tests.support.airflow_tasks import task_context
from tests.support.driver import Driver
from tests.support.live_region import FakeCluster, live_region


@pytest.fixture
def driver(store_connection: str) -> Iterator[Driver]:
    """A running region in the store of the connection `kcr_default`."""
    with live_region(store_connection) as driver:
        driver.up()
        yield driver


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """What the hook sees of Kafka."""
    cluster = FakeCluster()

    def opened(self: KcrHook, spec: RegionSpec, group: GroupId) -> AbstractContextManager[object]:
        return cluster.clusters(spec, group)

    monkeypatch.setattr(KcrHook, "cluster", opened)
    return cluster


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
