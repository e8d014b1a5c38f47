from __future__ import annotations

from airflow_kcr.protocol.region.events import CutOpened, ResetBegun
from airflow_kcr.protocol.values import Lineage, Sequence
from tests.unit.protocol.invariants.stories import (
    altered,
    altered_batch,
    batch,
    body,
    found,
    numbers,
    recorded,
    rewound,
    two_cuts,
    with_copy,
)


def test_a_sequence_that_was_used_before_is_found() -> None:
    history = recorded(two_cuts())
    first, second = numbers(history, CutOpened)
    used = body(history, first, CutOpened).sequence
    assert found(altered(history, second, sequence=used), "R11")[0].events == (first, second)


def test_a_lineage_that_nobody_opened_or_that_falls_is_found() -> None:
    history = recorded(rewound())
    reset, last = numbers(history, ResetBegun)[-1], numbers(history, CutOpened)[-1]
    assert found(altered(history, last, lineage=Lineage(1)), "R11")[0].events == (reset, last)
    assert found(altered(history, reset, lineage=Lineage(1)), "R11")[0].events[-1] == reset


def test_a_reset_undoes_exactly_what_its_map_lies_below() -> None:
    history = recorded(rewound())
    reset = numbers(history, ResetBegun)[-1]
    assert body(history, reset, ResetBegun).undoes
    assert found(altered(history, reset, undoes=()), "R11")[0].events == (reset,)


def test_a_batch_with_another_stamp_than_its_begins_is_found() -> None:
    history = recorded(two_cuts())
    for changes in ({"sequence": Sequence(9)}, {"lineage": Lineage(9)}):
        stamped = altered_batch(history, 2, **changes)
        assert found(stamped, "R11")[0].events == (batch(history, 2).begun_after,)


def test_overlapping_batches_of_one_sequence_are_found() -> None:
    history = with_copy(recorded(two_cuts()), 2)
    number = batch(history, 2).begun_after
    assert found(history, "R11")[0].events == (number, number)
