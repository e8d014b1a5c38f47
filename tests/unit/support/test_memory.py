"""The rows in memory; what a store promises besides, `tests/contract` asks of both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region.commands import DeclareRegion, RetireCheckpoints
from airflow_kcr.protocol.region.rows import Batch, Outcome
from airflow_kcr.protocol.region.state import (
    BatchClosed,
    BatchesProven,
    BatchQuiescedAfter,
    BatchStarted,
    LedgerChange,
    Spec,
)
from airflow_kcr.protocol.rules import RegionRules
from airflow_kcr.protocol.values import (
    BatchId,
    CheckpointNumber,
    Epoch,
    EventNumber,
    GroupId,
    GroupPartition,
    Incarnation,
    MemberId,
    Offset,
    Range,
    RegionName,
    Timeline,
    TopicName,
)
from tests.support.driver import BEGINNING, Clock
from tests.support.memory import MemoryTransactions, proven
from tests.support.scripts import checkpoints_of_ten, hourly

FLIGHTS = RegionName("flights")
LEASE = timedelta(seconds=10)
MEMBER = MemberId(GroupId("g"), 0)


def p(number: int) -> GroupPartition:
    return GroupPartition(GroupId("g"), TopicName("t"), number)


def test_what_is_retired_is_forgotten_and_nothing_else() -> None:
    driver = hourly(keep=2)
    checkpoints = checkpoints_of_ten(driver, 4)
    driver.handle(RetireCheckpoints())
    region = driver.region
    assert set(region.offsets) == set(region.read_backs) == {s for s, _ in region.contributions} == set(checkpoints[2:])
    assert set(checkpoints) <= set(region.checkpoints)


def test_every_kind_of_ledger_change_reaches_its_rows() -> None:
    store = MemoryTransactions(Clock())
    store.handle(FLIGHTS, DeclareRegion(spec=Spec(text="{}", rules=RegionRules(groups={}))))
    changes: tuple[LedgerChange, ...] = (
        BatchStarted(batch=batch(outcome=None)),
        BatchQuiescedAfter(batch=BatchId("b"), at=BEGINNING + LEASE),
        BatchClosed(batch=BatchId("b"), outcome=Outcome.UNKNOWN, at=BEGINNING, after=EventNumber(4)),
        BatchesProven(epoch=Epoch(1), proven_in=Epoch(3), progress=places(p0=10, p1=20)),
    )
    region, _ = store.decide(FLIGHTS, lambda region, now: (replace(region, ledger=changes), None))
    assert len(region.ledger) == 0
    row = store.batch(FLIGHTS, BatchId("b"))
    assert row is not None
    assert (row.quiesced_after, row.finished_at, row.finished_after) == (BEGINNING + LEASE, BEGINNING, 4)
    assert (row.outcome, row.proven_in, row.accepted_in) == (Outcome.DONE, 3, 3)


# -- proven -----------------------------------------------------------------------------------------------------------


def batch(
    ranges: Mapping[int, tuple[int, int]] | None = None, *, outcome: Outcome | None = Outcome.DONE, epoch: int = 1
) -> Batch:
    """Return a batch of [0, 10) and [0, 20), or of other ranges."""
    wanted = ranges or {0: (0, 10), 1: (0, 20)}
    return Batch(
        batch=BatchId("b"),
        member=MEMBER,
        incarnation=Incarnation(1),
        epoch=Epoch(epoch),
        timeline=Timeline(1),
        sequence=CheckpointNumber(2),
        ranges={p(n): Range(Offset(a), Offset(b)) for n, (a, b) in wanted.items()},
        started_at=BEGINNING,
        started_after=EventNumber(1),
        outcome=outcome,
    )


def places(**offsets: int) -> OffsetMap:
    return OffsetMap({p(int(name[1:])): Offset(offset) for name, offset in offsets.items()})


def proof(epoch: int, **offsets: int) -> BatchesProven:
    return BatchesProven(epoch=Epoch(epoch), proven_in=Epoch(epoch + 1), progress=places(**offsets))


@pytest.mark.parametrize("outcome", [Outcome.UNKNOWN, Outcome.DISCARDED])
def test_a_sinks_progress_proves_a_batch_that_lies_wholly_at_or_below_it(outcome: Outcome) -> None:
    row = batch(outcome=outcome)
    assert proven(row, proof(1, p0=10, p1=20)).outcome is Outcome.DONE
    assert proven(row, proof(1, p0=50, p1=50)).outcome is Outcome.DONE
    assert proven(row, proof(1, p0=10, p1=19)) is row
    assert proven(row, proof(1, p0=10)).outcome is Outcome.DONE, "nobody can tell of the other one: it is gone"
    assert proven(row, proof(1, p0=10, p1=0)) is row, "the other one's sink has no progress"
    assert proven(row, proof(1, p2=99)) is row
    assert proven(row, proof(2, p0=10, p1=20)) is row


@pytest.mark.parametrize("outcome", [None, Outcome.DONE, Outcome.UNDONE])
def test_it_proves_nothing_about_what_runs_or_is_settled(outcome: Outcome | None) -> None:
    row = batch(outcome=outcome)
    assert proven(row, proof(1, p0=10, p1=20)) is row
