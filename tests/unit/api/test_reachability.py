"""What retention has overtaken, and when it will: from the logs as cuts saw them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import pytest

from airflow_kcr.api import ways_back
from airflow_kcr.api.checkpoint_views import CheckpointSummary
from airflow_kcr.api.reachability import Reach, reach
from airflow_kcr.protocol.region.archive import LogStart, Whole
from airflow_kcr.protocol.targets import ToEarliest
from airflow_kcr.protocol.values import GroupPartition, Sequence
from tests.support.driver import BEGINNING, Driver

MINUTE = timedelta(minutes=1)


@pytest.fixture
def driver() -> Driver:
    """Cut 2 at 100 at the beginning, cut 3 at 200 ten seconds later."""
    driver = Driver(members=1, partitions=2)
    driver.up()
    driver.process(width=100)
    driver.cut("first")
    driver.process(width=100)
    return driver


def later_cut(driver: Driver, start: int) -> None:
    """Let ten seconds pass, move the begin of partition 1, and cut."""
    driver.clock.advance(5)
    driver.beat()
    driver.clock.advance(5)
    driver.grow(driver.partition(1), start=start, end=1_000)
    driver.cut("second")


def test_a_log_that_does_not_move_reaches_nothing(driver: Driver) -> None:
    later_cut(driver, 0)
    assert reach(driver.held, driver.region.checkpoints.values()) == {Sequence(2): Reach(), Sequence(3): Reach()}


def test_the_speed_between_two_cuts_says_when(driver: Driver) -> None:
    later_cut(driver, 50)
    found = reach(driver.held, driver.region.checkpoints.values())
    assert found[Sequence(2)].overtaken_at == BEGINNING + timedelta(seconds=20)
    assert found[Sequence(3)].overtaken_at == BEGINNING + timedelta(seconds=40)
    assert not found[Sequence(2)].is_unreachable


def test_what_a_log_begins_beyond_is_unreachable(driver: Driver) -> None:
    later_cut(driver, 150)
    found = reach(driver.held, driver.region.checkpoints.values())
    assert found[Sequence(2)] == Reach(lost=(driver.partition(1),))
    assert not found[Sequence(3)].is_unreachable
    rows = [summary.to_json() for summary in CheckpointSummary.newest_of(driver.held, before=None, last=None)]
    assert [row["unreachable"] for row in rows] == [True, False]


def test_one_observation_is_no_speed(driver: Driver) -> None:
    assert reach(driver.held, driver.region.checkpoints.values()) == {Sequence(2): Reach()}


def test_a_checkpoint_of_a_topic_that_was_made_anew_is_lost(driver: Driver) -> None:
    driver.grow(driver.partition(1), end=1_000, topic_id="id-2")
    driver.reset(ToEarliest(), forced=True)
    driver.settle_reset()
    later_cut_of_new(driver)
    found = reach(driver.held, driver.region.checkpoints.values())
    assert (found[Sequence(2)].lost, found[Sequence(2)].overtaken_at) == ((driver.partition(1),), None)
    assert found[driver.region.base or Sequence(0)].lost == ()


def later_cut_of_new(driver: Driver) -> None:
    driver.clock.advance(5)
    driver.beat()
    driver.cut("second")


def test_a_checkpoint_without_offsets_has_no_reach(driver: Driver) -> None:
    driver.request_cut("open")
    assert CheckpointSummary.newest_of(driver.held, before=None, last=None)[-1].to_json()["unreachable"] is None


def test_the_way_back_is_looked_for_no_further_than_the_logs_begin(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ways_back, "_PAGE", 3)
    for number in range(9):
        driver.process(width=10)
        driver.cut(f"more-{number}")
    later_cut(driver, 285)
    asked = 0
    log_starts = Whole.log_starts

    def counted(self: Whole) -> Mapping[GroupPartition, tuple[LogStart, ...]]:
        nonlocal asked
        asked += 1
        return log_starts(self)

    monkeypatch.setattr(Whole, "log_starts", counted)
    found = ways_back.ways_back(driver.held, 4)
    assert [way.checkpoint.sequence for way in found] == [12, 11], "at 290"
    assert asked == 2, "the second page has none that can be reached"
