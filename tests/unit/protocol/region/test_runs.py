from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

import pytest

from airflow_kcr.errors import BatchRefused, CheckpointRefused, RegionInState
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.region import batches, boundaries, commands, events, rows
from airflow_kcr.protocol.rules import CheckpointMode, CheckpointRules, RegionRules
from airflow_kcr.protocol.targets import ToCheckpoint, ToInitial
from airflow_kcr.protocol.values import (
    CheckpointNumber,
    DesiredState,
    GroupPartition,
    Offset,
    RequestId,
    TopicId,
    replace,
)
from airflow_kcr.schedules import Every
from tests.support.driver import GROUP, START, STOP, Driver, group_rules
from tests.support.judging import causes, checkpoint_of, happened, judge, positions, state, stops
from tests.support.scripts import all_crash, boundary, carried_out, located, rewind, running

STOPPED, RUNNING = rows.RegionState.STOPPED, rows.RegionState.RUNNING


def run(
    driver: Driver,
    request_id: str,
    until: datetime,
    *,
    at: int | None = None,
    logs: Mapping[GroupPartition, LogBounds] | None = None,
    allow_inexact: bool = False,
) -> rows.CheckpointRequest:
    """Ask for a run; `at`: where the caller has found the boundary in each partition."""
    found = {} if at is None else {p: rows.BoundaryOffset(offset=Offset(at)) for p in driver.logs}
    wanted = commands.Run(request_id=RequestId(request_id), boundary=until, allow_inexact=allow_inexact, found=found)
    complete = commands.CompleteAtRest(run=wanted, logs=driver.logs if logs is None else logs)
    if driver.store.handle(driver.name, complete):
        return driver.region.requests[wanted.request_id]
    return driver.store.handle(driver.name, wanted)


def at_beginning(
    driver: Driver, until: datetime, *, at: int, begins: Mapping[GroupPartition, int], allow_inexact: bool = False
) -> commands.CompleteAtRest:
    """Return what asks for the first run of a region of which it is known where it begins."""
    return commands.CompleteAtRest(
        run=commands.Run(
            request_id=RequestId("r1"),
            boundary=until,
            allow_inexact=allow_inexact,
            found={p: rows.BoundaryOffset(offset=Offset(at)) for p in driver.logs},
        ),
        logs=driver.logs,
        begins={
            p: rows.InitialOffset(offset=Offset(o), source="start_position", bounds=driver.logs[p])
            for p, o in begins.items()
        },
    )


def late(hours: float = 2) -> Driver:
    """Return a declared region, some time after the beginning, that has never run."""
    driver = Driver()
    driver.clock.advance(hours * 3600)
    return driver


def all_join(driver: Driver) -> None:
    """Let a process come for every member, and the reset be over."""
    for member in driver.all_members():
        driver.join(member)
    driver.spread()
    driver.finish_reset()


def finished(driver: Driver) -> CheckpointNumber:
    """Let the processes complete, publish and commit the open checkpoint, and leave."""
    driver.handle(commands.Reconcile())  # as a member does that has reached the boundary
    sequence = driver.complete()
    driver.publish()
    for member in sorted(driver.processes):
        if state(driver) is not STOPPED:
            driver.read_back(member)
    return sequence


def done(driver: Driver, request_id: str = "r1", hours: float = 1, at: int = 10) -> CheckpointNumber:
    """Carry a run out, from a stopped region to its end, and let the members leave."""
    return carried_out(driver, commands.Run(request_id=RequestId(request_id), boundary=boundary(hours)), at)


def test_a_run_starts_a_stopped_region_makes_its_checkpoint_and_stops_it() -> None:
    driver = late()
    asked = run(driver, "r1", boundary(1))
    assert (asked.state, boundaries.limit(driver.region)) == (rows.RequestState.QUEUED, boundary(1))
    all_join(driver)
    located(driver, boundary(1), 10)
    driver.process()
    with pytest.raises(BatchRefused):
        driver.start_batch(driver.member(0))
    assert checkpoint_of(driver).boundary == boundary(1)
    finished(driver)
    assert (state(driver), driver.region.desired_state) == (STOPPED, DesiredState.STOPPED)
    assert stops(driver) == ["drained"]
    assert len(happened(driver, events.CheckpointCompleted)) == 1
    assert positions(driver) == [10, 10, 10, 10]
    judge(driver)


def test_a_run_that_was_done_is_found_again_and_starts_nothing() -> None:
    driver = late()
    sequence = done(driver)
    epoch = driver.region.epoch
    assert run(driver, "r1", boundary(1)).sequence == sequence
    assert run(driver, "of the same hour", boundary(1)).sequence == sequence
    assert (state(driver), driver.region.epoch) == (STOPPED, epoch)
    judge(driver)


def test_two_applications_of_a_run_up_to_now_agree_on_the_first_ones_now() -> None:
    driver = late()
    first, second = (
        commands.Run(request_id=RequestId("r"), boundary=boundary(hours), is_up_to_now=True) for hours in (1, 1.5)
    )
    driver.handle(first)
    for command in (commands.CompleteAtRest(run=second, logs=driver.logs), second):
        driver.store.handle(driver.name, command)
        assert driver.region.requests[second.request_id].boundary == boundary(1)
    with pytest.raises(CheckpointRefused, match="names a request for another checkpoint"):
        driver.handle(replace(second, is_up_to_now=False))


def test_of_two_applications_one_is_killed_and_comes_again_and_the_run_ends_for_both() -> None:
    driver = late()
    run(driver, "r", boundary(1))
    driver.join(driver.member(0))
    run(driver, "r", boundary(1))
    driver.join(driver.member(1))
    driver.spread()
    driver.finish_reset()
    all_crash(driver, [driver.member(1)])
    run(driver, "r", boundary(1))
    driver.join(driver.member(1), takeover=True)
    driver.spread()
    driver.finish_reset()
    located(driver, boundary(1), 10)
    driver.process()
    finished(driver)
    epoch = driver.region.epoch
    assert run(driver, "r", boundary(1)).state is rows.RequestState.ANSWERED
    assert (state(driver), driver.region.epoch) == (STOPPED, epoch)
    judge(driver)


def test_what_lies_before_the_newest_checkpoint_is_refused_and_named() -> None:
    driver = late()
    done(driver)
    before = driver.region
    with pytest.raises(CheckpointRefused, match=r"until: the records before .* are in checkpoint 2 already"):
        run(driver, "r2", boundary(0.5))
    assert driver.region == before


def test_another_try_of_a_run_finds_its_request_and_takes_its_members_over() -> None:
    driver = late()
    run(driver, "r1", boundary(1))
    all_join(driver)
    driver.process(width=5)
    assert run(driver, "r1", boundary(1)).state is rows.RequestState.OPEN
    all_crash(driver)
    assert run(driver, "r1", boundary(1)).state is rows.RequestState.QUEUED
    for member in driver.all_members():
        driver.join(member, takeover=True)
    driver.spread()
    driver.finish_reset()
    located(driver, boundary(1), 10)
    while positions(driver) != [10, 10, 10, 10]:
        driver.process(width=5)
    finished(driver)
    assert state(driver) is STOPPED
    judge(driver)


def test_a_run_whose_processes_are_gone_is_joined_by_the_next_and_both_have_their_checkpoints_in_order() -> None:
    driver = late(4)
    run(driver, "r1", boundary(1))
    all_join(driver)
    all_crash(driver)
    run(driver, "r2", boundary(2))
    driver.recover()
    located(driver, boundary(1), 10)
    driver.process()
    first = finished(driver)
    assert (driver.region.checkpoints[first].boundary, state(driver)) == (boundary(1), RUNNING)
    located(driver, boundary(2), 20)
    driver.process()
    second = finished(driver)
    assert (driver.region.checkpoints[second].boundary, state(driver)) == (boundary(2), STOPPED)
    assert run(driver, "r1", boundary(1)).sequence == first
    assert run(driver, "r2", boundary(2)).sequence == second
    judge(driver)


def test_a_second_run_is_refused_while_members_of_the_first_live() -> None:
    driver = late(4)
    run(driver, "r1", boundary(1))
    all_join(driver)
    with pytest.raises(RegionInState, match=r"a run of region flights is under way, by g\[0\], g\[1\]: run it again"):
        run(driver, "r2", boundary(2))


def test_a_region_that_runs_by_itself_is_not_stopped_by_a_run() -> None:
    driver = running()
    driver.clock.advance(7200)
    with pytest.raises(RegionInState, match="kcr region drain --until"):
        run(driver, "r1", boundary(1))
    assert driver.region.desired_state is DesiredState.RUNNING


def test_a_halted_region_says_why_and_is_not_started() -> None:
    driver = running()
    driver.find_stranger()
    with pytest.raises(RegionInState, match="is halted: consumer stranger on host host in group g; choices: "):
        run(driver, "r1", boundary(0))


def test_a_boundary_that_is_yet_to_come_is_refused_beyond_the_grace() -> None:
    driver = Driver()
    grace = driver.region.rules.checkpoint.grace
    with pytest.raises(CheckpointRefused, match=r"until: .* is yet to come"):
        run(driver, "r1", boundary(1))
    run(driver, "r2", driver.clock() + grace)
    assert driver.region.desired_state is DesiredState.RUNNING


def test_a_boundary_before_what_was_processed_is_refused_and_nothing_starts() -> None:
    driver = late()
    done(driver, hours=0.5)
    before = driver.region
    with pytest.raises(CheckpointRefused, match=r"until: .* is at 10, past the offset of .*, 7"):
        run(driver, "r2", boundary(1), at=7)
    assert driver.region == before
    assert run(driver, "r2", boundary(1), at=7, allow_inexact=True).state is not rows.RequestState.REFUSED


def test_nothing_to_read_is_a_checkpoint_at_once_without_a_member() -> None:
    driver = late(4)
    first = done(driver)
    epoch = driver.region.epoch
    answer = run(driver, "r2", boundary(2), at=10)
    assert answer.state is rows.RequestState.ANSWERED
    assert answer.sequence == first + 1
    row = driver.region.checkpoints[CheckpointNumber(first + 1)]
    assert (row.state, row.previous, row.boundary, dict(row.participants)) == (
        rows.CheckpointState.COMPLETE,
        first,
        boundary(2),
        {},
    )
    assert driver.region.offsets[row.sequence] == driver.region.offsets[first]
    assert (state(driver), driver.region.epoch, driver.region.desired_state) == (
        STOPPED,
        epoch,
        DesiredState.STOPPED,
    )
    driver.publish()
    done(driver, "r3", 3, at=20)
    assert positions(driver) == [20, 20, 20, 20]
    judge(driver)


def test_a_first_run_with_nothing_to_read_is_what_its_members_would_have_made_of_it() -> None:
    by_members, driver = late(4), late(4)
    sequence = done(by_members, at=0)
    assert driver.handle(at_beginning(driver, boundary(1), at=0, begins=dict.fromkeys(driver.logs, 0)))
    driver.publish()
    theirs, ours = by_members.region, driver.region
    for name in ("state", "desired_state", "epoch", "timeline", "restore_point", "next_sequence", "next_boundary"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.initialised
    assert (ours.initial, ours.offsets, ours.aligned) == (theirs.initial, theirs.offsets, theirs.aligned)
    assert {p: c.resume for p, c in ours.claims.items()} == {p: c.resume for p, c in theirs.claims.items()}
    row, members_row = ours.checkpoints[sequence], theirs.checkpoints[sequence]
    assert row == replace(
        members_row,
        participants={},
        opened_at=row.opened_at,
        finished_at=row.finished_at,
        published_at=row.published_at,
        committed=rows.Committed.PENDING,
        commit_deadline=row.commit_deadline,
    )
    (opening,) = happened(driver, events.ResetBegun)
    assert (opening.cause, opening.opens_timeline, opening.seek.offsets) == (
        rows.ResetCause.START,
        True,
        ours.offsets[sequence],
    )
    # What comes then is read from there, by members of the same timeline.
    done(driver, "r2", 2, at=10)
    assert (positions(driver), driver.region.timeline) == ([10, 10, 10, 10], row.timeline)
    judge(driver)


@pytest.mark.parametrize(
    "reason", ["records", "past", "not known", "partly known", "a topic made anew", "no topic", "started", "reset"]
)
def test_a_first_run_that_has_something_to_do_is_its_members_and_changes_nothing(reason: str) -> None:
    driver = late(4)
    places, at = dict.fromkeys(driver.logs, 0), 0
    if reason == "records":
        at = 1
    elif reason == "past":
        places = dict.fromkeys(driver.logs, 1)
    elif reason == "not known":
        places = {}
    elif reason == "partly known":
        del places[driver.partition(0)]
    elif reason == "no topic":
        places = {}
        driver.logs.clear()
    elif reason == "started":
        driver.handle(START)
        driver.handle(commands.KillRegion())
    else:
        done(driver)
        driver.handle(START)
        all_join(driver)
        rewind(driver, ToInitial())
        all_crash(driver)
        driver.handle(STOP)
    before, command = driver.region, at_beginning(driver, boundary(3), at=at, begins=places)
    if reason == "a topic made anew":
        logs = {p: replace(log, topic_id=TopicId("another")) for p, log in driver.logs.items()}
        command = replace(command, logs=logs)
    assert not driver.handle(command)
    assert driver.region == before


def test_a_first_run_that_begins_past_its_boundary_may_be_inexact_and_says_so() -> None:
    driver = late(4)
    places = dict.fromkeys(driver.logs, 1)
    assert driver.handle(at_beginning(driver, boundary(1), at=0, begins=places, allow_inexact=True))
    (row,) = driver.region.checkpoints.values()
    assert set(row.inexact.values()) == {"at 1, past the boundary's offset 0"}
    judge(driver)


def test_a_region_with_something_to_read_or_to_do_is_started() -> None:
    reasons = ("records", "a new partition", "a topic made anew", "retention", "unpublished", "a reset", "unread logs")
    for reason in reasons:
        driver = late(4)
        first = done(driver)
        logs = dict(driver.logs)
        at = 10
        if reason == "records":
            at = 11
        elif reason == "a new partition":
            logs[driver.partition(9)] = LogBounds(start=Offset(0), end=Offset(0))
        elif reason == "a topic made anew":
            logs = {p: LogBounds(start=Offset(0), end=Offset(99), topic_id="another") for p in logs}  # type: ignore[arg-type]
        elif reason == "retention":
            logs = {p: LogBounds(start=Offset(11), end=Offset(99), topic_id=log.topic_id) for p, log in logs.items()}
        elif reason == "unpublished":
            run(driver, "r2", boundary(2), at=10)
        elif reason == "a reset":
            driver.handle(START)
            all_join(driver)
            rewind(driver, ToCheckpoint(sequence=first))
            all_crash(driver)
            driver.handle(STOP)
        else:
            logs = {}
        assert run(driver, "r3", boundary(3), at=at, logs=logs).state is rows.RequestState.QUEUED, reason
        assert driver.region.desired_state is DesiredState.RUNNING, reason
        assert causes(driver)[-1] == "start", reason


def test_a_partition_that_came_after_the_newest_checkpoint_is_its_members_to_bring_in() -> None:
    driver = late(4)
    done(driver)
    driver.handle(START)
    all_join(driver)
    added = driver.partition(4)
    driver.grow(added, end=0)
    driver.claim(driver.member(0), [added])
    driver.handle(commands.KillRegion())
    assert driver.region.claim_of(added).resume == 0
    assert added not in driver.region.restore_point_offsets()
    wanted = commands.Run(
        request_id=RequestId("r3"),
        boundary=boundary(3),
        found={p: rows.BoundaryOffset(offset=Offset(0 if p == added else 10)) for p in driver.logs},
    )
    before = driver.region
    assert not driver.handle(commands.CompleteAtRest(run=wanted, logs=driver.logs))
    assert driver.region == before


def test_a_run_whose_members_went_before_it_was_published_has_them_come_once_more_and_reads_nothing() -> None:
    driver = late()
    run(driver, "r1", boundary(1))
    all_join(driver)
    located(driver, boundary(1), 10)
    driver.process()
    driver.handle(commands.Reconcile())
    sequence = driver.complete()
    all_crash(driver)
    driver.handle(commands.Reconcile())
    assert (state(driver), driver.region.checkpoints[sequence].published_at) == (STOPPED, None)
    again = commands.Run(request_id=RequestId("r1"), boundary=boundary(1))
    driver.store.handle(driver.name, again)
    for member in driver.all_members():
        driver.join(member)
    driver.spread()
    for member in sorted(driver.processes):
        driver.acknowledge(member)
    assert state(driver) is rows.RegionState.RESETTING
    driver.publish()
    driver.handle(commands.Reconcile())
    with pytest.raises(BatchRefused):
        driver.start_batch(driver.member(0))
    finished(driver)
    assert state(driver) is STOPPED
    assert driver.region.checkpoints[sequence].published_at is not None
    assert run(driver, "r1", boundary(1)).sequence == sequence
    assert positions(driver) == [10, 10, 10, 10]
    judge(driver)


def test_a_run_that_is_given_up_leaves_no_boundary_behind() -> None:
    driver = late()
    run(driver, "r1", boundary(1))
    assert driver.region.next_boundary == boundary(1)
    driver.handle(commands.KillRegion())
    assert driver.region.next_boundary is None


def test_a_drain_that_is_late_is_tried_again_by_itself() -> None:
    driver = late()
    run(driver, "r1", boundary(1))
    all_join(driver)
    located(driver, boundary(1), 10)
    driver.process()
    driver.handle(commands.Reconcile())
    first = driver.held.open_checkpoint
    driver.wait(driver.region.rules.timeouts.drain.total_seconds() + 1)
    second = driver.held.open_checkpoint
    assert first is not None
    assert second is not None
    assert second > first
    finished(driver)
    assert state(driver) is STOPPED
    judge(driver)


def test_a_run_that_is_refused_stops_the_region_again() -> None:
    driver = late()
    done(driver, hours=0.5)
    run(driver, "r2", boundary(1))
    all_join(driver)
    located(driver, boundary(1), 7)
    driver.handle(commands.Reconcile())
    (ended,) = happened(driver, events.CheckpointRequestEnded)
    assert "past the boundary's offset 7" in ended.why
    assert driver.region.desired_state is DesiredState.STOPPED
    finished(driver)
    assert state(driver) is STOPPED
    judge(driver)


@pytest.mark.parametrize("mode", CheckpointMode)
def test_a_run_that_comes_late_has_its_interval_and_no_boundary_of_the_region_s_own(mode: CheckpointMode) -> None:
    checkpoint = CheckpointRules(schedule=Every(timedelta(hours=1)), mode=mode)
    driver = Driver(rules=RegionRules(groups={GROUP: group_rules(members=2)}, checkpoint=checkpoint))
    driver.clock.advance(10 * 3600)
    for hour in (1, 2, 3):
        sequence = done(driver, f"r{hour}", hour, at=10 * hour)
        assert driver.region.checkpoints[sequence].boundary == boundary(hour)
        assert list(driver.region.offsets[sequence].values()) == [10 * hour] * 4
    assert len(happened(driver, events.CheckpointCompleted)) == 3
    assert happened(driver, events.BoundaryHeld) == []
    judge(driver)


def test_a_count_of_records_does_not_stand_in_the_way_of_a_boundary() -> None:
    rules = RegionRules(groups={GROUP: group_rules(members=1)}, checkpoint=CheckpointRules(records=20))
    driver = Driver(rules=rules)
    driver.up()
    driver.process(width=4)
    driver.request_checkpoint("n", boundary=boundary(0))
    assert (checkpoint_of(driver).boundary, batches.records_left(driver.region)) == (boundary(0), None)
    located(driver, boundary(0), 10)
    driver.process(width=6)
    assert checkpoint_of(driver).purpose is rows.CheckpointPurpose.REQUEST


def catching_up() -> Driver:
    """Return a region that rests after the run of its first hour, some hours later; it catches up with every hour."""
    checkpoint = CheckpointRules(schedule=Every(timedelta(hours=1)), catchup=True)
    driver = Driver(rules=RegionRules(groups={GROUP: group_rules(members=2)}, checkpoint=checkpoint))
    driver.clock.advance(10 * 3600)
    done(driver, "r1", 1, at=10)
    return driver


def test_one_run_makes_the_checkpoints_of_all_missed_intervals_in_their_order_and_stops() -> None:
    driver = catching_up()
    run(driver, "r5", boundary(5))
    all_join(driver)
    made = []
    for hour in (2, 3, 4, 5):
        assert state(driver) is RUNNING
        located(driver, boundary(hour), 10 * hour)
        driver.process()
        with pytest.raises(BatchRefused):
            driver.start_batch(driver.member(0))
        made.append(finished(driver))
        assert driver.region.checkpoints[made[-1]].boundary == boundary(hour)
        assert list(driver.region.offsets[made[-1]].values()) == [10 * hour] * 4
    assert (state(driver), driver.region.desired_state) == (STOPPED, DesiredState.STOPPED)
    assert run(driver, "r5", boundary(5)).sequence == made[-1]
    # The run of an interval that was caught up with finds its checkpoint.
    assert run(driver, "r3", boundary(3)).sequence == made[1]
    assert len(happened(driver, events.CheckpointCompleted)) == 5
    judge(driver)


def test_a_run_that_catches_up_and_is_killed_goes_on_where_it_was() -> None:
    driver = catching_up()
    run(driver, "r3", boundary(3))
    all_join(driver)
    located(driver, boundary(2), 20)
    driver.process()
    finished(driver)
    all_crash(driver)
    run(driver, "r3", boundary(3))
    all_join(driver)
    located(driver, boundary(3), 30)
    driver.process()
    sequence = finished(driver)
    assert (driver.region.checkpoints[sequence].boundary, state(driver)) == (boundary(3), STOPPED)
    judge(driver)


def test_missed_intervals_without_a_record_have_their_checkpoints_too() -> None:
    driver = catching_up()
    # Of one interval there is nothing to catch up with: no member is needed.
    assert run(driver, "r2", boundary(2), at=10).state is rows.RequestState.ANSWERED
    driver.publish()
    assert run(driver, "r4", boundary(4), at=10).state is rows.RequestState.QUEUED
    all_join(driver)
    for hour in (3, 4):
        located(driver, boundary(hour), 10)
        assert driver.region.checkpoints[finished(driver)].boundary == boundary(hour)
    assert state(driver) is STOPPED
    judge(driver)


def test_a_run_that_is_refused_has_no_inexact_checkpoint_of_the_region_s_own_in_its_place() -> None:
    driver = catching_up()
    run(driver, "r2", boundary(2))
    all_join(driver)
    located(driver, boundary(2), 7)
    driver.handle(commands.Reconcile())
    (ended,) = happened(driver, events.CheckpointRequestEnded)
    assert "past the boundary's offset 7" in ended.why
    finished(driver)
    assert state(driver) is STOPPED
    assert boundary(2) not in [row.boundary for row in driver.region.checkpoints.values() if row.is_complete]
    judge(driver)


def test_after_a_restore_that_ended_in_a_stop_a_run_with_nothing_to_read_opens_a_timeline_first() -> None:
    driver = late(3)
    done(driver)
    region, member = driver.region, driver.member(0)
    memory = commands.ReportLater(
        member=member,
        epoch=region.epoch,
        sequence=CheckpointNumber(region.next_sequence + 3),
        timeline=region.timeline,
        incarnation=region.members[member].incarnation,
    )
    driver.handle(memory)
    driver.handle(STOP)
    assert run(driver, "r2", boundary(2), at=10).state is rows.RequestState.QUEUED
    now = driver.region
    assert now.timeline == region.timeline + 2  # that of its stop, which no sink has, and that of its start
    assert (now.restore_epoch, now.resets[now.epoch].timeline) == (now.epoch, now.timeline)
