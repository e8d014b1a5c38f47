"""What lies around a checkpoint: its ranges, its neighbours, and the resets that touched it."""

from __future__ import annotations

import pytest

from airflow_kcr.api import Region
from airflow_kcr.api.checkpoint_context import CheckpointContext
from airflow_kcr.errors import UnknownCheckpoint
from airflow_kcr.protocol.region.rows import Requester
from airflow_kcr.protocol.targets import ToCheckpoint
from airflow_kcr.protocol.values import CheckpointNumber
from tests.support.driver import Driver
from tests.support.scripts import rewind


def made(driver: Driver, name: str, width: int = 10) -> CheckpointNumber:
    """A checkpoint that a DAG run has asked for, with some records of each partition."""
    driver.process(width=width)
    driver.checkpoint(name, requester=Requester(who="airflow", dag_id="flights_checkpoint", run_id=name))
    return [row.sequence for row in driver.region.archive.checkpoints() if row.is_complete][-1]


@pytest.fixture
def region(driver: Driver) -> Region:
    driver.up()
    return Region(driver.name, driver.store)


def widths(found: CheckpointContext) -> dict[int, tuple[int, int]]:
    return {one.partition.partition: (one.range.from_, one.range.to) for one in found.ranges}


def test_a_checkpoint_has_what_came_since_the_one_it_was_built_on(region: Region, driver: Driver) -> None:
    first, second, third = made(driver, "one"), made(driver, "two", 5), made(driver, "three")
    found = region.checkpoints.context(second)
    assert found.previous is not None
    assert found.next is not None
    assert (found.previous.sequence, found.next.sequence) == (first, third)
    assert [run.run_id for run in (*found.previous.runs, *found.next.runs)] == ["one", "three"]
    assert widths(found) == dict.fromkeys(range(4), (10, 15))
    assert found.offsets == 20
    assert found.repeats == ()
    assert found.undone_by_reset is None
    assert region.checkpoints.context(first).previous is None
    assert widths(region.checkpoints.context(first)) == dict.fromkeys(range(4), (0, 10))
    with pytest.raises(UnknownCheckpoint):
        region.checkpoints.context(999)


def test_what_a_reset_undid_names_it_and_what_is_processed_again_counts_by_it(region: Region, driver: Driver) -> None:
    first, second = made(driver, "one"), made(driver, "two")
    rewind(driver, ToCheckpoint(sequence=first))
    (reset,) = [one for one in region.resets.list() if one.undone]
    undone = region.checkpoints.context(second)
    assert undone.undone_by_reset == reset.reset_id
    again = made(driver, "again", 4)
    assert undone.next is None
    found = region.checkpoints.context(again)
    assert found.previous is not None
    assert found.previous.sequence == first
    assert [(one.reset.reset_id, one.offsets) for one in found.repeats] == [(reset.reset_id, 16)]
    beyond = made(driver, "beyond", 10)
    assert [one.offsets for one in region.checkpoints.context(beyond).repeats] == [24]
    new = made(driver, "new")
    assert region.checkpoints.context(new).repeats == ()
    assert region.checkpoints.that_answered("flights_checkpoint", "two") == (second,)
    assert region.checkpoints.that_answered("flights_checkpoint", "none") == ()
