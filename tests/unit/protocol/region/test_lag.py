"""What the lag of a partition means, by its samples and by what the region waits for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from airflow_kcr.protocol.region import lag, liveness
from airflow_kcr.protocol.region.lag import (
    MAX_POINTS,
    NO_SAMPLE,
    TIERS,
    LagFinding,
    LagPoint,
    LagSample,
    LagVerdict,
    SampleKey,
    came_before,
    caught_up_in,
    surplus,
)
from airflow_kcr.protocol.region.rows import RegionState, ResetCause
from airflow_kcr.protocol.region.waits import Rule
from airflow_kcr.protocol.rules import CheckpointMode, CheckpointRules, RegionRules
from airflow_kcr.protocol.values import Epoch, GroupId, Offset
from airflow_kcr.schedules import Every
from tests.support.driver import BEGINNING, GROUP, PAUSE, Driver, group_rules
from tests.support.scripts import all_crash, hourly, running

MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)

Row = tuple[int | None, int | None]
"""End and position."""


def samples(driver: Driver, rows: Sequence[Row], now: datetime, *, epochs: Sequence[int] = ()) -> list[LagSample]:
    """Samples of partition 0, a minute apart, the last one now; all other partitions are left out."""
    found = []
    for number, (end, position) in enumerate(rows):
        point = LagPoint(
            end=None if end is None else Offset(end),
            position=None if position is None else Offset(position),
            committed=None if position is None else Offset(position),
        )
        at = now - MINUTE * (len(rows) - 1 - number)
        epoch = Epoch(epochs[number]) if epochs else driver.region.epoch
        found.append(LagSample(group=GROUP, at=at, epoch=epoch, points={driver.partition(0): point}))
    return found


def judged(
    driver: Driver, rows: Sequence[Row], *, later: timedelta = timedelta(0), **more: Sequence[int]
) -> LagFinding:
    region, now = driver.store.read(driver.name)
    waits = liveness.judge(region, now + later, driver.store.seen(driver.name))
    found = lag.judge(region, now + later, waits, samples(driver, rows, now + later, **more))
    return found[driver.partition(0)]


STEADY: Row = (1_000, 500)


def test_a_partition_that_is_read_up_is_ok_whatever_the_region_waits_for() -> None:
    driver = running()
    assert judged(driver, [(500, 500)] * 11).verdict is LagVerdict.OK
    all_crash(driver)
    assert judged(driver, [(500, 500)] * 11, later=DAY).verdict is LagVerdict.OK


def test_a_backlog_that_becomes_smaller_is_ok() -> None:
    rows = [(1_000 + 10 * n, 100 * n) for n in range(10)]
    assert judged(running(), rows) == LagFinding(verdict=LagVerdict.OK)


@pytest.mark.parametrize("row", [(None, 5), (5, None)])
def test_a_lag_without_a_position_or_an_end_is_unknown_and_not_0(row: Row) -> None:
    assert judged(running(), [STEADY, row]).verdict is LagVerdict.UNKNOWN


def test_a_lag_that_only_grows_is_a_warning_since_the_first_sample_that_counts() -> None:
    driver = running()
    found = judged(driver, [(1_000 + 200 * n, 100 * n) for n in range(12)])
    assert (found.verdict, found.what) == (LagVerdict.WARN, "its lag grows: from 1,200 to 2,100 offsets")
    assert found.since == driver.clock.now - 9 * MINUTE


def test_it_is_one_too_while_a_checkpoint_drains_and_what_that_keeps_waiting_is_no_stall() -> None:
    driver = running()
    driver.request_checkpoint("a")
    assert driver.region.open_checkpoint is not None
    assert judged(driver, [(1_000 + 200 * n, 100 * n) for n in range(12)]).verdict is LagVerdict.WARN
    assert judged(driver, [STEADY] * 12).verdict is LagVerdict.OK
    assert judged(driver, [(1_000 + n, 500) for n in range(12)]).verdict is LagVerdict.OK


def test_of_few_or_close_samples_no_trend_is_read() -> None:
    assert judged(running(), [(1_000 + 200 * n, 100 * n) for n in range(2)]).verdict is LagVerdict.OK
    assert judged(running(), [STEADY] * 6).verdict is LagVerdict.OK


def test_a_position_that_nothing_explains_is_stalled_since_it_first_was_there() -> None:
    driver = running()
    found = judged(driver, [(1_000, 400), *[STEADY] * 20])
    assert (found.verdict, found.what) == (LagVerdict.STALLED, "records are left, and the position stays at 500")
    assert found.since == driver.clock.now - 19 * MINUTE


def test_a_position_that_moves_is_not_stalled() -> None:
    assert judged(running(), [*[STEADY] * 10, (1_000, 501)]).verdict is LagVerdict.OK


def test_a_position_that_goes_back_within_an_epoch_is_rewound() -> None:
    driver = running()
    found = judged(driver, [(1_000, 500), (1_000, 300), (1_000, 350)])
    assert (found.verdict, found.since) == (LagVerdict.REWOUND, driver.clock.now - MINUTE)
    assert found.what == "it went back to 300, and no reset of the region did it"


def test_a_reset_of_the_region_is_no_rewind() -> None:
    rows = [(1_000, 500), (1_000, 300), (1_000, 350)]
    assert judged(running(), rows, epochs=[1, 2, 2]).verdict is LagVerdict.OK


def test_a_real_reset_has_an_epoch_of_its_own() -> None:
    driver = running()
    before = driver.region.epoch
    driver.request_reset(driver.member(0), ResetCause.CLAIM, "for once")
    driver.finish_reset()
    assert driver.region.epoch > before


def test_a_paused_region_is_stopped_and_says_what_to_do() -> None:
    driver = running()
    driver.handle(PAUSE)
    found = judged(driver, [STEADY])
    assert (found.verdict, found.what) == (LagVerdict.STOPPED, "person: the region is paused; resume it")
    assert found.to_do == lag.TO_DO[Rule.PERSON]


def test_members_that_died_are_a_stop_once_they_are_away_for_too_long() -> None:
    driver = running()
    all_crash(driver)
    assert judged(driver, [STEADY] * 11).verdict is LagVerdict.OK
    found = judged(driver, [STEADY] * 11, later=liveness.patience(driver.region) + MINUTE)
    assert (found.verdict, found.what) == (LagVerdict.STOPPED, "members: no member lives; start them")
    assert found.since == max(lease.until for lease in driver.region.leases.values())


def test_a_partition_without_an_owner_is_a_stop_of_its_group_alone() -> None:
    driver = running()
    all_crash(driver, [driver.member(1)])
    region, now = driver.store.read(driver.name)
    lasting = {m: replace(r, until=r.until + DAY) if r.until > now else r for m, r in region.leases.items()}
    region = replace(region, leases=lasting)
    later = now + liveness.patience(region) + MINUTE
    waits = liveness.judge(region, later)
    of_group, elsewhere = samples(driver, [STEADY], later)[0], GroupId("h")
    found = lag.judge(region, later, waits, [of_group])
    assert found[driver.partition(0)].verdict is LagVerdict.STOPPED
    other = driver.partition(0, group="h")
    points = {other: next(iter(of_group.points.values()))}
    found = lag.judge(region, later, waits, [replace(of_group, group=elsewhere, points=points)])
    assert found[other].verdict is LagVerdict.OK


def test_what_lasts_too_long_in_the_list_of_waits_is_a_stall() -> None:
    driver = running()
    driver.start_batch(driver.member(0))
    region, now = driver.store.read(driver.name)
    lasting = {m: replace(row, until=now + DAY) for m, row in region.leases.items()}
    region = replace(region, leases=lasting)
    later = now + timedelta(hours=12)
    waits = liveness.judge(region, later)
    assert {wait.rule for wait in waits.stalled} == {Rule.BATCH}
    found = lag.judge(region, later, waits, samples(driver, [STEADY], later))[driver.partition(0)]
    assert (found.verdict, found.to_do) == (LagVerdict.STALLED, lag.TO_DO[Rule.BATCH])
    assert found.what.startswith("batch: batch ")


def test_every_reason_has_something_to_do() -> None:
    assert lag.TO_DO.keys() == set(Rule)


def test_a_stopped_region_rests_for_two_periods_and_then_is_stopped() -> None:
    driver = hourly()
    sequence = driver.checkpoint("a")
    region, boundary = driver.region, BEGINNING + timedelta(hours=1)
    checkpoints = {**region.checkpoints, sequence: replace(region.checkpoints[sequence], boundary=boundary)}
    region = replace(region, state=RegionState.STOPPED, checkpoints=checkpoints)
    for hours, verdict in ((1, LagVerdict.OK), (2, LagVerdict.STOPPED)):
        now = boundary + timedelta(hours=hours)
        found = lag.judge(region, now, liveness.judge(region, now), samples(driver, [STEADY], now))
        assert found[driver.partition(0)].verdict is verdict


def test_a_region_stopped_by_a_person_is_stopped_at_once() -> None:
    assert judged(Driver(), [STEADY]).verdict is LagVerdict.STOPPED


def test_a_dag_that_airflow_does_not_run_is_a_stop_after_two_periods() -> None:
    rules = CheckpointRules(schedule=Every(timedelta(hours=1)), mode=CheckpointMode.DAG_RUN)
    driver = Driver(rules=RegionRules(groups={GROUP: group_rules()}, checkpoint=rules))
    driver.up()
    region, _ = driver.store.read(driver.name)
    boundary = region.next_boundary
    assert boundary is not None
    for hours, verdict in ((1, LagVerdict.OK), (2, LagVerdict.STOPPED)):
        now = boundary + timedelta(hours=hours)
        lasting = {m: replace(row, until=now + DAY) for m, row in region.leases.items()}
        there = replace(region, leases=lasting)
        found = lag.judge(there, now, liveness.judge(there, now), samples(driver, [STEADY], now))
        to_do = lag.TO_DO[Rule.RUN] if verdict is LagVerdict.STOPPED else ""
        assert (found[driver.partition(0)].verdict, found[driver.partition(0)].to_do) == (verdict, to_do)


def test_old_samples_say_nothing_of_now() -> None:
    driver = running()
    region, now = driver.store.read(driver.name)
    old = samples(driver, [STEADY], now - lag.WINDOW)
    assert lag.judge(region, now, liveness.judge(region, now), old) == {}
    assert lag.worst([]) == NO_SAMPLE


def test_the_worst_of_several_counts_and_of_those_the_earliest() -> None:
    early, late = (LagFinding(verdict=LagVerdict.STALLED, since=BEGINNING + n * DAY) for n in (1, 2))
    others = [LagFinding(verdict=v) for v in LagVerdict if v is not LagVerdict.STALLED]
    assert lag.worst([*others, late, early]) == early


def test_what_is_left_is_not_known_without_a_sample_of_each_group() -> None:
    driver = running()
    kept = samples(driver, [(100, 0), (200, 50)], driver.clock.now)
    assert lag.course([GROUP], kept) == (100, 150)
    assert lag.course([GROUP, GroupId("h")], kept) == ()


# -- time --------------------------------------------------------------------------------------------------------------


def test_a_record_is_as_old_as_the_first_sample_that_had_it_at_least() -> None:
    driver = running()
    now = driver.clock.now
    kept = samples(driver, [(100, 0), (200, 0), (300, 0)], now)
    assert came_before(kept, driver.partition(0), Offset(150)) == now - MINUTE
    assert came_before(kept, driver.partition(0), Offset(200)) == now
    assert came_before(kept, driver.partition(0), Offset(300)) is None
    # It may have come at any time before the oldest sample.
    assert came_before(kept, driver.partition(0), Offset(50)) is None


def test_the_time_to_catch_up_follows_from_the_window_alone() -> None:
    now = BEGINNING + DAY
    fell = [(now - MINUTE * (10 - n), 1_000 - 50 * n) for n in range(11)]
    assert caught_up_in(now, [(now - DAY, 10**9), *fell]) == 10 * MINUTE
    assert caught_up_in(now, fell[-2:]) is None
    assert caught_up_in(now, [(at, 7) for at, _ in fell]) is None


# -- thinning ----------------------------------------------------------------------------------------------------------


def thinned(kept: list[SampleKey], now: datetime) -> list[SampleKey]:
    dropped = set(surplus(kept, now))
    return [key for key in kept if key not in dropped]


def test_a_year_of_samples_comes_to_a_few_hundred_of_each_group() -> None:
    kept: list[SampleKey] = []
    now = BEGINNING
    for _ in range(9 * 24 * 12):
        now += 5 * MINUTE
        kept = thinned([*kept, SampleKey(GROUP, now, 4), SampleKey(GroupId("h"), now, 4)], now)
    ages = [now - key.at for key in kept if key.group == GROUP]
    assert len(ages) * 2 == len(kept)
    assert max(ages) <= TIERS[-1][0]
    for (age, step), before in zip(TIERS, (timedelta(0), TIERS[0][0], TIERS[1][0]), strict=True):
        of_tier = [one for one in ages if before < one <= age]
        assert len(of_tier) == pytest.approx((age - before) / max(step, 5 * MINUTE), abs=2)
    assert thinned(kept, now) == kept


def test_of_many_partitions_the_newest_samples_are_kept_and_one_of_each_group_always() -> None:
    now = BEGINNING + DAY
    wide = [SampleKey(GROUP, now - MINUTE * n, MAX_POINTS // 4) for n in range(8)]
    narrow = SampleKey(GroupId("h"), now - 7 * MINUTE, 1)
    assert thinned([*wide, narrow], now) == [*wide[:4], narrow]
