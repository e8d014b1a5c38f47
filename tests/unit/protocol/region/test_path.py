from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest

from airflow_kcr.protocol.offsets import EMPTY, OffsetMap
from airflow_kcr.protocol.region import path
from airflow_kcr.protocol.region.rows import CheckpointState
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.values import Lineage, Offset, Sequence
from tests.support.driver import Driver
from tests.support.scripts import bound, cuts_of_ten, running
from tests.support.whole import as_stored


def at(driver: Driver, offset: int) -> OffsetMap:
    return OffsetMap(dict.fromkeys(driver.logs, Offset(offset)))


def retired(region: Region, *sequences: Sequence) -> Region:
    """Return the region with these checkpoints retired: their offsets are gone."""
    rows = {s: replace(region.checkpoints[s], state=CheckpointState.RETIRED) for s in sequences}
    offsets = {s: o for s, o in region.offsets.items() if s not in sequences}
    return as_stored(replace(region, checkpoints={**region.checkpoints, **rows}, offsets=offsets))


def test_the_path_is_every_checkpoint_that_was_complete_in_the_order_of_their_sequences() -> None:
    driver = running()
    cuts = cuts_of_ten(driver, 3)
    driver.request_cut("open")
    region = retired(driver.region, cuts[0])
    assert [c.sequence for c in region.archive.checkpoints() if c.is_on_path] == cuts
    assert region.archive.newest_on_path(None) == region.archive.newest_usable(None)
    assert region.archive.newest_on_path(cuts[1]) is not None
    assert region.archive.newest_usable(cuts[1]) is None


def test_complete_cuts_that_no_sink_has_published_are_told_apart() -> None:
    driver = running()
    cuts_of_ten(driver, 1)
    assert path.unpublished(driver.region) == ()
    driver.request_cut("n")
    sequence = driver.complete()
    assert [c.sequence for c in path.unpublished(driver.region)] == [sequence]


@pytest.mark.parametrize(
    ("offset", "gone"), [(0, [0, 1, 2]), (9, [0, 1, 2]), (10, [1, 2]), (15, [1, 2]), (30, []), (99, [])]
)
def test_a_lineage_undoes_the_checkpoints_that_it_opens_before(offset: int, gone: list[int]) -> None:
    driver = running()
    cuts = cuts_of_ten(driver, 3)
    assert path.undone_by(driver.region, at(driver, offset)) == tuple(cuts[place] for place in gone)


def test_one_partition_before_its_offset_is_enough() -> None:
    driver = running()
    cuts = cuts_of_ten(driver, 2)
    opening = at(driver, 20).replace({driver.partition(0): Offset(19)})
    assert path.undone_by(driver.region, opening) == (cuts[1],)


def test_partitions_that_only_one_of_the_two_has_do_not_count() -> None:
    driver = running()
    cuts_of_ten(driver, 1)
    assert path.undone_by(driver.region, at(driver, 10).restrict([driver.partition(0)])) == ()
    assert path.undone_by(driver.region, EMPTY) == ()


def test_a_retired_checkpoint_stays_where_a_newer_one_stays() -> None:
    driver = running()
    cuts = cuts_of_ten(driver, 3)
    region = retired(driver.region, cuts[0])
    assert path.undone_by(region, at(driver, 20)) == (cuts[2],)


def test_and_is_undone_where_nothing_newer_vouches_for_it() -> None:
    driver = running()
    cuts = cuts_of_ten(driver, 3)
    region = retired(driver.region, cuts[0], cuts[1])
    assert path.undone_by(region, at(driver, 29)) == tuple(cuts)
    assert path.undone_by(retired(driver.region, cuts[2]), at(driver, 30)) == (cuts[2],)


def test_what_is_undone_once_is_not_undone_again() -> None:
    driver = running()
    cuts = cuts_of_ten(driver, 2)
    region = path.without_undone(replace(driver.region, lineage=Lineage(2)), (cuts[1],))
    assert region.checkpoints[cuts[1]].undone_by == 2
    assert path.undone_by(region, at(driver, 10)) == ()


def test_the_newest_bound_is_of_the_path_only_and_up_to_a_checkpoint() -> None:
    driver = running()
    cuts = cuts_of_ten(driver, 3)
    rows = dict(driver.region.checkpoints)
    for hours, sequence in ((1, cuts[0]), (2, cuts[1])):
        rows[sequence] = replace(rows[sequence], bound=bound(hours))
    region = as_stored(replace(driver.region, checkpoints=rows, bounded=cuts[1]))
    assert newest(region) == bound(2)
    assert newest(region, cuts[0]) == bound(1)
    assert newest(path.without_undone(region, (cuts[1],))) == bound(1)
    assert newest(path.without_undone(region, (cuts[0], cuts[1]))) is None
    assert newest(driver.region) is None


def newest(region: Region, up_to: Sequence | None = None) -> datetime | None:
    found = path.newest_bounded(region, up_to)
    return None if found is None else found.bound
