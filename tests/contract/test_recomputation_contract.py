"""A recomputation: what it refuses, what becomes of it, and that the region's order is left alone; in both stores."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_kcr.errors import CheckpointNotUsable, RecomputationRefused, UnknownCheckpoint
from airflow_kcr.protocol.region import commands, events, recomputations, rows
from airflow_kcr.protocol.region.recomputations import KEPT
from airflow_kcr.protocol.rules import RegionRules, RetentionRules
from airflow_kcr.protocol.targets import ToCheckpoint
from airflow_kcr.protocol.values import CheckpointNumber, EventNumber, GroupPartition, Offset, Range, RequestId
from tests.contract.conftest import Drive
from tests.support.driver import GROUP, Driver, group_rules
from tests.support.judging import happened, judge, positions

DONE, RUNNING, FAILED = rows.RecomputationState.DONE, rows.RecomputationState.RUNNING, rows.RecomputationState.FAILED
LEASE = timedelta(seconds=60)


def worked(driver: Driver) -> tuple[CheckpointNumber, CheckpointNumber]:
    """Return the first and the second checkpoint of a region that works on."""
    driver.up()
    driver.process()
    first = driver.checkpoint("first")
    driver.process()
    second = driver.checkpoint("second")
    driver.process()
    return first, second


def row(driver: Driver, sequence: CheckpointNumber) -> rows.Checkpoint:
    found = driver.region.checkpoint_of(sequence)
    assert found is not None
    return found


def ranges(driver: Driver, from_: int, to: int) -> dict[GroupPartition, tuple[Range, ...]]:
    return {partition: (Range(Offset(from_), Offset(to)),) for partition in sorted(driver.region.claims)}


def start(
    driver: Driver,
    sequence: CheckpointNumber,
    request_id: str = "again",
    token: str = "one",
    from_: int = 0,
    to: int = 10,
    purpose: rows.RecomputationPurpose = rows.RecomputationPurpose.REPLACE,
) -> rows.Recomputation:
    return driver.store.handle(
        driver.name,
        commands.StartRecomputation(
            sequence=sequence,
            request_id=RequestId(request_id),
            token=token,
            groups=(GROUP,),
            ranges=ranges(driver, from_, to),
            purpose=purpose,
            lease=LEASE,
            requester=rows.Requester(who="somebody"),
        ),
    )


def renew(driver: Driver, sequence: CheckpointNumber, one: rows.Recomputation) -> None:
    driver.handle(commands.RenewRecomputation(sequence=sequence, number=one.number, lease=LEASE))


def finish(
    driver: Driver, sequence: CheckpointNumber, one: rows.Recomputation, from_: int = 0, to: int = 10
) -> rows.Recomputation:
    batches = tuple({p: r} for p, (r,) in ranges(driver, from_, to).items())
    return driver.store.handle(
        driver.name, commands.FinishRecomputation(sequence=sequence, number=one.number, batches=batches)
    )


def test_a_checkpoint_is_recomputed_and_the_order_is_left_alone(drive: Drive) -> None:
    driver = drive()
    first, _ = worked(driver)
    before = driver.region
    begun = start(driver, first)
    assert (begun.state, begun.number) == (RUNNING, before.counter + 1)
    renew(driver, first, begun)
    done = finish(driver, first, begun)
    assert (done.state, done.groups) == (DONE, (GROUP,))
    assert row(driver, first).revision == 1
    after = driver.region
    assert (after.claims, after.epoch, after.timeline) == (before.claims, before.epoch, before.timeline)
    assert (after.restore_point, after.next_sequence) == (before.restore_point, before.next_sequence)
    driver.process()
    assert positions(driver) == [40] * 4
    judge(driver)


def test_a_request_that_is_done_is_found_again(drive: Drive) -> None:
    driver = drive()
    first, _ = worked(driver)
    finish(driver, first, start(driver, first))
    counter = driver.region.counter
    again = start(driver, first, token="another try")
    assert again.state is DONE
    assert finish(driver, first, again) == again
    assert driver.region.counter == counter
    other = start(driver, first, "once more")
    assert other.state is RUNNING
    finish(driver, first, other)
    assert row(driver, first).revision == 2
    judge(driver)


def test_what_is_done_is_found_when_its_checkpoint_is_retired(drive: Drive) -> None:
    driver = drive(rules=RegionRules(groups={GROUP: group_rules()}, retention=RetentionRules(keep=1)))
    first, _ = worked(driver)
    done = finish(driver, first, start(driver, first))
    driver.checkpoint("third")
    driver.handle(commands.RetireCheckpoints())
    assert row(driver, first).state is rows.CheckpointState.RETIRED
    assert start(driver, first, token="another try") == done
    with pytest.raises(CheckpointNotUsable, match="is retired"):
        start(driver, first, "once more")
    with pytest.raises(RecomputationRefused, match="names another recomputation"):
        start(driver, first, purpose=rows.RecomputationPurpose.COMPARE)


def test_a_command_that_is_repeated_changes_nothing(drive: Drive) -> None:
    driver = drive()
    first, _ = worked(driver)
    assert start(driver, first) == start(driver, first)
    assert len(happened(driver, events.RecomputationBegun)) == 1


def test_another_try_takes_the_place_of_the_last_one(drive: Drive) -> None:
    driver = drive()
    first, _ = worked(driver)
    dead = start(driver, first, token="killed")
    alive = start(driver, first, token="next try")
    assert alive.number > dead.number
    with pytest.raises(RecomputationRefused, match="another process took its place"):
        renew(driver, first, dead)
    with pytest.raises(RecomputationRefused, match="replaces nothing"):
        finish(driver, first, dead)
    finish(driver, first, alive)
    states = [one.state for one in row(driver, first).recomputations]
    assert states == [FAILED, DONE]
    judge(driver)


def test_two_of_one_checkpoint_are_not_at_work_at_once(drive: Drive) -> None:
    driver = drive()
    first, second = worked(driver)
    one = start(driver, first, "one")
    start(driver, second, "of another checkpoint", from_=10, to=20)
    with pytest.raises(RecomputationRefused, match=r"being recomputed already \(request one, asked for by somebody\)"):
        start(driver, first, "two")
    driver.clock.advance(LEASE.total_seconds() + 1)
    two = start(driver, first, "two")  # the first one's process is lost
    with pytest.raises(RecomputationRefused):
        renew(driver, first, one)
    finish(driver, first, two)
    judge(driver)


def test_one_that_says_that_it_lives_is_not_lost(drive: Drive) -> None:
    driver = drive()
    first, _ = worked(driver)
    one = start(driver, first, "one")
    driver.clock.advance(LEASE.total_seconds() - 10)
    renew(driver, first, one)
    driver.clock.advance(LEASE.total_seconds() - 10)
    with pytest.raises(RecomputationRefused):
        start(driver, first, "two")


def test_one_that_fails_says_so_and_leaves_the_revision(drive: Drive) -> None:
    driver = drive()
    first, _ = worked(driver)
    one = start(driver, first, "one")
    failed = driver.store.handle(
        driver.name, commands.FailRecomputation(sequence=first, number=one.number, why="the pipeline failed")
    )
    assert (failed.state, failed.failure) == (FAILED, "the pipeline failed")
    assert row(driver, first).revision == 0
    assert start(driver, first, "two").state is RUNNING
    judge(driver)


def test_a_reset_that_undoes_the_checkpoint_ends_its_recomputation(drive: Drive) -> None:
    driver = drive()
    first, second = worked(driver)
    one = start(driver, second, from_=10, to=20)
    driver.reset(ToCheckpoint(sequence=first))
    driver.complete()
    assert driver.region.state is rows.RegionState.RESETTING
    with pytest.raises(CheckpointNotUsable, match="was undone by a reset"):
        renew(driver, second, one)
    with pytest.raises(CheckpointNotUsable, match="was undone by a reset"):
        finish(driver, second, one, 10, 20)
    with pytest.raises(CheckpointNotUsable, match="what counts of its records is in later checkpoints"):
        start(driver, second, "again", from_=10, to=20)
    assert start(driver, first).state is RUNNING  # the one that it went to stays


def test_what_is_no_published_checkpoint_is_refused_and_nothing_changes(drive: Drive) -> None:
    driver = drive()
    worked(driver)
    driver.request_checkpoint("third")
    third = driver.complete()
    counter = driver.region.counter
    with pytest.raises(CheckpointNotUsable, match=f"checkpoint {third} .* is complete; only a published one"):
        start(driver, third)
    with pytest.raises(UnknownCheckpoint, match="has no checkpoint 99"):
        start(driver, CheckpointNumber(99))
    with pytest.raises(UnknownCheckpoint, match="no recomputation 7"):
        driver.handle(commands.FailRecomputation(sequence=third, number=EventNumber(7), why=""))
    assert driver.region.counter == counter


@pytest.mark.parametrize(
    ("batches", "wrong"),
    [
        ([(0, 9)], "[9, 10) was not processed"),
        ([(0, 6), (5, 10)], "[5, 6) was processed twice"),
        ([(0, 11)], "[10, 11) is not of the checkpoint"),
    ],
)
def test_what_was_not_processed_exactly_once_is_found(drive: Drive, batches: list[tuple[int, int]], wrong: str) -> None:
    driver = drive(partitions=1, members=1)
    first, _ = worked(driver)
    one, (place,) = start(driver, first), driver.region.claims
    read = tuple({place: Range(Offset(from_), Offset(to))} for from_, to in batches)
    driver.store.handle(driver.name, commands.FinishRecomputation(sequence=first, number=one.number, batches=read))
    with pytest.raises(AssertionError, match="R15") as found:
        judge(driver)
    assert wrong in str(found.value)


def test_the_newest_of_a_request_is_its_answer(drive: Drive) -> None:
    driver = drive()
    first, _ = worked(driver)
    one = start(driver, first)
    driver.handle(commands.FailRecomputation(sequence=first, number=one.number, why="lost"))
    two = start(driver, first, token="two")
    assert replace(two, number=one.number, started_at=one.started_at, until=one.until, token=one.token) == one


@pytest.mark.parametrize("purpose", [rows.RecomputationPurpose.INTO, rows.RecomputationPurpose.COMPARE])
def test_what_replaces_nothing_makes_no_revision(drive: Drive, purpose: rows.RecomputationPurpose) -> None:
    driver = drive()
    first, _ = worked(driver)
    finish(driver, first, start(driver, first, "replaced"))
    finish(driver, first, start(driver, first, "tried", purpose=purpose))
    assert row(driver, first).revision == 1
    finish(driver, first, start(driver, first, "again"))
    assert row(driver, first).revision == 2
    begun = [e.body.purpose for e in driver.events if isinstance(e.body, events.RecomputationBegun)]
    assert begun == ["replace", purpose, "replace"]
    judge(driver)


def test_of_many_the_newest_are_remembered_and_the_one_whose_output_is_shown(drive: Drive) -> None:
    driver = drive()
    first, _ = worked(driver)
    shown = start(driver, first, "shown")
    finish(driver, first, shown)
    failed = []
    for number in range(KEPT + 3):
        one = start(driver, first, f"try {number}")
        driver.handle(commands.FailRecomputation(sequence=first, number=one.number, why="no"))
        failed.append(one.number)
    running = start(driver, first, "running")
    held = [one.number for one in row(driver, first).recomputations]
    assert held == [shown.number, *failed[-KEPT:], running.number]
    assert row(driver, first).revision == 1
    assert all(recomputations.is_over(row(driver, first), number) for number in (shown.number, *failed))
    for unknown in (running.number, EventNumber(running.number + 1)):
        assert not recomputations.is_over(row(driver, first), unknown)
    finish(driver, first, running)
    assert row(driver, first).revision == 2
    judge(driver)
