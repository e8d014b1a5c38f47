from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_kcr.protocol.offsets import OffsetMap, SeekEntry, SeekMap, SeekSource
from airflow_kcr.protocol.region import resets
from airflow_kcr.protocol.region.rows import RestorePoint
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.rules import Delivery
from airflow_kcr.protocol.targets import ToOffset
from airflow_kcr.protocol.values import CheckpointNumber, Offset
from tests.support.driver import Driver
from tests.support.scripts import started


def after_a_checkpoint_at_10(delivery: Delivery) -> Driver:
    """One partition with a complete checkpoint at 10, done up to 20 and started up to 30."""
    driver = started(Driver(partitions=1, members=1, delivery=delivery))
    driver.process()
    driver.checkpoint("n")
    driver.process()
    driver.start_batch(driver.member(0))
    return driver


def entry(region: Region, driver: Driver) -> SeekEntry:
    return resets.target(region)[driver.partition(0)]


@pytest.mark.parametrize(
    ("delivery", "offset", "source"),
    [
        (Delivery.AT_LEAST_ONCE, 10, SeekSource.MERGED),
        (Delivery.ALMOST_ONCE, 20, SeekSource.BATCH_END),
        (Delivery.AT_MOST_ONCE, 30, SeekSource.BATCH_END),
        (Delivery.EXACTLY_ONCE, None, SeekSource.SINK_PROGRESS),
    ],
)
def test_the_delivery_decides_where_a_reset_goes(delivery: Delivery, offset: int | None, source: SeekSource) -> None:
    driver = after_a_checkpoint_at_10(delivery)
    found = entry(driver.region, driver)
    assert (found.offset, found.source, found.current) == (offset, source, 20)


@pytest.mark.parametrize("delivery", [Delivery.ALMOST_ONCE, Delivery.AT_MOST_ONCE])
def test_where_nothing_was_begun_the_resume_point_stays(delivery: Delivery) -> None:
    driver = started(Driver(partitions=1, members=1, delivery=delivery))
    driver.process()
    driver.checkpoint("n")
    assert entry(driver.region, driver) == SeekEntry(
        offset=Offset(10), source=SeekSource.RESUME_POINT, current=Offset(10)
    )


@pytest.mark.parametrize("delivery", [Delivery.ALMOST_ONCE, Delivery.AT_MOST_ONCE])
def test_while_the_resume_point_is_not_known_the_restore_point_counts(delivery: Delivery) -> None:
    driver = after_a_checkpoint_at_10(delivery)
    claim = replace(driver.region.claims[driver.partition(0)], resume=None, position=None, started_to=None)
    region = replace(driver.region, claims={driver.partition(0): claim})
    assert entry(region, driver) == SeekEntry(offset=Offset(10), source=SeekSource.MERGED)


def test_the_restore_point_may_be_a_reset_and_stays_the_target_of_every_later_one() -> None:
    driver = started(Driver(partitions=1, members=1))
    driver.process()
    driver.reset(ToOffset(offset=Offset(4)))
    driver.complete()
    driver.finish_reset()
    driver.process()
    found = entry(driver.region, driver)
    assert (found.offset, found.source, found.current) == (4, SeekSource.EXPLICIT, 14)


def test_an_open_entry_of_the_restore_point_is_open_in_the_target_too_and_no_sink_is_asked() -> None:
    driver = after_a_checkpoint_at_10(Delivery.EXACTLY_ONCE)
    epoch = driver.region.epoch
    asked = SeekEntry(offset=None, source=SeekSource.EXPLICIT, current=Offset(15))
    still_open = SeekMap({driver.partition(0): asked})
    region = replace(
        driver.region, restore_point=RestorePoint(CheckpointNumber(1), epoch), seek_maps={epoch: still_open}
    )
    assert entry(region, driver) == asked


def test_a_partition_that_the_restore_point_lacks_goes_to_its_initial_offset_each_time() -> None:
    driver = after_a_checkpoint_at_10(Delivery.AT_LEAST_ONCE)
    driver.grow(driver.partition(1), end=50, start=3)
    driver.finish_batch(driver.batches[-1].batch)
    driver.claim(driver.member(0), [driver.partition(0), driver.partition(1)])
    driver.process()
    found = resets.target(driver.region)
    assert (found[driver.partition(0)].offset, found[driver.partition(1)].offset) == (10, 3)
    assert found[driver.partition(1)].source is SeekSource.INITIAL


def test_a_region_without_a_restore_point_starts_where_its_partitions_begin() -> None:
    driver = Driver()
    assert resets.restore_point_map(driver.region) == SeekMap({})
    assert resets.target(driver.region) == SeekMap({})


# -- the last done place ----------------------------------------------------------------------------------------------


def test_everything_is_known_to_be_done_up_to_the_position() -> None:
    driver = after_a_checkpoint_at_10(Delivery.AT_LEAST_ONCE)
    assert resets.last_done(driver.region) == OffsetMap({driver.partition(0): Offset(20)})


def test_or_up_to_the_restore_point_while_a_reset_has_not_found_out() -> None:
    driver = after_a_checkpoint_at_10(Delivery.EXACTLY_ONCE)
    driver.crash(driver.member(0))
    driver.wait(60)
    driver.join(driver.member(0))
    driver.claim(driver.member(0), [driver.partition(0)])
    assert driver.region.claims[driver.partition(0)].position is None
    assert resets.last_done(driver.region) == OffsetMap({driver.partition(0): Offset(10)})


def test_or_up_to_the_initial_offset_where_the_restore_point_lacks_the_partition() -> None:
    driver = after_a_checkpoint_at_10(Delivery.AT_LEAST_ONCE)
    region = replace(driver.region, claims={}, restore_point=None)
    assert resets.last_done(region) == OffsetMap()
    claim = driver.region.claims[driver.partition(0)].at(None)
    region = replace(driver.region, claims={driver.partition(0): claim}, restore_point=None)
    assert resets.last_done(region) == OffsetMap({driver.partition(0): Offset(0)})


def test_a_sink_without_progress_resumes_at_the_restore_point_else_at_the_initial_offset() -> None:
    driver = after_a_checkpoint_at_10(Delivery.EXACTLY_ONCE)
    assert resets.without_progress(driver.region, driver.partition(0)) == 10
    assert resets.without_progress(replace(driver.region, restore_point=None), driver.partition(0)) == 0
    assert resets.without_progress(driver.region, driver.partition(7)) is None
