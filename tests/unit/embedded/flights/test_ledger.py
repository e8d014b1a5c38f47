"""Which part of the output counts, by the ledger alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_kcr.embedded.flights.data import GROUP
from airflow_kcr.embedded.flights.result import Standing, parts_of
from airflow_kcr.protocol.region.rows import Batch, Outcome
from airflow_kcr.protocol.values import GroupPartition, Offset, Range, TopicName
from tests.support.documents import sample

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
    ("row", "standing", "counted"),
    [
        (batch(), Standing.WHOLE, (0, 100)),
        (batch(undone_from=100), Standing.WHOLE, (0, 100)),
        (batch(undone_from=40), Standing.PART, (0, 40)),
        (batch(undone_from=0), Standing.VOID, (0, 0)),
        (batch(100, 200), Standing.LATER, (100, 100)),
        (batch(50, 200), Standing.PART, (50, 100)),
        (batch(outcome=Outcome.UNDONE), Standing.VOID, (0, 0)),
        (batch(outcome=Outcome.DISCARDED), Standing.VOID, (0, 0)),
        (batch(outcome=Outcome.UNKNOWN), Standing.VOID, (0, 0)),
        (batch(outcome=None), Standing.OPEN, (0, 0)),
    ],
)
def test_only_accepted_ranges_below_the_checkpoint_count(
    row: Batch, standing: Standing, counted: tuple[int, int]
) -> None:
    (part,) = parts_of([row], {PLACE: Offset(100)})
    assert (part.standing, (part.begin, part.counts_to)) == (standing, counted)


def test_a_partition_found_after_the_checkpoint_is_of_a_later_one() -> None:
    (part,) = parts_of([batch()], {OTHER: Offset(100)})
    assert part.standing is Standing.LATER
