from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from airflow_kcr.protocol.region import coverage
from airflow_kcr.protocol.region.rows import RegionState, ResetCause
from airflow_kcr.protocol.rules import Delivery
from airflow_kcr.protocol.values import BatchId, Incarnation
from tests.support.driver import Driver
from tests.support.scripts import running, started

SECOND = timedelta(seconds=1)


def resetting(driver: Driver) -> Driver:
    """Let a region that runs begin a reset, its members there."""
    driver.request_reset(driver.member(0), ResetCause.BATCH_FAILED)
    return driver


def unready(driver: Driver) -> str:
    return "\n".join(coverage.unready(driver.region, driver.clock.now))


def test_a_partition_without_a_row_was_never_held_by_anybody() -> None:
    driver = running(partitions=1, members=1)
    region = replace(driver.region, claims={})
    assert list(coverage.gaps(region, driver.clock.now)) == ["g:t-0 is not covered (last owner: none)"]


# -- quiet ------------------------------------------------------------------------------------------------------------


def test_a_batch_whose_incarnation_nobody_knows_any_more_is_never_taken_for_quiet() -> None:
    driver = running()
    batch = driver.row(driver.start_batch(driver.member(0)))
    much_later = driver.clock.now + timedelta(days=1)
    other = replace(batch, incarnation=Incarnation(9))
    assert not coverage.is_batch_quiesced(driver.region, other, much_later)
    assert not coverage.is_batch_quiesced(replace(driver.region, members={}), batch, much_later)
    assert not coverage.is_batch_quiesced(replace(driver.region, leases={}), batch, much_later)


def test_a_batch_of_an_older_epoch_may_still_write_until_it_is_quiesced() -> None:
    driver = running()
    batch = driver.start_batch(driver.member(1))
    driver.crash(driver.member(1))
    resetting(driver)
    driver.wait(15)
    assert f"batch {batch} of g[1], incarnation 1, may still write, until 2" in unready(driver)
    driver.wait(40)
    assert "may still write" not in unready(driver)


# -- what keeps a reset from ending -----------------------------------------------------------------------------------


def test_uncovered_partitions_and_unpublished_checkpoints_are_named() -> None:
    driver = running()
    driver.process()
    driver.request_checkpoint("n")
    checkpoint = driver.complete()
    resetting(driver)
    assert "g:t-3 is not covered (last owner: g[1])" in unready(driver)
    assert f"checkpoint {checkpoint} is complete but not published" in unready(driver)
    driver.finish_reset()
    assert driver.region.state is RegionState.RUNNING


def test_an_open_seek_entry_is_named_with_what_it_waits_for() -> None:
    driver = running(partitions=1, members=1)
    exact = started(Driver(partitions=1, members=1, delivery=Delivery.EXACTLY_ONCE))
    exact.process()
    resetting(exact)
    assert "g:t-0 has no seek offset yet (sink_progress)" in unready(exact)
    resetting(driver)
    assert "has no seek offset" not in unready(driver)


def test_an_open_entry_of_a_partition_that_the_region_no_longer_has_keeps_nobody_waiting() -> None:
    exact = resetting(started(Driver(partitions=1, members=1, delivery=Delivery.EXACTLY_ONCE)))
    region = replace(exact.region, claims={})
    assert not [line for line in coverage.unready(region, exact.clock.now) if "no seek offset" in line]


# -- the next moment --------------------------------------------------------------------------------------------------


def test_time_changes_something_when_a_batch_that_may_still_write_must_have_ended() -> None:
    driver = running(partitions=1, members=1)
    member = driver.member(0)
    batch = driver.start_batch(member)
    over = driver.region.leases[member].until
    assert coverage.horizon(driver.region, over) == over + driver.region.members[member].ends_within
    said = replace(driver.row(batch), quiesced_after=over + SECOND)
    assert coverage.horizon(replace(driver.region, running={batch: said}), over) == over + SECOND
    unknown = replace(driver.row(batch), batch=BatchId("x"), incarnation=Incarnation(9))
    assert coverage.horizon(replace(driver.region, running={unknown.batch: unknown}), over) is None
