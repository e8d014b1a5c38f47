"""Boundaries at which nothing has moved.

Checkpoints with equal offsets stay on the current timeline together, whatever is reset.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.region.commands import ChangeSpec, KillRegion, Reconcile
from airflow_kcr.protocol.region.rows import CheckpointState, RegionState
from airflow_kcr.protocol.region.state import Spec
from airflow_kcr.protocol.rules import CheckpointMode, CheckpointRules, Schedule
from airflow_kcr.protocol.targets import Target, ToCheckpoint, ToCurrent, ToInitial
from airflow_kcr.protocol.values import CheckpointNumber
from airflow_kcr.schedules import CronSchedule, Every
from tests.support.driver import START, STOP, Driver
from tests.support.judging import happened, judge, open_checkpoint, state
from tests.support.scripts import HOUR, boundary, hourly, located

IDLE = 4
catching_up = pytest.mark.parametrize("catchup", [True, False])


def checkpoint_itself(driver: Driver) -> CheckpointNumber | None:
    """Let the region's own checkpoint, if one is open, be completed and published; nothing has been produced."""
    checkpoint = driver.region.checkpoint
    if checkpoint is None:
        return None
    if checkpoint.boundary is not None:
        located(driver, checkpoint.boundary, 0)
    sequence = driver.complete()
    driver.publish()
    for member in sorted(driver.processes):
        driver.read_back(member)
    return sequence


def pass_bounds(driver: Driver, number: int) -> list[CheckpointNumber]:
    """Let N hours pass, and every checkpoint be made that the region asks of its members."""
    made: list[CheckpointNumber] = []
    for _ in range(number):
        driver.wait(HOUR.total_seconds())
        while (sequence := checkpoint_itself(driver)) is not None:
            made.append(sequence)
    return made


def idle(*, catchup: bool = True, mode: CheckpointMode = CheckpointMode.AUTO) -> tuple[Driver, list[CheckpointNumber]]:
    """Return a region that has checkpointed itself at four boundaries where nothing had come, and its checkpoints."""
    driver = hourly(mode=mode, catchup=catchup, partitions=2, members=2)
    return driver, pass_bounds(driver, IDLE)


def carried_out(driver: Driver, target: Target, *, forced: bool = False) -> None:
    """Carry out a person's reset to its end."""
    driver.reset(target, forced=forced)
    if open_checkpoint(driver) is not None:
        driver.complete()
    driver.finish_reset()
    assert driver.region.state is RegionState.RUNNING


@catching_up
@pytest.mark.parametrize("number", range(IDLE))
@pytest.mark.parametrize("forced", [False, True])
def test_after_a_reset_to_any_checkpoint_of_equal_offsets_the_next_boundary_has_its_checkpoint(
    number: int, catchup: bool, forced: bool
) -> None:
    driver, checkpoints = idle(catchup=catchup)
    assert len(checkpoints) == IDLE
    carried_out(driver, ToCheckpoint(sequence=checkpoints[number]), forced=forced)
    assert driver.region.next_boundary == boundary(IDLE + 1)
    made = pass_bounds(driver, 3)
    assert [driver.region.checkpoints[s].boundary for s in made] == [boundary(IDLE + n) for n in (1, 2, 3)]
    driver.process()
    judge(driver)


@catching_up
def test_where_a_reset_undoes_some_of_them_their_boundaries_have_their_checkpoints_again(catchup: bool) -> None:
    driver, checkpoints = idle(catchup=catchup)
    driver.wait(HOUR.total_seconds())
    located(driver, boundary(IDLE + 1), 10)
    driver.process()
    driver.handle(Reconcile())
    driver.complete()
    driver.publish()
    carried_out(driver, ToCheckpoint(sequence=checkpoints[2]))
    assert driver.region.next_boundary == boundary(IDLE + 1)
    assert open_checkpoint(driver) is not None
    driver.process()
    driver.handle(Reconcile())
    again = driver.complete()
    driver.publish()
    assert driver.region.checkpoints[again].boundary == boundary(IDLE + 1)
    assert pass_bounds(driver, 1) == [again + 1]
    judge(driver)


@catching_up
@pytest.mark.parametrize("target", [ToCurrent(), ToInitial()], ids=["current", "initial"])
def test_after_any_other_reset_that_moves_nothing_too(target: Target, catchup: bool) -> None:
    driver, _ = idle(catchup=catchup)
    carried_out(driver, target)
    assert len(pass_bounds(driver, 2)) == 2
    judge(driver)


@catching_up
def test_a_reset_before_a_stop_or_a_kill_stalls_nothing_after_the_start(catchup: bool) -> None:
    for end in (driver_stop, driver_kill):
        driver, checkpoints = idle(catchup=catchup)
        carried_out(driver, ToCheckpoint(sequence=checkpoints[1]))
        end(driver)
        assert state(driver) is RegionState.STOPPED
        driver.processes.clear()
        driver.wait(60)
        driver.handle(START)
        driver.recover()
        assert len(pass_bounds(driver, 2)) == 2
        judge(driver)


def driver_stop(driver: Driver) -> None:
    driver.handle(STOP)
    checkpoint_itself(driver)


def driver_kill(driver: Driver) -> None:
    driver.handle(KillRegion())


def test_where_runs_ask_members_do_not_hold_at_a_boundary_that_has_its_checkpoint() -> None:
    driver = hourly(mode=CheckpointMode.DAG_RUN, partitions=2, members=2)
    made = []
    for hours in range(1, IDLE + 1):
        driver.wait(HOUR.total_seconds())
        driver.request_checkpoint(f"run-{hours}", boundary=boundary(hours))
        made.append(checkpoint_itself(driver))
    third = made[2]
    assert third is not None
    carried_out(driver, ToCheckpoint(sequence=third))
    assert driver.region.next_boundary == boundary(IDLE + 1)
    driver.process()
    assert happened(driver, events.BoundaryHeld) == []


@pytest.mark.parametrize(
    "schedule",
    [Every(timedelta(minutes=20)), Every(timedelta(hours=3)), CronSchedule("*/7 * * * *"), CronSchedule("0 */2 * * *")],
    ids=["finer", "coarser", "finer cron", "coarser cron"],
)
@catching_up
def test_a_changed_schedule_after_such_a_reset_stalls_nothing(schedule: Schedule, catchup: bool) -> None:
    driver, checkpoints = idle(catchup=catchup)
    carried_out(driver, ToCheckpoint(sequence=checkpoints[0]))
    rules = replace(driver.region.rules, checkpoint=CheckpointRules(schedule=schedule, catchup=catchup))
    driver.handle(ChangeSpec(at_once=Spec(text="{}", rules=rules, revision=2)))
    assert pass_bounds(driver, 7)
    driver.process()
    judge(driver)


def test_a_store_that_holds_a_region_stalled_by_an_older_version_goes_on_by_itself() -> None:
    driver, checkpoints = idle()
    driver.change(lambda region, now: replace(region, next_boundary=boundary(4)))
    driver.wait(1)
    assert driver.region.next_boundary == boundary(IDLE + 1)
    why = happened(driver, events.NextBoundaryChanged)[-1].why
    assert f"checkpoint {checkpoints[-1]} answers it" in why
    assert len(pass_bounds(driver, 1)) == 1


def test_a_boundary_whose_checkpoint_was_retired_is_stepped_over_as_well() -> None:
    driver, checkpoints = idle()
    region = driver.region
    newest = replace(region.checkpoints[checkpoints[-1]], state=CheckpointState.RETIRED)
    older = replace(region.with_checkpoint(newest), next_boundary=boundary(2))
    driver.change(lambda *_: older)
    driver.wait(1)
    assert driver.region.next_boundary == boundary(IDLE + 1)


def test_an_aborted_checkpoint_of_a_boundary_is_made_again() -> None:
    driver, _ = idle()
    driver.wait(HOUR.total_seconds())
    located(driver, boundary(IDLE + 1), 0)
    driver.wait(200)
    assert happened(driver, events.CheckpointAborted)
    assert checkpoint_itself(driver) is not None
    assert driver.region.next_boundary == boundary(IDLE + 2)
