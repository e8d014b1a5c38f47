from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_kcr.errors import CheckpointNotUsable, OffsetOutsideLog
from airflow_kcr.protocol.region import events, lost_logs, timelines
from airflow_kcr.protocol.region.commands import ReportOutOfRange
from airflow_kcr.protocol.region.rows import RegionState
from airflow_kcr.protocol.targets import ToCheckpoint, ToCurrent, ToEarliest
from airflow_kcr.protocol.values import CheckpointNumber, Offset, TopicId
from tests.support.driver import Driver
from tests.support.judging import happened, judge, positions, state
from tests.support.scripts import started


def at_ten() -> Driver:
    """Return a region of one member and two partitions, everything accepted up to 10 and checkpoint there."""
    driver = started(Driver(partitions=2, members=1))
    driver.process()
    driver.checkpoint("n")
    return driver


def remade(driver: Driver, *, end: int = 5, topic_id: str = "id-2") -> None:
    """Make the topic anew, and let the member find out."""
    for number in range(2):
        driver.grow(driver.partition(number), end=end, topic_id=topic_id)
    driver.handle(ReportOutOfRange(caller=driver.caller(driver.member(0)), observed=driver.logs))
    assert state(driver) is RegionState.HALTED


def forced_to_the_start(driver: Driver) -> None:
    driver.reset(ToEarliest(), forced=True)
    driver.finish_reset()


@pytest.mark.parametrize(("known", "seen"), [("", "id-1"), ("id-1", ""), ("id-1", "id-1"), ("", "")])
def test_an_id_that_nobody_told_is_not_another_one(known: str, seen: str) -> None:
    assert not timelines.is_recreated(TopicId(known), TopicId(seen))


def test_a_place_that_was_looked_up_in_the_new_log_takes_the_partition_over_to_it() -> None:
    driver = at_ten()
    remade(driver)
    forced_to_the_start(driver)
    assert state(driver) is RegionState.RUNNING
    assert {c.topic_id for c in driver.region.claims.values()} == {"id-2"}
    assert not lost_logs.out_of_range(driver.region, driver.logs)
    assert {row.offset for (_, t), row in driver.region.initial.items() if t == "id-2"} == {0}
    driver.process()
    assert positions(driver) == [5, 5]
    assert len(happened(driver, events.Halted)) == 1
    judge(driver)


def test_a_place_that_was_only_stored_does_not() -> None:
    driver = at_ten()
    remade(driver)
    driver.reset(ToCurrent(), forced=True)
    driver.claim(driver.member(0))
    assert state(driver) is RegionState.HALTED
    assert {c.topic_id for c in driver.region.claims.values()} == {"id-1"}


def test_records_that_were_to_be_skipped_are_none_of_the_new_topic() -> None:
    driver = at_ten()
    driver.reset(ToCurrent(), forced=True, skip={driver.partition(0): Offset(12)})
    driver.finish_reset()
    remade(driver)
    assert driver.region.skips
    forced_to_the_start(driver)
    assert not driver.region.skips


def test_a_position_is_no_part_of_a_checkpoint_beside_the_log_of_another_topic() -> None:
    driver = at_ten()
    driver.request_checkpoint("m")
    for number in range(2):
        driver.grow(driver.partition(number), end=500, topic_id="id-2")
    with pytest.raises(OffsetOutsideLog, match="the position 10 is of topic id id-1, the log as read is of id-2"):
        driver.contribute(driver.member(0))


def test_a_checkpoint_of_the_old_topic_is_no_target_any_more_unless_that_is_out_of_scope() -> None:
    driver = at_ten()
    checkpoint = driver.region.restore_sequence or CheckpointNumber(0)
    remade(driver)
    forced_to_the_start(driver)
    region = driver.region
    assert timelines.lost_to(region, checkpoint) == tuple(sorted(driver.logs))
    back_current = replace(region.checkpoints[checkpoint], undone_by=None)
    region = replace(region, checkpoints={**region.checkpoints, checkpoint: back_current})
    driver.change(lambda _, __: region)
    with pytest.raises(CheckpointNotUsable, match="older than its topic: t was deleted and created again"):
        driver.reset(ToCheckpoint(sequence=checkpoint))
