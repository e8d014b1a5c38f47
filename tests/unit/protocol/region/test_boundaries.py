from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from airflow_kcr.protocol.observations import LogBounds, TimeAnswer
from airflow_kcr.protocol.region import boundaries, events
from airflow_kcr.protocol.region.commands import KillRegion, Reconcile, StoreBoundaryOffsets
from airflow_kcr.protocol.region.rows import BoundaryOffset
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.rules import CheckpointMode, CheckpointRules
from airflow_kcr.protocol.values import Offset, TopicId
from airflow_kcr.schedules import Every
from tests.support.driver import BEGINNING, Driver
from tests.support.judging import happened
from tests.support.scripts import GRACE, HOUR, NO_RECORD, boundary, boundary_offset, hourly, located, running

NOON = BEGINNING + 12 * HOUR


def locate(answer: TimeAnswer, *, after: timedelta, end: int = 100, restore_point: int = 0) -> BoundaryOffset | None:
    """Ask where noon falls, so long after noon."""
    log = LogBounds(start=Offset(0), end=Offset(end), leader_epoch=4)
    return boundaries.locate(
        boundary=NOON, end_before=log, answer=answer, restore_point=Offset(restore_point), now=NOON + after, grace=GRACE
    )


def record_at(offset: int, stamped: datetime = NOON) -> TimeAnswer:
    return TimeAnswer(offset=Offset(offset), found=stamped)


def schedule_of(driver: Driver, *, mode: CheckpointMode = CheckpointMode.AUTO, catchup: bool = False) -> Region:
    """Return the driver's region with an hourly schedule."""
    checkpoint = CheckpointRules(schedule=Every(HOUR), mode=mode, catchup=catchup)
    region = driver.region
    return replace(region, spec=replace(region.spec, rules=replace(region.rules, checkpoint=checkpoint)))


# -- where a boundary falls
# ----------------------------------------------------------------------------------------------


def test_the_first_record_at_or_after_the_boundary_is_where_it_falls_as_soon_as_it_is_found() -> None:
    for after in (timedelta(0), timedelta(days=1)):
        assert locate(record_at(70), after=after) == BoundaryOffset(offset=Offset(70), leader_epoch=4)


def test_a_record_that_is_stamped_within_the_grace_of_now_is_an_answer() -> None:
    assert locate(record_at(50, NOON + GRACE), after=timedelta(0)) == BoundaryOffset(offset=Offset(50), leader_epoch=4)
    assert locate(record_at(50, NOON + GRACE + timedelta(seconds=1)), after=timedelta(0)) is None


def test_a_record_below_the_restore_point_is_no_answer_and_the_checkpoint_is_not_exact() -> None:
    assert locate(record_at(50), after=timedelta(0), restore_point=60) is None
    found = locate(record_at(50), after=GRACE, restore_point=60)
    assert found is not None
    assert found.offset == 100
    assert "below the restore point's offset 60" in found.inexact


@pytest.mark.parametrize(("high", "is_exact"), [(None, True), (99, True), (100, True), (101, False)])
def test_an_open_transaction_below_the_boundary_is_named(high: int | None, is_exact: bool) -> None:
    found = boundary_offset(NO_RECORD, after=GRACE, end=100, high=high)
    assert found is not None
    assert found.offset == 100
    assert ("a transaction that is open hides the records from 100 on" in found.inexact) is not is_exact


def test_a_record_at_the_restore_point_is_an_answer() -> None:
    assert locate(record_at(60), after=timedelta(0), restore_point=60) == BoundaryOffset(
        offset=Offset(60), leader_epoch=4
    )


# -- the next boundary
# ---------------------------------------------------------------------------------------------------


def test_a_region_without_a_schedule_has_no_next_boundary() -> None:
    region = running().region
    assert region.next_boundary is None
    assert boundaries.next_boundary_after(region, BEGINNING) is None
    assert boundaries.passed(region, BEGINNING) is None
    assert not boundaries.is_automatic(region)


def test_a_boundary_that_does_not_change_is_no_event() -> None:
    driver = hourly()
    region = driver.region
    assert boundaries.with_next_boundary(region, driver.clock.now, boundary(1), "again") is region
    changed = boundaries.with_next_boundary(region, driver.clock.now, None, "gone")
    assert changed.next_boundary is None
    assert changed.events[-1].body == events.NextBoundaryChanged(boundary=None, why="gone")


# -- a boundary that has passed
# ------------------------------------------------------------------------------------------


def test_a_boundary_beyond_the_schedules_latest_instant_is_not_taken_back() -> None:
    region = replace(schedule_of(running()), next_boundary=boundary(1.5))
    assert boundaries.passed(region, boundary(1.75)) == boundary(1.5)


# -- the limit and the stored offsets ---------------------------------------------------------------------------------


def test_the_first_plan_that_finds_a_boundary_says_where_it_falls_for_ever() -> None:
    driver = hourly(partitions=1, members=1)
    located(driver, boundary(1), 30)
    located(driver, boundary(1), 40)
    row = boundaries.boundary_offset(driver.region, driver.partition(0), boundary(1))
    assert row == BoundaryOffset(offset=Offset(30))
    assert [b.offsets[driver.partition(0)] for b in happened(driver, events.BoundaryStored)] == [30]


def test_what_is_not_exact_is_stored_with_its_reason() -> None:
    driver = hourly(partitions=2, members=1)
    found = {
        driver.partition(0): BoundaryOffset(offset=Offset(30), inexact="stamped 2099"),
        driver.partition(1): BoundaryOffset(offset=Offset(30)),
    }
    caller = driver.caller(driver.member(0))
    driver.handle(StoreBoundaryOffsets(caller=caller, boundary=boundary(1), found=found))
    assert happened(driver, events.BoundaryStored)[0].inexact == {driver.partition(0): "stamped 2099"}


def test_a_boundary_offset_belongs_to_the_topic_id_that_it_was_found_for() -> None:
    driver = hourly(partitions=1, members=1)
    located(driver, boundary(1), 30)
    partition, region = driver.partition(0), driver.region
    recreated = {partition: replace(region.claims[partition], topic_id=TopicId("id-2"))}
    assert boundaries.boundary_offset(replace(region, claims=recreated), partition, boundary(1)) is None
    assert boundaries.boundary_offset(region, driver.partition(9), boundary(1)) is None


def test_nothing_is_stored_for_a_partition_that_nobody_knows() -> None:
    driver = hourly(partitions=1, members=1)
    report = StoreBoundaryOffsets(
        caller=driver.caller(driver.member(0)),
        boundary=boundary(1),
        found={driver.partition(9): BoundaryOffset(offset=Offset(3))},
    )
    assert boundaries.store(driver.region, driver.clock.now, report) == driver.region


# -- past the boundary
# ---------------------------------------------------------------------------------------------------


def overshoot(driver: Driver) -> dict[str, str]:
    found = boundaries.overshoot(driver.region, boundary(1), frozenset(driver.region.claims))
    return {str(p): why for p, why in found.items()}


def test_a_position_beyond_a_boundaries_offset_is_past_it_and_says_where() -> None:
    driver = hourly(partitions=1, members=1)
    driver.process()
    assert overshoot(driver) == {}
    located(driver, boundary(1), 9)
    assert overshoot(driver) == {"g:t-0": "at 10, past the boundary's offset 9"}


@pytest.mark.parametrize(("offset", "inexact"), [(10, ""), (5, "an ignored answer")])
def test_neither_one_at_the_boundary_nor_one_that_passed_an_ignored_answer_is_past_it(
    offset: int, inexact: str
) -> None:
    driver = hourly(partitions=1, members=1)
    driver.process()
    located(driver, boundary(1), offset, inexact=inexact)
    assert overshoot(driver) == {}


def test_a_position_that_only_stepped_over_a_skipped_record_is_not_past_the_boundary() -> None:
    driver = hourly(partitions=1, members=1)
    driver.process()
    located(driver, boundary(1), 9)
    region = replace(driver.region, skips={driver.partition(0): (Offset(9),)})
    assert boundaries.overshoot(region, boundary(1), frozenset(region.claims)) == {}


def test_a_position_that_is_not_known_is_past_nothing() -> None:
    driver = hourly(partitions=1, members=1)
    located(driver, boundary(1), 9)
    claim = replace(driver.region.claims[driver.partition(0)], position=None)
    region = replace(driver.region, claims={driver.partition(0): claim})
    assert boundaries.overshoot(region, boundary(1), frozenset(region.claims)) == {}


# -- a hold that lasts ------------------------------------------------------------------------------------------------


def test_a_hold_longer_than_a_period_is_told_once_for_each_boundary() -> None:
    driver = hourly()
    assert driver.region.next_boundary == BEGINNING + HOUR
    driver.clock.advance(HOUR.total_seconds())
    driver.handle(Reconcile())
    assert happened(driver, events.BoundaryHeld) == []
    assert driver.region.reconcile_at == BEGINNING + 2 * HOUR
    for _ in range(2):
        driver.clock.advance(HOUR.total_seconds())
        driver.handle(Reconcile())
    assert happened(driver, events.BoundaryHeld) == [events.BoundaryHeld(boundary=BEGINNING + HOUR)]


def test_a_region_that_was_killed_holds_nobody_and_is_late_for_nothing() -> None:
    driver = hourly()
    late = BEGINNING + 3 * HOUR
    assert boundaries.overdue(driver.region, late) == 2 * HOUR
    driver.handle(KillRegion())
    driver.clock.advance(3 * HOUR.total_seconds())
    driver.handle(Reconcile())
    assert happened(driver, events.BoundaryHeld) == []
    assert boundaries.overdue(driver.region, late) is None


def test_a_region_that_checkpoints_itself_waits_for_nobody() -> None:
    driver = hourly(mode=CheckpointMode.AUTO)
    driver.clock.advance(3 * HOUR.total_seconds())
    driver.handle(Reconcile())
    assert happened(driver, events.BoundaryHeld) == []
