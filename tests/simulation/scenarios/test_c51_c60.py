"""Scenarios C51 to C60: takeovers, void claims, undone answers, what gives way, failed drains, empty regions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from airflow_kcr.errors import BatchRefused, CheckpointRefused, NotClaimed
from airflow_kcr.protocol.member import messages
from airflow_kcr.protocol.member.state import State
from airflow_kcr.protocol.region import commands, coverage, rows
from airflow_kcr.protocol.region import events as region_events
from airflow_kcr.protocol.region.commands import KillRegion, Reconcile, Register
from airflow_kcr.protocol.rules import CheckpointMode
from airflow_kcr.protocol.targets import ToCheckpoint, ToRun
from airflow_kcr.protocol.values import CheckpointNumber, DesiredState, Epoch, EventNumber, Offset, Range, RequestId
from tests.support.driver import PAUSE, START, STOP, Driver
from tests.support.judging import causes, checkpoint_of, happened, judge, open_checkpoint, positions, state, stops
from tests.support.lone_member import MINE, LoneMember, claims_of, view_of
from tests.support.scripts import all_crash, boundary, checkpoints_of_ten, hourly, located, rewind, running

# -- C51 -------------------------------------------------------------------------------------------------------------


def taken_over(*, fenced: bool) -> Driver:
    """A region one of whose members was superseded in the middle of a batch, by another process."""
    driver = Driver()
    driver.handle(START)
    for member in driver.all_members():
        arrival = Register(member=member, token=f"first {member}", sinks_fenced=fenced)
        driver.handle(arrival)
        driver.join(member, takeover=True)
        # The processes that the test drives have sinks of the same kind.
        arrival = replace(arrival, token=f"second {member}", takeover=True)
        driver.processes[member].incarnation = driver.handle(arrival)
    driver.spread()
    driver.finish_reset()
    driver.start_batch(driver.member(1))
    assigned = driver.processes[driver.member(1)].assigned
    driver.join(driver.member(1), takeover=True)
    driver.claim(driver.member(1), assigned)
    driver.finish_reset()
    return driver


def test_c51_after_a_takeover_nothing_runs_before_the_old_lease_and_the_old_process_are_over() -> None:
    driver = taken_over(fenced=False)
    lease, ends = driver.region.rules.timeouts.lease, driver.region.members[driver.member(1)].ends_within
    until = driver.clock.now + lease + ends
    assert any("may still write" in reason for reason in coverage.busy(driver.region, driver.clock.now))
    while driver.clock.now < until:
        assert state(driver) is rows.RegionState.RESETTING
        driver.wait(1)
    assert state(driver) is rows.RegionState.RUNNING
    assert driver.region.failures == 0
    judge(driver)


def test_c51_where_every_sink_is_fenced_the_old_lease_is_enough() -> None:
    driver = taken_over(fenced=True)
    until = driver.clock.now + driver.region.rules.timeouts.lease
    while driver.clock.now < until:
        assert state(driver) is rows.RegionState.RESETTING
        driver.wait(1)
    assert state(driver) is rows.RegionState.RUNNING
    judge(driver)


# -- C52 -------------------------------------------------------------------------------------------------------------


def test_c52_a_claim_that_hangs_across_a_rebalance_is_void_and_made_anew_for_what_is_assigned_now() -> None:
    alone = LoneMember().join().assign(MINE)
    states = [alone.state]
    assert [e.claim.assignment for e in alone.wanted(messages.ClaimAssignment)] == [1]
    alone.feed(messages.Notice.REVOKED)
    alone.assign(MINE[:1], assignment=2)
    assert not alone.wanted(messages.ClaimAssignment)
    # The answer comes now: it is for an assignment that Kafka has taken back.
    alone.grant(view_of(claims_of(MINE)), assignment=1)
    states.append(alone.state)
    assert [(e.claim.assignment, e.partitions) for e in alone.wanted(messages.ClaimAssignment)] == [
        (2, frozenset(MINE[:1]))
    ]
    alone.grant(view_of(claims_of(MINE[:1])), assignment=2)
    states.append(alone.state)
    assert states == [State.JOINING, State.JOINING, State.PROCESSING]
    assert set(alone.member.positions) == set(MINE[:1])


def test_c52_a_claim_is_not_made_while_nothing_is_assigned() -> None:
    alone = LoneMember().join().assign(MINE)
    alone.feed(messages.Notice.REVOKED)
    alone.grant(view_of(claims_of(MINE)), assignment=1)
    assert not alone.wanted(messages.ClaimAssignment)
    assert alone.state is State.JOINING


def test_c52_nobody_loses_a_partition_to_a_claim_that_comes_late() -> None:
    driver = running()
    one, other = driver.member(0), driver.member(1)
    late = driver.partition(2)
    driver.process(other)
    # Kafka has given the partition back to its owner, but the claim of the other arrives: it is no silent loss.
    driver.claim(one, [driver.partition(0), driver.partition(1), late])
    with pytest.raises(NotClaimed):
        driver.start_ranges(other, {late: Range(Offset(10), Offset(20))})
    driver.process(one)
    driver.claim(other, [late, driver.partition(3)])
    driver.claim(one, [driver.partition(0), driver.partition(1)])
    assert driver.region.claims[late].owner == other
    driver.process()
    assert driver.region.claims[late].position == 30
    assert causes(driver) == [rows.ResetCause.START]
    driver.checkpoint("n")
    judge(driver)


# -- C53 -------------------------------------------------------------------------------------------------------------


def test_c53_after_a_rewind_the_run_of_an_undone_checkpoint_asks_anew() -> None:
    driver = running()
    checkpoints = checkpoints_of_ten(driver, 9)
    rewind(driver, ToCheckpoint(sequence=checkpoints[2]))
    assert driver.region.checkpoints[checkpoints[8]].undone_by == driver.region.timeline
    kept = driver.request_checkpoint("n2")
    assert (kept.state, kept.sequence) == (rows.RequestState.ANSWERED, checkpoints[2])
    asked = driver.request_checkpoint("n8")
    assert asked.state is rows.RequestState.OPEN
    assert asked.sequence not in checkpoints
    again = driver.complete()
    driver.publish()
    assert driver.request_checkpoint("n8").sequence == again
    judge(driver)


def test_c53_a_run_is_a_target_only_by_its_checkpoint_on_the_path() -> None:
    driver = running()
    checkpoints = checkpoints_of_ten(driver, 3)
    run = rows.Requester(who="", dag_id="flights", run_id="monday")
    driver.process()
    driver.request_checkpoint("monday", requester=run)
    monday = driver.complete()
    driver.publish()
    driver.process()
    driver.checkpoint("later")
    driver.reset(ToRun(dag_id="flights", run_id="monday"))
    driver.complete()
    driver.finish_reset()
    assert positions(driver) == [40] * 4
    rewind(driver, ToCheckpoint(sequence=checkpoints[0]))
    assert not driver.region.checkpoints[monday].is_current
    with pytest.raises(Exception, match="no checkpoint on the current timeline"):
        driver.reset(ToRun(dag_id="flights", run_id="monday"))
    judge(driver)


# -- C54 -------------------------------------------------------------------------------------------------------------


def approaching() -> tuple[Driver, CheckpointNumber]:
    """A region whose checkpoint approaches a boundary two hours away."""
    driver = hourly()
    driver.process()
    driver.request_checkpoint("run2", boundary=boundary(2))
    checkpoint = checkpoint_of(driver)
    assert checkpoint.state is rows.CheckpointState.APPROACHING
    return driver, checkpoint.sequence


def test_c54_a_stop_does_not_wait_for_a_boundary_two_hours_away() -> None:
    driver, checkpoint = approaching()
    driver.handle(STOP)
    assert driver.region.checkpoints[checkpoint].state is rows.CheckpointState.ABORTED
    assert state(driver) is rows.RegionState.DRAINING
    driver.complete()
    driver.publish()
    for member in driver.all_members():
        driver.read_back(member)
    assert state(driver) is rows.RegionState.STOPPED
    judge(driver)


def test_c54_a_pause_does_not_wait_for_a_boundary_two_hours_away_and_the_request_is_served_after_the_resume() -> None:
    driver, checkpoint = approaching()
    driver.handle(PAUSE)
    assert driver.region.checkpoints[checkpoint].state is rows.CheckpointState.ABORTED
    with pytest.raises(BatchRefused, match="desired state paused"):
        driver.start_batch(driver.member(0))
    driver.wait(600)
    with pytest.raises(BatchRefused, match="desired state paused"):
        driver.start_batch(driver.member(0))
    driver.handle(START)
    driver.process()
    assert driver.region.requests[RequestId("run2")].state is rows.RequestState.OPEN
    judge(driver)


def test_c54_a_drain_to_a_boundary_may_be_asked_for_in_a_paused_region_and_a_later_pause_ends_it() -> None:
    driver = hourly()
    driver.handle(PAUSE)
    asked = driver.request_checkpoint("by hand", boundary=boundary(1), purpose=rows.CheckpointPurpose.DRAIN)
    assert asked.state is rows.RequestState.OPEN
    driver.process()
    driver.handle(PAUSE)
    assert driver.region.requests[asked.request_id].state is rows.RequestState.SUPERSEDED
    with pytest.raises(BatchRefused, match="desired state paused"):
        driver.start_batch(driver.member(0))
    judge(driver)


# -- C55 -------------------------------------------------------------------------------------------------------------


def test_c55_when_the_drain_of_a_persons_reset_aborts_the_request_fails_with_the_reason_and_nothing_else_changed() -> (
    None
):
    driver = running()
    first = checkpoints_of_ten(driver, 2)[0]
    driver.process()
    before = driver.region
    hung = driver.start_batch(driver.member(1))
    accepted = driver.reset(ToCheckpoint(sequence=first))
    driver.contribute(driver.member(0))
    driver.wait(181)
    failed = driver.region.person_resets[accepted.request_id]
    assert failed.state is rows.PersonResetState.FAILED
    assert "g[1] (t-2, t-3)" in failed.failure
    after = driver.region
    assert (after.state, after.epoch, after.timeline, after.restore_sequence) == (
        rows.RegionState.RUNNING,
        before.epoch,
        before.timeline,
        before.restore_sequence,
    )
    assert positions(driver) == [30] * 4
    # The batch that was late may still end; a forced reset would not have needed the drain.
    driver.finish_batch(hung)
    driver.reset(ToCheckpoint(sequence=first), forced=True)
    driver.finish_reset()
    assert positions(driver) == [10] * 4
    judge(driver)


# -- C56, C57 --------------------------------------------------------------------------------------------------------


def test_c56_the_next_boundaries_checkpoint_does_not_open_before_the_one_before_it_is_published() -> None:
    driver = hourly(mode=CheckpointMode.AUTO)
    driver.wait(3602)
    located(driver, boundary(1), 10)
    driver.process()
    driver.handle(Reconcile())
    first = driver.complete()
    located(driver, boundary(2), 30)
    driver.process(width=20)
    # The run of the second boundary asks in time, and still a whole period passes before the first checkpoint is
    # published.
    asked = driver.request_checkpoint("run2", boundary=boundary(2))
    driver.wait(2.5 * 3600)
    assert (driver.region.requests[asked.request_id].state, open_checkpoint(driver)) == (rows.RequestState.QUEUED, None)
    assert [body.sequence for body in happened(driver, region_events.PublishLate)] == [first]
    # Members hold at the boundary meanwhile: nothing of the next interval gets into the second checkpoint.
    with pytest.raises(BatchRefused, match="crosses the boundary"):
        driver.start_batch(driver.member(0))
    driver.publish()
    driver.handle(Reconcile())
    second = driver.complete()
    assert set(driver.region.offsets[second].values()) == {30}
    assert driver.region.requests[asked.request_id].sequence == second
    assert [body.sequence for body in happened(driver, region_events.CheckpointPublished)] == [first]
    driver.publish()
    assert [body.sequence for body in happened(driver, region_events.CheckpointPublished)] == [first, second]
    judge(driver)


def test_c57_a_checkpoint_whose_commit_never_came_is_superseded_by_the_next_and_no_sensor_hangs() -> None:
    driver = running()
    driver.process()
    driver.request_checkpoint("n1")
    first = driver.complete()
    driver.publish()
    driver.read_back(driver.member(0))
    driver.vanish(driver.member(1))
    driver.wait(12)
    driver.join(driver.member(1))
    driver.claim(driver.member(1), [driver.partition(2), driver.partition(3)])
    assert driver.region.checkpoints[first].committed is rows.Committed.PENDING
    second = driver.checkpoint("n2")
    assert driver.region.checkpoints[first].committed is rows.Committed.SUPERSEDED
    assert driver.region.checkpoints[second].committed is rows.Committed.YES
    judge(driver)


def test_c57_or_it_is_superseded_by_a_reset_or_settled_by_the_commit_timeout() -> None:
    for seconds, wanted in ((12, rows.Committed.SUPERSEDED), (31, rows.Committed.NO)):
        driver = running()
        driver.process()
        driver.request_checkpoint("n1")
        checkpoint = driver.complete()
        driver.publish()
        driver.wait(seconds)
        batch = driver.start_batch(driver.member(0))
        driver.discard(batch)
        driver.request_reset(driver.member(0), rows.ResetCause.BATCH_FAILED, "it raised")
        assert driver.region.checkpoints[checkpoint].committed is wanted


# -- C58 -------------------------------------------------------------------------------------------------------------


@dataclass
class HeldFence:
    """A fence row that a frozen transaction holds until the sink's server ends it."""

    ends_at: float
    epoch: Epoch = Epoch(0)
    tries: list[float] = field(default_factory=list)

    def raise_to(self, epoch: Epoch, now: float) -> bool:
        """Try to raise the fence; False: the lock timeout came first."""
        self.tries.append(now)
        if now < self.ends_at:
            return False
        self.epoch = max(self.epoch, epoch)
        return True


def test_c58_a_raise_that_times_out_is_retried_until_the_frozen_transaction_is_ended() -> None:
    """The retry inside the sink comes with its issue; a raise that failed for good is an attempt that is made anew."""
    driver = running(members=1)
    member = driver.member(0)
    timeouts = driver.region.rules.timeouts
    fence = HeldFence(ends_at=timeouts.idle_in_transaction_session_timeout.total_seconds())
    batch = driver.start_batch(member)
    driver.discard(batch)
    driver.request_reset(member, rows.ResetCause.BATCH_FAILED, "it raised")
    began = driver.clock.now
    driver.claim(member)
    waited = 0.0
    while not fence.raise_to(driver.region.epoch, waited):
        driver.request_reset(member, rows.ResetCause.SINK_FAILED, "the fence of g is held by another transaction")
        driver.wait(2)
        waited += 2
        driver.claim(member)
    driver.acknowledge(member)
    assert state(driver) is rows.RegionState.RUNNING
    assert len(fence.tries) > 1
    assert driver.clock.now - began <= timeouts.lease
    named = [body.detail for body in happened(driver, region_events.ResetRequested) if "fence of g" in body.detail]
    assert len(named) == len(fence.tries) - 1
    judge(driver)


def test_c58_a_member_whose_sink_failed_asks_for_a_further_attempt_and_does_not_acknowledge() -> None:
    alone = LoneMember().join().assign()
    resetting = replace(view_of(claims_of()), state=rows.RegionState.RESETTING, acknowledged=False)
    alone.grant(resetting)
    assert [e.epoch for e in alone.wanted(messages.ResetSinks)] == [1]
    alone.feed(messages.SinkFailed(epoch=Epoch(1), why="the fence of g is held by another transaction"))
    asked = alone.wanted(commands.RequestReset)
    assert [(e.cause, e.caller.epoch) for e in asked] == [(rows.ResetCause.SINK_FAILED, 1)]
    assert "fence of g" in asked[0].detail
    assert not [e for e in alone.all if isinstance(e, commands.Acknowledge)]
    second = replace(resetting, epoch=Epoch(2), claims=claims_of(epoch=2), counter=EventNumber(30))
    alone.see(replace(second, claims={}))
    alone.grant(second)
    assert [e.epoch for e in alone.wanted(messages.ResetSinks)] == [2]


# -- C59 -------------------------------------------------------------------------------------------------------------


def three_bounds() -> tuple[Driver, list[CheckpointNumber]]:
    """A region with a checkpoint of each of the first three hours."""
    driver, checkpoints = hourly(), []
    for hours in (1, 2, 3):
        driver.wait(3600)
        located(driver, boundary(hours), 10 * hours)
        driver.process()
        driver.request_checkpoint(f"run{hours}", boundary=boundary(hours))
        checkpoints.append(driver.complete())
        driver.publish()
    return driver, checkpoints


def test_c59_a_drain_by_hand_between_two_boundaries_leaves_the_next_boundary_as_it_is() -> None:
    driver, _ = three_bounds()
    # The members are behind: the boundary has passed, and none has got there yet.
    driver.wait(2 * 3600)
    assert driver.region.next_boundary == boundary(4)
    driver.process(width=5)
    driver.request_checkpoint("by hand", purpose=rows.CheckpointPurpose.DRAIN)
    driver.complete()
    driver.publish()
    assert driver.region.next_boundary == boundary(4)
    located(driver, boundary(4), 40)
    driver.process(width=5)
    driver.request_checkpoint("run4", boundary=boundary(4))
    checkpoint = driver.complete()
    assert set(driver.region.offsets[checkpoint].values()) == {40}
    judge(driver)


def test_c59_after_a_rewind_to_a_checkpoint_the_next_boundary_is_the_one_after_the_newest_on_its_path() -> None:
    driver, checkpoints = three_bounds()
    driver.process(width=5)
    by_hand = driver.checkpoint("by hand")
    driver.process(width=5)
    rewind(driver, ToCheckpoint(sequence=checkpoints[0]))
    assert driver.region.next_boundary == boundary(2)
    # The re-checkpoint of a boundary is the same checkpoint: its offsets are those that were found first.
    with pytest.raises(BatchRefused, match="crosses the boundary"):
        driver.start_batch(driver.member(0), width=11)
    driver.process()
    driver.request_checkpoint("run2 again", boundary=boundary(2))
    again = driver.complete()
    driver.publish()
    assert driver.region.offsets[again] == driver.region.offsets[checkpoints[1]]
    assert driver.region.next_boundary == boundary(3)
    with pytest.raises(Exception, match="not on the current timeline"):
        driver.reset(ToCheckpoint(sequence=by_hand))
    judge(driver)


# -- C60 -------------------------------------------------------------------------------------------------------------


def deserted() -> Driver:
    """A running region without a live member."""
    driver = running()
    driver.process()
    all_crash(driver)
    assert state(driver) is rows.RegionState.RUNNING
    return driver


def never_joined() -> Driver:
    """A region that was started, and that no member has ever joined."""
    driver = Driver()
    driver.handle(START)
    return driver


@pytest.mark.parametrize("empty", [deserted, never_joined])
def test_c60_a_stop_without_a_live_member_ends_at_once_marked_undrained(empty: Callable[[], Driver]) -> None:
    driver = empty()
    driver.handle(STOP)
    assert state(driver) is rows.RegionState.STOPPED
    assert stops(driver)[-1] == "undrained"
    judge(driver)


@pytest.mark.parametrize("empty", [deserted, never_joined])
def test_c60_a_kill_without_a_live_member_ends_at_once_in_a_new_epoch(empty: Callable[[], Driver]) -> None:
    driver = empty()
    epoch = driver.region.epoch
    driver.handle(KillRegion())
    assert (state(driver), driver.region.epoch, driver.region.desired_state) == (
        rows.RegionState.STOPPED,
        epoch + 1,
        DesiredState.STOPPED,
    )
    driver.processes.clear()
    driver.wait(60)
    driver.up()
    assert state(driver) is rows.RegionState.RUNNING
    judge(driver)


def test_c60_a_drain_without_a_live_member_is_refused_at_once_and_says_so() -> None:
    driver = deserted()
    before = driver.region
    with pytest.raises(CheckpointRefused, match="no live member"):
        driver.request_checkpoint("by hand", purpose=rows.CheckpointPurpose.DRAIN)
    assert driver.region == before
    judge(driver)
