from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_kcr.runtime.planner import GROWTH, PATIENCE, SHRINKAGE, BatchSize, Limits, shares
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


def test_a_half_empty_one_that_was_too_slow_at_the_floor_does_not_either_and_full_ones_still_do() -> None:
    small = size(LIMITS.least).after(LIMITS.least // 2, 3.0 + LIMITS.least / 200_000)
    assert small.records == LIMITS.least
    for _ in range(12):
        small = small.after(small.records, 3.0 + small.records / 100_000)
    assert 200_000 <= small.records <= 400_000


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


# -- batches that did not do their work ----------------------------------------------------------------------------


def test_a_batch_that_ran_into_its_timeout_shrinks_the_next_one_to_what_its_rate_allows_at_most() -> None:
    assert size(600_000).after_failure(600_000, 120.0).records == 10_000


def test_a_batch_that_failed_at_once_shrinks_the_next_one_to_a_quarter() -> None:
    assert size(600_000).after_failure(400_000, 0.1).records == 100_000


def test_the_floor_gives_way_to_a_batch_of_it_that_ran_into_its_timeout() -> None:
    assert size(1_000).after_failure(1_000, 120.0).records < 1_000


def test_the_floor_gives_way_to_a_quota_before_batches_come_near_their_timeout() -> None:
    slow = size(1_000).slowed(1_000, 100.0)
    assert slow.records == 300
    assert slow.slowed(300, 50.0).records == 300
    for _ in range(8):
        slow = slow.slowed(slow.records, 0.01)
    assert slow.lowered is None
    assert size(1_000).slowed(1_000, 4.0) == size(1_000).after(1_000, 4.0)


def test_each_further_failure_in_a_row_shrinks_the_size_more() -> None:
    failing, sizes = size(1_000_000), [1_000_000]
    while failing.records > 1:
        failing = failing.after_failure(failing.records, 1.0)
        sizes.append(failing.records)
    assert sizes == [1_000_000, 250_000, 15_625, 244, 1]


def test_what_was_measured_before_a_timeout_says_nothing_of_the_pipeline_that_it_is_now() -> None:
    fast = size(100_000)
    for _ in range(8):
        fast = fast.after(fast.records, 1.0)
    slow = fast.after_failure(fast.records, 120.0)
    assert slow.after(slow.records, 2.0).records == slow.records


def test_the_floor_is_back_as_soon_as_the_pipeline_is_fast_enough_for_it() -> None:
    lowered = size(1_000).after_failure(1_000, 120.0)
    slow = lowered.after(lowered.records, 2.0)
    assert slow.lowered is not None
    fast = lowered.after(lowered.records, 0.001)
    assert fast.lowered is None


def full(size: BatchSize, times: int) -> BatchSize:
    for _ in range(times):
        size = size.after(size.records, 0.001)
    return size


def test_batches_stay_below_half_of_one_that_failed_until_many_have_done_their_work() -> None:
    failed = size(100_000).after_failure(80_000, 1.0)
    assert full(failed, PATIENCE).records == 40_000
    assert full(failed, PATIENCE + 1).records > 80_000


def test_a_size_that_failed_again_is_left_alone_for_longer() -> None:
    again = full(size(100_000).after_failure(80_000, 1.0), PATIENCE).after_failure(90_000, 1.0)
    assert full(again, 4 * PATIENCE).records == 40_000
    assert full(again, 4 * PATIENCE + 1).records > 40_000


def test_a_batch_as_large_as_one_that_failed_shows_that_it_was_not_its_size() -> None:
    one = size(1).after_failure(1, 1.0)
    assert one.records == 1
    assert one.after(1, 0.001).records == GROWTH


def test_other_limits_do_not_bring_back_a_floor_that_ran_into_its_timeout() -> None:
    lowered = size(1_000).after_failure(1_000, 120.0)
    assert lowered.within(LIMITS).records == lowered.records


@pytest.mark.parametrize(("failures", "records"), [(0, 1_000), (1, 250), (2, 15), (5, 1), (400, 1)])
def test_a_member_that_has_run_nothing_yet_goes_by_the_failures_that_its_region_counts(
    failures: int, records: int
) -> None:
    assert BatchSize.first(LIMITS).warned(failures).records == records


def test_a_member_that_has_measured_its_pipeline_goes_by_that() -> None:
    known = BatchSize.first(LIMITS).after(1_000, 1.0)
    assert known.warned(3) == known
