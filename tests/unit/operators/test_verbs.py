"""The operators of a person's verbs: start and resume, pause, stop and kill, retire, verify."""

from __future__ import annotations

from datetime import timedelta

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_kcr.operators import region as verbs
from airflow_kcr.protocol.region.commands import KillRegion, PinCheckpoint
from airflow_kcr.protocol.region.rows import RegionState
from airflow_kcr.protocol.values import DesiredState
from airflow_kcr.triggers.waits import RegionTrigger
from tests.support.airflow_tasks import FakeTask, deferred, resumed, task_context
from tests.support.databases import execute
from tests.support.driver import PAUSE, Driver
from tests.support.live_region import SPEC, live_region

LINK = {"_link_RegionLink": "/plugin/kcr/regions/flights"}


def leave(driver: Driver) -> None:
    for member in sorted(driver.processes):
        driver.leave(member)


def finish_stop(driver: Driver) -> None:
    """Let the members do their part of a stop."""
    sequence = driver.complete()
    driver.publish()
    for member in sorted(driver.processes):
        if driver.region.restore_sequence == sequence:
            driver.read_back(member)
    leave(driver)


@pytest.mark.parametrize(
    "made",
    [
        verbs.KcrStartOperator,
        verbs.KcrResumeOperator,
        verbs.KcrPauseOperator,
        verbs.KcrStopOperator,
        verbs.KcrKillOperator,
        verbs.KcrRetireOperator,
        verbs.KcrVerifyOperator,
        verbs.KcrValidateGroupOperator,
    ],
)
def test_an_unknown_region_is_not_retried(store_connection: str, made: type[verbs.KcrStartOperator]) -> None:
    with pytest.raises(AirflowFailException, match="nowhere"):
        made(task_id="verb", region="nowhere").execute(task_context())


# -- start and resume --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("made", [verbs.KcrResumeOperator, verbs.KcrStartOperator])
def test_a_paused_region_goes_on_in_the_name_of_the_run(driver: Driver, made: type[verbs.KcrStartOperator]) -> None:
    driver.up()
    driver.handle(PAUSE)
    task = FakeTask()
    said = made(task_id="resume", region="flights").execute(task_context(task, user="ada"))
    assert (said["state"], said["desired_state"], said["epoch"]) == ("running", "running", driver.region.epoch)
    assert driver.region.desired_state is DesiredState.RUNNING
    assert "ada" in repr(driver.events[-1])
    assert task.xcoms == LINK


def test_a_stopped_region_is_started_and_nobody_waits_for_its_members(driver: Driver) -> None:
    said = verbs.KcrStartOperator(task_id="start", region="flights").execute(task_context())
    assert (said["state"], driver.region.state) == ("starting", RegionState.STARTING)


def test_a_start_that_waits_goes_on_when_the_region_runs(driver: Driver) -> None:
    made = verbs.KcrStartOperator(task_id="start", region="flights", wait_for_completion=True)
    waits = deferred(made)
    assert isinstance(waits.trigger, RegionTrigger)
    assert waits.trigger.waiting_for == {"kind": "region_reaches", "state": "running"}
    driver.up()
    assert resumed(made, waits)["state"] == "running"


# -- pause -------------------------------------------------------------------------------------------------------------


def test_an_idle_region_is_paused_at_once_and_again(driver: Driver) -> None:
    driver.up()
    task = FakeTask()
    made = verbs.KcrPauseOperator(task_id="pause", region="flights")
    said = made.execute(task_context(task, user="ada"))
    assert (said["state"], said["desired_state"], said["epoch"]) == ("running", "paused", driver.region.epoch)
    assert task.xcoms == LINK
    assert "ada" in repr(driver.events[-1])
    assert made.execute(task_context()) == said


def test_a_batch_in_flight_is_waited_for_without_a_slot(driver: Driver) -> None:
    driver.up()
    batch = driver.start_batch(driver.member(0))
    made = verbs.KcrPauseOperator(task_id="pause", region="flights")
    waits = deferred(made)
    assert isinstance(waits.trigger, RegionTrigger)
    assert waits.trigger.waiting_for == {"kind": "region_reaches", "state": "paused"}
    driver.finish_batch(batch)
    assert resumed(made, waits)["desired_state"] == "paused"
    assert driver.region.desired_state is DesiredState.PAUSED


# -- stop and kill -----------------------------------------------------------------------------------------------------


def test_a_region_without_members_is_stopped_at_once(driver: Driver) -> None:
    task = FakeTask()
    said = verbs.KcrStopOperator(task_id="stop", region="flights").execute(task_context(task))
    found = said["region"], said["state"], said["timeline"], said["sequence"]
    assert found == ("flights", "stopped", driver.region.timeline, None)
    assert task.xcoms == LINK


def test_a_running_region_is_waited_for_without_a_slot(driver: Driver) -> None:
    driver.up()
    driver.process()
    made = verbs.KcrStopOperator(task_id="stop", region="flights", timeout=timedelta(minutes=5))
    waits = deferred(made, task_context(user="ada"))
    assert isinstance(waits.trigger, RegionTrigger)
    assert waits.trigger.waiting_for == {"kind": "region_reaches", "state": "stopped"}
    assert waits.trigger.deadline == 300
    assert "ada" in repr(driver.events)
    finish_stop(driver)
    said = resumed(made, waits)
    assert (said["state"], said["sequence"]) == ("stopped", driver.region.restore_sequence)
    assert driver.region.state is RegionState.STOPPED


def test_a_task_that_has_lost_what_it_kept_asks_once_more_as_in_dag_test(driver: Driver) -> None:
    driver.up()
    driver.process()
    made = verbs.KcrStopOperator(task_id="stop", region="flights")
    waits = deferred(made)
    finish_stop(driver)
    said = getattr(made, waits.method_name)(task_context(), event={"status": "reached"})
    assert (said["state"], said["sequence"]) == ("stopped", driver.region.restore_sequence)


def test_what_the_trigger_could_not_reach_fails_the_task(driver: Driver) -> None:
    driver.up()
    made = verbs.KcrStopOperator(task_id="stop", region="flights")
    waits = deferred(made)
    with pytest.raises(AirflowException, match="g/1 still holds") as timed_out:
        resumed(made, waits, event={"status": "timed_out", "detail": "g/1 still holds a lease"})
    assert not isinstance(timed_out.value, AirflowFailException)
    with pytest.raises(AirflowFailException, match="it was resumed meanwhile"):
        resumed(made, waits, event={"status": "refused", "detail": "it was resumed meanwhile"})


def test_without_deferring_it_gives_up_by_naming_who_is_missing(driver: Driver) -> None:
    driver.up()
    made = verbs.KcrStopOperator(task_id="stop", region="flights", deferrable=False, timeout=timedelta(seconds=1))
    with pytest.raises(AirflowException, match=r"waits for g\[0\]"):
        made.execute(task_context())


def test_a_task_that_does_not_wait_has_asked(driver: Driver) -> None:
    driver.up()
    made = verbs.KcrStopOperator(task_id="stop", region="flights", wait_for_completion=False)
    said = made.execute(task_context())
    assert (said["state"], said["desired_state"]) == ("draining", "stopped")


def test_a_kill_voids_what_runs_and_waits_for_the_members(driver: Driver) -> None:
    driver.up()
    driver.start_batch(driver.member(0))
    epoch = driver.region.epoch
    made = verbs.KcrKillOperator(task_id="kill", region="flights")
    waits = deferred(made, task_context(user="ada"))
    assert driver.region.epoch > epoch
    assert "ada" in repr(driver.events)
    leave(driver)
    said = resumed(made, waits)
    assert (said["state"], said["sequence"]) == ("stopped", None)


# -- retire, verify ----------------------------------------------------------------------------------------------------


def test_checkpoints_that_retention_gives_up_are_forgotten_once(store_connection: str) -> None:
    with live_region(store_connection, SPEC + "retention: {keep: 1}\n") as driver:
        driver.up()
        first = driver.checkpoint("a")
        reason = "until the region is stopped, which then forgets nothing by itself"
        driver.handle(PinCheckpoint(sequence=first, label="kept", reason=reason))
        for request_id in ("b", "c", "d"):
            driver.checkpoint(request_id)
        driver.handle(KillRegion())
        driver.handle(PinCheckpoint(sequence=first, label="", reason=""))
        made = verbs.KcrRetireOperator(task_id="retire", region="flights")
        assert made.execute(task_context()) == {"region": "flights", "retired": [first]}
        assert made.execute(task_context()) == {"region": "flights", "retired": []}


def test_a_history_is_verified_and_a_contradiction_fails_for_good(driver: Driver, store_connection: str) -> None:
    driver.up()
    driver.process()
    driver.checkpoint("a")
    made = verbs.KcrVerifyOperator(task_id="verify", region="flights")
    assert made.execute(task_context()) == {
        "region": "flights",
        "after": 0,
        "checked_events": len(driver.events),
        "checked_batches": len(driver.batches),
    }
    execute(store_connection, "DELETE FROM kcr.event WHERE number = 3")
    with pytest.raises(AirflowFailException, match=r"violation\(s\); the first: "):
        made.execute(task_context())
