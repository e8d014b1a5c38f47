"""Partitions without an owner: both stores keep which ones and since when, and let a checkpoint wait for them."""

from __future__ import annotations

import pytest

from airflow_kcr.protocol.region import coverage
from airflow_kcr.protocol.region.commands import PartitionAdvice, Reconcile
from airflow_kcr.protocol.region.rows import RequestState
from airflow_kcr.protocol.values import GroupPartition, RequestId
from tests.contract.conftest import Drive
from tests.support.driver import Driver


def report(driver: Driver) -> PartitionAdvice:
    return driver.report_partitions(driver.member(0))


def grown(driver: Driver) -> GroupPartition:
    """One more partition, which Kafka assigns to no member."""
    fresh = driver.partition(4)
    driver.grow(fresh, end=500)
    return fresh


def test_what_has_no_owner_is_kept_with_since_when_until_it_is_claimed(drive: Drive) -> None:
    driver = drive()
    driver.up()
    fresh = grown(driver)
    assert report(driver) == PartitionAdvice(report_again=True)
    region, now = driver.store.read(driver.name)
    since = coverage.unowned(region)[fresh]
    assert since <= now
    assert report(driver) == PartitionAdvice(report_again=True)
    assert coverage.unowned(driver.held) == {fresh: since}
    assert driver.request_checkpoint("n").state is RequestState.QUEUED
    driver.spread()
    assert coverage.unowned(driver.held) == {}
    driver.handle(Reconcile())
    assert driver.region.requests[RequestId("n")].state is RequestState.OPEN


def lost(driver: Driver) -> GroupPartition:
    """Have the brokers lose a partition, and the region hear of it for as long as it takes."""
    partition = driver.partition(3)
    del driver.logs[partition]
    report(driver)
    driver.wait(driver.held.rules.timeouts.rejoin_after.total_seconds())
    report(driver)
    return partition


def test_what_the_brokers_lost_is_kept_with_since_when_until_it_is_claimed(drive: Drive) -> None:
    driver = drive()
    driver.up()
    fresh = grown(driver)
    since = driver.store.read(driver.name)[1]
    partition = lost(driver)
    row = driver.held.absent()[partition]
    assert row.is_gone
    assert row.since >= since
    assert list(coverage.unowned(driver.held)) == [fresh]
    driver.grow(partition, end=1_000)
    driver.spread()
    assert driver.held.absent() == {}


@pytest.mark.postgres
def test_both_stores_give_up_the_same(drive_twins: Drive) -> None:
    driver = drive_twins()
    driver.up()
    lost(driver)
    driver.spread()
    driver.finish_reset()
    driver.process()
    driver.checkpoint("n1")
