from __future__ import annotations

from datetime import timedelta

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_kcr.hooks.kcr import KcrHook
from airflow_kcr.protocol.region import liveness
from airflow_kcr.protocol.region.commands import KillRegion
from airflow_kcr.protocol.region.liveness import Liveness
from airflow_kcr.protocol.region.waits import Rule, Wait
from airflow_kcr.sensors.region import KcrProgressSensor
from airflow_kcr.triggers.payloads import Progresses
from airflow_kcr.triggers.probes import probe
from tests.support.airflow_tasks import task_context
from tests.support.driver import START, Driver
from tests.unit.sensors.conftest import deferral, waited_for


def test_a_region_that_makes_progress_is_content(driver: Driver) -> None:
    KcrProgressSensor(task_id="wait", region="flights").execute(task_context())


def test_a_stalled_region_is_waited_for_and_the_time_out_names_the_rule_and_since_when(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = driver.store.read(driver.name)[1]
    wait = Wait(rule=Rule.BOUNDARY, since=now - timedelta(hours=1), what="nobody sees to it", until=now)
    monkeypatch.setattr(liveness, "judge", lambda *_: Liveness(waits=(wait,), now=now))
    made = KcrProgressSensor(task_id="wait", region="flights")
    assert waited_for(deferral(made)) == Progresses()
    missing, _ = probe(driver.store, driver.name, Progresses(), KcrHook())
    assert missing is not None
    assert "it is stalled" in missing.what
    assert missing.missing == (wait.text(),)
    assert "boundary since " in str(missing)


def test_a_region_that_starts_is_waited_for(driver: Driver) -> None:
    driver.handle(KillRegion())
    driver.handle(START)
    deferral(KcrProgressSensor(task_id="wait", region="flights"))


def test_a_halted_region_fails_the_task_at_once(driver: Driver) -> None:
    driver.find_stranger()
    with pytest.raises(AirflowFailException, match="is halted: consumer stranger on host host"):
        KcrProgressSensor(task_id="wait", region="flights").execute(task_context())
