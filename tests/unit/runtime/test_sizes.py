from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_kcr.runtime.sizes import GROWTH, SHRINKAGE, BatchSize, Limits, shares
from tests.support.runtime_fakes import p

LIMITS = Limits(target=timedelta(seconds=2), least=1_000, most=1_000_000)


def size(records: int) -> BatchSize:
    return BatchSize(limits=LIMITS, records=records)


def test_a_member_begins_with_the_floor() -> None:
    assert BatchSize.first(LIMITS).records == 1_000


def test_a_full_batch_that_was_too_fast_grows_the_size_in_proportion() -> None:
    assert size(10_000).after(10_000, 1.0).records == 20_000


def test_a_batch_that_was_too_slow_shrinks_the_size_in_proportion() -> None:
    assert size(10_000).after(10_000, 4.0).records == 5_000


@pytest.mark.parametrize("seconds", [0.0, 1e-9, 0.01])
def test_one_very_fast_batch_grows_the_size_by_no_more_than_the_factor(seconds: float) -> None:
    assert size(10_000).after(10_000, seconds).records == 10_000 * GROWTH


def test_one_very_slow_batch_shrinks_the_size_by_no_more_than_the_factor() -> None:
    assert size(10_000).after(10_000, 3_600.0).records == 10_000 * SHRINKAGE


def test_where_a_batch_by_itself_takes_too_long_it_is_made_worth_its_while() -> None:
    small = size(LIMITS.least)
    for _ in range(12):
        small = small.after(small.records, 3.0 + small.records / 100_000)
    assert 200_000 <= small.records <= 400_000


def test_where_the_records_take_too_long_the_size_stays_at_its_floor() -> None:
    small = size(LIMITS.least)
    sizes = []
    for _ in range(12):
        small = small.after(small.records, small.records / 200)
        sizes.append(small.records)
    assert sizes[0] == 2 * LIMITS.least
    assert set(sizes[1:]) == {LIMITS.least}


def test_no_batch_is_made_so_large_that_it_would_come_near_its_timeout() -> None:
    small = size(LIMITS.least)
    for _ in range(12):
        small = small.after(small.records, 20.0 + small.records / 1_000)
    assert 20.0 + small.records / 1_000 <= 1.1 * LIMITS.longest.total_seconds()


def test_a_half_empty_batch_says_nothing_about_larger_ones() -> None:
    assert size(10_000).after(5_000, 0.1).records == 10_000


def test_an_empty_batch_says_nothing() -> None:
    assert size(10_000).after(0, 60.0).records == 10_000


def test_the_size_stays_between_floor_and_cap() -> None:
    assert size(900_000).after(900_000, 0.1).records == LIMITS.most
    assert size(1_200).after(1_200, 100.0).records == LIMITS.least


def test_a_long_backlog_does_not_keep_a_short_one_from_being_read() -> None:
    assert shares({p(0): 1_000_000, p(1): 1, p(2): 1}, 1_000) == {p(0): 998, p(1): 1, p(2): 1}


def test_shares_follow_the_backlogs() -> None:
    assert shares({p(0): 3_000, p(1): 1_000, p(2): 0}, 400) == {p(0): 300, p(1): 100}


def test_a_backlog_that_fits_is_taken_whole() -> None:
    assert shares({p(0): 3, p(1): 1, p(2): 0}, 4) == {p(0): 3, p(1): 1}


def test_nothing_to_read_shares_nothing() -> None:
    assert shares({p(0): 0}, 10) == {}


def test_with_fewer_records_than_partitions_the_longest_backlogs_come_first() -> None:
    assert shares({p(0): 5, p(1): 50, p(2): 500}, 1) == {p(2): 1}


def test_other_limits_count_from_the_next_batch_on_and_what_was_measured_stays() -> None:
    before = BatchSize.first(LIMITS).after(LIMITS.least, 0.01)
    after = before.within(replace(LIMITS, least=1, most=5))
    assert (after.records, after.measured) == (5, before.measured)
