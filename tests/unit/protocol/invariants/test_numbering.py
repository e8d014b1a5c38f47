from __future__ import annotations

from airflow_kcr.protocol.region.events import CheckpointOpened, ResetBegun
from airflow_kcr.protocol.values import CheckpointNumber, Timeline
from tests.unit.protocol.invariants import stories


def test_a_sequence_that_was_used_before_is_found() -> None:
    history = stories.recorded(stories.two_checkpoints())
    first, second = stories.numbers(history, CheckpointOpened)
    used = stories.body(history, first, CheckpointOpened).sequence
    assert stories.found(stories.altered(history, second, sequence=used), "R11")[0].events == (first, second)


def test_a_timeline_that_nobody_opened_or_that_falls_is_found() -> None:
    history = stories.recorded(stories.rewound())
    reset, last = stories.numbers(history, ResetBegun)[-1], stories.numbers(history, CheckpointOpened)[-1]
    assert stories.found(stories.altered(history, last, timeline=Timeline(1)), "R11")[0].events == (reset, last)
    assert stories.found(stories.altered(history, reset, timeline=Timeline(1)), "R11")[0].events[-1] == reset


def test_a_reset_undoes_exactly_what_its_map_lies_below() -> None:
    history = stories.recorded(stories.rewound())
    reset = stories.numbers(history, ResetBegun)[-1]
    assert stories.body(history, reset, ResetBegun).undoes
    assert stories.found(stories.altered(history, reset, undoes=()), "R11")[0].events == (reset,)


def test_a_batch_with_another_stamp_than_its_begins_is_found() -> None:
    history = stories.recorded(stories.two_checkpoints())
    for changes in ({"sequence": CheckpointNumber(9)}, {"timeline": Timeline(9)}):
        stamped = stories.altered_batch(history, 2, **changes)
        assert stories.found(stamped, "R11")[0].events == (stories.batch(history, 2).started_after,)


def test_overlapping_batches_of_one_sequence_are_found() -> None:
    history = stories.with_copy(stories.recorded(stories.two_checkpoints()), 2)
    number = stories.batch(history, 2).started_after
    assert stories.found(history, "R11")[0].events == (number, number)
