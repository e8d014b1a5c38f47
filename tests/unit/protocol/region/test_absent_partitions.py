"""What becomes of partitions that the brokers do not have any more: noted, then no part of the region."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_kcr.protocol.region import coverage, events, liveness, resets
from airflow_kcr.protocol.region.commands import KillRegion, PartitionAdvice, Reconcile
from airflow_kcr.protocol.region.rows import HaltReason, Outcome, RegionState, ResetCause
from airflow_kcr.protocol.rules import Delivery
from airflow_kcr.protocol.targets import ToCheckpoint, ToCurrent
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import BatchId, GroupPartition, TopicId
from tests.support.driver import START, Driver
from tests.support.judging import halt_of, happened, judge
from tests.support.scripts import rewind, started

BOUNDARY = Timeouts().rejoin_after.total_seconds()
GRACE = 1.0


def region_of(delivery: Delivery = Delivery.AT_LEAST_ONCE) -> Driver:
    """A region of one member and four partitions that runs, with a checkpoint of them all."""
    driver = started(Driver(members=1, partitions=4, delivery=delivery))
    checkpoint(driver, "first")
    return driver


def checkpoint(driver: Driver, request_id: str) -> set[int]:
    """Make a checkpoint, and return the numbers of the partitions that it holds."""
    driver.request_checkpoint(request_id)
    sequence = driver.complete()
    driver.publish()
    return {p.partition for p in driver.region.offsets[sequence]}


def report(driver: Driver) -> PartitionAdvice:
    return driver.report_partitions(driver.member(0))


def lost(driver: Driver, *numbers: int) -> frozenset[GroupPartition]:
    """Have the brokers lose partitions."""
    found = frozenset(driver.partition(n) for n in numbers)
    for partition in found:
        del driver.logs[partition]
    return found


def given_up(driver: Driver, *numbers: int) -> frozenset[GroupPartition]:
    """Have the brokers lose partitions, for as long as it takes."""
    found = lost(driver, *numbers)
    report(driver)
    driver.wait(BOUNDARY)
    report(driver)
    return found


def gone_at_ten(driver: Driver) -> GroupPartition:
    """Have the brokers lose a partition whose position is 10, and make a checkpoint without it."""
    driver.process()
    (partition,) = given_up(driver, 3)
    driver.spread()
    driver.finish_reset()
    assert checkpoint(driver, "without it") == {0, 1, 2}
    return partition


@pytest.mark.parametrize("delivery", Delivery)
def test_a_region_goes_on_without_partitions_that_the_brokers_lost(delivery: Delivery) -> None:
    driver = region_of(delivery)
    gone = lost(driver, 2, 3)
    assert report(driver) == PartitionAdvice(report_again=True)
    driver.wait(BOUNDARY - GRACE)
    assert report(driver) == PartitionAdvice(report_again=True)
    assert not happened(driver, events.PartitionsGone)
    driver.wait(GRACE)
    assert report(driver) == PartitionAdvice(gone=gone)
    assert happened(driver, events.PartitionsGone) == [events.PartitionsGone(partitions=tuple(sorted(gone)))]
    assert driver.region.universe().isdisjoint(gone)
    driver.spread()
    driver.wait(0)
    driver.finish_reset()
    assert driver.region.state is RegionState.RUNNING
    driver.process()
    assert checkpoint(driver, "second") == {0, 1}
    assert not list(coverage.missing(driver.region, driver.clock.now))
    judge(driver)


def test_what_the_brokers_have_again_in_time_is_not_given_up() -> None:
    driver = region_of()
    (partition,) = lost(driver, 3)
    report(driver)
    driver.wait(BOUNDARY - GRACE)
    driver.grow(partition, end=1_000)
    assert report(driver) == PartitionAdvice()
    lost(driver, 3)
    driver.wait(GRACE)
    assert report(driver) == PartitionAdvice(report_again=True)
    assert partition in driver.region.universe()


def test_one_answer_alone_gives_nothing_up() -> None:
    driver = region_of()
    lost(driver, 3)
    driver.wait(10 * BOUNDARY)
    report(driver)
    assert not happened(driver, events.PartitionsGone)


def test_a_batch_that_a_dead_member_has_begun_on_a_partition_that_is_gone_is_got_past_by_a_reset() -> None:
    driver = region_of()
    member = driver.member(0)
    driver.start_batch(member, partitions=[driver.partition(3)])
    driver.crash(member)
    gone = lost(driver, 3)
    driver.wait(60)
    driver.join(member)
    driver.claim(member, driver.logs)
    assert driver.region.state is RegionState.RUNNING
    report(driver)
    driver.wait(BOUNDARY)
    report(driver)
    assert [e.cause for e in happened(driver, events.ResetBegun)][-1] is ResetCause.LEASE_LOST
    driver.spread()
    driver.finish_reset()
    driver.process()
    assert checkpoint(driver, "second") == {0, 1, 2}
    assert driver.region.universe().isdisjoint(gone)
    judge(driver)


def test_a_reset_ends_without_partitions_that_are_gone() -> None:
    driver = region_of()
    driver.crash(driver.member(0))
    gone = lost(driver, 2, 3)
    driver.wait(60)
    driver.handle(KillRegion())
    driver.handle(START)
    driver.join(driver.member(0))
    report(driver)
    driver.wait(BOUNDARY)
    assert report(driver) == PartitionAdvice(report_again=True, gone=gone)
    driver.spread()
    driver.finish_reset()
    assert driver.region.state is RegionState.RUNNING
    judge(driver)


def test_a_checkpoint_that_waits_for_a_partition_that_is_gone_is_made_without_it() -> None:
    driver = region_of()
    driver.request_checkpoint("second")
    assert driver.region.open_checkpoint is not None
    given_up(driver, 3)
    assert [e.reason for e in happened(driver, events.CheckpointAborted)] == ["the brokers do not have g:t-3 any more"]
    driver.spread()
    driver.finish_reset()
    driver.handle(Reconcile())
    sequence = driver.complete()
    assert {p.partition for p in driver.region.offsets[sequence]} == {0, 1, 2}
    assert not driver.region.checkpoints[sequence].inexact
    judge(driver)


def test_a_partition_that_is_there_again_as_the_same_topic_goes_on_where_it_was() -> None:
    driver = region_of()
    driver.process()
    checkpoint(driver, "where it was")
    (partition,) = given_up(driver, 3)
    place = driver.region.claims[partition].position
    assert place == 10
    driver.spread()
    driver.finish_reset()
    driver.grow(partition, end=1_000)
    driver.spread()
    driver.finish_reset()
    assert driver.region.claims[partition].position == place
    assert partition in driver.region.universe()
    assert report(driver) == PartitionAdvice()
    assert checkpoint(driver, "second") == {0, 1, 2, 3}
    judge(driver)


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("delivery", Delivery)
def test_a_partition_that_is_there_again_is_reset_to_where_the_checkpoints_without_it_left_it(
    delivery: Delivery, opened: bool
) -> None:
    driver = region_of(delivery)
    partition = gone_at_ten(driver)
    if opened:
        driver.reset(ToCurrent(), forced=True)
        driver.finish_reset()
    driver.grow(partition, end=1_000)
    driver.spread()
    driver.finish_reset()
    driver.request_reset(driver.member(0), ResetCause.SINK_FAILED)
    driver.finish_reset()
    assert driver.region.claims[partition].position == 10
    assert checkpoint(driver, "with it") == {0, 1, 2, 3}
    judge(driver)


@pytest.mark.parametrize("again", [False, True])
def test_a_partition_that_went_before_its_sink_had_said_its_place_has_not_lost_it(again: bool) -> None:
    driver = region_of(Delivery.EXACTLY_ONCE)
    driver.process()
    checkpoint(driver, "second")
    driver.request_reset(driver.member(0), ResetCause.SINK_FAILED)
    driver.claim(driver.member(0), sorted(driver.logs))
    (partition,) = given_up(driver, 3)
    if again:
        driver.grow(partition, end=1_000)
    else:
        driver.spread()
    driver.finish_reset()
    assert driver.region.state is RegionState.RUNNING
    driver.grow(partition, end=1_000)
    driver.spread()
    driver.finish_reset()
    assert driver.region.claims[partition].position == 10
    driver.process()
    assert checkpoint(driver, "third") == {0, 1, 2, 3}
    judge(driver)


@pytest.mark.parametrize("checkpoints", [1, 3])
@pytest.mark.parametrize("delivery", Delivery)
def test_a_person_who_goes_back_to_a_checkpoint_without_it_goes_to_where_the_last_one_with_it_left_it(
    delivery: Delivery, checkpoints: int
) -> None:
    driver = region_of(delivery)
    driver.process()
    checkpoint(driver, "with it")
    driver.process()
    (partition,) = given_up(driver, 3)
    driver.spread()
    driver.finish_reset()
    for number in range(checkpoints):
        driver.process()
        assert checkpoint(driver, f"without it {number}") == {0, 1, 2}
    without = driver.region.restore_sequence
    assert without is not None
    driver.grow(partition, end=1_000)
    later = driver.partition(4)
    driver.grow(later, end=1_000)
    driver.spread()
    driver.finish_reset()
    driver.process()
    assert checkpoint(driver, "with both") == {0, 1, 2, 3, 4}
    rewind(driver, ToCheckpoint(sequence=without))
    assert driver.region.claims[partition].position == 10
    assert driver.region.claims[later].position == 0, "what was found later begins anew"
    judge(driver)


@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize("attempts", [0, 1, 2])
@pytest.mark.parametrize("delivery", Delivery)
def test_a_partition_that_is_there_again_in_a_reset_is_where_it_was_left_however_many_attempts_that_takes(
    delivery: Delivery, attempts: int, forced: bool
) -> None:
    driver = region_of(delivery)
    partition = gone_at_ten(driver)
    driver.reset(ToCurrent(), forced=True)
    driver.finish_reset()
    assert checkpoint(driver, "in another timeline") == {0, 1, 2}
    driver.request_reset(driver.member(0), ResetCause.BATCH_REFUSED)
    driver.grow(partition, end=1_000)
    for _ in range(attempts):
        driver.claim(driver.member(0), sorted(driver.logs))
        driver.request_reset(driver.member(0), ResetCause.BATCH_REFUSED)
    if forced:
        driver.reset(ToCurrent(), forced=True)
    driver.spread()
    driver.finish_reset()
    assert driver.region.claims[partition].position == 10
    assert checkpoint(driver, "with it") == {0, 1, 2, 3}
    judge(driver)


def committed_and_gone_for(number: int) -> tuple[Driver, BatchId]:
    """A batch that the sink has and no answer told of, whose partition was gone for so many resets and is back."""
    driver = region_of(Delivery.EXACTLY_ONCE)
    member, partition = driver.member(0), driver.partition(3)
    batch = driver.start_batch(member, partitions=[partition])
    driver.commit_output(batch)
    driver.request_reset(member, ResetCause.BATCH_REFUSED)
    driver.claim(member, sorted(driver.logs))
    if number:
        given_up(driver, 3)
        driver.spread()
    driver.finish_reset()
    for _ in range(number - 1):
        driver.request_reset(member, ResetCause.BATCH_REFUSED)
        driver.finish_reset()
    driver.grow(partition, end=1_000)
    driver.spread()
    driver.finish_reset()
    return driver, batch


@pytest.mark.parametrize("times", [0, 1, 2])
def test_a_batch_that_the_sink_has_is_done_however_many_resets_its_partition_was_gone_for(times: int) -> None:
    driver, batch = committed_and_gone_for(times)
    assert driver.region.claims[driver.partition(3)].position == 10
    assert (driver.row(batch).outcome, driver.row(batch).proven_in) == (Outcome.DONE, driver.region.epoch)
    assert checkpoint(driver, "second") == {0, 1, 2, 3}
    judge(driver)


def test_a_partition_that_stayed_away_for_years_costs_no_reset_all_of_those_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resets, "RESETS_BACK", 2)
    driver, batch = committed_and_gone_for(2)
    assert driver.row(batch).outcome is Outcome.DISCARDED


def test_a_partition_that_is_there_again_as_another_topic_is_left_to_its_policy() -> None:
    driver = region_of()
    driver.process()
    (partition,) = given_up(driver, 3)
    driver.spread()
    driver.finish_reset()
    driver.logs[partition] = replace(driver.logs[driver.partition(0)], topic_id=TopicId("id-2"))
    driver.spread()
    assert halt_of(driver).reason is HaltReason.OUT_OF_RANGE


def test_a_region_that_stopped_forgets_nothing_of_what_is_gone() -> None:
    driver = region_of()
    gone = given_up(driver, 3)
    driver.crash(driver.member(0))
    driver.wait(60)
    driver.handle(KillRegion())
    driver.handle(START)
    driver.join(driver.member(0))
    driver.spread()
    driver.finish_reset()
    assert driver.region.universe().isdisjoint(gone)
    assert driver.region.state is RegionState.RUNNING


def test_a_region_that_waits_for_a_lost_partition_says_so_and_one_without_it_waits_for_nothing() -> None:
    driver = region_of()
    lost(driver, 3)
    driver.claim(driver.member(0), sorted(driver.logs))
    assert "g:t-3" in liveness.judge(driver.region, driver.clock.now).text()
    report(driver)
    driver.wait(BOUNDARY)
    report(driver)
    assert liveness.judge(driver.region, driver.clock.now).text() == "progressing"
