"""Samples of lag: kept by group and moment, bounded, read back as they were, gone with their region."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import psycopg
import pytest

from airflow_kcr.errors import UnknownRegion
from airflow_kcr.protocol.region.lag import MAX_POINTS, LagPoint, LagSample
from airflow_kcr.protocol.region.liveness import NEVER
from airflow_kcr.protocol.values import Epoch, GroupId, GroupPartition, Offset, RegionName, TopicName
from tests.contract.conftest import Drive
from tests.support.driver import GROUP, Driver
from tests.support.stores import Subject

MINUTE = timedelta(minutes=1)
BYTES = 10_000_000
"""As `docs/reference/lag.md` says."""


def sample(driver: Driver, minutes: int = 0, group: GroupId = GROUP) -> LagSample:
    _, now = driver.store.read(driver.name)
    known = LagPoint(end=Offset(2**62), position=Offset(7), committed=Offset(5))
    unknown = LagPoint(end=None, position=None, committed=None)
    points = {driver.partition(0, group=group): known, driver.partition(1, group=group): unknown}
    return LagSample(group=group, at=now - minutes * MINUTE, epoch=Epoch(3), points=points)


def test_samples_are_read_back_oldest_first_from_an_instant_on(drive: Drive) -> None:
    driver = drive()
    driver.up()
    old, new, other = sample(driver, 20), sample(driver, 10), sample(driver, 5, GroupId("h"))
    driver.store.add_lag(driver.name, [new, other])
    driver.store.add_lag(driver.name, [old])
    assert driver.store.lag_since(driver.name, NEVER) == (old, new, other)
    assert driver.store.lag_since(driver.name, old.at) == (new, other)


def test_the_first_sample_of_a_moment_stays(drive: Drive) -> None:
    driver = drive()
    driver.up()
    first = sample(driver)
    driver.store.add_lag(driver.name, [first])
    driver.store.add_lag(driver.name, [replace(first, epoch=Epoch(4))])
    assert driver.store.lag_since(driver.name, NEVER) == (first,)


def test_samples_of_the_same_minute_are_thinned_out_but_for_the_newest(drive: Drive) -> None:
    driver = drive()
    driver.up()
    newest = sample(driver)
    at = newest.at.replace(second=0, microsecond=0) - 5 * MINUTE
    close = [replace(newest, at=at + timedelta(seconds=10 * n)) for n in range(4)]
    for one in (*close, newest):
        driver.store.add_lag(driver.name, [one])
    assert driver.store.lag_since(driver.name, NEVER) == (close[0], newest)


@pytest.mark.parametrize(("position", "is_read_up", "kept"), [(100, False, 3), (7, False, 4), (7, True, 3)])
def test_a_verdict_reads_the_last_hour_only_where_a_position_stands_still(
    drive: Drive, position: int, *, is_read_up: bool, kept: int
) -> None:
    driver = drive()
    driver.up()
    before = [sample(driver, minutes) for minutes in (50, 9, 8)]
    points = dict(sample(driver).points)
    at = Offset(position)
    points[driver.partition(0)] = LagPoint(end=at if is_read_up else Offset(2**62), position=at, committed=at)
    newest = replace(sample(driver), points=points)
    driver.store.add_lag(driver.name, [sample(driver, 70), *before, newest])
    _, now = driver.store.read(driver.name)
    assert driver.store.recent_lag(driver.name, now) == (*before, newest)[-kept:]


def test_an_unknown_region_has_no_samples(subject: Subject) -> None:
    with pytest.raises(UnknownRegion):
        subject.transactions.add_lag(RegionName("nobody"), [])
    with pytest.raises(UnknownRegion):
        subject.transactions.lag_since(RegionName("nobody"), NEVER)


@pytest.mark.postgres
def test_a_region_keeps_no_more_bytes_than_the_docs_say(drive_twins: Drive, database_url: str) -> None:
    """Also where a group's offsets have nothing in common, so that they compress badly."""
    driver = drive_twins()
    driver.up()
    _, now = driver.store.read(driver.name)
    count = 2_000
    for minutes in (1, 0):
        ends = {n: 10**9 + n * n * 7919 % 10**7 + minutes * 1013 for n in range(count)}
        points = {
            GroupPartition(GROUP, TopicName("flights"), n): LagPoint(
                end=Offset(end), position=Offset(end - n % 500), committed=Offset(end - n % 500 - n % 7 * 1000)
            )
            for n, end in ends.items()
        }
        at = now - minutes * MINUTE
        driver.store.add_lag(driver.name, [LagSample(group=GROUP, at=at, epoch=Epoch(3), points=points)])
    with psycopg.connect(database_url.replace("+psycopg", "")) as connection:
        found = connection.execute("SELECT sum(octet_length(body)), sum(points) FROM kcr.lag_sample").fetchone()
    assert found is not None
    octets, points_kept = map(int, found)
    assert points_kept == 2 * count
    assert octets / points_kept * MAX_POINTS <= BYTES, octets / points_kept
