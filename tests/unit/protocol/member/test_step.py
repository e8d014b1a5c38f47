from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_kcr.errors import IllegalEvent
from airflow_kcr.protocol.member import messages
from airflow_kcr.protocol.member.state import MemberMachine, State, moved
from airflow_kcr.protocol.member.step import CLAIM_BACKOFF, step
from airflow_kcr.protocol.offsets import EMPTY, OffsetMap
from airflow_kcr.protocol.region import commands
from airflow_kcr.protocol.region.rows import Claim, RegionState, ResetCause
from airflow_kcr.protocol.region.view import MemberRegion
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import AssignmentId, BatchId, Epoch, EventNumber, Incarnation, Offset, Timeline
from tests.support import answers
from tests.support.lone_member import MINE, PROCESS, LoneMember, claims_of, view_of

B1 = BatchId("b1")
SEEN = view_of(claims_of())


def later(view: MemberRegion, **changes: object) -> messages.Event:
    """Return that the region was read, one event later and with these changes."""
    newer = {"counter": EventNumber(view.counter + 1), **changes}
    return answers.view_read(view=replace(view, **newer))  # type: ignore[arg-type]


def test_whatever_happens_to_a_closed_member_is_ignored() -> None:
    closed = MemberMachine(process=PROCESS, timeouts=Timeouts(), state=State.CLOSED)
    assert step(closed, answers.batch_started(batch=B1), 1.0) == (closed, ())
    assert step(closed, messages.BatchEnded(batch=B1), 1.0) == (closed, ())


# -- the table --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "phase"),
    [
        *((answers.batch_started(batch=B1), "running"), (answers.start_refused(batch=B1, why=""), "running")),
        (answers.batch_accepted(batch=B1), "running"),
        *((answers.finish_refused(batch=B1, why=""), "running"), (answers.discarded(batch=B1), "running")),
        (messages.BatchEnded(batch=BatchId("other")), "running"),
    ],
)
def test_an_answer_about_a_batch_in_another_phase_is_illegal_and_says_where_it_stands(
    event: messages.Event, phase: str
) -> None:
    lone = LoneMember().in_batch()
    before = lone.member
    with pytest.raises(IllegalEvent, match=rf"its batch: b1, {phase}"):
        lone.feed(event)
    assert lone.member == before
    with pytest.raises(IllegalEvent, match="its batch: none"):
        LoneMember().processing().feed(event)


# -- registration and lease -------------------------------------------------------------------------------------------


def test_a_registration_is_a_fresh_beginning() -> None:
    lone = LoneMember().processing()
    lone.now = 10.0
    lone.feed(messages.Notice.TICK, answers.registered(incarnation=Incarnation(2), sent_at=9.5))
    member = lone.member
    assert (member.incarnation, member.previous, member.memory.incarnation) == (2, 2, 2)
    assert (member.lease_sent_at, member.claimed, member.view, member.positions) == (9.5, None, None, EMPTY)


@pytest.mark.parametrize(
    "event", [answers.registered(incarnation=Incarnation(2), sent_at=0.0), answers.registration_refused(why="")]
)
def test_nobody_is_registered_twice(event: messages.Event) -> None:
    lone = LoneMember().join()
    with pytest.raises(IllegalEvent, match="is registered already, as incarnation 1"):
        lone.feed(event)


@pytest.mark.parametrize(
    "event", [answers.registered(incarnation=Incarnation(9), sent_at=0.0), answers.registration_refused(why="late")]
)
def test_a_registration_that_comes_after_the_fence_changes_nothing(event: messages.Event) -> None:
    lone = LoneMember()
    lone.feed(messages.Notice.TICK)
    lone.member = moved(lone.member, State.FENCED)
    lone.feed(event)
    assert (lone.state, lone.member.incarnation, lone.member.refusal) == (State.FENCED, None, None)
    assert commands.Register not in lone.member.awaited


def test_a_refused_renewal_of_a_lease_that_is_lost_already_fences_nobody() -> None:
    lone = LoneMember().processing()
    lone.now = 10.0
    lone.feed(messages.Notice.TICK)
    lone.feed(answers.not_renewed(incarnation=Incarnation(2)))
    assert lone.state is State.JOINING


# -- a restored store -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "event",
    [
        answers.renewed(sent_at=0.0, counter=EventNumber(3)),
        answers.renewed(sent_at=0.0, counter=EventNumber(99), epoch=Epoch(0)),
        answers.not_renewed(incarnation=Incarnation(0)),
        answers.not_renewed(incarnation=Incarnation(1), counter=EventNumber(3)),
        answers.read_refused(why="never heard of"),
    ],
)
def test_a_store_that_knows_less_than_was_seen_is_told_so(event: messages.Event) -> None:
    lone = LoneMember().processing()
    lone.feed(event)
    memory = lone.wanted(commands.ReportLater)[0]
    assert (memory.epoch, memory.incarnation, memory.sequence, memory.timeline) == (1, 1, 1, 1)
    assert memory.counter == 10
    lone.feed(messages.Notice.TICK)
    assert lone.wanted(commands.ReportLater) == []


def test_a_store_that_gives_an_incarnation_that_was_used_before_is_told_so() -> None:
    lone = LoneMember().processing()
    lone.now = 10.0
    lone.feed(messages.Notice.TICK, answers.registered(incarnation=Incarnation(1), sent_at=10.0))
    assert lone.wanted(commands.ReportLater)


def test_a_store_that_shows_less_than_when_it_was_asked_is_told_so_and_what_it_shows_now_counts() -> None:
    lone = LoneMember().processing()
    lone.feed(answers.renewed(sent_at=0.0, counter=EventNumber(11)))
    lone.feed(answers.view_read(view=replace(SEEN, counter=EventNumber(4))))
    assert lone.wanted(commands.ReportLater)
    assert lone.view.counter == 4


def idle_reading(position: int) -> LoneMember:
    """Let a member at 10 read, without a batch since, that the store has it at `position`."""
    lone = LoneMember().join().assign().grant(view_of(claims_of(position=10)))
    lone.feed(messages.RangesPlanned(batch=B1, ranges={}))
    lone.feed(answers.renewed(sent_at=0.0, counter=EventNumber(11)))
    lone.feed(later(view_of(claims_of(position=position))))
    return lone


def test_an_accepted_position_that_the_store_has_no_more_is_told() -> None:
    lone = idle_reading(4)
    memory = lone.wanted(commands.ReportLater)[0]
    assert memory.positions == OffsetMap(dict.fromkeys(MINE, Offset(10)))
    assert lone.member.positions == OffsetMap(dict.fromkeys(MINE, Offset(4)))
    assert idle_reading(10).wanted(commands.ReportLater) == []


def test_a_batch_that_the_store_has_as_begun_and_the_member_does_not_have_needs_a_reset() -> None:
    lone = LoneMember().join().assign().grant()
    lone.feed(messages.RangesPlanned(batch=B1, ranges={}))
    lone.feed(answers.renewed(sent_at=0.0, counter=EventNumber(11)))
    begun = {p: replace(c, started_to=Offset(10)) for p, c in claims_of().items()}
    lone.feed(later(view_of(begun)))
    assert [e.cause for e in lone.wanted(commands.RequestReset)] == [ResetCause.BATCH_REFUSED]


def test_a_sink_that_stands_further_than_the_store_is_told() -> None:
    lone = LoneMember().processing()
    lone.feed(messages.SinkFailed(epoch=Epoch(1), why="", fence=Epoch(7), timeline=Timeline(3)))
    memory = lone.wanted(commands.ReportLater)[0]
    assert (memory.epoch, memory.timeline) == (7, 3)


def test_a_newer_incarnation_in_the_view_is_another_process() -> None:
    lone = LoneMember().processing()
    lone.feed(later(SEEN, incarnation=Incarnation(2)))
    assert lone.state is State.FENCED


# -- views ------------------------------------------------------------------------------------------------------------


def test_an_older_view_changes_nothing() -> None:
    lone = LoneMember().processing()
    lone.see(replace(SEEN, counter=EventNumber(20)))
    before = lone.view
    lone.member = replace(lone.member, read=replace(lone.member.read, counter=EventNumber(0)))
    lone.see(replace(SEEN, counter=EventNumber(15), state=RegionState.DRAINING))
    assert lone.view == before


def test_a_view_that_comes_without_a_lease_changes_nothing() -> None:
    lone = LoneMember()
    lone.feed(messages.Notice.TICK, answers.view_read(view=SEEN))
    assert lone.member.view is None


def test_in_one_epoch_positions_never_go_back_and_in_a_new_one_they_are_the_stores() -> None:
    lone = LoneMember().in_batch()
    lone.feed(messages.BatchEnded(batch=B1), answers.batch_accepted(batch=B1))
    lone.feed(later(SEEN))
    assert set(lone.member.positions.values()) == {10}
    lone.feed(later(view_of(claims_of(position=3, epoch=2)), counter=EventNumber(30), epoch=Epoch(2)))
    assert set(lone.member.positions.values()) == {3}


def test_a_position_that_is_not_known_yet_is_none() -> None:
    unknown = {p: replace(c, position=None, resume=None, started_to=None) for p, c in claims_of().items()}
    assert isinstance(unknown[MINE[0]], Claim)
    lone = LoneMember().join().assign().grant(view_of(unknown))
    assert lone.member.positions == EMPTY


# -- claims -----------------------------------------------------------------------------------------------------------


def test_a_claim_that_began_a_reset_is_made_again_a_little_later() -> None:
    lone = LoneMember().join().assign()
    lone.grant(replace(view_of(), epoch=Epoch(2), state=RegionState.RESETTING, counter=EventNumber(20)))
    assert lone.member.claimed is None
    assert lone.wanted(messages.ClaimAssignment) == []
    lone.now += CLAIM_BACKOFF[0]
    lone.feed(messages.Notice.TICK)
    assert lone.wanted(messages.ClaimAssignment)


def test_a_new_assignment_is_claimed_at_once_whatever_was_refused_before() -> None:
    lone = LoneMember().join().assign()
    lone.feed(answers.claim_refused(assignment=AssignmentId(1), why="busy"))
    lone.assign(assignment=2)
    assert lone.wanted(messages.ClaimAssignment)


# -- batches ----------------------------------------------------------------------------------------------------------


def test_an_end_steps_over_skipped_records_and_what_is_not_held_any_more_is_left_out() -> None:
    lone = LoneMember().in_batch()
    lone.feed(later(SEEN, skips={MINE[0]: (Offset(10),)}))
    lone.feed(messages.BatchEnded(batch=B1), answers.batch_accepted(batch=B1))
    assert lone.member.positions == OffsetMap({MINE[0]: Offset(11), MINE[1]: Offset(10)})


def test_an_end_that_is_heard_of_in_another_epoch_moves_no_position() -> None:
    lone = LoneMember().in_batch()
    lone.feed(messages.BatchEnded(batch=B1))
    lone.feed(later(view_of(claims_of(position=3, epoch=2)), epoch=Epoch(2)))
    lone.feed(answers.batch_accepted(batch=B1))
    assert set(lone.member.positions.values()) == {3}


def test_where_records_are_counted_the_region_is_read_after_each_batch() -> None:
    lone = LoneMember().in_batch()
    lone.feed(later(SEEN, records_left=50))
    lone.feed(messages.BatchEnded(batch=B1), answers.batch_accepted(batch=B1))
    assert lone.wanted(commands.ReadRegion)
    lone = LoneMember().in_batch()
    lone.feed(messages.BatchEnded(batch=B1), answers.batch_accepted(batch=B1))
    assert lone.wanted(commands.ReadRegion) == []


def test_a_batch_that_began_after_the_fence_is_over_without_a_word() -> None:
    lone = LoneMember().processing().plan().superseded()
    lone.feed(answers.batch_started(batch=B1))
    assert lone.member.batch is None
    assert lone.last == ()


# -- sinks ------------------------------------------------------------------------------------------------------------


def in_reset_of(epoch: int) -> LoneMember:
    lone = LoneMember().processing()
    view = replace(
        view_of(claims_of(epoch=epoch)),
        epoch=Epoch(epoch),
        state=RegionState.RESETTING,
        acknowledged=False,
        counter=EventNumber(10 + epoch),
    )
    lone.see(replace(view, claims={}))
    return lone.grant(view)


def test_a_sink_that_failed_in_an_epoch_that_is_over_counts_against_nobody() -> None:
    lone = in_reset_of(2)
    lone.feed(later(lone.view, epoch=Epoch(3), claims={}))
    lone.feed(messages.SinkFailed(epoch=Epoch(2), why="held"))
    assert lone.wanted(commands.RequestReset) == []
    assert lone.member.reset.epoch is None
    lone.feed(messages.SinkFailed(epoch=Epoch(1), why="held"))
    assert lone.wanted(commands.RequestReset) == []


# -- time and signals -------------------------------------------------------------------------------------------------


def test_the_close_time_counts_from_the_first_signal() -> None:
    lone = LoneMember().in_batch()
    lone.feed(messages.Notice.TERMINATED)
    lone.now = 4.0
    lone.feed(messages.Notice.TERMINATED)
    assert lone.member.terminated_at == 0.0


def test_a_store_that_answers_anything_is_not_lost_any_more() -> None:
    lone = LoneMember().processing()
    lone.feed(messages.StoreLost())
    lone.now = 3.0
    lone.feed(messages.StoreLost())
    assert lone.member.store_lost_at == 0.0
    lone.feed(answers.renewed(sent_at=3.0, counter=EventNumber(10)))
    assert lone.member.store_lost_at is None


def test_a_member_that_left_its_group_has_no_assignment_and_joins_again_if_it_means_to_stay() -> None:
    lone = LoneMember().processing()
    lone.feed(messages.Notice.LEFT_GROUP)
    assert (lone.member.assignment, lone.member.claimed) == (None, None)
    assert lone.wanted(messages.GroupRequest.JOIN) == [messages.GroupRequest.JOIN]
    lone.feed(messages.Notice.TERMINATED, messages.Notice.LEFT_GROUP)
    assert lone.wanted(messages.GroupRequest.JOIN) == []


def test_the_wait_after_failures_ends_where_progress_was_accepted_meanwhile() -> None:
    lone = LoneMember().processing()
    failing = replace(view_of(claims_of(epoch=2)), epoch=Epoch(2), counter=EventNumber(20), failures=5)
    lone.feed(answers.view_read(view=failing))
    wait = lone.member.timeouts.retry_after(5).total_seconds()
    assert lone.member.retry_at == lone.now + wait
    lone.feed(answers.view_read(view=replace(failing, counter=EventNumber(21))))
    assert lone.member.retry_at == lone.now + wait
    lone.feed(answers.view_read(view=replace(failing, counter=EventNumber(22), failures=0)))
    assert lone.member.retry_at == lone.now
