from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_kcr.errors import LeaseExpired, MemberInUse, RegionInState, StaleIncarnation, UnknownMember
from airflow_kcr.protocol.region import events, membership
from airflow_kcr.protocol.region.commands import KeepSlot, Leave, Register, from_process
from airflow_kcr.protocol.region.rows import CheckpointState, RequestState
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.rules import RegionRules
from airflow_kcr.protocol.values import GroupId, Incarnation, MemberId, RequestId
from tests.support.driver import START, Driver
from tests.support.judging import causes, happened, judge, open_checkpoint
from tests.support.scripts import running


def arrive(driver: Driver, member: MemberId, token: str = "t", *, takeover: bool = False) -> Region:
    """Return the region after an arrival, not stored."""
    arrival = Register(member=member, token=token, label="host-1", takeover=takeover)
    return membership.register(driver.region, driver.clock.now, arrival)


# -- registration -----------------------------------------------------------------------------------------------------


def test_each_start_of_a_member_is_a_new_incarnation_with_a_fresh_lease() -> None:
    driver = Driver()
    driver.handle(START)
    assert driver.join(driver.member(0)) == 1
    driver.crash(driver.member(0))
    driver.wait(60)
    assert driver.join(driver.member(0)) == 2
    lease = driver.region.leases[driver.member(0)]
    assert (lease.incarnation, lease.until) == (2, driver.clock.now + driver.region.rules.timeouts.lease)
    assert not happened(driver, events.MemberRegistered)[-1].took_over


def test_a_member_is_known_by_its_label_sinks_and_spec() -> None:
    driver = Driver()
    driver.handle(START)
    arrival = Register(
        member=driver.member(0), token="t", label="host-1", sinks_fenced=True, ends_within=timedelta(seconds=3)
    )
    row = membership.register(driver.region, driver.clock.now, arrival).members[driver.member(0)]
    assert (row.label, row.sinks_fenced, row.ends_within) == ("host-1", True, timedelta(seconds=3))
    assert row.spec_revision == driver.region.spec.revision
    assert (row.acknowledged, row.claimed) == (None, None)


def test_an_index_or_group_that_the_spec_does_not_have_is_refused_with_what_there_is() -> None:
    driver = running()
    with pytest.raises(UnknownMember, match="has no group 'h'; it has: g"):
        arrive(driver, driver.member(0, "h"))
    with pytest.raises(UnknownMember, match=r"has 2 member\(s\), indexes 0 to 1; index 2 is not one of them"):
        arrive(driver, driver.member(2))
    with pytest.raises(UnknownMember):
        arrive(driver, driver.member(-1))
    nothing = replace(driver.region, spec=replace(driver.region.spec, rules=RegionRules(groups={})))
    with pytest.raises(UnknownMember, match="it has: none"):
        membership.register(nothing, driver.clock.now, Register(member=driver.member(0), token="t"))


def test_joining_does_not_start_a_stopped_region() -> None:
    driver = Driver()
    with pytest.raises(RegionInState, match="is stopped; start it before its members join"):
        arrive(driver, driver.member(0))


def test_a_repeated_registration_is_the_one_that_was_made() -> None:
    driver = running()
    token = driver.region.members[driver.member(0)].token
    assert arrive(driver, driver.member(0), token) == driver.region


def test_a_process_that_comes_back_after_it_was_repeatedly_registered_is_a_new_incarnation() -> None:
    driver = running()
    member = driver.member(0)
    assert driver.join(member, came_back=True) == 2
    again = Register(member=member, token=driver.processes[member].token, previous=Incarnation(1))
    assert driver.handle(again) == 2
    assert driver.join(member, came_back=True) == 3


def test_a_process_that_another_one_has_the_number_of_does_not_get_its_index() -> None:
    driver = running()
    number = driver.processes[driver.member(0)].incarnation
    stranger = Register(member=driver.member(0), token="was restored away", previous=number)
    with pytest.raises(MemberInUse):
        driver.handle(stranger)
    driver.crash(driver.member(0))
    driver.wait(60)
    assert driver.handle(stranger) == number + 1


def test_a_process_finds_itself_where_a_restored_store_has_an_earlier_start_of_it() -> None:
    driver = running()
    member = driver.member(0)
    later = Register(member=member, token=driver.processes[member].token, previous=Incarnation(7))
    assert driver.handle(later) == 2
    assert not happened(driver, events.MemberRegistered)[-1].took_over


def test_only_the_process_that_is_the_member_may_act_in_its_name() -> None:
    driver = running()
    member = driver.member(0)
    leave = Leave(member=member, incarnation=driver.processes[member].incarnation)
    with pytest.raises(StaleIncarnation, match="another process is this member"):
        driver.handle(from_process(member, "another", leave))
    with pytest.raises(UnknownMember, match="not registered"):
        driver.handle(from_process(driver.member(7), "another", leave))
    assert not happened(driver, events.MemberLeft)
    driver.handle(from_process(member, driver.processes[member].token, leave))
    assert happened(driver, events.MemberLeft)


def test_after_its_lease_the_same_token_is_a_new_start() -> None:
    driver = running()
    token = driver.region.members[driver.member(0)].token
    driver.clock.advance(60)
    assert arrive(driver, driver.member(0), token).members[driver.member(0)].incarnation == 2


def test_a_live_index_is_not_taken_over_by_accident() -> None:
    driver = running()
    with pytest.raises(MemberInUse, match=r"g\[0\] is held by .*; stop that process or ask for a takeover"):
        arrive(driver, driver.member(0))


def test_but_by_who_asks_for_it() -> None:
    driver = running()
    assert driver.join(driver.member(0), takeover=True) == 2
    told = happened(driver, events.MemberRegistered)[-1]
    assert (told.incarnation, told.took_over) == (2, True)
    with pytest.raises(StaleIncarnation):
        driver.handle(Leave(member=driver.member(0), incarnation=Incarnation(1)))


def test_or_by_the_very_process_that_lost_its_lease() -> None:
    driver = running()
    assert driver.join(driver.member(0), came_back=True) == 2
    assert not happened(driver, events.MemberRegistered)[-1].took_over


def test_a_takeover_waits_for_a_drain_until_the_member_has_contributed() -> None:
    driver = running()
    driver.request_checkpoint("n")
    with pytest.raises(MemberInUse, match=r"g\[0\] is draining for checkpoint 2; the takeover waits for that"):
        arrive(driver, driver.member(0), takeover=True)
    driver.contribute(driver.member(0))
    assert arrive(driver, driver.member(0), takeover=True).members[driver.member(0)].incarnation == 2


def test_what_the_superseded_incarnation_left_running_has_a_moment_from_which_it_can_not_write() -> None:
    driver = running()
    batch = driver.start_batch(driver.member(0))
    lease = driver.region.leases[driver.member(0)].until
    driver.clock.advance(5)
    driver.join(driver.member(0), takeover=True)
    expected = lease + timedelta(seconds=30)
    assert driver.region.running[batch].quiesced_after == driver.row(batch).quiesced_after == expected
    driver.clock.advance(5)
    driver.join(driver.member(0), takeover=True)
    assert driver.region.running[batch].quiesced_after == expected


def test_other_members_batches_are_left_alone() -> None:
    driver = running()
    batch = driver.start_batch(driver.member(1))
    driver.join(driver.member(0), takeover=True)
    assert driver.region.running[batch].quiesced_after is None


# -- leaving ----------------------------------------------------------------------------------------------------------


def test_who_leaves_gives_up_lease_and_claims_and_the_resume_points_stay() -> None:
    driver = running()
    driver.process()
    driver.checkpoint("n")
    driver.leave(driver.member(1))
    region = driver.region
    assert region.members[driver.member(1)].left
    assert not region.is_live(driver.member(1), driver.clock.now)
    left = region.claims[driver.partition(3)]
    assert (left.owner, left.last_owner, left.resume) == (None, driver.member(1), 10)
    assert region.claims[driver.partition(0)].owner == driver.member(0)
    told = happened(driver, events.MemberLeft)[0]
    assert (told.member, told.incarnation) == (driver.member(1), 1)
    assert told.dropped == (driver.partition(2), driver.partition(3))


def test_who_has_left_already_need_not_leave() -> None:
    driver = running()
    driver.leave(driver.member(1))
    counter = driver.region.counter
    driver.handle(Leave(member=driver.member(1), incarnation=Incarnation(1)))
    assert driver.region.counter == counter


def test_who_keeps_its_slot_keeps_its_claims_too() -> None:
    driver = running()
    driver.handle(KeepSlot(member=driver.member(1), incarnation=Incarnation(1)))
    region = driver.region
    assert not region.is_live(driver.member(1), driver.clock.now)
    assert not region.members[driver.member(1)].left
    assert region.claims[driver.partition(3)].owner == driver.member(1)
    assert len(happened(driver, events.MemberLeft)) == 1


def test_who_may_not_act_any_more_need_not_leave() -> None:
    driver = running()
    for verb in (Leave, KeepSlot):
        with pytest.raises(UnknownMember):
            driver.handle(verb(member=MemberId(GroupId("g"), 9), incarnation=Incarnation(1)))
        with pytest.raises(StaleIncarnation):
            driver.handle(verb(member=driver.member(0), incarnation=Incarnation(9)))
    driver.clock.advance(10)
    with pytest.raises(LeaseExpired):
        driver.handle(Leave(member=driver.member(0), incarnation=Incarnation(1)))


# -- leases that end under an open checkpoint
# --------------------------------------------------------------------------------


def test_a_lease_that_ends_before_its_contribution_aborts_the_checkpoint_and_resets_where_a_batch_ran() -> None:
    driver = running()
    driver.start_batch(driver.member(1))
    checkpoint = driver.request_checkpoint("n").sequence
    driver.vanish(driver.member(1))
    driver.wait(15)
    assert checkpoint is not None
    assert driver.region.checkpoints[checkpoint].state is CheckpointState.ABORTED
    assert causes(driver) == ["start", "lease_lost"]
    assert (
        "the lease of g[1] ended before its contribution to checkpoint 2"
        in happened(driver, events.CheckpointAborted)[0].reason
    )


def test_where_nothing_was_begun_since_the_restore_point_it_is_tried_again() -> None:
    driver = running()
    driver.request_checkpoint("n")
    driver.crash(driver.member(1))
    driver.wait(15)
    assert causes(driver) == ["start"]
    assert open_checkpoint(driver) is None
    assert driver.region.requests[RequestId("n")].state is RequestState.QUEUED
    driver.recover()
    assert open_checkpoint(driver) is not None
    driver.complete()
    judge(driver)


def test_without_an_open_checkpoint_a_lease_that_ends_changes_nothing_by_itself() -> None:
    driver = running()
    driver.process()
    region = driver.region
    assert membership.lapse(region, driver.clock.now + timedelta(minutes=1)) is region
