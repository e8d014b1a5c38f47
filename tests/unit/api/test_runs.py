"""What a run asks of Kafka before a process is started for it: a real store, a cluster that a test speaks for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from airflow_kcr.api import Region
from airflow_kcr.errors import CheckpointRefused, ConfigurationError, GroupNotEmpty, RegionInState
from airflow_kcr.protocol.region.commands import Renew, Run
from airflow_kcr.protocol.region.rows import Checkpoint, Committed, RegionState
from airflow_kcr.protocol.values import RequestId
from tests.support.driver import Driver
from tests.support.live_region import SPEC, FakeCluster, live_region
from tests.support.scripts import carried_out

FILES = SPEC.replace("pipeline:", "sinks: {out: {kind: files, path: /lake/out}}, pipeline:", 1)


@pytest.fixture
def cluster() -> FakeCluster:
    """Four partitions that end at 10, and no record after any instant."""
    return FakeCluster(ends=dict.fromkeys(range(4), 10))


def rested(driver: Driver) -> Driver:
    """Carry a run out that ends at the ends of the logs."""
    until = driver.store.read(driver.name)[1]
    carried_out(driver, Run(request_id=RequestId("first"), boundary=until), 10)
    assert driver.region.state is RegionState.STOPPED
    return driver


@pytest.fixture
def driver(database_url: str) -> Iterator[Driver]:
    with live_region(database_url) as driver:
        yield rested(driver)


def newest(driver: Driver) -> Checkpoint:
    row = driver.region.restore_checkpoint
    assert row is not None
    return row


def of(driver: Driver, cluster: FakeCluster) -> Region:
    return Region(driver.name, driver.store, clusters=cluster.clusters)


def test_what_the_logs_have_now_may_be_nothing_and_is_told_to_kafka_again(driver: Driver, cluster: FakeCluster) -> None:
    assert of(driver, cluster).prepared_run(request_id="r").is_done_at_rest()
    row = newest(driver)
    assert (row.request_id, row.committed, row.published_at is not None) == ("r", Committed.YES, True)
    assert sorted(cluster.held.values()) == [10] * 4
    assert cluster.asked == []
    assert driver.region.state is RegionState.STOPPED


def test_an_interval_that_ends_now_is_waited_for_as_long_as_its_records_may_come(
    driver: Driver, cluster: FakeCluster
) -> None:
    _, now = driver.store.read(driver.name)
    grace = driver.region.rules.checkpoint.grace
    assert of(driver, cluster).prepared_run(now, request_id="r").is_done_at_rest()
    assert newest(driver).finished_at >= now + grace  # type: ignore[operator]
    assert set(cluster.asked) == {now}


def test_records_need_members_and_nothing_has_changed(driver: Driver, cluster: FakeCluster) -> None:
    counter = driver.region.counter
    cluster.ends[2] = 11
    assert not of(driver, cluster).prepared_run(request_id="r").is_done_at_rest()
    _, now = driver.store.read(driver.name)
    assert not of(driver, cluster).prepared_run(now, request_id="r").is_done_at_rest()
    assert driver.region.counter == counter
    asked = of(driver, cluster).run(request_id="r")
    assert (asked.request.state, driver.region.state) == ("queued", RegionState.STARTING)


def test_records_after_the_interval_are_none_of_it(driver: Driver, cluster: FakeCluster) -> None:
    cluster.ends = dict.fromkeys(range(4), 20)
    cluster.found = dict.fromkeys(range(4), 10)
    _, now = driver.store.read(driver.name)
    assert of(driver, cluster).prepared_run(now, request_id="r").is_done_at_rest()
    assert list(driver.region.offsets[newest(driver).sequence].values()) == [10] * 4


def test_a_foreign_consumer_keeps_kafka_from_being_told_and_another_try_does(
    driver: Driver, cluster: FakeCluster
) -> None:
    cluster.inside = "a stranger"
    with pytest.raises(GroupNotEmpty, match="a stranger"):
        of(driver, cluster).prepared_run(request_id="r").is_done_at_rest()
    assert newest(driver).committed is Committed.PENDING
    cluster.inside = ""
    assert of(driver, cluster).prepared_run(request_id="r").is_done_at_rest()
    assert newest(driver).committed is Committed.YES


def test_a_sink_that_shows_checkpoints_has_to_show_an_empty_one_too(database_url: str, cluster: FakeCluster) -> None:
    with live_region(database_url, FILES) as driver:
        rested(driver)
        cluster.is_away = True
        assert not of(driver, cluster).prepared_run(request_id="r").is_done_at_rest()


def test_what_is_yet_to_come_asks_nothing_of_kafka(driver: Driver, cluster: FakeCluster) -> None:
    cluster.is_away = True
    _, now = driver.store.read(driver.name)
    with pytest.raises(CheckpointRefused, match="is yet to come"):
        of(driver, cluster).prepared_run(now + timedelta(hours=1), request_id="r").is_done_at_rest()


def test_an_instant_without_a_zone_is_refused_by_its_name(driver: Driver, cluster: FakeCluster) -> None:
    region, naive = of(driver, cluster), datetime(2026, 1, 1)  # noqa: DTZ001
    with pytest.raises(ConfigurationError, match="until: 2026-01-01T00:00:00 has no zone"):
        region.run(naive)
    with pytest.raises(ConfigurationError, match="up_to: 2026-01-01T00:00:00 has no zone"):
        region.checkpoints.between(datetime(2026, 1, 1, tzinfo=UTC), naive)


def another_run(driver: Driver) -> datetime:
    """Have the members of a run come, and return an instant after its boundary; a process may not live on."""
    until = driver.store.read(driver.name)[1]
    driver.handle(Run(request_id=RequestId("another"), boundary=until))
    for member in driver.all_members():
        driver.join(member)
    return until + timedelta(seconds=1)


@pytest.fixture
def brief(database_url: str) -> Iterator[Driver]:
    """The region, with leases that a test can wait for."""
    with live_region(database_url, SPEC.replace("lease: 60s", "lease: 3s, renew: 1s")) as driver:
        yield rested(driver)


def test_a_run_that_comes_right_after_a_dead_one_goes_on_when_its_leases_are_over(
    brief: Driver, cluster: FakeCluster
) -> None:
    until = another_run(brief)
    of(brief, cluster).prepared_run(until, request_id="r").start()
    assert [str(one.request_id) for one in brief.region.runs] == ["another", "r"]


def test_a_run_beside_a_live_one_is_refused_as_soon_as_that_says_that_it_lives(
    brief: Driver, cluster: FakeCluster
) -> None:
    until, over = another_run(brief), threading.Event()

    def renew() -> None:
        while not over.wait(0.1):
            for one, lease in brief.region.leases.items():
                brief.handle(Renew(member=one, incarnation=lease.incarnation, lease=timedelta(seconds=3)))

    alive = threading.Thread(target=renew)
    alive.start()
    try:
        with pytest.raises(RegionInState, match=r"is under way, by g\[0\], g\[1\]"):
            of(brief, cluster).prepared_run(until, request_id="r").is_done_at_rest()
    finally:
        over.set()
        alive.join()
