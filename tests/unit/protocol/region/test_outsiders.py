"""What is made of a foreign consumer in a group: by policy the region halts, holds or warns, and each is told once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_kcr.errors import BatchRefused
from airflow_kcr.protocol.group_members import Outsider
from airflow_kcr.protocol.region import events, hold
from airflow_kcr.protocol.region.rows import (
    CutPhase,
    CutPurpose,
    HaltReason,
    RegionState,
    RequestState,
    ResetCause,
    Wanted,
)
from airflow_kcr.protocol.region.state import Spec
from airflow_kcr.protocol.region.view import of_member
from airflow_kcr.protocol.rules import CutMode, CutRules, OutsiderPolicy, RegionRules
from airflow_kcr.protocol.values import GroupId, Nonce, Sequence
from airflow_kcr.schedules import Every
from airflow_kcr.store.regions import SpecUpdate
from tests.support.driver import GROUP, Driver, group_rules
from tests.support.judging import happened, judge, open_cut, state
from tests.support.scripts import HOUR, bound, located, started

STRANGER = Outsider(group=GROUP, client_id="console", host="/10.0.0.1")
ANOTHER = Outsider(group=GROUP, client_id="console", host="/10.0.0.2", instance_id="copy-0")
CLEAN: dict[GroupId, tuple[Outsider, ...]] = {GROUP: ()}


def region_of(policy: OutsiderPolicy, *, cut: CutRules | None = None, groups: tuple[str, ...] = ("g",)) -> Driver:
    rules = RegionRules(
        groups={GroupId(g): group_rules(g, members=1) for g in groups}, outsiders=policy, cut=cut or CutRules()
    )
    return started(Driver(rules=rules))


def found(driver: Driver, *outsiders: Outsider) -> None:
    driver.store.report_groups(driver.name, {GROUP: outsiders})


def answered(driver: Driver, nonce: str) -> RequestState:
    return driver.region.requests[Nonce(nonce)].state


# -- any policy -------------------------------------------------------------------------------------------------------


def test_an_outsider_is_told_by_what_stays_of_it() -> None:
    assert str(STRANGER) == "consumer console on host 10.0.0.1 in group g"
    assert str(ANOTHER) == "consumer console on host 10.0.0.2, group.instance.id copy-0 in group g"
    assert str(Outsider(group=GROUP, what="share group")) == "share group in group g"


@pytest.mark.parametrize("policy", OutsiderPolicy)
def test_a_report_that_is_repeated_changes_nothing(policy: OutsiderPolicy) -> None:
    driver = region_of(policy)
    found(driver, STRANGER)
    region = driver.region
    for _ in range(3):
        found(driver, STRANGER)
    assert driver.region == region
    assert happened(driver, events.OutsidersSeen) == [events.OutsidersSeen(outsiders=(STRANGER,), policy=policy)]


@pytest.mark.parametrize("policy", OutsiderPolicy)
def test_a_clean_report_of_a_clean_region_changes_nothing(policy: OutsiderPolicy) -> None:
    driver = region_of(policy)
    counter = driver.region.counter
    driver.store.report_groups(driver.name, CLEAN)
    assert driver.region.counter == counter


def test_each_outsider_is_told_once_when_it_comes_and_once_when_it_goes() -> None:
    driver = region_of(OutsiderPolicy.WARN)
    found(driver, ANOTHER, STRANGER)
    found(driver, ANOTHER)
    found(driver)
    assert happened(driver, events.OutsidersSeen)[0].outsiders == (STRANGER, ANOTHER)
    assert [e.outsiders for e in happened(driver, events.OutsidersGone)] == [(STRANGER,), (ANOTHER,)]
    assert driver.region.outsiders == ()
    judge(driver)


def test_what_was_told_of_a_group_stays_until_somebody_looks_at_that_group() -> None:
    driver = region_of(OutsiderPolicy.HOLD, groups=("g", "h"))
    found(driver, STRANGER)
    driver.store.report_groups(driver.name, {GroupId("h"): ()})
    assert hold.held_by(driver.region) == (STRANGER,)
    driver.store.report_groups(driver.name, CLEAN)
    assert hold.held_by(driver.region) == ()


def test_a_group_that_the_region_does_not_have_is_none_of_its_business() -> None:
    driver = region_of(OutsiderPolicy.FAIL)
    counter = driver.region.counter
    driver.store.report_groups(driver.name, {GroupId("x"): (replace(STRANGER, group=GroupId("x")),)})
    assert driver.region.counter == counter


# -- fail -------------------------------------------------------------------------------------------------------------


def test_fail_halts_the_region_and_names_everybody() -> None:
    driver = region_of(OutsiderPolicy.FAIL)
    found(driver, STRANGER, ANOTHER)
    halt = driver.region.halt
    assert halt is not None
    assert (state(driver), halt.reason) == (RegionState.HALTED, HaltReason.OUTSIDER)
    assert halt.text == f"{STRANGER}; {ANOTHER}"
    assert len(happened(driver, events.Halted)) == 1


def test_a_halted_region_keeps_its_reason() -> None:
    driver = region_of(OutsiderPolicy.FAIL)
    for _ in range(6):
        driver.store.request_reset(driver.name, driver.caller(driver.member(0)), ResetCause.BATCH_FAILED, "it broke")
        if state(driver) is not RegionState.HALTED:
            driver.settle_reset()
    found(driver, STRANGER)
    driver.store.report_outsider(driver.name, "a stranger")
    assert driver.region.halt is not None
    assert driver.region.halt.reason is HaltReason.FAILURES
    assert len(happened(driver, events.Halted)) == 1


def test_a_stopped_region_is_not_halted() -> None:
    driver = Driver()
    found(driver, STRANGER)
    driver.store.report_outsider(driver.name, "a stranger")
    assert (state(driver), driver.region.halt) == (RegionState.STOPPED, None)
    assert driver.region.outsiders == (STRANGER,)


def test_a_resume_with_the_outsider_still_there_is_halted_again() -> None:
    driver = region_of(OutsiderPolicy.FAIL)
    found(driver, STRANGER)
    driver.store.start(driver.name)
    assert state(driver) is not RegionState.HALTED
    found(driver, STRANGER)
    assert state(driver) is RegionState.HALTED
    assert len(happened(driver, events.OutsidersSeen)) == 1
    assert len(happened(driver, events.Halted)) == 2


# -- warn -------------------------------------------------------------------------------------------------------------


def test_warn_goes_on() -> None:
    driver = region_of(OutsiderPolicy.WARN)
    found(driver, STRANGER)
    driver.process()
    assert driver.cut("n1") == 2
    assert hold.held_by(driver.region) == ()


# -- hold -------------------------------------------------------------------------------------------------------------


def test_while_a_region_holds_no_batch_begins_and_the_one_in_flight_ends() -> None:
    driver = region_of(OutsiderPolicy.HOLD)
    batch = driver.begin(driver.member(0))
    found(driver, STRANGER)
    driver.end(batch)
    with pytest.raises(BatchRefused, match=r"holds until consumer console on host 10\.0\.0\.1 in group g is gone"):
        driver.begin(driver.member(0))
    assert state(driver) is RegionState.RUNNING
    driver.store.report_groups(driver.name, CLEAN)
    driver.process()
    judge(driver)


def test_while_a_region_holds_cuts_queue_and_open_when_it_goes_on() -> None:
    driver = region_of(OutsiderPolicy.HOLD)
    driver.process()
    found(driver, STRANGER)
    for nonce, purpose in (("n1", CutPurpose.REQUEST), ("n2", CutPurpose.DRAIN)):
        driver.store.request_cut(driver.name, Nonce(nonce), purpose=purpose)
    assert open_cut(driver) is None
    assert [answered(driver, n) for n in ("n1", "n2")] == [RequestState.QUEUED, RequestState.QUEUED]
    driver.wait(60)
    assert open_cut(driver) is None
    driver.store.report_groups(driver.name, CLEAN)
    assert answered(driver, "n2") is RequestState.OPEN
    driver.complete()
    judge(driver)


def test_a_cut_that_drains_when_the_outsider_is_found_is_completed() -> None:
    driver = region_of(OutsiderPolicy.HOLD)
    driver.process()
    driver.store.request_cut(driver.name, Nonce("n1"))
    found(driver, STRANGER)
    driver.complete()
    assert answered(driver, "n1") is RequestState.ANSWERED
    with pytest.raises(BatchRefused, match="holds until"):
        driver.begin(driver.member(0))


def test_a_cut_that_approaches_its_bound_waits_and_goes_on_afterwards() -> None:
    driver = region_of(OutsiderPolicy.HOLD, cut=CutRules(schedule=Every(HOUR), mode=CutMode.DAG_RUN))
    located(driver, bound(1), 10)
    driver.store.request_cut(driver.name, Nonce("n1"), bound=bound(1))
    found(driver, STRANGER)
    with pytest.raises(BatchRefused, match="holds until"):
        driver.begin(driver.member(0))
    driver.store.request_cut(driver.name, Nonce("n2"), purpose=CutPurpose.DRAIN)
    cut = driver.region.cut
    assert cut is not None
    assert (cut.nonce, cut.phase) == ("n1", CutPhase.APPROACHING)
    driver.store.report_groups(driver.name, CLEAN)
    assert answered(driver, "n2") is RequestState.OPEN


def test_the_last_of_several_outsiders_has_to_be_gone() -> None:
    driver = region_of(OutsiderPolicy.HOLD)
    found(driver, STRANGER, ANOTHER)
    found(driver, ANOTHER)
    with pytest.raises(BatchRefused, match="copy-0"):
        driver.begin(driver.member(0))
    found(driver)
    driver.process()


def test_a_hold_outlives_who_told_of_it_and_a_reset() -> None:
    driver = region_of(OutsiderPolicy.HOLD)
    driver.process()
    found(driver, STRANGER)
    driver.crash(driver.member(0))
    driver.recover()
    assert state(driver) is RegionState.RUNNING
    with pytest.raises(BatchRefused, match="holds until"):
        driver.begin(driver.member(0))
    driver.store.report_groups(driver.name, CLEAN)
    driver.process()
    judge(driver)


def test_a_region_that_holds_can_be_stopped_and_killed() -> None:
    driver = region_of(OutsiderPolicy.HOLD)
    driver.process()
    found(driver, STRANGER)
    driver.store.stop(driver.name)
    assert open_cut(driver) == Sequence(2)
    driver.complete()
    driver.publish()
    driver.echo(driver.member(0))
    assert state(driver) is RegionState.STOPPED
    other = region_of(OutsiderPolicy.HOLD)
    found(other, STRANGER)
    other.store.kill(other.name)
    assert state(other) is RegionState.STOPPED


@pytest.mark.parametrize("policy", [OutsiderPolicy.FAIL, OutsiderPolicy.WARN])
def test_another_policy_ends_the_hold_at_once(policy: OutsiderPolicy) -> None:
    driver = region_of(OutsiderPolicy.HOLD)
    found(driver, STRANGER)
    changed = Spec(text="{}", rules=replace(driver.region.rules, outsiders=policy), revision=2)
    driver.store.change_spec(driver.name, SpecUpdate(at_once=changed))
    driver.process()


def test_members_see_for_whom_they_hold() -> None:
    driver = started(Driver(rules=RegionRules(groups={GROUP: group_rules(members=2)}, outsiders=OutsiderPolicy.HOLD)))
    found(driver, STRANGER)
    views = [of_member(driver.region, driver.member(n), driver.clock.now) for n in range(2)]
    assert [v.held_by for v in views] == [(STRANGER,), (STRANGER,)]


def test_a_paused_region_stays_paused_after_its_hold() -> None:
    driver = region_of(OutsiderPolicy.HOLD)
    driver.store.pause(driver.name)
    found(driver, STRANGER)
    driver.store.report_groups(driver.name, CLEAN)
    assert driver.region.wanted is Wanted.PAUSED
    with pytest.raises(BatchRefused, match="wanted paused"):
        driver.begin(driver.member(0))
