from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from airflow_kcr.protocol.offsets import EMPTY, OffsetMap, SeekEntry, SeekSource
from airflow_kcr.protocol.region import claims
from airflow_kcr.protocol.region.claims import PUBLISHER_TURN
from airflow_kcr.protocol.region.commands import ReadRegion
from airflow_kcr.protocol.region.rows import BoundaryOffset, Committed, RegionState, ResetCause
from airflow_kcr.protocol.region.view import MemberRegion
from airflow_kcr.protocol.rules import Delivery
from airflow_kcr.protocol.targets import ToDatetime
from airflow_kcr.protocol.values import CheckpointNumber, DesiredState, MemberId, Offset
from tests.support.driver import BEGINNING, Driver
from tests.support.judging import checkpoint_of
from tests.support.scripts import boundary, hourly, located, running, started


def seen(driver: Driver, member: MemberId | None = None) -> MemberRegion:
    """Return what a member sees; by default the first."""
    return driver.handle(ReadRegion(member=member or driver.member(0)))


def complete_checkpoint(driver: Driver) -> CheckpointNumber:
    driver.process()
    driver.request_checkpoint("n")
    return driver.complete()


def test_a_member_sees_the_regions_state_and_numbers_and_its_own() -> None:
    driver = running()
    found, region = seen(driver), driver.region
    assert (found.counter, found.epoch, found.timeline) == (region.counter, 1, 1)
    assert (found.state, found.desired_state) == (RegionState.RUNNING, DesiredState.RUNNING)
    assert (found.next_sequence, found.spec_digest, found.incarnation) == (region.next_sequence, region.spec.digest, 1)
    assert found.acknowledged
    assert found.initialised
    assert not found.left
    assert not found.stopping


def test_it_sees_what_it_holds_in_this_epoch_and_by_its_newest_incarnation() -> None:
    driver = running()
    assert seen(driver).claims.keys() == {driver.partition(0), driver.partition(1)}
    driver.join(driver.member(0), takeover=True)
    assert seen(driver).claims == {}
    driver.claim(driver.member(0), [driver.partition(0)])
    assert seen(driver).claims.keys() == {driver.partition(0)}
    driver.request_reset(driver.member(0), ResetCause.BATCH_FAILED)
    assert seen(driver).claims == {}
    assert not seen(driver).acknowledged


def test_it_sees_that_it_has_left_and_that_a_newer_incarnation_exists() -> None:
    driver = running()
    driver.leave(driver.member(1))
    assert seen(driver, driver.member(1)).left
    driver.join(driver.member(0), takeover=True)
    assert seen(driver).incarnation == 2


# -- checkpoints
# -------------------------------------------------------------------------------------------------------------


def test_it_sees_the_open_checkpoint_and_its_own_place_in_it() -> None:
    driver = running()
    assert seen(driver).checkpoint is None
    driver.request_checkpoint("n")
    assert seen(driver).checkpoint == driver.region.checkpoint
    assert not seen(driver).contributed
    driver.contribute(driver.member(0))
    assert seen(driver).contributed
    assert not seen(driver, driver.member(1)).contributed


def test_it_sees_the_boundary_that_no_batch_may_cross_where_it_falls_and_the_restore_point_below_it() -> None:
    driver = hourly()
    assert (seen(driver).limit, seen(driver).boundary_offsets) == (boundary(1), {})
    located(driver, boundary(1), 30)
    found = seen(driver)
    assert found.boundary_offsets == dict.fromkeys(found.claims, BoundaryOffset(offset=Offset(30)))
    assert found.restore_point == OffsetMap(dict.fromkeys(found.claims, Offset(0)))
    plain = seen(running())
    assert (plain.limit, plain.boundary_offsets, plain.restore_point) == (None, {}, EMPTY)


def test_it_sees_the_records_of_its_partitions_that_are_skipped() -> None:
    driver = running(partitions=2)
    skips = {driver.partition(0): (Offset(3),), driver.partition(1): (Offset(4),)}
    region = replace(driver.region, skips=skips)
    found = claims.of_member(region, driver.member(0), driver.clock.now)
    assert found.skips == {driver.partition(0): (3,)}


# -- resets -----------------------------------------------------------------------------------------------------------


def test_it_sees_the_open_entries_of_what_it_holds() -> None:
    driver = started(Driver(partitions=2, members=2, delivery=Delivery.EXACTLY_ONCE))
    driver.process()
    driver.request_reset(driver.member(0), ResetCause.BATCH_FAILED)
    assert seen(driver).open == {}
    driver.claim(driver.member(0))
    assert seen(driver).open == {
        driver.partition(0): SeekEntry(offset=None, source=SeekSource.SINK_PROGRESS, current=Offset(10))
    }
    driver.answer(driver.member(0))
    assert seen(driver).open == {}


def test_it_sees_the_persons_target_that_they_ask_for() -> None:
    driver = running()
    driver.process()
    driver.reset(ToDatetime(instant=BEGINNING))
    assert seen(driver).target is None
    driver.complete()
    assert seen(driver).target == ToDatetime(instant=BEGINNING)
    driver.finish_reset()
    assert seen(driver).target is None


# -- publication ------------------------------------------------------------------------------------------------------


def test_a_complete_checkpoint_is_published_by_the_live_member_of_lowest_group_and_index_then_by_the_next() -> None:
    driver = running()
    checkpoint = complete_checkpoint(driver)
    row = driver.region.checkpoints[checkpoint]
    for index in (0, 1, 0):
        assert claims.publisher(driver.region, row, driver.clock.now) == driver.member(index)
        assert seen(driver, driver.member(index)).publish == (checkpoint,)
        assert seen(driver, driver.member(1 - index)).publish == ()
        driver.wait(PUBLISHER_TURN.total_seconds())
    driver.publish()
    assert seen(driver).publish == ()


def test_a_dead_member_has_no_turn_and_without_a_live_one_nobody_has() -> None:
    driver = running()
    checkpoint = complete_checkpoint(driver)
    row = driver.region.checkpoints[checkpoint]
    driver.crash(driver.member(0))
    driver.wait(12)
    assert claims.publisher(driver.region, row, driver.clock.now) == driver.member(1)
    assert claims.publisher(driver.region, row, driver.clock.now + timedelta(hours=1)) is None


def test_a_checkpoint_that_is_not_over_is_nobodys_to_publish() -> None:
    driver = running()
    driver.request_checkpoint("n")
    assert claims.publisher(driver.region, checkpoint_of(driver), driver.clock.now) is None
    assert seen(driver).publish == ()


# -- Kafka's commit read-back
# -----------------------------------------------------------------------------------------------------


def test_the_restore_point_is_a_members_to_commit_until_its_own_commit_read_back_is_there() -> None:
    driver = running()
    assert seen(driver).commit is None
    checkpoint = complete_checkpoint(driver)
    assert seen(driver).commit == seen(driver, driver.member(1)).commit == checkpoint
    driver.read_back(driver.member(0))
    assert (seen(driver).commit, seen(driver, driver.member(1)).commit) == (None, checkpoint)
    driver.read_back(driver.member(1))
    assert driver.region.checkpoints[checkpoint].committed is Committed.YES
    assert seen(driver, driver.member(1)).commit is None
