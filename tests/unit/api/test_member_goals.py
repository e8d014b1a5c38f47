from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from airflow_kcr.errors import TimedOut
from airflow_kcr.goals import Goal, MembersEnded
from airflow_kcr.protocol.region.commands import KillRegion
from airflow_kcr.protocol.values import GroupId
from tests.support.driver import Driver


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
