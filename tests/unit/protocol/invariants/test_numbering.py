from __future__ import annotations

from airflow_kcr.protocol.region.events import CheckpointOpened, ResetBegun
from airflow_kcr.protocol.values import CheckpointNumber, Timeline
from tests.unit.protocol.invariants.stories import (
    altered,
    altered_batch,
    batch,
    body,
    found,
    numbers,
    recorded,
    rewound,
    two_checkpoints,
    with_copy,
)


def test_a_sequence_that_was_used_before_is_found() -> None:
    history = recorded(two_checkpoints())
    first, second = numbers(history, CheckpointOpened)
    used = body(history, first, CheckpointOpened).sequence
    assert found(altered(history, second, sequence=used), "R11")[0].events == (first, second)


def test_a_timeline_that_nobody_opened_or_that_falls_is_found() -> None:
    history = recorded(rewound())
    reset, last = numbers(history, ResetBegun)[-1], numbers(history, CheckpointOpened)[-1]
    assert found(altered(history, last, timeline=Timeline(1)), "R11")[0].events == (reset, last)
    assert found(altered(history, reset, timeline=Timeline(1)), "R11")[0].events[-1] == reset


def test_a_reset_undoes_exactly_what_its_map_lies_below() -> None:
    history = recorded(rewound())
    reset = numbers(history, ResetBegun)[-1]
    assert body(history, reset, ResetBegun).undoes
    assert found(altered(history, reset, undoes=()), "R11")[0].events == (reset,)


def test_a_batch_with_another_stamp_than_its_begins_is_found() -> None:
    history = recorded(two_checkpoints())
    for changes in ({"sequence": CheckpointNumber(9)}, {"timeline": Timeline(9)}):
        stamped = altered_batch(history, 2, **changes)
        assert found(stamped, "R11")[0].events == (batch(history, 2).started_after,)


def test_overlapping_batches_of_one_sequence_are_found() -> None:
    history = with_copy(recorded(two_checkpoints()), 2)
    number = batch(history, 2).started_after
    assert found(history, "R11")[0].events == (number, number)
