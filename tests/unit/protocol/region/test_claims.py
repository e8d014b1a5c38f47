from __future__ import annotations

from collections.abc import Mapping

import pytest

from airflow_kcr.errors import (
    ConfigurationError,
    LeaseExpired,
    NumberOutOfRange,
    OffsetOutsideLog,
    RegionInState,
    StaleIncarnation,
)
from airflow_kcr.protocol.commands import (
    AssignedPartition,
    ClaimPartitions,
    KillRegion,
    ReportForeignConsumer,
    ReportOutOfRange,
    StartRegion,
)
from airflow_kcr.protocol.delivery import Delivery
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.region.rows import CheckpointState, Claim, RegionState, RequestState, ResetCause
from airflow_kcr.protocol.rules import OutOfRangePolicy, RegionRules
from airflow_kcr.protocol.seek_map import SeekEntry, SeekSource
from airflow_kcr.protocol.values import (
    AssignmentId,
    CheckpointNumber,
    GroupPartition,
    Incarnation,
    MemberId,
    Offset,
    RequestId,
    TopicId,
)
from tests.support.driver import GROUP, Driver, group_rules
from tests.support.judging import causes, happened, judge, open_checkpoint, positions, state
from tests.support.scripts import all_crash, running, started


def assigned(
    start: int | None = 0, *, end: int = 1_000, topic_id: str = "id-1", leader_epoch: int = -1
) -> AssignedPartition:
    """Return what a new owner sees of a partition; without a start it does not resolve one."""
    bounds = LogBounds(start=Offset(0), end=Offset(end), topic_id=TopicId(topic_id), leader_epoch=leader_epoch)
    initial = None if start is None else SeekEntry(offset=Offset(start), source=SeekSource.START_POSITION)
    return AssignedPartition(bounds=bounds, initial=initial)


def propose(
    driver: Driver,
    member: MemberId,
    partitions: Mapping[GroupPartition, AssignedPartition],
    *,
    incarnation: int | None = None,
) -> None:
    number = driver.processes[member].incarnation if incarnation is None else Incarnation(incarnation)
    proposal = ClaimPartitions(member=member, incarnation=number, assignment=AssignmentId(50), partitions=partitions)
    driver.handle(proposal)


def one_member(*, delivery: Delivery = Delivery.AT_LEAST_ONCE, partitions: int = 1) -> Driver:
    return started(Driver(partitions=partitions, members=1, delivery=delivery))


def joined() -> Driver:
    """Return a region that starts, with one member that has claimed nothing yet."""
    driver = Driver(partitions=1, members=1)
    driver.handle(StartRegion())
    driver.join(driver.member(0))
    return driver


def claim_of(driver: Driver, number: int) -> Claim:
    return driver.region.claims[driver.partition(number)]


# -- who may claim what -----------------------------------------------------------------------------------------------


def test_a_claim_is_fenced_by_incarnation_and_lease_and_not_by_epoch() -> None:
    driver = one_member()
    with pytest.raises(StaleIncarnation):
        propose(driver, driver.member(0), {}, incarnation=7)
    driver.clock.advance(10)
    with pytest.raises(LeaseExpired):
        propose(driver, driver.member(0), {})


def test_a_halted_or_stopped_region_takes_no_claims() -> None:
    driver = one_member()
    driver.handle(ReportForeignConsumer(text="a stranger"))
    with pytest.raises(RegionInState, match="is halted; a claim needs it"):
        driver.claim(driver.member(0))
    driver.handle(KillRegion())
    with pytest.raises(RegionInState, match="is stopped; a claim needs it"):
        driver.claim(driver.member(0))


def test_a_member_claims_only_what_the_spec_gives_its_group() -> None:
    driver = one_member()
    for strange in (driver.partition(0, group="h"), driver.partition(0, topic="u")):
        with pytest.raises(ConfigurationError, match="does the running member use an older spec"):
            propose(driver, driver.member(0), {strange: assigned()})
    with pytest.raises(NumberOutOfRange, match="the partition number"):
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
    with pytest.raises(OffsetOutsideLog, match=r"the start position 10 is not in the log \[0, 9\]"):
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
    driver.handle(ReportOutOfRange(caller=driver.caller(member), observed=driver.logs))
    propose(driver, member, {partition: assigned(3, topic_id="id-3")})
    assert causes(driver) == ["start", "out_of_range", "out_of_range"]
    propose(driver, member, {partition: assigned(3, topic_id="id-3")})
    found = {topic_id: row.offset for (_, topic_id), row in driver.region.initial.items()}
    assert found == {"id-1": 0, "id-2": 0, "id-3": 0}


# -- the set is replaced ----------------------------------------------------------------------------------------------


def test_a_claim_replaces_the_former_ones_and_what_is_dropped_becomes_nobodys() -> None:
    driver = one_member(partitions=2)
    driver.claim(driver.member(0), [driver.partition(1)])
    dropped = claim_of(driver, 0)
    assert (dropped.owner, dropped.last_owner) == (None, driver.member(0))
    assert claim_of(driver, 1).owner == driver.member(0)
    told = happened(driver, events.Claimed)[-1]
    assert (told.partitions, told.dropped) == ((driver.partition(1),), (driver.partition(0),))


def test_an_empty_claim_counts_too() -> None:
    driver = one_member()
    driver.claim(driver.member(0), [])
    assert driver.region.members[driver.member(0)].claimed == driver.region.epoch
    assert claim_of(driver, 0).owner is None


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


def test_who_claims_in_a_running_region_may_process_at_once() -> None:
    driver = running(partitions=2)
    driver.join(driver.member(1), takeover=True)
    driver.claim(driver.member(1), [driver.partition(1)])
    assert driver.region.members[driver.member(1)].acknowledged == driver.region.epoch
    driver.process(driver.member(1))
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


# -- where another member has started
# ------------------------------------------------------------------------------------


@pytest.mark.parametrize("ended", [True, False])
def test_a_claim_on_which_another_member_has_begun_begins_a_reset(ended: bool) -> None:
    driver = running(partitions=2)
    batch = driver.start_batch(driver.member(1))
    if ended:
        driver.finish_batch(batch)
    driver.claim(driver.member(0), list(driver.logs))
    assert causes(driver) == ["start", "claim"]
    assert happened(driver, events.ResetBegun)[-1].detail == "g[0] was assigned g:t-1, where another was before"
    assert driver.region.failures == 0


def test_so_does_one_on_which_an_earlier_incarnation_has() -> None:
    driver = one_member()
    driver.process()
    driver.join(driver.member(0), takeover=True)
    driver.claim(driver.member(0), [driver.partition(0)])
    assert causes(driver) == ["start", "claim"]


def test_and_one_that_somebody_dropped_after_processing_it() -> None:
    driver = running(partitions=2)
    driver.process(driver.member(1))
    driver.claim(driver.member(1), [])
    assert causes(driver) == ["start"]
    driver.claim(driver.member(0), list(driver.logs))
    assert causes(driver) == ["start", "claim"]


@pytest.mark.parametrize(
    ("delivery", "place"), [(Delivery.ALMOST_ONCE, 10), (Delivery.AT_MOST_ONCE, 20), (Delivery.AT_LEAST_ONCE, 0)]
)
def test_how_far_the_other_had_come_is_not_lost_by_the_claim(delivery: Delivery, place: int) -> None:
    driver = started(Driver(partitions=2, members=2, delivery=delivery))
    driver.process(driver.member(1))
    driver.start_batch(driver.member(1))
    driver.claim(driver.member(0), list(driver.logs))
    assert positions(driver) == [0, place]


def test_in_a_reset_a_claim_never_begins_another() -> None:
    driver = running(partitions=2)
    driver.process()
    driver.request_reset(driver.member(0), ResetCause.BATCH_FAILED)
    driver.claim(driver.member(0), list(driver.logs))
    driver.claim(driver.member(1), [])
    assert causes(driver) == ["start", "batch_failed"]
    assert driver.region.members[driver.member(0)].acknowledged == 1
    driver.finish_reset()
    assert state(driver) is RegionState.RUNNING
    judge(driver)


# -- under an open checkpoint
# ------------------------------------------------------------------------------------------------


def aborted(driver: Driver, sequence: CheckpointNumber | None) -> bool:
    assert sequence is not None
    return driver.region.checkpoints[sequence].state is CheckpointState.ABORTED


def test_a_claim_that_changes_who_holds_what_aborts_an_open_checkpoint_which_is_tried_again() -> None:
    driver = running(partitions=2)
    first = driver.request_checkpoint("n").sequence
    driver.claim(driver.member(0), list(driver.logs))
    assert aborted(driver, first)
    assert driver.region.requests[RequestId("n")].state is RequestState.OPEN
    driver.claim(driver.member(1), [])
    driver.complete()
    judge(driver)


def test_a_reclaim_of_ones_own_leaves_the_open_checkpoint_alone() -> None:
    driver = running(partitions=2)
    checkpoint = driver.request_checkpoint("n").sequence
    driver.claim(driver.member(0))
    assert open_checkpoint(driver) == checkpoint


def test_a_newcomer_that_holds_nothing_still_has_to_be_among_the_participants() -> None:
    driver = Driver(partitions=1)
    driver.handle(StartRegion())
    driver.join(driver.member(0))
    driver.spread()
    driver.finish_reset()
    driver.wait(driver.region.rules.timeouts.arrival_wait.total_seconds())
    first = driver.request_checkpoint("n").sequence
    driver.join(driver.member(1))
    driver.claim(driver.member(1), [])
    assert aborted(driver, first)
    checkpoint = driver.region.checkpoint
    assert checkpoint is not None
    assert driver.member(1) in checkpoint.participants


def test_a_reset_is_asked_for_once_however_many_come_back_after_a_crash() -> None:
    driver = running()
    driver.process()
    all_crash(driver)
    driver.recover()
    assert causes(driver) == ["start", "claim"]
    assert state(driver) is RegionState.RUNNING
    judge(driver)
