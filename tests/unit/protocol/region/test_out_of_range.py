from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_kcr.errors import StaleEpoch
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.offsets import SeekSource
from airflow_kcr.protocol.region import lost_logs
from airflow_kcr.protocol.region.commands import ReportOutOfRange
from airflow_kcr.protocol.region.lost_logs import OutOfRange
from airflow_kcr.protocol.region.rows import RegionState
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.rules import Delivery, OutOfRangePolicy, RegionRules
from airflow_kcr.protocol.values import Epoch, Offset, TopicId
from tests.support.driver import GROUP, Driver, group_rules
from tests.support.judging import judge, positions, state
from tests.support.scripts import started

FAIL, EARLIEST, LATEST = OutOfRangePolicy


def at_ten(
    *,
    overtaken: OutOfRangePolicy = FAIL,
    beyond: OutOfRangePolicy = FAIL,
    delivery: Delivery = Delivery.AT_LEAST_ONCE,
) -> Driver:
    """Return a region of two partitions, everything accepted up to 10 and checkpoint there."""
    rules = RegionRules(
        groups={GROUP: group_rules(members=1, delivery=delivery)}, out_of_range=overtaken, beyond_end=beyond
    )
    driver = started(Driver(partitions=2, rules=rules))
    driver.process()
    driver.checkpoint("n")
    return driver


def log(start: int, end: int, topic_id: str = "id-1") -> LogBounds:
    return LogBounds(start=Offset(start), end=Offset(end), topic_id=TopicId(topic_id))


def found(driver: Driver, read: LogBounds, *, region: Region | None = None) -> tuple[OutOfRange, ...]:
    return lost_logs.out_of_range(region or driver.region, {driver.partition(0): read})


def report(driver: Driver, read: LogBounds) -> None:
    """Report what the log of the first partition looks like, and see the claims as the member does then."""
    member = driver.member(0)
    driver.handle(ReportOutOfRange(caller=driver.caller(member), observed={driver.partition(0): read}))


@pytest.mark.parametrize("read", [log(0, 10), log(10, 10), log(10, 99), log(0, 99), log(0, 10, "")])
def test_a_position_at_either_end_of_its_log_is_in_it(read: LogBounds) -> None:
    assert found(at_ten(), read) == ()


def test_retention_the_end_and_a_new_topic_id_are_told_apart_each_with_its_policy() -> None:
    driver = at_ten(overtaken=EARLIEST, beyond=LATEST)
    overtaken, moved, recreated = (found(driver, read)[0] for read in (log(11, 99), log(0, 9), log(0, 99, "id-2")))
    assert (overtaken.policy, overtaken.why) == (EARLIEST, "retention overtook it: the log now starts at 11")
    assert (moved.policy, moved.why) == (LATEST, "the log's end moved back to 9")
    assert recreated.policy is LATEST
    assert "deleted and created again (id id-1 became id-2)" in recreated.why


def test_a_position_that_stepped_over_a_skipped_record_at_the_end_is_in_the_log() -> None:
    driver = at_ten()
    region = replace(driver.region, skips={driver.partition(0): (Offset(9),)})
    assert found(driver, log(0, 9), region=region) == ()


def test_a_partition_without_a_row_or_a_position_has_no_place_to_be_wrong_at() -> None:
    driver = at_ten()
    assert lost_logs.out_of_range(driver.region, {driver.partition(7): log(5, 5)}) == ()
    claim = replace(driver.region.claims[driver.partition(0)], position=None)
    assert found(driver, log(50, 99), region=replace(driver.region, claims={driver.partition(0): claim})) == ()


def test_one_partition_whose_policy_is_to_fail_is_enough() -> None:
    driver = at_ten(overtaken=EARLIEST)
    troubles = lost_logs.out_of_range(driver.region, {driver.partition(0): log(11, 99), driver.partition(1): log(0, 9)})
    assert lost_logs.moved_into_logs(driver.region, driver.clock.now, troubles).state is RegionState.HALTED


def test_the_other_partitions_go_where_an_automatic_reset_would_take_them() -> None:
    driver = at_ten(overtaken=EARLIEST, delivery=Delivery.ALMOST_ONCE)
    driver.process()
    report(driver, log(50, 99))
    assert positions(driver) == [50, 20]


def test_where_a_sink_keeps_progress_they_go_to_what_is_known_to_be_done() -> None:
    driver = at_ten(overtaken=EARLIEST, delivery=Delivery.EXACTLY_ONCE)
    driver.process()
    report(driver, log(50, 99))
    entry = driver.region.seek[driver.partition(1)]
    assert (entry.offset, entry.source) == (20, SeekSource.BATCH_END)
    assert driver.region.seek.open == ()
    driver.finish_reset()
    assert state(driver) is RegionState.RUNNING
    judge(driver)


def test_a_recreated_topic_is_known_by_its_new_id_from_then_on() -> None:
    driver = at_ten(beyond=EARLIEST)
    report(driver, log(0, 5, "id-2"))
    claim = driver.region.claims[driver.partition(0)]
    assert (claim.topic_id, claim.position) == ("id-2", 0)
    assert found(driver, log(0, 5, "id-2")) == ()


def test_a_report_of_an_older_epoch_is_refused() -> None:
    driver = at_ten()
    caller = replace(driver.caller(driver.member(0)), epoch=Epoch(0))
    with pytest.raises(StaleEpoch):
        driver.handle(ReportOutOfRange(caller=caller, observed={driver.partition(0): log(50, 99)}))
