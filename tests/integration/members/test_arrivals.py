"""Members of a first start that come one after the other, in processes of their own; real broker, real store."""

from __future__ import annotations

import pytest

from airflow_kcr.api import Region
from tests.integration.members.conftest import Lend
from tests.support import faults
from tests.support.faults import Note, finished, resets
from tests.support.members import BRISK, Live

pytestmark = pytest.mark.timeout(240)

UNHURRIED = """\
batch: {target: 500ms, min_records: 50, max_records: 500, timeout: 20s}
timeouts: {lease: 10s, renew: 2s, session: 25s, relaunch: 20s, reset: 160s, drain: 60s, commit: 10s, close: 4s}
"""
"""A start waits for 30 s, which a process needs on a busy machine."""


def waits_for(region: Live) -> str:
    """What `kcr region show` says that the reset waits for."""
    return Region(region.name, region.store).show().liveness.text()


def test_members_that_come_one_after_the_other_cost_no_reset(lend: Lend, record_property: Note) -> None:
    with lend(members=3, partitions=6, spec=UNHURRIED) as region:
        region.fill(50)
        for index in range(3):
            region.start(index)
            region.until(lambda n=index: len(set(region.owners().values())) == n + 1, f"{index} has partitions")  # type: ignore[misc]
        finished(region)
        assert resets(region) == []
        faults.judged(region, record_property)


@pytest.mark.long
def test_a_start_goes_on_without_a_member_that_never_comes_and_says_what_it_waits_for(
    lend: Lend, record_property: Note
) -> None:
    with lend(members=3, partitions=6, spec=BRISK) as region:
        region.fill(50)
        region.start(0, 1)
        missing = f"{region.member(2)} has not arrived, until"
        region.until(lambda: missing in waits_for(region), "it says who has not arrived")
        finished(region)
        store_now = region.store.read(region.name)[1]
        assert region.region().live_members(store_now) == (region.member(0), region.member(1))
        assert resets(region) == []
        faults.judged(region, record_property)
