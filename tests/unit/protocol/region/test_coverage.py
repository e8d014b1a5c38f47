from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from airflow_kcr.protocol.region import coverage
from airflow_kcr.protocol.region.rows import Lease, RegionState, ResetCause
from airflow_kcr.protocol.rules import Delivery, RegionRules
from airflow_kcr.protocol.values import BatchId, Epoch, Incarnation
from tests.support.driver import GROUP, START, Driver, group_rules
from tests.support.scripts import running, started

SECOND = timedelta(seconds=1)


def resetting(driver: Driver) -> Driver:
    """Let a region that runs begin a reset, its members there."""
    driver.request_reset(driver.member(0), ResetCause.BATCH_FAILED)
    return driver


def unready(driver: Driver) -> str:
    return "\n".join(coverage.unready(driver.region, driver.clock.now))


def test_a_claim_is_current_when_its_owners_newest_incarnation_made_it_in_this_epoch_and_holds_a_lease() -> None:
    driver = running()
    region, now = driver.region, driver.clock.now
    claim = region.claims[driver.partition(0)]
    assert coverage.is_current(region, claim, now)
    assert not coverage.is_current(region, replace(claim, owner=None), now)
    assert not coverage.is_current(region, replace(claim, epoch=Epoch(0)), now)
    assert not coverage.is_current(region, replace(claim, incarnation=Incarnation(0)), now)
    assert not coverage.is_current(region, claim, region.leases[driver.member(0)].until)


def test_the_owner_whose_lease_is_over_is_named_as_the_last_one() -> None:
    driver = running()
    driver.crash(driver.member(1))
    driver.clock.advance(60)
    driver.heartbeat()
    gaps = coverage.missing(driver.region, driver.clock.now + 60 * SECOND)
    assert set(gaps.values()) == {driver.member(0), driver.member(1)}


def test_a_partition_without_a_row_was_never_held_by_anybody() -> None:
    driver = running(partitions=1, members=1)
    region = replace(driver.region, claims={})
    assert list(coverage.gaps(region, driver.clock.now)) == ["g:t-0 is not covered (last owner: none)"]


# -- could members with leases cover the partitions? ------------------------------------------------------------------


def test_partitions_could_be_covered_while_each_of_them_is_a_live_members_or_nobodys() -> None:
    driver = running()
    assert coverage.could_cover(driver.region, driver.clock.now)
    driver.leave(driver.member(1))
    assert coverage.could_cover(driver.region, driver.clock.now)


def test_a_dead_members_partitions_stay_with_it_as_far_as_kafka_is_concerned() -> None:
    driver = running()
    driver.crash(driver.member(1))
    driver.wait(20)
    assert not coverage.could_cover(driver.region, driver.clock.now)


def test_nobody_can_cover_the_partitions_of_a_group_that_has_no_live_member() -> None:
    rules = RegionRules(groups={GROUP: group_rules(members=1), group_rules("h").group_id: group_rules("h", members=1)})
    driver = started(Driver(rules=rules, partitions=1))
    driver.leave(driver.member(0, "h"))
    assert not coverage.could_cover(driver.region, driver.clock.now)


def test_neither_without_a_live_member_nor_without_a_partition_is_there_anything_to_cover() -> None:
    driver = running()
    assert not coverage.could_cover(driver.region, driver.clock.now + 60 * SECOND)
    empty = Driver(partitions=0, members=1)
    empty.store.handle(empty.name, START)
    empty.join(empty.member(0))
    assert not coverage.could_cover(empty.region, empty.clock.now)


# -- quiet ------------------------------------------------------------------------------------------------------------


def test_a_batch_is_quiesced_once_its_lease_and_the_end_of_its_process_are_over() -> None:
    driver = running()
    batch = driver.row(driver.start_batch(driver.member(0)))
    lease = driver.region.leases[driver.member(0)].until
    ended = lease + driver.region.members[driver.member(0)].ends_within
    assert not coverage.is_batch_quiesced(driver.region, batch, ended - SECOND)
    assert coverage.is_batch_quiesced(driver.region, batch, ended)


def test_a_batch_of_a_superseded_incarnation_is_quiesced_when_that_said_it_would_be() -> None:
    driver = running()
    now = driver.clock.now
    batch = replace(driver.row(driver.start_batch(driver.member(0))), quiesced_after=now + SECOND)
    assert not coverage.is_batch_quiesced(driver.region, batch, now)
    assert coverage.is_batch_quiesced(driver.region, batch, now + SECOND)


def test_a_batch_whose_incarnation_nobody_knows_any_more_is_never_taken_for_quiet() -> None:
    driver = running()
    batch = driver.row(driver.start_batch(driver.member(0)))
    much_later = driver.clock.now + timedelta(days=1)
    other = replace(batch, incarnation=Incarnation(9))
    assert not coverage.is_batch_quiesced(driver.region, other, much_later)
    assert not coverage.is_batch_quiesced(replace(driver.region, members={}), batch, much_later)
    assert not coverage.is_batch_quiesced(replace(driver.region, leases={}), batch, much_later)


def test_whoever_has_not_acknowledged_the_epoch_is_busy_idle_or_not() -> None:
    driver = resetting(running(partitions=1))
    assert list(coverage.busy(driver.region, driver.clock.now)) == [
        "g[0] has not acknowledged epoch 2",
        "g[1] has not acknowledged epoch 2",
    ]


def test_a_batch_of_an_older_epoch_may_still_write_until_it_is_quiesced() -> None:
    driver = running()
    batch = driver.start_batch(driver.member(1))
    driver.crash(driver.member(1))
    resetting(driver)
    driver.wait(15)
    assert f"batch {batch} of g[1], incarnation 1, may still write, until 2" in unready(driver)
    driver.wait(40)
    assert "may still write" not in unready(driver)


def test_a_batch_of_this_epoch_keeps_nobody_waiting() -> None:
    driver = running()
    driver.start_batch(driver.member(0))
    assert list(coverage.busy(driver.region, driver.clock.now)) == []


# -- what keeps a reset from ending -----------------------------------------------------------------------------------


def test_uncovered_partitions_and_unpublished_checkpoints_are_named() -> None:
    driver = running()
    driver.process()
    driver.request_checkpoint("n")
    checkpoint = driver.complete()
    resetting(driver)
    assert "g:t-3 is not covered (last owner: g[1])" in unready(driver)
    assert f"checkpoint {checkpoint} is complete but not published" in unready(driver)
    driver.finish_reset()
    assert driver.region.state is RegionState.RUNNING


def test_an_open_seek_entry_is_named_with_what_it_waits_for() -> None:
    driver = running(partitions=1, members=1)
    exact = started(Driver(partitions=1, members=1, delivery=Delivery.EXACTLY_ONCE))
    exact.process()
    resetting(exact)
    assert "g:t-0 has no seek offset yet (sink_progress)" in unready(exact)
    resetting(driver)
    assert "has no seek offset" not in unready(driver)


def test_an_open_entry_of_a_partition_that_the_region_no_longer_has_keeps_nobody_waiting() -> None:
    exact = resetting(started(Driver(partitions=1, members=1, delivery=Delivery.EXACTLY_ONCE)))
    region = replace(exact.region, claims={})
    assert not [line for line in coverage.unready(region, exact.clock.now) if "no seek offset" in line]


# -- the next moment --------------------------------------------------------------------------------------------------


def test_time_changes_something_when_the_next_lease_ends() -> None:
    driver = running()
    leases = driver.region.leases
    assert coverage.horizon(driver.region, driver.clock.now) == leases[driver.member(0)].until
    sooner = {**leases, driver.member(1): replace(leases[driver.member(1)], until=driver.clock.now + SECOND)}
    region = replace(driver.region, leases=sooner)
    assert coverage.horizon(region, driver.clock.now) == driver.clock.now + SECOND


def test_or_when_a_batch_that_may_still_write_must_have_ended() -> None:
    driver = running(partitions=1, members=1)
    member = driver.member(0)
    batch = driver.start_batch(member)
    over = driver.region.leases[member].until
    assert coverage.horizon(driver.region, over) == over + driver.region.members[member].ends_within
    said = replace(driver.row(batch), quiesced_after=over + SECOND)
    assert coverage.horizon(replace(driver.region, running={batch: said}), over) == over + SECOND
    unknown = replace(driver.row(batch), batch=BatchId("x"), incarnation=Incarnation(9))
    assert coverage.horizon(replace(driver.region, running={unknown.batch: unknown}), over) is None


def test_or_never_where_nothing_depends_on_time() -> None:
    driver = running()
    lease = Lease(incarnation=Incarnation(1), until=driver.clock.now)
    region = replace(driver.region, leases=dict.fromkeys(driver.region.leases, lease))
    assert coverage.horizon(region, driver.clock.now) is None
