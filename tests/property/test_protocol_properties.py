"""Properties of the region's rules: merges, completion, claims, seek maps, numbers, stale callers, and long walks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_kcr.errors import ConflictingContribution, FencedError, KcrError, OverlappingOffsets
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region import commands, completion, rows
from airflow_kcr.protocol.values import (
    AssignmentId,
    BatchId,
    CheckpointNumber,
    Epoch,
    GroupId,
    GroupPartition,
    Incarnation,
    MemberId,
    Offset,
    Range,
    TopicName,
)
from tests.support.driver import START, Driver
from tests.support.judging import judge
from tests.support.scripts import boundary, running

PARTITIONS = [GroupPartition(GroupId("g"), TopicName("t"), n) for n in range(6)]
MEMBERS = [MemberId(GroupId("g"), n) for n in range(4)]

offsets = st.integers(0, 1_000).map(Offset)
owners = st.lists(st.sampled_from(MEMBERS), min_size=1, max_size=len(PARTITIONS))
"""Who holds each of the first partitions."""

sets_of_partitions = st.frozensets(st.sampled_from(PARTITIONS))


def contribution(of: OffsetMap) -> rows.Contribution:
    driver_now = boundary(0)
    return rows.Contribution(
        incarnation=Incarnation(1), offsets=of, committed=OffsetMap(), bounds={}, contributed_at=driver_now
    )


def shared_out(held_by: list[MemberId]) -> Driver:
    """A running region whose partitions are held as told; some of its members may be idle."""
    driver = Driver(partitions=len(held_by), members=len(MEMBERS))
    driver.handle(START)
    for member in driver.all_members():
        driver.join(member)
    for member in driver.all_members():
        driver.claim(member, [p for p, owner in zip(PARTITIONS, held_by, strict=False) if owner == member])
    driver.finish_reset()
    assert driver.region.state is rows.RegionState.RUNNING
    return driver


# -- the merge -------------------------------------------------------------------------------------------------------


@given(owners, st.lists(offsets, min_size=6, max_size=6), st.permutations(MEMBERS))
def test_a_merge_does_not_depend_on_the_order_of_the_contributions(
    held_by: list[MemberId], places: list[Offset], order: list[MemberId]
) -> None:
    parts = {
        m: contribution(
            OffsetMap({p: places[p.partition] for p, o in zip(PARTITIONS, held_by, strict=False) if o == m})
        )
        for m in MEMBERS
    }
    merged = completion.merged({m: parts[m] for m in order})
    assert merged == completion.merged(parts)
    assert merged == OffsetMap({p: places[p.partition] for p, _ in zip(PARTITIONS, held_by, strict=False)})


@given(sets_of_partitions, sets_of_partitions, offsets, offsets)
def test_a_double_claim_is_never_resolved_silently(
    one: frozenset[GroupPartition], other: frozenset[GroupPartition], here: Offset, there: Offset
) -> None:
    parts = {
        MEMBERS[0]: contribution(OffsetMap(dict.fromkeys(one, here))),
        MEMBERS[1]: contribution(OffsetMap(dict.fromkeys(other, there))),
    }
    if one & other:
        with pytest.raises(OverlappingOffsets):
            completion.merged(parts)
    else:
        assert completion.merged(parts).keys() == one | other


@given(owners.filter(lambda held_by: held_by.count(MEMBERS[0]) > 0 and held_by.count(MEMBERS[1]) > 0), offsets)
@settings(max_examples=30)
def test_a_double_claim_that_reaches_a_checkpoint_is_a_reset_and_not_a_checkpoint(
    held_by: list[MemberId], place: Offset
) -> None:
    driver = shared_out(held_by)
    driver.request_checkpoint("n1")
    for member in driver.all_members()[1:]:
        driver.contribute(member)
    region, checkpoint = driver.region, driver.region.open_checkpoint
    assert checkpoint is not None
    # A store that lost its constraints: another member's part holds a partition of the last one, too.
    stolen = next(p for p, owner in zip(PARTITIONS, held_by, strict=False) if owner == MEMBERS[0])
    part = region.contributions[checkpoint, MEMBERS[1]]
    wrong = replace(part, offsets=part.offsets.replace({stolen: place}))
    region = replace(region, contributions={**region.contributions, (checkpoint, MEMBERS[1]): wrong})
    after = completion.contribute(region, driver.clock.now, driver.part_of(MEMBERS[0]))
    assert after.epoch == region.epoch + 1
    assert after.resets[after.epoch].cause is rows.ResetCause.DOUBLE_CLAIM
    assert after.checkpoints[checkpoint].state is rows.CheckpointState.ABORTED


# -- completion ------------------------------------------------------------------------------------------------------


@given(owners, st.permutations(MEMBERS), st.integers(0, len(MEMBERS)))
def test_a_checkpoint_is_complete_exactly_when_all_participants_have_contributed(
    held_by: list[MemberId], order: list[MemberId], number: int
) -> None:
    driver = shared_out(held_by)
    driver.request_checkpoint("n1")
    checkpoint = driver.region.open_checkpoint
    assert checkpoint is not None
    for member in order[:number]:
        driver.contribute(member)
    complete = driver.region.checkpoints[checkpoint].is_complete
    assert complete == (number == len(MEMBERS))
    if complete:
        assert driver.region.offsets[checkpoint].keys() == driver.region.frozen[checkpoint] == set(driver.logs)


@given(
    st.frozensets(st.sampled_from(MEMBERS)),
    sets_of_partitions,
    st.dictionaries(st.sampled_from(MEMBERS), sets_of_partitions),
)
def test_a_checkpoint_lacks_nothing_exactly_where_participants_and_coverage_are_both_complete(
    participants: frozenset[MemberId],
    frozen: frozenset[GroupPartition],
    parts: dict[MemberId, frozenset[GroupPartition]],
) -> None:
    driver = shared_out([MEMBERS[0]])
    driver.request_checkpoint("n1")
    region, checkpoint = driver.region, driver.region.checkpoint
    assert checkpoint is not None
    checkpoint = replace(checkpoint, participants=dict.fromkeys(participants, Incarnation(1)))
    made = {
        (checkpoint.sequence, m): contribution(OffsetMap(dict.fromkeys(covered, Offset(0))))
        for m, covered in parts.items()
    }
    region = replace(region, frozen={checkpoint.sequence: frozen}, contributions=made)
    covered = frozenset().union(*parts.values())
    assert (completion.lacking(region, checkpoint) == ()) == (participants <= parts.keys() and covered == frozen)


@given(owners, st.permutations(MEMBERS))
@settings(max_examples=30)
def test_contributing_the_same_part_twice_changes_nothing_and_another_one_is_refused(
    held_by: list[MemberId], order: list[MemberId]
) -> None:
    driver = shared_out(held_by)
    driver.request_checkpoint("n1")
    for member in order[:-1]:
        driver.contribute(member)
        before = driver.region
        driver.contribute(member)
        assert driver.region == before
        part = replace(driver.part_of(member), offsets=OffsetMap({PARTITIONS[0]: Offset(999)}), bounds={})
        with pytest.raises(ConflictingContribution):
            driver.handle(part)
        assert driver.region == before
    driver.contribute(order[-1])
    judge(driver)


# -- stale callers ---------------------------------------------------------------------------------------------------

Stale = Callable[[Driver, commands.Caller], object]


def stale_claim(driver: Driver, caller: commands.Caller) -> object:
    assigned = {p: commands.AssignedPartition(bounds=log) for p, log in driver.logs.items()}
    proposal = commands.ClaimPartitions(
        member=caller.member, incarnation=caller.incarnation, assignment=AssignmentId(99), partitions=assigned
    )
    return driver.handle(proposal)


def stale_begin(driver: Driver, caller: commands.Caller) -> object:
    claims = {p: c for p, c in driver.region.claims.items() if c.position is not None}
    ranges = {p: Range(c.position or Offset(0), Offset((c.position or 0) + 5)) for p, c in claims.items()}
    request = commands.StartBatch(
        batch=BatchId("stale"),
        member=caller.member,
        incarnation=caller.incarnation,
        epoch=caller.epoch,
        ranges=ranges,
    )
    return driver.handle(request)


def stale_contribute(driver: Driver, caller: commands.Caller) -> object:
    region = driver.region
    mine = {p: c.position for p, c in region.claims.items() if c.owner == caller.member and c.position is not None}
    part = commands.Contribute(
        sequence=region.open_checkpoint or CheckpointNumber(0),
        member=caller.member,
        incarnation=caller.incarnation,
        epoch=caller.epoch,
        offsets=OffsetMap(mine),
        bounds=dict(driver.logs),
    )
    return driver.handle(part)


def stale_answer(driver: Driver, caller: commands.Caller) -> object:
    return driver.handle(
        commands.AnswerEntries(caller=caller, found={p: commands.Found(offset=Offset(7)) for p in driver.logs})
    )


def stale_acknowledge(driver: Driver, caller: commands.Caller) -> object:
    return driver.handle(commands.Acknowledge(caller=caller))


def stale_bounds(driver: Driver, caller: commands.Caller) -> object:
    found = {p: rows.BoundaryOffset(offset=Offset(7)) for p in driver.logs}
    return driver.handle(commands.StoreBoundaryOffsets(caller=caller, boundary=boundary(1), found=found))


def stale_out_of_range(driver: Driver, caller: commands.Caller) -> object:
    observed = {p: LogBounds(start=Offset(900), end=Offset(901)) for p in driver.logs}
    return driver.handle(commands.ReportOutOfRange(caller=caller, observed=observed))


def stale_request(driver: Driver, caller: commands.Caller) -> object:
    return driver.handle(commands.RequestReset(caller=caller, cause=rows.ResetCause.BATCH_FAILED, detail="it raised"))


def stale_leave(driver: Driver, caller: commands.Caller) -> object:
    return driver.handle(commands.Leave(member=caller.member, incarnation=caller.incarnation))


def stale_keep_slot(driver: Driver, caller: commands.Caller) -> object:
    return driver.handle(commands.KeepSlot(member=caller.member, incarnation=caller.incarnation))


def stale_read_back(driver: Driver, caller: commands.Caller) -> object:
    restore_point = driver.region.restore_sequence or CheckpointNumber(0)
    told = OffsetMap({p: Offset(7) for p in driver.logs})
    return driver.handle(
        commands.ReportReadBack(
            sequence=restore_point, member=caller.member, incarnation=caller.incarnation, offsets=told
        )
    )


BOUND_TO_AN_EPOCH = [
    stale_begin, stale_contribute, stale_answer, stale_acknowledge, stale_bounds, stale_out_of_range
]  # fmt: skip
EVERY_VERB = [*BOUND_TO_AN_EPOCH, stale_claim, stale_request, stale_leave, stale_keep_slot, stale_read_back]


def as_calm() -> Driver:
    driver = running()
    driver.process()
    driver.checkpoint("n1")
    driver.process()
    return driver


def as_draining() -> Driver:
    driver = as_calm()
    driver.request_checkpoint("n2")
    return driver


def as_resetting() -> Driver:
    driver = as_calm()
    driver.request_reset(driver.member(1), rows.ResetCause.BATCH_FAILED, "it raised")
    driver.claim(driver.member(1))
    return driver


SITUATIONS = [as_calm, as_draining, as_resetting]


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("verb", EVERY_VERB)
def test_a_stale_incarnation_never_changes_a_row(verb: Stale, situation: Callable[[], Driver]) -> None:
    driver = situation()
    member = driver.member(0)
    stale = driver.caller(member)
    driver.clock.advance(11)
    for other in driver.all_members():
        driver.join(other)
    before, ledger = driver.region, driver.batches
    with pytest.raises(KcrError) as refused:
        verb(driver, commands.Caller(member=member, incarnation=stale.incarnation, epoch=driver.region.epoch))
    if verb is not stale_read_back:
        assert isinstance(refused.value, FencedError)
    assert (driver.region, driver.batches) == (before, ledger)


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("verb", BOUND_TO_AN_EPOCH)
@pytest.mark.parametrize("off_by", [-1, 1])
def test_another_epoch_never_changes_a_row(verb: Stale, situation: Callable[[], Driver], off_by: int) -> None:
    driver = situation()
    member = driver.member(1)
    before, ledger = driver.region, driver.batches
    caller = commands.Caller(
        member=member,
        incarnation=driver.processes[member].incarnation,
        epoch=Epoch(driver.region.epoch + off_by),
    )
    with pytest.raises(FencedError):
        verb(driver, caller)
    assert (driver.region, driver.batches) == (before, ledger)


@pytest.mark.parametrize("situation", SITUATIONS)
def test_an_automatic_request_of_an_older_epoch_is_noted_and_changes_nothing_else(
    situation: Callable[[], Driver],
) -> None:
    driver = situation()
    member = driver.member(1)
    older = replace(driver.caller(member), epoch=Epoch(driver.region.epoch - 1))
    before = driver.region
    stale_request(driver, older)
    after = driver.region
    assert replace(after, counter=before.counter) == before
    assert driver.events[-1].kind == "ResetRequested"


def test_a_batch_of_an_older_epoch_is_never_accepted() -> None:
    driver = as_calm()
    member = driver.member(0)
    batch = driver.start_batch(member)
    driver.request_reset(driver.member(1), rows.ResetCause.BATCH_FAILED, "it raised")
    before = driver.region
    with pytest.raises(FencedError):
        driver.finish_batch(batch)
    assert driver.region == before
    assert driver.row(batch).outcome is None
