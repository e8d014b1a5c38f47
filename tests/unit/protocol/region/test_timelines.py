from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region import timelines
from airflow_kcr.protocol.region.rows import CheckpointState
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.values import CheckpointNumber, Offset
from tests.support.driver import Driver
from tests.support.scripts import checkpoints_of_ten, running
from tests.support.whole import as_stored


def at(driver: Driver, offset: int) -> OffsetMap:
    return OffsetMap(dict.fromkeys(driver.logs, Offset(offset)))


def retired(region: Region, *sequences: CheckpointNumber) -> Region:
    """Return the region with these checkpoints retired: their offsets are gone."""
    rows = {s: replace(region.checkpoints[s], state=CheckpointState.RETIRED) for s in sequences}
    offsets = {s: o for s, o in region.offsets.items() if s not in sequences}
    return as_stored(replace(region, checkpoints={**region.checkpoints, **rows}, offsets=offsets))


@pytest.mark.parametrize(
    ("offset", "gone"), [(0, [0, 1, 2]), (9, [0, 1, 2]), (10, [1, 2]), (15, [1, 2]), (30, []), (99, [])]
)
def test_a_timeline_undoes_the_checkpoints_that_it_opens_before(offset: int, gone: list[int]) -> None:
    driver = running()
    checkpoints = checkpoints_of_ten(driver, 3)
    assert timelines.undone_by(driver.region, at(driver, offset)) == tuple(checkpoints[place] for place in gone)


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
