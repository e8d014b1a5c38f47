"""Scenarios C11 to C20: a store out of reach, hung and late members, retried checkpoints, takeovers between runs."""

from __future__ import annotations

import pytest

from airflow_kcr.errors import LeaseExpired, StaleEpoch, StrangeContribution, UnknownMember
from airflow_kcr.protocol.member import messages
from airflow_kcr.protocol.member.state import State, Why
from airflow_kcr.protocol.region import commands, coverage, rows
from airflow_kcr.protocol.region import events as region_events
from airflow_kcr.protocol.region.commands import Acknowledge, ChangeSpec, KillRegion, Reconcile, RetireCheckpoints
from airflow_kcr.protocol.region.state import Spec
from airflow_kcr.protocol.rules import RegionRules
from airflow_kcr.protocol.values import BatchId, Incarnation
from tests.support import answers
from tests.support.driver import BEGINNING, GROUP, START, Driver, group_rules
from tests.support.judging import causes, checkpoint_of, happened, judge, open_checkpoint, positions, state
from tests.support.lone_member import LoneMember, view_of
from tests.support.scripts import boundary, hourly, located, running

# -- C11, C12 --------------------------------------------------------------------------------------------------------


def test_c11_a_member_that_cannot_reach_the_store_leaves_its_group_in_bounded_time_and_comes_back() -> None:
    alone = LoneMember().in_batch()
    grace = alone.member.timeouts.store_grace.total_seconds()
    assert grace <= 30
    alone.feed(messages.StoreLost())
    before = alone.wait(grace - 1, renewing=False)
    assert not any(e is messages.GroupRequest.LEAVE for e in before)
    assert alone.wait(1, renewing=False).count(messages.GroupRequest.LEAVE) == 1
    assert (alone.state, alone.member.why) == (State.HOLDING, Why.STORE_AWAY)
    assert alone.member.batch is not None
    assert alone.member.batch.doomed
    alone.feed(messages.Notice.LEFT_GROUP, messages.BatchEnded(batch=BatchId("b1")))
    assert not alone.wait(60, renewing=False)
    alone.feed(messages.Notice.STORE_BACK, answers.registered(incarnation=Incarnation(2), sent_at=alone.now))
    alone.feed(answers.view_read(view=view_of(incarnation=2)))
    assert alone.state is State.JOINING
    assert alone.wanted(messages.GroupRequest.JOIN)


def test_c11_the_others_go_on_after_one_reset_and_there_is_no_second_one() -> None:
    driver = running()
    lost, other = driver.member(0), driver.member(1)
    driver.process()
    driver.start_batch(lost)
    driver.crash(lost)
    driver.wait(60)
    # Kafka has moved its partitions: members that can work claim them.
    driver.claim(other, [driver.partition(n) for n in range(4)])
    driver.finish_reset()
    assert state(driver) is rows.RegionState.RUNNING
    assert causes(driver)[1:] == [rows.ResetCause.CLAIM]
    for _ in range(5):
        driver.process(other)
        driver.wait(120)
    assert len(causes(driver)) == 2
    judge(driver)


def test_c12_a_pipeline_that_hangs_is_cancelled_and_then_its_process_ends() -> None:
    alone = LoneMember().in_batch()
    timeouts = alone.member.timeouts
    wanted = alone.wait(timeouts.batch.total_seconds() + 1)
    assert [e.batch for e in wanted if isinstance(e, messages.Cancel)] == ["b1"]
    assert [e.cause for e in wanted if isinstance(e, commands.RequestReset)] == [rows.ResetCause.BATCH_TIMEOUT]
    assert not any(isinstance(e, messages.EndProcess) for e in wanted)
    alone.wait(timeouts.process_end_limit.total_seconds())
    assert alone.wanted(messages.EndProcess)


# -- C13 -------------------------------------------------------------------------------------------------------------


def test_c13_a_member_that_kafka_expelled_keeps_the_region_from_running_until_it_is_quiesced() -> None:
    driver = running()
    one, expelled = driver.member(0), driver.member(1)
    batch = driver.start_batch(expelled)
    driver.insist(one, [driver.partition(n) for n in range(4)])
    driver.claim(one)
    driver.acknowledge(one)
    assert state(driver) is rows.RegionState.RESETTING
    driver.wait(120)
    assert state(driver) is rows.RegionState.RESETTING
    assert any(str(expelled) in reason for reason in coverage.busy(driver.region, driver.clock.now))
    driver.discard(batch)
    driver.claim(expelled, [])
    driver.acknowledge(expelled)
    assert state(driver) is rows.RegionState.RUNNING
    judge(driver)


# -- C14 -------------------------------------------------------------------------------------------------------------


def test_c14_a_rolling_start_of_six_members_never_halts_the_region() -> None:
    driver = Driver(partitions=6, members=6)
    driver.handle(START)
    for member in driver.all_members():
        driver.join(member)
        driver.spread()
        driver.finish_reset()
        if state(driver) is not rows.RegionState.RUNNING:  # a start waits for the others, but not for ever
            driver.wait(60)
            driver.finish_reset()
        assert state(driver) is rows.RegionState.RUNNING
        driver.process()
        driver.wait(60)
    assert causes(driver) == [rows.ResetCause.START]
    driver.checkpoint("n")
    judge(driver)


def test_c14_an_application_that_is_queued_for_long_burns_no_attempt() -> None:
    driver = running(partitions=6, members=6)
    assigned = {m: process.assigned for m, process in driver.processes.items()}
    driver.process()
    driver.handle(KillRegion())
    driver.processes.clear()
    driver.wait(60)
    driver.handle(START)
    for member in driver.all_members():
        assert state(driver) is rows.RegionState.STARTING
        driver.wait(20 * 60)
        driver.join(member)
        # Static members: Kafka gives each what it had.
        driver.claim(member, assigned[member])
        driver.acknowledge(member)
    assert state(driver) is rows.RegionState.RUNNING
    assert causes(driver) == [rows.ResetCause.START] * 2
    assert driver.region.resets[driver.region.epoch].attempt == 1
    assert driver.region.failures == 0
    judge(driver)


# -- C15, C16 --------------------------------------------------------------------------------------------------------


def test_c15_a_retried_task_with_the_same_request_id_gets_a_new_checkpoint_at_the_same_boundary_offsets() -> None:
    driver = hourly()
    located(driver, boundary(1), 30)
    driver.process(width=30)
    first = driver.request_checkpoint("dag/run/checkpoint/0", boundary=boundary(1))
    assert first.state is rows.RequestState.OPEN
    driver.contribute(driver.member(0))
    driver.wait(181)
    assert driver.region.requests[first.request_id].state is rows.RequestState.ABORTED
    assert "g[1]" in driver.region.requests[first.request_id].refusal
    again = driver.request_checkpoint("dag/run/checkpoint/0", boundary=boundary(1))
    assert (again.state, again.sequence) == (rows.RequestState.OPEN, (first.sequence or 0) + 1)
    # Another answer of the brokers changes nothing: the first writer has won.
    located(driver, boundary(1), 55)
    assert {row.offset for row in driver.region.boundary_offsets.values()} == {30}
    checkpoint = driver.complete()
    assert set(driver.region.offsets[checkpoint].values()) == {30}
    judge(driver)


def test_c15_a_cleared_old_run_gets_its_old_answer_after_retirement_and_no_new_checkpoint() -> None:
    driver = hourly(keep=1)
    answers = []
    for number in range(1, 5):
        driver.process()
        answers.append(driver.checkpoint(f"run{number}"))
    driver.handle(RetireCheckpoints())
    assert driver.region.checkpoints[answers[0]].state is rows.CheckpointState.RETIRED
    again = driver.request_checkpoint("run1")
    assert (again.state, again.sequence) == (rows.RequestState.ANSWERED, answers[0])
    assert open_checkpoint(driver) is None
    judge(driver)


def test_c16_a_region_that_is_hours_behind_approaches_the_boundary_without_a_drain_deadline() -> None:
    driver = hourly()
    located(driver, boundary(1), 100)
    driver.wait(3 * 3600)
    asked = driver.request_checkpoint("run1", boundary=boundary(1))
    checkpoint = checkpoint_of(driver)
    assert (asked.state, checkpoint.state, checkpoint.drain_deadline) == (
        rows.RequestState.OPEN,
        rows.CheckpointState.APPROACHING,
        None,
    )
    driver.wait(2 * 3600)
    assert open_checkpoint(driver) == checkpoint.sequence
    for _ in range(10):
        assert state(driver) is rows.RegionState.RUNNING
        driver.process()
    driver.handle(Reconcile())
    draining = driver.region.checkpoint
    assert state(driver) is rows.RegionState.DRAINING
    assert draining is not None
    assert draining.drain_deadline == driver.clock.now + driver.region.rules.timeouts.drain
    checkpoint_made = driver.complete()
    assert set(driver.region.offsets[checkpoint_made].values()) == {100}
    judge(driver)


# -- C17, C18 --------------------------------------------------------------------------------------------------------


def test_c17_after_a_store_that_was_away_for_longer_than_a_lease_everybody_is_back_by_one_reset() -> None:
    driver = running(members=3, partitions=6)
    driver.process()
    batch = driver.start_batch(driver.member(1))
    driver.clock.advance(60)
    for member in driver.all_members():
        driver.join(member, came_back=True)
        for row in driver.region.running.values():
            if row.member == member:
                driver.discard(row.batch)
    driver.spread()
    driver.finish_reset()
    assert state(driver) is rows.RegionState.RUNNING
    assert causes(driver)[1:] == [rows.ResetCause.CLAIM]
    assert driver.row(batch).outcome is rows.Outcome.DISCARDED
    assert positions(driver) == [0] * 6
    judge(driver)


def test_c18_a_joining_member_aborts_a_checkpoint_that_another_has_contributed_to_and_it_is_tried_again_at_once() -> (
    None
):
    driver = running(members=3, partitions=3)
    driver.vanish(driver.member(2))
    driver.wait(60)
    driver.claim(driver.member(1), [driver.partition(1), driver.partition(2)])
    driver.request_checkpoint("n1")
    first = open_checkpoint(driver)
    driver.contribute(driver.member(0))
    before = driver.clock.now
    driver.join(driver.member(2))
    driver.claim(driver.member(1), [driver.partition(1)])
    driver.claim(driver.member(2), [driver.partition(2)])
    aborted = [body.sequence for body in happened(driver, region_events.CheckpointAborted)]
    assert first in aborted
    second = checkpoint_of(driver)
    assert set(second.participants) == set(driver.all_members())
    assert driver.clock.now == before
    assert driver.complete() == second.sequence
    assert causes(driver) == [rows.ResetCause.START]
    judge(driver)


def test_c18_a_member_that_is_not_among_the_participants_cannot_contribute() -> None:
    driver = running(members=3, partitions=2)
    idle = driver.member(0)
    assert driver.claims(idle) == {}
    driver.leave(idle)
    driver.request_checkpoint("n1")
    driver.join(idle)
    with pytest.raises(StrangeContribution):
        driver.contribute(idle)


# -- C19, C20 --------------------------------------------------------------------------------------------------------


def test_c19_what_is_processed_again_after_a_reset_has_a_stamp_of_its_own() -> None:
    driver = running()
    driver.process()
    restore_point = driver.checkpoint("n1")
    driver.process()
    driver.crash(driver.member(0))
    driver.recover()
    driver.process()
    stamps = [int(b.sequence) - restore_point for b in driver.batches]
    assert stamps == [0, 0, 1, 1, 1, 2, 2]
    assert driver.region.resets[driver.region.epoch].sequence == restore_point + 1
    judge(driver)


def test_c20_an_index_that_the_spec_has_no_more_is_refused_when_it_wakes_up() -> None:
    driver = running(members=3, partitions=3)
    driver.process()
    driver.checkpoint("n1")
    old = driver.processes[driver.member(2)]
    old_epoch = driver.region.epoch
    stale = driver.caller(old.member)
    driver.handle(KillRegion())
    driver.processes.clear()
    driver.wait(60)
    fewer = Spec(text="{}", rules=RegionRules(groups={GROUP: group_rules(members=2)}), revision=2)
    driver.handle(ChangeSpec(at_once=fewer))
    driver.up()
    assert state(driver) is rows.RegionState.RUNNING
    assert driver.region.epoch > old_epoch
    before = driver.region
    driver.processes[old.member] = old
    with pytest.raises((LeaseExpired, StaleEpoch)):
        driver.start_ranges(old.member, {driver.partition(2): driver.batches[2].ranges[driver.partition(2)]})
    with pytest.raises((LeaseExpired, StaleEpoch)):
        driver.handle(Acknowledge(caller=stale))
    with pytest.raises(LeaseExpired):
        driver.claim(old.member, [driver.partition(2)])
    with pytest.raises(UnknownMember, match="indexes 0 to 1"):
        driver.join(old.member)
    assert driver.region == before
    judge(driver)


def test_c20_a_start_does_not_wait_for_an_index_that_the_spec_has_no_more() -> None:
    driver = running(members=3, partitions=3)
    driver.process()
    driver.checkpoint("n1")
    asleep = driver.processes[driver.member(2)]
    driver.handle(KillRegion())
    fewer = Spec(text="{}", rules=RegionRules(groups={GROUP: group_rules(members=2)}), revision=2)
    driver.handle(ChangeSpec(at_once=fewer))
    driver.handle(START)
    del driver.processes[asleep.member]
    for member in driver.all_members():
        driver.join(member, takeover=True)
    driver.spread()
    driver.finish_reset()
    # Its lease was not over when the region was started.
    assert driver.region.leases[asleep.member].incarnation == asleep.incarnation
    assert (state(driver), driver.clock.now) == (rows.RegionState.RUNNING, BEGINNING)
    judge(driver)


def test_c20_a_newer_incarnation_of_another_process_fences_the_member_which_writes_nothing_more() -> None:
    alone = LoneMember().in_batch()
    alone.feed(answers.not_renewed(incarnation=Incarnation(2)))
    assert alone.state is State.FENCED
    assert [e.batch for e in alone.wanted(messages.Cancel)] == ["b1"]
    assert alone.wanted(messages.GroupRequest.CLOSE_KEEPING_SLOT)
    after = [*alone.feed(messages.BatchEnded(batch=BatchId("b1")), messages.Notice.LEFT_GROUP)]
    after += alone.wait(300, renewing=False)
    assert after == []
    assert alone.state is State.FENCED
