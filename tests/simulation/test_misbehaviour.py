"""Processes that misbehave: each script calls the verbs as a zombie, a late answer or a broken member would.

A guard of the rules refuses it, or nothing comes of it: neither the invariants over the history find anything, nor what
the script looks at itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

import pytest

from airflow_kcr.errors import KcrError
from airflow_kcr.protocol.invariants.history import History
from airflow_kcr.protocol.offsets import OffsetMap, SeekEntry, SeekSource
from airflow_kcr.protocol.region import boundaries, commands
from airflow_kcr.protocol.region.coverage import is_batch_quiesced
from airflow_kcr.protocol.region.rows import BoundaryOffset, RegionState, ResetCause
from airflow_kcr.protocol.rules import Delivery
from airflow_kcr.protocol.targets import ToCheckpoint
from airflow_kcr.protocol.values import AssignmentId, Epoch, Incarnation, Offset, Range
from tests.support.driver import Driver
from tests.support.scripts import boundary, hourly, running, started
from tests.support.verifying import verify

Flaws = Iterator[str]
Script = Callable[[], Flaws]
"""The misbehaviour, and what is wrong afterwards; nothing, as a guard of the rules is before it."""

SCRIPTS: dict[str, Script] = {}


def behind(guard: str) -> Callable[[Script], Script]:
    """Put a script into the list, under the guard that it runs against."""

    def listed(script: Script) -> Script:
        SCRIPTS[guard] = script
        return script

    return listed


def judged(driver: Driver) -> Flaws:
    """Yield what the invariants say of a region's history."""
    yield from map(str, verify(History(events=driver.events, batches=driver.batches)))


@behind("the epoch")
def a_contribution_from_another_epoch() -> Flaws:
    driver = running()
    driver.request_checkpoint("n")
    member = driver.member(0)
    with suppress(KcrError):
        driver.handle(replace(driver.part_of(member), epoch=Epoch(driver.region.epoch - 1)))
    yield from judged(driver)


@behind("the claim under a batch")
def a_batch_on_somebody_elses_partition() -> Flaws:
    driver = running()
    foreign = next(iter(driver.claims(driver.member(1))))
    with suppress(KcrError):
        driver.start_ranges(driver.member(0), {foreign: Range(Offset(0), Offset(10))})
    yield from judged(driver)


@behind("a batch begins at the position")
def a_batch_that_leaves_records_out() -> Flaws:
    driver = running()
    partition = next(iter(driver.claims(driver.member(0))))
    with suppress(KcrError):
        driver.finish_batch(driver.start_ranges(driver.member(0), {partition: Range(Offset(5), Offset(10))}))
    yield from judged(driver)


@behind("one batch at a time on a partition")
def a_second_batch_beside_the_first() -> Flaws:
    driver = running()
    partition = next(iter(driver.claims(driver.member(0))))
    for _ in range(2):
        with suppress(KcrError):
            driver.start_ranges(driver.member(0), {partition: Range(Offset(0), Offset(10))})
    yield from judged(driver)


@behind("no contribution behind a begun batch")
def a_checkpoint_while_a_batch_was_refused() -> Flaws:
    driver = running()
    batch = driver.start_batch(driver.member(0))
    driver.handle(commands.DiscardBatch(batch=batch, member=driver.member(0), incarnation=Incarnation(1)))
    driver.request_checkpoint("n")
    with suppress(KcrError):
        driver.complete()
    if driver.region.open_checkpoint is None:
        yield "the checkpoint is complete, a batch that was begun before it was not accepted and no reset followed"


@behind("the participants: every member contributes")
def a_checkpoint_without_an_idle_member() -> Flaws:
    driver = running(partitions=1)
    driver.request_checkpoint("n")
    driver.contribute(next(m for m in driver.processes if driver.claims(m)))
    yield from judged(driver)


@behind("the participants: nobody else contributes")
def a_contribution_of_a_newcomer() -> Flaws:
    driver = Driver(members=3)
    driver.up()
    driver.leave(driver.member(2))
    driver.spread()
    driver.finish_reset()
    driver.request_checkpoint("n")
    driver.join(driver.member(2))
    with suppress(KcrError):
        driver.handle(driver.part_of(driver.member(2)))
    for index in (0, 1):
        driver.contribute(driver.member(index))
    yield from judged(driver)


@behind("coverage of a checkpoint")
def a_checkpoint_without_a_partition_that_was_dropped() -> Flaws:
    driver = running()
    driver.request_checkpoint("n")
    member = driver.member(0)
    driver.claim(member, tuple(driver.claims(member))[:1])
    with suppress(KcrError):
        driver.complete()
    yield from judged(driver)


@behind("a contribution is what the store has")
def a_contribution_of_invented_positions() -> Flaws:
    driver = running()
    driver.request_checkpoint("n")
    for member in sorted(driver.processes):
        offsets = OffsetMap({p: Offset(7) for p in driver.claims(member)})
        with suppress(KcrError):
            driver.handle(replace(driver.part_of(member), offsets=offsets))
    yield from judged(driver)


@behind("coverage after a reset")
def a_member_that_never_claims_after_a_reset() -> Flaws:
    driver = running()
    driver.request_reset(driver.member(0), ResetCause.BATCH_REFUSED)
    driver.claim(driver.member(0))
    driver.crash(driver.member(1))
    driver.wait(60)
    driver.acknowledge(driver.member(0))
    region = driver.region
    held = {p for p, c in region.claims.items() if c.epoch == region.epoch and c.owner == driver.member(0)}
    if region.state is RegionState.RUNNING and held != region.universe():
        yield f"the region runs, {len(region.universe() - held)} partitions are nobody's"


@behind("quiet: every member has acknowledged")
def a_member_that_never_acknowledges() -> Flaws:
    driver = running()
    driver.request_reset(driver.member(0), ResetCause.BATCH_REFUSED)
    for index in (0, 1):
        driver.claim(driver.member(index))
    with suppress(KcrError):
        driver.acknowledge(driver.member(0))
    region, now = driver.store.read(driver.name)
    late = [m for m in region.live_members(now) if region.members[m].acknowledged != region.epoch]
    if region.state is RegionState.RUNNING and late:
        yield f"the region runs, {late[0]} has not acknowledged its epoch"


@behind("quiet: no batch of an older epoch may write")
def a_batch_of_a_superseded_process() -> Flaws:
    driver = running()
    batch = driver.start_batch(driver.member(1))
    driver.join(driver.member(1), takeover=True)
    driver.claim(driver.member(1), tuple(p for p in driver.logs if p not in driver.claims(driver.member(0))))
    driver.finish_reset()
    driver.finish_reset()
    region, now = driver.store.read(driver.name)
    row = driver.row(batch)
    if region.state is RegionState.RUNNING and not is_batch_quiesced(region, row, now):
        yield "the region runs, a batch of the superseded process may still write"


@behind("first writer: initial offsets")
def a_start_position_that_is_resolved_again() -> Flaws:
    driver = running()
    member, process = driver.member(0), driver.processes[driver.member(0)]
    assigned = {
        p: commands.AssignedPartition(
            bounds=driver.logs[p], initial=SeekEntry(offset=Offset(9), source=SeekSource.START_POSITION)
        )
        for p in process.assigned
    }
    proposal = commands.ClaimPartitions(
        member=member, incarnation=process.incarnation, assignment=AssignmentId(9), partitions=assigned
    )
    driver.handle(proposal)
    yield from judged(driver)


@behind("first writer: boundary offsets")
def a_boundary_that_is_found_again_elsewhere() -> Flaws:
    driver = hourly()
    member = driver.member(0)
    partition = next(iter(driver.claims(member)))
    for offset in (30, 40):
        found = {partition: BoundaryOffset(offset=Offset(offset))}
        driver.handle(commands.StoreBoundaryOffsets(caller=driver.caller(member), boundary=boundary(1), found=found))
    row = boundaries.boundary_offset(driver.region, partition, boundary(1))
    if row is None or row.offset != 30:
        yield f"the boundary was found at 30 first, the store has {row}"


@behind("first writer: seek entries")
def an_open_entry_that_is_answered_again() -> Flaws:
    driver = started(Driver(delivery=Delivery.EXACTLY_ONCE))
    driver.process()
    driver.request_reset(driver.member(0), ResetCause.BATCH_REFUSED)
    member = driver.member(0)
    driver.claim(member)
    partition = next(iter(driver.claims(member)))
    for offset in (10, 4):
        driver.handle(
            commands.AnswerEntries(
                caller=driver.caller(member), found={partition: commands.Found(offset=Offset(offset))}
            )
        )
    if driver.region.seek[partition].offset != 10:
        yield f"the sink was found at 10 first, the seek map says {driver.region.seek[partition].offset}"


@behind("a reset burns a sequence")
def a_checkpoint_after_a_reset() -> Flaws:
    driver = running()
    driver.request_reset(driver.member(0), ResetCause.BATCH_REFUSED)
    driver.finish_reset()
    driver.checkpoint("n")
    yield from judged(driver)


@behind("a checkpoint burns a sequence")
def two_checkpoints() -> Flaws:
    driver = running()
    driver.checkpoint("n1")
    driver.checkpoint("n2")
    yield from judged(driver)


@behind("the incarnation")
def an_acknowledgement_of_a_superseded_process() -> Flaws:
    driver = running()
    member = driver.member(0)
    old = driver.caller(member)
    driver.handle(commands.RequestReset(caller=old, cause=ResetCause.BATCH_REFUSED, detail=""))
    driver.join(member, takeover=True)
    driver.claim(member, tuple(p for p in driver.logs if p not in driver.processes[driver.member(1)].assigned))
    driver.answer(member)
    with suppress(KcrError):
        zombie = commands.Caller(member=member, incarnation=old.incarnation, epoch=driver.region.epoch)
        driver.handle(commands.Acknowledge(caller=zombie))
    yield from judged(driver)


@behind("the incarnation at an end")
def an_end_of_a_superseded_process() -> Flaws:
    driver = running()
    batch = driver.start_batch(driver.member(0))
    driver.join(driver.member(0), takeover=True)
    with suppress(KcrError):
        driver.finish_batch(batch)
    yield from judged(driver)


@behind("the lease")
def a_batch_after_the_lease() -> Flaws:
    driver = running()
    driver.clock.advance(60)
    with suppress(KcrError):
        batch = driver.start_batch(driver.member(0))
        row, lease = driver.row(batch), driver.region.leases[driver.member(0)]
        if row.started_at >= lease.until:
            yield f"a batch was begun at {row.started_at}, the lease was over at {lease.until}"


@behind("a contested claim resets")
def a_partition_that_moves_while_it_is_processed() -> Flaws:
    driver = running(partitions=2)
    driver.start_batch(driver.member(0))
    driver.insist(driver.member(1), tuple(driver.logs))
    driver.claim(driver.member(0), ())
    stuck = [p for p, c in driver.region.claims.items() if c.is_in_flight]
    if driver.region.state is RegionState.RUNNING and stuck:
        yield f"{stuck[0]} was begun by somebody else, its new owner can neither begin nor is there a reset"


@behind("the current timeline: a rewind undoes")
def a_rewind_behind_a_checkpoint() -> Flaws:
    driver = running()
    first = driver.checkpoint("n1")
    driver.process()
    driver.checkpoint("n2")
    driver.reset(ToCheckpoint(sequence=first))
    driver.complete()
    driver.finish_reset()
    yield from judged(driver)


@behind("a checkpoint waits for the publication before it")
def a_checkpoint_opens_before_the_last_one_is_published() -> Flaws:
    driver = running()
    driver.request_checkpoint("n1")
    first = driver.complete()
    driver.request_checkpoint("n2")
    if driver.region.open_checkpoint is not None:
        yield f"a checkpoint is open, checkpoint {first} is not published"


@behind("a reset waits for publications")
def a_reset_that_does_not_wait_for_a_publication() -> Flaws:
    driver = running()
    driver.request_checkpoint("n1")
    first = driver.complete()
    driver.request_reset(driver.member(0), ResetCause.BATCH_REFUSED)
    for index in (0, 1):
        driver.claim(driver.member(index))
    for index in (0, 1):
        driver.acknowledge(driver.member(index))
    region = driver.region
    if region.state is RegionState.RUNNING and region.checkpoints[first].published_at is None:
        yield f"the region runs after a reset to checkpoint {first}, which is not published"


@behind("only the restore point is read back")
def an_read_back_of_an_older_checkpoint() -> Flaws:
    driver = running()
    first = driver.checkpoint("n1")
    driver.process()
    driver.checkpoint("n2")
    member = driver.member(0)
    told = driver.region.offsets[first].restrict(driver.claims(member))
    with suppress(KcrError):
        driver.handle(
            commands.ReportReadBack(
                sequence=first, member=member, incarnation=driver.processes[member].incarnation, offsets=told
            )
        )
    yield from judged(driver)


@behind("only the holder commit read-backs")
def an_read_back_of_somebody_elses_partitions() -> Flaws:
    driver = running()
    driver.request_checkpoint("n1")
    restore_point = driver.complete()
    member = driver.member(0)
    told = driver.region.offsets[restore_point].restrict(driver.claims(driver.member(1)))
    with suppress(KcrError):
        driver.handle(
            commands.ReportReadBack(
                sequence=restore_point, member=member, incarnation=driver.processes[member].incarnation, offsets=told
            )
        )
    yield from judged(driver)


@behind("nothing begins unless the region runs")
def a_batch_while_a_checkpoint_drains() -> Flaws:
    driver = running()
    driver.request_checkpoint("n")
    with suppress(KcrError):
        driver.start_batch(driver.member(0))
    yield from judged(driver)


@behind("nothing ends in a halted region")
def an_end_while_the_region_is_halted() -> Flaws:
    driver = running()
    batch = driver.start_batch(driver.member(0))
    driver.handle(commands.ReportForeignConsumer(text="somebody else is in the group"))
    with suppress(KcrError):
        driver.finish_batch(batch)
    yield from judged(driver)


@behind("no batch crosses a boundary")
def a_batch_across_the_boundary() -> Flaws:
    driver = hourly()
    member = driver.member(0)
    partition = next(iter(driver.claims(member)))
    driver.handle(
        commands.StoreBoundaryOffsets(
            caller=driver.caller(member), boundary=boundary(1), found={partition: BoundaryOffset(offset=Offset(5))}
        )
    )
    with suppress(KcrError):
        driver.finish_batch(driver.start_batch(member, 10, (partition,)))
    if (driver.region.claims[partition].position or 0) > 5:
        yield "records beyond the boundary were processed before its checkpoint"


@behind("a lease that ends aborts its checkpoint")
def a_lease_that_ends_under_a_checkpoint() -> Flaws:
    driver = running()
    driver.request_checkpoint("n")
    opened = driver.region.open_checkpoint
    driver.crash(driver.member(1))
    driver.wait(15)
    if driver.region.open_checkpoint == opened:
        yield f"checkpoint {opened} still waits for a member whose lease is over"


@behind("a contribution while the checkpoint drains")
def a_contribution_before_the_drain() -> Flaws:
    driver = hourly()
    driver.request_checkpoint("n", boundary=boundary(1))
    with suppress(KcrError):
        driver.contribute(driver.member(0))
    if driver.region.contributions:
        yield "a part of the checkpoint is stored, members still go on to its boundary"


@pytest.mark.parametrize("guard", SCRIPTS)
def test_nothing_comes_of_the_misbehaviour(guard: str) -> None:
    assert list(SCRIPTS[guard]()) == []
