from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_kcr.protocol.member import messages
from airflow_kcr.protocol.member.state import State
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.offsets import EMPTY, OffsetMap, SeekEntry, SeekSource
from airflow_kcr.protocol.region import commands
from airflow_kcr.protocol.region.commands import Caller, Found
from airflow_kcr.protocol.region.rows import CheckpointState, RegionState
from airflow_kcr.protocol.region.view import MemberRegion
from airflow_kcr.protocol.targets import ToInitial
from airflow_kcr.protocol.values import (
    AssignmentId,
    BatchId,
    CheckpointNumber,
    Epoch,
    EventNumber,
    Incarnation,
    Offset,
    Timeline,
)
from tests.support import answers
from tests.support.answers import ME
from tests.support.lone_member import MINE, LoneMember, checkpoint_view, claims_of, view_of

SEEN = view_of(claims_of())
FIRST_CLAIM = commands.ClaimPartitions(member=ME, incarnation=Incarnation(1), assignment=AssignmentId(1), partitions={})
MY_CLAIM = messages.ClaimAssignment(claim=FIRST_CLAIM, partitions=frozenset(MINE))
LOG = LogBounds(start=Offset(0), end=Offset(100))


def later(view: MemberRegion, counter: int = 11) -> MemberRegion:
    return replace(view, counter=EventNumber(counter))


def caller(epoch: int = 1) -> Caller:
    return Caller(member=ME, incarnation=Incarnation(1), epoch=Epoch(epoch))


# -- the claim --------------------------------------------------------------------------------------------------------


def test_an_assignment_is_claimed_as_a_whole_and_once() -> None:
    lone = LoneMember().join().assign()
    assert lone.wanted(messages.ClaimAssignment) == [MY_CLAIM]
    lone.feed(messages.Notice.TICK)
    assert lone.wanted(messages.ClaimAssignment) == []


def test_it_is_not_claimed_while_kafka_says_revoked_or_the_region_takes_no_claims() -> None:
    lone = LoneMember().join()
    lone.see(later(replace(view_of(), state=RegionState.HALTED)))
    lone.assign()
    assert lone.wanted(messages.ClaimAssignment) == []
    lone.feed(messages.Notice.REVOKED)
    lone.see(later(view_of(), 12))
    assert lone.wanted(messages.ClaimAssignment) == []


def test_a_new_epoch_is_claimed_anew_once_the_old_batch_is_over() -> None:
    lone = LoneMember().in_batch()
    lone.see(later(replace(view_of(), epoch=Epoch(2), state=RegionState.RESETTING, acknowledged=False)))
    assert lone.wanted(messages.ClaimAssignment) == []
    lone.feed(messages.BatchEnded(batch=BatchId("b1")))
    lone.feed(answers.discarded(batch=BatchId("b1")))
    assert lone.wanted(messages.ClaimAssignment) == [MY_CLAIM]


def test_an_assignment_that_changes_in_a_batch_is_claimed_with_the_batch_running() -> None:
    lone = LoneMember().in_batch().assign(assignment=2)
    assert lone.wanted(messages.ClaimAssignment) == [
        replace(MY_CLAIM, claim=replace(FIRST_CLAIM, assignment=AssignmentId(2)))
    ]
    assert lone.wanted(messages.Cancel) == []


def test_a_refused_claim_is_made_again_with_back_off() -> None:
    lone = LoneMember().join().assign()
    waits = []
    for _ in range(7):
        lone.feed(answers.claim_refused(assignment=AssignmentId(1), why="busy"))
        assert lone.wanted(messages.ClaimAssignment) == []
        waits.append(round(lone.member.claim_after - lone.now, 3))
        lone.now = lone.member.claim_after
        lone.member = replace(lone.member, lease_sent_at=lone.now)
        lone.feed(messages.Notice.TICK)
        assert lone.wanted(messages.ClaimAssignment) == [MY_CLAIM]
    assert waits == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_while_a_batch_of_another_runs_the_claim_is_made_again_soon_and_says_for_how_long_it_has_waited() -> None:
    lone = LoneMember().join().assign()
    waited = []
    for _ in range(4):
        lone.feed(answers.claim_waits(assignment=AssignmentId(1)))
        lone.now = lone.member.claim_after
        lone.member = replace(lone.member, lease_sent_at=lone.now)
        lone.feed(messages.Notice.TICK)
        waited += [round(claim.claim.waited.total_seconds(), 3) for claim in lone.wanted(messages.ClaimAssignment)]
    assert waited == [0.2, 0.4, 0.6, 0.8]
    lone.assign(assignment=2)
    assert lone.wanted(messages.ClaimAssignment) == []
    lone.feed(answers.claim_waits(assignment=AssignmentId(1)))
    assert lone.wanted(messages.ClaimAssignment) == []


# -- the reset --------------------------------------------------------------------------------------------------------


def resetting(view: MemberRegion | None = None) -> LoneMember:
    """A member that has claimed in a reset of epoch 2, its partitions resuming at 5."""
    seen = view or replace(
        view_of(claims_of(epoch=2, resume=5, position=5)),
        epoch=Epoch(2),
        state=RegionState.RESETTING,
        acknowledged=False,
        timeline=Timeline(3),
        target=ToInitial(),
        skips={MINE[0]: (Offset(7),)},
    )
    lone = LoneMember().processing()
    lone.see(later(replace(view_of(), epoch=Epoch(2), state=RegionState.RESETTING, acknowledged=False)))
    return lone.grant(later(seen, 12))


def test_the_sinks_come_first_with_where_everything_resumes() -> None:
    lone = resetting()
    assert lone.state is State.READY
    assert lone.wanted(messages.ResetSinks) == [
        messages.ResetSinks(
            epoch=Epoch(2),
            timeline=Timeline(3),
            resume=OffsetMap(dict.fromkeys(MINE, Offset(5))),
            open={},
            target=ToInitial(),
            skips={MINE[0]: (Offset(7),)},
        )
    ]
    assert lone.wanted(commands.Acknowledge) == []


def test_then_the_acknowledgement_with_what_they_found() -> None:
    lone = resetting()
    found = {MINE[0]: Found(offset=Offset(9))}
    lone.feed(messages.SinksReset(epoch=Epoch(2), found=found))
    answer = commands.AnswerEntries(caller=caller(2), found=found)
    assert lone.last == (answer, commands.Acknowledge(caller=caller(2))), "in this order"
    lone.feed(messages.Notice.TICK)
    assert lone.wanted(commands.Acknowledge) == []
    lone.feed(answers.acknowledgement_refused(epoch=Epoch(2), why="another epoch"))
    assert lone.wanted(commands.ReadRegion)


def test_the_answer_to_an_acknowledgement_shows_the_region_so_it_is_not_looked_at_meanwhile() -> None:
    lone = resetting()
    lone.feed(messages.SinksReset(epoch=Epoch(2), found={}))
    assert lone.wanted(commands.Acknowledge)
    seen = lone.member.view
    assert seen is not None
    lone.feed(messages.Changed(counter=EventNumber(seen.counter + 1)))
    assert not lone.wanted(commands.ReadRegion)
    done = later(replace(seen, state=RegionState.RUNNING, acknowledged=True), seen.counter + 1)
    lone.feed(answers.acknowledged(epoch=Epoch(2), view=done))
    assert not lone.wanted(commands.ReadRegion)
    assert lone.state is State.PROCESSING


def test_a_hint_that_is_newer_than_the_answer_is_followed_by_a_look() -> None:
    lone = resetting()
    lone.feed(messages.SinksReset(epoch=Epoch(2), found={}))
    seen = lone.member.view
    assert seen is not None
    lone.feed(messages.Changed(counter=EventNumber(seen.counter + 2)))
    lone.feed(answers.acknowledged(epoch=Epoch(2), view=later(replace(seen, acknowledged=True), seen.counter + 1)))
    assert lone.wanted(commands.ReadRegion)


def test_what_was_found_for_an_older_epoch_is_not_told() -> None:
    lone = resetting()
    lone.feed(messages.SinksReset(epoch=Epoch(1), found={}))
    assert lone.wanted(commands.Acknowledge) == []


def test_a_further_attempt_waits_for_the_sinks_of_the_one_before_it() -> None:
    lone = resetting()
    next_view = replace(view_of(claims_of(epoch=3)), epoch=Epoch(3), state=RegionState.RESETTING, acknowledged=False)
    lone.see(later(replace(next_view, claims={}), 13))
    lone.grant(later(next_view, 14))
    assert lone.wanted(messages.ResetSinks) == []
    lone.feed(messages.SinksReset(epoch=Epoch(2), found={}))
    assert [e.epoch for e in lone.wanted(messages.ResetSinks)] == [3]


def test_open_entries_are_asked_for_even_after_an_acknowledgement() -> None:
    opened = {MINE[0]: SeekEntry(offset=None, source=SeekSource.EXPLICIT, current=None)}
    view = replace(
        view_of(claims_of(epoch=2)), epoch=Epoch(2), state=RegionState.RESETTING, acknowledged=True, open=opened
    )
    assert resetting(view).wanted(messages.ResetSinks)[0].open == opened
    assert resetting(replace(view, open={})).wanted(messages.ResetSinks) == []


def test_a_refused_acknowledgement_is_done_again_from_the_claim_on() -> None:
    lone = resetting()
    lone.feed(messages.SinksReset(epoch=Epoch(2), found={}))
    lone.feed(answers.acknowledgement_refused(epoch=Epoch(2), why="open entries"))
    assert lone.member.claimed is None
    lone.see(later(replace(lone.view, acknowledged=False), 13))
    lone.wait(1)
    assert lone.wanted(messages.ClaimAssignment) == [MY_CLAIM]


# -- the checkpoint
# ----------------------------------------------------------------------------------------------------------


def draining(**changes: object) -> MemberRegion:
    """Return the view of a draining checkpoint that this member is among the participants of."""
    view = replace(SEEN, state=RegionState.DRAINING, checkpoint=checkpoint_view(CheckpointState.DRAINING))
    return later(replace(view, **changes))  # type: ignore[arg-type]


def test_the_sinks_prepare_then_the_member_contributes_its_positions() -> None:
    lone = LoneMember().processing()
    lone.feed(messages.RangesPlanned(batch=BatchId("b1"), ranges={}))
    lone.see(draining())
    prepare = messages.PrepareSinks(sequence=CheckpointNumber(2), partitions=frozenset(MINE))
    assert lone.wanted(messages.PrepareSinks) == [prepare]
    committed = OffsetMap({MINE[0]: Offset(3)})
    lone.feed(
        messages.SinksPrepared(sequence=CheckpointNumber(2), bounds=dict.fromkeys(MINE, LOG), committed=committed)
    )
    part = lone.wanted(commands.Contribute)[0]
    assert (part.sequence, part.member, part.incarnation, part.epoch) == (2, ME, 1, 1)
    assert part.offsets == OffsetMap(dict.fromkeys(MINE, Offset(0)))
    assert (part.committed, part.bounds) == (committed, dict.fromkeys(MINE, LOG))
    lone.feed(answers.contributed(sequence=CheckpointNumber(2), view=lone.view))
    assert not lone.wanted(commands.Contribute)
    assert not lone.wanted(messages.PrepareSinks)


def test_nothing_is_prepared_for_a_checkpoint_that_is_not_the_members_or_not_draining() -> None:
    approaching = later(replace(SEEN, checkpoint=checkpoint_view(CheckpointState.APPROACHING)))
    others = replace(checkpoint_view(CheckpointState.DRAINING), participants={ME: Incarnation(2)})
    for view in (draining(checkpoint=others), draining(contributed=True), approaching):
        lone = LoneMember().processing()
        lone.feed(messages.RangesPlanned(batch=BatchId("b1"), ranges={}))
        lone.see(view)
        assert lone.wanted(messages.PrepareSinks) == []


def test_a_batch_in_flight_ends_first_and_a_plan_is_waited_for() -> None:
    lone = LoneMember().in_batch()
    lone.see(draining())
    assert lone.wanted(messages.PrepareSinks) == []
    lone.feed(messages.BatchEnded(batch=BatchId("b1")), answers.batch_accepted(batch=BatchId("b1")))
    assert lone.wanted(messages.PrepareSinks)
    planning = LoneMember().processing().see(draining())
    assert planning.wanted(messages.PrepareSinks) == []
    planning.feed(messages.RangesPlanned(batch=BatchId("b1"), ranges={}))
    assert planning.wanted(messages.PrepareSinks)


def test_what_was_prepared_for_another_checkpoint_is_prepared_anew() -> None:
    lone = LoneMember().in_batch()
    lone.see(draining())
    lone.feed(messages.BatchEnded(batch=BatchId("b1")), answers.batch_accepted(batch=BatchId("b1")))
    lone.see(later(draining(checkpoint=checkpoint_view(CheckpointState.DRAINING, 3)), 12))
    lone.feed(messages.SinksPrepared(sequence=CheckpointNumber(2), bounds={}, committed=EMPTY))
    assert [e.sequence for e in lone.wanted(messages.PrepareSinks)] == [3]
    assert lone.wanted(commands.Contribute) == []


def contributing(log: LogBounds) -> LoneMember:
    lone = LoneMember().in_batch()
    lone.see(draining())
    lone.feed(messages.BatchEnded(batch=BatchId("b1")), answers.batch_accepted(batch=BatchId("b1")))
    lone.feed(messages.SinksPrepared(sequence=CheckpointNumber(2), bounds=dict.fromkeys(MINE, log), committed=EMPTY))
    return lone


def test_a_refused_part_is_prepared_and_contributed_again() -> None:
    lone = contributing(LOG)
    assert lone.wanted(commands.Contribute)
    lone.feed(answers.contribution_refused(sequence=CheckpointNumber(2), why="positions differ"))
    assert [e.sequence for e in lone.wanted(messages.PrepareSinks)] == [2]


@pytest.mark.parametrize(
    "log", [LogBounds(start=Offset(50), end=Offset(100)), LogBounds(start=Offset(0), end=Offset(9))]
)
def test_a_position_that_its_log_does_not_have_is_told_instead(log: LogBounds) -> None:
    lone = contributing(log)
    assert lone.wanted(commands.Contribute) == []
    assert lone.wanted(commands.ReportOutOfRange) == [
        commands.ReportOutOfRange(caller=caller(), observed=dict.fromkeys(MINE, log))
    ]


def test_a_position_that_is_not_known_yet_is_not_contributed() -> None:
    lone = LoneMember().join().assign()
    open_claims = dict.fromkeys(MINE, replace(claims_of()[MINE[0]], resume=None, position=None, started_to=None))
    lone.grant(replace(draining(), claims=open_claims))
    assert lone.wanted(messages.PrepareSinks) == []


# -- Kafka's commit read-back
# -----------------------------------------------------------------------------------------------------


def owing(*, sequence: int = 2) -> LoneMember:
    """A member that owes Kafka the commit of a checkpoint at 20."""
    lone = LoneMember().processing()
    return lone.see(later(replace(view_of(claims_of(position=20, resume=20)), commit=CheckpointNumber(sequence))))


def test_a_member_commits_the_restore_points_offsets_of_its_partitions_once() -> None:
    lone = owing()
    told = OffsetMap(dict.fromkeys(MINE, Offset(20)))
    assert lone.wanted(messages.Commit) == [
        messages.Commit(sequence=CheckpointNumber(2), timeline=Timeline(1), epoch=Epoch(1), offsets=told)
    ]
    lone.feed(messages.Notice.TICK)
    assert lone.wanted(messages.Commit) == []


@pytest.mark.parametrize("held", [EMPTY, OffsetMap(dict.fromkeys(MINE, Offset(10)))], ids=["unknown", "as before"])
def test_a_commit_that_the_fenced_client_could_not_make_is_made_in_the_next_assignment(held: OffsetMap) -> None:
    lone = owing()
    view = lone.view
    lone.now = 1.0
    answer = messages.CommitAnswered(sequence=CheckpointNumber(2), offsets=held, failed=True)
    lone.feed(messages.Notice.INSTANCE_FENCED, answer)
    lone.feed(answers.renewed(sent_at=1.0, counter=view.counter))
    assert not lone.wanted(messages.Commit), "nothing is assigned"
    told = [one for one in lone.all if isinstance(one, commands.ReportReadBack)]
    assert told == [], "the store would take the checkpoint for not committed"
    lone.assign(assignment=2).grant(later(view), assignment=2)
    assert [commit.sequence for commit in lone.all if isinstance(commit, messages.Commit)] == [2, 2]
    lone.feed(answer)
    lone.wait(5)
    assert len([commit for commit in lone.all if isinstance(commit, messages.Commit)]) == 2, "once in an assignment"


def test_a_fenced_member_commit_read_backs_nothing() -> None:
    lone = owing().superseded()
    lone.feed(messages.CommitAnswered(sequence=CheckpointNumber(2), offsets=OffsetMap({MINE[0]: Offset(20)})))
    assert lone.wanted(commands.ReportReadBack) == []


# -- publication ------------------------------------------------------------------------------------------------------


def test_checkpoints_are_published_one_after_the_other_in_ones_turn() -> None:
    lone = LoneMember().processing()
    lone.see(later(replace(SEEN, publish=(CheckpointNumber(2), CheckpointNumber(3)))))
    assert lone.wanted(commands.ReportPublished) == [commands.ReportPublished(sequence=CheckpointNumber(2), member=ME)]
    lone.feed(messages.Notice.TICK)
    assert lone.wanted(commands.ReportPublished) == []
    lone.feed(answers.publication_failed(sequence=CheckpointNumber(2)))
    assert lone.wanted(commands.ReportPublished) == []
    lone.see(later(replace(SEEN, publish=(CheckpointNumber(3),)), 12))
    assert lone.wanted(commands.ReportPublished) == [commands.ReportPublished(sequence=CheckpointNumber(3), member=ME)]


# -- after a reset ----------------------------------------------------------------------------------------------------


def seeks(lone: LoneMember) -> list[messages.CommitSeek]:
    return [e for e in lone.all if isinstance(e, messages.CommitSeek)]


def test_kafka_is_told_once_where_the_partitions_resumed() -> None:
    lone = LoneMember().join().assign().grant(view_of(claims_of(resume=5, position=5)))
    assert seeks(lone) == [
        messages.CommitSeek(
            caller=caller(),
            sequence=CheckpointNumber(1),
            timeline=Timeline(1),
            offsets=OffsetMap(dict.fromkeys(MINE, Offset(5))),
        )
    ]
    lone.wait(5)
    assert len(seeks(lone)) == 1


def test_a_checkpoints_own_commit_comes_first() -> None:
    lone = LoneMember().join().assign().grant(replace(view_of(claims_of(position=5)), commit=CheckpointNumber(2)))
    assert seeks(lone) == []
    lone.feed(messages.CommitAnswered(sequence=CheckpointNumber(2), offsets=OffsetMap({MINE[0]: Offset(5)})))
    lone.see(later(view_of(claims_of(position=5))))
    assert len(seeks(lone)) == 1


def test_before_the_region_runs_or_where_nothing_resumed_nothing_is_told() -> None:
    waits = replace(view_of(claims_of()), acknowledged=False)
    assert seeks(LoneMember().join().assign().grant(waits)) == []
    assert seeks(LoneMember().join().assign([]).grant(view_of({}))) == []
