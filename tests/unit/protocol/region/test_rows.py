from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from airflow_kcr.protocol.region.rows import (
    FAILURE_CAUSES,
    Checkpoint,
    CheckpointPurpose,
    CheckpointState,
    Claim,
    Member,
    ResetCause,
)
from airflow_kcr.protocol.values import (
    CheckpointNumber,
    Epoch,
    GroupId,
    Incarnation,
    MemberId,
    Offset,
    RequestId,
    Timeline,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MEMBER = Member(member=MemberId(GroupId("g"), 0), incarnation=Incarnation(1))
CHECKPOINT = Checkpoint(
    sequence=CheckpointNumber(3),
    timeline=Timeline(1),
    epoch=Epoch(1),
    state=CheckpointState.DRAINING,
    purpose=CheckpointPurpose.REQUEST,
    request_id=RequestId("n"),
    participants={},
    opened_at=NOON,
)


def claim(resume: int | None, position: int | None, started_to: int | None) -> Claim:
    places = [None if place is None else Offset(place) for place in (resume, position, started_to)]
    return Claim(resume=places[0], position=places[1], started_to=places[2])


def test_a_member_with_fenced_sinks_can_not_write_beyond_its_lease() -> None:
    assert replace(MEMBER, sinks_fenced=True).quiesced_after(NOON) == NOON


def test_any_other_member_can_until_its_process_must_have_ended() -> None:
    member = replace(MEMBER, ends_within=timedelta(seconds=7))
    assert member.quiesced_after(NOON) == NOON + timedelta(seconds=7)


@pytest.mark.parametrize(
    ("row", "begun"),
    [
        pytest.param(claim(10, 10, 10), False, id="nothing-since-the-resume-point"),
        pytest.param(claim(10, 10, 11), True, id="begun-and-not-ended"),
        pytest.param(claim(10, 11, 11), True, id="begun-and-ended"),
        pytest.param(claim(None, None, None), False, id="resume-point-not-known-yet"),
        pytest.param(claim(10, None, None), False, id="never-begun"),
    ],
)
def test_a_partition_is_begun_where_a_batch_began_beyond_its_resume_point(row: Claim, begun: bool) -> None:
    assert row.is_started is begun


def test_a_partition_is_in_flight_while_a_batch_that_began_there_is_not_accepted() -> None:
    assert claim(10, 10, 20).is_in_flight
    assert not claim(10, 20, 20).is_in_flight


@pytest.mark.parametrize(
    ("state", "complete"),
    [
        (CheckpointState.APPROACHING, False),
        (CheckpointState.DRAINING, False),
        (CheckpointState.COMPLETE, True),
        (CheckpointState.PUBLISHED, True),
        (CheckpointState.ABORTED, False),
        (CheckpointState.RETIRED, False),
    ],
)
def test_only_complete_and_published_checkpoints_have_their_offsets(state: CheckpointState, complete: bool) -> None:
    assert replace(CHECKPOINT, state=state).is_complete is complete


@pytest.mark.parametrize("state", [CheckpointState.COMPLETE, CheckpointState.PUBLISHED, CheckpointState.RETIRED])
def test_a_checkpoint_that_was_complete_is_on_the_path_until_a_timeline_undoes_it(state: CheckpointState) -> None:
    row = replace(CHECKPOINT, state=state, previous=CheckpointNumber(1))
    assert row.is_current
    assert not replace(row, undone_by=Timeline(2)).is_current


@pytest.mark.parametrize(
    "state", [CheckpointState.APPROACHING, CheckpointState.DRAINING, CheckpointState.ABORTED, CheckpointState.RETIRED]
)
def test_what_was_never_complete_is_not_on_the_path_retired_or_not(state: CheckpointState) -> None:
    assert not replace(CHECKPOINT, state=state).is_current


def test_membership_changes_never_count_as_failures() -> None:
    membership = {ResetCause.CLAIM, ResetCause.LEASE_LOST, ResetCause.DOUBLE_CLAIM, ResetCause.BATCH_REFUSED}
    by_choice = {ResetCause.START, ResetCause.PERSON, ResetCause.SPEC_CHANGED, ResetCause.OUT_OF_RANGE}
    assert not FAILURE_CAUSES & (membership | by_choice)
    assert frozenset(ResetCause) == FAILURE_CAUSES | membership | by_choice
