"""Scenarios C21 to C30.

Stops, scopes, pauses, boundaries that are known late, a killed process, a way back to a branch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from airflow_kcr.errors import BatchRefused, CheckpointNotUsable, StalePlan, StoreBusy
from airflow_kcr.protocol.member import messages
from airflow_kcr.protocol.member.state import State, Why
from airflow_kcr.protocol.observations import TimeAnswer
from airflow_kcr.protocol.offsets import SeekSource
from airflow_kcr.protocol.region import commands, rows
from airflow_kcr.protocol.region import events as region_events
from airflow_kcr.protocol.region.commands import ReadRegion, Reconcile
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.rules import CheckpointMode, RegionRules
from airflow_kcr.protocol.scopes import parse_scope
from airflow_kcr.protocol.targets import ByDuration, ShiftBy, ToCheckpoint, ToDatetime
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import CheckpointNumber, DesiredState, EventNumber, GroupId, Offset, RegionName
from airflow_kcr.store.regions import A, Rule
from tests.support.driver import BEGINNING, PAUSE, START, STOP, Clock, Driver, group_rules
from tests.support.judging import (
    accepted,
    causes,
    happened,
    judge,
    members_batches,
    open_checkpoint,
    positions,
    started_of,
    state,
    stops,
)
from tests.support.lone_member import LoneMember, claims_of, view_of
from tests.support.memory import MemoryTransactions
from tests.support.scripts import (
    GRACE,
    NO_RECORD,
    boundary,
    boundary_offset,
    checkpoints_of_ten,
    hourly,
    located,
    rewind,
    running,
    started,
)

# -- C21 -------------------------------------------------------------------------------------------------------------


def stopping() -> tuple[Driver, CheckpointNumber]:
    """A region whose last checkpoint is complete and published, and not committed yet."""
    driver = running()
    driver.process()
    driver.handle(STOP)
    checkpoint = driver.complete()
    driver.publish()
    return driver, checkpoint


def test_c21_a_stopping_region_is_not_stopped_before_every_member_has_its_commit_read_back() -> None:
    driver, checkpoint = stopping()
    assert [driver.handle(ReadRegion(member=m)).commit for m in driver.all_members()] == [checkpoint, checkpoint]
    driver.read_back(driver.member(0))
    assert state(driver) is not rows.RegionState.STOPPED
    assert [driver.handle(ReadRegion(member=m)).commit for m in driver.all_members()] == [None, checkpoint]
    assert driver.handle(ReadRegion(member=driver.member(0))).stopping
    with pytest.raises(BatchRefused):
        driver.start_batch(driver.member(0))
    driver.read_back(driver.member(1))
    assert state(driver) is rows.RegionState.STOPPED
    assert driver.region.checkpoints[checkpoint].committed is rows.Committed.YES
    assert stops(driver)[-1] == "drained"
    judge(driver)


def test_c21_a_member_leaves_its_group_only_when_the_region_is_stopped() -> None:
    alone = LoneMember().processing()
    waiting = replace(
        view_of(claims_of(position=10, resume=10)),
        counter=EventNumber(11),
        state=rows.RegionState.DRAINING,
        desired_state=DesiredState.STOPPED,
        stopping=True,
        commit=CheckpointNumber(2),
    )
    alone.see(waiting)
    assert alone.wanted(messages.Commit)
    alone.feed(messages.CommitAnswered(sequence=CheckpointNumber(2), offsets=alone.member.positions))
    assert alone.wanted(commands.ReportReadBack)
    alone.see(replace(waiting, commit=None, counter=EventNumber(12)))
    alone.wait(10)
    assert not [e for e in alone.all if e is messages.GroupRequest.LEAVE]
    assert (alone.state, alone.member.why) == (State.HOLDING, Why.DRAINED)
    alone.see(replace(waiting, state=rows.RegionState.STOPPED, commit=None, counter=EventNumber(13)))
    assert alone.wanted(messages.GroupRequest.LEAVE)
    alone.feed(messages.Notice.LEFT_GROUP)
    assert alone.state is State.CLOSED


# -- C22, C23 --------------------------------------------------------------------------------------------------------


def test_c22_a_reset_of_one_topic_drains_the_other_one_first_and_the_whole_map_is_one_moment() -> None:
    rules = RegionRules(
        groups={GroupId("g"): group_rules("g", topic="t", members=1), GroupId("h"): group_rules("h", topic="u")}
    )
    driver = started(Driver(partitions=2, rules=rules))
    driver.process()
    first = driver.checkpoint("n1")
    driver.process()
    other = driver.member(0, "h")
    batch = driver.start_batch(other)
    driver.reset(ToCheckpoint(sequence=first), scope=parse_scope(topics=["t"]))
    assert state(driver) is rows.RegionState.DRAINING
    with pytest.raises(BatchRefused, match="is running"):
        driver.contribute(other)
    driver.finish_batch(batch)
    drained = driver.complete()
    driver.finish_reset()
    assert positions(driver, "g", "t") == [10, 10]
    assert positions(driver, "h", "u") == [30, 20]
    seek = driver.region.seek
    assert {p.topic: e.source for p, e in seek.items()} == {"t": SeekSource.MERGED, "u": SeekSource.DRAINED}
    assert driver.row(batch).outcome is rows.Outcome.DONE
    assert driver.region.offsets[drained][driver.partition(0, "h", "u")] == 30
    # The next automatic reset goes to the same moment, of both topics.
    driver.process()
    driver.crash(driver.member(0))
    driver.recover()
    assert (positions(driver, "g", "t"), positions(driver, "h", "u")) == ([10, 10], [30, 20])
    judge(driver)


def test_c23_a_relative_target_is_resolved_against_the_checkpoint_it_is_applied_at() -> None:
    driver = running()
    driver.process(width=50)
    planned_at = driver.clock.now
    plan_said = [50 - 20] * 4
    while driver.clock.now < planned_at + timedelta(minutes=10):
        driver.process()
        driver.wait(60)
    driver.reset(ShiftBy(by=-20))
    checkpoint = driver.complete()
    driver.finish_reset()
    assert set(driver.region.offsets[checkpoint].values()) == {150}
    assert positions(driver) == [130] * 4 != plan_said
    judge(driver)


def test_c23_a_duration_counts_back_from_the_moment_it_is_applied_at_and_is_one_instant_for_all_members() -> None:
    driver = running()
    driver.process()
    driver.wait(600)
    driver.reset(ByDuration(back=timedelta(minutes=5)))
    driver.wait(60)
    driver.complete()
    resets_at = driver.clock.now
    for member in driver.all_members():
        driver.claim(member)
        driver.wait(3)
        asked = driver.handle(ReadRegion(member=member))
        assert asked.target == ToDatetime(instant=resets_at - timedelta(minutes=5))
        assert asked.open.keys() == set(driver.claims(member))
    driver.finish_reset()
    assert state(driver) is rows.RegionState.RUNNING
    judge(driver)


def test_c23_a_plan_of_another_epoch_is_refused() -> None:
    driver = running()
    driver.process()
    planned = driver.region.epoch
    driver.crash(driver.member(0))
    driver.recover()
    before = driver.region
    with pytest.raises(StalePlan):
        driver.reset(ShiftBy(by=-5), epoch=planned)
    assert driver.region == before


# -- C24 -------------------------------------------------------------------------------------------------------------


def test_c24_a_pause_survives_a_crash_and_the_reset_after_it() -> None:
    driver = running()
    driver.start_batch(driver.member(0))
    driver.handle(PAUSE)
    driver.vanish(driver.member(0))
    driver.recover()
    assert causes(driver)[-1] is rows.ResetCause.CLAIM
    assert (state(driver), driver.region.desired_state) == (rows.RegionState.RUNNING, DesiredState.PAUSED)
    with pytest.raises(BatchRefused, match="desired state paused"):
        driver.start_batch(driver.member(1))
    driver.handle(START)
    driver.process()
    judge(driver)


def test_c24_a_stop_survives_a_crash_in_its_drain_and_the_reset_after_it() -> None:
    driver = running()
    driver.process()
    driver.handle(STOP)
    driver.crash(driver.member(0))
    driver.wait(60)
    assert driver.region.desired_state is DesiredState.STOPPED
    driver.recover()
    assert state(driver) is rows.RegionState.DRAINING
    checkpoint = driver.complete()
    driver.publish()
    for member in driver.all_members():
        driver.read_back(member)
    assert state(driver) is rows.RegionState.STOPPED
    assert driver.region.restore_sequence == checkpoint
    judge(driver)


# -- C25, C26, C27 ---------------------------------------------------------------------------------------------------


class FreezingTransactions(MemoryTransactions):
    """A store in which the next transaction is decided, and then ended by the server before its COMMIT."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        super().__init__(clock)
        self.freeze_next = False

    def decide(self, name: RegionName, rule: Rule[A]) -> tuple[Region, A]:
        if not self.freeze_next:
            return super().decide(name, rule)
        self.freeze_next = False
        region, now = self.read(name)
        rule(region, now)
        raise StoreBusy


def test_c25_a_transaction_that_was_frozen_before_its_commit_has_changed_nothing_and_anybody_goes_on() -> None:
    """The freeze itself, SIGSTOP against a real Postgres, is in tests/contract/test_postgres_faults.py."""
    clock = Clock()
    transactions = FreezingTransactions(clock)
    driver = started(Driver(clock=clock, transactions=transactions))
    driver.process()
    driver.request_checkpoint("n1")
    driver.contribute(driver.member(0))
    before = driver.region
    transactions.freeze_next = True
    with pytest.raises(StoreBusy):
        driver.contribute(driver.member(1))
    assert driver.region == before
    driver.contribute(driver.member(1))
    assert open_checkpoint(driver) is None
    timeouts = Timeouts()
    assert timeouts.idle_in_transaction_session_timeout == timeouts.lease / 2 < timeouts.lock_timeout
    judge(driver)


def test_c25_what_is_due_is_done_by_anybody_and_twice_changes_nothing() -> None:
    driver = running()
    driver.process()
    driver.request_checkpoint("n1")
    driver.clock.advance(181)
    driver.handle(Reconcile())
    driver.handle(Reconcile())  # retention counts anew after a checkpoint
    once, events = driver.region, driver.events
    driver.handle(Reconcile())
    assert (driver.region, driver.events) == (once, events)
    assert len(happened(driver, region_events.CheckpointAborted)) == 1


def test_c26_without_a_record_nothing_is_decided_before_boundary_and_grace_have_passed() -> None:
    second = timedelta(seconds=1)
    for after in (-second, second):
        assert boundary_offset(NO_RECORD, after=after, end=110) is None
    answer = TimeAnswer(offset=Offset(120), found=boundary(1))
    assert boundary_offset(answer, after=timedelta(0), end=110) == rows.BoundaryOffset(offset=Offset(120))


def test_c27_a_record_from_the_future_does_not_stop_its_partition() -> None:
    answer = TimeAnswer(offset=Offset(500), found=datetime(2099, 1, 1, tzinfo=BEGINNING.tzinfo))
    assert boundary_offset(answer, after=timedelta(0), end=900) is None
    found = boundary_offset(answer, after=GRACE, end=900)
    assert found is not None
    assert found.offset == 900
    assert "500" in found.inexact


def test_c27_the_checkpoint_is_marked_inexact_with_the_partition_and_the_position_beyond_is_not_past_the_boundary() -> (
    None
):
    driver = hourly()
    driver.process(width=600)
    driver.wait(3602)
    located(
        driver, boundary(1), 500, inexact="the record at 500 is stamped in the future; the log's end counts instead"
    )
    asked = driver.request_checkpoint("run1", boundary=boundary(1))
    assert asked.state is rows.RequestState.OPEN
    checkpoint = driver.complete()
    assert driver.region.checkpoints[checkpoint].inexact.keys() == set(driver.logs)
    assert positions(driver) == [600] * 4
    driver.publish()
    driver.process()
    judge(driver)


# -- C28 -------------------------------------------------------------------------------------------------------------


def test_c28_a_boundary_at_or_before_the_restore_point_is_answered_by_the_first_checkpoint_at_or_beyond_it() -> None:
    driver = hourly()
    for hours in (1, 2, 3):
        located(driver, boundary(hours), 10 * hours)
        driver.process()
        driver.request_checkpoint(f"run{hours}", boundary=boundary(hours))
        driver.complete()
        driver.publish()
    second = driver.region.requests[driver.request_checkpoint("run2", boundary=boundary(2)).request_id].sequence
    late = driver.request_checkpoint("late", boundary=boundary(1.5))
    assert (late.state, late.sequence) == (rows.RequestState.ANSWERED, second)
    assert open_checkpoint(driver) is None
    judge(driver)


def test_c28_members_hold_at_the_boundary_until_the_run_asks_and_a_later_request_releases_them() -> None:
    driver = hourly(mode=CheckpointMode.DAG_RUN)
    located(driver, boundary(1), 30)
    driver.process(width=30)
    driver.wait(2 * 3600)
    assert (state(driver), open_checkpoint(driver)) == (rows.RegionState.RUNNING, None)
    with pytest.raises(BatchRefused, match="crosses the boundary"):
        driver.start_batch(driver.member(0))
    # The DAG was paused for its first run; its second one asks.
    driver.request_checkpoint("run2", boundary=boundary(2))
    assert driver.region.next_boundary == boundary(2)
    located(driver, boundary(2), 50)
    driver.process(width=20)
    driver.handle(Reconcile())
    checkpoint = driver.complete()
    assert set(driver.region.offsets[checkpoint].values()) == {50}
    assert driver.request_checkpoint("run1", boundary=boundary(1)).sequence == checkpoint
    judge(driver)


# -- C29, C30 --------------------------------------------------------------------------------------------------------


def test_c29_a_killed_process_leaves_a_batch_of_unknown_outcome_and_duplicates_can_be_counted() -> None:
    driver = running()
    driver.process()
    driver.checkpoint("n1")
    batch = driver.start_batch(driver.member(1))
    driver.crash(driver.member(1))
    driver.recover()
    assert members_batches(driver, rows.Outcome.UNKNOWN) == [batch]
    driver.process()
    begun = Counter(o for r in started_of(driver, driver.partition(3)) for o in range(r.from_, r.to))
    assert {offset for offset, count in begun.items() if count > 1} == set(range(10, 20))
    assert [r.from_ for r in accepted(driver, driver.partition(3))] == [0, 10]
    judge(driver)


def test_c30_a_checkpoint_of_another_branch_is_refused_with_what_is_missing_or_is_an_explicit_forward_jump() -> None:
    driver = running()
    checkpoints = checkpoints_of_ten(driver, 9)
    rewind(driver, ToCheckpoint(sequence=checkpoints[2]))
    with pytest.raises(CheckpointNotUsable, match=r"missing: g:t-0 \[30, 90\)"):
        driver.reset(ToCheckpoint(sequence=checkpoints[8]))
    assert (open_checkpoint(driver), state(driver)) == (None, rows.RegionState.RUNNING)
    driver.reset(ToCheckpoint(sequence=checkpoints[8]), forward=True)
    driver.complete()
    driver.finish_reset()
    assert positions(driver) == [90] * 4
    judge(driver)
