"""Where partitions of a region that has never run begin, before a member has met them."""

from __future__ import annotations

from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.offsets import SeekEntry, SeekSource
from airflow_kcr.protocol.region import first_starts
from airflow_kcr.protocol.region.rows import InitialOffset
from airflow_kcr.protocol.values import GroupPartition, Offset, TopicName
from tests.support.driver import GROUP, Driver

LOG = LogBounds(start=Offset(0), end=Offset(100))


def at(offset: int) -> InitialOffset:
    return InitialOffset(offset=Offset(offset), source="earliest", bounds=LOG)


def test_where_a_partition_begins_is_said_once() -> None:
    driver = Driver()
    partition = driver.partition(0)
    region = first_starts.met(driver.region, driver.clock.now, {partition: at(10)})
    assert region.universe() == {partition}
    assert first_starts.met(region, driver.clock.now, {partition: at(20)}) is region


def test_a_topic_that_the_spec_does_not_have_begins_nowhere() -> None:
    driver = Driver()
    other = GroupPartition(GROUP, TopicName("other"), 0)
    region = driver.region
    assert first_starts.met(region, driver.clock.now, {other: at(10)}) is region


def test_in_a_region_that_has_run_members_say_where_a_partition_begins() -> None:
    driver = Driver()
    driver.up()
    region = driver.region
    assert first_starts.met(region, driver.clock.now, {driver.partition(9): at(10)}) is region


def test_a_place_without_a_log_is_not_known() -> None:
    entry = SeekEntry(source=SeekSource.INITIAL, offset=Offset(10))
    assert first_starts.initial({Driver().partition(0): entry}, {}) == {}
