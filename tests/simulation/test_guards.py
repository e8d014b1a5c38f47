"""The guards, one by one taken away: each has a script in which a process misbehaves, and something must notice.

A script calls the verbs as a zombie, a late answer or a broken member would; with the guard in place it is refused, or
nothing comes of it. Without it, the invariants over the history say so, or what the script looks at itself. A guard
without a test could be deleted by accident, so each stays in this list.
"""

from __future__ import annotations
import __future__

import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from types import FunctionType

import pytest

from airflow_kcr.errors import KcrError
from airflow_kcr.protocol.invariants import History, verify
from airflow_kcr.protocol.offsets import OffsetMap, SeekEntry, SeekSource
from airflow_kcr.protocol.region import (
    batches,
    boundaries,
    checkpoints,
    claims,
    completion,
    coverage,
    publication,
    resets,
    timelines,
)
from airflow_kcr.protocol.region import state as region_state
from airflow_kcr.protocol.region.commands import (
    Acknowledge,
    AnswerEntries,
    AssignedPartition,
    Caller,
    ClaimPartitions,
    DiscardBatch,
    Found,
    PublishCheckpoint,
    ReportForeignConsumer,
    ReportReadBack,
    RequestReset,
    StoreBoundaryOffsets,
)
from airflow_kcr.protocol.region.coverage import is_batch_quiesced
from airflow_kcr.protocol.region.rows import BoundaryOffset, RegionState, ResetCause
from airflow_kcr.protocol.region.state import live_members, universe
from airflow_kcr.protocol.rules import Delivery
from airflow_kcr.protocol.targets import ToCheckpoint
from airflow_kcr.protocol.values import (
    AssignmentId,
    Epoch,
    Incarnation,
    Offset,
    Range,
)
from tests.support.driver import Driver
from tests.support.scripts import boundary, hourly, running, started

Flaws = Iterator[str]


@dataclass(frozen=True, slots=True)
class Without:
    """A function of the rules, and what is left of it where a guard is taken away."""

    function: Callable[..., object]
    guard: str
    rest: str


@dataclass(frozen=True, slots=True)
class Guard:
    """One condition of the rules, and the misbehaviour that it is there for."""

    name: str
    script: Callable[[], Flaws]
    """The misbehaviour, and what is wrong afterwards beside what the invariants say; nothing, behind the guard."""

    places: tuple[Without, ...]
    also: tuple[Without, ...]
    """Another guard that stands before this one, taken away in both runs."""


GUARDS: list[Guard] = []


def behind(
    name: str, *places: Without, also: tuple[Without, ...] = ()
) -> Callable[[Callable[[], Flaws]], Callable[[], Flaws]]:
    """Put a script and its guard into the list."""

    def listed(script: Callable[[], Flaws]) -> Callable[[], Flaws]:
        GUARDS.append(Guard(name, script, places, also))
        return script

    return listed


def taken_away(monkeypatch: pytest.MonkeyPatch, places: tuple[Without, ...]) -> None:
    """Have functions do without a piece of their text, wherever they are held."""
    copies: dict[Callable[..., object], str] = {}
    for place in places:
        text = copies.get(place.function) or textwrap.dedent(inspect.getsource(place.function))
        assert text.count(place.guard) == 1, f"{place.function} has no such guard any more: {place.guard}"
        copies[place.function] = text.replace(place.guard, place.rest)
    for function, text in copies.items():
        made: dict[str, FunctionType] = {}
        code = compile(text, f"{function} without its guard", "exec", __future__.annotations.compiler_flag)
        exec(code, vars(sys.modules[function.__module__]), made)
        monkeypatch.setattr(function, "__code__", made[function.__name__].__code__)


def flaws(script: Callable[[], Flaws]) -> list[str]:
    """Run a script, and return what is wrong; an error that no rule raises is wrong, too."""
    try:
        return list(script())
    except (KeyError, AssertionError, ValueError) as error:
        return [f"{type(error).__name__}: {error}"]


def judged(driver: Driver) -> Flaws:
    """Yield what the invariants say of a region's history."""
    yield from map(str, verify(History(events=driver.events, batches=driver.batches)))


# -- the scripts ---------------------------------------------------------------------------------------------------


@behind(
    "the epoch", Without(region_state.require_epoch, "if epoch is not None and epoch != region.epoch:", "if False:")
)
def a_contribution_from_another_epoch() -> Flaws:
    driver = running()
    driver.request_checkpoint("n")
    member = driver.member(0)
    with suppress(KcrError):
        driver.handle(replace(driver.part_of(member), epoch=Epoch(driver.region.epoch - 1)))
    yield from judged(driver)


@behind(
    "the claim under a batch",
    Without(
        batches._require_claim,
        "if claim is None or claim.owner != member or claim.incarnation != incarnation or claim.epoch != region.epoch:",
        "if claim is None:",
    ),
)
def a_batch_on_somebody_elses_partition() -> Flaws:
    driver = running()
    foreign = next(iter(driver.claims(driver.member(1))))
    with suppress(KcrError):
        driver.start_ranges(driver.member(0), {foreign: Range(Offset(0), Offset(10))})
    yield from judged(driver)


@behind(
    "a batch begins at the position", Without(batches._require_range, "if range_.from_ != claim.position:", "if False:")
)
def a_batch_that_leaves_records_out() -> Flaws:
    driver = running()
    partition = next(iter(driver.claims(driver.member(0))))
    with suppress(KcrError):
        driver.finish_batch(driver.start_ranges(driver.member(0), {partition: Range(Offset(5), Offset(10))}))
    yield from judged(driver)


@behind("one batch at a time on a partition", Without(batches._require_range, "if claim.is_in_flight:", "if False:"))
def a_second_batch_beside_the_first() -> Flaws:
    driver = running()
    partition = next(iter(driver.claims(driver.member(0))))
    for _ in range(2):
        with suppress(KcrError):
            driver.start_ranges(driver.member(0), {partition: Range(Offset(0), Offset(10))})
    yield from judged(driver)


@behind(
    "no contribution behind a begun batch",
    Without(completion._require_own_positions, "if claim.is_in_flight:", "if False:"),
)
def a_checkpoint_while_a_batch_was_refused() -> Flaws:
    driver = running()
    batch = driver.start_batch(driver.member(0))
    driver.handle(DiscardBatch(batch=batch, member=driver.member(0), incarnation=Incarnation(1)))
    driver.request_checkpoint("n")
    with suppress(KcrError):
        driver.complete()
    if driver.region.open_checkpoint is None:
        yield "the checkpoint is complete, a batch that was begun before it was not accepted and no reset followed"


@behind(
    "the participants: every member contributes",
    Without(completion.lacking, "(*waiting, *gaps, *extra)", "(*gaps, *extra)"),
    Without(
        completion._completed,
        "if any((checkpoint.sequence, member) not in region.contributions for member in checkpoint.participants):",
        "if False:",
    ),
)
def a_checkpoint_without_an_idle_member() -> Flaws:
    driver = running(partitions=1)
    driver.request_checkpoint("n")
    driver.contribute(next(m for m in driver.processes if driver.claims(m)))
    yield from judged(driver)


@behind(
    "the participants: nobody else contributes",
    Without(completion.contribute, "if checkpoint.participants.get(part.member) != part.incarnation:", "if False:"),
)
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


@behind("coverage of a checkpoint", Without(completion.lacking, "(*waiting, *gaps, *extra)", "(*waiting, *extra)"))
def a_checkpoint_without_a_partition_that_was_dropped() -> Flaws:
    driver = running()
    driver.request_checkpoint("n")
    member = driver.member(0)
    driver.claim(member, tuple(driver.claims(member))[:1])
    with suppress(KcrError):
        driver.complete()
    yield from judged(driver)


@behind(
    "a contribution is what the store has",
    Without(completion.contribute, "_require_own_positions(region, now, part)", "pass"),
)
def a_contribution_of_invented_positions() -> Flaws:
    driver = running()
    driver.request_checkpoint("n")
    for member in sorted(driver.processes):
        offsets = OffsetMap({p: Offset(7) for p in driver.claims(member)})
        with suppress(KcrError):
            driver.handle(replace(driver.part_of(member), offsets=offsets))
    yield from judged(driver)


@behind(
    "coverage after a reset",
    Without(coverage.covered, "if claim.epoch == region.epoch", "if True"),
    Without(coverage.covered, "and claim.owner is not None", "and True"),
    Without(coverage.covered, "and incarnations.get(claim.owner) == claim.incarnation", "and True"),
)
def a_member_that_never_claims_after_a_reset() -> Flaws:
    driver = running()
    driver.request_reset(driver.member(0), ResetCause.BATCH_REFUSED)
    driver.claim(driver.member(0))
    driver.crash(driver.member(1))
    driver.wait(60)
    driver.acknowledge(driver.member(0))
    region = driver.region
    held = {p for p, c in region.claims.items() if c.epoch == region.epoch and c.owner == driver.member(0)}
    if region.state is RegionState.RUNNING and held != universe(region):
        yield f"the region runs, {len(universe(region) - held)} partitions are nobody's"


@behind(
    "quiet: every member has acknowledged",
    Without(coverage.busy, "if region.members[member].acknowledged != region.epoch:", "if False:"),
)
def a_member_that_never_acknowledges() -> Flaws:
    driver = running()
    driver.request_reset(driver.member(0), ResetCause.BATCH_REFUSED)
    for index in (0, 1):
        driver.claim(driver.member(index))
    with suppress(KcrError):
        driver.acknowledge(driver.member(0))
    region, now = driver.store.read(driver.name)
    late = [m for m in live_members(region, now) if region.members[m].acknowledged != region.epoch]
    if region.state is RegionState.RUNNING and late:
        yield f"the region runs, {late[0]} has not acknowledged its epoch"


@behind(
    "quiet: no batch of an older epoch may write",
    Without(
        coverage.busy, "if batch.epoch != region.epoch and not is_batch_quiesced(region, batch, now):", "if False:"
    ),
)
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


@behind(
    "first writer: initial offsets",
    Without(claims._with_initial_offsets, "if (partition, topic_id) in region.initial:", "if False:"),
)
def a_start_position_that_is_resolved_again() -> Flaws:
    driver = running()
    member, process = driver.member(0), driver.processes[driver.member(0)]
    assigned = {
        p: AssignedPartition(
            bounds=driver.logs[p], initial=SeekEntry(offset=Offset(9), source=SeekSource.START_POSITION)
        )
        for p in process.assigned
    }
    proposal = ClaimPartitions(
        member=member, incarnation=process.incarnation, assignment=AssignmentId(9), partitions=assigned
    )
    driver.handle(proposal)
    yield from judged(driver)


@behind(
    "first writer: boundary offsets",
    Without(
        boundaries.store, "and (p, region.claims[p].topic_id, boundary) not in region.boundary_offsets", "and True"
    ),
)
def a_boundary_that_is_found_again_elsewhere() -> Flaws:
    driver = hourly()
    member = driver.member(0)
    partition = next(iter(driver.claims(member)))
    for offset in (30, 40):
        found = {partition: BoundaryOffset(offset=Offset(offset))}
        driver.handle(StoreBoundaryOffsets(caller=driver.caller(member), boundary=boundary(1), found=found))
    row = boundaries.boundary_offset(driver.region, partition, boundary(1))
    if row is None or row.offset != 30:
        yield f"the boundary was found at 30 first, the store has {row}"


@behind(
    "first writer: seek entries",
    Without(resets.answer, "if entry is None or entry.offset is not None:", "if entry is None:"),
    Without(resets.write_seek, "if p not in region.seek or region.seek[p].offset is None", "if True"),
    Without(resets.write_seek, "region.seek.write(fresh)", "SeekMap({**region.seek, **fresh})"),
)
def an_open_entry_that_is_answered_again() -> Flaws:
    driver = started(Driver(delivery=Delivery.EXACTLY_ONCE))
    driver.process()
    driver.request_reset(driver.member(0), ResetCause.BATCH_REFUSED)
    member = driver.member(0)
    driver.claim(member)
    partition = next(iter(driver.claims(member)))
    for offset in (10, 4):
        driver.handle(AnswerEntries(caller=driver.caller(member), found={partition: Found(offset=Offset(offset))}))
    if driver.region.seek[partition].offset != 10:
        yield f"the sink was found at 10 first, the seek map says {driver.region.seek[partition].offset}"


@behind(
    "a reset burns a sequence",
    Without(
        resets.begin, "next_sequence=CheckpointNumber(region.next_sequence + 1),", "next_sequence=region.next_sequence,"
    ),
)
def a_checkpoint_after_a_reset() -> Flaws:
    driver = running()
    driver.request_reset(driver.member(0), ResetCause.BATCH_REFUSED)
    driver.finish_reset()
    driver.checkpoint("n")
    yield from judged(driver)


@behind(
    "a checkpoint burns a sequence",
    Without(checkpoints._open, "next_sequence=CheckpointNumber(sequence + 1),", "next_sequence=sequence,"),
)
def two_checkpoints() -> Flaws:
    driver = running()
    driver.checkpoint("n1")
    driver.checkpoint("n2")
    yield from judged(driver)


@behind("the incarnation", Without(region_state.require_member, "if row.incarnation != incarnation:", "if False:"))
def an_acknowledgement_of_a_superseded_process() -> Flaws:
    driver = running()
    member = driver.member(0)
    old = driver.caller(member)
    driver.handle(RequestReset(caller=old, cause=ResetCause.BATCH_REFUSED, detail=""))
    driver.join(member, takeover=True)
    driver.claim(member, tuple(p for p in driver.logs if p not in driver.processes[driver.member(1)].assigned))
    driver.answer(member)
    with suppress(KcrError):
        zombie = Caller(member=member, incarnation=old.incarnation, epoch=driver.region.epoch)
        driver.handle(Acknowledge(caller=zombie))
    yield from judged(driver)


@behind(
    "the incarnation at an end",
    Without(
        batches.finish,
        "if batch.incarnation != incarnation or region.members[member].incarnation != incarnation:",
        "if False:",
    ),
)
def an_end_of_a_superseded_process() -> Flaws:
    driver = running()
    batch = driver.start_batch(driver.member(0))
    driver.join(driver.member(0), takeover=True)
    with suppress(KcrError):
        driver.finish_batch(batch)
    yield from judged(driver)


@behind("the lease", Without(region_state.require_member, "if not is_live(region, member, now):", "if False:"))
def a_batch_after_the_lease() -> Flaws:
    driver = running()
    driver.clock.advance(60)
    with suppress(KcrError):
        batch = driver.start_batch(driver.member(0))
        row, lease = driver.row(batch), driver.region.leases[driver.member(0)]
        if row.started_at >= lease.until:
            yield f"a batch was begun at {row.started_at}, the lease was over at {lease.until}"


@behind(
    "a contested claim resets",
    Without(
        claims._is_contested,
        "is_unsettled(region, partition, row) and not _is_own(row, proposal, region.epoch)",
        "False",
    ),
)
def a_partition_that_moves_while_it_is_processed() -> Flaws:
    driver = running(partitions=2)
    driver.start_batch(driver.member(0))
    driver.insist(driver.member(1), tuple(driver.logs))
    driver.claim(driver.member(0), ())
    stuck = [p for p, c in driver.region.claims.items() if c.is_in_flight]
    if driver.region.state is RegionState.RUNNING and stuck:
        yield f"{stuck[0]} was begun by somebody else, its new owner can neither begin nor is there a reset"


@behind(
    "the current timeline: a rewind undoes",
    Without(timelines.undone_by, "tuple(sorted(gone - _undone_now(region)))", "()"),
)
def a_rewind_behind_a_checkpoint() -> Flaws:
    driver = running()
    first = driver.checkpoint("n1")
    driver.process()
    driver.checkpoint("n2")
    driver.reset(ToCheckpoint(sequence=first))
    driver.complete()
    driver.finish_reset()
    yield from judged(driver)


@behind(
    "a checkpoint waits for the publication before it",
    Without(checkpoints.may_open, "and not timelines.unpublished(region)", "and True"),
)
def a_checkpoint_opens_before_the_last_one_is_published() -> Flaws:
    driver = running()
    driver.request_checkpoint("n1")
    first = driver.complete()
    driver.request_checkpoint("n2")
    if driver.region.open_checkpoint is not None:
        yield f"a checkpoint is open, checkpoint {first} is not published"


@behind(
    "checkpoints are published in order",
    Without(publication.publish, "if earlier:", "if False:"),
    also=(Without(checkpoints.may_open, "and not timelines.unpublished(region)", "and True"),),
)
def the_second_of_two_checkpoints_is_published_first() -> Flaws:
    driver = running()
    driver.request_checkpoint("n1")
    first = driver.complete()
    driver.request_checkpoint("n2")
    second = driver.complete()
    with suppress(KcrError):
        driver.handle(PublishCheckpoint(sequence=second))
        if driver.region.checkpoints[first].published_at is None:
            yield f"checkpoint {second} is published, checkpoint {first} before it is not"


@behind(
    "a reset waits for publications", Without(coverage.unready, "if is_unpublished(region, sequence):", "if False:")
)
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


@behind(
    "only the restore point is read back",
    Without(
        publication.read_back,
        "if sequence != region.restore_point or region.restore_point_epoch is not None:",
        "if False:",
    ),
)
def an_read_back_of_an_older_checkpoint() -> Flaws:
    driver = running()
    first = driver.checkpoint("n1")
    driver.process()
    driver.checkpoint("n2")
    member = driver.member(0)
    told = driver.region.offsets[first].restrict(driver.claims(member))
    with suppress(KcrError):
        driver.handle(
            ReportReadBack(
                sequence=first, member=member, incarnation=driver.processes[member].incarnation, offsets=told
            )
        )
    yield from judged(driver)


@behind(
    "only the holder commit read-backs",
    Without(
        publication.read_back,
        "if claim is None or claim.owner != member or not coverage.is_current(region, claim, now):",
        "if claim is None:",
    ),
)
def an_read_back_of_somebody_elses_partitions() -> Flaws:
    driver = running()
    driver.request_checkpoint("n1")
    restore_point = driver.complete()
    member = driver.member(0)
    told = driver.region.offsets[restore_point].restrict(driver.claims(driver.member(1)))
    with suppress(KcrError):
        driver.handle(
            ReportReadBack(
                sequence=restore_point, member=member, incarnation=driver.processes[member].incarnation, offsets=told
            )
        )
    yield from judged(driver)


@behind(
    "nothing begins unless the region runs",
    Without(batches._require_processing, "if region.state is not RegionState.RUNNING:", "if False:"),
)
def a_batch_while_a_checkpoint_drains() -> Flaws:
    driver = running()
    driver.request_checkpoint("n")
    with suppress(KcrError):
        driver.start_batch(driver.member(0))
    yield from judged(driver)


@behind(
    "nothing ends in a halted region",
    Without(batches.finish, "if region.state not in {RegionState.RUNNING, RegionState.DRAINING}:", "if False:"),
)
def an_end_while_the_region_is_halted() -> Flaws:
    driver = running()
    batch = driver.start_batch(driver.member(0))
    driver.handle(ReportForeignConsumer(text="somebody else is in the group"))
    with suppress(KcrError):
        driver.finish_batch(batch)
    yield from judged(driver)


@behind(
    "no batch crosses a boundary",
    Without(
        batches._require_range,
        "if row is not None and range_.to > max(row.offset, range_.from_) "
        "and not _may_overshoot(region, range_, row.offset):",
        "if False:",
    ),
)
def a_batch_across_the_boundary() -> Flaws:
    driver = hourly()
    member = driver.member(0)
    partition = next(iter(driver.claims(member)))
    driver.handle(
        StoreBoundaryOffsets(
            caller=driver.caller(member), boundary=boundary(1), found={partition: BoundaryOffset(offset=Offset(5))}
        )
    )
    with suppress(KcrError):
        driver.finish_batch(driver.start_batch(member, 10, (partition,)))
    if (driver.region.claims[partition].position or 0) > 5:
        yield "records beyond the boundary were processed before its checkpoint"


@behind(
    "a lease that ends aborts its checkpoint",
    Without(
        checkpoints.lapsed,
        "if not is_live(region, member, now) or region.members[member].incarnation != incarnation:",
        "if False:",
    ),
)
def a_lease_that_ends_under_a_checkpoint() -> Flaws:
    driver = running()
    driver.request_checkpoint("n")
    opened = driver.region.open_checkpoint
    driver.crash(driver.member(1))
    driver.wait(15)
    if driver.region.open_checkpoint == opened:
        yield f"checkpoint {opened} still waits for a member whose lease is over"


@behind(
    "a contribution while the checkpoint drains",
    Without(completion.contribute, "or checkpoint.phase is not CheckpointPhase.DRAINING", "or False"),
)
def a_contribution_before_the_drain() -> Flaws:
    driver = hourly()
    driver.request_checkpoint("n", boundary=boundary(1))
    with suppress(KcrError):
        driver.contribute(driver.member(0))
    if driver.region.contributions:
        yield "a part of the checkpoint is stored, members still go on to its boundary"


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name)
def test_behind_the_guard_nothing_comes_of_the_misbehaviour(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    taken_away(monkeypatch, guard.also)
    assert flaws(guard.script) == []


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name)
def test_without_the_guard_it_is_noticed(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    taken_away(monkeypatch, (*guard.also, *guard.places))
    assert flaws(guard.script) != []
