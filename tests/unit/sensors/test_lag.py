from __future__ import annotations

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_kcr.sensors.region import KcrLagSensor
from airflow_kcr.triggers.payloads import LagBelow
from tests.support.airflow_tasks import task_context
from tests.support.driver import Driver
from tests.support.live_region import FakeCluster
from tests.unit.sensors.conftest import deferral, waited_for


def test_a_region_that_is_behind_is_waited_for(driver: Driver, cluster: FakeCluster) -> None:
    cluster.ends = {0: 10, 1: 20, 2: 30, 3: 40}
    made = KcrLagSensor(task_id="wait", region="flights", below=100)
    assert waited_for(deferral(made)) == LagBelow(records=100)
    driver.process(width=10)
    made.execute(task_context())


def test_a_partition_that_was_never_claimed_is_not_caught_up_with(driver: Driver, cluster: FakeCluster) -> None:
    cluster.counts = dict.fromkeys(cluster.counts, 5)
    cluster.ends = {**dict.fromkeys(range(4), 0), 4: 1_000}
    deferral(KcrLagSensor(task_id="wait", region="flights", below=100))


def test_a_broker_that_is_away_is_waited_for(driver: Driver, cluster: FakeCluster) -> None:
    cluster.is_away = True
    made = KcrLagSensor(task_id="wait", region="flights", below=1)
    assert waited_for(deferral(made)) == LagBelow(records=1)
    assert made.poke(task_context()) is False


@pytest.mark.parametrize("below", [0, -1, "few"])
def test_what_is_no_number_above_0_is_not_retried(driver: Driver, cluster: FakeCluster, below: int | str) -> None:
    with pytest.raises(AirflowFailException, match="above 0"):
        KcrLagSensor(task_id="wait", region="flights", below=below).execute(task_context())
