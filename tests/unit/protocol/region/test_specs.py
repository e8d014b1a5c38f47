from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_kcr.errors import LeaseExpired, SpecOutdated, UnknownMember
from airflow_kcr.protocol.region import commands, coverage, events, specs
from airflow_kcr.protocol.region.rows import RegionState, ResetCause, StartFailure
from airflow_kcr.protocol.region.state import Spec
from airflow_kcr.protocol.rules import CheckpointMode, CheckpointRules, Delivery, RegionRules
from airflow_kcr.protocol.values import DesiredState
from airflow_kcr.schedules import Every
from tests.support.driver import GROUP, PAUSE, START, STOP, Driver, group_rules
from tests.support.judging import causes, happened, judge, positions, state
from tests.support.scripts import HOUR, boundary, checkpoints_of_ten, running

HOURLY = CheckpointRules(schedule=Every(HOUR), mode=CheckpointMode.DAG_RUN)


def spec(rules: RegionRules, revision: int = 2) -> Spec:
    return Spec(text=f"revision {revision}", rules=rules, revision=revision)


def fewer_members() -> Spec:
    return spec(RegionRules(groups={GROUP: group_rules(members=1)}))


def change(driver: Driver, *, at_once: Spec | None = None, later: Spec | None = None) -> None:
    driver.handle(commands.ChangeSpec(at_once=at_once or driver.region.spec, later=later))


# -- at once ----------------------------------------------------------------------------------------------------------


def test_a_stopped_region_takes_the_whole_spec_at_once() -> None:
    driver = Driver()
    change(driver, later=fewer_members())
    assert driver.region.spec == fewer_members()
    assert driver.region.next_spec is None
    assert happened(driver, events.SpecChanged) == [
        events.SpecChanged(revision=2, deliveries={"g": Delivery.AT_LEAST_ONCE})
    ]


def test_what_may_change_while_members_run_is_in_force_at_once() -> None:
    driver = running()
    patient = replace(driver.region.rules, max_failures=50)
    change(driver, at_once=spec(patient))
    assert driver.region.rules.max_failures == 50
    assert state(driver) is RegionState.RUNNING
    driver.process()


def test_a_changed_schedule_sets_the_next_boundary_from_now_on() -> None:
    driver = running()
    change(driver, at_once=spec(replace(driver.region.rules, checkpoint=HOURLY)))
    assert driver.region.next_boundary == boundary(1)
    change(driver, at_once=spec(replace(driver.region.rules, checkpoint=CheckpointRules()), revision=3))
    assert driver.region.next_boundary is None


def test_other_rules_of_a_checkpoint_leave_the_next_boundary_alone() -> None:
    driver = running()
    change(driver, at_once=spec(replace(driver.region.rules, checkpoint=HOURLY)))
    driver.wait(90 * 60)
    change(driver, at_once=spec(replace(driver.region.rules, checkpoint=replace(HOURLY, catchup=True)), revision=3))
    assert driver.region.next_boundary == boundary(1)


def test_a_region_that_never_ran_gets_its_boundary_when_it_starts() -> None:
    driver = Driver()
    change(driver, at_once=spec(replace(driver.region.rules, checkpoint=HOURLY)))
    assert driver.region.next_boundary is None
    driver.up()
    assert driver.region.next_boundary == boundary(1)


# -- at the next checkpoint
# --------------------------------------------------------------------------------------------------


def test_what_changes_the_members_waits_for_the_next_checkpoint_and_restarts_them_there() -> None:
    driver = running()
    driver.process()
    change(driver, later=fewer_members())
    assert driver.region.rules.groups[GROUP].members == 2
    driver.process()
    driver.request_checkpoint("n")
    checkpoint = driver.complete()
    region = driver.region
    assert region.rules.groups[GROUP].members == 1
    assert region.reset is not None
    assert (region.reset.cause, region.restore_sequence, region.timeline) == (ResetCause.SPEC_CHANGED, checkpoint, 1)
    assert positions(driver) == [20, 20, 20, 20]
    judge(driver)


def test_who_was_built_from_the_old_spec_can_do_nothing_any_more_and_comes_back_built_from_the_new_one() -> None:
    driver = running()
    built_from = driver.region.spec
    driver.process()
    change(driver, later=spec(driver.region.rules))
    driver.request_checkpoint("n")
    driver.complete()
    assert state(driver) is RegionState.STARTING
    for member in driver.all_members():
        with pytest.raises(LeaseExpired):
            driver.claim(member)
        with pytest.raises(SpecOutdated, match="than revision 2, which is in force; build it again"):
            driver.join(member, built_from=built_from)
        driver.join(member, built_from=driver.region.spec)
    driver.spread()
    driver.finish_reset()
    assert state(driver) is RegionState.RUNNING
    driver.process()
    assert causes(driver) == ["start", "spec_changed"]
    judge(driver)


def test_who_was_built_from_another_spec_of_the_same_revision_is_refused() -> None:
    """A store that was restored gives revisions away a second time."""
    driver = running()
    lost = replace(driver.region.spec, text="of the lost history")
    with pytest.raises(SpecOutdated, match=r"was built from another spec .* build it again"):
        driver.join(driver.member(0), takeover=True, built_from=lost)
    with pytest.raises(SpecOutdated):
        driver.join(driver.member(0), takeover=True, built_from=replace(lost, revision=lost.revision + 1))


@pytest.mark.parametrize("back", [1, 60])
def test_a_clock_that_goes_back_does_not_bring_them_back_to_life(back: float) -> None:
    driver = running()
    driver.process()
    change(driver, later=spec(driver.region.rules))
    driver.request_checkpoint("n")
    driver.complete()
    driver.clock.advance(-back)
    driver.heartbeat()
    assert driver.region.live_members(driver.clock.now) == ()
    for member in driver.all_members():
        with pytest.raises(LeaseExpired):
            driver.claim(member)
    judge(driver)


def test_a_batch_of_one_that_died_just_before_keeps_its_time() -> None:
    driver = running()
    batch = driver.start_batch(driver.member(1))
    for member in driver.all_members():
        driver.vanish(member)
    driver.clock.advance(driver.region.rules.timeouts.lease.total_seconds() + 1)
    until = driver.region.members[driver.member(1)].quiesced_after(driver.region.leases[driver.member(1)].until)
    change(driver, later=spec(driver.region.rules))
    region = driver.region
    assert region.spec.revision == 2
    assert not coverage.is_batch_quiesced(region, region.running[batch], driver.clock.now)
    assert coverage.is_batch_quiesced(region, region.running[batch], until)
    judge(driver)


def test_a_change_that_was_taken_back_before_the_checkpoint_restarts_nobody() -> None:
    driver = running()
    change(driver, later=fewer_members())
    change(driver)
    driver.checkpoint("n")
    assert causes(driver) == ["start"]


def test_members_that_the_new_spec_has_no_place_for_are_fenced_and_nobody_waits_for_them() -> None:
    driver = running()
    change(driver, later=fewer_members())
    driver.request_checkpoint("n")
    driver.complete()
    stranger = driver.member(1)
    region = driver.region
    assert region.members[stranger].left
    assert {c.last_owner for c in region.claims.values() if c.owner is None} == {stranger}
    with pytest.raises(LeaseExpired):
        driver.claim(stranger)
    with pytest.raises(UnknownMember):
        driver.join(stranger)
    del driver.processes[stranger]
    driver.join(driver.member(0))
    driver.spread()
    driver.finish_reset()
    assert state(driver) is RegionState.RUNNING
    driver.process()
    judge(driver)


def test_so_are_the_members_of_a_group_that_is_gone() -> None:
    driver = running()
    other = spec(RegionRules(groups={group_rules("h").group_id: group_rules("h")}))
    stopped = replace(driver.region, state=RegionState.STOPPED)
    region = specs.change(stopped, driver.clock.now, commands.ChangeSpec(at_once=other))
    assert all(m.left for m in region.members.values())
    assert all(c.owner is None for c in region.claims.values())


def test_a_member_that_has_left_already_is_not_counted_out_again() -> None:
    driver = running()
    driver.leave(driver.member(1))
    region = replace(driver.region, state=RegionState.STOPPED)
    changed = specs.change(region, driver.clock.now, commands.ChangeSpec(at_once=fewer_members()))
    assert changed.members == region.members


# -- members that can't start ----------------------------------------------------------------------------------------


def test_who_can_not_start_with_the_spec_in_force_is_remembered_until_it_lives() -> None:
    driver = running()
    one, other = driver.all_members()
    driver.leave(one)
    for _ in range(3):
        driver.fail_to_start(one, refusal="there is no module 'nowhere'")
        driver.fail_to_start(other, refusal="a second process of one that lives")
    found = specs.start_failures(driver.region, driver.clock.now)
    assert [(c.member, c.refusal) for c in found] == [(one, "there is no module 'nowhere'")]
    assert len(happened(driver, events.StartFailed)) == 1
    driver.join(one)
    assert specs.start_failures(driver.region, driver.clock.now) == ()
    driver.leave(one)
    assert specs.start_failures(driver.region, driver.clock.now) == ()


def one_that_can_not_start() -> Driver:
    """Return a region under a changed spec that its first member has started with, and its second one can't."""
    driver = running()
    driver.process()
    change(driver, later=spec(driver.region.rules))
    driver.request_checkpoint("n")
    driver.complete()
    driver.join(driver.member(0), built_from=driver.region.spec)
    driver.fail_to_start(driver.member(1), refusal="there is no module 'nowhere'")
    return driver


def test_what_is_said_of_another_spec_is_not_remembered() -> None:
    driver = running()
    one = driver.member(0)
    driver.leave(one)
    failure = StartFailure(member=one, revision=1, digest="of another text", refusal="no")
    region = driver.region
    assert specs.failed_to_start(region, driver.clock.now, commands.ReportStartFailures(failures=(failure,))) is region
    driver.fail_to_start(one, refusal="there is no module 'nowhere'")
    change(driver, at_once=spec(driver.region.rules))
    assert driver.region.start_failures == ()


def test_where_a_member_can_not_start_a_corrected_spec_counts_at_once() -> None:
    driver = one_that_can_not_start()
    change(driver, later=spec(driver.region.rules, revision=3))
    region = driver.region
    assert (region.spec.revision, region.next_spec, state(driver)) == (3, None, RegionState.STARTING)
    for member in driver.all_members():
        driver.join(member, built_from=driver.region.spec)
    driver.spread()
    driver.finish_reset()
    assert state(driver) is RegionState.RUNNING
    assert positions(driver) == [10] * 4
    assert causes(driver) == ["start", "spec_changed", "spec_changed"]
    judge(driver)


def test_what_waits_counts_at_once_when_a_member_can_not_start() -> None:
    driver = one_that_can_not_start()
    driver.join(driver.member(1), built_from=driver.region.spec)
    change(driver, later=spec(driver.region.rules, revision=3))
    assert driver.region.spec.revision == 2
    driver.leave(driver.member(1))
    driver.fail_to_start(driver.member(1), refusal="there is no module 'nowhere'")
    assert (driver.region.spec.revision, state(driver)) == (3, RegionState.STARTING)


def test_a_reset_where_every_member_lives_is_not_begun_anew_for_a_changed_spec() -> None:
    driver = one_that_can_not_start()
    driver.join(driver.member(1), built_from=driver.region.spec)
    change(driver, later=spec(driver.region.rules, revision=3))
    assert (driver.region.spec.revision, state(driver)) == (2, RegionState.RESETTING)


def test_a_region_that_runs_takes_it_at_the_next_checkpoint_though_a_member_can_not_start() -> None:
    driver = running()
    other = driver.member(1)
    driver.leave(other)
    driver.fail_to_start(other, refusal="there is no module 'nowhere'")
    change(driver, later=spec(driver.region.rules))
    assert (driver.region.spec.revision, state(driver)) == (1, RegionState.RUNNING)


def test_the_way_out_is_named_as_it_is() -> None:
    driver = one_that_can_not_start()
    (told,) = specs.notes(driver.region, driver.clock.now)
    assert "apply a corrected spec, which counts at once, and start the member again" in told


# -- where no member lives
# ------------------------------------------------------------------------------------------------


def everybody_gone(driver: Driver) -> Driver:
    for member in driver.all_members():
        driver.crash(member)
    driver.wait(120)
    return driver


@pytest.mark.parametrize("wanted", [DesiredState.RUNNING, DesiredState.PAUSED])
def test_where_nobody_lives_a_changed_spec_counts_at_once_and_members_built_from_it_bring_the_region_to_run(
    wanted: DesiredState,
) -> None:
    driver = running()
    driver.checkpoint("n")
    driver.process()
    if wanted is DesiredState.PAUSED:
        driver.handle(PAUSE)
    everybody_gone(driver)
    change(driver, later=fewer_members())
    region = driver.region
    assert (region.spec, region.next_spec, state(driver)) == (fewer_members(), None, RegionState.STARTING)
    assert causes(driver) == ["start", "spec_changed"]
    driver.processes.clear()
    driver.join(driver.member(0), built_from=driver.region.spec)
    driver.spread()
    driver.finish_reset()
    assert (state(driver), driver.region.desired_state) == (RegionState.RUNNING, wanted)
    assert positions(driver) == [0] * 4, "what was begun since the restore point is processed again"
    judge(driver)


def test_a_region_that_starts_and_has_nobody_takes_another_number_of_members() -> None:
    driver = Driver()
    driver.handle(START)
    change(driver, later=fewer_members())
    driver.join(driver.member(0), built_from=driver.region.spec)
    driver.spread()
    driver.finish_reset()
    assert state(driver) is RegionState.RUNNING
    judge(driver)


def test_what_waits_for_a_checkpoint_counts_when_the_last_who_could_take_it_is_gone() -> None:
    driver = running()
    driver.request_checkpoint("n")
    change(driver, later=fewer_members())
    assert driver.region.next_spec == fewer_members()
    everybody_gone(driver)
    driver.handle(commands.Reconcile())
    region = driver.region
    assert (region.spec, region.next_spec, region.open_checkpoint) == (fewer_members(), None, None)
    assert causes(driver)[-1] == "spec_changed"
    judge(driver)


def test_a_halted_region_without_members_takes_it_and_is_resumed_with_it() -> None:
    driver = running()
    driver.find_stranger()
    everybody_gone(driver)
    change(driver, later=fewer_members())
    assert (driver.region.spec, state(driver)) == (fewer_members(), RegionState.HALTED)
    driver.handle(START)
    assert causes(driver) == ["start", "start"]
    judge(driver)


# -- at the next start ------------------------------------------------------------------------------------------------


def test_who_lives_through_a_halt_does_not_go_on_with_what_it_was_built_from() -> None:
    driver = running()
    built_from = driver.region.spec
    batch = driver.start_batch(driver.member(1))
    driver.find_stranger()
    lease = driver.region.leases[driver.member(1)].until
    change(driver, later=spec(driver.region.rules))
    driver.handle(START)
    for member in driver.all_members():
        with pytest.raises(LeaseExpired):
            driver.claim(member)
        with pytest.raises(SpecOutdated):
            driver.join(member, built_from=built_from)
        driver.join(member, built_from=driver.region.spec)
    assert driver.region.running[batch].quiesced_after >= lease, "its process can't know of it yet"  # type: ignore[operator]
    driver.spread()
    driver.recover()
    assert state(driver) is RegionState.RUNNING
    judge(driver)


def test_a_waiting_spec_takes_effect_at_the_next_start_where_a_stop_comes_first() -> None:
    driver = running()
    change(driver, later=fewer_members())
    driver.handle(STOP)
    driver.complete()
    assert driver.region.rules.groups[GROUP].members == 2
    assert causes(driver) == ["start"]
    driver.publish()
    for member in driver.all_members():
        driver.read_back(member)
    assert state(driver) is RegionState.STOPPED
    driver.handle(START)
    assert driver.region.rules.groups[GROUP].members == 1
    assert driver.region.desired_state is DesiredState.RUNNING


def test_without_a_waiting_spec_there_is_nothing_to_take() -> None:
    driver = running()
    region = driver.region
    assert specs.take_pending(region, driver.clock.now) is region
    checkpoints_of_ten(driver, 1)
    assert driver.region.next_spec is None
