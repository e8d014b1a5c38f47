from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_kcr.errors import InvalidTarget, RegionInState, ResetInProgress, UnknownCheckpoint
from airflow_kcr.protocol import targets
from airflow_kcr.protocol.offsets import OffsetMap, SeekEntry, SeekMap, SeekSource, from_offsets
from airflow_kcr.protocol.region import events, person_resets, rows
from airflow_kcr.protocol.region.commands import KillRegion
from airflow_kcr.protocol.scopes import parse_scope
from airflow_kcr.protocol.values import CheckpointNumber, Epoch, GroupPartition, Offset, RequestId
from tests.support.driver import BEGINNING, START, STOP, Driver
from tests.support.judging import causes, checkpoint_of, happened, judge, open_checkpoint, positions, reset_of, state
from tests.support.scripts import all_crash, checkpoints_of_ten, running, started

TO_START = targets.ToOffset(offset=Offset(0))


def stands(driver: Driver, request_id: str = "r") -> rows.PersonResetState:
    return driver.region.person_resets[RequestId(request_id)].state


def failure(driver: Driver, request_id: str = "r") -> str:
    return driver.region.person_resets[RequestId(request_id)].failure


def fail(driver: Driver) -> None:
    driver.request_reset(driver.member(0), rows.ResetCause.BATCH_FAILED, "it broke")


def halted() -> Driver:
    driver = running()
    driver.process()
    driver.find_stranger()
    return driver


# -- accepted or refused ----------------------------------------------------------------------------------------------


def test_an_applied_reset_is_stored_with_who_asked_and_drains_to_a_checkpoint_first() -> None:
    driver = running()
    driver.process()
    row = driver.reset(TO_START, request_id="r")
    assert (row.state, row.requester.who) == (rows.PersonResetState.DRAINING, "somebody")
    checkpoint = checkpoint_of(driver)
    assert (checkpoint.purpose, checkpoint.request_id) == (rows.CheckpointPurpose.RESET, "r")
    accepted = happened(driver, events.PersonResetAccepted)[0]
    assert (accepted.target, accepted.forced) == ("to-offset 0", False)


def test_a_known_request_id_changes_nothing() -> None:
    driver = running()
    driver.reset(TO_START, request_id="r")
    counter = driver.region.counter
    driver.reset(targets.ToCurrent(), request_id="r", epoch=Epoch(0))
    assert driver.region.counter == counter


def test_a_target_that_can_not_be_used_is_refused_before_anything_is_stored() -> None:
    driver = running()
    counter = driver.region.counter
    with pytest.raises(UnknownCheckpoint, match="has no checkpoint 99"):
        driver.reset(targets.ToCheckpoint(sequence=CheckpointNumber(99)))
    with pytest.raises(InvalidTarget, match="topic u"):
        driver.reset(TO_START, scope=parse_scope(topics=["u"]))
    with pytest.raises(InvalidTarget, match="in the future"):
        driver.reset(targets.ToDatetime(instant=driver.clock.now + timedelta(days=1)))
    assert driver.region.counter == counter


def test_a_region_that_can_not_drain_needs_to_be_forced() -> None:
    driver = halted()
    with pytest.raises(RegionInState, match="is halted and can't drain; a forced reset"):
        driver.reset(TO_START)
    starting = Driver()
    starting.handle(START)
    starting.join(starting.member(0))
    starting.claim(starting.member(0), list(starting.logs))
    starting.crash(starting.member(0))
    starting.wait(30)
    assert state(starting) is rows.RegionState.STARTING
    with pytest.raises(RegionInState, match=r"is starting and can't drain.*It waits: .*g:t-0"):
        starting.reset(TO_START)
    starting.fail_to_start(starting.member(0), refusal="no module named x")
    with pytest.raises(RegionInState, match=r"It waits: .*no module named x; .*apply a corrected spec"):
        starting.reset(TO_START)


# -- online -----------------------------------------------------------------------------------------------------------


def test_the_drained_map_with_the_scope_replaced_is_the_restore_point_of_a_new_timeline() -> None:
    driver = running()
    checkpoints = checkpoints_of_ten(driver, 2)
    driver.process()
    driver.reset(targets.ToCheckpoint(sequence=checkpoints[0]), request_id="r", scope=parse_scope(topics=["t:0,3"]))
    drained = driver.complete()
    region = driver.region
    assert positions(driver) == [10, 30, 30, 10]
    sources = [region.seek[p].source for p in sorted(region.seek)]
    assert sources == [SeekSource.MERGED, SeekSource.DRAINED, SeekSource.DRAINED, SeekSource.MERGED]
    assert {e.current for e in region.seek.values()} == {30}
    reset = region.reset
    assert reset is not None
    assert (region.timeline, region.restore_sequence, reset.person) == (2, reset.sequence, "r")
    assert region.archive.undone({reset.timeline}) == {reset.timeline: (checkpoints[1], drained)}
    driver.finish_reset()
    assert stands(driver) is rows.PersonResetState.DONE
    judge(driver)


COMPUTED = [
    pytest.param(targets.ToOffset(offset=Offset(50)), 50, id="to-offset"),
    pytest.param(targets.ToLatest(), 1_000, id="to-latest"),
    pytest.param(targets.ToEarliest(), 0, id="to-earliest"),
    pytest.param(targets.ShiftBy(by=-5), 5, id="shift-by"),
]


def found_later(driver: Driver) -> GroupPartition:
    """Let a member find a partition that has records."""
    added = driver.partition(len(driver.logs))
    driver.grow(added, end=1_000)
    last = driver.member(1)
    driver.claim(last, [*driver.processes[last].assigned, added])
    return added


def accepted_while_a_checkpoint_drains(target: targets.Target) -> Driver:
    """Return a region that drains a checkpoint of its own, with a reset accepted whose checkpoint comes after it."""
    driver = running()
    driver.process()
    driver.request_checkpoint("n1")
    driver.reset(target, request_id="r")
    assert checkpoint_of(driver).request_id == "n1"
    return driver


@pytest.mark.parametrize(("target", "place"), COMPUTED)
def test_a_partition_that_is_found_before_its_drain_keeps_its_position(target: targets.Target, place: int) -> None:
    driver = accepted_while_a_checkpoint_drains(target)
    added = found_later(driver)
    driver.complete()
    entry = driver.region.seek[added]
    assert (entry.offset, entry.current, entry.source) == (0, 0, SeekSource.DRAINED)
    assert positions(driver)[:4] == [place] * 4
    driver.finish_reset()
    assert stands(driver) is rows.PersonResetState.DONE
    judge(driver)


def test_so_it_does_where_its_owner_would_look_the_place_up() -> None:
    driver = accepted_while_a_checkpoint_drains(targets.ToDatetime(instant=BEGINNING))
    added = found_later(driver)
    driver.complete()
    assert driver.region.seek[added].source is SeekSource.DRAINED
    assert driver.region.seek.open == tuple(driver.partition(n) for n in range(4))


def test_so_it_does_while_the_request_waits_for_another_reset() -> None:
    driver = running()
    driver.process()
    driver.reset(TO_START, request_id="first")
    driver.reset(targets.ToOffset(offset=Offset(50)), request_id="second")
    driver.complete()
    added = found_later(driver)
    driver.finish_reset()
    assert stands(driver, "second") is rows.PersonResetState.DRAINING
    driver.complete()
    assert (driver.region.seek[added].offset, positions(driver)[:4]) == (0, [50] * 4)


def test_a_forced_reset_moves_what_its_plan_has_shown() -> None:
    driver = running()
    driver.process()
    planned = from_offsets({driver.partition(n): Offset(50) for n in range(4)}, SeekSource.EXPLICIT)
    added = found_later(driver)
    driver.reset(targets.ToOffset(offset=Offset(50)), request_id="r", forced=True, resolved=planned)
    assert driver.region.person_resets[RequestId("r")].scope.planned == frozenset(planned)
    entry = driver.region.seek[added]
    assert (entry.offset, entry.source) == (0, SeekSource.DRAINED)
    assert driver.region.seek.open == tuple(planned)
    driver.finish_reset()
    judge(driver)


def test_a_checkpoint_takes_a_partition_that_is_found_later_to_its_beginning() -> None:
    driver = running()
    checkpoint = checkpoints_of_ten(driver, 1)[0]
    driver.request_checkpoint("other")
    driver.reset(targets.ToCheckpoint(sequence=checkpoint), request_id="r")
    added = found_later(driver)
    driver.complete()
    assert driver.region.person_resets[RequestId("r")].scope.planned is None
    assert (driver.region.seek[added].offset, driver.region.seek[added].source) == (0, SeekSource.INITIAL)
    driver.finish_reset()
    judge(driver)


def test_if_the_log_no_longer_has_the_target_the_request_fails_and_the_region_goes_on_from_its_checkpoint() -> None:
    driver = running()
    checkpoints = checkpoints_of_ten(driver, 1)
    driver.process()
    driver.reset(targets.ToCheckpoint(sequence=checkpoints[0]), request_id="r")
    for partition in driver.logs:
        driver.grow(partition, start=15, end=1_000)
    checkpoint = driver.complete()
    assert stands(driver) is rows.PersonResetState.FAILED
    assert "can't go there, the log has moved on" in failure(driver)
    assert (state(driver), driver.region.restore_sequence, driver.region.timeline) == (
        rows.RegionState.RUNNING,
        checkpoint,
        1,
    )
    driver.process()
    judge(driver)


def test_so_it_does_if_the_scope_means_nothing_any_more() -> None:
    driver = running()
    driver.process()
    driver.reset(TO_START, request_id="r")
    row = driver.region.person_resets[RequestId("r")]
    elsewhere = replace(row, scope=parse_scope(topics=["u"]))
    sequence = driver.region.open_checkpoint
    assert sequence is not None
    offsets = OffsetMap(dict.fromkeys(driver.logs, Offset(10)))
    region = replace(
        driver.region,
        person_resets={row.request_id: elsewhere},
        offsets={sequence: offsets},
        open_checkpoint=None,
    )
    region = person_resets.begin_at_checkpoint(region, driver.clock.now, region.checkpoints[sequence])
    assert region.state is rows.RegionState.RUNNING
    assert "topic u" in region.person_resets[row.request_id].failure


def test_a_stop_waits_for_the_drain_of_a_reset_and_begins_none() -> None:
    driver = running()
    driver.process()
    driver.reset(TO_START, request_id="r")
    driver.handle(STOP)
    driver.complete()
    assert (stands(driver), failure(driver)) == (rows.PersonResetState.FAILED, "the region was stopped")
    assert causes(driver) == ["start"]
    driver.publish()
    assert checkpoint_of(driver).purpose is rows.CheckpointPurpose.STOP
    judge(driver)


def test_a_stop_that_was_taken_back_before_the_drain_is_over_has_given_nothing_up() -> None:
    driver = running()
    driver.process()
    driver.reset(TO_START, request_id="r")
    driver.handle(STOP)
    driver.handle(START)
    driver.complete()
    assert stands(driver) is rows.PersonResetState.STARTED
    judge(driver)


def test_a_stop_gives_up_what_only_waits() -> None:
    driver = running()
    driver.process()
    driver.reset(TO_START, request_id="drains")
    driver.reset(TO_START, request_id="waits")
    driver.handle(STOP)
    assert (stands(driver, "waits"), failure(driver, "waits")) == (
        rows.PersonResetState.FAILED,
        "the region was stopped",
    )
    assert stands(driver, "drains") is rows.PersonResetState.DRAINING


def test_a_reset_fails_once_however_it_is_given_up() -> None:
    driver = running()
    driver.reset(TO_START, request_id="r")
    driver.handle(KillRegion())
    assert stands(driver) is rows.PersonResetState.FAILED
    assert len(happened(driver, events.PersonResetFailed)) == 1
    assert driver.region.requests[RequestId("r")].state is rows.RequestState.SUPERSEDED
    judge(driver)


# -- one after the other ----------------------------------------------------------------------------------------------


def test_while_another_reset_runs_the_request_waits_and_is_resolved_anew_when_its_turn_comes() -> None:
    driver = running()
    driver.process()
    fail(driver)
    driver.reset(targets.ShiftBy(by=-3), request_id="r")
    assert stands(driver) is rows.PersonResetState.WAITING
    driver.finish_reset()
    assert stands(driver) is rows.PersonResetState.DRAINING
    assert causes(driver) == ["start", "batch_failed"]
    driver.complete()
    assert positions(driver) == [0, 0, 0, 0]
    assert {e.clamped_from for e in driver.region.seek.values()} == {-3}


def test_persons_are_served_one_at_a_time_in_the_order_of_their_asking() -> None:
    driver = running()
    driver.process()
    for request_id in ("first", "second", "third"):
        driver.reset(TO_START, request_id=request_id)
    assert [r.request_id for r in person_resets.waiting(driver.region)] == ["second", "third"]
    driver.complete()
    assert stands(driver, "second") is rows.PersonResetState.WAITING
    driver.finish_reset()
    assert stands(driver, "first") is rows.PersonResetState.DONE
    assert stands(driver, "second") is rows.PersonResetState.DRAINING
    assert stands(driver, "third") is rows.PersonResetState.WAITING


def test_a_region_that_does_not_run_serves_nobody() -> None:
    driver = running()
    fail(driver)
    driver.reset(TO_START)
    region = driver.region
    assert person_resets.serve_next(region, driver.clock.now) is region


# -- forced -----------------------------------------------------------------------------------------------------------


def test_a_forced_reset_needs_no_checkpoint_and_goes_from_the_last_done_positions() -> None:
    driver = halted()
    driver.reset(targets.ShiftBy(by=-4), request_id="r", forced=True, scope=parse_scope(topics=["t:0"]))
    assert stands(driver) is rows.PersonResetState.STARTED
    assert open_checkpoint(driver) is None
    assert driver.region.seek[driver.partition(0)].offset is None
    assert driver.region.seek[driver.partition(1)].offset == 10
    for member in driver.all_members():
        driver.claim(member)
    assert driver.region.halt is None


def test_it_takes_the_place_of_whatever_waited() -> None:
    driver = running()
    driver.process()
    driver.reset(TO_START, request_id="drains")
    driver.reset(TO_START, request_id="waits")
    driver.reset(targets.ToInitial(), request_id="r", forced=True)
    for request_id in ("drains", "waits"):
        assert stands(driver, request_id) is rows.PersonResetState.FAILED
        assert failure(driver, request_id) == "a forced reset (r) took its place"
    assert len(happened(driver, events.PersonResetFailed)) == 2
    assert driver.region.requests[RequestId("drains")].state is rows.RequestState.SUPERSEDED
    driver.finish_reset()
    assert stands(driver) is rows.PersonResetState.DONE
    judge(driver)


def test_and_of_one_that_has_begun() -> None:
    driver = running()
    driver.process()
    driver.reset(TO_START, request_id="begun")
    driver.complete()
    driver.reset(targets.ToCurrent(), request_id="r", forced=True)
    assert stands(driver, "begun") is rows.PersonResetState.FAILED
    assert driver.region.timeline == 3


def test_it_gives_up_complete_checkpoints_beyond_its_target_whose_publication_may_be_what_is_stuck() -> None:
    driver = running()
    published = checkpoints_of_ten(driver, 1)[0]
    driver.process()
    driver.request_checkpoint("stuck")
    stuck = driver.complete()
    driver.reset(targets.ToCheckpoint(sequence=published), request_id="first", forced=True)
    assert reset_of(driver).must_publish == (stuck,)
    driver.reset(targets.ToCheckpoint(sequence=published), request_id="second", forced=True)
    assert driver.region.checkpoints[stuck].state is rows.CheckpointState.RETIRED
    assert happened(driver, events.CheckpointsRetired) == [events.CheckpointsRetired(sequences=(stuck,))]
    assert stuck not in driver.region.offsets
    driver.finish_reset()
    assert (state(driver), positions(driver)) == (rows.RegionState.RUNNING, [10, 10, 10, 10])
    judge(driver)


def test_a_region_that_is_stopped_is_not_forced() -> None:
    driver = running()
    checkpoints_of_ten(driver, 1)
    driver.handle(KillRegion())
    with pytest.raises(ResetInProgress, match="nothing has to be forced"):
        driver.reset(targets.ToCurrent(), forced=True)


# -- stopped ----------------------------------------------------------------------------------------------------------


def stopped() -> Driver:
    driver = running()
    checkpoints_of_ten(driver, 2)
    driver.handle(KillRegion())
    all_crash(driver)
    return driver


def test_in_a_stopped_region_the_caller_has_resolved_everything_and_the_next_start_goes_there() -> None:
    driver = stopped()
    seek = from_offsets(OffsetMap(dict.fromkeys(driver.logs, Offset(7))), SeekSource.EXPLICIT)
    row = driver.reset(targets.ToOffset(offset=Offset(7)), resolved=seek)
    assert (row.state, state(driver)) == (rows.PersonResetState.DONE, rows.RegionState.STOPPED)
    driver.handle(START)
    driver.recover()
    assert positions(driver) == [7, 7, 7, 7]
    judge(driver)


def test_a_partition_that_nobody_resolved_is_named() -> None:
    driver = stopped()
    with pytest.raises(RegionInState, match="missing: all of them"):
        driver.reset(TO_START)
    some = SeekMap({driver.partition(0): SeekEntry(offset=None, source=SeekSource.EXPLICIT)})
    with pytest.raises(RegionInState, match="missing: g:t-0"):
        driver.reset(TO_START, resolved=some)


# -- skipped records --------------------------------------------------------------------------------------------------


def test_a_skipped_record_is_stepped_over_from_the_begin_of_its_reset_on() -> None:
    driver = started(Driver(partitions=1, members=1))
    partition = driver.partition(0)
    driver.process()
    driver.reset(targets.ToCurrent(), skip={partition: Offset(10)})
    assert driver.region.skips == {}
    driver.complete()
    driver.finish_reset()
    assert driver.region.skips == {partition: (10,)}
    assert positions(driver) == [11]
    assert happened(driver, events.Skipped) == [events.Skipped(offsets=OffsetMap({partition: Offset(10)}))]
    driver.process()
    driver.checkpoint("n")
    driver.reset(targets.ToCurrent(), skip={partition: Offset(5)})
    driver.complete()
    assert driver.region.skips == {partition: (5, 10)}
    judge(driver)
