from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_kcr.errors import RegionExists, RegionInState
from airflow_kcr.protocol.observations import ForeignConsumer
from airflow_kcr.protocol.region import commands, events, lifecycle, restored, rows
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.values import (
    CheckpointNumber,
    DesiredState,
    Epoch,
    EventNumber,
    Incarnation,
    RequestId,
    Timeline,
)
from tests.support.driver import GROUP, PAUSE, START, STOP, Driver
from tests.support.judging import causes, checkpoint_of, halt_of, happened, judge, positions, state, stops
from tests.support.scripts import all_crash, boundary, checkpoints_of_ten, running

SOMEBODY = rows.Requester(who="somebody")


def failing(driver: Driver) -> None:
    caller = driver.caller(driver.member(0))
    driver.handle(commands.RequestReset(caller=caller, cause=rows.ResetCause.BATCH_FAILED, detail="it broke"))


def drained(driver: Driver) -> CheckpointNumber:
    """Complete, publish and commit the open checkpoint."""
    sequence = driver.complete()
    driver.publish()
    for member in sorted(driver.processes):
        if state(driver) is not rows.RegionState.STOPPED:
            driver.read_back(member)
    return sequence


# -- declare and start ------------------------------------------------------------------------------------------------


def test_a_declared_region_is_stopped_and_says_what_it_delivers() -> None:
    driver = Driver()
    assert (state(driver), driver.region.desired_state, driver.region.epoch) == (
        rows.RegionState.STOPPED,
        DesiredState.STOPPED,
        0,
    )
    created = events.RegionCreated(region_id=driver.region.region_id, deliveries={"g": "at_least_once"})
    assert happened(driver, events.RegionCreated) == [created]
    with pytest.raises(RegionExists):
        driver.handle(commands.DeclareRegion(spec=driver.region.spec))


def test_a_start_is_a_reset_of_that_cause_and_raises_the_epoch() -> None:
    driver = Driver()
    driver.handle(commands.ChangeDesiredState(desired_state=DesiredState.RUNNING, requester=SOMEBODY))
    assert causes(driver) == ["start"]
    assert (driver.region.epoch, driver.region.desired_state) == (1, DesiredState.RUNNING)
    assert happened(driver, events.DesiredStateChanged)[0].requester == SOMEBODY
    assert happened(driver, events.ResetBegun)[0].detail == "somebody"


# -- pause ------------------------------------------------------------------------------------------------------------


def test_what_is_stopped_or_stopping_is_not_paused() -> None:
    with pytest.raises(RegionInState, match="is stopped or stopping"):
        Driver().store.handle(Driver().name, PAUSE)
    driver = running()
    driver.handle(STOP)
    with pytest.raises(RegionInState, match="is stopped or stopping"):
        driver.handle(PAUSE)


# -- stop -------------------------------------------------------------------------------------------------------------


def test_a_stop_drains_publishes_and_commits_before_all_leave() -> None:
    driver = running()
    driver.process()
    driver.handle(commands.ChangeDesiredState(desired_state=DesiredState.STOPPED, requester=SOMEBODY))
    checkpoint = checkpoint_of(driver)
    assert (checkpoint.purpose, checkpoint.request_id) == (rows.CheckpointPurpose.STOP, "stop:1:1")
    drained(driver)
    assert state(driver) is rows.RegionState.STOPPED
    assert stops(driver) == ["drained"]
    assert driver.region.stopping is None
    driver.handle(START)
    driver.finish_reset()
    assert positions(driver) == [10, 10, 10, 10]
    judge(driver)


def test_a_stop_of_a_halted_region_is_done_at_once_and_undrained() -> None:
    driver = running()
    driver.find_stranger()
    driver.handle(STOP)
    assert state(driver) is rows.RegionState.STOPPED
    assert driver.region.halt is None
    assert stops(driver) == ["undrained"]


def test_a_resume_after_a_restore_opens_a_timeline_at_the_restore_point_that_the_store_has() -> None:
    driver = running()
    checkpoint = checkpoints_of_ten(driver, 1)[0]
    driver.process()
    driver.handle(memory(driver, epoch=5))
    driver.handle(START)
    assert driver.region.timeline == 2
    assert positions(driver) == [10, 10, 10, 10]
    assert driver.region.checkpoints[checkpoint].is_current
    reset = running()
    reset.handle(memory(reset, epoch=5))
    reset.store.handle(reset.name, START)
    assert reset.region.timeline == 2
    assert positions(reset) == [0, 0, 0, 0]


def test_a_stop_that_a_crash_came_between_is_asked_for_again_after_the_reset() -> None:
    driver = running()
    driver.process()
    driver.handle(STOP)
    failing(driver)
    driver.finish_reset()
    assert checkpoint_of(driver).purpose is rows.CheckpointPurpose.STOP
    assert (
        len([b for b in happened(driver, events.CheckpointRequested) if b.purpose is rows.CheckpointPurpose.STOP]) == 1
    )
    drained(driver)
    assert state(driver) is rows.RegionState.STOPPED
    judge(driver)


HALTS: dict[str, Callable[[Driver], commands.Command[object]]] = {
    "foreign consumer": lambda driver: commands.ReportGroups(seen={GROUP: (ForeignConsumer(group=GROUP),)}),
    "restored store": lambda driver: memory(driver, epoch=5),
    "later note": lambda driver: commands.ReportNoted(partition=driver.partition(0), noted=note(driver, epoch=5)),
}


@pytest.mark.parametrize("halts", HALTS)
@pytest.mark.parametrize("phase", ["asked", "complete", "published"])
def test_whatever_halts_a_region_halts_it_in_every_phase_of_a_stop_too(halts: str, phase: str) -> None:
    driver = running()
    driver.process()
    driver.handle(STOP)
    if phase != "asked":
        driver.complete()
    if phase == "published":
        driver.publish()
    driver.store.handle(driver.name, HALTS[halts](driver))
    assert state(driver) is rows.RegionState.HALTED
    driver.store.handle(driver.name, commands.Reconcile())
    assert state(driver) is rows.RegionState.HALTED
    driver.store.handle(driver.name, STOP)
    assert state(driver) is rows.RegionState.STOPPED
    assert stops(driver) == ["undrained"]


def test_a_stop_can_be_taken_back_before_its_checkpoint_and_after_it() -> None:
    driver = running()
    driver.request_checkpoint("first")
    driver.handle(STOP)
    driver.handle(START)
    assert [r.state for r in driver.region.requests.values() if r.purpose is rows.CheckpointPurpose.STOP] == [
        rows.RequestState.SUPERSEDED
    ]
    driver.complete()
    driver.publish()
    driver.handle(STOP)
    driver.complete()
    assert driver.handle(commands.ReadRegion(member=driver.member(0))).stopping
    driver.handle(START)
    assert (state(driver), driver.region.stopping) == (rows.RegionState.RUNNING, None)
    driver.process()
    assert causes(driver) == ["start"]
    judge(driver)


def test_a_stop_gives_up_the_running_reset_and_settles_the_commit() -> None:
    driver = running()
    driver.request_checkpoint("n")
    checkpoint = driver.complete()
    region = lifecycle.stopped(driver.region, driver.clock.now, drained=False)
    assert region.checkpoints[checkpoint].committed is rows.Committed.NO
    failing(driver)
    region = lifecycle.stopped(driver.region, driver.clock.now, drained=False)
    assert region.resets[region.epoch].state is rows.ResetState.SUPERSEDED


def test_a_stop_checkpoint_is_not_asked_for_where_nobody_wants_one() -> None:
    region, now = running().region, boundary(0)
    assert lifecycle.ask_stop_checkpoint(region, now) is region
    assert lifecycle.finish_stop(region, now) is region


# -- kill -------------------------------------------------------------------------------------------------------------


def test_a_kill_is_a_new_epoch_in_which_whatever_runs_is_void() -> None:
    driver = running()
    driver.process()
    batch = driver.start_batch(driver.member(0))
    driver.request_checkpoint("n")
    driver.handle(commands.KillRegion(requester=SOMEBODY))
    region = driver.region
    assert (state(driver), region.desired_state, region.epoch, region.open_checkpoint) == (
        rows.RegionState.STOPPED,
        DesiredState.STOPPED,
        2,
        None,
    )
    assert happened(driver, events.Killed) == [events.Killed(epoch=Epoch(2), requester=SOMEBODY)]
    assert region.requests[RequestId("n")].state is rows.RequestState.SUPERSEDED
    with pytest.raises(Exception, match="epoch"):
        driver.finish_batch(batch)


# -- delete -----------------------------------------------------------------------------------------------------------


def test_a_region_that_anybody_may_work_for_is_not_deleted() -> None:
    driver = running()
    with pytest.raises(RegionInState, match=r"is running; leases are held by g\[0\], g\[1\]; stop it"):
        driver.handle(commands.DeleteRegion())
    driver.handle(commands.KillRegion())
    with pytest.raises(RegionInState, match="leases are held"):
        driver.handle(commands.DeleteRegion())
    all_crash(driver)
    driver.handle(commands.DeleteRegion())
    assert driver.store.names() == ()


# -- a restored store -------------------------------------------------------------------------------------------------


def memory(driver: Driver, **later: int) -> commands.ReportLater:
    region = driver.region
    return commands.ReportLater(
        member=driver.member(0),
        epoch=Epoch(region.epoch + later.get("epoch", 0)),
        incarnation=Incarnation(region.members[driver.member(0)].incarnation + later.get("incarnation", 0)),
        sequence=CheckpointNumber(region.next_sequence - 1 + later.get("sequence", 0)),
        counter=EventNumber(region.counter + later.get("counter", 0)),
    )


def test_a_member_that_the_restored_store_never_knew_is_remembered_by_its_incarnation() -> None:
    driver = running()
    seen = replace(memory(driver), member=driver.member(1), incarnation=Incarnation(8))
    region = replace(driver.region, members={}, leases={})
    halted = restored.seen_later(region, driver.clock.now, seen)
    assert halted.members[driver.member(1)].incarnation == 8
    assert halted.members[driver.member(1)].left


def note(driver: Driver, **later: int) -> rows.Noted:
    region = driver.region
    return rows.Noted(
        member=driver.member(0),
        epoch=Epoch(region.epoch + later.get("epoch", 0)),
        sequence=CheckpointNumber(region.next_sequence - 1 + later.get("sequence", 0)),
        timeline=Timeline(region.timeline + later.get("timeline", 0)),
    )


NOBODY_S = [
    {"epoch": 2**63 - 1},
    {"sequence": 2**63 - 1},
    {"timeline": 2**63 - 1},
    {"epoch": 10**4000},
    {"sequence": 10**9 + 1},
]


@pytest.mark.parametrize("later", [*NOBODY_S, {"epoch": 5, "sequence": 5}, {"timeline": 10**9}], ids=str)
def test_what_kafka_s_metadata_says_halts_the_region_and_raises_none_of_its_numbers(later: dict[str, int]) -> None:
    driver = running()
    before = driver.region
    driver.handle(commands.ReportNoted(partition=driver.partition(0), noted=note(driver, **later)))
    region = driver.region
    assert region.halt is not None
    assert (state(driver), region.halt.reason) == (rows.RegionState.HALTED, rows.HaltReason.RESTORED)
    assert (region.epoch, region.next_sequence, region.timeline) == (
        before.epoch,
        before.next_sequence,
        before.timeline,
    )
    assert all(what in region.halt.text for what in later)
    assert f"{driver.partition(0)}, read by {driver.member(0)}" in region.halt.text
    assert len(region.halt.text) < 400


@pytest.mark.parametrize("later", NOBODY_S, ids=str)
@pytest.mark.parametrize("verb", [START, commands.KillRegion(), STOP], ids=["start", "kill", "stop"])
def test_what_no_region_gets_to_is_never_taken_over(later: dict[str, int], verb: commands.Command[Region]) -> None:
    driver = running()
    before = driver.region
    driver.handle(commands.ReportNoted(partition=driver.partition(0), noted=note(driver, **later)))
    assert "another client has written this" in halt_of(driver).text
    driver.handle(verb)
    region = driver.region
    assert region.epoch <= before.epoch + 1
    assert region.next_sequence <= before.next_sequence + 1
    assert region.timeline <= before.timeline + 1
    driver.handle(START)
    driver.handle(commands.KillRegion())


@pytest.mark.parametrize("verb", [START, commands.KillRegion(), STOP], ids=["start", "kill", "stop"])
def test_what_the_region_can_have_reached_is_taken_over_when_a_person_ends_the_halt(
    verb: commands.Command[Region],
) -> None:
    driver = running()
    before = driver.region
    driver.handle(
        commands.ReportNoted(partition=driver.partition(0), noted=note(driver, epoch=5, sequence=7, timeline=3))
    )
    # Another member has read a later one.
    driver.handle(commands.ReportNoted(partition=driver.partition(0), noted=note(driver, epoch=6, sequence=6)))
    assert "the store was restored from an older state, or another client" in halt_of(driver).text
    driver.handle(verb)
    region = driver.region
    assert region.epoch >= before.epoch + 6
    assert region.next_sequence >= before.next_sequence + 7
    assert region.timeline >= before.timeline + 3
    assert [one.detail.partition(":")[0] for one in happened(driver, events.StoreRestoredSeen)][-1] == "taken over"


@pytest.mark.parametrize("later", [{}, {"epoch": -1}], ids=str)
def test_a_note_of_nothing_later_halts_nothing(later: dict[str, int]) -> None:
    driver = running()
    region = driver.region
    report = commands.ReportNoted(partition=driver.partition(0), noted=note(driver, **later))
    assert restored.noted_later(region, driver.clock.now, report) is region


def test_a_note_that_is_told_late_leaves_a_stopped_region_stopped() -> None:
    driver = running()
    noted = note(driver, sequence=3)
    driver.handle(commands.KillRegion())
    driver.handle(commands.ReportNoted(partition=driver.partition(0), noted=noted))
    assert (state(driver), driver.region.halt) == (rows.RegionState.STOPPED, None)


@pytest.mark.parametrize("verb", [commands.KillRegion(), STOP], ids=["kill", "stop"])
def test_a_region_that_is_stopped_after_a_restore_starts_in_a_timeline_that_no_sink_knows(
    verb: commands.Command[Region],
) -> None:
    driver = running()
    driver.process()
    driver.checkpoint("a")
    seen = note(driver, epoch=1, sequence=2, timeline=1)
    driver.handle(commands.ReportNoted(partition=driver.partition(0), noted=seen))
    driver.handle(verb)
    driver.handle(START)
    region = driver.region
    assert region.timeline > seen.timeline + 1  # that of its stop, too
    assert (region.restore_epoch, region.resets[region.epoch].timeline) == (region.epoch, region.timeline)
