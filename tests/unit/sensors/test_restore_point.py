from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
)

from airflow_kcr.goals import RegionReaches
from airflow_kcr.protocol.values import DesiredState
from airflow_kcr.sensors.region import KcrRegionStateSensor
from airflow_kcr.triggers.payloads import Status, TriggerAnswer
from airflow_kcr.triggers.waits import RegionTrigger
from tests.support.airflow_tasks import FakeTask, task_context
from tests.support.driver import PAUSE, Driver
from tests.unit.sensors.conftest import deferral, resume, waited_for

LATE = TriggerAnswer(status=Status.TIMED_OUT, detail="gave up after 60 s: a batch of g[0] has been running").to_json()
REFUSED = TriggerAnswer(status=Status.REFUSED, detail="region flights is halted").to_json()
AWAY = TriggerAnswer(status=Status.STORE_AWAY, detail="the store can't be reached").to_json()


def sensor(**changed: Any) -> KcrRegionStateSensor:  # noqa: ANN401
    return KcrRegionStateSensor(**{"task_id": "wait", "region": "flights", "state": "paused", **changed})


@pytest.fixture
def busy(driver: Driver) -> Driver:
    """A region that is to pause, with a batch that still runs."""
    driver.start_batch(driver.member(0))
    driver.handle(PAUSE)
    return driver


def test_what_is_reached_already_needs_no_deferral(driver: Driver) -> None:
    driver.handle(PAUSE)
    task = FakeTask()
    sensor().execute(task_context(task))
    assert task.xcoms == {"_link_RegionLink": "/plugin/kcr/regions/flights"}


@pytest.mark.usefixtures("busy")
def test_it_gives_its_slot_up_for_its_timeout() -> None:
    found = deferral(sensor(timeout=60))
    assert waited_for(found) == RegionReaches(state=DesiredState.PAUSED)
    assert isinstance(found.trigger, RegionTrigger)
    assert found.trigger.deadline == 60
    assert found.trigger.asked_at
    assert found.timeout == timedelta(seconds=120)


@pytest.mark.usefixtures("busy")
def test_a_shorter_execution_timeout_counts() -> None:
    found = deferral(sensor(timeout=60, execution_timeout=timedelta(seconds=20)))
    assert isinstance(found.trigger, RegionTrigger)
    assert found.trigger.deadline == 20


@pytest.mark.usefixtures("busy")
def test_a_time_out_is_one_of_a_sensor_and_names_who_is_missing() -> None:
    made = sensor()
    found = deferral(made)
    with pytest.raises(AirflowSensorTimeout, match=r"a batch of g\[0\]"):
        resume(made, found, LATE)


@pytest.mark.usefixtures("busy")
def test_what_can_not_be_reached_is_not_retried_and_a_store_that_was_away_is() -> None:
    made = sensor()
    found = deferral(made)
    with pytest.raises(AirflowFailException, match="halted"):
        resume(made, found, REFUSED)
    with pytest.raises(AirflowException, match="can't be reached") as away:
        resume(made, found, AWAY)
    assert not isinstance(away.value, AirflowFailException)


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("never_or_soft", ["soft_fail", "never_fail"])
@pytest.mark.parametrize(
    ("event", "why"), [(LATE, "gave up after 60 s"), (REFUSED, "is halted")], ids=["late", "refused"]
)
def test_soft_fail_makes_a_skip_of_it_and_the_log_says_why(
    event: dict[str, str], why: str, never_or_soft: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made = sensor(**{never_or_soft: True})
    found = deferral(made)
    with pytest.raises(AirflowSkipException):
        resume(made, found, event)
    assert why in capsys.readouterr().out


def test_soft_fail_makes_a_skip_of_what_is_refused_at_once(driver: Driver, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(AirflowFailException, match="desired state running"):
        sensor().execute(task_context())
    with pytest.raises(AirflowSkipException):
        sensor(soft_fail=True).execute(task_context())
    assert capsys.readouterr().out.count("desired state running") == 1


@pytest.mark.usefixtures("busy")
def test_where_no_triggerer_runs_airflow_ends_it() -> None:
    made = sensor()
    deferral(made)
    with pytest.raises(AirflowSensorTimeout):
        made.resume_execution("__fail__", {"error": "Trigger timeout"}, task_context())


def test_without_deferring_it_pokes(busy: Driver) -> None:
    made = sensor(deferrable=False, poke_interval=0.05, timeout=0.2)
    with pytest.raises(AirflowSensorTimeout):
        made.execute(task_context())
    assert made.poke(task_context()) is False
    for batch in busy.region.running:
        busy.finish_batch(batch)
    assert made.poke(task_context()) is True
    sensor(deferrable=False).execute(task_context())


def test_an_unknown_region_and_a_missing_connection_are_not_retried(driver: Driver) -> None:
    with pytest.raises(AirflowFailException, match="it has: flights"):
        sensor(region="flight").execute(task_context())
    with pytest.raises(AirflowFailException, match="no Airflow connection 'nowhere'"):
        sensor(kcr_conn_id="nowhere").execute(task_context())


def test_a_sensor_is_retried_soon_unless_its_author_says_otherwise() -> None:
    from airflow.sdk import DAG

    assert (sensor().retries, sensor().retry_delay) == (3, timedelta(seconds=10))
    with DAG("d", default_args={"retries": 7}):
        assert sensor().retries == 7
