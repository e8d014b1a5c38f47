from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from airflow_kcr import errors
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.offsets import OffsetMap, SeekEntry, SeekSource
from airflow_kcr.protocol.region import commands, events
from airflow_kcr.protocol.region.rows import CheckpointState, Claim, RegionState, ResetCause
from airflow_kcr.protocol.rules import Delivery, OutOfRangePolicy, RegionRules
from airflow_kcr.protocol.values import (
    AssignmentId,
    CheckpointNumber,
    GroupPartition,
    Incarnation,
    MemberId,
    Offset,
    TopicId,
)
from tests.support.driver import GROUP, START, Driver, group_rules
from tests.support.judging import causes, happened, judge, open_checkpoint, positions, state
from tests.support.scripts import boundary, hourly, located, running, started


def assigned(
    start: int | None = 0, *, end: int = 1_000, topic_id: str = "id-1", leader_epoch: int = -1
) -> commands.AssignedPartition:
    """Return what a new owner sees of a partition; without a start it does not resolve one."""
    bounds = LogBounds(start=Offset(0), end=Offset(end), topic_id=TopicId(topic_id), leader_epoch=leader_epoch)
    initial = None if start is None else SeekEntry(offset=Offset(start), source=SeekSource.START_POSITION)
    return commands.AssignedPartition(bounds=bounds, initial=initial)


def propose(
    driver: Driver,
    member: MemberId,
    partitions: Mapping[GroupPartition, commands.AssignedPartition],
    *,
    incarnation: int | None = None,
) -> None:
    number = driver.processes[member].incarnation if incarnation is None else Incarnation(incarnation)
    proposal = commands.ClaimPartitions(
        member=member, incarnation=number, assignment=AssignmentId(50), partitions=partitions
    )
    driver.handle(proposal)


def one_member(*, delivery: Delivery = Delivery.AT_LEAST_ONCE, partitions: int = 1) -> Driver:
    return started(Driver(partitions=partitions, members=1, delivery=delivery))


def joined() -> Driver:
    """Return a region that starts, with one member that has claimed nothing yet."""
    driver = Driver(partitions=1, members=1)
    driver.handle(START)
    driver.join(driver.member(0))
    return driver


def claim_of(driver: Driver, number: int) -> Claim:
    return driver.region.claims[driver.partition(number)]


# -- who may claim what -----------------------------------------------------------------------------------------------


def test_a_claim_is_fenced_by_incarnation_and_lease_and_not_by_epoch() -> None:
    driver = one_member()
    with pytest.raises(errors.StaleIncarnation):
        propose(driver, driver.member(0), {}, incarnation=7)
    driver.clock.advance(10)
    with pytest.raises(errors.LeaseExpired):
        propose(driver, driver.member(0), {})


def test_a_halted_or_stopped_region_takes_no_claims() -> None:
    driver = one_member()
    driver.find_stranger()
    with pytest.raises(errors.RegionInState, match="is halted; a claim needs it"):
        driver.claim(driver.member(0))
    driver.handle(commands.KillRegion())
    with pytest.raises(errors.RegionInState, match="is stopped; a claim needs it"):
        driver.claim(driver.member(0))


def test_a_member_claims_only_what_the_spec_gives_its_group() -> None:
    driver = one_member()
    for strange in (driver.partition(0, group="h"), driver.partition(0, topic="u")):
        with pytest.raises(errors.ConfigurationError, match="does the running member use an older spec"):
            propose(driver, driver.member(0), {strange: assigned()})
    with pytest.raises(errors.NumberOutOfRange, match="the partition number"):
        propose(driver, driver.member(0), {driver.partition(-1): assigned()})


# -- initial offsets --------------------------------------------------------------------------------------------------


def test_a_start_position_is_stored_once_with_the_log_that_was_read_with_it() -> None:
    driver = joined()
    propose(driver, driver.member(0), {driver.partition(0): assigned(5, end=9)})
    propose(driver, driver.member(0), {driver.partition(0): assigned(7, end=9)})
    stored = happened(driver, events.InitialOffsetsStored)
    assert [b.offsets[driver.partition(0)] for b in stored] == [5]
    assert stored[0].sources == {driver.partition(0): "start_position"}
    assert stored[0].bounds[driver.partition(0)].end == 9
    assert claim_of(driver, 0).resume == 5


def test_a_start_position_outside_of_its_log_is_refused() -> None:
    driver = joined()
    with pytest.raises(errors.OffsetOutsideLog, match=r"the start position 10 is not in the log \[0, 9\]"):
        propose(driver, driver.member(0), {driver.partition(0): assigned(10, end=9)})
    assert driver.region.initial == {}


def test_a_partition_without_a_resolved_start_position_is_held_and_waits() -> None:
    driver = joined()
    propose(driver, driver.member(0), {driver.partition(0): assigned(None)})
    assert claim_of(driver, 0).owner == driver.member(0)
    assert claim_of(driver, 0).resume is None
    propose(driver, driver.member(0), {driver.partition(0): assigned(3)})
    assert claim_of(driver, 0).resume == claim_of(driver, 0).position == 3


def test_a_seek_entry_that_waited_for_a_start_position_is_written_with_it() -> None:
    driver = joined()
    propose(driver, driver.member(0), {driver.partition(0): assigned(None)})
    driver.request_reset(driver.member(0), ResetCause.SINK_FAILED)
    entry = driver.region.seek[driver.partition(0)]
    assert (entry.offset, entry.source) == (None, SeekSource.START_POSITION)
    propose(driver, driver.member(0), {driver.partition(0): assigned(3)})
    entry = driver.region.seek[driver.partition(0)]
    assert (entry.offset, entry.source) == (3, SeekSource.START_POSITION)


def test_an_open_entry_that_waits_for_something_else_is_left_to_its_owner() -> None:
    driver = one_member(delivery=Delivery.EXACTLY_ONCE)
    driver.process()
    driver.request_reset(driver.member(0), ResetCause.BATCH_FAILED)
    driver.claim(driver.member(0))
    assert driver.region.seek[driver.partition(0)].offset is None
    assert claim_of(driver, 0).resume is None


def test_a_partition_found_later_begins_at_what_its_first_owner_resolved() -> None:
    driver = one_member()
    driver.process()
    driver.grow(driver.partition(1), start=4, end=9)
    driver.claim(driver.member(0), [driver.partition(0), driver.partition(1)])
    assert positions(driver) == [10, 4]
    assert causes(driver) == ["start"]
    judge(driver)


def test_a_topic_that_was_known_without_an_id_keeps_its_start_position_when_the_broker_tells_it() -> None:
    driver = Driver(partitions=0, members=1)
    driver.grow(driver.partition(0), end=9, topic_id="")
    driver.up()
    driver.process(width=5)
    propose(driver, driver.member(0), {driver.partition(0): assigned(7, topic_id="id-9")})
    assert claim_of(driver, 0).topic_id == "id-9"
    assert driver.region.initial[driver.partition(0), TopicId("id-9")].offset == 0
    assert positions(driver) == [5]
    assert len(happened(driver, events.InitialOffsetsStored)) == 1
    judge(driver)


def test_the_start_position_of_another_topics_log_is_not_taken() -> None:
    driver = one_member()
    driver.process()
    propose(driver, driver.member(0), {driver.partition(0): assigned(3, topic_id="id-2")})
    assert state(driver) is RegionState.HALTED
    assert (driver.partition(0), TopicId("id-2")) not in driver.region.initial


def test_a_topic_that_was_recreated_begins_at_the_start_of_its_log_whatever_is_proposed() -> None:
    rules = RegionRules(groups={GROUP: group_rules(members=1)}, beyond_end=OutOfRangePolicy.EARLIEST)
    driver = started(Driver(partitions=1, rules=rules))
    member, partition = driver.member(0), driver.partition(0)
    driver.grow(partition, end=5, topic_id="id-2")
    driver.handle(commands.ReportOutOfRange(caller=driver.caller(member), observed=driver.logs))
    propose(driver, member, {partition: assigned(3, topic_id="id-3")})
    assert causes(driver) == ["start", "out_of_range", "out_of_range"]
    propose(driver, member, {partition: assigned(3, topic_id="id-3")})
    found = {topic_id: row.offset for (_, topic_id), row in driver.region.initial.items()}
    assert found == {"id-1": 0, "id-2": 0, "id-3": 0}
    judge(driver)


# -- the set is replaced ----------------------------------------------------------------------------------------------


def test_a_claim_replaces_the_former_ones_and_what_is_dropped_becomes_nobodys() -> None:
    driver = one_member(partitions=2)
    driver.claim(driver.member(0), [driver.partition(1)])
    dropped = claim_of(driver, 0)
    assert (dropped.owner, dropped.last_owner) == (None, driver.member(0))
    assert claim_of(driver, 1).owner == driver.member(0)
    told = happened(driver, events.Claimed)[-1]
    assert (told.partitions, told.dropped) == ((driver.partition(1),), (driver.partition(0),))


def test_a_rebalance_is_absorbed_at_the_resume_point_where_nothing_has_begun() -> None:
    driver = running(partitions=2)
    driver.claim(driver.member(0), list(driver.logs))
    driver.claim(driver.member(1), [])
    assert {c.owner for c in driver.region.claims.values()} == {driver.member(0)}
    assert happened(driver, events.Claimed)[-2].taken == {driver.partition(1): driver.member(1)}
    assert claim_of(driver, 1).last_owner == driver.member(1)
    assert causes(driver) == ["start"]
    driver.process(driver.member(0))
    judge(driver)


def test_a_members_own_reclaim_keeps_position_and_running_batch() -> None:
    driver = one_member()
    driver.process()
    batch = driver.start_batch(driver.member(0))
    driver.claim(driver.member(0))
    assert (claim_of(driver, 0).position, claim_of(driver, 0).started_to) == (10, 20)
    driver.finish_batch(batch)
    assert positions(driver) == [20]
    judge(driver)


def test_the_highest_leader_epoch_that_was_seen_is_kept() -> None:
    driver = one_member()
    for seen in (4, 2):
        propose(driver, driver.member(0), {driver.partition(0): assigned(None, leader_epoch=seen)})
    assert claim_of(driver, 0).leader_epoch == 4


# -- handed over: everything that was started is accepted
# ----------------------------------------------------------------


def handed_over(driver: Driver, number: int, position: int) -> None:
    """Check that a partition goes on where its batches ended, with member 0, and is right in the next checkpoint."""
    claim = claim_of(driver, number)
    assert (claim.owner, claim.position, claim.started_to) == (driver.member(0), position, position)
    driver.process(driver.member(0))
    driver.checkpoint("n")
    assert driver.region.offsets[driver.region.restore_sequence or CheckpointNumber(0)][driver.partition(number)] == (
        position + 10
    )
    assert causes(driver) == ["start"]
    judge(driver)


def test_a_partition_that_its_owner_has_processed_goes_on_with_the_next_one_where_its_batches_ended() -> None:
    driver = running(partitions=2)
    driver.process(driver.member(1))
    driver.claim(driver.member(0), list(driver.logs))
    assert happened(driver, events.Claimed)[-1].taken == {driver.partition(1): driver.member(1)}
    driver.claim(driver.member(1), [])
    handed_over(driver, 1, 10)


def test_and_one_whose_owner_dropped_it_or_left_or_died_between_two_batches() -> None:
    def drops(driver: Driver) -> None:
        driver.claim(driver.member(1), [])

    def leaves(driver: Driver) -> None:
        driver.leave(driver.member(1))

    def keeps_its_slot(driver: Driver) -> None:
        process = driver.processes.pop(driver.member(1))
        driver.handle(commands.KeepSlot(member=process.member, incarnation=process.incarnation))

    def dies(driver: Driver) -> None:
        driver.vanish(driver.member(1))
        driver.wait(60)

    for goes in (drops, leaves, keeps_its_slot, dies):
        driver = running(partitions=2)
        driver.process(driver.member(1))
        goes(driver)
        driver.claim(driver.member(0), list(driver.logs))
        handed_over(driver, 1, 10)


def test_a_log_that_was_read_before_the_last_batch_of_its_owner_is_no_reason_to_halt() -> None:
    driver = running(partitions=2)
    driver.process(driver.member(1), width=20)
    propose(
        driver, driver.member(0), {driver.partition(0): assigned(None), driver.partition(1): assigned(None, end=15)}
    )
    assert state(driver) is RegionState.RUNNING
    assert claim_of(driver, 1).position == 20


def test_a_log_that_retention_has_cut_or_that_is_another_topics_is_one() -> None:
    for bounds in (
        LogBounds(start=Offset(25), end=Offset(90), topic_id=TopicId("id-1")),
        LogBounds(start=Offset(0), end=Offset(90), topic_id=TopicId("id-2")),
    ):
        driver = running(partitions=2)
        driver.process(driver.member(1), width=20)
        propose(driver, driver.member(0), {driver.partition(1): commands.AssignedPartition(bounds=bounds)})
        assert state(driver) is RegionState.HALTED


# -- where a batch of another member was started and not accepted
# --------------------------------------------------------


def test_a_claim_waits_while_a_batch_of_another_live_member_runs_there() -> None:
    driver = running(partitions=2)
    batch = driver.start_batch(driver.member(1))
    before = driver.region
    with pytest.raises(errors.PartitionBusy, match=r"g\[0\] was assigned g:t-1, where a batch of g\[1\] runs"):
        driver.claim(driver.member(0), list(driver.logs))
    assert driver.region == before
    driver.finish_batch(batch)
    driver.claim(driver.member(0), list(driver.logs))
    driver.claim(driver.member(1), [])
    handed_over(driver, 1, 10)


def test_but_not_for_longer_than_a_batch_may_take() -> None:
    driver = running(partitions=2)
    driver.start_batch(driver.member(1))
    driver.insist(driver.member(0), list(driver.logs))
    assert causes(driver) == ["start", "claim"]
    assert happened(driver, events.ResetBegun)[-1].detail == "g[0] was assigned g:t-1, where another was before"
    assert driver.region.failures == 0


def test_and_not_for_one_that_nobody_will_finish() -> None:
    def dies(driver: Driver) -> None:
        driver.vanish(driver.member(1))
        driver.wait(60)

    def comes_back(driver: Driver) -> None:
        driver.join(driver.member(1), takeover=True)

    def discards(driver: Driver) -> None:
        driver.discard(next(iter(driver.region.running)))

    def drops(driver: Driver) -> None:
        driver.claim(driver.member(1), [])

    for ends in (dies, comes_back, discards, drops):
        driver = running(partitions=2)
        driver.start_batch(driver.member(1))
        ends(driver)
        driver.claim(driver.member(0), list(driver.logs))
        assert causes(driver) == ["start", "claim"], ends


def test_where_sinks_hold_output_whatever_was_started_is_not_handed_over() -> None:
    for runs in (False, True):
        rules = RegionRules(groups={GROUP: replace(group_rules(members=2), holds_output=True)})
        driver = started(Driver(partitions=2, rules=rules))
        batch = driver.start_batch(driver.member(1))
        if not runs:
            driver.finish_batch(batch)
        driver.claim(driver.member(0), list(driver.logs))
        assert causes(driver) == ["start", "claim"]


def test_but_what_a_checkpoint_has_made_durable_is() -> None:
    rules = RegionRules(groups={GROUP: replace(group_rules(members=2), holds_output=True)})
    driver = started(Driver(partitions=2, rules=rules))
    driver.process()
    driver.checkpoint("n1")
    driver.claim(driver.member(0), list(driver.logs))
    assert causes(driver) == ["start"]
    assert positions(driver) == [10, 10]


@pytest.mark.parametrize(
    ("delivery", "place"), [(Delivery.ALMOST_ONCE, 10), (Delivery.AT_MOST_ONCE, 20), (Delivery.AT_LEAST_ONCE, 0)]
)
def test_how_far_the_other_had_come_is_not_lost_by_the_claim(delivery: Delivery, place: int) -> None:
    driver = started(Driver(partitions=2, members=2, delivery=delivery))
    driver.process(driver.member(1))
    driver.start_batch(driver.member(1))
    driver.insist(driver.member(0), list(driver.logs))
    assert positions(driver) == [0, place]


def test_in_a_reset_who_takes_over_what_nobody_has_acknowledged_with_acknowledges_again() -> None:
    driver = running(partitions=2)
    driver.process()
    driver.request_reset(driver.member(0), ResetCause.BATCH_FAILED)
    driver.claim(driver.member(0))
    driver.claim(driver.member(1))
    driver.acknowledge(driver.member(0))
    driver.leave(driver.member(1))
    driver.claim(driver.member(0), list(driver.logs))
    # Its sinks have rolled back what it had, and not yet what the one that left had.
    assert (state(driver), causes(driver)) == (RegionState.RESETTING, ["start", "batch_failed"])
    driver.acknowledge(driver.member(0))
    assert state(driver) is RegionState.RUNNING
    judge(driver)


def test_but_not_for_what_its_owner_before_has_acknowledged_with() -> None:
    driver = running(partitions=2)
    driver.request_reset(driver.member(0), ResetCause.BATCH_FAILED)
    for index in (0, 1):
        driver.claim(driver.member(index))
    driver.acknowledge(driver.member(0))
    driver.claim(driver.member(1), list(driver.logs))
    driver.claim(driver.member(0), [])
    driver.acknowledge(driver.member(1))
    assert state(driver) is RegionState.RUNNING


# -- under an open checkpoint
# ------------------------------------------------------------------------------------------------


def aborted(driver: Driver, sequence: CheckpointNumber | None) -> bool:
    assert sequence is not None
    return driver.region.checkpoints[sequence].state is CheckpointState.ABORTED


@pytest.mark.parametrize("contributes", [(), (1,), (0,), (0, 1)])
@pytest.mark.parametrize("runs", [True, False])
def test_what_was_contributed_of_a_partition_that_is_handed_over_counts_for_no_checkpoint(
    contributes: tuple[int, ...], runs: bool
) -> None:
    driver = running(partitions=2)
    driver.process()
    batch = driver.start_batch(driver.member(1)) if runs and 1 not in contributes else None
    first = driver.request_checkpoint("n").sequence
    for index in contributes[:1]:
        driver.contribute(driver.member(index))
    if batch is not None:
        with pytest.raises(errors.PartitionBusy):
            driver.claim(driver.member(0), list(driver.logs))
        assert open_checkpoint(driver) == first
        driver.finish_batch(batch)
    driver.claim(driver.member(0), list(driver.logs))
    assert aborted(driver, first)
    driver.claim(driver.member(1), [])
    sequence = driver.complete()
    assert driver.region.offsets[sequence] == OffsetMap(
        {driver.partition(0): Offset(10), driver.partition(1): Offset(10 if batch is None else 20)}
    )
    assert causes(driver) == ["start"]
    judge(driver)


def test_a_boundary_that_a_partition_has_reached_is_reached_for_its_next_owner() -> None:
    driver = hourly(partitions=2)
    located(driver, boundary(1), 10)
    driver.process()
    driver.claim(driver.member(0), list(driver.logs))
    driver.claim(driver.member(1), [])
    with pytest.raises(errors.BatchRefused, match="crosses the boundary"):
        driver.start_batch(driver.member(0))
    driver.request_checkpoint("n", boundary=boundary(1))
    sequence = driver.complete()
    assert set(driver.region.offsets[sequence].values()) == {10}
    assert driver.region.checkpoints[sequence].inexact == {}
    judge(driver)
