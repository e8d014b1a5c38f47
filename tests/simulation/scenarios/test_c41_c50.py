"""Scenarios C41 to C50: poison records, lost commits, ends in a drain, epochs that died, fences, stale claims."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest

from airflow_kcr.errors import BatchRefused, NotClaimed, RefusedError, RegionInState
from airflow_kcr.protocol.member import messages
from airflow_kcr.protocol.offsets import EMPTY, SeekSource
from airflow_kcr.protocol.region import batches, commands, coverage, rows
from airflow_kcr.protocol.region import events as region_events
from airflow_kcr.protocol.region.commands import FinishBatch
from airflow_kcr.protocol.rules import Delivery
from airflow_kcr.protocol.targets import ToCheckpoint, ToCurrent
from airflow_kcr.protocol.values import BatchId, CheckpointNumber, DesiredState, EventNumber, Offset, Range, Timeline
from tests.support.driver import PAUSE, START, Driver
from tests.support.judging import accepted, causes, halt_of, happened, judge, open_checkpoint, positions, state
from tests.support.lone_member import LoneMember, claims_of, view_of
from tests.support.scripts import all_crash, checkpoints_of_ten, published, running, started
from tests.support.simulation.sinks import FencedSink

# -- C41 -------------------------------------------------------------------------------------------------------------


def fail_batch(driver: Driver) -> None:
    """Let one batch of the first member fail, and the reset after it be carried out."""
    member = driver.member(0)
    batch = driver.start_batch(member)
    driver.discard(batch)
    driver.request_reset(member, rows.ResetCause.BATCH_FAILED, "record 12 can't be read")
    if state(driver) is not rows.RegionState.HALTED:
        driver.finish_reset()


def poisoned() -> Driver:
    """A region that was halted by a record that no pipeline of today can read."""
    driver = running()
    driver.process()
    driver.checkpoint("n1")
    for _ in range(driver.region.rules.max_failures + 1):
        assert state(driver) is rows.RegionState.RUNNING
        fail_batch(driver)
    assert state(driver) is rows.RegionState.HALTED
    return driver


def test_c41_batches_that_fail_again_and_again_halt_the_region_with_the_reason_and_the_choices() -> None:
    driver = poisoned()
    halt = halt_of(driver)
    assert halt.reason is rows.HaltReason.FAILURES
    assert "record 12 can't be read" in halt.text
    assert any("forced reset" in choice for choice in halt.choices)
    assert any("skip" in choice for choice in halt.choices)
    with pytest.raises(BatchRefused):
        driver.start_batch(driver.member(0))
    with pytest.raises(RegionInState, match="forced"):
        driver.reset(ToCurrent())
    judge(driver)


def test_c41_with_a_repaired_pipeline_a_resume_goes_on_at_the_restore_point_and_counts_failures_anew() -> None:
    driver = poisoned()
    driver.handle(START)
    driver.finish_reset()
    assert (state(driver), positions(driver)) == (rows.RegionState.RUNNING, [10] * 4)
    fail_batch(driver)
    assert state(driver) is rows.RegionState.RUNNING
    driver.process()
    driver.checkpoint("n2")
    assert driver.region.failures == 0
    judge(driver)


def test_c41_a_checkpoint_where_nothing_has_moved_does_not_let_a_poison_record_fail_for_ever() -> None:
    driver = running()
    driver.process()
    driver.checkpoint("n1")
    fail_batch(driver)
    driver.checkpoint("n2")
    assert driver.region.failures == 1
    driver.process()
    driver.checkpoint("n3")
    assert driver.region.failures == 0
    judge(driver)


def test_c41_a_forced_reset_goes_on_elsewhere_and_counts_failures_anew() -> None:
    driver = poisoned()
    driver.reset(ToCheckpoint(sequence=driver.region.restore_sequence or CheckpointNumber(0)), forced=True)
    driver.finish_reset()
    assert (state(driver), positions(driver)) == (rows.RegionState.RUNNING, [10] * 4)
    fail_batch(driver)
    assert state(driver) is rows.RegionState.RUNNING
    judge(driver)


def test_c41_a_named_offset_is_skipped_and_never_processed_again() -> None:
    driver = poisoned()
    q = driver.partition(0)
    driver.reset(ToCurrent(), forced=True, skip={q: Offset(12)})
    driver.finish_reset()
    member = driver.member(0)
    with pytest.raises(BatchRefused, match="skipped record 12"):
        driver.start_batch(member, 10, [q])
    driver.finish_batch(driver.start_batch(member, 2, [q]))
    assert driver.claims(member)[q].position == 13
    driver.finish_batch(driver.start_batch(member, 10, [q]))
    covered = [offset for r in accepted(driver, q) for offset in range(r.from_, r.to)]
    assert covered == [*range(12), *range(13, 23)]
    driver.checkpoint("n2")
    driver.crash(member)
    driver.recover()
    assert positions(driver)[0] == 23
    judge(driver)


# -- C42 -------------------------------------------------------------------------------------------------------------


def committing() -> LoneMember:
    """A member whose commit of checkpoint 2 is under way."""
    alone = LoneMember().processing()
    alone.feed(messages.RangesPlanned(batch=BatchId("none"), ranges={}))
    alone.see(replace(view_of(claims_of(position=10, resume=10)), commit=CheckpointNumber(2), counter=EventNumber(11)))
    assert [e.offsets for e in alone.wanted(messages.Commit)] == [alone.member.positions]
    return alone


def test_c42_a_commit_that_hangs_is_not_sent_again_and_holds_the_member_no_longer_than_the_commit_timeout() -> None:
    alone = committing()
    wanted = alone.wait(alone.member.timeouts.commit.total_seconds() - 1)
    assert not [e for e in wanted if isinstance(e, messages.PlanRanges | messages.Commit)]
    alone.wait(2)
    assert alone.wanted(messages.PlanRanges)


def test_c42_a_commit_of_unknown_outcome_is_no_commit_read_back_and_the_failure_is_visible_after_the_timeout() -> None:
    alone = committing()
    alone.feed(messages.CommitAnswered(sequence=CheckpointNumber(2), offsets=EMPTY))
    assert not alone.wanted(commands.ReportReadBack)

    driver = running()
    driver.process()
    driver.request_checkpoint("n1")
    checkpoint = driver.complete()
    driver.publish()
    driver.read_back(driver.member(0))
    driver.wait(31)
    assert driver.region.checkpoints[checkpoint].committed is rows.Committed.NO
    assert happened(driver, region_events.CommitResolved)[-1].why == "the commit timeout passed"
    # The difference between store and Kafka is visible; a late commit read-back of the restore point still settles it.
    driver.read_back(driver.member(1))
    assert driver.region.checkpoints[checkpoint].committed is rows.Committed.YES
    judge(driver)


# -- C43 -------------------------------------------------------------------------------------------------------------


def test_c43_a_batch_that_ends_while_its_checkpoint_drains_is_accepted_and_nothing_further_begins() -> None:
    driver = running()
    batch = driver.start_batch(driver.member(0))
    driver.request_checkpoint("n1")
    assert state(driver) is rows.RegionState.DRAINING
    driver.finish_batch(batch)
    assert driver.row(batch).outcome is rows.Outcome.DONE
    for member in driver.all_members():
        with pytest.raises(BatchRefused, match="draining"):
            driver.start_batch(member)
    checkpoint = driver.complete()
    assert [driver.region.offsets[checkpoint][driver.partition(n)] for n in range(4)] == [10, 10, 0, 0]
    judge(driver)


def test_c43_a_batch_into_which_a_pause_arrives_is_accepted_and_nothing_further_begins() -> None:
    driver = running()
    batch = driver.start_batch(driver.member(0))
    driver.handle(PAUSE)
    driver.finish_batch(batch)
    assert driver.row(batch).outcome is rows.Outcome.DONE
    with pytest.raises(BatchRefused, match="desired state paused"):
        driver.start_batch(driver.member(0))
    assert driver.region.desired_state is DesiredState.PAUSED
    judge(driver)


# -- C44, C45 --------------------------------------------------------------------------------------------------------


def test_c44_what_an_older_epoch_has_begun_does_not_make_every_later_claim_a_reset() -> None:
    driver = running(partitions=3, members=3)
    driver.process()
    driver.start_batch(driver.member(2))
    all_crash(driver, [driver.member(2)])
    driver.claim(driver.member(0), [driver.partition(0), driver.partition(2)])
    assert causes(driver)[1:] == [rows.ResetCause.CLAIM]
    driver.finish_reset()
    # Nothing has started in this epoch: further claims are absorbed, whichever member makes them.
    driver.claim(driver.member(0), [driver.partition(0)])
    driver.claim(driver.member(1), [driver.partition(1), driver.partition(2)])
    driver.join(driver.member(2))
    driver.claim(driver.member(1), [driver.partition(1)])
    driver.claim(driver.member(2), [driver.partition(2)])
    assert causes(driver)[1:] == [rows.ResetCause.CLAIM]
    assert positions(driver) == [0] * 3
    driver.process()
    judge(driver)


def test_c45_after_a_reset_to_where_the_last_batch_ended_a_rebalance_is_absorbed_there() -> None:
    driver = started(Driver(delivery=Delivery.ALMOST_ONCE))
    driver.process(width=100)
    driver.checkpoint("n1")
    driver.process(width=50)
    driver.crash(driver.member(1))
    driver.recover()
    assert positions(driver) == [150] * 4
    assert {e.source for e in driver.region.seek.values()} == {SeekSource.BATCH_END}
    epoch = driver.region.epoch
    driver.claim(driver.member(1), [driver.partition(3)])
    driver.claim(driver.member(0), [driver.partition(n) for n in (0, 1, 2)])
    assert (driver.region.epoch, positions(driver)) == (epoch, [150] * 4)
    judge(driver)


# -- C46 -------------------------------------------------------------------------------------------------------------


def test_c46_begins_and_ends_of_different_members_do_not_depend_on_their_order_and_move_no_counter() -> None:
    """So they need only a shared lock. That nothing deadlocks or starves is shown in
    tests/contract/test_postgres_faults.py, against a real Postgres."""
    driver = running(partitions=6, members=3)
    region, now = driver.region, driver.clock.now
    requests = [
        driver.batch_of(m, dict.fromkeys(driver.claims(m), Range(Offset(0), Offset(10))), f"b of {m}")
        for m in driver.all_members()
    ]
    outcomes = []
    for order in permutations(requests):
        after = region
        for request in order:
            after, _ = batches.start(after, now, request)
        for request in order:
            finish = FinishBatch(batch=request.batch, member=request.member, incarnation=request.incarnation)
            after, _ = batches.finish(after, now, finish)
        assert after.counter == region.counter
        outcomes.append(after.stored())
    assert all(outcome == outcomes[0] for outcome in outcomes)


# -- C47 -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zombie_is", ["before the fence", "after the fence", "silent"])
def test_c47_what_a_zombie_publishes_between_the_begin_of_a_reset_and_the_fence_is_found_and_counts_once(
    zombie_is: str,
) -> None:
    """With a model of the fenced sink; the real one comes with its issue."""
    driver = started(Driver(partitions=1, members=1, delivery=Delivery.EXACTLY_ONCE))
    member, q, sink = driver.member(0), driver.partition(0), FencedSink()
    sink.raise_fence(driver.region.epoch)
    sink.roll_back(q, driver.region.timeline, Offset(0))
    zombie = driver.row(driver.start_batch(member))
    driver.crash(member)
    driver.wait(60)
    driver.join(member)
    driver.claim(member, [q])
    driver.claim(member)
    # The reset has started in the store. Its seek entry is open: progress is read only once the fence is raised.
    assert driver.region.seek.open == (q,)
    if zombie_is == "before the fence":
        assert published(sink, zombie.epoch, zombie.timeline, zombie.ranges)
    sink.raise_fence(driver.region.epoch)
    if zombie_is == "after the fence":
        assert not published(sink, zombie.epoch, zombie.timeline, zombie.ranges)
    found = sink.found(q, driver.region.timeline)
    if found is not None:
        driver.progress[q] = (driver.region.timeline, found)
    driver.acknowledge(member)
    assert state(driver) is rows.RegionState.RUNNING
    assert positions(driver) == [10 if zombie_is == "before the fence" else 0]
    assert (driver.row(zombie.batch).outcome is rows.Outcome.DONE) == (zombie_is == "before the fence")
    while positions(driver) != [20]:
        row = driver.row(driver.start_batch(member))
        assert published(sink, row.epoch, row.timeline, row.ranges)
        driver.finish_batch(row.batch)
    assert dict(sink.rows) == {(q, offset): 1 for offset in range(20)}
    judge(driver)


# -- C48 -------------------------------------------------------------------------------------------------------------


def test_c48_a_persons_reset_begins_in_the_transaction_that_completes_its_drain() -> None:
    driver = running()
    first = checkpoints_of_ten(driver, 2)[0]
    driver.process()
    driver.reset(ToCheckpoint(sequence=first))
    driver.contribute(driver.member(0))
    before = driver.region
    driver.contribute(driver.member(1))
    assert driver.region.epoch == before.epoch + 1
    for member in driver.all_members():
        with pytest.raises(RefusedError):
            driver.start_ranges(member, {p: Range(o, Offset(o + 5)) for p, o in driver.region.seek.offsets.items()})
    bodies = [e.body for e in driver.events if e.number > before.counter]
    kinds = [type(body) for body in bodies]
    completed, begun = kinds.index(region_events.CheckpointCompleted), kinds.index(region_events.ResetBegun)
    between = [b for b in bodies[completed:begun] if isinstance(b, region_events.StateChanged)]
    assert not [b for b in between if b.after is rows.RegionState.RUNNING]
    driver.finish_reset()
    assert positions(driver) == [10] * 4
    judge(driver)


# -- C49, C50 --------------------------------------------------------------------------------------------------------


def test_c49_a_checkpoint_waits_for_the_partitions_of_a_dead_static_member_and_names_them() -> None:
    driver = running()
    driver.process()
    all_crash(driver, [driver.member(1)])
    asked = driver.request_checkpoint("n1")
    assert (asked.state, open_checkpoint(driver)) == (rows.RequestState.QUEUED, None)
    driver.wait(3600)
    assert driver.region.requests[asked.request_id].state is rows.RequestState.QUEUED
    named = list(coverage.gaps(driver.region, driver.clock.now))
    assert named == [f"g:t-{n} is not covered (last owner: g[1])" for n in (2, 3)]
    driver.join(driver.member(1))
    driver.claim(driver.member(1), [driver.partition(2), driver.partition(3)])
    driver.finish_reset()
    checkpoint = driver.complete()
    assert len(driver.region.offsets[checkpoint]) == 4
    judge(driver)


def test_c50_claims_of_the_dead_do_not_count_as_coverage() -> None:
    driver = running(partitions=3, members=3)
    assigned = {m: process.assigned for m, process in driver.processes.items()}
    for member in driver.all_members():
        driver.start_batch(member)
    all_crash(driver)
    first, *others = driver.all_members()
    driver.join(first)
    driver.claim(first, assigned[first])
    driver.claim(first)
    driver.acknowledge(first)
    driver.wait(1800)
    assert state(driver) is rows.RegionState.STARTING
    assert len(coverage.missing(driver.region, driver.clock.now)) == 2
    with pytest.raises(BatchRefused):
        driver.start_batch(first)
    for member in others:
        driver.join(member)
        driver.claim(member, assigned[member])
        driver.acknowledge(member)
    assert state(driver) is rows.RegionState.RUNNING
    assert causes(driver)[1:] == [rows.ResetCause.CLAIM]
    assert driver.region.failures == 0
    judge(driver)


def test_c50_a_claim_of_an_older_incarnation_lets_nobody_begin() -> None:
    driver = running(partitions=2, members=2)
    member = driver.member(1)
    all_crash(driver, [member])
    driver.join(member)
    with pytest.raises(NotClaimed):
        driver.start_ranges(member, {driver.partition(1): Range(Offset(0), Offset(5))})
    assert Timeline(1) == driver.region.timeline
