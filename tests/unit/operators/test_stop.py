from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferred

from airflow_kcr.operators.region import KcrKillOperator, KcrStopOperator
from airflow_kcr.protocol.region.rows import RegionState
from airflow_kcr.triggers.waits import RegionTrigger
from tests.support.airflow_tasks import FakeTask, task_context
from tests.support.driver import Driver
from tests.support.live_region import live_region


@pytest.fixture
def driver(store_connection: str) -> Iterator[Driver]:
    with live_region(store_connection) as driver:
        yield driver


def finish_stop(driver: Driver) -> None:
    """Let the members do their part of a stop."""
    sequence = driver.complete()
    driver.publish()
    for member in sorted(driver.processes):
        if driver.region.restore_sequence == sequence:
            driver.read_back(member)
    for member in sorted(driver.processes):
        driver.leave(member)


def test_a_region_without_members_is_stopped_at_once(driver: Driver) -> None:
    task = FakeTask()
    said = KcrStopOperator(task_id="stop", region="flights").execute(task_context(task))
    assert (said["region"], said["state"], said["timeline"], said["sequence"]) == (
        "flights",
        "stopped",
        driver.region.timeline,
        None,
    )
    assert task.xcoms == {"_link_RegionLink": "/plugin/kcr/kcr/regions/flights"}


def test_a_running_region_is_waited_for_without_a_slot(driver: Driver) -> None:
    driver.up()
    driver.process()
    made = KcrStopOperator(task_id="stop", region="flights", timeout=timedelta(minutes=5))
    with pytest.raises(TaskDeferred) as deferred:
        made.execute(task_context(user="ada"))
    trigger = deferred.value.trigger
    assert isinstance(trigger, RegionTrigger)
    assert trigger.waiting_for == {"kind": "region_reaches", "state": "stopped"}
    assert trigger.deadline == 300
    assert "ada" in repr(driver.events)
    finish_stop(driver)
    said = getattr(made, deferred.value.method_name)(
        task_context(), event={"status": "reached"}, **(deferred.value.kwargs or {})
    )
    assert (said["state"], said["sequence"]) == ("stopped", driver.region.restore_sequence)
    assert driver.region.state is RegionState.STOPPED


def test_a_task_that_has_lost_what_it_kept_asks_once_more_as_in_dag_test(driver: Driver) -> None:
    driver.up()
    driver.process()
    made = KcrStopOperator(task_id="stop", region="flights")
    with pytest.raises(TaskDeferred) as deferred:
        made.execute(task_context())
    finish_stop(driver)
    said = getattr(made, deferred.value.method_name)(task_context(), event={"status": "reached"})
    assert (said["state"], said["sequence"]) == ("stopped", driver.region.restore_sequence)


def test_what_the_trigger_could_not_reach_fails_the_task(driver: Driver) -> None:
    driver.up()
    made = KcrStopOperator(task_id="stop", region="flights")
    with pytest.raises(TaskDeferred) as deferred:
        made.execute(task_context())
    resume, kwargs = getattr(made, deferred.value.method_name), deferred.value.kwargs or {}
    with pytest.raises(AirflowException, match="g/1 still holds") as timed_out:
        resume(task_context(), event={"status": "timed_out", "detail": "g/1 still holds a lease"}, **kwargs)
    assert not isinstance(timed_out.value, AirflowFailException)
    with pytest.raises(AirflowFailException, match="it was resumed meanwhile"):
        resume(task_context(), event={"status": "refused", "detail": "it was resumed meanwhile"}, **kwargs)


def test_without_deferring_it_gives_up_by_naming_who_is_missing(driver: Driver) -> None:
    driver.up()
    made = KcrStopOperator(task_id="stop", region="flights", deferrable=False, timeout=timedelta(seconds=1))
    with pytest.raises(AirflowException, match=r"waits for g\[0\]"):
        made.execute(task_context())


def test_a_task_that_does_not_wait_has_asked(driver: Driver) -> None:
    driver.up()
    said = KcrStopOperator(task_id="stop", region="flights", wait_for_completion=False).execute(task_context())
    assert (said["state"], said["desired_state"]) == ("draining", "stopped")


def test_a_kill_voids_what_runs_and_waits_for_the_members(driver: Driver) -> None:
    driver.up()
    driver.start_batch(driver.member(0))
    epoch = driver.region.epoch
    made = KcrKillOperator(task_id="kill", region="flights")
    with pytest.raises(TaskDeferred) as deferred:
        made.execute(task_context(user="ada"))
    assert driver.region.epoch > epoch
    assert "ada" in repr(driver.events)
    for member in sorted(driver.processes):
        driver.leave(member)
    said = getattr(made, deferred.value.method_name)(
        task_context(), event={"status": "reached"}, **(deferred.value.kwargs or {})
    )
    assert (said["state"], said["sequence"]) == ("stopped", None)


def test_an_unknown_region_is_not_retried(store_connection: str) -> None:
    with pytest.raises(AirflowFailException):
        KcrStopOperator(task_id="stop", region="nowhere").execute(task_context())
