"""Checkpoints after a number of records, with several members in processes of their own; real broker, real store."""

from __future__ import annotations

import pytest

from airflow_kcr.protocol.region.rows import Checkpoint
from tests.integration.members.conftest import Lend
from tests.support import faults
from tests.support.faults import Note, checkpoints, finished
from tests.support.members import BRISK, Live

pytestmark = pytest.mark.timeout(240)

MEMBERS = 3
EACH = 500
"""Records of each of the six partitions."""

RECORDS = 600
BATCH = 100
"""The most that one batch of these members takes."""

COUNTED = BRISK.replace("max_records: 500", f"max_records: {BATCH}") + f"checkpoint: {{records: {RECORDS}}}\n"


def totals(region: Live) -> list[int]:
    """The offsets of each checkpoint by count, over all partitions together."""
    now = region.region()
    return [sum(now.offsets[row.sequence].values()) for row in by_count(region)]


def by_count(region: Live) -> list[Checkpoint]:
    """The complete checkpoints that the region has made as its count was reached, in order."""
    return [row for row in checkpoints(region) if row.request_id.startswith("records:")]


@pytest.mark.long
def test_members_together_make_a_checkpoint_at_the_count_also_after_one_was_killed(
    lend: Lend, record_property: Note
) -> None:
    with lend(members=MEMBERS, partitions=6, spec=COUNTED) as region:
        killed, *_ = [region.start(index) for index in range(MEMBERS)]
        region.until_running()
        region.shared(*range(MEMBERS))
        region.fill(EACH)
        region.until(lambda: len(by_count(region)) >= 2, "two checkpoints by count")
        killed.kill()
        region.start(0)
        region.until(region.consumed, "everything consumed")
        region.until(lambda: 6 * EACH - totals(region)[-1] < RECORDS, "all checkpoints by count")
        ends = totals(region)
        found = [after - before for before, after in zip([0, *ends], ends, strict=False)]
        record_property("widths", found)
        # Each member but the first may have started a batch that the others did not see yet.
        assert all(RECORDS <= width <= RECORDS + (MEMBERS - 1) * BATCH for width in found), found
        finished(region)
        faults.judged(region, record_property)
