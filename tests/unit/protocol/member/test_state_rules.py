from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_kcr.protocol.member import messages
from airflow_kcr.protocol.member.drive import place
from airflow_kcr.protocol.member.state import MemberMachine, OwnCommit, State, Why, awaiting, moved
from airflow_kcr.protocol.region.rows import BoundaryOffset, CheckpointState, RegionState
from airflow_kcr.protocol.region.view import MemberRegion
from airflow_kcr.protocol.values import CheckpointNumber, DesiredState, Epoch, Offset
from tests.support.lone_member import MINE, LoneMember, checkpoint_view, claims_of, view_of
from tests.support.scripts import boundary

SEEN = view_of(claims_of())


def placed(member: MemberMachine, view: MemberRegion | None = None, now: float = 0.0) -> tuple[State, Why | None]:
    """Return where a member's facts put it, with this view."""
    there, wanted = place(member if view is None else replace(member, view=view), now)
    assert wanted == ()
    return there.state, there.why


def processing() -> MemberMachine:
    return LoneMember().processing().member


def test_without_a_lease_a_view_or_a_claim_it_joins() -> None:
    member = processing()
    assert placed(replace(member, incarnation=None)) == (State.JOINING, None)
    assert placed(replace(member, view=None)) == (State.JOINING, None)
    assert placed(replace(member, claimed=None)) == (State.JOINING, None)


@pytest.mark.parametrize("state", [RegionState.STARTING, RegionState.RESETTING])
def test_in_a_reset_or_before_its_acknowledgement_it_is_ready(state: RegionState) -> None:
    assert placed(processing(), replace(SEEN, state=state)) == (State.READY, None)
    assert placed(processing(), replace(SEEN, acknowledged=False)) == (State.READY, None)


def test_it_holds_while_the_region_is_halted_or_its_own_batch_is_of_another_epoch() -> None:
    assert placed(processing(), replace(SEEN, state=RegionState.HALTED)) == (State.HOLDING, Why.RESET)
    assert placed(LoneMember().in_batch().member, replace(SEEN, epoch=Epoch(2))) == (State.HOLDING, Why.RESET)


def test_it_holds_for_a_drain_and_for_its_own_commit_until_the_timeout() -> None:
    assert placed(processing(), replace(SEEN, state=RegionState.DRAINING)) == (State.HOLDING, Why.DRAINED)
    owed = replace(SEEN, commit=CheckpointNumber(2))
    assert placed(processing(), owed) == (State.HOLDING, Why.DRAINED)
    assert placed(replace(processing(), commit=OwnCommit(done=CheckpointNumber(2))), owed) == (State.PROCESSING, None)
    sent = awaiting(replace(processing(), commit=OwnCommit(since=100.0)), messages.Commit)
    assert placed(sent, owed, now=129.0) == (State.HOLDING, Why.DRAINED)
    assert placed(sent, owed, now=130.0) == (State.PROCESSING, None)


@pytest.mark.parametrize("wanted", [DesiredState.PAUSED, DesiredState.STOPPED])
def test_it_holds_in_a_paused_or_stopping_region_unless_a_checkpoint_approaches(wanted: DesiredState) -> None:
    view = replace(SEEN, desired_state=wanted)
    assert placed(processing(), view) == (State.HOLDING, Why.PAUSED)
    approaching = replace(view, checkpoint=checkpoint_view(CheckpointState.APPROACHING))
    assert placed(processing(), approaching) == (State.PROCESSING, None)
    draining = replace(view, checkpoint=checkpoint_view(CheckpointState.DRAINING))
    assert placed(processing(), draining) == (State.HOLDING, Why.PAUSED)


def test_it_holds_at_the_boundary_once_its_batch_is_over() -> None:
    there = replace(SEEN, limit=boundary(1), boundary_offsets=dict.fromkeys(MINE, BoundaryOffset(offset=Offset(0))))
    assert placed(processing(), there) == (State.HOLDING, Why.BOUNDARY)
    assert placed(LoneMember().in_batch().member, there) == (State.PROCESSING, None)


def test_a_member_at_its_end_or_without_its_store_stays_where_it_is() -> None:
    for state in (State.FENCED, State.CLOSED):
        assert placed(moved(processing(), state)) == (state, None)
    away = moved(processing(), State.HOLDING, Why.STORE_AWAY)
    assert placed(away) == (State.HOLDING, Why.STORE_AWAY)
