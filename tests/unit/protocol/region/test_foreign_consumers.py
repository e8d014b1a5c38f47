"""What is made of a foreign consumer in a group: by policy the region halts or warns, and each is told once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_kcr.api.views import RegionView
from airflow_kcr.protocol.observations import ForeignConsumer
from airflow_kcr.protocol.region import coverage, events
from airflow_kcr.protocol.region.commands import ReportGroups
from airflow_kcr.protocol.region.rows import Committed, HaltReason, RegionState, RequestState, ResetCause
from airflow_kcr.protocol.rules import CheckpointRules, ForeignConsumerPolicy, RegionRules
from airflow_kcr.protocol.values import GroupId, RequestId
from tests.support.driver import GROUP, START, Driver, group_rules
from tests.support.judging import causes, halt_of, happened, judge, open_checkpoint, state
from tests.support.scripts import started

STRANGER = ForeignConsumer(group=GROUP, client_id="console", host="/10.0.0.1")
ANOTHER = ForeignConsumer(group=GROUP, client_id="console", host="/10.0.0.2", instance_id="copy-0")
CLEAN: dict[GroupId, tuple[ForeignConsumer, ...]] = {GROUP: ()}


def region_of(
    policy: ForeignConsumerPolicy, *, checkpoint: CheckpointRules | None = None, groups: tuple[str, ...] = ("g",)
) -> Driver:
    rules = RegionRules(
        groups={GroupId(g): group_rules(g, members=1) for g in groups},
        foreign_consumers=policy,
        checkpoint=checkpoint or CheckpointRules(),
    )
    return started(Driver(rules=rules))


def found(driver: Driver, *foreign_consumers: ForeignConsumer) -> None:
    driver.handle(ReportGroups(seen={GROUP: foreign_consumers}))


def answered(driver: Driver, request_id: str) -> RequestState:
    return driver.region.requests[RequestId(request_id)].state


# -- any policy -------------------------------------------------------------------------------------------------------


def test_a_foreign_consumer_is_told_by_what_stays_of_it() -> None:
    assert str(STRANGER) == "consumer console on host 10.0.0.1 in group g"
    assert str(ANOTHER) == "consumer console on host 10.0.0.2, group.instance.id copy-0 in group g"
    assert str(ForeignConsumer(group=GROUP, what="share group")) == "share group in group g"


@pytest.mark.parametrize("policy", ForeignConsumerPolicy)
def test_a_report_that_is_repeated_changes_nothing(policy: ForeignConsumerPolicy) -> None:
    driver = region_of(policy)
    found(driver, STRANGER)
    region = driver.region
    for _ in range(3):
        found(driver, STRANGER)
    assert driver.region == region
    assert happened(driver, events.ForeignConsumersChanged) == [
        events.ForeignConsumersChanged(foreign_consumers=(STRANGER,), policy=policy)
    ]


def test_each_foreign_consumer_is_told_once_when_it_comes_and_once_when_it_goes() -> None:
    driver = region_of(ForeignConsumerPolicy.WARN)
    found(driver, ANOTHER, STRANGER)
    found(driver, ANOTHER)
    found(driver)
    known = [e.foreign_consumers for e in happened(driver, events.ForeignConsumersChanged)]
    assert known == [(STRANGER, ANOTHER), (ANOTHER,), ()]
    assert driver.region.foreign_consumers == ()
    judge(driver)


def test_what_was_told_of_a_group_stays_until_somebody_looks_at_that_group() -> None:
    driver = region_of(ForeignConsumerPolicy.WARN, groups=("g", "h"))
    found(driver, STRANGER)
    driver.handle(ReportGroups(seen={GroupId("h"): ()}))
    assert list(driver.region.foreign_consumers) == [STRANGER]
    driver.handle(ReportGroups(seen=CLEAN))
    assert list(driver.region.foreign_consumers) == []


def test_a_group_that_the_region_does_not_have_is_none_of_its_business() -> None:
    driver = region_of(ForeignConsumerPolicy.FAIL)
    counter = driver.region.counter
    driver.handle(ReportGroups(seen={GroupId("x"): (replace(STRANGER, group=GroupId("x")),)}))
    assert driver.region.counter == counter


# -- fail -------------------------------------------------------------------------------------------------------------


def test_fail_halts_the_region_and_names_everybody() -> None:
    driver = region_of(ForeignConsumerPolicy.FAIL)
    found(driver, STRANGER, ANOTHER)
    halt = halt_of(driver)
    assert (state(driver), halt.reason) == (RegionState.HALTED, HaltReason.FOREIGN_CONSUMER)
    assert halt.text == f"{STRANGER}; {ANOTHER}"
    assert len(happened(driver, events.Halted)) == 1


def test_a_halted_region_keeps_its_reason() -> None:
    driver = region_of(ForeignConsumerPolicy.FAIL)
    for _ in range(6):
        driver.request_reset(driver.member(0), ResetCause.BATCH_FAILED, "it broke")
        if state(driver) is not RegionState.HALTED:
            driver.finish_reset()
    found(driver, STRANGER)
    assert halt_of(driver).reason is HaltReason.FAILURES
    assert len(happened(driver, events.Halted)) == 1


def test_a_stopped_region_is_not_halted() -> None:
    driver = Driver()
    found(driver, STRANGER)
    assert (state(driver), driver.region.halt) == (RegionState.STOPPED, None)
    assert driver.region.foreign_consumers == (STRANGER,)


def test_a_resume_with_the_foreign_consumer_still_there_is_halted_again() -> None:
    driver = region_of(ForeignConsumerPolicy.FAIL)
    found(driver, STRANGER)
    driver.handle(START)
    assert state(driver) is not RegionState.HALTED
    found(driver, STRANGER)
    assert state(driver) is RegionState.HALTED
    assert len(happened(driver, events.ForeignConsumersChanged)) == 1
    assert len(happened(driver, events.Halted)) == 2


# -- a reset beside a foreign consumer
# ---------------------------------------------------------------------------------------


def beside_one_with_two_of_four(policy: ForeignConsumerPolicy) -> Driver:
    """Return a region of four partitions in a reset, of which a foreign consumer has taken two."""
    driver = region_of(policy)
    driver.process()
    driver.checkpoint("before")
    member = driver.member(0)
    driver.process()
    driver.claim(member, [driver.partition(0), driver.partition(1)])
    driver.request_reset(member, ResetCause.BATCH_REFUSED, "a batch")
    driver.claim(member)
    driver.acknowledge(member)
    assert driver.region.reset is not None
    return driver


def test_where_it_is_to_warn_a_reset_is_done_without_what_the_foreign_consumer_has() -> None:
    driver = beside_one_with_two_of_four(ForeignConsumerPolicy.WARN)
    found(driver, STRANGER)
    assert state(driver) is RegionState.RUNNING
    driver.process()
    assert [c.position for _, c in sorted(driver.region.claims.items())] == [20, 20, 10, 10]
    driver.wait(3_600)
    assert (state(driver), driver.region.failures) == (RegionState.RUNNING, 0)
    judge(driver)


def test_what_comes_back_from_it_is_reset_with_all_the_others_once() -> None:
    driver = beside_one_with_two_of_four(ForeignConsumerPolicy.WARN)
    found(driver, STRANGER)
    driver.process()
    before = len(causes(driver))
    found(driver)
    driver.claim(driver.member(0), sorted(driver.logs))
    assert causes(driver)[before:] == [ResetCause.CLAIM]
    driver.finish_reset()
    driver.claim(driver.member(0), sorted(driver.logs))
    assert (state(driver), len(causes(driver)), driver.region.failures) == (RegionState.RUNNING, before + 1, 0)
    driver.process()
    judge(driver)


def test_while_nobody_knows_of_a_foreign_consumer_what_it_has_is_waited_for() -> None:
    driver = beside_one_with_two_of_four(ForeignConsumerPolicy.WARN)
    assert state(driver) is RegionState.RESETTING
    driver.wait(driver.region.rules.timeouts.reset.total_seconds() + 1)
    assert causes(driver)[-1] == ResetCause.ATTEMPT_EXPIRED


def test_the_foreign_consumer_is_named_with_what_waits_and_in_the_note_of_the_region() -> None:
    driver = region_of(ForeignConsumerPolicy.WARN)
    found(driver, STRANGER)
    driver.request_reset(driver.member(0), ResetCause.BATCH_REFUSED, "a batch")
    region, now = driver.store.read(driver.name)
    waits = list(coverage.gaps(region, now))
    assert waits[0] == f"g:t-0 is not covered (last owner: g[0]); beside its members there is {STRANGER}"
    assert "batch_refused: g:t-0 is not covered" in RegionView.of(region, now).liveness.text()
    driver = beside_one_with_two_of_four(ForeignConsumerPolicy.WARN)
    found(driver, STRANGER)
    note = RegionView.of(*driver.store.read(driver.name)).note
    assert f"not of this region: {STRANGER}, and no member has g:t-2, g:t-3 (policy warn)" in note


def test_what_a_dead_member_held_is_its_own_until_its_session_is_over() -> None:
    rules = RegionRules(groups={GROUP: group_rules(members=2)}, foreign_consumers=ForeignConsumerPolicy.WARN)
    driver = started(Driver(rules=rules))
    driver.process()
    driver.checkpoint("before")
    driver.crash(driver.member(1))
    timeouts = driver.region.rules.timeouts
    found(driver, STRANGER)
    driver.wait(timeouts.lease.total_seconds() + 1)
    member = driver.member(0)
    driver.request_reset(member, ResetCause.BATCH_REFUSED, "a batch")
    driver.claim(member)
    driver.acknowledge(member)
    assert state(driver) is not RegionState.RUNNING
    driver.wait(timeouts.session_timeout(static=True).total_seconds() + 60)
    assert state(driver) is RegionState.RUNNING


# -- checkpoints beside a foreign consumer
# ------------------------------------------------------------------------------------------


def test_where_it_is_to_warn_a_checkpoint_holds_what_the_foreign_consumer_has_where_it_stands_and_names_it() -> None:
    driver = beside_one_with_two_of_four(ForeignConsumerPolicy.WARN)
    found(driver, STRANGER)
    driver.process()
    sequence = driver.checkpoint("beside")
    row = driver.region.checkpoints[sequence]
    assert {p.partition: o for p, o in driver.region.offsets[sequence].items()} == {0: 20, 1: 20, 2: 10, 3: 10}
    assert {p.partition for p in row.inexact} == {2, 3}
    assert set(row.inexact.values()) == {
        f"no member owned it, but {STRANGER}; nothing of it was processed for this checkpoint"
    }
    assert (row.committed, row.published_at is not None) == (Committed.NO, True)
    told = happened(driver, events.CommitResolved)[-1]
    assert told.why == "g:t-2 was not a member's to commit: a foreign consumer had it"
    judge(driver)


def test_a_reset_to_such_a_checkpoint_loses_and_repeats_nothing() -> None:
    driver = beside_one_with_two_of_four(ForeignConsumerPolicy.WARN)
    found(driver, STRANGER)
    driver.process()
    driver.checkpoint("beside")
    driver.process()
    found(driver)
    driver.claim(driver.member(0), sorted(driver.logs))
    driver.finish_reset()
    driver.claim(driver.member(0), sorted(driver.logs))
    assert [c.position for _, c in sorted(driver.region.claims.items())] == [20, 20, 10, 10]
    driver.process()
    sequence = driver.checkpoint("whole")
    assert not driver.region.checkpoints[sequence].inexact
    assert driver.region.checkpoints[sequence].committed is Committed.YES
    judge(driver)


def test_a_checkpoint_at_a_boundary_waits_for_what_the_foreign_consumer_has_unless_it_may_be_inexact() -> None:
    driver = beside_one_with_two_of_four(ForeignConsumerPolicy.WARN)
    found(driver, STRANGER)
    driver.request_checkpoint("exact", boundary=driver.clock.now)
    driver.request_checkpoint("inexact", boundary=driver.clock.now, allow_inexact=True)
    assert answered(driver, "exact") is RequestState.QUEUED
    assert answered(driver, "inexact") is RequestState.OPEN


def test_a_partition_that_comes_back_while_a_checkpoint_drains_aborts_it() -> None:
    driver = beside_one_with_two_of_four(ForeignConsumerPolicy.WARN)
    found(driver, STRANGER)
    driver.request_checkpoint("beside")
    driver.claim(driver.member(0), sorted(driver.logs))
    assert open_checkpoint(driver) is None
    assert causes(driver)[-1] == ResetCause.CLAIM
    judge(driver)
