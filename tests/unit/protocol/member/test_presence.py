from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_kcr.errors import MemberInUse
from airflow_kcr.protocol.member import messages
from airflow_kcr.protocol.member.state import BatchPhase, MemberMachine, State
from airflow_kcr.protocol.member.step import REGISTER_PAUSE
from airflow_kcr.protocol.region import commands
from airflow_kcr.protocol.region.rows import BoundaryOffset, CheckpointState, RegionState
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import BatchId, Epoch, EventNumber, Incarnation, Offset
from tests.support import answers
from tests.support.answers import ME
from tests.support.lone_member import MINE, PROCESS, LoneMember, checkpoint_view, claims_of, view_of
from tests.support.scripts import boundary

SEEN = view_of(claims_of())
TIMEOUTS = Timeouts()


def renewed(lone: LoneMember, counter: int = 10, *, needs_reconciling: bool = False) -> None:
    lone.feed(answers.renewed(sent_at=lone.now, counter=EventNumber(counter), needs_reconciling=needs_reconciling))


# -- the lease --------------------------------------------------------------------------------------------------------


def test_a_lease_is_renewed_in_time() -> None:
    lone = LoneMember().processing()
    lone.now = 1.9
    assert lone.feed(messages.Notice.TICK) == ()
    lone.now = 2.0
    lone.feed(messages.Notice.TICK)
    assert lone.wanted(commands.Renew) == [answers.RENEW]
    assert lone.feed(messages.Notice.TICK) == ()


def test_members_that_share_a_clock_ask_for_their_renewals_at_the_same_moment() -> None:
    lone = {begun: LoneMember(now=begun).processing() for begun in (0.3, 1.1, 1.9)}
    asked: dict[float, list[float]] = {begun: [] for begun in lone}
    for tenths in range(20, 90):
        for begun, one in lone.items():
            one.now = tenths / 10
            one.feed(messages.Notice.TICK)
            if one.wanted(commands.Renew):
                asked[begun].append(one.now)
                one.feed(answers.renewed(sent_at=one.now, counter=EventNumber(10)))
    assert asked == {begun: [2.0, 4.0, 6.0, 8.0] for begun in lone}


def test_its_age_counts_from_before_the_renewal_was_sent() -> None:
    lone = LoneMember().processing()
    lone.now = 9.0
    lone.feed(answers.renewed(sent_at=2.0, counter=EventNumber(10)))
    lone.now = 11.9
    lone.feed(messages.Notice.TICK)
    assert lone.member.incarnation == 1
    lone.now = 12.0
    lone.feed(messages.Notice.TICK)
    assert lone.member.incarnation is None


def test_an_older_answer_does_not_make_a_lease_older() -> None:
    lone = LoneMember().processing()
    lone.now = 5.0
    renewed(lone)
    lone.feed(answers.renewed(sent_at=1.0, counter=EventNumber(10)))
    assert lone.member.lease_sent_at == 5.0


# -- registering and reading ------------------------------------------------------------------------------------------


def test_a_member_registers_first_and_then_reads() -> None:
    lone = LoneMember()
    assert lone.feed(messages.Notice.TICK) == (PROCESS,)
    assert lone.feed(answers.registered(incarnation=Incarnation(3), sent_at=0.0)) == (commands.ReadRegion(member=ME),)


def in_use(lone: LoneMember) -> bool:
    """Hear that another process holds the index; return whether it is to be asked for again."""
    lone.feed(answers.registration_refused(error=MemberInUse("another process holds it")))
    assert not lone.wanted(commands.Register)
    lone.now += REGISTER_PAUSE
    lone.feed(messages.Notice.TICK)
    return bool(lone.wanted(commands.Register))


@pytest.mark.parametrize(
    ("takeover", "longest"),
    [(False, 2 * TIMEOUTS.lease + TIMEOUTS.renew / 2), (True, 2 * TIMEOUTS.lease + TIMEOUTS.drain)],
)
def test_an_index_that_another_process_holds_is_asked_for_again_for_some_time(
    takeover: bool, longest: timedelta
) -> None:
    lone = LoneMember(member=MemberMachine(process=replace(PROCESS, takeover=takeover), timeouts=TIMEOUTS))
    lone.feed(messages.Notice.TICK)
    while lone.now <= longest.total_seconds():
        assert in_use(lone)
    assert not in_use(lone)
    assert lone.state is State.CLOSED
    assert isinstance(lone.member.refusal, MemberInUse)


def test_how_long_an_index_is_waited_for_counts_anew_each_time() -> None:
    lone = LoneMember()
    lone.feed(messages.Notice.TICK)
    assert in_use(lone)
    lone.feed(answers.registered(incarnation=Incarnation(2), sent_at=lone.now))
    lone.now += 1_000
    lone.feed(messages.Notice.TICK)
    assert lone.wanted(commands.Register), "its lease is over"
    assert in_use(lone)


def test_each_registration_of_a_process_says_what_it_was_before_and_a_repeated_one_the_same() -> None:
    lone = LoneMember().processing()
    lone.now = 10.0
    lone.feed(messages.Notice.TICK)
    assert lone.wanted(commands.Register) == [replace(PROCESS, previous=Incarnation(1))]
    in_use(lone)
    assert lone.wanted(commands.Register) == [replace(PROCESS, previous=Incarnation(1))]


def test_who_terminates_before_it_is_registered_does_not_register() -> None:
    lone = LoneMember()
    lone.feed(messages.Notice.TERMINATED)
    assert lone.last == ()
    assert lone.state is State.CLOSED


def test_without_any_hint_it_is_read_once_a_lease() -> None:
    lone = LoneMember().processing()
    lone.wait(9)
    assert lone.wanted(commands.ReadRegion) == []
    lone.wait(1)
    assert lone.wanted(commands.ReadRegion) == [commands.ReadRegion(member=ME)]


# -- what is due ------------------------------------------------------------------------------------------------------


def test_a_member_has_done_what_is_due() -> None:
    lone = LoneMember().processing()
    renewed(lone, needs_reconciling=True)
    assert lone.wanted(commands.Reconcile) == [commands.Reconcile()]
    lone.feed(messages.Notice.TICK)
    assert lone.wanted(commands.Reconcile) == []


def test_it_has_the_region_look_once_when_it_is_at_the_boundary_of_an_approaching_checkpoint() -> None:
    there = replace(
        SEEN,
        limit=boundary(1),
        boundary_offsets=dict.fromkeys(MINE, BoundaryOffset(offset=Offset(0))),
        checkpoint=checkpoint_view(CheckpointState.APPROACHING),
    )
    lone = LoneMember().processing().see(there)
    assert lone.wanted(commands.Reconcile) == [commands.Reconcile()]
    lone.feed(messages.Notice.TICK)
    assert lone.wanted(commands.Reconcile) == []


def test_it_does_not_where_the_checkpoint_drains_already_or_it_is_not_there() -> None:
    lone = LoneMember().processing().see(replace(SEEN, checkpoint=checkpoint_view(CheckpointState.DRAINING)))
    assert lone.wanted(commands.Reconcile) == []
    lone = (
        LoneMember()
        .processing()
        .see(replace(SEEN, limit=boundary(1), checkpoint=checkpoint_view(CheckpointState.APPROACHING)))
    )
    assert lone.wanted(commands.Reconcile) == []


def test_it_has_the_region_look_when_its_count_is_reached() -> None:
    lone = LoneMember().processing().see(replace(SEEN, records_left=0))
    assert lone.wanted(commands.Reconcile) == [commands.Reconcile()]
    lone = LoneMember().processing().see(replace(SEEN, records_left=1))
    assert lone.wanted(commands.Reconcile) == []


def test_it_has_the_region_look_again_when_a_reset_took_the_count_back_and_it_is_reached_once_more() -> None:
    lone = LoneMember().processing().see(replace(SEEN, records_left=0))
    assert lone.wanted(commands.Reconcile) == [commands.Reconcile()]
    assert lone.see(replace(SEEN, records_left=0)).wanted(commands.Reconcile) == []
    assert lone.see(replace(SEEN, records_left=5)).wanted(commands.Reconcile) == []
    assert lone.see(replace(SEEN, records_left=0)).wanted(commands.Reconcile) == [commands.Reconcile()]


# -- the group --------------------------------------------------------------------------------------------------------


def test_a_member_joins_its_group_once_the_region_takes_claims() -> None:
    lone = LoneMember()
    lone.feed(messages.Notice.TICK, answers.registered(incarnation=Incarnation(1), sent_at=0.0))
    lone.see(replace(view_of(), state=RegionState.HALTED))
    assert lone.wanted(messages.GroupRequest.JOIN) == []
    lone.see(replace(view_of(), counter=EventNumber(11), state=RegionState.STARTING))
    assert lone.wanted(messages.GroupRequest.JOIN) == [messages.GroupRequest.JOIN]
    lone.see(replace(view_of(), counter=EventNumber(12)))
    assert lone.wanted(messages.GroupRequest.JOIN) == []


def test_a_hint_that_the_region_changed_is_followed_by_a_look_at_it() -> None:
    lone = LoneMember().processing()
    before, seen = len(lone.wanted(commands.ReadRegion)), lone.member.view
    assert seen is not None
    lone.feed(messages.Changed(counter=seen.counter))
    assert len(lone.wanted(commands.ReadRegion)) == before  # what it says is seen already
    lone.feed(messages.Changed(counter=EventNumber(seen.counter + 1)))
    assert len(lone.wanted(commands.ReadRegion)) == before + 1


def test_a_hint_of_less_than_was_seen_is_followed_by_a_look_too_as_the_store_may_have_been_restored() -> None:
    lone = LoneMember().processing()
    before, seen = len(lone.wanted(commands.ReadRegion)), lone.member.view
    assert seen is not None
    lone.feed(messages.Changed(counter=EventNumber(seen.counter - 1)))
    assert len(lone.wanted(commands.ReadRegion)) == before + 1


def test_a_hint_while_it_looks_is_followed_by_another_look_if_the_answer_is_from_before_it() -> None:
    lone = LoneMember().processing()
    seen = lone.member.view
    assert seen is not None
    lone.feed(messages.Changed(counter=EventNumber(seen.counter + 1)))
    assert lone.wanted(commands.ReadRegion)
    lone.feed(messages.Changed(counter=EventNumber(seen.counter + 2)))
    assert not lone.wanted(commands.ReadRegion), "one look at a time"
    lone.see(replace(seen, counter=EventNumber(seen.counter + 1)))
    assert lone.wanted(commands.ReadRegion)
    lone.see(replace(seen, counter=EventNumber(seen.counter + 2)))
    assert not lone.wanted(commands.ReadRegion)


def test_a_store_that_was_restored_to_less_than_a_hint_told_is_not_asked_again_and_again() -> None:
    lone = LoneMember().processing()
    seen = lone.member.view
    assert seen is not None
    lone.feed(messages.Changed(counter=EventNumber(seen.counter + 9)))
    assert lone.wanted(commands.ReadRegion)
    lone.see(replace(seen, counter=EventNumber(seen.counter + 3)))
    assert not lone.wanted(commands.ReadRegion)


# -- fenced by Kafka --------------------------------------------------------------------------------------------------


def test_whom_kafka_fences_asks_the_store_and_joins_again_by_a_lease_that_was_renewed_since() -> None:
    lone = LoneMember().in_batch()
    lone.now = 1.0
    renewed(lone)
    lone.feed(messages.Notice.INSTANCE_FENCED)
    assert lone.state is State.JOINING
    assert lone.last == (answers.RENEW,), "its batch goes on, and it does not join yet"
    lone.now = 5.0
    assert lone.feed(messages.Notice.TICK) == ()
    renewed(lone)
    assert lone.wanted(messages.GroupRequest.JOIN) == [messages.GroupRequest.JOIN]
    lone.assign(assignment=2)
    assert lone.wanted(messages.ClaimAssignment), "what it holds is claimed anew, by the same incarnation"


def test_a_renewal_that_was_sent_before_the_fence_proves_nothing() -> None:
    lone = LoneMember().processing()
    lone.now = 3.0
    lone.feed(messages.Notice.TICK, messages.Notice.INSTANCE_FENCED)
    lone.feed(answers.renewed(sent_at=3.0, counter=EventNumber(10)))
    lone.now = 3.6
    assert lone.feed(messages.Notice.TICK) == ()
    assert not lone.member.in_group
    assert commands.Renew in lone.member.awaited, "it asks once more"


def test_whoever_is_fenced_again_and_again_joins_less_and_less_often_until_it_was_left_in_peace() -> None:
    lone = LoneMember().processing()
    waits = []
    for _ in range(9):
        lone.feed(messages.Notice.INSTANCE_FENCED)
        fenced = lone.now
        while not lone.member.in_group:
            lone.wait(0.5)
        waits.append(lone.now - fenced)
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    lone.wait(61)
    lone.feed(messages.Notice.INSTANCE_FENCED)
    lone.wait(0.5)
    assert lone.member.in_group


def test_without_a_lease_it_joins_as_its_next_incarnation() -> None:
    lone = LoneMember().processing()
    lone.feed(messages.Notice.INSTANCE_FENCED)
    lone.now = 10.0
    lone.feed(messages.Notice.TICK)
    assert [c.previous for c in lone.wanted(commands.Register)] == [Incarnation(1)]
    lone.feed(
        answers.registered(incarnation=Incarnation(2), sent_at=10.0), answers.view_read(view=view_of(incarnation=2))
    )
    assert lone.wanted(messages.GroupRequest.JOIN) == [messages.GroupRequest.JOIN]


# -- terminate --------------------------------------------------------------------------------------------------------


def terminating(*, static: bool = True) -> LoneMember:
    member = MemberMachine(process=PROCESS, timeouts=TIMEOUTS, static=static)
    lone = LoneMember(member=member).in_batch()
    lone.feed(messages.Notice.TERMINATED)
    return lone


def test_who_terminates_lets_its_batch_finish_for_half_of_the_close_time_then_cancels_it() -> None:
    lone = terminating()
    lone.wait(4)
    assert lone.member.batch is not None
    assert lone.member.batch.phase is BatchPhase.RUNNING
    lone.wait(2)
    assert lone.wanted(messages.Cancel) == [messages.Cancel(batch=BatchId("b1"))]


def test_and_ends_the_process_where_that_does_not_help() -> None:
    lone = terminating()
    lone.wait(9)
    assert lone.wanted(messages.EndProcess) == []
    lone.wait(1)
    assert "close time" in lone.wanted(messages.EndProcess)[0].why


@pytest.mark.parametrize(
    ("static", "how", "last"),
    [
        (True, messages.GroupRequest.CLOSE_KEEPING_SLOT, commands.KeepSlot(member=ME, incarnation=Incarnation(1))),
        (False, messages.GroupRequest.LEAVE, commands.Leave(member=ME, incarnation=Incarnation(1))),
    ],
)
def test_a_static_member_keeps_its_slot_and_any_other_leaves(
    static: bool, how: messages.Effect, last: messages.Effect
) -> None:
    lone = LoneMember(member=MemberMachine(process=PROCESS, timeouts=TIMEOUTS, static=static)).processing()
    lone.feed(messages.Notice.TERMINATED)
    assert lone.last == (how,)
    assert lone.feed(messages.Notice.TERMINATED, messages.Notice.TICK) == ()
    lone.feed(messages.Notice.LEFT_GROUP)
    assert lone.last == (last,)
    assert lone.state is State.CLOSED


# -- leave ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", [replace(SEEN, state=RegionState.STOPPED), replace(SEEN, left=True)])
def test_a_member_leaves_a_region_that_has_stopped_or_has_no_place_for_it(view: object) -> None:
    lone = LoneMember().processing()
    assert isinstance(view, type(SEEN))
    lone.see(replace(view, counter=EventNumber(11)))
    assert lone.wanted(messages.GroupRequest.LEAVE) == [messages.GroupRequest.LEAVE]
    lone.feed(messages.Notice.LEFT_GROUP)
    assert lone.wanted(commands.Leave) == [commands.Leave(member=ME, incarnation=Incarnation(1))]
    assert lone.state is State.CLOSED


def test_its_batch_is_discarded_first() -> None:
    lone = LoneMember().in_batch()
    lone.see(replace(SEEN, counter=EventNumber(11), state=RegionState.STOPPED, epoch=Epoch(2)))
    assert lone.wanted(messages.Cancel)
    assert lone.wanted(messages.GroupRequest.LEAVE) == []
    lone.feed(messages.BatchEnded(batch=BatchId("b1")))
    lone.feed(answers.discarded(batch=BatchId("b1")))
    assert lone.wanted(messages.GroupRequest.LEAVE)


def test_a_member_that_was_refused_after_a_lost_lease_leaves_its_group_and_has_nothing_to_tell() -> None:
    lone = LoneMember().processing()
    lone.now = 10.0
    lone.feed(messages.Notice.TICK)
    lone.feed(answers.registration_refused(why="another process holds it"))
    assert lone.wanted(messages.GroupRequest.LEAVE)
    lone.feed(messages.Notice.LEFT_GROUP)
    assert lone.last == ()
    assert lone.state is State.CLOSED
