"""The planner, the shares and the size of a batch, under everything that can be thought of."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region.rows import BoundaryOffset, Claim
from airflow_kcr.protocol.region.view import MemberRegion
from airflow_kcr.protocol.values import BatchId, GroupPartition, Offset
from airflow_kcr.runtime.leases import StoreClock
from airflow_kcr.runtime.planner import GROWTH, BatchSize, Limits, Planner, shares
from tests.support import lone_member
from tests.support.runtime_fakes import NOON, FakeLogs, Hands, p
from tests.support.simulation.broker import Log

PARTITIONS = [p(n) for n in range(3)]
GRACE = timedelta(seconds=2)
LIMITS = Limits(target=timedelta(seconds=2), least=1_000, most=1_000_000)
MAX_FAILURES = 5
"""How many failures in a row a region answers with a reset, unless its spec says otherwise."""

backlogs = st.dictionaries(st.builds(p, st.integers(0, 12)), st.integers(0, 10_000_000), max_size=12)
sizes = st.one_of(st.integers(1, 20), st.integers(1, 10_000_000))


# -- shares --------------------------------------------------------------------------------------------------------


@given(backlog=backlogs, size=sizes)
def test_shares_take_all_that_the_size_allows_and_no_more_than_there_is(
    backlog: dict[GroupPartition, int], size: int
) -> None:
    taken = shares(backlog, size)
    assert sum(taken.values()) == min(size, sum(backlog.values()))
    assert all(0 < n <= backlog[partition] for partition, n in taken.items())


@given(backlog=backlogs, size=sizes)
def test_whoever_has_a_backlog_gets_a_record_if_there_are_enough(backlog: dict[GroupPartition, int], size: int) -> None:
    waiting = {partition for partition, n in backlog.items() if n > 0}
    if size >= len(waiting):
        assert shares(backlog, size).keys() == waiting


@given(backlog=backlogs, size=sizes)
def test_a_longer_backlog_never_gets_less(backlog: dict[GroupPartition, int], size: int) -> None:
    taken = shares(backlog, size)
    by_backlog = sorted(backlog, key=lambda partition: backlog[partition])
    for short, long in pairwise(by_backlog):
        if backlog[short] < backlog[long]:
            assert taken.get(short, 0) <= taken.get(long, 0)


@given(backlog=backlogs, size=sizes)
def test_shares_are_in_proportion_but_for_the_first_record_and_what_does_not_divide(
    backlog: dict[GroupPartition, int], size: int
) -> None:
    taken, total = shares(backlog, size), sum(backlog.values())
    if total > size:
        for partition, n in backlog.items():
            assert abs(taken.get(partition, 0) - n * size / total) <= 1 + len(backlog)


@given(backlog=backlogs, size=sizes, data=st.data())
def test_the_same_backlog_is_shared_out_the_same_way_whatever_its_order(
    backlog: dict[GroupPartition, int], size: int, data: st.DataObject
) -> None:
    shuffled = dict(data.draw(st.permutations(list(backlog.items()))))
    assert list(shares(shuffled, size).items()) == list(shares(backlog, size).items())


# -- the size of a batch -------------------------------------------------------------------------------------------


@given(overhead=st.floats(0.0, 1.0), rate=st.floats(1_500.0, 400_000.0))
def test_the_size_comes_to_the_target_within_a_few_batches(overhead: float, rate: float) -> None:
    size = BatchSize.first(LIMITS)
    for _ in range(16):
        size = size.after(size.records, overhead + size.records / rate)
    best = min(max((2.0 - overhead) * rate, LIMITS.least), LIMITS.most)
    assert 0.9 * best <= size.records <= 1.1 * best


@given(batches=st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 1e6)), max_size=30))
def test_the_size_stays_within_its_limits_and_grows_by_no_more_than_the_factor(
    batches: list[tuple[float, float]],
) -> None:
    size = BatchSize.first(LIMITS)
    for filled, seconds in batches:
        before, size = size, size.after(round(size.records * filled), seconds)
        assert LIMITS.least <= size.records <= LIMITS.most
        assert size.records <= before.records * GROWTH


@given(records=st.integers(1_000, 1_000_000), filled=st.floats(0.0, 0.89), seconds=st.floats(0.0, 1e6))
@example(records=1_000, filled=0.5, seconds=3.0)  # of the smallest size, and slower than it should be
def test_a_batch_that_was_not_full_never_grows_the_size(records: int, filled: float, seconds: float) -> None:
    size = BatchSize(limits=LIMITS, records=records)
    assert size.after(int(records * filled), seconds).records <= records


@given(
    learnt=st.integers(1, 2_000_000),
    least=st.integers(1, 100_000),
    timeout=st.floats(8, 600),
    overhead=st.floats(0, 0.45),
    one=st.floats(1e-6, 0.45),
)
def test_a_pipeline_that_can_do_one_record_in_time_comes_to_a_size_that_it_can_do_before_the_region_halts(
    learnt: int, least: int, timeout: float, overhead: float, one: float
) -> None:
    limits = Limits(target=timedelta(seconds=2), least=least, most=2_000_000, longest=timedelta(seconds=timeout / 4))
    # The batch by itself and each record, as shares of the timeout.
    by_itself, each = overhead * timeout, one * timeout
    size, failures = BatchSize(limits=limits, records=max(learnt, least)), 0
    while (seconds := by_itself + each * size.records) > timeout:
        size, failures = size.after_failure(size.records, timeout), failures + 1
        assert failures <= MAX_FAILURES
    for _ in range(30):
        size = size.after(size.records, seconds)
        seconds = by_itself + each * size.records
        assert seconds <= timeout


@given(least=st.integers(1, 100_000), one=st.floats(1e-6, 0.45))
def test_members_that_start_anew_after_each_timeout_come_to_a_size_too(least: int, one: float) -> None:
    limits = Limits(target=timedelta(seconds=2), least=least, most=2_000_000)
    starts = (BatchSize.first(limits).warned(failures).records for failures in range(MAX_FAILURES + 1))
    assert any(records * one <= 1 for records in starts)


# -- boundaries --------------------------------------------------------------------------------------------------------


def view_of(limit_seconds: float, located: dict[GroupPartition, BoundaryOffset]) -> MemberRegion:
    seen = lone_member.view_of(dict.fromkeys(PARTITIONS, Claim()))
    return replace(seen, limit=NOON + timedelta(seconds=limit_seconds), boundary_offsets=dict(located))


produced = st.tuples(st.integers(0, 2), st.integers(1, 30))
rounds = st.tuples(
    st.floats(0.05, 1.5),
    st.lists(produced, max_size=3),
    st.lists(produced, max_size=2),
    st.one_of(st.none(), st.integers(0, 5)),
    st.integers(1, 40),
)


@given(boundary=st.floats(0.5, 6.0), steps=st.lists(rounds, min_size=1, max_size=25))
def test_batches_hold_exactly_the_records_before_the_boundary_whenever_logs_grow(
    boundary: float,
    steps: list[tuple[float, list[tuple[int, int]], list[tuple[int, int]], int | None, int]],
) -> None:
    hands = Hands(1000.0)
    logs = {partition: Log() for partition in PARTITIONS}
    fake = FakeLogs(logs)
    planner = Planner(fake, hands, StoreClock(hands, NOON), GRACE, LIMITS)
    limit = NOON + timedelta(seconds=boundary)
    positions = dict.fromkeys(PARTITIONS, Offset(0))
    located: dict[GroupPartition, BoundaryOffset] = {}

    def produce(what: list[tuple[int, int]]) -> None:
        stamp = NOON + timedelta(seconds=hands.now - 1000)
        for number, count in what:
            logs[p(number)].stamps.extend([stamp] * count)

    def one_round(size: int) -> bool:
        planned = planner.plan(BatchId("b"), OffsetMap(positions), view_of(boundary, located), size)
        assert planned.outside == {}
        assert sum(r.width for r in planned.ranges.values()) <= size
        located.update(
            {partition: row for partition, row in planned.boundary_offsets.items() if partition not in located}
        )
        for partition, range_ in planned.ranges.items():
            assert range_.from_ == positions[partition]
            assert range_.to <= logs[partition].stable_end
            assert all(stamp < limit for stamp in logs[partition].stamps[range_.from_ : range_.to])
            positions[partition] = range_.to
        return bool(planned.ranges)

    for pause, first, between, hidden, size in steps:
        hands.now += pause
        stable = logs[p(0)].stable_end
        produce(first)
        # A transaction hides the newest records of one log for this round; what was stable stays so.
        if hidden is not None:
            logs[p(0)].open_from = max(logs[p(0)].stable_end - hidden, stable)
        fake.in_between = lambda between=between: produce(between)  # type: ignore[misc]
        one_round(size)
        fake.in_between = lambda: None
        logs[p(0)].open_from = None
    hands.now += 1 + boundary + GRACE.total_seconds()
    while one_round(1_000):
        pass
    assert {partition: row.offset for partition, row in located.items()} == positions
    if all(hidden is None for _, _, _, hidden, _ in steps):
        assert positions == {partition: sum(stamp < limit for stamp in log.stamps) for partition, log in logs.items()}
