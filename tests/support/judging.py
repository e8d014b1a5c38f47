"""What a test asks of a region's history: events of one kind, where everything stands, and what `verify` says."""

from __future__ import annotations

from typing import TypeVar

from airflow_kcr.protocol.invariants.history import History
from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.region.rows import Checkpoint, Halt, Outcome, RegionState, ResetAttempt, ResetCause
from airflow_kcr.protocol.values import CheckpointNumber, GroupPartition, Offset, Range
from tests.support.driver import Driver
from tests.support.verifying import verify

Body = TypeVar("Body", bound=events.Body)
Row = TypeVar("Row")


def judge(driver: Driver) -> None:
    """Fail if the history breaks one of the invariants that events and ledger alone can prove."""
    violations = verify(History(events=driver.events, batches=driver.batches))
    assert not violations, "\n".join(map(str, violations))


def happened(driver: Driver, kind: type[Body]) -> list[Body]:
    """Return the bodies of every event of one kind, in order."""
    return [e.body for e in driver.events if isinstance(e.body, kind)]


def stops(driver: Driver) -> list[str]:
    """Return how the region was stopped, each time: drained or undrained."""
    return [body.why for body in happened(driver, events.StateChanged) if body.after is RegionState.STOPPED]


def causes(driver: Driver) -> list[ResetCause]:
    """Return the cause of every reset, in order; the first one is the region's start."""
    return [body.cause for body in happened(driver, events.ResetBegun)]


def positions(driver: Driver, group: str = "g", topic: str = "t") -> list[Offset | None]:
    """Return the next offset of each partition, in order."""
    claims = driver.region.claims
    return [claims[p].position for p in sorted(claims) if (p.group, p.topic) == (group, topic)]


def accepted(driver: Driver, partition: GroupPartition) -> list[Range]:
    """Return what was accepted of one partition and still counts, in the order of its offsets."""
    found = []
    for batch in driver.batches:
        if batch.outcome is Outcome.DONE and partition in batch.ranges:
            range_ = batch.ranges[partition]
            upto = min(range_.to, batch.undone_from.get(partition, range_.to))
            if upto > range_.from_:
                found.append(Range(range_.from_, upto))
    return sorted(found)


def started_of(driver: Driver, partition: GroupPartition) -> list[Range]:
    """Return every range that was started of one partition, in the order of the starts."""
    return [b.ranges[partition] for b in driver.batches if partition in b.ranges]


def members_batches(driver: Driver, outcome: Outcome | None) -> list[str]:
    """Return the ids of the batches of one outcome."""
    return [b.batch for b in driver.batches if b.outcome is outcome]


def manifest(driver: Driver, sequence: CheckpointNumber) -> list[str]:
    """Return the batches whose output belongs to a checkpoint: accepted, ended since the previous one."""
    completions = [(e.number, e.body) for e in driver.events if isinstance(e.body, events.CheckpointCompleted)]
    upto = next(number for number, body in completions if body.sequence == sequence)
    since = max((number for number, body in completions if number < upto), default=0)
    return [
        b.batch
        for b in driver.batches
        if b.outcome is Outcome.DONE and b.finished_after is not None and since <= b.finished_after < upto
    ]


def state(driver: Driver) -> RegionState:
    """Return the region's state; a call, so that a type checker does not take the last answer for the next one."""
    return driver.region.state


def open_checkpoint(driver: Driver) -> CheckpointNumber | None:
    """Return the open checkpoint's sequence."""
    return driver.region.open_checkpoint


def checkpoint_of(driver: Driver) -> Checkpoint:
    """Return the open checkpoint; fail where none is open."""
    return _there(driver.region.checkpoint)


def reset_of(driver: Driver) -> ResetAttempt:
    """Return the reset that runs; fail where none does."""
    return _there(driver.region.reset)


def halt_of(driver: Driver) -> Halt:
    """Return why the region is halted; fail where it is not."""
    return _there(driver.region.halt)


def _there(row: Row | None) -> Row:
    assert row is not None
    return row
