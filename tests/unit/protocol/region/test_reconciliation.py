from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_kcr.protocol.region import commands, events, reconciliation, rows
from airflow_kcr.protocol.rules import CheckpointMode, CheckpointRules, RegionRules
from airflow_kcr.protocol.targets import ToOffset
from airflow_kcr.protocol.values import DesiredState, Offset, RequestId
from airflow_kcr.schedules import Every
from tests.support.driver import GROUP, STOP, Driver, group_rules
from tests.support.judging import checkpoint_of, happened, judge, open_checkpoint, state
from tests.support.scripts import HOUR, boundary, hourly, located, running, started

LEASE = timedelta(seconds=10)


def counting(records: int) -> Driver:
    rules = RegionRules(groups={GROUP: group_rules(members=1)}, checkpoint=CheckpointRules(records=records))
    return started(Driver(partitions=2, rules=rules))


def complete_checkpoint(driver: Driver) -> None:
    driver.process()
    driver.request_checkpoint("n")
    driver.complete()


# -- settling ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0, 5, 15, 200, 4_000])
def test_whatever_is_due_is_done_and_twice_changes_nothing(seconds: int) -> None:
    driver = hourly(mode=CheckpointMode.AUTO)
    driver.process()
    driver.start_batch(driver.member(0))
    driver.request_checkpoint("n")
    now = driver.clock.now + timedelta(seconds=seconds)
    once = reconciliation.reconcile(driver.region, now)
    assert reconciliation.reconcile(once, now) == once


def test_a_decision_and_its_consequences_are_one_transaction() -> None:
    driver = running()
    driver.request_checkpoint("first")
    driver.request_checkpoint("second")
    checkpoint = driver.complete()
    counter = driver.region.counter
    driver.handle(commands.PublishCheckpoint(sequence=checkpoint))
    bodies = [e.body for e in driver.events[counter:]]
    assert [type(b) for b in bodies[:3]] == [events.CheckpointPublished, events.CheckpointOpened, events.StateChanged]


def test_a_halted_or_stopped_region_serves_nobody_and_says_so() -> None:
    driver = running()
    driver.request_reset(driver.member(0), rows.ResetCause.BATCH_FAILED)
    driver.request_checkpoint("n")
    driver.reset(ToOffset(offset=Offset(0)), request_id="r")
    driver.find_stranger()
    assert driver.region.requests[RequestId("n")].state is rows.RequestState.SUPERSEDED
    assert driver.region.requests[RequestId("n")].refusal == "the region is halted"
    row = driver.region.person_resets[RequestId("r")]
    assert (row.state, row.failure) == (rows.PersonResetState.FAILED, "the region is halted")


# -- the region's own checkpoints
# --------------------------------------------------------------------------------------------


def test_a_region_checkpoints_itself_at_its_boundary() -> None:
    driver = hourly(mode=CheckpointMode.AUTO)
    driver.wait(3_599)
    assert open_checkpoint(driver) is None
    driver.wait(1)
    checkpoint = checkpoint_of(driver)
    assert (checkpoint.purpose, checkpoint.boundary, checkpoint.request_id) == (
        rows.CheckpointPurpose.SCHEDULE,
        boundary(1),
        f"boundary:{boundary(1).isoformat()}",
    )
    located(driver, boundary(1), 0)
    driver.complete()
    assert driver.region.next_boundary == boundary(2)
    judge(driver)


def test_its_own_checkpoint_may_be_inexact_as_nobody_is_there_to_be_asked() -> None:
    driver = hourly(mode=CheckpointMode.AUTO, partitions=1, members=1)
    driver.process()
    driver.wait(3_600)
    located(driver, boundary(1), 5)
    driver.complete()
    assert happened(driver, events.CheckpointCompleted)[0].inexact.keys() == {driver.partition(0)}
    assert driver.region.next_boundary == boundary(2)


def test_a_region_checkpoints_itself_by_count() -> None:
    driver = counting(20)
    driver.process()
    driver.handle(commands.Reconcile())
    checkpoint = checkpoint_of(driver)
    assert (checkpoint.purpose, checkpoint.state) == (rows.CheckpointPurpose.SCHEDULE, rows.CheckpointState.DRAINING)
    driver.complete()
    driver.publish()
    driver.process()
    driver.handle(commands.Reconcile())
    assert open_checkpoint(driver) is not None
    assert len({r.request_id for r in driver.region.requests.values()}) == 2
    judge(driver)


def test_a_count_that_a_reset_took_back_makes_no_checkpoint_until_it_is_reached_again() -> None:
    driver = counting(20)
    driver.process()
    driver.handle(commands.Reconcile())
    assert open_checkpoint(driver) is not None
    driver.request_reset(driver.member(0), rows.ResetCause.BATCH_FAILED)
    driver.finish_reset()
    assert open_checkpoint(driver) is None
    (request,) = driver.region.requests.values()
    assert request.state is rows.RequestState.SUPERSEDED
    driver.process()
    driver.handle(commands.Reconcile())
    assert open_checkpoint(driver) is not None
    assert list(driver.region.requests) == [request.request_id]
    driver.complete()
    judge(driver)


# -- when something is due --------------------------------------------------------------------------------------------


def test_a_drain_is_due_when_a_lease_ends_or_its_deadline_comes() -> None:
    driver = running()
    driver.request_checkpoint("n")
    assert driver.region.reconcile_at == driver.clock.now + LEASE
    lasting = {m: replace(row, until=row.until + HOUR) for m, row in driver.region.leases.items()}
    region = reconciliation.reconcile(replace(driver.region, leases=lasting), driver.clock.now)
    assert region.reconcile_at == driver.clock.now + region.rules.timeouts.drain


def test_a_reset_is_due_when_a_lease_ends_or_its_attempt_expires() -> None:
    driver = running()
    driver.request_reset(driver.member(0), rows.ResetCause.BATCH_FAILED)
    assert driver.region.reconcile_at == driver.clock.now + LEASE
    lasting = {m: replace(row, until=row.until + HOUR) for m, row in driver.region.leases.items()}
    region = reconciliation.reconcile(replace(driver.region, leases=lasting), driver.clock.now)
    assert region.reconcile_at == driver.clock.now + region.rules.timeouts.reset


def test_a_complete_checkpoint_is_due_at_its_commit_and_publish_timeouts() -> None:
    driver = running()
    complete_checkpoint(driver)
    timeouts = driver.region.rules.timeouts
    completed = driver.clock.now
    assert driver.region.reconcile_at == completed + timedelta(milliseconds=100), "retention counts anew"
    driver.handle(commands.Reconcile())
    assert driver.region.reconcile_at == completed + timeouts.commit
    driver.wait(30)
    assert {c.committed for c in driver.region.checkpoints.values()} == {rows.Committed.NO}
    assert driver.region.reconcile_at == completed + timeouts.publish
    driver.publish()
    assert driver.region.reconcile_at is None


def test_a_stop_is_due_when_the_last_lease_may_be_over() -> None:
    driver = running()
    driver.handle(STOP)
    driver.complete()
    driver.publish()
    for member in driver.all_members():
        driver.handle(commands.Reconcile())
        assert driver.region.desired_state is DesiredState.STOPPED
        assert driver.region.reconcile_at is not None
        assert driver.region.reconcile_at <= driver.clock.now + LEASE
        driver.read_back(member)
    assert (state(driver), driver.region.reconcile_at) == (rows.RegionState.STOPPED, None)


def test_the_next_boundary_is_due_where_the_region_checkpoints_itself() -> None:
    assert hourly(mode=CheckpointMode.AUTO).region.reconcile_at == boundary(1)


def test_where_a_run_asks_a_hold_of_a_whole_period_is_due_to_be_told() -> None:
    driver = hourly(mode=CheckpointMode.DAG_RUN)
    assert driver.region.reconcile_at == boundary(2)
    driver.wait(7_200)
    assert driver.region.reconcile_at is None


def test_a_queue_is_due_when_a_lease_ends() -> None:
    driver = running()
    driver.leave(driver.member(1))
    driver.request_checkpoint("n")
    assert open_checkpoint(driver) is None
    assert driver.region.reconcile_at == driver.clock.now + LEASE


def test_what_is_due_and_can_not_be_settled_yet_is_not_asked_for_in_a_busy_loop() -> None:
    rules = RegionRules(
        groups={GROUP: group_rules(members=1)},
        checkpoint=CheckpointRules(schedule=Every(timedelta(minutes=1)), mode=CheckpointMode.AUTO),
    )
    driver = started(Driver(partitions=1, rules=rules))
    driver.request_checkpoint("unpublished")
    driver.complete()
    driver.wait(120)
    reconcile_at = driver.region.reconcile_at
    assert reconcile_at is not None
    assert driver.clock.now < reconcile_at <= driver.clock.now + timedelta(seconds=1)
