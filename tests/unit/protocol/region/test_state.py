from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_kcr.errors import LeaseExpired, RegionInState, StaleEpoch, StaleIncarnation, UnknownMember
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.offsets import EMPTY, OffsetMap
from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.region.rows import Claim, Halt, HaltReason, InitialOffset, RegionState
from airflow_kcr.protocol.region.state import Region, Spec, digest
from airflow_kcr.protocol.rules import RegionRules
from airflow_kcr.protocol.targets import ToOffset
from airflow_kcr.protocol.values import (
    UNDECLARED,
    Epoch,
    GroupId,
    Incarnation,
    MemberId,
    Offset,
    RegionName,
    TopicId,
    TopicName,
)
from tests.support.driver import BEGINNING, Driver, group_rules
from tests.support.scripts import checkpoints_of_ten, running


def fresh() -> Region:
    rules = RegionRules(groups={GroupId("g"): group_rules(topic="t")})
    return Region(name=RegionName("flights"), region_id=UNDECLARED, spec=Spec(text="{}", rules=rules))


# -- what a decision changes ----------------------------------------------------------------------------------------


def test_what_is_written_is_no_longer_carried_along() -> None:
    region = fresh().record(BEGINNING, events.BoundaryHeld(boundary=BEGINNING)).stored()
    assert not region.events
    assert not region.ledger
    assert region.counter == 1


def test_a_stored_region_is_stored_as_it_is() -> None:
    region = fresh()
    assert region.stored() is region


def test_a_move_to_another_state_is_told_with_its_reason_and_one_to_the_same_is_none() -> None:
    region = fresh()
    assert region.moved_to(BEGINNING, RegionState.STOPPED, "again") is region
    moved = region.moved_to(BEGINNING, RegionState.STARTING, "started")
    assert moved.state is RegionState.STARTING
    assert moved.events[0].body == events.StateChanged(
        before=RegionState.STOPPED, after=RegionState.STARTING, why="started"
    )


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


def test_the_restore_point_is_a_checkpoints_offsets_or_those_of_the_seek_map_that_opened_the_timeline() -> None:
    driver = Driver()
    assert driver.region.restore_point_offsets() == EMPTY
    driver.up()
    assert set(driver.region.restore_point_offsets().values()) == {0}
    checkpoint = checkpoints_of_ten(driver, 1)[0]
    assert driver.region.restore_point_offsets() == driver.region.offsets[checkpoint]
    assert set(driver.region.restore_point_offsets().values()) == {10}
    driver.reset(ToOffset(offset=Offset(4)))
    driver.complete()
    assert set(driver.region.restore_point_offsets().values()) == {4}


def test_contributions_to_other_checkpoints_are_not_looked_at() -> None:
    driver = running()
    first, second = checkpoints_of_ten(driver, 2)
    parts = driver.region.contributions_to(second)
    assert {o for part in parts.values() for o in part.offsets.values()} == {20}
    assert driver.region.contributions_to(first).keys() == parts.keys() == set(driver.all_members())


def test_a_regions_partitions_are_those_of_the_restore_point_and_those_with_an_initial_offset_in_its_spec() -> None:
    driver = running(partitions=2, members=1)
    region = driver.region
    assert region.universe() == {driver.partition(0), driver.partition(1)}
    later = driver.partition(2)
    found = InitialOffset(offset=Offset(0), source="", bounds=LogBounds(start=Offset(0), end=Offset(9)))
    assert later in replace(region, initial={**region.initial, (later, TopicId("")): found}).universe()


def test_a_partition_that_the_spec_gives_nobody_is_not_the_regions() -> None:
    driver = running(partitions=2, members=1)
    region = driver.region
    elsewhere = {GroupId("g"): replace(group_rules(), topics=(TopicName("other"),))}
    assert replace(region, spec=replace(region.spec, rules=replace(region.rules, groups=elsewhere))).universe() == set()


def test_a_row_that_nobody_holds_and_that_has_no_resume_point_is_no_partition_yet() -> None:
    driver = Driver()
    assert replace(driver.region, claims={driver.partition(0): Claim()}).universe() == set()
    held = Claim(owner=driver.member(0))
    assert replace(driver.region, claims={driver.partition(0): held}).universe() == {driver.partition(0)}


def test_skipped_records_in_a_row_are_stepped_over_together() -> None:
    driver = Driver()
    partition = driver.partition(0)
    region = replace(driver.region, skips={partition: (Offset(3), Offset(4), Offset(6))})
    assert [region.past_skips(partition, Offset(o)) for o in (2, 3, 4, 5, 6)] == [2, 5, 5, 5, 7]
    assert region.past_skips(driver.partition(1), Offset(3)) == 3


def test_equal_offsets_have_equal_digests_and_others_do_not() -> None:
    driver = Driver()
    one, two = driver.partition(0), driver.partition(1)
    assert digest(OffsetMap({one: Offset(1), two: Offset(2)})) == digest(OffsetMap({two: Offset(2), one: Offset(1)}))
    assert digest(OffsetMap({one: Offset(1)})) != digest(OffsetMap({one: Offset(2)}))
    assert digest(OffsetMap({one: Offset(1)})) != digest(OffsetMap({two: Offset(1)}))
