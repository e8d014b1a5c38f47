from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_kcr import errors
from airflow_kcr.protocol.region import batches, rows
from airflow_kcr.protocol.region.commands import DiscardBatch, FinishBatch, StartBatch
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.rules import CheckpointRules, RegionRules
from airflow_kcr.protocol.values import BatchId, Epoch, GroupPartition, Incarnation, Offset, Range, RequestId
from tests.support.driver import GROUP, PAUSE, Driver, group_rules
from tests.support.judging import judge, positions
from tests.support.scripts import boundary, hourly, located, running, started


def one(*, partitions: int = 1) -> Driver:
    return running(partitions=partitions, members=1)


def asked(driver: Driver, from_: int = 0, to: int = 10, *, partition: int = 0) -> StartBatch:
    """Return a request of the first member for a range of one partition."""
    return request(driver, {driver.partition(partition): Range(Offset(from_), Offset(to))})


def request(driver: Driver, ranges: Mapping[GroupPartition, Range]) -> StartBatch:
    return driver.batch_of(driver.member(0), ranges)


def begin(driver: Driver, wanted: StartBatch, *, region: Region | None = None) -> Region:
    return batches.start(region or driver.region, driver.clock.now, wanted)[0]


def end(driver: Driver, batch: BatchId, *, incarnation: int = 1, region: Region | None = None) -> Region:
    finish = FinishBatch(batch=batch, member=driver.member(0), incarnation=Incarnation(incarnation))
    return batches.finish(region or driver.region, driver.clock.now, finish)[0]


def discarded(driver: Driver, batch: BatchId) -> DiscardBatch:
    return DiscardBatch(batch=batch, member=driver.member(0), incarnation=Incarnation(1))


# -- begin ------------------------------------------------------------------------------------------------------------


def test_the_same_batch_again_is_the_one_that_runs() -> None:
    driver = one()
    region = begin(driver, asked(driver))
    assert batches.start(region, driver.clock.now, asked(driver))[0] is region


def test_a_batch_begins_only_while_the_region_runs() -> None:
    driver = one()
    wanted = asked(driver)
    for other in set(rows.RegionState) - {rows.RegionState.RUNNING}:
        with pytest.raises(errors.BatchRefused, match=f"is {other}; a batch starts only while it is running"):
            begin(driver, wanted, region=replace(driver.region, state=other))


def test_and_while_that_is_the_desired_state_unless_a_checkpoint_approaches_its_boundary() -> None:
    driver = hourly()
    driver.handle(PAUSE)
    with pytest.raises(errors.BatchRefused, match="has the desired state paused; no batch starts"):
        driver.start_batch(driver.member(0))
    driver.request_checkpoint("n", boundary=boundary(1), purpose=rows.CheckpointPurpose.DRAIN)
    driver.start_batch(driver.member(0))


def test_a_batch_without_ranges_is_a_plan_that_was_not_looked_at() -> None:
    driver = one()
    with pytest.raises(errors.BatchRefused, match="has no ranges"):
        begin(driver, request(driver, {}))


def test_a_batch_needs_a_current_claim_on_every_partition() -> None:
    driver = running(partitions=2)
    with pytest.raises(errors.NotClaimed, match=r"does not hold g:t-1 now \(held by g\[1\], epoch 1\)"):
        begin(driver, asked(driver, partition=1))
    with pytest.raises(errors.NotClaimed, match="held by no member"):
        begin(driver, asked(driver, partition=7))
    older = replace(driver.region.claims[driver.partition(0)], epoch=Epoch(0))
    region = replace(driver.region, claims={driver.partition(0): older})
    with pytest.raises(errors.NotClaimed, match="epoch 0"):
        begin(driver, asked(driver), region=region)


@pytest.mark.parametrize(("from_", "to"), [(5, 5), (6, 5), (-1, 4)])
def test_a_range_that_is_none_is_refused(from_: int, to: int) -> None:
    driver = one()
    with pytest.raises(errors.NumberOutOfRange):
        begin(driver, asked(driver, from_, to))


def test_no_batch_crosses_the_boundary() -> None:
    driver = hourly(partitions=1, members=1)
    located(driver, boundary(1), 8)
    with pytest.raises(errors.BatchRefused, match=r"\[0, 9\) crosses the boundary .*, whose offset is 8"):
        begin(driver, asked(driver, 0, 9))
    begin(driver, asked(driver, 0, 8))


def test_a_boundary_that_the_position_is_past_already_limits_nothing_but_an_open_checkpoint_does() -> None:
    driver = hourly(partitions=1, members=1)
    driver.process()
    located(driver, boundary(1), 5)
    driver.process()
    assert positions(driver) == [20]
    driver.request_checkpoint("two", boundary=boundary(2))
    located(driver, boundary(2), 15)
    assert driver.region.requests[RequestId("two")].state is rows.RequestState.REFUSED


def test_under_an_open_checkpoint_a_position_past_its_boundary_goes_no_further() -> None:
    driver = hourly(partitions=2, members=1)
    driver.process()
    driver.request_checkpoint("n", boundary=boundary(1), allow_inexact=True)
    region = driver.region
    key = (driver.partition(0), region.claims[driver.partition(0)].topic_id, boundary(1))
    from_past = replace(region, boundary_offsets={key: rows.BoundaryOffset(offset=Offset(5))})
    with pytest.raises(errors.BatchRefused, match="crosses the boundary"):
        begin(driver, asked(driver, 10, 11), region=from_past)


def test_a_skipped_record_is_never_processed() -> None:
    driver = one()
    region = replace(driver.region, skips={driver.partition(0): (Offset(5), Offset(50))})
    with pytest.raises(errors.BatchRefused, match=r"\[0, 10\) contains the skipped record 5; end the batch before it"):
        begin(driver, asked(driver), region=region)
    begin(driver, asked(driver, 0, 5), region=region)


# -- the stamp --------------------------------------------------------------------------------------------------------


def test_a_batch_is_stamped_with_the_open_checkpoint_else_with_the_next_sequence() -> None:
    driver = hourly()
    assert batches.stamp(driver.region) == driver.region.next_sequence
    driver.request_checkpoint("n", boundary=boundary(1))
    assert batches.stamp(driver.region) == driver.region.open_checkpoint
    assert driver.row(driver.start_batch(driver.member(0))).sequence == driver.region.open_checkpoint


# -- the count --------------------------------------------------------------------------------------------------------


def counting(records: int = 25) -> Driver:
    rules = RegionRules(groups={GROUP: group_rules(members=1)}, checkpoint=CheckpointRules(records=records))
    return started(Driver(partitions=2, rules=rules))


def test_a_region_without_a_count_has_none_left() -> None:
    assert batches.records_left(one().region) is None


def test_what_is_begun_since_the_restore_point_counts_whether_it_has_ended_or_not() -> None:
    driver = counting()
    assert batches.records_left(driver.region) == 25
    batch = driver.start_batch(driver.member(0), width=10)
    assert batches.records_left(driver.region) == 5
    driver.finish_batch(batch)
    assert batches.records_left(driver.region) == 5


def test_a_batch_is_capped_to_what_is_left() -> None:
    driver = counting()
    driver.process(width=10)
    with pytest.raises(errors.BatchRefused, match="the batch has 6 offsets, 5 are left until the checkpoint at 25"):
        driver.start_batch(driver.member(0), width=3)
    driver.start_batch(driver.member(0), width=2)


# -- end --------------------------------------------------------------------------------------------------------------


def test_an_end_advances_the_positions_and_the_outcome_is_done() -> None:
    driver = one(partitions=2)
    batch = driver.start_batch(driver.member(0))
    driver.finish_batch(batch)
    row = driver.row(batch)
    assert (row.outcome, row.finished_at, row.finished_after) == (
        rows.Outcome.DONE,
        driver.clock.now,
        driver.region.counter,
    )
    assert positions(driver) == [10, 10]
    assert {c.started_to for c in driver.region.claims.values()} == {10}
    judge(driver)


def test_an_end_steps_over_skipped_records_behind_the_range() -> None:
    driver = one()
    batch = driver.start_batch(driver.member(0))
    region = replace(driver.region, skips={driver.partition(0): (Offset(10), Offset(11))})
    claim = end(driver, batch, region=region).claims[driver.partition(0)]
    assert (claim.position, claim.started_to) == (12, 12)


def test_an_end_of_what_does_not_run_is_refused() -> None:
    driver = one()
    with pytest.raises(errors.BatchRefused, match="is not running; read its outcome"):
        end(driver, BatchId("unknown"))
    batch = driver.start_batch(driver.member(0))
    stolen = {batch: replace(driver.region.running[batch], member=driver.member(1))}
    with pytest.raises(errors.BatchRefused, match="is not running"):
        end(driver, batch, region=replace(driver.region, running=stolen))


def test_an_end_of_another_incarnation_is_refused() -> None:
    driver = one()
    batch = driver.start_batch(driver.member(0))
    with pytest.raises(errors.BatchRefused, match="was started by incarnation 1; a newer one exists"):
        end(driver, batch, incarnation=2)
    driver.join(driver.member(0), takeover=True)
    with pytest.raises(errors.BatchRefused, match="a newer one exists"):
        end(driver, batch)


def test_an_end_in_another_epoch_or_state_is_refused() -> None:
    driver = one()
    batch = driver.start_batch(driver.member(0))
    with pytest.raises(errors.StaleEpoch):
        end(driver, batch, region=replace(driver.region, epoch=Epoch(2)))
    with pytest.raises(errors.BatchRefused, match="is halted; the work of batch"):
        end(driver, batch, region=replace(driver.region, state=rows.RegionState.HALTED))


def test_an_end_whose_claim_has_gone_is_refused() -> None:
    driver = one(partitions=2)
    batch = driver.start_batch(driver.member(0))
    driver.claim(driver.member(0), [driver.partition(0)])
    with pytest.raises(errors.NotClaimed, match="does not hold g:t-1 now"):
        end(driver, batch)


def test_an_end_whose_position_has_moved_is_refused() -> None:
    driver = one()
    batch = driver.start_batch(driver.member(0))
    moved = replace(driver.region.claims[driver.partition(0)], position=Offset(3))
    with pytest.raises(errors.BatchRefused, match="the position is 3, the batch began at 0"):
        end(driver, batch, region=replace(driver.region, claims={driver.partition(0): moved}))


# -- discard ----------------------------------------------------------------------------------------------------------


def test_a_discarded_batch_counts_for_nothing_and_a_reset_follows() -> None:
    driver = one()
    batch = driver.start_batch(driver.member(0))
    driver.discard(batch)
    assert driver.row(batch).outcome is rows.Outcome.DISCARDED
    assert positions(driver) == [0]
    assert driver.region.claims[driver.partition(0)].is_in_flight
    driver.request_reset(driver.member(0), rows.ResetCause.BATCH_FAILED)
    assert not driver.region.claims[driver.partition(0)].is_in_flight


def test_a_newer_incarnation_discards_for_its_predecessor_and_not_the_other_way_round() -> None:
    driver = one()
    batch = driver.start_batch(driver.member(0))
    row = driver.region.running[batch]
    newer = replace(driver.region, running={batch: replace(row, incarnation=Incarnation(2))})
    with pytest.raises(errors.BatchRefused, match="is not running"):
        batches.discard(newer, driver.clock.now, discarded(driver, batch))
    driver.join(driver.member(0), came_back=True)
    driver.discard(batch)
    assert driver.row(batch).outcome is rows.Outcome.DISCARDED


def test_only_who_may_act_discards() -> None:
    driver = one()
    batch = driver.start_batch(driver.member(0))
    region, now = driver.region, driver.clock.now
    with pytest.raises(errors.BatchRefused):
        batches.discard(region, now, replace(discarded(driver, batch), member=driver.member(1)))
    with pytest.raises(errors.LeaseExpired):
        batches.discard(region, now + timedelta(minutes=1), discarded(driver, batch))
    assert batches.discard(region, now, discarded(driver, BatchId("unknown"))) is region
