from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_kcr.errors import UnknownMember
from airflow_kcr.protocol.delivery import Delivery
from airflow_kcr.protocol.offsets import EMPTY, OffsetMap
from airflow_kcr.protocol.region import view
from airflow_kcr.protocol.region.rows import (
    BoundOffset,
    Committed,
    CutPhase,
    OpenTarget,
    RegionState,
    ResetCause,
    Wanted,
)
from airflow_kcr.protocol.region.view import PUBLISHER_TURN, CutView, MemberView
from airflow_kcr.protocol.rules import CutRules, RegionRules
from airflow_kcr.protocol.seek_map import SeekSource
from airflow_kcr.protocol.targets import ToDatetime
from airflow_kcr.protocol.values import Incarnation, MemberId, Offset, Sequence
from tests.support.driver import BEGINNING, GROUP, Driver, group_rules
from tests.support.scripts import bound, cuts_of_ten, hourly, located, running, started


def seen(driver: Driver, member: MemberId | None = None) -> MemberView:
    """Return what a member sees; by default the first."""
    return driver.store.view(driver.name, member or driver.member(0))


def complete_cut(driver: Driver) -> Sequence:
    driver.process()
    driver.request_cut("n")
    return driver.complete()


def test_a_member_sees_the_regions_state_and_numbers_and_its_own() -> None:
    driver = running()
    found, region = seen(driver), driver.region
    assert (found.counter, found.epoch, found.lineage) == (region.counter, 1, 1)
    assert (found.state, found.wanted) == (RegionState.RUNNING, Wanted.RUNNING)
    assert (found.next_sequence, found.spec_revision, found.incarnation) == (region.next_sequence, 1, 1)
    assert found.acknowledged
    assert found.initialised
    assert not found.left
    assert not found.stopping


def test_a_member_that_was_never_registered_sees_nothing() -> None:
    with pytest.raises(UnknownMember, match="register it first"):
        seen(running(), MemberId(GROUP, 9))


def test_it_sees_what_it_holds_in_this_epoch_and_by_its_newest_incarnation() -> None:
    driver = running()
    assert seen(driver).claims.keys() == {driver.partition(0), driver.partition(1)}
    driver.join(driver.member(0), takeover=True)
    assert seen(driver).claims == {}
    driver.claim(driver.member(0), [driver.partition(0)])
    assert seen(driver).claims.keys() == {driver.partition(0)}
    driver.store.request_reset(driver.name, driver.caller(driver.member(0)), ResetCause.BATCH_FAILED, "")
    assert seen(driver).claims == {}
    assert not seen(driver).acknowledged


def test_it_sees_that_it_has_left_and_that_a_newer_incarnation_exists() -> None:
    driver = running()
    driver.leave(driver.member(1))
    assert seen(driver, driver.member(1)).left
    driver.join(driver.member(0), takeover=True)
    assert seen(driver).incarnation == 2


# -- cuts -------------------------------------------------------------------------------------------------------------


def test_it_sees_the_open_cut_and_its_own_place_in_it() -> None:
    driver = running()
    assert seen(driver).cut is None
    driver.request_cut("n")
    cut = CutView(
        sequence=driver.region.open_cut or Sequence(0),
        phase=CutPhase.DRAINING,
        bound=None,
        on_roster=True,
        contributed=False,
    )
    assert seen(driver).cut == cut
    driver.contribute(driver.member(0))
    assert seen(driver).cut == replace(cut, contributed=True)
    assert seen(driver, driver.member(1)).cut == cut


def test_a_newer_incarnation_is_not_on_the_roster_of_an_older_ones_cut() -> None:
    driver = running()
    driver.request_cut("n")
    row = replace(driver.region.members[driver.member(0)], incarnation=Incarnation(2))
    region = replace(driver.region, members={driver.member(0): row})
    cut = view.of_member(region, driver.member(0), driver.clock.now).cut
    assert cut is not None
    assert not cut.on_roster


def test_it_sees_the_bound_that_no_batch_may_cross_where_it_falls_and_the_base_below_it() -> None:
    driver = hourly()
    assert (seen(driver).limit, seen(driver).bound_offsets) == (bound(1), {})
    located(driver, bound(1), 30)
    found = seen(driver)
    assert found.bound_offsets == dict.fromkeys(found.claims, BoundOffset(offset=Offset(30)))
    assert found.base == OffsetMap(dict.fromkeys(found.claims, Offset(0)))
    plain = seen(running())
    assert (plain.limit, plain.bound_offsets, plain.base) == (None, {}, EMPTY)


def test_it_sees_how_much_is_left_until_the_cut_by_count() -> None:
    rules = RegionRules(groups={GROUP: group_rules(members=1)}, cut=CutRules(records=30))
    driver = started(Driver(partitions=2, rules=rules))
    driver.begin(driver.member(0))
    assert seen(driver).records_left == 10
    assert seen(running()).records_left is None


def test_it_sees_the_records_of_its_partitions_that_are_skipped() -> None:
    driver = running(partitions=2)
    skips = {driver.partition(0): (Offset(3),), driver.partition(1): (Offset(4),)}
    region = replace(driver.region, skips=skips)
    found = view.of_member(region, driver.member(0), driver.clock.now)
    assert found.skips == {driver.partition(0): (3,)}


def test_it_sees_that_the_region_waits_for_the_commits_of_its_last_cut() -> None:
    driver = running()
    driver.store.stop(driver.name)
    driver.complete()
    assert seen(driver).stopping


# -- resets -----------------------------------------------------------------------------------------------------------


def test_it_sees_the_open_entries_of_what_it_holds() -> None:
    driver = started(Driver(partitions=2, members=2, delivery=Delivery.EXACTLY_ONCE))
    driver.process()
    driver.store.request_reset(driver.name, driver.caller(driver.member(0)), ResetCause.BATCH_FAILED, "")
    assert seen(driver).open == {}
    driver.claim(driver.member(0))
    assert seen(driver).open == {driver.partition(0): OpenTarget(source=SeekSource.SINK_PROGRESS, fallback=Offset(10))}
    driver.answer(driver.member(0))
    assert seen(driver).open == {}


def test_it_sees_the_persons_target_that_they_ask_for() -> None:
    driver = running()
    driver.process()
    driver.reset(ToDatetime(instant=BEGINNING))
    assert seen(driver).target is None
    driver.complete()
    assert seen(driver).target == ToDatetime(instant=BEGINNING)
    driver.settle_reset()
    assert seen(driver).target is None


# -- publication ------------------------------------------------------------------------------------------------------


def test_a_complete_cut_is_published_by_the_live_member_of_lowest_group_and_index_then_by_the_next() -> None:
    driver = running()
    cut = complete_cut(driver)
    row = driver.region.checkpoints[cut]
    for index in (0, 1, 0):
        assert view.publisher(driver.region, row, driver.clock.now) == driver.member(index)
        assert seen(driver, driver.member(index)).publish == (cut,)
        assert seen(driver, driver.member(1 - index)).publish == ()
        driver.wait(PUBLISHER_TURN.total_seconds())
    driver.publish()
    assert seen(driver).publish == ()


def test_a_dead_member_has_no_turn_and_without_a_live_one_nobody_has() -> None:
    driver = running()
    cut = complete_cut(driver)
    row = driver.region.checkpoints[cut]
    driver.crash(driver.member(0))
    driver.wait(12)
    assert view.publisher(driver.region, row, driver.clock.now) == driver.member(1)
    assert view.publisher(driver.region, row, driver.clock.now + timedelta(hours=1)) is None


def test_a_cut_that_is_not_over_is_nobodys_to_publish() -> None:
    driver = running()
    driver.request_cut("n")
    cut = driver.region.cut
    assert cut is not None
    assert view.publisher(driver.region, cut, driver.clock.now) is None
    assert seen(driver).publish == ()


# -- Kafka's echo -----------------------------------------------------------------------------------------------------


def test_the_base_is_a_members_to_commit_until_its_own_echo_is_there() -> None:
    driver = running()
    assert seen(driver).commit is None
    cut = complete_cut(driver)
    assert seen(driver).commit == seen(driver, driver.member(1)).commit == cut
    driver.echo(driver.member(0))
    assert (seen(driver).commit, seen(driver, driver.member(1)).commit) == (None, cut)
    driver.echo(driver.member(1))
    assert driver.region.checkpoints[cut].committed is Committed.YES
    assert seen(driver, driver.member(1)).commit is None


def test_an_idle_member_has_nothing_to_commit() -> None:
    driver = running(partitions=1, members=2)
    driver.request_cut("n")
    driver.complete()
    idle = next(m for m in driver.all_members() if not driver.claims(m))
    assert seen(driver, idle).commit is None


def test_a_base_whose_commit_is_settled_is_not_committed_again() -> None:
    driver = running()
    cuts_of_ten(driver, 1)
    assert seen(driver).commit is None
