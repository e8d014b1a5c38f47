"""What accepted batches wrote may be in a process alone until a checkpoint: no reset leaves it standing without one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_kcr.protocol.observations import LogBounds, LogView
from airflow_kcr.protocol.region.commands import ReportOutOfRange
from airflow_kcr.protocol.region.plans import Plan, plan
from airflow_kcr.protocol.region.rows import HaltReason, Outcome, RegionState, ResetCause, ResetRequest
from airflow_kcr.protocol.rules import Delivery, OutOfRangePolicy, RegionRules
from airflow_kcr.protocol.scopes import parse_scope
from airflow_kcr.protocol.targets import ToCurrent, ToOffset
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import Offset, RequestId, TopicId
from tests.support.driver import GROUP, STOP, Driver, group_rules
from tests.support.judging import causes, halt_of, judge, positions, state
from tests.support.scripts import started

EARLIEST, LATEST = OutOfRangePolicy.EARLIEST, OutOfRangePolicy.LATEST


def held(
    delivery: Delivery = Delivery.AT_LEAST_ONCE,
    *,
    overtaken: OutOfRangePolicy = EARLIEST,
    beyond: OutOfRangePolicy = LATEST,
) -> Driver:
    """Return two partitions with a checkpoint at 10, accepted up to 20, which only the member's process has."""
    group = replace(group_rules(members=1, delivery=delivery), holds_output=True)
    rules = RegionRules(groups={GROUP: group}, out_of_range=overtaken, beyond_end=beyond)
    driver = started(Driver(partitions=2, rules=rules))
    driver.process()
    driver.checkpoint("n")
    driver.process()
    return driver


def report(driver: Driver, start: int, end: int, topic_id: str = "id-1") -> None:
    read = LogBounds(start=Offset(start), end=Offset(end), topic_id=TopicId(topic_id))
    driver.handle(ReportOutOfRange(caller=driver.caller(driver.member(0)), observed={driver.partition(0): read}))


def retention(driver: Driver) -> None:
    report(driver, 30, 99)


def recreated(driver: Driver) -> None:
    driver.grow(driver.partition(0), end=99, topic_id="id-2")
    report(driver, 0, 99, "id-2")


def forced(driver: Driver) -> None:
    driver.reset(ToCurrent(), forced=True)


def forced_forward(driver: Driver) -> None:
    driver.reset(ToOffset(offset=Offset(50)), forced=True, scope=parse_scope(topics=["t:0"]))
    for member in driver.all_members():
        driver.claim(member)


WAYS = (retention, recreated, forced, forced_forward)


def counting(driver: Driver) -> list[tuple[int, int]]:
    """Return the accepted ranges that still count, as a sink is asked to publish them."""
    return sorted(
        (range_.from_, range_.to)
        for batch in driver.batches
        if batch.outcome is Outcome.DONE
        for partition, range_ in batch.ranges.items()
        if partition not in batch.undone_from
    )


@pytest.mark.parametrize("delivery", [Delivery.AT_LEAST_ONCE, Delivery.ALMOST_ONCE])
@pytest.mark.parametrize("opens", WAYS)
def test_whatever_opens_a_timeline_without_a_drain_undoes_what_no_checkpoint_has(
    opens: Callable[[Driver], None], delivery: Delivery
) -> None:
    driver = held(delivery)
    assert counting(driver) == [(0, 10), (0, 10), (10, 20), (10, 20)]
    opens(driver)
    assert counting(driver) == [(0, 10), (0, 10)]
    driver.finish_reset()
    assert state(driver) is RegionState.RUNNING
    judge(driver)


@pytest.mark.parametrize("opens", [retention, forced_forward])
def test_it_says_that_it_passes_over_what_it_can_not_go_back_for(opens: Callable[[Driver], None]) -> None:
    driver = held()
    opens(driver)
    assert {entry.current for entry in driver.region.seek.values()} == {10}
    assert positions(driver)[1] == 10


def test_where_the_log_still_has_the_records_it_goes_back_for_them() -> None:
    driver = held()
    report(driver, 0, 15)
    assert positions(driver) == [10, 10]
    assert driver.region.timeline == 1


def test_and_what_it_finds_there_is_judged_by_its_own_policy() -> None:
    driver = held(overtaken=OutOfRangePolicy.FAIL)
    report(driver, 12, 15)
    halt = halt_of(driver)
    assert (halt.reason, state(driver)) == (HaltReason.OUT_OF_RANGE, RegionState.HALTED)
    assert "t-0 at 10: retention overtook it" in halt.text


def beside_exact(*, overtaken: OutOfRangePolicy = EARLIEST, beyond: OutOfRangePolicy = LATEST) -> Driver:
    """Return `held` with a group beside it that processes exactly once, its checkpoint at 10, accepted up to 20."""
    holding = replace(group_rules(members=1), holds_output=True)
    exact = group_rules("h", members=1, delivery=Delivery.EXACTLY_ONCE)
    rules = RegionRules(
        groups={holding.group_id: holding, exact.group_id: exact}, out_of_range=overtaken, beyond_end=beyond
    )
    driver = started(Driver(partitions=2, rules=rules))
    driver.process()
    driver.checkpoint("n")
    driver.process()
    return driver


@pytest.mark.parametrize(
    ("read", "place"),
    [
        (LogBounds(start=Offset(30), end=Offset(99), topic_id=TopicId("id-1")), 30),
        (LogBounds(start=Offset(0), end=Offset(15), topic_id=TopicId("id-1")), 15),
        (LogBounds(start=Offset(0), end=Offset(99), topic_id=TopicId("id-2")), 99),
    ],
    ids=["retention", "end moved back", "recreated"],
)
def test_a_place_that_a_sink_has_yet_to_say_is_still_out_of_its_log(read: LogBounds, place: int) -> None:
    driver = beside_exact()
    partition = driver.partition(0, "h")
    driver.logs[partition] = read
    driver.handle(ReportOutOfRange(caller=driver.caller(driver.member(0, "h")), observed={partition: read}))
    driver.finish_reset()
    assert (positions(driver), positions(driver, "h")) == ([10, 10], [place, 20])
    assert (driver.region.timeline, causes(driver)) == (2, ["start", "out_of_range", "out_of_range"])
    judge(driver)


def lose(driver: Driver) -> None:
    """Have the brokers lose the second partition, for as long as it takes until the region goes on without it."""
    (member,) = driver.all_members()
    driver.logs.pop(driver.partition(1), None)
    for _ in range(2):
        driver.report_partitions(member)
        driver.wait(Timeouts().rejoin_after.total_seconds())
    driver.claim(member, sorted(driver.logs))
    driver.wait(0)


def again(driver: Driver) -> None:
    """Have the member's process die, with what it holds, and another one come."""
    (member,) = driver.all_members()
    driver.vanish(member)
    driver.wait(60)
    driver.join(member)


@pytest.mark.parametrize("dies_first", [True, False])
def test_what_a_dead_process_held_of_a_partition_that_is_gone_is_undone(dies_first: bool) -> None:
    driver = held()
    if dies_first:
        again(driver)
        lose(driver)
    else:
        lose(driver)
        again(driver)
        driver.claim(driver.member(0), sorted(driver.logs))
    driver.finish_reset()
    assert (state(driver), counting(driver)) == (RegionState.RUNNING, [(0, 10), (0, 10)])
    driver.checkpoint("m")
    assert positions(driver) == [10, 10]
    judge(driver)


def test_what_a_live_process_holds_of_a_partition_that_is_gone_is_in_the_next_checkpoint() -> None:
    driver = held()
    lose(driver)
    driver.finish_reset()
    driver.checkpoint("m")
    assert causes(driver) == ["start"]
    again(driver)
    driver.claim(driver.member(0), sorted(driver.logs))
    driver.reset(ToCurrent(), forced=True)
    driver.finish_reset()
    assert counting(driver) == [(0, 10), (0, 10), (10, 20), (10, 20)]
    judge(driver)


def planned(driver: Driver, *, forced: bool) -> Plan:
    request = ResetRequest(target=ToOffset(offset=Offset(50)), scope=parse_scope(topics=["t:0"]), forced=forced)
    log = LogView(bounds=driver.logs, read_at=driver.clock.now)
    return plan(driver.region, driver.clock.now, RequestId("r"), request, log)


def test_a_stopped_region_that_was_not_drained_is_planned_and_reset_from_its_checkpoint() -> None:
    driver = held()
    driver.crash(driver.member(0))
    driver.wait(60)
    driver.handle(STOP)
    assert state(driver) is RegionState.STOPPED
    found = planned(driver, forced=False)
    assert [line.current for line in found.entries] == [10, 10]
    driver.reset(found.request.target, scope=found.request.scope, resolved=found.seek)
    assert (state(driver), counting(driver)) == (RegionState.STOPPED, [(0, 10), (0, 10)])
    assert positions(driver) == [50, 10]
    judge(driver)


@pytest.mark.parametrize(("is_forced", "place"), [(True, 10), (False, 20)])
def test_a_plan_counts_from_where_its_reset_goes_from(is_forced: bool, place: int) -> None:
    assert [line.current for line in planned(held(), forced=is_forced).entries] == [place, place]


@pytest.mark.parametrize(
    ("delivery", "place"),
    [(Delivery.AT_LEAST_ONCE, 10), (Delivery.ALMOST_ONCE, 10), (Delivery.AT_MOST_ONCE, 20)],
)
def test_an_automatic_reset_goes_back_for_output_unless_nothing_may_be_processed_twice(
    delivery: Delivery, place: int
) -> None:
    driver = held(delivery)
    driver.request_reset(driver.member(0), ResetCause.SINK_FAILED)
    assert positions(driver) == [place, place]


@pytest.mark.parametrize("opens", [retention, forced])
def test_at_most_once_stays_where_it_is(opens: Callable[[Driver], None]) -> None:
    driver = held(Delivery.AT_MOST_ONCE)
    opens(driver)
    assert counting(driver) == [(0, 10), (0, 10), (10, 20), (10, 20)]
    assert positions(driver)[1] == 20
