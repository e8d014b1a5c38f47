"""What a region waits for, since when, and from when on that is too long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from airflow_kcr.protocol.region import commands, liveness
from airflow_kcr.protocol.region.liveness import NEVER, Liveness, LivenessVerdict, LogEnd, Seen
from airflow_kcr.protocol.region.rows import (
    CheckpointPurpose,
    RegionState,
    RequestState,
    ResetCause,
    StartFailure,
    Unserved,
)
from airflow_kcr.protocol.region.waits import Rule, Wait
from airflow_kcr.protocol.rules import CheckpointMode, CheckpointRules, RegionRules
from airflow_kcr.protocol.values import Offset, RequestId
from airflow_kcr.schedules import Every
from tests.support.driver import BEGINNING, GROUP, PAUSE, START, Driver, group_rules
from tests.support.scripts import HOUR, all_crash, boundary, hourly, located, running, started

DAY = timedelta(days=1)
MINUTE = timedelta(minutes=1)


def judged(driver: Driver, *, later: timedelta = timedelta(0), ends: int | None = None) -> Liveness:
    """Judge a driver's region as it is, or as it would be if nothing happened for that long."""
    region, now = driver.store.read(driver.name)
    seen = driver.store.seen(driver.name)
    if ends is not None:
        seen = replace(seen, ends={p: LogEnd(Offset(ends), BEGINNING) for p in region.claims})
    lasting = {m: replace(row, until=row.until + later) if row.until > now else row for m, row in region.leases.items()}
    return liveness.judge(replace(region, leases=lasting), now + later, seen)


def only(found: Liveness) -> Wait:
    assert len(found.waits) == 1, found.text()
    return found.waits[0]


def patience(driver: Driver) -> timedelta:
    return liveness.patience(driver.region)


def test_a_region_that_has_nothing_to_do_waits_for_nothing() -> None:
    found = judged(running(), later=DAY)
    assert (found.verdict, found.waits, found.text()) == (LivenessVerdict.PROGRESSING, (), "progressing")


def test_a_stopped_region_waits_for_nothing() -> None:
    assert judged(Driver(), later=DAY).verdict is LivenessVerdict.PROGRESSING


def test_a_halted_or_paused_region_waits_for_a_person_as_long_as_it_takes() -> None:
    driver = running()
    driver.handle(PAUSE)
    found = judged(driver, later=DAY)
    assert (found.verdict, found.text()) == (
        LivenessVerdict.WAITING,
        "waiting: person: the region is paused; resume it",
    )
    driver.find_stranger()
    assert "person: the region is halted: consumer stranger on host host in group g" in judged(driver, later=DAY).text()


def test_without_a_member_a_region_waits_for_one_and_is_stalled_when_none_comes_back() -> None:
    driver = running()
    all_crash(driver)
    wait = only(judged(driver))
    assert (wait.rule, wait.what) == (Rule.MEMBERS, "no member lives; start them")
    assert wait.since == max(lease.until for lease in driver.region.leases.values())
    assert wait.until == wait.since + patience(driver)
    assert judged(driver, later=DAY).verdict is LivenessVerdict.STALLED


def test_a_region_that_nobody_joins_after_its_start_is_stalled_as_well() -> None:
    driver = Driver()
    driver.handle(START)
    assert judged(driver).verdict is LivenessVerdict.WAITING
    found = judged(driver, later=patience(driver))
    assert found.text() == "stalled: members since 2026-01-01T00:00:00Z: no member lives; start them"


def test_partitions_without_a_living_owner_are_named_with_their_last_one() -> None:
    driver = running()
    all_crash(driver, [driver.member(1)])
    wait = only(judged(driver))
    assert (wait.rule, wait.group) == (Rule.PARTITIONS, GROUP)
    assert wait.what == "g:t-2 is not covered (last owner: g[1]), g:t-3 is not covered (last owner: g[1])"
    assert wait.since == driver.region.leases[driver.member(1)].until
    assert judged(driver, later=DAY).verdict is LivenessVerdict.STALLED


def test_partitions_that_a_living_member_dropped_count_from_its_claim() -> None:
    driver = running()
    driver.wait(DAY.total_seconds())
    driver.claim(driver.member(1), [driver.partition(2)])
    wait = only(judged(driver))
    assert (wait.what, wait.since) == ("g:t-3 is not covered (last owner: g[1])", driver.clock.now)
    assert judged(driver, later=patience(driver)).verdict is LivenessVerdict.STALLED


def test_a_reset_that_is_not_done_says_who_is_missing() -> None:
    driver = running()
    driver.request_reset(driver.member(0), ResetCause.BATCH_REFUSED)
    wait = only(judged(driver))
    assert wait.rule is Rule.RESET
    assert wait.what.startswith("batch_refused: ")
    assert "g:t-0 is not covered (last owner: g[0])" in wait.what
    assert judged(driver, later=DAY).verdict is LivenessVerdict.STALLED


def test_a_checkpoint_that_drains_names_who_is_late() -> None:
    driver = running()
    driver.request_checkpoint("n")
    driver.contribute(driver.member(0))
    wait = only(judged(driver))
    assert wait.what == f"checkpoint {driver.region.open_checkpoint} waits for g[1] (t-2, t-3)"
    drain = driver.region.rules.timeouts.drain
    assert wait.until == BEGINNING + drain + patience(driver)


def test_a_checkpoint_may_approach_its_boundary_for_as_long_as_batches_run() -> None:
    driver = hourly(mode=CheckpointMode.AUTO, partitions=1, members=1)
    driver.wait(3_600)
    located(driver, boundary(1), 30)
    wait = only(judged(driver))
    assert wait.rule is Rule.CHECKPOINT
    assert wait.since == boundary(1)
    assert wait.what.endswith("approaches its boundary 2026-01-01T01:00:00Z; not there yet: g:t-0")
    assert judged(driver, later=patience(driver) + HOUR).verdict is LivenessVerdict.STALLED
    batch = driver.start_batch(driver.member(0))
    assert judged(driver, later=timedelta(minutes=1)).verdict is LivenessVerdict.WAITING
    driver.wait(1_800)
    driver.finish_batch(batch)
    assert only(judged(driver)).until == driver.clock.now + driver.region.rules.checkpoint.grace + patience(driver)


def test_a_checkpoint_of_a_boundary_to_come_is_no_wait() -> None:
    driver = hourly()
    driver.request_checkpoint("early", boundary=boundary(1))
    assert judged(driver).waits == ()


def test_a_complete_checkpoint_waits_for_its_publication_and_what_is_behind_it_says_so() -> None:
    driver = hourly(mode=CheckpointMode.AUTO)
    driver.request_checkpoint("n")
    driver.complete()
    driver.request_checkpoint("second")
    publish, request = judged(driver).waits
    assert (publish.rule, request.rule) == (Rule.PUBLISH, Rule.REQUEST)
    assert publish.until == BEGINNING + driver.region.rules.timeouts.publish + driver.region.rules.timeouts.lease
    assert (request.what, request.until) == ("request second is queued (behind: publish)", None)
    driver.wait(3_600)
    found = judged(driver)
    assert Rule.PUBLISH in {w.rule for w in found.stalled}
    assert "(behind: publish)" in next(w.what for w in found.waits if w.rule is Rule.BOUNDARY)


def test_where_runs_ask_members_wait_at_the_boundary_for_as_long_as_it_takes() -> None:
    driver = hourly()
    driver.wait(7_200)
    wait = only(judged(driver, later=DAY))
    assert (wait.rule, wait.since, wait.until) == (Rule.RUN, boundary(1), None)


def test_a_passed_boundary_that_nothing_explains_is_a_stall_with_its_boundary() -> None:
    driver = hourly(mode=CheckpointMode.AUTO)
    wait = only(judged(driver, later=HOUR))
    assert (wait.rule, wait.since, wait.until) == (Rule.BOUNDARY, boundary(1), boundary(1) + patience(driver))
    found = judged(driver, later=HOUR + patience(driver))
    assert found.text().startswith("stalled: boundary since 2026-01-01T01:00:00Z: the boundary 2026-01-01T01:00:00Z")


def test_a_boundary_counts_from_when_the_region_could_have_seen_to_it() -> None:
    driver = hourly(mode=CheckpointMode.AUTO)
    region = replace(driver.region, next_boundary=boundary(-5))
    assert only(liveness.judge(region, driver.clock.now)).since == BEGINNING


def test_a_queued_request_that_nothing_explains_is_a_stall() -> None:
    driver = running()
    driver.request_checkpoint("n")
    region = driver.region
    queued = replace(region.requests[RequestId("n")], state=RequestState.QUEUED)
    stuck = replace(
        region, open_checkpoint=None, requests={queued.request_id: queued}, state=RegionState.RUNNING, reconcile_at=None
    )
    wait = only(liveness.judge(stuck, driver.clock.now))
    assert (wait.rule, wait.what, wait.since) == (Rule.REQUEST, "request n is queued", BEGINNING)
    assert wait.until == BEGINNING + patience(driver)


def test_a_batch_that_runs_for_too_long_is_named() -> None:
    driver = running(partitions=1, members=1)
    batch = driver.start_batch(driver.member(0))
    timeouts = driver.region.rules.timeouts
    longest = timeouts.batch + timeouts.process_end_limit
    assert judged(driver, later=longest - timedelta(seconds=1)).waits == ()
    wait = only(judged(driver, later=longest))
    assert (wait.rule, wait.what) == (Rule.BATCH, f"batch {batch} of g[0] runs for longer than 0:02:00")


def test_what_a_live_member_lacks_to_run_a_batch_is_named() -> None:
    driver = running(partitions=1, members=1)
    member = driver.member(0)
    lease, times = driver.region.leases[member], driver.region.rules.timeouts
    driver.handle(
        commands.Renew(member=member, incarnation=lease.incarnation, lease=times.lease, lacks="Spark has no executor")
    )
    wait = only(judged(driver))
    assert (wait.rule, wait.what) == (Rule.ENGINE, "g[0]: Spark has no executor")
    stalled = judged(driver, later=MINUTE, ends=40)
    assert "40 of g:t-0 can be read, and no batch reads them: g[0]: Spark has no executor" in stalled.text()
    driver.start_batch(member)
    assert "runs for longer than 0:02:00: Spark has no executor" in judged(driver, later=DAY).text()
    driver.handle(commands.Renew(member=member, incarnation=lease.incarnation, lease=times.lease))
    assert judged(driver).waits == ()


def test_records_that_nobody_reads_are_a_stall_where_the_ends_of_the_logs_are_known() -> None:
    driver = running(partitions=2, members=1)
    assert judged(driver, later=DAY).waits == ()
    assert judged(driver, later=DAY, ends=0).waits == ()
    assert judged(driver, ends=5_000).waits == ()
    wait = only(judged(driver, later=MINUTE, ends=5_000))
    assert (wait.rule, wait.since, wait.group) == (Rule.RECORDS, BEGINNING, GROUP)
    assert wait.what == "5,000 of g:t-0, 5,000 of g:t-1 can be read, and no batch reads them"
    assert wait.until == BEGINNING + patience(driver) + driver.held.rules.timeouts.commit
    driver.wait(60)
    driver.process()
    assert only(judged(driver, later=MINUTE, ends=5_000)).since == driver.clock.now
    driver.start_batch(driver.member(0))
    assert judged(driver, ends=5_000).waits == ()


def test_records_that_have_only_just_come_after_a_long_silence_are_not_missed_yet() -> None:
    driver = running(partitions=1, members=1)
    driver.wait(DAY.total_seconds())
    region, now = driver.store.read(driver.name)
    seen = replace(driver.store.seen(driver.name), ends={driver.partition(0): LogEnd(Offset(5), now)})
    assert liveness.judge(region, now, seen).waits == ()


def test_without_kafka_the_ends_that_members_saw_at_the_restore_point_count() -> None:
    driver = running(partitions=1, members=1)
    driver.process()
    driver.checkpoint("n")
    wait = only(judged(driver, later=MINUTE))
    assert (wait.rule, wait.what) == (Rule.RECORDS, "990 of g:t-0 can be read, and no batch reads them")


def test_kafka_is_only_worth_asking_where_nobody_has_worked_for_long() -> None:
    driver = running(partitions=1, members=1)
    region, now = driver.store.read(driver.name)
    long = patience(driver) + driver.held.rules.timeouts.commit
    seen = Seen(worked_at=NEVER)
    assert liveness.missed_before(region, now, Seen()) is None
    assert liveness.missed_before(region, now + long - timedelta(seconds=1), seen) is None
    assert liveness.missed_before(region, now + long, seen) == now
    driver.handle(PAUSE)
    assert liveness.missed_before(driver.region, now + long, seen) is None


def test_a_member_that_has_just_claimed_may_plan_its_first_batch() -> None:
    driver = running(partitions=1, members=1)
    driver.process()
    driver.wait(2 * patience(driver).total_seconds())
    assert judged(driver, ends=50).verdict is LivenessVerdict.STALLED
    driver.claim(driver.member(0))
    lease = driver.held.rules.timeouts.lease
    assert judged(driver, ends=50, later=lease - timedelta(seconds=1)).verdict is LivenessVerdict.WAITING
    assert judged(driver, ends=50, later=lease).verdict is LivenessVerdict.STALLED


def _idle(driver: Driver) -> None:
    """Do nothing: the region has nothing open."""


def _approaches(driver: Driver) -> None:
    """Have a checkpoint approach its boundary, of which nothing has been read."""
    driver.wait(HOUR.total_seconds())
    driver.handle(commands.RequestCheckpoint(request_id=RequestId("run"), boundary=boundary(1)))


def _resets(driver: Driver) -> None:
    driver.request_reset(driver.member(0), ResetCause.BATCH_REFUSED)


@pytest.mark.parametrize("begun", [_idle, _approaches, _resets])
def test_whoever_comes_back_at_the_end_of_what_is_allowed_is_waited_for(begun: Callable[[Driver], None]) -> None:
    driver = hourly()
    driver.wait(DAY.total_seconds())
    begun(driver)
    all_crash(driver)
    ended = max(lease.until for lease in driver.region.leases.values())
    driver.clock.advance((ended + patience(driver) - timedelta(seconds=1) - driver.clock.now).total_seconds())
    assert judged(driver).verdict is LivenessVerdict.WAITING
    for member in driver.all_members():
        driver.join(member)
        assert judged(driver).verdict is LivenessVerdict.WAITING, judged(driver).text()
    back = driver.clock.now
    assert all(w.since is None or w.rule is not Rule.PARTITIONS or w.since == back for w in judged(driver).waits)
    driver.spread()
    assert judged(driver).verdict is not LivenessVerdict.STALLED, judged(driver).text()
    driver.finish_reset()
    assert judged(driver).verdict is not LivenessVerdict.STALLED, judged(driver).text()


def test_who_comes_back_and_then_does_nothing_is_a_stall_with_since_when() -> None:
    driver = running()
    driver.wait(DAY.total_seconds())
    all_crash(driver)
    for member in driver.all_members():
        driver.join(member)
    wait = only(judged(driver))
    assert (wait.rule, wait.since, wait.until) == (
        Rule.PARTITIONS,
        driver.clock.now,
        driver.clock.now + patience(driver),
    )
    assert judged(driver, later=patience(driver)).verdict is LivenessVerdict.STALLED


def test_a_member_that_waits_for_more_records_may_do_so() -> None:
    driver = running(partitions=1, members=1)
    region, now = driver.store.read(driver.name)
    ends = {driver.partition(0): LogEnd(Offset(5), now - MINUTE)}
    region = replace(region, resets={region.epoch: replace(region.resets[region.epoch], done_at=now - MINUTE)})
    patient = liveness.judge(region, now, Seen(worked_at=NEVER, ends=ends, linger=HOUR))
    assert only(patient).until == BEGINNING - MINUTE + HOUR + patience(driver) + region.rules.timeouts.commit


def test_records_beyond_the_boundary_are_not_readable() -> None:
    driver = hourly(partitions=1, members=1)
    located(driver, boundary(1), 0)
    assert judged(driver, ends=50).waits == ()


def test_records_beyond_a_boundary_are_not_missed_from_before_a_run_asked_for_its_checkpoint() -> None:
    driver = hourly(partitions=1, members=1)
    driver.wait(DAY.total_seconds())
    driver.handle(commands.RequestCheckpoint(request_id=RequestId("run"), boundary=boundary(1)))
    asked = driver.clock.now
    assert driver.region.checkpoint is not None
    (wait,) = (w for w in judged(driver, later=MINUTE, ends=50).waits if w.rule is Rule.RECORDS)
    assert (wait.since, wait.until) == (asked, asked + patience(driver) + driver.held.rules.timeouts.commit)
    located(driver, boundary(1), 0)
    driver.complete()
    driver.publish()
    (wait,) = (w for w in judged(driver, later=MINUTE, ends=50).waits if w.rule is Rule.RECORDS)
    assert (wait.since, wait.until) == (
        driver.clock.now,
        driver.clock.now + patience(driver) + driver.held.rules.timeouts.commit,
    )


def test_a_checkpoint_without_a_boundary_does_not_begin_the_wait_for_unread_records_anew() -> None:
    driver = running(partitions=1, members=1)
    driver.wait(DAY.total_seconds())
    driver.checkpoint("n")
    wait = only(judged(driver, later=MINUTE, ends=50))
    assert (wait.rule, wait.since) == (Rule.RECORDS, BEGINNING)
    assert judged(driver, later=MINUTE, ends=50).stalled == (wait,)


def test_records_beyond_the_count_of_a_checkpoint_wait_behind_what_keeps_it_from_being_opened() -> None:
    rules = RegionRules(groups={GROUP: group_rules(members=1)}, checkpoint=CheckpointRules(records=20))
    driver = started(Driver(partitions=2, rules=rules))
    driver.claim(driver.member(0), [driver.partition(0)])
    driver.process(width=20)
    found = judged(driver, later=DAY, ends=50)
    assert [w.rule for w in found.stalled] == [Rule.PARTITIONS]
    (wait,) = (w for w in found.waits if w.rule is Rule.RECORDS)
    assert wait.what == "30 of g:t-0 can be read, and no batch reads them (behind: partitions)"


def test_what_is_due_and_done_by_nobody_is_a_stall() -> None:
    driver = running(partitions=1, members=1)
    overdue = replace(driver.region, reconcile_at=BEGINNING)
    lasting = {m: replace(row, until=BEGINNING + DAY) for m, row in overdue.leases.items()}
    overdue = replace(overdue, leases=lasting)
    assert liveness.judge(overdue, BEGINNING).waits == ()
    found = liveness.judge(overdue, BEGINNING + patience(driver))
    assert (only(found).rule, found.verdict) == (Rule.RECONCILE, LivenessVerdict.STALLED)


@pytest.mark.parametrize("failures", [0, 1, 20])
def test_patience_takes_the_wait_after_failures_in(failures: int) -> None:
    region = replace(running().region, failures=failures)
    timeouts = region.rules.timeouts
    longest = max(timeouts.relaunch, timeouts.session_timeout(static=True))
    assert liveness.patience(region) == longest + timeouts.lease + timeouts.retry_after(failures)


def test_the_longest_wait_comes_first_and_those_that_are_too_long_before_all() -> None:
    def wait(rule: Rule, since: datetime | None, until: datetime | None) -> Wait:
        return Wait(rule=rule, since=since, what="w", until=until)

    driver = hourly(mode=CheckpointMode.AUTO)
    driver.request_checkpoint("n", purpose=CheckpointPurpose.DRAIN)
    driver.complete()
    driver.wait(3_600)
    found = judged(driver, later=DAY)
    stalled = len(found.stalled)
    assert found.waits[:stalled] == found.stalled
    assert wait(Rule.RECONCILE, None, None).text() == "reconcile: w"


def test_the_judgement_of_a_schedule_that_is_taken_away_ends() -> None:
    driver = hourly(mode=CheckpointMode.AUTO)
    region = replace(driver.region, next_boundary=None)
    rules = replace(region.rules, checkpoint=CheckpointRules(schedule=Every(HOUR)))
    region = replace(region, spec=replace(region.spec, rules=rules))
    assert liveness.judge(region, driver.clock.now).waits == ()


def test_partitions_that_kafka_assigns_to_nobody_are_a_stall_with_since_when() -> None:
    driver = running(partitions=2, members=1)
    fresh = driver.partition(2)
    region = replace(driver.region, unserved={fresh: Unserved(since=BEGINNING)})
    wait = only(liveness.judge(region, BEGINNING))
    assert (wait.rule, wait.since, wait.until) == (Rule.PARTITIONS, BEGINNING, BEGINNING + patience(driver))
    said = "no member owns g:t-2: their records are not read; a member joins its group anew for them"
    assert wait.what == said


def test_partitions_that_are_there_again_count_from_when_that_was_seen() -> None:
    driver = running(partitions=2, members=1)
    driver.wait(DAY.total_seconds())
    driver.claim(driver.member(0), [driver.partition(0)])
    now = driver.clock.now + DAY
    lasting = {m: replace(row, until=now + DAY) for m, row in driver.region.leases.items()}
    region = replace(
        driver.region, unserved={driver.partition(1): Unserved(since=now)}, leases=lasting, reconcile_at=None
    )
    assert liveness.judge(region, now).verdict is LivenessVerdict.WAITING
    assert liveness.judge(region, now + patience(driver)).verdict is LivenessVerdict.STALLED


def test_resets_that_follow_one_another_while_a_checkpoint_is_wanted_are_a_stall() -> None:
    driver = running()
    driver.process()
    driver.checkpoint("first")
    driver.request_checkpoint("wanted")
    since = driver.clock.now
    timeouts, seen = driver.region.rules.timeouts, []
    for resets in range(1, 15):
        driver.request_reset(driver.member(0), ResetCause.BATCH_REFUSED)
        driver.claim(driver.member(0))
        found = [w for w in judged(driver).stalled if w.rule is Rule.RESET]
        over = since + liveness.RESETS_IN_A_ROW * (timeouts.reset + patience(driver))
        assert bool(found) == (resets >= liveness.RESETS_IN_A_ROW and driver.clock.now >= over)
        seen += found
        driver.wait(timeouts.reset.total_seconds() - 1)
    assert seen[-1].since == since
    assert "14 resets and no checkpoint since the restore point; the last one because of batch_refused" in seen[-1].what
    driver.finish_reset()
    driver.complete()
    assert not [w for w in judged(driver).waits if w.rule is Rule.RESET]


def test_members_that_can_not_start_say_why() -> None:
    driver = Driver(partitions=1, members=1)
    driver.handle(START)
    refusal = StartFailure(
        member=driver.member(0), revision=1, digest=driver.region.spec.digest, refusal="no such module"
    )
    region = replace(driver.region, start_failures=(refusal,))
    wait = only(liveness.judge(region, BEGINNING))
    assert (wait.rule, wait.what) == (Rule.MEMBERS, "no member lives; g[0] can't start: no such module")


def test_a_boundary_behind_an_open_checkpoint_of_an_earlier_one_is_no_stall() -> None:
    driver = hourly(mode=CheckpointMode.AUTO)
    driver.wait(3_600)
    assert driver.region.checkpoint is not None
    region = replace(driver.region, next_boundary=boundary(1.5))
    lasting = {m: replace(row, until=boundary(9)) for m, row in region.leases.items()}
    found = liveness.judge(replace(region, leases=lasting, reconcile_at=None), boundary(8))
    assert [w.rule for w in found.stalled] == []
    assert "(behind: checkpoint)" in next(w.what for w in found.waits if w.rule is Rule.BOUNDARY)
