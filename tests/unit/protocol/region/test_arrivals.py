"""A start waits for the members of the spec that have not arrived, for a bounded time."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_kcr.protocol.region import coverage, events
from airflow_kcr.protocol.region.rows import RegionState
from airflow_kcr.protocol.timeouts import Timeouts
from tests.support.driver import START, Driver
from tests.support.judging import happened, judge, state

WAIT = Timeouts().arrival_wait.total_seconds()
GRACE = 1.0


def alone(members: int = 2) -> Driver:
    """A region that starts; one of its members has come, and done all that it can."""
    driver = Driver(members=members)
    driver.handle(START)
    driver.join(driver.member(0))
    driver.spread()
    driver.finish_reset()
    return driver


def test_a_start_waits_for_a_member_that_has_not_arrived_and_names_it() -> None:
    driver = alone(members=3)
    assert state(driver) is RegionState.RESETTING
    assert list(coverage.unready(driver.region, driver.clock.now)) == [
        "g[1] has not arrived, until 2026-01-01T00:00:30Z at the latest",
        "g[2] has not arrived, until 2026-01-01T00:00:30Z at the latest",
    ]
    driver.wait(WAIT - GRACE)
    assert state(driver) is RegionState.RESETTING


def test_a_member_that_arrives_meanwhile_costs_no_reset() -> None:
    driver = alone()
    driver.wait(WAIT / 2)
    driver.join(driver.member(1))
    driver.spread()
    driver.finish_reset()
    assert state(driver) is RegionState.RUNNING
    driver.process()
    assert len(happened(driver, events.ResetBegun)) == 1
    judge(driver)


def test_a_start_goes_on_without_a_member_that_never_comes() -> None:
    driver = alone()
    assert driver.region.reconcile_at is not None
    driver.wait(WAIT)
    assert state(driver) is RegionState.RUNNING
    driver.process()
    judge(driver)


def test_the_wait_begins_when_those_who_came_could_do_all_the_work() -> None:
    driver = Driver()
    driver.handle(START)
    driver.clock.advance(3_600)
    driver.join(driver.member(0))
    driver.spread()
    driver.finish_reset()
    driver.wait(WAIT - GRACE)
    assert state(driver) is RegionState.RESETTING
    driver.wait(GRACE)
    assert state(driver) is RegionState.RUNNING


def test_only_a_start_waits() -> None:
    driver = Driver()
    driver.up()
    driver.process()
    driver.crash(driver.member(1))
    driver.wait(Timeouts().session_timeout(static=True).total_seconds() + 60)
    driver.spread()
    driver.finish_reset()
    assert state(driver) is RegionState.RUNNING


@pytest.mark.parametrize("reset", [8.0, 300.0])
def test_the_wait_leaves_time_for_the_attempt(reset: float) -> None:
    times = Timeouts(reset=timedelta(seconds=reset))
    assert times.arrival_wait <= times.reset / 4
