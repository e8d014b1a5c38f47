from __future__ import annotations

import pytest

from airflow_kcr.errors import IllegalEvent
from airflow_kcr.protocol.member import messages
from airflow_kcr.protocol.member.state import ACTIVE, MemberMachine, State, Why, answered, awaiting, moved, next_due
from airflow_kcr.protocol.region import commands
from airflow_kcr.protocol.timeouts import Timeouts
from tests.support import answers
from tests.support.lone_member import PROCESS, LoneMember

TIMEOUTS = Timeouts()
FRESH = MemberMachine(process=PROCESS, timeouts=TIMEOUTS)


def at(state: State) -> MemberMachine:
    return MemberMachine(process=PROCESS, timeouts=Timeouts(), state=state)


@pytest.mark.parametrize("before", State)
@pytest.mark.parametrize("after", State)
def test_any_state_follows_an_active_one_and_none_an_end(before: State, after: State) -> None:
    member = at(before)
    if after is before or before in ACTIVE:
        assert moved(member, after).state is after
        return
    with pytest.raises(IllegalEvent, match=f"can't go from {before} to {after}"):
        moved(member, after)


def test_what_a_member_holds_for_may_change_without_a_move() -> None:
    paused = moved(at(State.HOLDING), State.HOLDING, Why.PAUSED)
    assert paused.why is Why.PAUSED
    assert moved(paused, State.HOLDING, Why.PAUSED) is paused
    assert moved(paused, State.PROCESSING).why is None


def test_an_effect_is_outstanding_until_it_is_answered() -> None:
    waits = awaiting(awaiting(FRESH, commands.ReadRegion), commands.Renew)
    assert waits.awaited == {commands.ReadRegion, commands.Renew}
    assert answered(waits, commands.ReadRegion).awaited == {commands.Renew}
    assert answered(FRESH, commands.ReadRegion) == FRESH


def test_what_others_count_on_is_due_at_its_moment() -> None:
    lone, before = LoneMember(now=100.75).in_batch(), 0.001
    lease_ends = 100.75 + TIMEOUTS.lease.total_seconds()
    assert next_due(lone.member, lease_ends - before) == lease_ends
    lone.now = batch_ends = 100.75 + TIMEOUTS.batch.total_seconds()
    assert next_due(lone.member, batch_ends - before) == batch_ends
    lone.feed(answers.renewed(sent_at=lone.now, counter=lone.view.counter))
    assert lone.wanted(messages.Cancel)
    process_ends = lone.now + TIMEOUTS.process_end_limit.total_seconds()
    assert next_due(lone.member, process_ends - before) == process_ends
    lone.now = process_ends
    lone.feed(answers.renewed(sent_at=lone.now, counter=lone.view.counter))
    assert lone.wanted(messages.EndProcess)
