from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_kcr.errors import IllegalEvent
from airflow_kcr.protocol.member import state
from airflow_kcr.protocol.member.state import State, Why, moved
from airflow_kcr.protocol.offsets import EMPTY, OffsetMap
from airflow_kcr.protocol.region.rows import BoundaryOffset, CheckpointState, ResetCause
from airflow_kcr.protocol.values import AssignmentId, Epoch, Offset
from tests.support.lone_member import MINE, LoneMember, checkpoint_view, claims_of, view_of
from tests.support.scripts import boundary


def test_durations_are_seconds_of_the_members_clock() -> None:
    assert state.seconds(timedelta(minutes=1, milliseconds=500)) == 60.5


def test_a_batch_is_doomed_once_and_a_member_without_one_stays_as_it_is() -> None:
    fresh = LoneMember().member
    assert state.doomed(fresh) is fresh
    doomed = state.doomed(LoneMember().in_batch().member)
    assert doomed.batch is not None
    assert doomed.batch.doomed
    assert state.doomed(doomed) is doomed


def test_without_its_lease_a_member_forgets_what_counted_under_it_and_joins_anew() -> None:
    member = replace(LoneMember().in_batch().member, failure=(ResetCause.BATCH_FAILED, "why"))
    lost = state.without_lease(member)
    assert (lost.state, lost.incarnation, lost.claimed, lost.view) == (State.JOINING, None, None, None)
    assert (lost.positions, lost.failure, lost.previous) == (EMPTY, None, 1)
    assert lost.batch is not None
    assert lost.batch.doomed
    assert lost.in_group


def test_a_fenced_member_stays_fenced_without_its_lease() -> None:
    member = moved(LoneMember().processing().member, State.FENCED)
    assert state.without_lease(member).state is State.FENCED


def test_an_assignment_is_claimed_while_it_epoch_and_claims_are_those_that_were_granted() -> None:
    lone = LoneMember().processing()
    member, view = lone.member, lone.view
    assert state.has_claimed(member, view)
    assert not state.has_claimed(replace(member, assignment=None), view)
    assert not state.has_claimed(replace(member, claimed=(AssignmentId(7), Epoch(1))), view)
    assert not state.has_claimed(member, replace(view, epoch=Epoch(2)))
    assert not state.has_claimed(member, replace(view, claims=claims_of(MINE[:1])))


def test_a_member_is_well_while_it_holds_a_lease_and_means_to_stay() -> None:
    member = LoneMember().processing().member
    assert state.is_well(member)
    assert not state.is_well(replace(member, incarnation=None))
    assert not state.is_well(replace(member, terminated_at=0.0))
    assert not state.is_well(moved(member, State.FENCED))
    assert not state.is_well(moved(member, State.HOLDING, Why.STORE_AWAY))
    assert state.is_well(moved(member, State.HOLDING, Why.PAUSED))


def test_a_member_is_at_the_boundary_when_every_partition_of_it_is() -> None:
    member = LoneMember().processing().member
    falls = dict.fromkeys(MINE, BoundaryOffset(offset=Offset(5)))
    view = replace(view_of(claims_of()), limit=boundary(1), boundary_offsets=falls)
    at_five = replace(member, positions=OffsetMap(dict.fromkeys(MINE, Offset(5))))
    assert not state.is_at_limit(member, view)
    assert state.is_at_limit(at_five, view)
    assert not state.is_at_limit(at_five, replace(view, boundary_offsets={MINE[0]: falls[MINE[0]]}))
    assert not state.is_at_limit(replace(member, positions=EMPTY), view)
    assert not state.is_at_limit(at_five, view_of(claims_of()))


def test_an_idle_member_is_at_the_boundary_of_an_open_checkpoint() -> None:
    member = LoneMember().processing().member
    idle = replace(view_of(), limit=boundary(1))
    assert not state.is_at_limit(member, idle)
    assert state.is_at_limit(member, replace(idle, checkpoint=checkpoint_view(CheckpointState.APPROACHING)))


def test_skipped_records_are_stepped_over_as_far_as_the_view_tells() -> None:
    view = replace(view_of(), skips={MINE[0]: (Offset(3), Offset(4), Offset(9))})
    assert [state.past_skips(view, MINE[0], Offset(o)) for o in (2, 3, 4, 9)] == [2, 5, 5, 10]
    assert state.past_skips(view, MINE[1], Offset(3)) == 3
    assert state.past_skips(None, MINE[0], Offset(3)) == 3


def test_nothing_is_asked_in_the_name_of_a_member_without_a_lease() -> None:
    assert state.own(LoneMember().processing().member) == 1
    with pytest.raises(IllegalEvent, match="has no lease"):
        state.own(LoneMember().member)
