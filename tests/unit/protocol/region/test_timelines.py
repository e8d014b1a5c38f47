from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest

from airflow_kcr.protocol.offsets import EMPTY, OffsetMap
from airflow_kcr.protocol.region import timelines
from airflow_kcr.protocol.region.rows import CheckpointState
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.values import CheckpointNumber, Offset, Timeline
from tests.support.driver import Driver
from tests.support.scripts import boundary, checkpoints_of_ten, running
from tests.support.whole import as_stored


def at(driver: Driver, offset: int) -> OffsetMap:
    return OffsetMap(dict.fromkeys(driver.logs, Offset(offset)))


def retired(region: Region, *sequences: CheckpointNumber) -> Region:
    """Return the region with these checkpoints retired: their offsets are gone."""
    rows = {s: replace(region.checkpoints[s], state=CheckpointState.RETIRED) for s in sequences}
    offsets = {s: o for s, o in region.offsets.items() if s not in sequences}
    return as_stored(replace(region, checkpoints={**region.checkpoints, **rows}, offsets=offsets))


def test_the_path_is_every_checkpoint_that_was_complete_in_the_order_of_their_sequences() -> None:
    driver = running()
    checkpoints = checkpoints_of_ten(driver, 3)
    driver.request_checkpoint("open")
    region = retired(driver.region, checkpoints[0])
    assert [c.sequence for c in region.archive.checkpoints() if c.is_current] == checkpoints
    assert region.archive.newest_current(None) == region.archive.newest_usable(None)
    assert region.archive.newest_current(checkpoints[1]) is not None
    assert region.archive.newest_usable(checkpoints[1]) is None


def test_complete_checkpoints_that_no_sink_has_published_are_told_apart() -> None:
    driver = running()
    checkpoints_of_ten(driver, 1)
    assert timelines.unpublished(driver.region) == ()
    driver.request_checkpoint("n")
    sequence = driver.complete()
    assert [c.sequence for c in timelines.unpublished(driver.region)] == [sequence]


@pytest.mark.parametrize(
    ("offset", "gone"), [(0, [0, 1, 2]), (9, [0, 1, 2]), (10, [1, 2]), (15, [1, 2]), (30, []), (99, [])]
)
def test_a_timeline_undoes_the_checkpoints_that_it_opens_before(offset: int, gone: list[int]) -> None:
    driver = running()
    checkpoints = checkpoints_of_ten(driver, 3)
    assert timelines.undone_by(driver.region, at(driver, offset)) == tuple(checkpoints[place] for place in gone)


def test_partitions_that_only_one_of_the_two_has_do_not_count() -> None:
    driver = running()
    checkpoints_of_ten(driver, 1)
    assert timelines.undone_by(driver.region, at(driver, 10).restrict([driver.partition(0)])) == ()
    assert timelines.undone_by(driver.region, EMPTY) == ()


def test_a_retired_checkpoint_stays_where_a_newer_one_stays() -> None:
    driver = running()
    checkpoints = checkpoints_of_ten(driver, 3)
    region = retired(driver.region, checkpoints[0])
    assert timelines.undone_by(region, at(driver, 20)) == (checkpoints[2],)


def test_and_is_undone_where_nothing_newer_vouches_for_it() -> None:
    driver = running()
    checkpoints = checkpoints_of_ten(driver, 3)
    region = retired(driver.region, checkpoints[0], checkpoints[1])
    assert timelines.undone_by(region, at(driver, 29)) == tuple(checkpoints)
    assert timelines.undone_by(retired(driver.region, checkpoints[2]), at(driver, 30)) == (checkpoints[2],)


def test_what_is_undone_once_is_not_undone_again() -> None:
    driver = running()
    checkpoints = checkpoints_of_ten(driver, 2)
    region = timelines.without_undone(replace(driver.region, timeline=Timeline(2)), (checkpoints[1],))
    assert region.checkpoints[checkpoints[1]].undone_by == 2
    assert timelines.undone_by(region, at(driver, 10)) == ()


def test_the_newest_boundary_is_of_the_path_only_and_up_to_a_checkpoint() -> None:
    driver = running()
    checkpoints = checkpoints_of_ten(driver, 3)
    rows = dict(driver.region.checkpoints)
    for hours, sequence in ((1, checkpoints[0]), (2, checkpoints[1])):
        rows[sequence] = replace(rows[sequence], boundary=boundary(hours))
    region = as_stored(replace(driver.region, checkpoints=rows, aligned=checkpoints[1]))
    assert newest(region) == boundary(2)
    assert newest(region, checkpoints[0]) == boundary(1)
    assert newest(timelines.without_undone(region, (checkpoints[1],))) == boundary(1)
    assert newest(timelines.without_undone(region, (checkpoints[0], checkpoints[1]))) is None
    assert newest(driver.region) is None


def newest(region: Region, up_to: CheckpointNumber | None = None) -> datetime | None:
    found = timelines.newest_aligned(region, up_to)
    return None if found is None else found.boundary
