from __future__ import annotations

from airflow_kcr.protocol.region.events import ResetBegun
from tests.unit.protocol.invariants import stories


def test_a_range_that_begins_twice_without_a_reset_is_found() -> None:
    history = stories.recorded(stories.two_checkpoints())
    last = history.events[-1].number
    again = stories.with_copy(history, 0, started_after=last, finished_after=last)
    assert {v.events for v in stories.found(again, "R8")} == {(last,)}


def test_a_replay_whose_reset_is_missing_is_found() -> None:
    history = stories.recorded(stories.crash_between())
    without = stories.dropped(history, stories.numbers(history, ResetBegun)[1])
    first_again = next(b for b in history.batches if b.epoch == 2)
    assert stories.found(without, "R8")[0].events == (first_again.started_after,)
