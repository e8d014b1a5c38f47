from __future__ import annotations

from airflow_kcr.protocol.delivery import Delivery
from airflow_kcr.protocol.invariants.replay import indexed
from airflow_kcr.protocol.invariants.replays import replayed
from airflow_kcr.protocol.region.events import ResetBegun
from airflow_kcr.protocol.region.rows import ResetCause
from tests.support.driver import Driver
from tests.unit.protocol.invariants.stories import (
    batch,
    body,
    crash_between,
    dropped,
    found,
    numbers,
    recorded,
    rewound,
    two_cuts,
    with_copy,
)


def test_a_range_that_begins_twice_without_a_reset_is_found() -> None:
    history = recorded(two_cuts())
    last = history.events[-1].number
    again = with_copy(history, 0, begun_after=last, ended_after=last)
    assert {v.events for v in found(again, "R8")} == {(last,)}


def test_a_replay_whose_reset_is_missing_is_found() -> None:
    history = recorded(crash_between())
    without = dropped(history, numbers(history, ResetBegun)[1])
    first_again = next(b for b in history.batches if b.epoch == 2)
    assert found(without, "R8")[0].events == (first_again.begun_after,)


def test_the_crash_of_a_member_replays_what_was_begun_since_the_base() -> None:
    index = indexed(recorded(crash_between()))
    (replay,) = replayed(index)
    assert (replay.epoch, replay.cause) == (2, ResetCause.CLAIM)
    # Both members had processed [10, 20) of two partitions each; the one that crashed had begun [20, 30) as well.
    assert sum(replay.rewound.values()) == 4 * 10 + 2 * 10
    assert sum(replay.replayed.values()) == 4 * 10


def test_what_a_reset_rewound_and_a_later_one_rewound_again_counts_for_the_later_one() -> None:
    driver = Driver(partitions=1, members=1)
    driver.up()
    member, only = driver.member(0), driver.partition(0)
    driver.process(width=30)
    for width in (10, 30):
        driver.store.request_reset(driver.name, driver.caller(member), ResetCause.BATCH_FAILED, "")
        driver.settle_reset()
        driver.process(width=width)
    first, second = replayed(indexed(recorded(driver)))
    assert (first.rewound[only], first.replayed[only]) == (30, 10 + 20)
    assert (second.rewound[only], second.replayed[only]) == (10, 10)


def test_at_most_once_replays_nothing() -> None:
    assert replayed(indexed(recorded(crash_between(Delivery.AT_MOST_ONCE)))) == ()


def test_a_persons_rewind_is_accounted_to_it() -> None:
    history = recorded(rewound())
    (replay,) = replayed(indexed(history))
    assert replay.cause is ResetCause.PERSON
    assert replay.sequence == body(history, numbers(history, ResetBegun)[-1], ResetBegun).sequence
    assert sum(replay.rewound.values()) == 4 * 20
    assert sum(replay.replayed.values()) == 4 * 10
    assert batch(history, -1).epoch == replay.epoch
