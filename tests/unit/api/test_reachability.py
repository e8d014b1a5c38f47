"""What retention has overtaken, and when it will: from the logs as checkpoints saw them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_kcr.api import Region, checkpoints
from airflow_kcr.api.checkpoints import Reach, reach
from airflow_kcr.protocol.region.archive import CheckpointPage
from airflow_kcr.protocol.targets import ToEarliest
from airflow_kcr.protocol.values import CheckpointNumber
from tests.support.driver import BEGINNING, Driver
from tests.support.past import Whole

MINUTE = timedelta(minutes=1)


@pytest.fixture
def driver() -> Driver:
    """Checkpoint 2 at 100 at the beginning, checkpoint 3 at 200 ten seconds later."""
    driver = Driver(members=1, partitions=2)
    driver.up()
    driver.process(width=100)
    driver.checkpoint("first")
    driver.process(width=100)
    return driver


def page(driver: Driver) -> CheckpointPage:
    """Return all checkpoints with what tells of them."""
    return driver.held.archive.checkpoint_page(before=None, last=None)


def later_checkpoint(driver: Driver, start: int) -> None:
    """Let ten seconds pass, move the start of partition 1, and checkpoint."""
    driver.clock.advance(5)
    driver.heartbeat()
    driver.clock.advance(5)
    driver.grow(driver.partition(1), start=start, end=1_000)
    driver.checkpoint("second")


def test_a_log_that_does_not_move_reaches_nothing(driver: Driver) -> None:
    later_checkpoint(driver, 0)
    assert reach(page(driver)) == {
        CheckpointNumber(2): Reach(),
        CheckpointNumber(3): Reach(),
    }


def test_the_speed_between_two_checkpoints_says_when(driver: Driver) -> None:
    later_checkpoint(driver, 50)
    found = reach(page(driver))
    assert found[CheckpointNumber(2)].overtaken_at == BEGINNING + timedelta(seconds=20)
    assert found[CheckpointNumber(3)].overtaken_at == BEGINNING + timedelta(seconds=40)
    assert not found[CheckpointNumber(2)].is_unreachable


def test_what_a_log_begins_beyond_is_unreachable(driver: Driver) -> None:
    later_checkpoint(driver, 150)
    found = reach(page(driver))
    assert found[CheckpointNumber(2)] == Reach(lost=(driver.partition(1),))
    assert not found[CheckpointNumber(3)].is_unreachable
    rows = [summary.to_json() for summary in Region(driver.name, driver.store).checkpoints.list()]
    assert [row["unreachable"] for row in rows] == [True, False]


def test_one_observation_is_no_speed(driver: Driver) -> None:
    assert reach(page(driver)) == {CheckpointNumber(2): Reach()}


def test_a_checkpoint_of_a_topic_that_was_made_anew_is_lost(driver: Driver) -> None:
    driver.grow(driver.partition(1), end=1_000, topic_id="id-2")
    driver.reset(ToEarliest(), forced=True)
    driver.finish_reset()
    later_checkpoint_of_new(driver)
    found = reach(page(driver))
    assert (found[CheckpointNumber(2)].lost, found[CheckpointNumber(2)].overtaken_at) == ((driver.partition(1),), None)
    assert found[driver.region.restore_sequence or CheckpointNumber(0)].lost == ()


def later_checkpoint_of_new(driver: Driver) -> None:
    driver.clock.advance(5)
    driver.heartbeat()
    driver.checkpoint("second")


def test_a_checkpoint_without_offsets_has_no_reach(driver: Driver) -> None:
    driver.request_checkpoint("open")
    assert Region(driver.name, driver.store).checkpoints.list()[-1].to_json()["unreachable"] is None


def test_the_way_back_is_looked_for_no_further_than_the_logs_begin(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "_PAGE", 3)
    for number in range(9):
        driver.process(width=10)
        driver.checkpoint(f"more-{number}")
    later_checkpoint(driver, 285)
    asked = 0
    checkpoint_page = Whole.checkpoint_page

    def counted(self: Whole, *, before: CheckpointNumber | None, last: int | None) -> CheckpointPage:
        nonlocal asked
        asked += 1
        return checkpoint_page(self, before=before, last=last)

    monkeypatch.setattr(Whole, "checkpoint_page", counted)
    found = checkpoints.ways_back(driver.held, 4)
    assert [way.checkpoint.sequence for way in found] == [12, 11], "at 290"
    assert asked == 2, "the second page has none that can be reached"
