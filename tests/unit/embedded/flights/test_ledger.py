"""Which part of the output counts, by the ledger alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from airflow_kcr.embedded.flights.data import GROUP, spec
from airflow_kcr.embedded.flights.result import Standing, checkpoint_offsets, pieces
from airflow_kcr.errors import CheckpointNotUsable, UnknownCheckpoint
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region import lifecycle
from airflow_kcr.protocol.region.rows import Batch, Checkpoint, CheckpointPurpose, CheckpointState, Outcome
from airflow_kcr.protocol.region.state import Region, Spec
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
    RegionId,
    RegionName,
    RequestId,
    Timeline,
    TopicName,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PLACE = GroupPartition(GROUP, TopicName("flights"), 0)
OTHER = GroupPartition(GROUP, TopicName("flights"), 1)


def batch(
    begin: int = 0,
    end: int = 100,
    *,
    outcome: Outcome | None = Outcome.DONE,
    undone_from: int | None = None,
    group: GroupId = GROUP,
) -> Batch:
    return Batch(
        batch=BatchId("b"),
        member=MemberId(group, 0),
        incarnation=Incarnation(1),
        epoch=Epoch(1),
        timeline=Timeline(1),
        sequence=CheckpointNumber(2),
        ranges={PLACE: Range(Offset(begin), Offset(end))},
        started_at=NOW,
        started_after=EventNumber(1),
        outcome=outcome,
        undone_from={} if undone_from is None else {PLACE: Offset(undone_from)},
    )


@pytest.mark.parametrize(
    ("row", "standing", "counted"),
    [
        (batch(), Standing.WHOLE, (0, 100)),
        (batch(undone_from=100), Standing.WHOLE, (0, 100)),
        (batch(undone_from=40), Standing.PART, (0, 40)),
        (batch(undone_from=0), Standing.VOID, (0, 0)),
        (batch(100, 200), Standing.LATER, (100, 100)),
        (batch(50, 200), Standing.PART, (50, 100)),
        (batch(outcome=Outcome.UNDONE), Standing.VOID, (0, 0)),
        (batch(outcome=Outcome.DISCARDED), Standing.VOID, (0, 0)),
        (batch(outcome=Outcome.UNKNOWN), Standing.VOID, (0, 0)),
        (batch(outcome=None), Standing.OPEN, (0, 0)),
    ],
)
def test_only_accepted_ranges_below_the_checkpoint_count(
    row: Batch, standing: Standing, counted: tuple[int, int]
) -> None:
    (piece,) = pieces([row], GROUP, {PLACE: Offset(100)})
    assert (piece.standing, piece.counted) == (standing, counted)


def test_a_partition_found_after_the_checkpoint_is_of_a_later_one() -> None:
    (piece,) = pieces([batch()], GROUP, {OTHER: Offset(100)})
    assert piece.standing is Standing.LATER


def test_batches_of_other_groups_are_left_out() -> None:
    assert pieces([batch(group=GroupId("other"))], GROUP, {PLACE: Offset(100)}) == ()


def checkpoint(sequence: int, state: CheckpointState, undone_by: int | None = None) -> Checkpoint:
    return Checkpoint(
        sequence=CheckpointNumber(sequence),
        timeline=Timeline(1),
        epoch=Epoch(1),
        state=state,
        purpose=CheckpointPurpose.SCHEDULE,
        request_id=RequestId(f"n{sequence}"),
        participants={},
        opened_at=NOW,
        undone_by=None if undone_by is None else Timeline(undone_by),
    )


def region(*checkpoints: Checkpoint) -> Region:
    flights = spec()
    empty = lifecycle.declare(
        RegionName("flights"), RegionId("r"), Spec(text=flights.to_json_text(), rules=flights.rules()), NOW
    )
    elsewhere = GroupPartition(GroupId("other"), TopicName("flights"), 0)
    return replace(
        empty,
        checkpoints={one.sequence: one for one in checkpoints},
        offsets={
            one.sequence: OffsetMap({PLACE: Offset(10 * one.sequence), elsewhere: Offset(1)}) for one in checkpoints
        },
    )


def test_the_newest_checkpoint_on_the_path_is_taken_unless_another_one_is_named() -> None:
    found = region(
        checkpoint(2, CheckpointState.PUBLISHED),
        checkpoint(3, CheckpointState.COMPLETE),
        checkpoint(4, CheckpointState.ABORTED),
        checkpoint(5, CheckpointState.PUBLISHED, undone_by=2),
    )
    assert checkpoint_offsets(found, GROUP) == OffsetMap({PLACE: Offset(30)})
    assert checkpoint_offsets(found, GROUP, CheckpointNumber(2)) == OffsetMap({PLACE: Offset(20)})


def test_a_checkpoint_that_says_nothing_about_the_ledger_is_refused() -> None:
    found = region(checkpoint(2, CheckpointState.PUBLISHED), checkpoint(5, CheckpointState.PUBLISHED, undone_by=2))
    with pytest.raises(CheckpointNotUsable, match=r"checkpoint 5 of region flights is undone; .* are 2$"):
        checkpoint_offsets(found, GROUP, CheckpointNumber(5))
    with pytest.raises(UnknownCheckpoint, match="no checkpoint 7"):
        checkpoint_offsets(found, GROUP, CheckpointNumber(7))
    with pytest.raises(UnknownCheckpoint, match="no checkpoint yet"):
        checkpoint_offsets(region(), GROUP)
