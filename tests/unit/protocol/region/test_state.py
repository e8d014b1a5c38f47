from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_kcr.errors import LeaseExpired, RegionInState, StaleEpoch, StaleIncarnation, UnknownMember
from airflow_kcr.protocol.offsets import EMPTY, OffsetMap
from airflow_kcr.protocol.region.rows import Halt, HaltReason, RegionState
from airflow_kcr.protocol.region.state import Region, Spec, digest
from airflow_kcr.protocol.rules import RegionRules
from airflow_kcr.protocol.values import UNDECLARED, Epoch, GroupId, Incarnation, MemberId, Offset, RegionName, TopicId
from tests.support.driver import Driver, group_rules
from tests.support.scripts import running


def fresh() -> Region:
    rules = RegionRules(groups={GroupId("g"): group_rules(topic="t")})
    return Region(name=RegionName("flights"), region_id=UNDECLARED, spec=Spec(text="{}", rules=rules))


# -- who may act ----------------------------------------------------------------------------------------------------


def test_a_member_is_live_as_long_as_its_newest_incarnation_holds_a_lease() -> None:
    driver = running()
    one, other = driver.member(0), driver.member(1)
    region, now = driver.region, driver.clock.now
    assert region.live_members(now) == (one, other)
    assert not region.is_live(one, region.leases[one].until)
    assert not region.is_live(MemberId(GroupId("g"), 7), now)
    newer = replace(region.members[one], incarnation=Incarnation(2))
    assert not replace(region, members={one: newer}).is_live(one, now)
    gone = replace(region.members[one], left=True)
    assert replace(region, members={**region.members, one: gone}).live_members(now) == (other,)


def test_who_may_not_act_is_told_by_the_error_that_says_what_to_do() -> None:
    driver = running()
    region, member, now = driver.region, driver.member(0), driver.clock.now
    with pytest.raises(UnknownMember, match="register it first"):
        region.require_member(driver.member(7), Incarnation(1), now)
    with pytest.raises(StaleIncarnation, match="superseded"):
        region.require_member(member, Incarnation(2), now)
    with pytest.raises(LeaseExpired, match="new incarnation"):
        region.require_member(member, Incarnation(1), region.leases[member].until)
    with pytest.raises(StaleEpoch, match="is in epoch 1, the request was made in epoch 9"):
        region.require_member(member, Incarnation(1), now, epoch=Epoch(9))


def test_a_state_that_forbids_a_verb_is_named_with_those_that_allow_it() -> None:
    allowed = frozenset({RegionState.RUNNING, RegionState.DRAINING})
    with pytest.raises(RegionInState, match=r"flights is stopped; a claim needs it draining or running$"):
        fresh().require_state(allowed, "a claim")
    replace(fresh(), state=RegionState.RUNNING).require_state(allowed, "a claim")


def test_a_halted_region_says_why_it_is_halted_when_it_refuses_a_verb() -> None:
    halt = Halt(reason=HaltReason.FAILURES, text="six batches failed", choices=())
    region = replace(fresh(), state=RegionState.HALTED, halt=halt)
    with pytest.raises(RegionInState, match="six batches failed"):
        region.require_state(frozenset({RegionState.RUNNING}), "a claim")


# -- what it holds --------------------------------------------------------------------------------------------------


def test_the_initial_offset_is_that_of_the_topics_present_id() -> None:
    driver = running(partitions=1, members=1)
    region, partition = driver.region, driver.partition(0)
    row = region.initial_offset(partition)
    assert row is not None
    assert row.offset == 0
    assert region.initial_offset(driver.partition(9)) is None
    recreated = replace(region.claims[partition], topic_id=TopicId("id-2"))
    other = replace(region, claims={partition: recreated})
    assert other.initial_offset(partition) is None
    assert other.initial_offsets() == EMPTY
    assert region.initial_offsets() == OffsetMap({partition: Offset(0)})


def test_equal_offsets_have_equal_digests_and_others_do_not() -> None:
    driver = Driver()
    one, two = driver.partition(0), driver.partition(1)
    assert digest(OffsetMap({one: Offset(1), two: Offset(2)})) == digest(OffsetMap({two: Offset(2), one: Offset(1)}))
    assert digest(OffsetMap({one: Offset(1)})) != digest(OffsetMap({one: Offset(2)}))
    assert digest(OffsetMap({one: Offset(1)})) != digest(OffsetMap({two: Offset(1)}))
