from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_kcr.errors import UpsertNeedsConsent
from airflow_kcr.protocol.observations import LogBounds, LogView, TimeAnswer
from airflow_kcr.protocol.region import events, plans
from airflow_kcr.protocol.region.rows import PersonResetState, RegionState, ResetRequest
from airflow_kcr.protocol.rules import RegionRules, UpsertSink
from airflow_kcr.protocol.scopes import EVERYTHING, Scope, parse_scope
from airflow_kcr.protocol.targets import ShiftBy, Target, ToCurrent, ToDatetime, ToEarliest, ToLatest, ToOffset
from airflow_kcr.protocol.values import GroupId, Offset, RequestId
from tests.support.driver import Driver, group_rules
from tests.support.judging import happened, judge, positions, state

RATES = UpsertSink(GroupId("g"), "rates", "public.rates")


def upserting() -> Driver:
    """Two groups at 20: g writes to a table of mode upsert, h to none."""
    ours = replace(group_rules("g"), upserts=(RATES,))
    rules = RegionRules(groups={GroupId("g"): ours, GroupId("h"): group_rules("h", topic="u")})
    driver = Driver(partitions=2, rules=rules)
    driver.up()
    driver.process()
    driver.process()
    return driver


def planned(driver: Driver, target: Target, scope: Scope = EVERYTHING) -> plans.Plan:
    bounds = {p: LogBounds(start=Offset(0), end=Offset(1_000)) for p in driver.region.claims}
    ahead = dict.fromkeys(bounds, TimeAnswer(offset=None))
    log = LogView(bounds=bounds, answers=ahead, read_at=driver.clock.now)
    return plans.plan(driver.held, driver.clock.now, RequestId("r"), ResetRequest(target=target, scope=scope), log)


def of(*groups: str) -> Scope:
    return parse_scope(groups)


@pytest.mark.parametrize(
    ("target", "scope", "asks"),
    [
        (ToOffset(offset=Offset(5)), EVERYTHING, True),
        (ToOffset(offset=Offset(20)), EVERYTHING, False),
        (ToOffset(offset=Offset(30)), EVERYTHING, False),
        (ToOffset(offset=Offset(5)), of("g"), True),
        (ToOffset(offset=Offset(5)), of("h"), False),
        (ShiftBy(by=-1), EVERYTHING, True),
        (ShiftBy(by=1), EVERYTHING, False),
        (ToCurrent(), EVERYTHING, False),
        (ToEarliest(), EVERYTHING, True),
        (ToLatest(), EVERYTHING, False),
    ],
    ids=str,
)
def test_a_plan_names_the_sinks_that_it_goes_back_behind(target: Target, scope: Scope, asks: bool) -> None:
    assert planned(upserting(), target, scope).upserts == ((RATES,) if asks else ())


def test_a_time_counts_as_going_back_as_it_is_looked_up_after_the_begin() -> None:
    driver = upserting()
    target = ToDatetime(instant=driver.clock.now - timedelta(hours=1))
    assert planned(driver, target).upserts == (RATES,)
    driver.reset(target, request_id="r")
    driver.complete()
    assert driver.region.person_resets[RequestId("r")].state is PersonResetState.FAILED


def test_going_back_without_consent_is_refused_and_nothing_is_stored() -> None:
    driver = upserting()
    plan, before = planned(driver, ToOffset(offset=Offset(5))), driver.region.counter
    with pytest.raises(UpsertNeedsConsent) as refused:
        driver.reset(ToOffset(offset=Offset(5)), resolved=plan.seek)
    assert refused.value.message == (
        "sink rates of group g (table public.rates): mode upsert keeps no history, so going back can't restore it. "
        "Rows that were replaced stay as they are, and the table mixes old and new until the replay has passed where "
        "the region flights is now. Nothing was reset; if that is acceptable, apply the plan with --consent-upsert "
        "(consent_upsert=True in Python)"
    )
    assert (driver.region.counter, driver.region.person_resets) == (before, {})


def test_with_consent_it_is_done_and_the_history_has_the_consent() -> None:
    driver = upserting()
    plan = planned(driver, ToOffset(offset=Offset(5)))
    driver.reset(ToOffset(offset=Offset(5)), request_id="r", resolved=plan.seek, consent_upsert=True)
    driver.complete()
    driver.finish_reset()
    assert set(positions(driver)) == {5}
    assert driver.region.person_resets[RequestId("r")].consent_upsert
    assert [e.consent_upsert for e in happened(driver, events.PersonResetAccepted)] == [True]
    judge(driver)


def test_what_goes_back_only_since_the_plan_fails_at_its_checkpoint_and_the_region_goes_on() -> None:
    driver = upserting()
    ahead = ToOffset(offset=Offset(25))
    plan = planned(driver, ahead)
    assert plan.upserts == ()
    driver.process()
    driver.reset(ahead, request_id="r", resolved=plan.seek)
    driver.complete()
    asked = driver.region.person_resets[RequestId("r")]
    assert asked.state is PersonResetState.FAILED
    assert "mode upsert keeps no history" in asked.failure
    assert (state(driver), set(positions(driver)), driver.region.timeline) == (RegionState.RUNNING, {30}, 1)


def test_forced_without_consent_is_refused_too() -> None:
    driver = upserting()
    with pytest.raises(UpsertNeedsConsent):
        driver.reset(ToOffset(offset=Offset(5)), forced=True)
    assert driver.region.person_resets == {}
    driver.reset(ToOffset(offset=Offset(5)), forced=True, consent_upsert=True)
    driver.finish_reset()
    assert (state(driver), driver.region.timeline) == (RegionState.RUNNING, 2)


@pytest.mark.parametrize("target", [ToOffset(offset=Offset(30)), ShiftBy(by=1), ToLatest()], ids=str)
def test_forced_ahead_needs_none_although_owners_read_their_logs_later(target: Target) -> None:
    driver = upserting()
    driver.reset(target, request_id="r", forced=True)
    assert driver.region.person_resets[RequestId("r")].state is PersonResetState.STARTED
