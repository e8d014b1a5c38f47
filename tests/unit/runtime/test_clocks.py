from __future__ import annotations

import time
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from airflow_kcr.runtime.leases import StoreClock, boot_time
from tests.support.runtime_fakes import NOON, Hands


def test_a_members_clock_never_goes_back_and_counts_suspension() -> None:
    first, earlier = boot_time(), time.monotonic()
    assert boot_time() >= first
    # Suspension counts, so it can only be ahead of the clock that stands still meanwhile.
    assert boot_time() >= earlier


def test_an_older_answer_does_not_turn_the_stores_clock_back() -> None:
    hands = Hands()
    clock = StoreClock(hands, NOON)
    hands.now += 5
    clock.note(NOON + timedelta(seconds=1))
    assert clock.now() == NOON + timedelta(seconds=5)


def test_an_answer_that_arrived_faster_than_the_one_before_brings_the_clock_nearer() -> None:
    hands = Hands()
    clock = StoreClock(hands, NOON)
    hands.now += 1
    clock.note(NOON + timedelta(seconds=9))
    hands.now += 1
    assert clock.now() == NOON + timedelta(seconds=10)


@given(
    answers=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 5_000)), max_size=20), after=st.integers(0, 99)
)
def test_what_is_known_of_the_stores_clock_is_never_ahead_of_it(answers: list[tuple[int, int]], after: int) -> None:
    # The store's clock reads NOON when the member's reads 1000; an answer says what it was when it was sent.
    hands = Hands(1000.0)
    clock = StoreClock(hands, NOON)
    for pause, on_the_way in answers:
        sent = timedelta(seconds=hands.now + pause / 1000 - 1000)
        hands.now += (pause + on_the_way) / 1000
        clock.note(NOON + sent)
        assert clock.now() <= NOON + timedelta(seconds=hands.now - 1000, microseconds=1)
    hands.now += after
    assert clock.now() <= NOON + timedelta(seconds=hands.now - 1000, microseconds=1)
