"""Which part of the output counts, by the ledger alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_kcr.embedded.flights.result import parts_of
from airflow_kcr.protocol.region.rows import Batch, Outcome
from airflow_kcr.protocol.values import GroupId, GroupPartition, Offset, Range, TopicName
from tests.support.documents import sample

GROUP = GroupId("flights-etl")
PLACE = GroupPartition(GROUP, TopicName("flights"), 0)
OTHER = GroupPartition(GROUP, TopicName("flights"), 1)


def batch(
    begin: int = 0,
    end: int = 100,
    *,
    outcome: Outcome | None = Outcome.DONE,
    undone_from: int | None = None,
) -> Batch:
    undone = {} if undone_from is None else {PLACE: Offset(undone_from)}
    made: Batch = sample(Batch)
    return replace(made, ranges={PLACE: Range(Offset(begin), Offset(end))}, outcome=outcome, undone_from=undone)


@pytest.mark.parametrize(
    ("row", "counts_to", "again_from"),
    [
        (batch(), 100, 100),
        (batch(undone_from=100), 100, 100),
        (batch(undone_from=40), 40, 40),
        (batch(undone_from=0), 0, 0),
        (batch(100, 200), 100, 200),
        (batch(50, 200), 100, 200),
        (batch(outcome=Outcome.UNDONE), 0, 0),
        (batch(outcome=Outcome.DISCARDED), 0, 0),
        (batch(outcome=Outcome.UNKNOWN), 0, 0),
        (batch(outcome=None), 0, 100),
    ],
)
def test_only_accepted_ranges_below_the_checkpoint_count(row: Batch, counts_to: int, again_from: int) -> None:
    (part,) = parts_of([row], {PLACE: Offset(100)})
    assert (part.counts_to, part.again_from) == (counts_to, again_from)


def test_a_partition_found_after_the_checkpoint_is_of_a_later_one() -> None:
    (part,) = parts_of([batch()], {OTHER: Offset(100)})
    assert (part.counts_to, part.again_from) == (0, 100)
