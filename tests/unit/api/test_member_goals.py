from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from airflow_kcr.errors import TimedOut
from airflow_kcr.goals import Goal, MembersEnded, RunEnded
from airflow_kcr.protocol.region.commands import KillRegion, Reconcile, Run
from airflow_kcr.protocol.values import GroupId, RequestId
from tests.support.driver import Driver
from tests.support.scripts import carried_out, located


@pytest.fixture
def driver() -> Driver:
    return Driver(partitions=2, members=2)


def ended(driver: Driver, before: int, come_by: datetime | None = None) -> Goal:
    """Return the goal of an application of both members, which had these incarnations before it."""
    return MembersEnded(group=GroupId("g"), indexes=(0, 1), before=(before, before), come_by=come_by)


@pytest.fixture
def goal(driver: Driver) -> Goal:
    """The application of both members, started before any of them ever lived."""
    return ended(driver, 0)


def reached(driver: Driver, goal: Goal) -> bool:
    return goal.is_reached(*driver.store.read(driver.name))


def missing(driver: Driver, goal: Goal) -> list[str]:
    return [wait.what for wait in goal.missing(*driver.store.read(driver.name))]


def test_members_that_have_not_come_yet_are_waited_for_even_in_a_stopped_region(driver: Driver, goal: Goal) -> None:
    assert not reached(driver, goal)
    assert missing(driver, goal) == ["g[0] has not come yet", "g[1] has not come yet"]


def test_members_that_live_are_waited_for(driver: Driver, goal: Goal) -> None:
    driver.up()
    assert not reached(driver, goal)
    assert missing(driver, goal) == ["g[0] consumes", "g[1] consumes"]


def test_a_region_that_has_stopped_ends_its_applications(driver: Driver, goal: Goal) -> None:
    driver.up()
    driver.handle(KillRegion())
    assert reached(driver, goal)


def test_members_that_lost_their_lease_a_moment_ago_may_come_back(driver: Driver, goal: Goal) -> None:
    driver.up()
    driver.clock.advance(driver.region.rules.timeouts.lease.total_seconds() + 1)
    assert not reached(driver, goal)


def test_members_that_stay_away_while_the_region_goes_on_need_another_application(driver: Driver, goal: Goal) -> None:
    driver.up()
    driver.clock.advance(driver.region.rules.timeouts.lease.total_seconds() + 61)
    with pytest.raises(TimedOut, match=r"g\[0\], g\[1\] .*had no lease for 60 s: the application has ended"):
        reached(driver, goal)


def test_an_earlier_application_s_members_don_t_count(driver: Driver) -> None:
    driver.up()
    driver.clock.advance(3600)
    assert not reached(driver, ended(driver, 1))


def test_members_of_whom_none_comes_in_time_need_another_application(driver: Driver) -> None:
    latest = driver.clock.now + timedelta(minutes=30)
    goal = ended(driver, 0, latest)
    driver.clock.advance(1799)
    assert not reached(driver, goal)
    driver.clock.advance(2)
    with pytest.raises(TimedOut, match=r"g\[0\], g\[1\] .*did not come by .*see its log in the cluster"):
        reached(driver, goal)


def test_where_one_has_come_the_others_may_take_their_time(driver: Driver) -> None:
    goal = ended(driver, 0, driver.clock.now)
    driver.up()
    assert not reached(driver, goal)


# -- the end of a run --------------------------------------------------------------------------------------------------


NONE_BEFORE = {"g[0]": 0, "g[1]": 0}
"""Both members belong to the application, and have never been there."""


def run_of(driver: Driver, come_by: datetime | None = None) -> Goal:
    """Ask for a run up to now, and return the goal of its application."""
    wanted = Run(request_id=RequestId("r"), boundary=driver.clock())
    driver.handle(wanted)
    return RunEnded(request_id=RequestId("r"), before=NONE_BEFORE, come_by=come_by)


def test_a_run_is_over_with_its_published_checkpoint_and_the_stop_of_the_region(driver: Driver) -> None:
    goal = run_of(driver)
    for member in driver.all_members():
        driver.join(member)
    driver.spread()
    driver.finish_reset()
    located(driver, driver.clock(), 0)
    driver.handle(Reconcile())
    driver.complete()
    assert not reached(driver, goal)
    driver.publish()
    assert not reached(driver, goal)
    assert missing(driver, goal) != []
    for member in sorted(driver.processes):
        driver.read_back(member)
    driver.handle(Reconcile())
    assert reached(driver, goal)


def test_a_run_whose_application_has_gone_needs_another_try(driver: Driver) -> None:
    goal = run_of(driver)
    driver.join(driver.member(0))
    driver.clock.advance(driver.region.rules.timeouts.lease.total_seconds() + 1)
    assert not reached(driver, goal)
    driver.clock.advance(61)
    with pytest.raises(TimedOut, match=r"^g\[0\] of region flights, which is .*, had no lease for 60 s"):
        reached(driver, goal)


def test_a_run_whose_application_never_came_needs_another_try(driver: Driver) -> None:
    goal = run_of(driver, come_by=driver.clock() + timedelta(seconds=10))
    assert not reached(driver, goal)
    driver.clock.advance(11)
    with pytest.raises(TimedOut, match=r"^g\[0\], g\[1\] of region flights did not come by "):
        reached(driver, goal)


def test_a_run_that_its_application_has_not_asked_for_yet_is_waited_for(driver: Driver) -> None:
    goal = RunEnded(request_id=RequestId("r"), before=NONE_BEFORE)
    assert not reached(driver, goal)
    assert missing(driver, goal) == ["the run's application has not come yet"]
    run_of(driver)
    driver.handle(KillRegion())
    assert not reached(driver, goal)  # what is left of an earlier try says nothing


def test_an_application_of_some_members_answers_for_no_others(driver: Driver) -> None:
    run_of(driver)
    goal = RunEnded(request_id=RequestId("r"), before={"g[1]": 0}, come_by=driver.clock() + timedelta(seconds=10))
    driver.join(driver.member(0))
    driver.clock.advance(driver.region.rules.timeouts.lease.total_seconds() + 61)
    with pytest.raises(TimedOut, match=r"^g\[1\] of region flights did not come by "):
        reached(driver, goal)


def test_an_application_that_comes_when_the_others_have_ended_the_run_is_not_waited_for(driver: Driver) -> None:
    wanted = Run(request_id=RequestId("r"), boundary=driver.clock())
    carried_out(driver, wanted, 0)
    assert reached(driver, RunEnded(request_id=RequestId("r"), before={"g[1]": 1}, come_by=driver.clock()))
