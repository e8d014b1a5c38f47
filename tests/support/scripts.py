"""Beginnings that many scenarios share: a running region, one with hourly boundaries, a rewind carried out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from uuid import uuid4

from airflow_kcr.ports import BatchCall
from airflow_kcr.protocol.member.messages import ResetSinks
from airflow_kcr.protocol.observations import LogBounds, TimeAnswer
from airflow_kcr.protocol.offsets import EMPTY, SeekEntry, SeekSource
from airflow_kcr.protocol.region import boundaries
from airflow_kcr.protocol.region.commands import (
    Reconcile,
    RenewRecomputation,
    Run,
    StartRecomputation,
    StoreBoundaryOffsets,
)
from airflow_kcr.protocol.region.rows import BoundaryOffset, RegionState
from airflow_kcr.protocol.rules import CheckpointMode, CheckpointRules, RegionRules, RetentionRules
from airflow_kcr.protocol.targets import Target
from airflow_kcr.protocol.values import (
    BatchId,
    CheckpointNumber,
    Epoch,
    EventNumber,
    GroupPartition,
    MemberId,
    Offset,
    Range,
    RequestId,
    Timeline,
    drawn,
)
from airflow_kcr.schedules import Every
from tests.support.driver import BEGINNING, GROUP, Driver, group_rules
from tests.support.simulation.sinks import FencedSink

HOUR = timedelta(hours=1)
GRACE = timedelta(seconds=2)
NO_RECORD = TimeAnswer(offset=None)
LEASE = timedelta(minutes=10)
"""Of a recomputation."""


def started(driver: Driver) -> Driver:
    """Start the region with every member, and return its driver."""
    driver.up()
    return driver


def running(*, partitions: int = 4, members: int = 2) -> Driver:
    """Return a running region of one group."""
    return started(Driver(partitions=partitions, members=members))


def hourly(
    *,
    mode: CheckpointMode = CheckpointMode.DAG_RUN,
    catchup: bool = False,
    keep: int = 20,
    partitions: int = 4,
    members: int = 2,
) -> Driver:
    """Return a running region with a boundary every hour, the first of them one hour from now."""
    rules = RegionRules(
        groups={GROUP: group_rules(members=members)},
        checkpoint=CheckpointRules(schedule=Every(HOUR), mode=mode, catchup=catchup),
        retention=RetentionRules(keep=keep),
    )
    return started(Driver(partitions=partitions, rules=rules))


def boundary(hours: float) -> datetime:
    """Return the instant N hours after the beginning."""
    return BEGINNING + hours * HOUR


def boundary_offset(
    answer: TimeAnswer, *, after: timedelta, end: int, restore_point: int = 0, high: int | None = None
) -> BoundaryOffset | None:
    """Return where the boundary of the first hour falls in a log that ends at `end`, as is known so long after it.

    Args:
        answer: what the brokers say of the first record at or after it.
        after: how long ago it was; the grace is `GRACE`.
        end: the last stable offset.
        restore_point: of the partition.
        high: the high watermark, where it is known.
    """
    return boundaries.locate(
        boundary=boundary(1),
        end_before=LogBounds(start=Offset(0), end=Offset(end)),
        answer=answer,
        restore_point=Offset(restore_point),
        now=boundary(1) + after,
        grace=GRACE,
        high_before=None if high is None else Offset(high),
    )


def located(driver: Driver, instant: datetime, offset: int, *, inexact: str = "") -> None:
    """Let the plans of every member find that a boundary falls at `offset` of each partition."""
    for member in sorted(driver.processes):
        found = {p: BoundaryOffset(offset=Offset(offset), inexact=inexact) for p in driver.claims(member)}
        driver.handle(StoreBoundaryOffsets(caller=driver.caller(member), boundary=instant, found=found))


def checkpoints_of_ten(driver: Driver, number: int) -> list[CheckpointNumber]:
    """Make complete checkpoints, each with ten more records of every partition."""
    checkpoints = []
    for n in range(number):
        driver.process()
        checkpoints.append(driver.checkpoint(f"n{n}"))
    return checkpoints


def rewind(driver: Driver, target: Target) -> CheckpointNumber:
    """Carry out a person's reset of the whole region up to its end, and return its sequence."""
    driver.reset(target)
    driver.complete()
    driver.finish_reset()
    assert driver.region.state is RegionState.RUNNING
    return driver.region.resets[driver.region.epoch].sequence


def carried_out(driver: Driver, run: Run, at: int) -> CheckpointNumber:
    """Carry a run out whose boundary falls at `at` of each partition, and return its checkpoint; the members leave."""
    sequence = not_told(driver, run, at)
    for member in sorted(driver.processes):
        if driver.held.state is not RegionState.STOPPED:
            driver.read_back(member)
    driver.handle(Reconcile())
    for member in sorted(driver.processes):
        driver.leave(member)
    return sequence


def not_told(driver: Driver, run: Run, at: int) -> CheckpointNumber:
    """Bring a run whose boundary falls at `at` of each partition to where Kafka is to be told, and return it."""
    driver.store.handle(driver.name, run)
    for member in driver.all_members():
        driver.join(member)
    driver.spread()
    driver.finish_reset()
    located(driver, run.boundary, at)
    while any(claim.position is not None and claim.position < at for claim in driver.held.claims.values()):
        driver.process()
    driver.handle(Reconcile())  # as a member does that has reached the boundary
    sequence = driver.complete()
    driver.publish()
    return sequence


def all_crash(driver: Driver, members: Iterable[MemberId] | None = None) -> None:
    """Let every process vanish, or those of some members, and their leases run out."""
    for member in tuple(driver.processes) if members is None else members:
        driver.crash(member)
    driver.wait(60)


def call_of(driver: Driver, batch: BatchId) -> BatchCall:
    """Return a batch of the region as an engine has it."""
    return drawn(BatchCall, driver.row(batch), region=driver.name, progress=EMPTY)


def reset_order(driver: Driver, *asked: GroupPartition) -> ResetSinks:
    """Return what a member is told of the running reset; of these partitions a sink is asked for its progress."""
    region = driver.region
    return ResetSinks(
        epoch=region.epoch,
        timeline=region.timeline,
        resume=EMPTY,
        open={p: SeekEntry(offset=None, source=SeekSource.SINK_PROGRESS, current=Offset(0)) for p in asked},
        target=None,
        skips={},
    )


def published(sink: FencedSink, epoch: Epoch, timeline: Timeline, ranges: Mapping[GroupPartition, Range]) -> bool:
    """Publish whole ranges in a fenced sink, and return whether it let them through."""
    return sink.publish(epoch, timeline, ranges, {p: range_.to for p, range_ in ranges.items()})


def recomputation(driver: Driver, sequence: CheckpointNumber, request_id: str) -> EventNumber:
    """Start to recompute a checkpoint, in the place of what runs under the same request id; return the number."""
    start = StartRecomputation(
        sequence=sequence,
        request_id=RequestId(request_id),
        token=uuid4().hex,
        groups=(GROUP,),
        ranges={},
        lease=LEASE,
    )
    return driver.handle(start).number


def asking(driver: Driver, sequence: CheckpointNumber, number: EventNumber) -> Callable[[], None]:
    """Return what asks whether a recomputation may replace output, as its process does."""

    def ask() -> None:
        driver.handle(RenewRecomputation(sequence=sequence, number=number, lease=LEASE))

    return ask
