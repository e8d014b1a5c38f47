"""Scenarios C1 to C10: where a reset goes, who may end what, what is never planned, and what fences protect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_kcr.errors import BatchRefused, NotClaimed, PartitionBusy, StaleEpoch
from airflow_kcr.protocol.member import messages
from airflow_kcr.protocol.member import messages as member_events
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.region import commands, lost_logs
from airflow_kcr.protocol.region.commands import RetireCheckpoints
from airflow_kcr.protocol.region.rows import BoundaryOffset, CheckpointState, Outcome, RegionState, ResetCause
from airflow_kcr.protocol.rules import Delivery, RegionRules, RetentionRules
from airflow_kcr.protocol.targets import Target, ToCheckpoint, ToEarliest, ToInitial, ToLatest, ToOffset
from airflow_kcr.protocol.values import BatchId, Offset, Range
from tests.support import answers
from tests.support.driver import GROUP, START, STOP, Driver, group_rules
from tests.support.judging import (
    accepted,
    causes,
    judge,
    manifest,
    members_batches,
    open_checkpoint,
    positions,
    started_of,
    state,
)
from tests.support.lone_member import MINE, LoneMember
from tests.support.scripts import (
    GRACE,
    NO_RECORD,
    boundary_offset,
    checkpoints_of_ten,
    published,
    rewind,
    running,
    started,
)
from tests.support.simulation.sinks import FencedSink

# -- C1 --------------------------------------------------------------------------------------------------------------


def test_c01_after_a_rewind_and_a_crash_the_automatic_reset_goes_to_the_rewound_place_not_the_newest_checkpoint() -> (
    None
):
    driver = running()
    checkpoints = checkpoints_of_ten(driver, 9)
    opened = rewind(driver, ToCheckpoint(sequence=checkpoints[2]))
    assert positions(driver) == [30] * 4
    driver.process(width=5)
    driver.crash(driver.member(0))
    driver.recover()
    assert positions(driver) == [30] * 4
    assert driver.region.restore_sequence == opened
    judge(driver)


@pytest.mark.parametrize(
    ("target", "place"),
    [(ToOffset(offset=Offset(7)), 7), (ToInitial(), 0), (ToEarliest(), 0), (ToLatest(), 1_000)],
    ids=["to-offset", "to-initial", "to-earliest", "to-latest"],
)
def test_c01_every_target_of_a_person_is_where_the_next_automatic_reset_goes(target: Target, place: int) -> None:
    driver = running()
    checkpoints_of_ten(driver, 9)
    rewind(driver, target)
    for member in driver.all_members():
        driver.crash(member)
    driver.recover()
    if target != ToLatest():
        driver.process(width=5)
        driver.crash(driver.member(1))
        driver.recover()
        assert causes(driver)[-1] is ResetCause.CLAIM
    assert positions(driver) == [place] * 4
    judge(driver)


def test_c01_retirement_keeps_what_the_restore_point_was_built_from() -> None:
    rules = RegionRules(groups={GROUP: group_rules()}, retention=RetentionRules(keep=2))
    driver = started(Driver(rules=rules))
    origin, newer = checkpoints_of_ten(driver, 2)
    # Its drain is a third checkpoint; the oldest would go, if nothing had been built from it.
    rewind(driver, ToCheckpoint(sequence=origin))
    driver.handle(RetireCheckpoints())
    assert driver.region.checkpoints[origin].state is CheckpointState.PUBLISHED
    assert driver.region.checkpoints[newer].state is CheckpointState.RETIRED
    rewind(driver, ToCheckpoint(sequence=origin))
    judge(driver)


# -- C2, C3 ----------------------------------------------------------------------------------------------------------


def test_c02_a_claim_where_another_has_begun_begins_a_reset_and_the_other_end_is_refused() -> None:
    driver = running()
    one, other = driver.member(0), driver.member(1)
    q = driver.partition(2)
    batch = driver.start_batch(other)
    before = driver.region.epoch
    wanted = [driver.partition(0), driver.partition(1), q]
    with pytest.raises(PartitionBusy):
        driver.claim(one, wanted)
    assert driver.region.epoch == before
    driver.insist(one, wanted)
    assert driver.region.epoch == before + 1
    assert causes(driver)[-1] is ResetCause.CLAIM
    with pytest.raises(StaleEpoch):
        driver.finish_batch(batch)
    driver.discard(batch)
    driver.claim(other, [driver.partition(3)])
    driver.finish_reset()
    driver.process(one, other)
    assert accepted(driver, q) == [Range(Offset(0), Offset(10))]
    judge(driver)


def test_c03_a_batch_that_has_begun_counts_as_processed_when_its_partition_is_revoked() -> None:
    driver = running()
    one, other = driver.member(0), driver.member(1)
    batch = driver.start_batch(other, partitions=[driver.partition(2)])
    driver.claim(other, [driver.partition(3)])
    with pytest.raises(NotClaimed):
        driver.finish_batch(batch)
    driver.claim(one, [driver.partition(n) for n in (0, 1, 2)])
    assert causes(driver)[-1] is ResetCause.CLAIM
    driver.discard(batch)
    driver.finish_reset()
    assert driver.row(batch).outcome is Outcome.DISCARDED
    assert positions(driver) == [0] * 4
    judge(driver)


def test_c03_a_member_whose_batch_lost_a_partition_finishes_it_and_only_then_claims_what_it_has_left() -> None:
    alone = LoneMember().in_batch()
    alone.feed(messages.Notice.REVOKED)
    alone.assign(MINE[:1], assignment=2)
    assert not alone.wanted(messages.Cancel)
    assert not alone.wanted(messages.ClaimAssignment)
    batch = BatchId("b1")
    alone.feed(member_events.BatchEnded(batch=batch), answers.batch_accepted(batch=batch))
    assert [e.batch for e in alone.wanted(commands.FinishBatch)] == [batch]
    assert [e.partitions for e in alone.wanted(messages.ClaimAssignment)] == [frozenset(MINE[:1])]
    assert not alone.wanted(commands.RequestReset)


def test_c03_a_member_that_is_assigned_the_same_again_goes_on_with_its_batch() -> None:
    alone = LoneMember().in_batch()
    alone.feed(messages.Notice.REVOKED)
    alone.assign(MINE, assignment=2)
    assert not alone.wanted(messages.Cancel)
    assert [e.claim.assignment for e in alone.wanted(messages.ClaimAssignment)] == [2]


# -- C4, C5 ----------------------------------------------------------------------------------------------------------


def test_c04_a_position_at_the_last_stable_offset_is_inside_the_log_whatever_the_high_watermark_says() -> None:
    driver = running()
    stable = LogBounds(start=Offset(0), end=Offset(110))
    driver.logs = {p: replace(log, end=stable.end) for p, log in driver.logs.items()}
    driver.process(width=1_000)
    assert positions(driver) == [110] * 4
    assert lost_logs.out_of_range(driver.region, driver.logs) == ()
    driver.checkpoint("n1")
    assert state(driver) is RegionState.RUNNING
    judge(driver)


def test_c04_a_boundary_above_an_open_transaction_is_not_known_before_its_grace_is_over() -> None:
    assert boundary_offset(NO_RECORD, after=timedelta(0), end=110, restore_point=100) is None


def test_c05_without_an_answer_the_boundary_offset_is_the_last_stable_offset_and_never_beyond() -> None:
    assert boundary_offset(NO_RECORD, after=GRACE, end=110, restore_point=100) == BoundaryOffset(offset=Offset(110))


# -- C6, C7 (C6 with a model of the fenced sink; on a real Postgres they are in tests/contract/sinks) ------------------


def test_c06_a_zombie_that_publishes_after_the_fence_was_raised_is_refused_by_the_sink_itself() -> None:
    driver = started(Driver(partitions=1, members=1, delivery=Delivery.EXACTLY_ONCE))
    sink, member, q = FencedSink(), driver.member(0), driver.partition(0)
    sink.raise_fence(driver.region.epoch)
    sink.roll_back(q, driver.region.timeline, Offset(0))
    batch = driver.start_batch(member)
    row = driver.row(batch)
    driver.crash(member)
    driver.wait(60)
    driver.join(member)
    driver.claim(member, [q])
    assert driver.region.epoch == row.epoch + 1
    driver.claim(member)
    # The new owner raises the fence before it reads progress and before it acknowledges.
    sink.raise_fence(driver.region.epoch)
    assert not published(sink, row.epoch, row.timeline, row.ranges)
    assert sink.found(q, row.timeline) == 0
    driver.progress[q] = (row.timeline, Offset(0))
    driver.acknowledge(member)
    again = driver.row(driver.start_batch(member))
    assert published(sink, again.epoch, again.timeline, again.ranges)
    driver.finish_batch(again.batch)
    assert set(sink.rows.values()) == {1}
    judge(driver)


def test_c07_the_region_store_lets_only_one_of_two_overlapping_batches_begin() -> None:
    driver = running(partitions=1, members=1)
    member, q = driver.member(0), driver.partition(0)
    batch = driver.start_ranges(member, {q: Range(Offset(0), Offset(50))})
    with pytest.raises(BatchRefused, match="has not ended"):
        driver.start_ranges(member, {q: Range(Offset(0), Offset(60))})
    driver.finish_batch(batch)
    with pytest.raises(BatchRefused, match="its position is 50"):
        driver.start_ranges(member, {q: Range(Offset(0), Offset(60))})
    judge(driver)


# -- C8, C9 ----------------------------------------------------------------------------------------------------------


def stopped(driver: Driver) -> None:
    """All members die, and a person stops the region meanwhile."""
    for member in driver.all_members():
        driver.crash(member)
    driver.wait(60)
    driver.handle(STOP)


@pytest.mark.parametrize("between", [lambda driver: None, stopped], ids=["crash", "crash and stop"])
def test_c08_a_checkpoint_that_was_complete_and_not_published_is_published_before_a_reset_to_it_lets_anything_run(
    between: Callable[[Driver], None],
) -> None:
    driver = running()
    driver.process()
    driver.request_checkpoint("n1")
    checkpoint = driver.complete()
    assert driver.region.checkpoints[checkpoint].state is CheckpointState.COMPLETE
    files = manifest(driver, checkpoint)
    between(driver)
    if state(driver) is RegionState.STOPPED:
        driver.handle(START)
    else:
        driver.process(width=5)
        driver.crash(driver.member(0))
    driver.wait(60)
    for member in driver.all_members():
        if member not in driver.processes:
            driver.join(member)
    driver.spread()
    for member in driver.all_members():
        if driver.region.members[member].claimed != driver.region.epoch:
            driver.claim(member)
        driver.acknowledge(member)
    assert state(driver) is RegionState.RESETTING
    with pytest.raises(BatchRefused):
        driver.start_batch(driver.member(0))
    driver.publish()
    assert state(driver) is RegionState.RUNNING
    assert positions(driver) == [10] * 4
    # The rollback touches no file of a complete current checkpoint: what the manifest lists is still accepted.
    assert manifest(driver, checkpoint) == files == members_batches(driver, Outcome.DONE)
    judge(driver)


def test_c09_batches_that_are_stamped_with_an_aborted_checkpoint_are_in_the_manifest_of_the_next_one() -> None:
    driver = running()
    driver.process()
    batch = driver.start_batch(driver.member(1))
    driver.request_checkpoint("n1")
    aborted = open_checkpoint(driver)
    driver.contribute(driver.member(0))
    driver.finish_batch(batch)
    driver.wait(181)
    assert aborted is not None
    assert driver.region.checkpoints[aborted].state is CheckpointState.ABORTED
    assert state(driver) is RegionState.RUNNING
    driver.process()
    stamped = {b.batch: b.sequence for b in driver.batches}
    checkpoint = driver.checkpoint("n1")
    assert checkpoint == aborted + 1
    assert sorted(manifest(driver, checkpoint)) == sorted(stamped)
    assert set(stamped.values()) == {aborted, checkpoint}
    judge(driver)


# -- C10 -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("delivery", "repeated"),
    [
        (Delivery.AT_MOST_ONCE, range(0)),
        (Delivery.ALMOST_ONCE, range(10, 20)),
        (Delivery.AT_LEAST_ONCE, range(20)),
    ],
)
def test_c10_what_a_crash_in_a_batch_repeats_is_decided_by_the_delivery_alone(
    delivery: Delivery, repeated: range
) -> None:
    driver = started(Driver(partitions=2, members=1, delivery=delivery))
    member = driver.member(0)
    driver.process()
    driver.start_batch(member)
    driver.crash(member)
    driver.recover()
    assert members_batches(driver, Outcome.UNKNOWN) == [driver.batches[1].batch]
    for _ in range(2):
        driver.process()
    begun = Counter(o for r in started_of(driver, driver.partition(0)) for o in range(r.from_, r.to))
    assert [offset for offset, count in sorted(begun.items()) if count == 2] == list(repeated)
    assert max(begun.values()) <= 2
    judge(driver)


@pytest.mark.parametrize("delivery", [Delivery.AT_MOST_ONCE, Delivery.ALMOST_ONCE])
def test_c10_a_crash_of_one_member_does_not_repeat_what_another_has_done(delivery: Delivery) -> None:
    driver = started(Driver(delivery=delivery))
    driver.process()
    driver.start_batch(driver.member(1))
    driver.crash(driver.member(1))
    driver.recover()
    assert positions(driver)[:2] == [10, 10]
    judge(driver)


def test_c10_progress_of_an_older_timeline_is_no_progress() -> None:
    driver = started(Driver(partitions=1, members=1, delivery=Delivery.EXACTLY_ONCE))
    q = driver.partition(0)
    driver.process()
    checkpoint = driver.checkpoint("n1")
    driver.process()
    assert driver.progress[q] == (driver.region.timeline, 20)
    rewind(driver, ToCheckpoint(sequence=checkpoint))
    driver.crash(driver.member(0))
    driver.recover()
    assert positions(driver) == [10]
    judge(driver)
