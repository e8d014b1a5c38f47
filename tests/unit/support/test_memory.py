"""The rows in memory; what a store promises besides, `tests/contract` asks of both."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region.rows import Batch, Outcome
from airflow_kcr.protocol.region.state import (
    BatchesProven,
)
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
    Timeline,
    TopicName,
)
from tests.support.driver import BEGINNING
from tests.support.memory import proven

MEMBER = MemberId(GroupId("g"), 0)


def p(number: int) -> GroupPartition:
    return GroupPartition(GroupId("g"), TopicName("t"), number)


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
