from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_kcr.api import Region
from airflow_kcr.errors import CheckpointRefused, GroupNotEmpty
from airflow_kcr.protocol.region.rows import Committed
from airflow_kcr.protocol.values import CheckpointNumber, Offset
from airflow_kcr.runtime.leases import read_note
from tests.support.driver import Driver
from tests.support.live_region import FakeCluster, live_region


@pytest.fixture
def driver(database_url: str) -> Iterator[Driver]:
    with live_region(database_url) as driver:
        driver.up()
        driver.process()
        yield driver


def unheld(driver: Driver) -> CheckpointNumber:
    """Make a checkpoint of which Kafka holds something else."""
    driver.request_checkpoint("n")
    sequence = driver.complete()
    driver.publish()
    driver.read_back(driver.member(0), dict.fromkeys(driver.claims(driver.member(0)), Offset(3)))
    return sequence


def test_the_restore_point_is_told_kafka_with_the_note_of_a_member(driver: Driver) -> None:
    sequence, cluster = unheld(driver), FakeCluster()
    view = Region(driver.name, driver.store, clusters=cluster.clusters).checkpoints.repair(sequence)
    assert view.checkpoint.committed is Committed.YES
    assert cluster.held == dict(driver.region.offsets[sequence])
    note = read_note(next(iter(cluster.notes.values())))
    assert note is not None
    assert (note.region, note.sequence, note.epoch) == ("flights", sequence, driver.region.epoch)


def test_with_members_in_the_group_nothing_is_changed(driver: Driver) -> None:
    sequence, cluster = unheld(driver), FakeCluster(inside="somebody")
    with pytest.raises(GroupNotEmpty, match="somebody"):
        Region(driver.name, driver.store, clusters=cluster.clusters).checkpoints.repair(sequence)
    assert driver.region.checkpoints[sequence].committed is Committed.NO


def test_of_a_restore_point_that_is_a_reset_it_says_who_tells_kafka(driver: Driver) -> None:
    cluster, restore_point = FakeCluster(), driver.region.restore_sequence
    assert restore_point is not None
    with pytest.raises(CheckpointRefused, match="is a reset and no checkpoint; Kafka is told its offsets when"):
        Region(driver.name, driver.store, clusters=cluster.clusters).checkpoints.repair(restore_point)
    assert cluster.held == {}


def test_no_older_checkpoint_is_ever_told(driver: Driver) -> None:
    sequence, cluster = unheld(driver), FakeCluster()
    driver.process()
    driver.checkpoint("later")
    with pytest.raises(CheckpointRefused, match="not the restore point"):
        Region(driver.name, driver.store, clusters=cluster.clusters).checkpoints.repair(sequence)
    assert cluster.held == {}
