from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_kcr.errors import BatchRefused
from airflow_kcr.protocol.offsets import OffsetMap, SeekEntry, SeekMap, SeekSource, from_offsets
from airflow_kcr.protocol.region import events, resets, rows
from airflow_kcr.protocol.region.state import NO_SEEK, Region
from airflow_kcr.protocol.rules import Delivery
from airflow_kcr.protocol.targets import ToDatetime, ToOffset
from airflow_kcr.protocol.values import DesiredState, Epoch, MemberId, Offset, RequestId
from tests.support.driver import BEGINNING, PAUSE, START, Driver
from tests.support.judging import causes, happened, judge, open_checkpoint, positions, reset_of, state
from tests.support.scripts import checkpoints_of_ten, running, started


def fail(driver: Driver, member: MemberId | None = None, cause: rows.ResetCause = rows.ResetCause.BATCH_FAILED) -> None:
    """Let a member ask for a reset."""
    driver.request_reset(member or driver.member(0), cause, "it broke")


def opening(driver: Driver, offset: int) -> SeekMap:
    places = OffsetMap(dict.fromkeys(driver.region.claims, Offset(offset)))
    return from_offsets(places, SeekSource.EXPLICIT)


def begun(driver: Driver, cause: rows.ResetCause = rows.ResetCause.CLAIM, *, at: int | None = None) -> Region:
    """Return the region after the start of a reset, not stored."""
    region, now = driver.region, driver.clock.now
    if at is None:
        return resets.begin(region, now, cause, "why")
    return resets.open_timeline(region, now, cause, opening(driver, at), "why")


def person(driver: Driver, request_id: str) -> rows.PersonResetState:
    return driver.region.person_resets[RequestId(request_id)].state


# -- the start --------------------------------------------------------------------------------------------------------


def test_a_begin_is_a_new_epoch_and_a_burnt_sequence_with_its_cause() -> None:
    driver = running()
    before = driver.region
    region = begun(driver)
    assert (region.epoch, region.next_sequence) == (before.epoch + 1, before.next_sequence + 1)
    row = region.resets[region.epoch]
    assert (row.cause, row.detail, row.attempt) == (rows.ResetCause.CLAIM, "why", 1)
    assert (row.sequence, row.restore_point) == (before.next_sequence, before.restore_sequence)
    assert region.state is rows.RegionState.RESETTING


def test_every_partition_goes_to_its_seek_entry_and_what_lies_beyond_is_undone() -> None:
    driver = running()
    driver.process()
    fail(driver)
    assert positions(driver) == [0, 0, 0, 0]
    assert {c.is_started for c in driver.region.claims.values()} == {False}
    assert {b.outcome for b in driver.batches} == {rows.Outcome.UNDONE}


def test_a_seek_map_of_its_own_opens_a_timeline_is_its_restore_point_and_undoes_what_lies_beyond() -> None:
    driver = running()
    checkpoints = checkpoints_of_ten(driver, 2)
    region = begun(driver, at=10)
    row = region.resets[region.epoch]
    assert (region.timeline, region.restore_sequence, region.restore_epoch) == (2, row.sequence, region.epoch)
    assert region.checkpoints[checkpoints[1]].undone_by == 2
    assert happened(driver, events.ResetBegun)[-1].undoes == ()


def test_skipped_records_are_stepped_over_where_a_partition_resumes() -> None:
    driver = running(partitions=1, members=1)
    partition = driver.partition(0)
    region = replace(driver.region, skips={partition: (Offset(0), Offset(1))})
    region = resets.begin(region, driver.clock.now, rows.ResetCause.CLAIM)
    assert (region.claims[partition].resume, region.claims[partition].position) == (2, 2)
    assert region.seek[partition].offset == 0


# -- attempts ---------------------------------------------------------------------------------------------------------


def test_a_further_attempt_has_its_own_epoch_and_the_same_target() -> None:
    driver = running()
    checkpoints_of_ten(driver, 1)
    fail(driver)
    fail(driver)
    first, second = driver.region.resets[Epoch(2)], driver.region.resets[Epoch(3)]
    assert (first.state, second.state, second.attempt) == (rows.ResetState.SUPERSEDED, rows.ResetState.RUNNING, 2)
    assert driver.region.seek_maps[Epoch(2)].offsets == driver.region.seek_maps[Epoch(3)].offsets


def test_a_further_attempt_still_carries_out_the_persons_request() -> None:
    driver = running()
    driver.process()
    driver.reset(ToOffset(offset=Offset(4)), request_id="r")
    driver.complete()
    fail(driver)
    reset = reset_of(driver)
    assert (reset.person, reset.attempt) == ("r", 2)
    driver.finish_reset()
    assert person(driver, "r") is rows.PersonResetState.DONE
    assert positions(driver) == [4, 4, 4, 4]
    judge(driver)


def test_another_timeline_gives_the_persons_request_up() -> None:
    driver = running()
    driver.reset(ToOffset(offset=Offset(4)), request_id="r")
    driver.complete()
    region = begun(driver, rows.ResetCause.OUT_OF_RANGE, at=7)
    row = region.person_resets[RequestId("r")]
    assert row.state is rows.PersonResetState.FAILED
    assert "another reset (out_of_range) opened a timeline" in row.failure
    assert region.resets[region.epoch].person is None
    assert region.resets[region.epoch].attempt == 1


def test_there_is_nothing_to_give_up_where_no_reset_runs_or_nobody_asked_for_it() -> None:
    driver = running()
    region = driver.region
    assert resets.give_up(region, driver.clock.now, "why") is region
    fail(driver)
    given_up = resets.give_up(driver.region, driver.clock.now, "why")
    assert given_up.resets[given_up.epoch].state is rows.ResetState.SUPERSEDED
    assert not given_up.events


def test_attempts_expire_and_count_as_failures_and_say_what_was_missing() -> None:
    driver = running()
    fail(driver)
    driver.wait(301)
    assert driver.region.epoch == 3
    reset = reset_of(driver)
    assert (reset.cause, reset.attempt) == (rows.ResetCause.ATTEMPT_EXPIRED, 2)
    assert "g[0] has not acknowledged epoch 2" in reset.detail
    assert driver.region.failures == 2


def test_an_attempt_has_no_deadline_while_members_with_leases_can_not_cover_the_partitions() -> None:
    driver = running()
    driver.process()
    driver.crash(driver.member(1))
    fail(driver)
    assert state(driver) is rows.RegionState.RESETTING
    driver.wait(30)
    assert (state(driver), reset_of(driver).deadline) == (rows.RegionState.STARTING, None)
    driver.wait(3600)
    assert driver.region.epoch == 2
    driver.join(driver.member(1))
    again = reset_of(driver)
    assert (state(driver), again.attempt) == (rows.RegionState.RESETTING, 1)
    assert again.deadline == driver.clock.now + driver.region.rules.timeouts.reset
    judge(driver)


def test_a_region_without_a_reset_makes_no_progress_with_one() -> None:
    driver = running()
    region = driver.region
    assert resets.progress(region, driver.clock.now) is region


def test_an_entry_once_written_never_changes() -> None:
    driver = running()
    fail(driver)
    region = driver.region
    late = SeekMap({driver.partition(0): SeekEntry(offset=Offset(99), source=SeekSource.EXPLICIT)})
    assert resets.write_seek(region, driver.clock.now, late) is region


# -- open entries -----------------------------------------------------------------------------------------------------


def test_the_restore_point_learns_an_entry_too_so_that_later_resets_go_there_as_well() -> None:
    driver = started(Driver(partitions=1, members=1))
    driver.process()
    driver.reset(ToDatetime(instant=BEGINNING))
    driver.complete()
    assert driver.region.seek.open == (driver.partition(0),)
    fail(driver)
    driver.claim(driver.member(0))
    driver.answer(driver.member(0))
    region = driver.region
    assert region.restore_epoch is not None
    assert region.restore_epoch < region.epoch
    assert list(region.seek.offsets.values()) == [0]
    assert region.seek_maps[region.restore_epoch].offsets == region.seek.offsets
    driver.finish_reset()
    judge(driver)


def test_a_timeline_whose_entries_are_found_later_undoes_checkpoints_then() -> None:
    driver = started(Driver(partitions=1, members=1))
    checkpoint = checkpoints_of_ten(driver, 1)[0]
    driver.reset(ToDatetime(instant=BEGINNING))
    drained = driver.complete()
    driver.publish()
    assert driver.region.checkpoints[checkpoint].undone_by is None
    driver.finish_reset()
    assert driver.region.checkpoints[checkpoint].undone_by == driver.region.checkpoints[drained].undone_by == 2


# -- the end ----------------------------------------------------------------------------------------------------------


def test_a_reset_ends_in_the_desired_state() -> None:
    driver = running()
    driver.handle(PAUSE)
    fail(driver)
    driver.finish_reset()
    assert (state(driver), driver.region.desired_state) == (rows.RegionState.RUNNING, DesiredState.PAUSED)
    with pytest.raises(BatchRefused, match="desired state paused"):
        driver.start_batch(driver.member(0))
    done = driver.region.resets[Epoch(2)]
    assert (done.state, done.done_at, done.deadline) == (rows.ResetState.DONE, driver.clock.now, None)


def test_not_even_where_a_second_attempt_in_the_new_timeline_asks_the_sink() -> None:
    driver = started(Driver(partitions=1, members=1, delivery=Delivery.EXACTLY_ONCE))
    batch = driver.start_batch(driver.member(0))
    driver.discard(batch)
    driver.reset(ToOffset(offset=Offset(20)), forced=True)
    driver.claim(driver.member(0))
    driver.answer(driver.member(0))
    fail(driver)
    assert driver.region.seek[driver.partition(0)].source is SeekSource.SINK_PROGRESS
    driver.finish_reset()
    assert positions(driver) == [0]
    assert driver.row(batch).outcome is rows.Outcome.DISCARDED


# -- failures and halts -----------------------------------------------------------------------------------------------


def test_a_failure_without_a_word_is_named_by_its_cause() -> None:
    driver = running()
    region = replace(driver.region, failures=99)
    halted = resets.demand(region, driver.clock.now, rows.ResetCause.BATCH_TIMEOUT, "")
    assert halted.halt is not None
    assert "because: batch_timeout" in halted.halt.text


def test_a_halt_gives_up_the_open_checkpoint_the_running_reset_and_its_person() -> None:
    driver = running()
    driver.request_checkpoint("n")
    halt = rows.Halt(reason=rows.HaltReason.FOREIGN_CONSUMER, text="a stranger", choices=("go",))
    region = resets.halt(driver.region, driver.clock.now, halt)
    assert (region.state, region.halt, region.open_checkpoint) == (rows.RegionState.HALTED, halt, None)
    driver.complete()
    driver.publish()
    driver.reset(ToOffset(offset=Offset(0)), request_id="r")
    driver.complete()
    region = resets.halt(driver.region, driver.clock.now, halt)
    assert region.resets[region.epoch].state is rows.ResetState.SUPERSEDED
    assert region.person_resets[RequestId("r")].state is rows.PersonResetState.FAILED
    assert "a resume goes to the restore point" in region.person_resets[RequestId("r")].failure


# -- a stopped region -------------------------------------------------------------------------------------------------


def test_a_commit_that_is_settled_stays_as_it_is() -> None:
    driver = running()
    checkpoints_of_ten(driver, 1)
    region = driver.region
    assert resets.resolve_commit(region, driver.clock.now, rows.Committed.NO, "why") is region
    fresh = Driver().region
    assert resets.resolve_commit(fresh, BEGINNING, rows.Committed.NO, "why") is fresh


def test_a_reset_of_a_region_without_partitions_waits_for_the_first() -> None:
    driver = Driver(partitions=0, members=1)
    driver.handle(START)
    driver.join(driver.member(0))
    assert driver.region.seek == NO_SEEK
    driver.claim(driver.member(0), [])
    driver.acknowledge(driver.member(0))
    assert state(driver) is rows.RegionState.STARTING
    driver.grow(driver.partition(0), end=10)
    driver.claim(driver.member(0), [driver.partition(0)])
    driver.acknowledge(driver.member(0))
    assert state(driver) is rows.RegionState.RUNNING
    assert open_checkpoint(driver) is None
    assert causes(driver) == ["start"]
