from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from airflow_kcr.protocol.region import checkpoints, commands, events, rows
from airflow_kcr.protocol.rules import RegionRules
from airflow_kcr.protocol.targets import ToOffset
from airflow_kcr.protocol.values import Incarnation, Offset, RequestId
from tests.support.driver import GROUP, STOP, Driver, group_rules
from tests.support.judging import checkpoint_of, happened, judge, open_checkpoint, state
from tests.support.scripts import boundary, hourly, located, running, started


def request_state(driver: Driver, request_id: str) -> rows.RequestState:
    return driver.region.requests[RequestId(request_id)].state


def phase(driver: Driver) -> rows.CheckpointState | None:
    return None if driver.region.checkpoint is None else driver.region.checkpoint.state


# -- opening ----------------------------------------------------------------------------------------------------------


def test_opening_takes_the_next_sequence_and_freezes_participants_and_partitions() -> None:
    driver = running()
    expected = driver.region.next_sequence
    driver.request_checkpoint("n")
    checkpoint, region = driver.region.checkpoint, driver.region
    assert checkpoint is not None
    assert (checkpoint.sequence, region.next_sequence) == (expected, expected + 1)
    assert checkpoint.participants == {driver.member(0): 1, driver.member(1): 1}
    assert region.frozen[checkpoint.sequence] == region.universe()
    opened = happened(driver, events.CheckpointOpened)[0]
    assert opened.participants == checkpoint.participants
    assert opened.partitions == tuple(sorted(region.universe()))


def test_no_checkpoint_opens_in_a_region_that_does_not_run_or_has_no_partition() -> None:
    driver = running()
    region, now = driver.region, driver.clock.now
    assert checkpoints.may_open(region, now)
    assert not checkpoints.may_open(replace(region, state=rows.RegionState.RESETTING), now)
    assert not checkpoints.may_open(replace(region, claims={}, initial={}, restore_point=None), now)


def test_a_queued_request_that_a_checkpoint_meanwhile_covers_is_answered_without_a_checkpoint_of_its_own() -> None:
    driver = hourly()
    located(driver, boundary(2), 10)
    driver.process()
    driver.request_checkpoint("two", boundary=boundary(2))
    sequence = driver.complete()
    waits = replace(
        driver.region.requests[RequestId("two")], request_id=RequestId("one"), boundary=boundary(1), sequence=None
    )
    waits = replace(waits, state=rows.RequestState.QUEUED, answered_at=None)
    driver.publish()
    region = driver.region
    region = checkpoints.open_next(
        replace(region, requests={**region.requests, waits.request_id: waits}), driver.clock.now
    )
    answered = region.requests[waits.request_id]
    assert (answered.state, answered.sequence) == (rows.RequestState.ANSWERED, sequence)
    assert region.open_checkpoint is None


# -- approach ---------------------------------------------------------------------------------------------------------


def test_without_a_boundary_a_checkpoint_drains_at_once_and_its_clock_runs() -> None:
    driver = running()
    driver.request_checkpoint("n")
    checkpoint = checkpoint_of(driver)
    assert (checkpoint.state, state(driver)) == (rows.CheckpointState.DRAINING, rows.RegionState.DRAINING)
    assert checkpoint.drain_deadline == driver.clock.now + driver.region.rules.timeouts.drain


def test_a_boundary_that_is_not_located_everywhere_is_still_approached() -> None:
    driver = hourly()
    driver.request_checkpoint("n", boundary=boundary(1))
    found = {p: rows.BoundaryOffset(offset=Offset(0)) for p in driver.claims(driver.member(0))}
    driver.handle(
        commands.StoreBoundaryOffsets(caller=driver.caller(driver.member(0)), boundary=boundary(1), found=found)
    )
    assert phase(driver) is rows.CheckpointState.APPROACHING


def test_a_region_without_an_approaching_checkpoint_advances_to_nothing() -> None:
    driver = running()
    assert checkpoints.advance(driver.region, driver.clock.now) == driver.region
    driver.request_checkpoint("n")
    assert checkpoints.advance(driver.region, driver.clock.now) == driver.region


# -- past the boundary
# ---------------------------------------------------------------------------------------------------


def test_a_boundary_that_a_position_is_past_is_refused_with_partition_and_offset() -> None:
    driver = hourly()
    driver.process()
    located(driver, boundary(1), 5)
    row = driver.request_checkpoint("n", boundary=boundary(1))
    assert row.state is rows.RequestState.REFUSED
    assert "g:t-0 is at 10, past the boundary's offset 5" in row.refusal
    assert "allow_inexact" in row.refusal
    assert open_checkpoint(driver) is None


def test_a_boundary_that_turns_out_to_be_passed_while_it_is_approached_aborts_the_checkpoint_and_refuses_it() -> None:
    driver = hourly()
    driver.process()
    driver.request_checkpoint("n", boundary=boundary(1))
    assert phase(driver) is rows.CheckpointState.APPROACHING
    located(driver, boundary(1), 5)
    row = driver.region.requests[RequestId("n")]
    assert row.state is rows.RequestState.REFUSED
    assert "past the boundary's offset 5" in row.refusal
    assert open_checkpoint(driver) is None
    assert row.sequence is not None
    assert driver.region.checkpoints[row.sequence].state is rows.CheckpointState.ABORTED
    judge(driver)


def test_or_drains_where_that_was_allowed() -> None:
    driver = hourly()
    driver.process()
    driver.request_checkpoint("n", boundary=boundary(1), allow_inexact=True)
    located(driver, boundary(1), 5)
    assert phase(driver) is rows.CheckpointState.DRAINING


# -- giving way -------------------------------------------------------------------------------------------------------


def test_an_approaching_checkpoint_gives_way_to_a_person_and_is_opened_again_afterwards() -> None:
    driver = hourly()
    driver.request_checkpoint("run", boundary=boundary(1))
    first = open_checkpoint(driver)
    driver.request_checkpoint("person", purpose=rows.CheckpointPurpose.DRAIN)
    assert request_state(driver, "run") is rows.RequestState.QUEUED
    assert request_state(driver, "person") is rows.RequestState.OPEN
    assert happened(driver, events.CheckpointAborted)[0].reason == "it gave way to a drain"
    driver.complete()
    driver.publish()
    assert request_state(driver, "run") is rows.RequestState.OPEN
    assert open_checkpoint(driver) != first
    judge(driver)


# -- aborts -----------------------------------------------------------------------------------------------------------


def test_who_is_late_is_named_with_the_partitions_that_wait_for_it() -> None:
    driver = running(partitions=1, members=2)
    assert checkpoints.late(driver.region) == ()
    driver.request_checkpoint("n")
    assert checkpoints.late(driver.region) == ("g[0] (no partition)", "g[1] (t-0)")
    driver.contribute(driver.member(0))
    assert checkpoints.late(driver.region) == ("g[1] (t-0)",)


def test_an_abort_burns_the_sequence_and_the_region_goes_on() -> None:
    driver = running()
    driver.request_checkpoint("n")
    sequence = open_checkpoint(driver)
    region = checkpoints.abort(driver.region, driver.clock.now, "why not")
    assert sequence is not None
    row = region.checkpoints[sequence]
    assert (row.state, row.abort_reason) == (rows.CheckpointState.ABORTED, "why not")
    assert row.drain_deadline is None
    assert (region.state, region.open_checkpoint) == (rows.RegionState.RUNNING, None)
    assert region.next_sequence == sequence + 1
    assert region.requests[RequestId("n")].state is rows.RequestState.QUEUED


def test_without_an_open_checkpoint_there_is_nothing_to_abort() -> None:
    region = running().region
    assert checkpoints.abort(region, region.leases[next(iter(region.leases))].until, "") is region


def test_the_regions_own_checkpoints_and_a_stop_are_tried_again_by_themselves() -> None:
    driver = running()
    driver.handle(STOP)
    first = open_checkpoint(driver)
    driver.wait(181)
    checkpoint = checkpoint_of(driver)
    assert checkpoint.sequence != first
    assert (checkpoint.purpose, checkpoint.state) == (rows.CheckpointPurpose.STOP, rows.CheckpointState.DRAINING)


def test_the_checkpoint_of_a_reset_that_nobody_remembers_ends_its_request_only() -> None:
    driver = running()
    driver.reset(ToOffset(offset=Offset(0)), request_id="r")
    region = checkpoints.abort(replace(driver.region, person_resets={}), driver.clock.now, "why")
    assert region.requests[RequestId("r")].state is rows.RequestState.SUPERSEDED
    assert not [e for e in region.events if isinstance(e.body, events.PersonResetFailed)]


# -- lapsed leases ----------------------------------------------------------------------------------------------------


def test_a_lease_that_ends_before_its_contribution_is_found_and_after_it_is_not() -> None:
    driver = running()
    driver.request_checkpoint("n")
    driver.contribute(driver.member(0))
    over = driver.clock.now + timedelta(seconds=10)
    assert checkpoints.lapsed(driver.region, driver.clock.now) is None
    assert checkpoints.lapsed(driver.region, over) == driver.member(1)
    driver.contribute(driver.member(1))
    assert checkpoints.lapsed(driver.region, over) is None


def test_a_newer_incarnation_of_a_participant_is_not_the_one_that_was_counted_on() -> None:
    driver = running(partitions=1, members=1)
    driver.request_checkpoint("n")
    member = driver.member(0)
    newer = replace(driver.region.members[member], incarnation=Incarnation(2))
    lease = replace(driver.region.leases[member], incarnation=newer.incarnation)
    region = replace(driver.region, members={member: newer}, leases={member: lease})
    assert checkpoints.lapsed(region, driver.clock.now) == member


def test_whether_an_abort_is_a_reset_depends_on_whether_a_batch_of_the_member_runs() -> None:
    driver = running()
    member = driver.member(0)
    driver.process(member)
    assert not checkpoints.leaves_work(driver.region, member)
    batch = driver.start_batch(member)
    assert checkpoints.leaves_work(driver.region, member)
    assert not checkpoints.leaves_work(driver.region, driver.member(1))
    driver.finish_batch(batch)
    assert not checkpoints.leaves_work(driver.region, member)


def test_and_where_its_sinks_hold_output_on_what_it_has_begun_since_the_restore_point() -> None:
    rules = RegionRules(groups={GROUP: replace(group_rules(members=2), holds_output=True)})
    driver = started(Driver(partitions=4, rules=rules))
    member = driver.member(0)
    assert not checkpoints.leaves_work(driver.region, member)
    driver.process(member)
    assert checkpoints.leaves_work(driver.region, member)
    driver.checkpoint("n")
    assert not checkpoints.leaves_work(driver.region, member)
