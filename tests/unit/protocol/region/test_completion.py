from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from airflow_kcr import errors
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region import commands, completion, events, publication
from airflow_kcr.protocol.region.rows import (
    CheckpointPurpose,
    CheckpointState,
    Committed,
    Contribution,
    RegionState,
    RequestState,
)
from airflow_kcr.protocol.region.state import Region, digest
from airflow_kcr.protocol.values import (
    CheckpointNumber,
    DesiredState,
    Epoch,
    GroupPartition,
    Incarnation,
    MemberId,
    Offset,
    RequestId,
)
from tests.support.driver import STOP, Driver
from tests.support.judging import checkpoint_of, happened, judge, state, stops
from tests.support.scripts import boundary, checkpoints_of_ten, hourly, located, running


def draining(*, partitions: int = 4, members: int = 2) -> Driver:
    """Return a region in the middle of the drain of a checkpoint, everything at 10."""
    driver = running(partitions=partitions, members=members)
    driver.process()
    driver.request_checkpoint("n")
    return driver


def part_of(
    driver: Driver, member: MemberId, offsets: Mapping[GroupPartition, int] | None = None
) -> commands.Contribute:
    """Return what a member has to contribute; or other offsets instead."""
    part = driver.part_of(member)
    return part if offsets is None else replace(part, offsets=OffsetMap({p: Offset(o) for p, o in offsets.items()}))


def refused(
    driver: Driver, part: commands.Contribute, error: type[Exception], match: str, *, region: Region | None = None
) -> None:
    with pytest.raises(error, match=match):
        completion.contribute(region or driver.region, driver.clock.now, part)


def committed(driver: Driver, sequence: CheckpointNumber) -> Committed:
    return driver.region.checkpoints[sequence].committed


# -- who may contribute -----------------------------------------------------------------------------------------------


def test_a_contribution_is_fenced_like_the_end_of_a_batch() -> None:
    driver = draining()
    part = part_of(driver, driver.member(0))
    refused(driver, replace(part, epoch=Epoch(9)), errors.StaleEpoch, "epoch 9")
    refused(driver, replace(part, incarnation=Incarnation(0)), errors.StaleIncarnation, "superseded")
    refused(driver, replace(part, member=driver.member(5)), errors.UnknownMember, "not registered")
    driver.clock.advance(10)
    refused(driver, part, errors.LeaseExpired, "new incarnation")


def test_only_the_checkpoint_that_drains_takes_contributions() -> None:
    driver = draining()
    part = part_of(driver, driver.member(0))
    refused(
        driver,
        replace(part, sequence=CheckpointNumber(99)),
        errors.CheckpointRefused,
        "checkpoint 99 of region flights is not draining",
    )
    approaching = hourly()
    approaching.request_checkpoint("n", boundary=boundary(1))
    refused(approaching, part_of(approaching, approaching.member(0)), errors.CheckpointRefused, "not draining")
    refused(running(), part, errors.CheckpointRefused, "not draining")


def test_a_member_that_contradicts_its_own_contribution_is_refused() -> None:
    driver = draining()
    driver.contribute(driver.member(0))
    other = part_of(driver, driver.member(0), dict.fromkeys(driver.claims(driver.member(0)), 9))
    refused(driver, other, errors.ConflictingContribution, "already contributed other offsets")


def test_nobody_contributes_in_the_middle_of_a_batch() -> None:
    driver = running()
    batch = driver.start_batch(driver.member(0))
    driver.request_checkpoint("n")
    refused(driver, part_of(driver, driver.member(0)), errors.BatchRefused, f"while its batch {batch} is running")


def test_nor_after_one_that_was_not_accepted() -> None:
    driver = running()
    batch = driver.start_batch(driver.member(0))
    driver.request_checkpoint("n")
    driver.discard(batch)
    refused(driver, part_of(driver, driver.member(0)), errors.BatchRefused, "started up to 10 was not accepted")


def test_a_member_contributes_exactly_what_it_holds() -> None:
    driver = draining()
    mine = driver.partition(0)
    theirs = driver.partition(3)
    whole = dict.fromkeys(driver.claims(driver.member(0)), 10)
    refused(driver, part_of(driver, driver.member(0), {mine: 10}), errors.NotClaimed, "not so: g:t-1")
    refused(driver, part_of(driver, driver.member(0), {**whole, theirs: 10}), errors.NotClaimed, "not so: g:t-3")


def test_a_member_contributes_the_positions_that_the_store_knows() -> None:
    driver = draining()
    mine = dict.fromkeys(driver.claims(driver.member(0)), 10)
    wrong = {**mine, driver.partition(1): 11}
    refused(
        driver, part_of(driver, driver.member(0), wrong), errors.ConflictingContribution, "contributes 11 for g:t-1"
    )


@pytest.mark.parametrize(
    ("log", "seen"),
    [
        (None, "no bounds"),
        (LogBounds(start=Offset(11), end=Offset(99)), r"\[11, 99\]"),
        (LogBounds(start=Offset(0), end=Offset(9)), r"\[0, 9\]"),
    ],
)
def test_a_position_that_is_not_in_the_log_as_read_with_it_is_refused(log: LogBounds | None, seen: str) -> None:
    driver = draining(partitions=1, members=1)
    part = part_of(driver, driver.member(0))
    read = {} if log is None else {driver.partition(0): log}
    refused(driver, replace(part, bounds=read), errors.OffsetOutsideLog, f"10 is not in the log as read .{seen}")


def test_a_position_that_stepped_over_a_skipped_record_at_the_logs_end_is_in_the_log() -> None:
    driver = draining(partitions=1, members=1)
    region = replace(driver.region, skips={driver.partition(0): (Offset(9),)})
    log = {driver.partition(0): LogBounds(start=Offset(0), end=Offset(9))}
    done = completion.contribute(region, driver.clock.now, replace(part_of(driver, driver.member(0)), bounds=log))
    assert done.open_checkpoint is None


# -- the merge --------------------------------------------------------------------------------------------------------


def contribution(driver: Driver, offsets: Mapping[GroupPartition, int]) -> Contribution:
    told = OffsetMap({p: Offset(o) for p, o in offsets.items()})
    return Contribution(
        incarnation=Incarnation(1), offsets=told, committed=OffsetMap(), bounds={}, contributed_at=driver.clock.now
    )


def test_what_a_checkpoint_lacks_is_named_both_members_and_partitions() -> None:
    driver = draining()
    checkpoint = checkpoint_of(driver)
    assert completion.lacking(driver.region, checkpoint) == (
        "g[0] has not contributed",
        "g[1] has not contributed",
        *(f"no member contributed g:t-{n}" for n in range(4)),
    )
    driver.contribute(driver.member(0))
    assert completion.lacking(driver.region, checkpoint) == (
        "g[1] has not contributed",
        "no member contributed g:t-2",
        "no member contributed g:t-3",
    )
    more = contribution(driver, {driver.partition(2): 10, driver.partition(3): 10, driver.partition(9): 0})
    region = replace(
        driver.region, contributions={**driver.region.contributions, (checkpoint.sequence, driver.member(1)): more}
    )
    assert completion.lacking(region, checkpoint) == ("g:t-9 was contributed but not frozen",)


def test_every_member_is_not_enough_where_nobody_contributed_a_partition() -> None:
    driver = running()
    driver.request_checkpoint("n")
    driver.claim(driver.member(1), [driver.partition(2)])
    driver.complete()
    assert completion.lacking(driver.region, checkpoint_of(driver)) == ("no member contributed g:t-3",)
    driver.claim(driver.member(1), [driver.partition(2), driver.partition(3)])
    driver.complete()
    assert driver.region.requests[RequestId("n")].state is RequestState.ANSWERED
    judge(driver)


# -- completion -------------------------------------------------------------------------------------------------------


def test_the_last_contribution_makes_the_checkpoint_the_restore_point_and_the_region_goes_on() -> None:
    driver = draining()
    start = driver.region.restore_sequence
    checkpoint = driver.complete()
    region = driver.region
    row = region.checkpoints[checkpoint]
    assert (row.state, row.previous, region.restore_sequence, region.restore_epoch) == (
        CheckpointState.COMPLETE,
        start,
        checkpoint,
        None,
    )
    assert (row.finished_at, row.digest) == (driver.clock.now, digest(region.offsets[checkpoint]))
    assert row.commit_deadline == driver.clock.now + region.rules.timeouts.commit
    assert row.publish_deadline == driver.clock.now + region.rules.timeouts.publish
    assert set(region.offsets[checkpoint].values()) == {10}
    assert {(c.resume, c.position, c.started_to) for c in region.claims.values()} == {(10, 10, 10)}
    assert state(driver) is RegionState.RUNNING
    judge(driver)


# -- ends in what asked for it ----------------------------------------------------------------------------------------


def test_a_drain_ends_in_what_it_wanted_then() -> None:
    driver = running()
    driver.handle(
        commands.RequestCheckpoint(request_id=RequestId("n"), purpose=CheckpointPurpose.DRAIN, then=DesiredState.PAUSED)
    )
    assert driver.region.desired_state is DesiredState.RUNNING
    driver.complete()
    assert (state(driver), driver.region.desired_state) == (RegionState.RUNNING, DesiredState.PAUSED)


def test_also_where_the_checkpoint_of_another_request_answers_it() -> None:
    driver = hourly()
    located(driver, boundary(1), 0)
    driver.request_checkpoint("n", boundary=boundary(1))
    driver.complete()
    row = driver.handle(
        commands.RequestCheckpoint(
            request_id=RequestId("m"), purpose=CheckpointPurpose.DRAIN, boundary=boundary(1), then=DesiredState.PAUSED
        )
    )
    assert (row.state, driver.region.desired_state) == (RequestState.ANSWERED, DesiredState.PAUSED)


def test_a_stop_ends_with_the_timeouts_of_what_never_came() -> None:
    driver = running()
    driver.handle(STOP)
    checkpoint = driver.complete()
    driver.wait(60)
    assert committed(driver, checkpoint) is Committed.NO
    assert state(driver) is not RegionState.STOPPED
    driver.wait(300)
    assert state(driver) is RegionState.STOPPED
    assert stops(driver)[0] == "drained"


# -- publication ------------------------------------------------------------------------------------------------------


def test_a_complete_checkpoint_is_published_once() -> None:
    driver = draining()
    checkpoint = driver.complete()
    driver.handle(commands.ReportPublished(sequence=checkpoint, member=driver.member(0)))
    row = driver.region.checkpoints[checkpoint]
    assert (row.state, row.published_at, row.publish_deadline) == (
        CheckpointState.PUBLISHED,
        driver.clock.now,
        None,
    )
    driver.handle(commands.ReportPublished(sequence=checkpoint, member=driver.member(1)))
    assert happened(driver, events.CheckpointPublished) == [
        events.CheckpointPublished(sequence=checkpoint, member=driver.member(0))
    ]


def test_what_is_not_complete_is_not_published() -> None:
    driver = draining()
    with pytest.raises(errors.CheckpointRefused, match="is draining; only a complete checkpoint"):
        driver.handle(commands.PublishCheckpoint(sequence=driver.region.open_checkpoint or CheckpointNumber(0)))
    with pytest.raises(errors.UnknownCheckpoint, match="no checkpoint 99"):
        driver.handle(commands.PublishCheckpoint(sequence=CheckpointNumber(99)))


def test_checkpoints_are_published_in_their_order() -> None:
    driver = running()
    first, second = checkpoints_of_ten(driver, 2)
    rows = dict(driver.region.checkpoints)
    for sequence in (first, second):
        rows[sequence] = replace(rows[sequence], state=CheckpointState.COMPLETE, published_at=None)
    region = replace(driver.region, checkpoints=rows)
    with pytest.raises(
        errors.CheckpointRefused, match=f"checkpoint {first} has to be published before checkpoint {second}"
    ):
        publication.publish(region, driver.clock.now, commands.PublishCheckpoint(sequence=second))
    region = publication.publish(region, driver.clock.now, commands.PublishCheckpoint(sequence=first))
    region = publication.publish(region, driver.clock.now, commands.PublishCheckpoint(sequence=second))
    assert region.checkpoints[second].state is CheckpointState.PUBLISHED


# -- Kafka's commit read-back
# -----------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_committed_when_every_partitions_commit_read_back_equals_it() -> None:
    driver = draining()
    checkpoint = driver.complete()
    driver.read_back(driver.member(0))
    assert committed(driver, checkpoint) is Committed.PENDING
    driver.read_back(driver.member(1))
    assert committed(driver, checkpoint) is Committed.YES
    assert driver.region.read_backs[checkpoint] == driver.region.offsets[checkpoint]
    driver.read_back(driver.member(1))
    assert len(happened(driver, events.CommitResolved)) == 1


def test_a_commit_read_back_that_differs_settles_it_as_not_committed_and_says_where() -> None:
    driver = draining()
    checkpoint = driver.complete()
    driver.read_back(driver.member(0), {driver.partition(0): Offset(7)})
    assert committed(driver, checkpoint) is Committed.NO
    assert happened(driver, events.CommitResolved)[0].why == "Kafka holds 7 for g:t-0, not 10"
    assert driver.region.checkpoints[checkpoint].commit_deadline is None


def test_a_member_speaks_only_for_what_it_holds_now() -> None:
    driver = draining()
    driver.complete()
    for number in (3, 9):
        with pytest.raises(errors.NotClaimed, match=f"does not hold g:t-{number} now"):
            driver.read_back(driver.member(0), {driver.partition(number): Offset(10)})
    driver.clock.advance(60)
    with pytest.raises(errors.LeaseExpired):
        driver.read_back(driver.member(0))
