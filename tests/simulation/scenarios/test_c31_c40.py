"""Scenarios C31 to C40.

Metadata that differs, commit read-backs, a restored store, rewinds, deaths, retention, missing topics.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_kcr.errors import CheckpointRefused, MemberInUse, StaleIncarnation, UnknownTopics
from airflow_kcr.protocol.member import messages
from airflow_kcr.protocol.member.state import State
from airflow_kcr.protocol.region import commands, coverage, rows
from airflow_kcr.protocol.region import events as region_events
from airflow_kcr.protocol.region.commands import ChangeSpec, Reconcile, ReportLater, ReportReadBack
from airflow_kcr.protocol.region.state import Spec
from airflow_kcr.protocol.rules import CheckpointMode, CheckpointRules, GroupRules, OutOfRangePolicy, RegionRules
from airflow_kcr.protocol.targets import ToCheckpoint, ToEarliest
from airflow_kcr.protocol.validation import check_topics
from airflow_kcr.protocol.values import (
    BatchId,
    CheckpointNumber,
    Epoch,
    EventNumber,
    Incarnation,
    Offset,
    Range,
    TopicName,
)
from airflow_kcr.schedules import Every
from tests.support import answers
from tests.support.driver import GROUP, START, Driver, group_rules
from tests.support.judging import causes, happened, judge, positions, state
from tests.support.lone_member import LoneMember, claims_of, view_of
from tests.support.scripts import all_crash, boundary, checkpoints_of_ten, located, rewind, running, started

# -- C31, C32 --------------------------------------------------------------------------------------------------------


def test_c31_while_a_partition_is_being_added_the_frozen_set_is_what_is_claimed() -> None:
    driver = running()
    driver.process()
    added = driver.partition(4)
    driver.grow(added, end=1_000)
    # One member's metadata has the partition already; Kafka has assigned it to no member yet.
    before = driver.checkpoint("n1")
    assert added not in driver.region.offsets[before]
    driver.claim(driver.member(1), [*driver.processes[driver.member(1)].assigned, added])
    driver.process()
    after = driver.checkpoint("n2")
    assert driver.region.offsets[after].keys() - driver.region.offsets[before].keys() == {added}
    assert driver.region.frozen[after] == driver.region.offsets[after].keys()
    judge(driver)


def test_c32_a_failed_commit_read_back_of_an_older_checkpoint_is_never_repaired_over_a_newer_one() -> None:
    driver = running()
    driver.process()
    driver.request_checkpoint("n1")
    first = driver.complete()
    driver.publish()
    driver.wait(31)
    assert driver.region.checkpoints[first].committed is rows.Committed.NO
    driver.process()
    second = driver.checkpoint("n2")
    assert driver.region.checkpoints[second].committed is rows.Committed.YES
    before = driver.region
    with pytest.raises(CheckpointRefused, match="not the restore point"):
        driver.handle(ReportReadBack(sequence=first, offsets=driver.region.offsets[first]))
    member = driver.member(0)
    with pytest.raises(CheckpointRefused, match="not the restore point"):
        driver.handle(
            ReportReadBack(
                sequence=first,
                member=member,
                incarnation=driver.processes[member].incarnation,
                offsets=before.offsets[first],
            )
        )
    assert driver.region == before
    judge(driver)


def test_c32_the_restore_point_can_be_repaired_and_that_settles_it() -> None:
    driver = running()
    driver.process()
    driver.request_checkpoint("n1")
    checkpoint = driver.complete()
    driver.publish()
    driver.read_back(driver.member(0))
    driver.read_back(driver.member(1), {driver.partition(2): Offset(3), driver.partition(3): Offset(10)})
    assert driver.region.checkpoints[checkpoint].committed is rows.Committed.NO
    all_crash(driver)
    driver.handle(ReportReadBack(sequence=checkpoint, offsets=driver.region.offsets[checkpoint]))
    assert driver.region.checkpoints[checkpoint].committed is rows.Committed.YES
    judge(driver)


# -- C33 -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("memory", "says"),
    [((9, 1, 1), "epoch 9"), ((1, 7, 1), "incarnation 7"), ((1, 1, 41), "sequence 41")],
    ids=["epoch", "incarnation", "commit metadata"],
)
def test_c33_a_store_that_is_older_than_what_a_member_has_seen_halts_its_region_with_the_reason(
    memory: tuple[int, int, int], says: str
) -> None:
    driver = running()
    driver.process()
    epoch, incarnation, sequence = memory
    seen = ReportLater(
        member=driver.member(0),
        epoch=Epoch(epoch),
        incarnation=Incarnation(incarnation),
        sequence=CheckpointNumber(sequence),
    )
    driver.handle(seen)
    region = driver.region
    assert region.state is rows.RegionState.HALTED
    assert region.halt is not None
    assert region.halt.reason is rows.HaltReason.RESTORED
    assert says in region.halt.text
    assert region.halt.choices
    # Nothing that was ever seen is used twice once a person resumes.
    driver.handle(START)
    assert driver.region.epoch > max(epoch, region.epoch)
    assert driver.region.next_sequence > max(sequence, region.next_sequence)
    assert driver.region.members[driver.member(0)].incarnation >= incarnation


def test_c33_a_member_that_reads_an_older_epoch_than_it_has_seen_reports_it() -> None:
    alone = LoneMember().processing()
    newer = replace(view_of(), epoch=Epoch(7), state=rows.RegionState.RESETTING, counter=alone.view.counter)
    alone.see(newer)
    alone.see(view_of(claims_of()))
    assert [(e.epoch, e.incarnation) for e in alone.wanted(commands.ReportLater)] == [(7, 1)]
    assert not alone.wanted(commands.StartBatch)


def test_c33_a_member_that_is_given_an_incarnation_it_has_been_before_reports_it() -> None:
    alone = LoneMember().join(incarnation=5)
    alone.feed(answers.not_renewed(incarnation=Incarnation(3)))
    assert alone.state is State.JOINING
    alone.feed(answers.registered(incarnation=Incarnation(4), sent_at=alone.now))
    alone.see(view_of(incarnation=4))
    assert [e.incarnation for e in alone.wanted(commands.ReportLater)] == [5]
    # The report raises the store's number; no other process is this member, so it comes back instead of being fenced.
    alone.see(replace(view_of(incarnation=5), state=rows.RegionState.HALTED))
    assert alone.state is State.JOINING
    assert alone.wanted(commands.Register)


def test_c33_a_member_reports_a_restored_store_that_has_got_as_far_again_before_it_heard_of_it() -> None:
    alone = LoneMember().processing()
    seen = replace(view_of(claims_of()), counter=EventNumber(alone.view.counter + 1), recorded_at=answers.NOW)
    alone.see(seen)
    alone.wait(alone.member.timeouts.renew.total_seconds() + 1, renewing=False)
    (renewal,) = alone.wanted(commands.Renew)
    mark = commands.EventMark(number=seen.counter, at=answers.NOW)
    assert renewal.newest == mark
    later = answers.heartbeat(seen.counter, epoch=seen.epoch, is_other_history=True)
    alone.feed(messages.Answered(command=renewal, result=later, sent_at=alone.now))
    assert [e.event for e in alone.wanted(commands.ReportLater)] == [mark]


def test_c33_a_member_whose_number_a_restored_store_has_given_to_another_process_has_no_lease_and_reports_it() -> None:
    alone = LoneMember().processing()
    seen = replace(view_of(claims_of()), counter=EventNumber(alone.view.counter + 1), recorded_at=answers.NOW)
    alone.see(seen)
    alone.see(replace(seen, counter=EventNumber(seen.counter + 9), token="another process"))
    mark = commands.EventMark(number=seen.counter, at=answers.NOW)
    assert [e.event for e in alone.wanted(commands.ReportLater)] == [mark]
    assert (alone.state, alone.member.incarnation) == (State.JOINING, None)
    assert [e.previous for e in alone.wanted(commands.Register)] == [1]
    assert not alone.wanted(commands.StartBatch)


def test_c33_two_processes_of_one_number_do_not_act_as_one_member() -> None:
    """The store was restored to before the second one, and has given its number to the first one, which came back."""
    driver = running(partitions=1, members=1)
    member, process = driver.member(0), driver.processes[driver.member(0)]
    other, number, epoch = "was restored away", process.incarnation, driver.region.epoch
    place = driver.region.claims[driver.partition(0)].position
    assert place is not None
    start = commands.StartBatch(
        batch=BatchId("of the other"),
        member=member,
        incarnation=number,
        epoch=epoch,
        ranges={driver.partition(0): Range(place, Offset(place + 5))},
    )
    with pytest.raises(StaleIncarnation):
        driver.handle(commands.from_process(member, other, start))
    assert not driver.region.running
    assert driver.handle(commands.ReadRegion(member=member)).token == process.token
    # The one that the store has goes on; the other one asks for the index like any stranger.
    driver.handle(commands.from_process(member, process.token, start))
    with pytest.raises(MemberInUse):
        driver.handle(commands.Register(member=member, token=other, previous=number))
    judge(driver)


def test_c33_a_region_whose_history_is_another_than_a_member_has_seen_halts_with_the_reason() -> None:
    driver = running()
    region = driver.region
    mark = commands.EventMark(number=region.counter, at=driver.clock.now)
    seen = ReportLater(
        member=driver.member(0),
        epoch=region.epoch,
        incarnation=Incarnation(1),
        sequence=CheckpointNumber(1),
        timeline=region.timeline,
        event=mark,
    )
    driver.handle(seen)
    halt = driver.region.halt
    assert halt is not None
    assert halt.reason is rows.HaltReason.RESTORED
    assert f"event {mark.number} recorded at {mark.at.isoformat()}, and the store has another one" in halt.text
    halted = driver.region
    driver.handle(replace(seen, member=driver.member(1)))
    assert driver.region == halted, "told once is enough"
    # Another member, which was frozen until a person had resumed the region, halts it no more.
    driver.handle(START)
    driver.finish_reset()
    driver.handle(replace(seen, member=driver.member(1)))
    assert driver.region.state is rows.RegionState.RUNNING


# -- C34 -------------------------------------------------------------------------------------------------------------


def test_c34_an_upsert_target_converges_when_the_replay_passes_the_old_position() -> None:
    """That a person consents first, and an automatic reset is not asked: `unit/protocol/region/test_consent.py`."""
    driver = running(partitions=1, members=1)
    q, target = driver.partition(0), dict[int, int]()

    def process_into_target(width: int = 10) -> None:
        range_ = driver.row(driver.start_batch(driver.member(0), width)).ranges[q]
        target.update({offset % 7: offset for offset in range(range_.from_, range_.to)})
        driver.finish_batch(driver.batches[-1].batch)

    process_into_target()
    checkpoint = driver.checkpoint("n1")
    process_into_target(20)
    passed = dict(target)
    rewind(driver, ToCheckpoint(sequence=checkpoint))
    process_into_target(5)
    assert target != passed
    process_into_target(15)
    assert target == passed
    judge(driver)


# -- C35, C36, C37 ---------------------------------------------------------------------------------------------------


def test_c35_three_members_of_one_driver_that_die_and_come_back_staggered_are_one_reset() -> None:
    driver = running(partitions=6, members=4)
    driver.process()
    died = [driver.member(n) for n in (0, 1, 2)]
    assigned = {m: driver.processes[m].assigned for m in died}
    for member in died:
        driver.start_batch(member)
    all_crash(driver, died)
    for member in died:
        driver.join(member)
        driver.claim(member, assigned[member])
        driver.wait(45)
    driver.finish_reset()
    assert state(driver) is rows.RegionState.RUNNING
    assert causes(driver)[1:] == [rows.ResetCause.CLAIM]
    judge(driver)


def test_c36_fifty_deaths_in_a_region_that_never_checkpoints_do_not_halt_it() -> None:
    driver = running(partitions=2, members=1)
    for _ in range(50):
        driver.process()
        driver.start_batch(driver.member(0))
        driver.crash(driver.member(0))
        driver.recover()
        driver.wait(600)
    assert state(driver) is rows.RegionState.RUNNING
    assert driver.region.failures == 0
    judge(driver)


def test_c37_attempts_are_not_burnt_while_kafka_keeps_the_partitions_of_a_dead_static_member() -> None:
    driver = running()
    alive, dead = driver.member(0), driver.member(1)
    driver.process()
    batch = driver.start_batch(alive)
    all_crash(driver, [dead])
    driver.discard(batch)
    driver.request_reset(alive, rows.ResetCause.BATCH_FAILED, "it raised")
    driver.claim(alive)
    driver.acknowledge(alive)
    epoch = driver.region.epoch
    driver.wait(3600)
    assert (state(driver), driver.region.epoch) == (rows.RegionState.STARTING, epoch)
    waits = list(coverage.unready(driver.region, driver.clock.now))
    assert waits == [f"g:t-{n} is not covered (last owner: g[1])" for n in (2, 3)]
    # Its session is over: Kafka moves what it had.
    driver.claim(alive, [driver.partition(n) for n in range(4)])
    driver.finish_reset()
    assert (state(driver), driver.region.epoch) == (rows.RegionState.RUNNING, epoch)
    assert driver.region.failures == 1
    judge(driver)


# -- C38 -------------------------------------------------------------------------------------------------------------


def claim_until_settled(driver: Driver) -> None:
    """Let members claim as often as claims of others move the epoch, as they do; each finds its own partitions."""
    while any(driver.region.members[m].claimed != driver.region.epoch for m in driver.all_members()):
        for member in driver.all_members():
            driver.claim(member)
    driver.finish_reset()


def overtaken(policy: OutOfRangePolicy) -> Driver:
    """A region at 50 with its restore point at 10, whose logs now begin at 20; one member has died."""
    driver = started(Driver(rules=RegionRules(groups={GROUP: group_rules()}, out_of_range=policy)))
    driver.process()
    driver.checkpoint("n1")
    driver.process(width=40)
    for partition in tuple(driver.logs):
        driver.grow(partition, start=20, end=1_000)
    driver.crash(driver.member(0))
    driver.wait(60)
    driver.join(driver.member(0))
    driver.spread()
    return driver


def test_c38_a_restore_point_that_retention_has_overtaken_halts_at_once_with_the_choices() -> None:
    driver = overtaken(OutOfRangePolicy.FAIL)
    region = driver.region
    assert region.state is rows.RegionState.HALTED
    assert region.halt is not None
    assert region.halt.reason is rows.HaltReason.OUT_OF_RANGE
    assert "at 10: retention overtook it: the log now starts at 20" in region.halt.text
    assert any("out_of_range" in choice for choice in region.halt.choices)
    assert region.failures == 0
    assert causes(driver)[1:] == [rows.ResetCause.CLAIM]
    driver.reset(ToEarliest(), forced=True)
    driver.finish_reset()
    assert (state(driver), positions(driver)) == (rows.RegionState.RUNNING, [20] * 4)
    judge(driver)


def test_c38_with_a_policy_it_is_a_reset_of_that_cause_with_a_timeline_of_its_own() -> None:
    driver = overtaken(OutOfRangePolicy.EARLIEST)
    claim_until_settled(driver)
    assert (state(driver), positions(driver)) == (rows.RegionState.RUNNING, [20] * 4)
    assert rows.ResetCause.OUT_OF_RANGE in causes(driver)
    begun = [b for b in happened(driver, region_events.ResetBegun) if b.cause is rows.ResetCause.OUT_OF_RANGE]
    assert [b.timeline for b in begun] == [2, 3]
    driver.process()
    judge(driver)


@pytest.mark.parametrize("policy", [OutOfRangePolicy.FAIL, OutOfRangePolicy.EARLIEST])
def test_c38_a_persons_reset_whose_target_is_overtaken_meanwhile_still_ends(policy: OutOfRangePolicy) -> None:
    driver = started(Driver(rules=RegionRules(groups={GROUP: group_rules()}, out_of_range=policy)))
    checkpoints = checkpoints_of_ten(driver, 2)
    accepted_reset = driver.reset(ToCheckpoint(sequence=checkpoints[0]))
    driver.complete()
    for partition in tuple(driver.logs):
        driver.grow(partition, start=15, end=1_000)
    driver.claim(driver.member(0))
    if policy is OutOfRangePolicy.EARLIEST:
        claim_until_settled(driver)
        assert positions(driver) == [15] * 4
    else:
        assert state(driver) is rows.RegionState.HALTED
    ended = driver.region.person_resets[accepted_reset.request_id]
    assert ended.state is rows.PersonResetState.FAILED
    assert ended.failure
    if policy is OutOfRangePolicy.FAIL:
        driver.handle(START)
        driver.reset(ToEarliest(), forced=True)
        driver.finish_reset()
    # The next person's reset is not kept waiting by it.
    rewind(driver, ToEarliest())
    judge(driver)


# -- C39 -------------------------------------------------------------------------------------------------------------


def test_c39_a_listed_topic_that_does_not_exist_is_an_error_that_names_it() -> None:
    rules = RegionRules(groups={GROUP: group_rules(topic="flihgts")})
    with pytest.raises(UnknownTopics, match=r"flihgts \(group g\)"):
        check_topics(rules, {GROUP: {TopicName("flights")}})


def test_c39_a_checkpoint_with_a_topic_that_the_spec_has_no_more_is_still_usable() -> None:
    two = GroupRules(group_id=GROUP, topics=(TopicName("t"), TopicName("u")), members=2)
    driver = started(Driver(partitions=2, rules=RegionRules(groups={GROUP: two})))
    driver.process()
    first = driver.checkpoint("n1")
    assert {p.topic for p in driver.region.offsets[first]} == {"t", "u"}
    driver.process()
    one = Spec(text="{}", rules=RegionRules(groups={GROUP: group_rules(topic="t")}), revision=2)
    driver.handle(ChangeSpec(at_once=driver.region.spec, later=one))
    driver.request_checkpoint("n2")
    driver.complete()
    for partition in [p for p in driver.logs if p.topic == "u"]:
        del driver.logs[partition]
    for member in driver.all_members():
        driver.join(member, takeover=True)
    driver.spread()
    driver.finish_reset()
    assert state(driver) is rows.RegionState.RUNNING
    rewind(driver, ToCheckpoint(sequence=first))
    assert positions(driver, topic="t") == [10, 10]
    assert set(driver.region.seek) == set(driver.logs)
    driver.process()
    judge(driver)


def test_c39_a_pattern_that_matches_nothing_waits_and_says_so() -> None:
    group = GroupRules(group_id=GROUP, pattern=r"^flights\.", members=1)
    driver = Driver(rules=RegionRules(groups={GROUP: group}))
    assert check_topics(driver.region.rules, {GROUP: set()}).keys() == {GROUP}
    driver.handle(START)
    member = driver.member(0)
    driver.join(member)
    driver.claim(member, [])
    driver.acknowledge(member)
    driver.wait(3600)
    assert state(driver) is rows.RegionState.STARTING
    (why,) = coverage.unready(driver.region, driver.clock.now)
    assert "no topic matches" in why
    # The first topic appears.
    found = driver.partition(0, topic="flights.eu")
    driver.grow(found, end=100)
    driver.claim(member, [found])
    driver.finish_reset()
    assert state(driver) is rows.RegionState.RUNNING
    assert causes(driver) == [rows.ResetCause.START]
    judge(driver)


# -- C40 -------------------------------------------------------------------------------------------------------------

MINUTES = timedelta(minutes=5)


def after_an_outage(*, catchup: bool, days: float) -> Driver:
    """A region that checkpoints itself every five minutes, back after an outage."""
    checkpoint = CheckpointRules(schedule=Every(MINUTES), mode=CheckpointMode.AUTO, catchup=catchup)
    driver = started(Driver(rules=RegionRules(groups={GROUP: group_rules()}, checkpoint=checkpoint)))
    driver.processes.clear()
    driver.clock.advance(days * 86_400)
    for member in driver.all_members():
        driver.join(member)
    driver.spread()
    return driver


def checkpoint_as_they_come(driver: Driver) -> list[float]:
    """Make every checkpoint that the region asks for, and return their boundaries in minutes since the beginning."""
    made: list[float] = []
    while (checkpoint := driver.region.checkpoint) is not None:
        assert checkpoint.boundary is not None
        place = 10 * (len(made) + 1)
        located(driver, checkpoint.boundary, place)
        driver.process()
        driver.handle(Reconcile())
        driver.complete()
        driver.publish()
        driver.handle(Reconcile())
        made.append((checkpoint.boundary - boundary(0)) / timedelta(minutes=1))
    return made


def test_c40_after_thirty_days_of_backlog_there_is_one_catch_up_checkpoint_of_the_latest_boundary() -> None:
    driver = after_an_outage(catchup=False, days=30)
    assert checkpoint_as_they_come(driver) == [30 * 24 * 60]
    assert driver.region.next_boundary == boundary(30 * 24) + MINUTES
    judge(driver)


def test_c40_or_each_missed_boundary_has_its_checkpoint_where_that_is_configured() -> None:
    driver = after_an_outage(catchup=True, days=1 / 24)
    assert checkpoint_as_they_come(driver) == list(range(5, 65, 5))
    judge(driver)


def test_c40_the_catch_up_checkpoint_answers_the_requests_of_all_the_missed_runs() -> None:
    driver = after_an_outage(catchup=False, days=1)
    driver.handle(Reconcile())
    asked = [driver.request_checkpoint(f"run{n}", boundary=boundary(n)) for n in (1, 2, 3)]
    made = checkpoint_as_they_come(driver)
    answers = [driver.region.requests[r.request_id] for r in asked]
    assert {a.state for a in answers} == {rows.RequestState.ANSWERED}
    assert {a.sequence for a in answers} == {driver.region.restore_sequence}
    assert len(made) == 1
    judge(driver)
