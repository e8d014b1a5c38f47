from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from airflow_kcr.protocol.member import messages
from airflow_kcr.protocol.member.drive import LONGEST_PLAN_PAUSE, PLAN_PAUSE
from airflow_kcr.protocol.member.state import BatchPhase, State, Why
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region import commands
from airflow_kcr.protocol.region.commands import Caller, StartBatch
from airflow_kcr.protocol.region.rows import BoundaryOffset, CheckpointState, RegionState, ResetCause
from airflow_kcr.protocol.values import BatchId, DesiredState, Epoch, EventNumber, Incarnation, Offset, Range
from tests.support import answers
from tests.support.answers import ME
from tests.support.lone_member import MINE, LoneMember, checkpoint_view, claims_of, view_of
from tests.support.scripts import boundary

B1, B2 = BatchId("b1"), BatchId("b2")
SEEN = view_of(claims_of())
CALLER = Caller(member=ME, incarnation=Incarnation(1), epoch=Epoch(1))
RANGES = dict.fromkeys(MINE, Range(Offset(0), Offset(10)))
BEGINNING, BEHIND = ({MINE[1]: Range(Offset(n), Offset(n + 10))} for n in (0, 10))


def phase(lone: LoneMember) -> BatchPhase | None:
    return None if lone.member.batch is None else lone.member.batch.phase


def doomed(lone: LoneMember) -> bool:
    return lone.member.batch is not None and lone.member.batch.doomed


def requested(lone: LoneMember) -> list[ResetCause]:
    return [e.cause for e in lone.all if isinstance(e, commands.RequestReset)]


# -- plan and begin ---------------------------------------------------------------------------------------------------


def test_a_processing_member_asks_for_a_plan_of_its_positions_once() -> None:
    lone = LoneMember().processing()
    assert lone.wanted(messages.PlanRanges) == [
        messages.PlanRanges(positions=OffsetMap(dict.fromkeys(MINE, Offset(0))), view=lone.view)
    ]
    lone.feed(messages.Notice.TICK)
    assert lone.wanted(messages.PlanRanges) == []


def test_nothing_is_planned_while_the_view_is_old_or_the_member_may_not_process() -> None:
    lone = LoneMember().join().assign().grant(replace(SEEN, desired_state=DesiredState.PAUSED))
    assert lone.wanted(messages.PlanRanges) == []
    stale = LoneMember().join().assign()
    stale.feed(answers.renewed(sent_at=0.0, counter=EventNumber(99)))
    stale.grant()
    stale.member = replace(stale.member, view_is_stale=True, awaited=frozenset({commands.ReadRegion}))
    stale.feed(messages.Notice.TICK)
    assert stale.wanted(messages.PlanRanges) == []


def test_what_was_planned_is_begun_in_the_store_first() -> None:
    lone = LoneMember().processing().plan()
    request = StartBatch(batch=B1, member=ME, incarnation=Incarnation(1), epoch=Epoch(1), ranges=RANGES)
    assert lone.wanted(commands.StartBatch) == [request]
    assert lone.wanted(messages.RunBatch) == []
    assert phase(lone) is BatchPhase.STARTING


def test_and_then_it_runs_with_the_progress_that_a_sink_stores_with_it() -> None:
    lone = LoneMember().processing()
    lone.see(replace(SEEN, counter=EventNumber(11), skips={MINE[0]: (Offset(10),)}))
    lone.plan().feed(answers.batch_started(batch=B1, ranges=RANGES))
    run = lone.wanted(messages.RunBatch)[0]
    assert (run.row.batch, run.row.ranges) == (B1, RANGES)
    assert run.progress == OffsetMap({MINE[0]: Offset(11), MINE[1]: Offset(10)})


def test_an_empty_plan_is_asked_for_again_after_a_pause() -> None:
    lone = LoneMember().processing()
    lone.feed(messages.RangesPlanned(batch=B1, ranges={}))
    assert not lone.wanted(commands.StartBatch)
    assert not lone.wanted(messages.PlanRanges)
    lone.now += PLAN_PAUSE
    lone.feed(messages.Notice.TICK)
    assert len(lone.wanted(messages.PlanRanges)) == 1


def test_members_of_one_process_without_records_ask_at_the_same_moments() -> None:
    asked = list[list[float]]()
    for number, answered_after in enumerate((0.001, 0.02, 0.07)):
        lone, moments = LoneMember(now=100 + 0.13 * number).processing(), list[float]()
        while lone.now < 120:
            lone.now += answered_after
            lone.feed(answers.renewed(sent_at=lone.now, counter=lone.view.counter))
            lone.feed(messages.RangesPlanned(batch=B1, ranges={}))
            lone.now = lone.member.plan_after
            lone.feed(messages.Notice.TICK)
            assert lone.wanted(messages.PlanRanges)
            moments.append(lone.now)
        asked.append([moment for moment in moments if 110 < moment < 120])
    assert asked[0] == asked[1] == asked[2]
    assert [later - one for one, later in pairwise(asked[0])] == pytest.approx([LONGEST_PLAN_PAUSE] * 23)


def test_a_plan_of_other_positions_is_dropped() -> None:
    lone = LoneMember().processing()
    lone.feed(messages.RangesPlanned(batch=B1, ranges={MINE[0]: Range(Offset(5), Offset(10))}))
    assert lone.wanted(commands.StartBatch) == []
    assert lone.member.batch is None


def test_a_plan_that_comes_when_the_member_may_not_begin_any_more_is_dropped() -> None:
    for happened in (
        messages.Notice.TERMINATED,
        answers.view_read(view=replace(SEEN, desired_state=DesiredState.PAUSED)),
    ):
        lone = LoneMember().processing()
        lone.feed(happened)
        lone.plan()
        assert lone.wanted(commands.StartBatch) == []


def test_and_so_is_one_of_who_holds_nothing_any_more() -> None:
    lone = LoneMember().processing()
    lone.feed(messages.Notice.REVOKED)
    lone.feed(
        messages.RangesPlanned(batch=B1, ranges=RANGES, outside={MINE[0]: LogBounds(start=Offset(5), end=Offset(9))})
    )
    assert not lone.wanted(commands.StartBatch)
    assert not lone.wanted(commands.ReportOutOfRange)


ONLY_FIRST = frozenset(MINE[:1])


def test_while_kafka_takes_partitions_a_batch_there_may_end_and_what_is_kept_goes_on() -> None:
    lone = LoneMember().in_batch()
    lone.feed(messages.Revoking(partitions=ONLY_FIRST))
    assert lone.wanted(messages.ReleasePartitions) == []
    lone.feed(messages.BatchEnded(batch=B1), answers.batch_accepted(batch=B1))
    assert lone.wanted(commands.FinishBatch) != []
    assert lone.wanted(messages.ReleasePartitions) == [messages.ReleasePartitions(partitions=ONLY_FIRST)]
    # Kafka may take its time, and so may the claim of what is left: meanwhile the work goes on there.
    assert [plan.positions.keys() for plan in lone.wanted(messages.PlanRanges)] == [frozenset(MINE[1:])]
    lone.feed(messages.RangesPlanned(batch=B2, ranges=BEHIND), answers.batch_started(batch=B2, ranges=BEHIND))
    assert [start.ranges for start in lone.wanted(commands.StartBatch)] == [BEHIND]
    lone.assign(MINE[1:], assignment=2)
    assert [claim.partitions for claim in lone.wanted(messages.ClaimAssignment)] == [frozenset(MINE[1:])]
    lone.grant(view_of({p: c for p, c in claims_of().items() if p in MINE[1:]}), assignment=2)
    lone.feed(messages.BatchEnded(batch=B2), answers.batch_accepted(batch=B2))
    assert [finish.batch for finish in lone.wanted(commands.FinishBatch)] == [B2]
    assert lone.wanted(commands.RequestReset) == []


def test_where_kafka_takes_everything_nothing_is_planned() -> None:
    lone = LoneMember().in_batch()
    lone.feed(messages.Revoking(partitions=frozenset(MINE)))
    lone.feed(messages.BatchEnded(batch=B1), answers.batch_accepted(batch=B1), messages.Notice.TICK)
    assert lone.wanted(messages.ReleasePartitions) == [messages.ReleasePartitions(partitions=frozenset(MINE))]
    assert lone.wanted(messages.PlanRanges) == []


def test_where_nothing_runs_on_what_kafka_takes_it_is_released_at_once_and_the_batch_goes_on() -> None:
    lone = LoneMember().processing()
    lone.feed(messages.RangesPlanned(batch=B1, ranges={MINE[1]: RANGES[MINE[1]]}))
    lone.feed(answers.batch_started(batch=B1, ranges={MINE[1]: RANGES[MINE[1]]}))
    lone.feed(messages.Revoking(partitions=ONLY_FIRST))
    assert lone.wanted(messages.ReleasePartitions) == [messages.ReleasePartitions(partitions=ONLY_FIRST)]
    lone.assign(MINE[1:], assignment=2)
    assert lone.wanted(messages.Cancel) == []
    assert lone.member.batch is not None
    assert not lone.member.batch.doomed


def test_of_a_plan_that_comes_while_kafka_takes_partitions_only_what_is_kept_is_started() -> None:
    lone = LoneMember().processing()
    lone.feed(messages.Revoking(partitions=ONLY_FIRST))
    lone.plan()
    assert [start.ranges for start in lone.wanted(commands.StartBatch)] == [BEGINNING]
    assert lone.member.batch is not None
    assert lone.member.batch.ranges == BEGINNING


def test_a_plan_of_nothing_but_what_kafka_takes_starts_nothing() -> None:
    lone = LoneMember().processing()
    lone.feed(messages.Revoking(partitions=ONLY_FIRST))
    lone.feed(messages.RangesPlanned(batch=B1, ranges={MINE[0]: RANGES[MINE[0]]}))
    assert lone.wanted(commands.StartBatch) == []


def test_where_kafka_has_not_waited_for_the_batch_it_counts_all_the_same_and_what_is_left_is_claimed_after_it() -> None:
    lone = LoneMember().in_batch()
    lone.feed(messages.Revoking(partitions=ONLY_FIRST))
    lone.assign(MINE[1:], assignment=2)
    assert (lone.wanted(messages.Cancel), lone.wanted(messages.ClaimAssignment)) == ([], [])
    lone.feed(messages.BatchEnded(batch=B1), answers.batch_accepted(batch=B1))
    assert [claim.partitions for claim in lone.wanted(messages.ClaimAssignment)] == [frozenset(MINE[1:])]
    assert lone.wanted(commands.RequestReset) == []


def test_partitions_that_are_added_leave_the_batch_on_the_others_alone() -> None:
    lone = LoneMember().join().assign(MINE[1:]).grant(view_of({MINE[1]: claims_of()[MINE[1]]}))
    lone.feed(messages.RangesPlanned(batch=B1, ranges={MINE[1]: RANGES[MINE[1]]}))
    lone.feed(answers.batch_started(batch=B1, ranges={MINE[1]: RANGES[MINE[1]]}))
    lone.assign(MINE, assignment=2)
    assert [claim.partitions for claim in lone.wanted(messages.ClaimAssignment)] == [frozenset(MINE)]
    lone.grant(assignment=2)
    assert lone.member.batch is not None
    assert not lone.member.batch.doomed
    assert lone.wanted(messages.Cancel) == []


def test_what_a_plan_found_about_boundaries_is_told_even_where_there_is_nothing_to_process() -> None:
    lone = LoneMember().processing()
    found = {MINE[0]: BoundaryOffset(offset=Offset(7))}
    lone.feed(messages.RangesPlanned(batch=B1, ranges={}, boundary=boundary(1), boundary_offsets=found))
    assert lone.wanted(commands.StoreBoundaryOffsets) == [
        commands.StoreBoundaryOffsets(caller=CALLER, boundary=boundary(1), found=found)
    ]
    assert lone.wanted(commands.ReadRegion)


def test_logs_that_do_not_have_the_position_are_told_and_nothing_begins() -> None:
    lone = LoneMember().processing()
    outside = {MINE[0]: LogBounds(start=Offset(5), end=Offset(9))}
    lone.feed(messages.RangesPlanned(batch=B1, ranges={MINE[1]: RANGES[MINE[1]]}, outside=outside))
    assert lone.wanted(commands.ReportOutOfRange) == [commands.ReportOutOfRange(caller=CALLER, observed=outside)]
    assert lone.wanted(commands.StartBatch) == []


def test_a_refused_begin_leaves_nothing_and_the_region_is_read() -> None:
    lone = LoneMember().processing().plan()
    lone.feed(answers.start_refused(batch=B1, why="draining"))
    assert lone.member.batch is None
    assert lone.wanted(commands.ReadRegion)


# -- end --------------------------------------------------------------------------------------------------------------


def test_a_finished_batch_is_ended_and_the_positions_advance() -> None:
    lone = LoneMember().in_batch()
    lone.feed(messages.BatchEnded(batch=B1))
    assert lone.wanted(commands.FinishBatch) == [commands.FinishBatch(member=ME, batch=B1, incarnation=Incarnation(1))]
    lone.feed(answers.batch_accepted(batch=B1))
    assert lone.member.positions == OffsetMap(dict.fromkeys(MINE, Offset(10)))
    assert lone.member.batch is None
    assert len(lone.wanted(messages.PlanRanges)) == 1


def test_a_refused_end_discards_the_work_and_asks_for_a_reset() -> None:
    lone = LoneMember().in_batch()
    lone.feed(messages.BatchEnded(batch=B1), answers.finish_refused(batch=B1, why="its claims have gone"))
    assert lone.wanted(commands.DiscardBatch) == [
        commands.DiscardBatch(member=ME, batch=B1, incarnation=Incarnation(1))
    ]
    asked = lone.wanted(commands.RequestReset)[0]
    assert (asked.caller, asked.cause) == (CALLER, ResetCause.BATCH_REFUSED)
    assert asked.detail == "its claims have gone"
    lone.feed(answers.discarded(batch=B1))
    assert lone.member.batch is None


def test_a_failed_batch_is_discarded_and_a_reset_asked_for_in_its_own_epoch() -> None:
    lone = LoneMember().in_batch()
    lone.feed(messages.BatchEnded(batch=B1, failure="division by zero"))
    asked = lone.wanted(commands.RequestReset)[0]
    assert (asked.caller.epoch, asked.cause, asked.detail) == (1, ResetCause.BATCH_FAILED, "division by zero")
    assert lone.wanted(commands.DiscardBatch)
    assert requested(lone) == [ResetCause.BATCH_FAILED]


def test_a_batch_that_was_narrowed_to_one_record_names_it_whatever_fails() -> None:
    def narrowed() -> LoneMember:
        lone = LoneMember().processing()
        ranges = {min(MINE): Range(Offset(0), Offset(1))}
        lone.feed(messages.RangesPlanned(batch=B1, ranges=ranges))
        lone.feed(answers.batch_started(batch=B1, ranges=ranges))
        return lone

    failed, slow = narrowed(), narrowed()
    failed.feed(messages.BatchEnded(batch=B1, failure="division by zero"))
    slow.wait(121)
    named = f"; the batch was {min(MINE)} offset 0 alone"
    assert failed.wanted(commands.RequestReset)[0].detail == f"division by zero{named}"
    assert slow.wanted(commands.RequestReset)[0].detail == f"batch b1 took longer than 0:02:00{named}"


# -- doom -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "view", [replace(SEEN, epoch=Epoch(2), claims={}), replace(SEEN, state=RegionState.HALTED)], ids=["epoch", "halted"]
)
def test_a_batch_is_cancelled_when_its_epoch_is_over_or_the_region_halted(view: object) -> None:
    lone = LoneMember().in_batch()
    assert isinstance(view, type(SEEN))
    lone.see(replace(view, counter=EventNumber(11)))
    assert lone.wanted(messages.Cancel) == [messages.Cancel(batch=B1)]
    assert (phase(lone), doomed(lone), requested(lone)) == (BatchPhase.CANCELLING, True, [])


def test_a_batch_that_lost_a_partition_to_a_rebalance_may_take_as_long_as_any_other() -> None:
    lone = LoneMember().in_batch()
    lone.feed(messages.Notice.REVOKED)
    lone.assign(MINE[:1], assignment=2)
    assert not doomed(lone)
    lone.now += lone.member.timeouts.batch.total_seconds()
    lone.member = replace(lone.member, lease_sent_at=lone.now)
    lone.feed(messages.Notice.TICK)
    assert doomed(lone)
    assert requested(lone) == [ResetCause.BATCH_TIMEOUT]


def after_failures(count: int) -> LoneMember:
    """A member that processes again after the reset for the last of N failed batches."""
    lone = LoneMember().processing()
    lone.feed(messages.RangesPlanned(batch=B1, ranges={}))
    reset = replace(SEEN, counter=EventNumber(11), epoch=Epoch(2), failures=count, acknowledged=False, claims={})
    lone.see(reset)
    again = replace(reset, counter=EventNumber(12), acknowledged=True, claims=claims_of(epoch=2))
    return lone.grant(again)


@pytest.mark.parametrize(("failures", "wait"), [(1, 1.0), (3, 4.0)])
def test_after_failed_batches_none_is_planned_before_the_wait_is_over(failures: int, wait: float) -> None:
    lone = after_failures(failures)
    assert (lone.state, lone.member.why) == (State.HOLDING, Why.RETRY)
    lone.wait(wait - 0.1)
    assert lone.wanted(messages.PlanRanges) == []
    lone.wait(0.2)
    assert lone.wanted(messages.PlanRanges) != []


def test_the_wait_is_counted_from_the_reset_and_not_from_each_look_at_the_region() -> None:
    lone = after_failures(2)
    lone.wait(1.5)
    lone.see(replace(lone.view, counter=EventNumber(20)))
    lone.wait(0.6)
    assert lone.wanted(messages.PlanRanges) != []


def test_a_persons_reset_ends_the_wait() -> None:
    lone = after_failures(5)
    begun = replace(lone.view, counter=EventNumber(20), epoch=Epoch(3), failures=0, acknowledged=False, claims={})
    lone.see(begun)
    lone.grant(replace(begun, counter=EventNumber(21), acknowledged=True, claims=claims_of(epoch=3)))
    assert lone.wanted(messages.PlanRanges) != []


def test_a_member_that_waits_after_a_failure_gives_its_part_of_a_drain_at_once() -> None:
    lone = after_failures(5)
    lone.see(
        replace(
            lone.view,
            counter=EventNumber(20),
            state=RegionState.DRAINING,
            checkpoint=checkpoint_view(CheckpointState.DRAINING),
        )
    )
    assert lone.wanted(messages.PrepareSinks) != []


def test_time_in_which_the_engine_is_slow_is_the_batch_s_own() -> None:
    lone = LoneMember().in_batch()
    lone.wait(5)
    lone.feed(messages.EngineLacks(why="a quota", excuses=False))
    assert [one.lacks for one in renewals_of(lone)] == ["a quota"]
    lone.wait(115)
    assert requested(lone) == [ResetCause.BATCH_TIMEOUT]


def test_time_in_which_no_task_can_run_is_not_the_batch_s_own() -> None:
    lone = LoneMember().in_batch()
    for _ in range(100):
        lone.wait(5)
        lone.feed(messages.EngineLacks(why="no executor"))
    assert not doomed(lone)
    assert [one.lacks for one in renewals_of(lone)] == ["no executor"]
    lone.feed(messages.EngineLacks(why=""))
    assert [one.lacks for one in renewals_of(lone)] == [""]
    lone.wait(115)  # besides the two renewals
    assert not doomed(lone)
    lone.wait(1)
    assert requested(lone) == [ResetCause.BATCH_TIMEOUT]


def renewals_of(lone: LoneMember) -> list[commands.Renew]:
    """What the member asks for when its lease is to be renewed."""
    lone.now += lone.member.timeouts.renew.total_seconds()
    lone.feed(messages.Notice.TICK)
    found = lone.wanted(commands.Renew)
    lone.feed(answers.renewed(sent_at=lone.now, counter=lone.member.memory.counter))
    return found


def test_a_cancelled_batch_is_discarded_once_it_is_quiesced_whatever_it_answered() -> None:
    for answer in (
        messages.BatchEnded(batch=B1),
        messages.BatchEnded(batch=B1, failure=""),
    ):
        lone = LoneMember().in_batch()
        lone.see(replace(SEEN, counter=EventNumber(11), epoch=Epoch(2), claims={}))
        lone.feed(answer)
        assert lone.wanted(commands.DiscardBatch) == [
            commands.DiscardBatch(member=ME, batch=B1, incarnation=Incarnation(1))
        ]
        assert requested(lone) == []


def test_a_batch_that_is_doomed_before_it_began_never_runs() -> None:
    lone = LoneMember().processing().plan()
    lone.see(replace(SEEN, counter=EventNumber(11), epoch=Epoch(2), claims={}))
    lone.feed(answers.batch_started(batch=B1))
    assert lone.wanted(messages.RunBatch) == []
    assert lone.wanted(commands.DiscardBatch)


# -- a batch without a lease ------------------------------------------------------------------------------------------


def without_lease() -> LoneMember:
    lone = LoneMember().in_batch()
    lone.now = 10.0
    lone.feed(messages.Notice.TICK)
    lone.feed(messages.BatchEnded(batch=B1))
    return lone


def test_the_next_incarnation_in_this_process_says_that_it_is_discarded() -> None:
    lone = without_lease()
    assert lone.wanted(commands.DiscardBatch) == []
    assert phase(lone) is BatchPhase.QUIESCED
    lone.feed(answers.registered(incarnation=Incarnation(2), sent_at=lone.now))
    assert lone.wanted(commands.DiscardBatch) == [
        commands.DiscardBatch(member=ME, batch=B1, incarnation=Incarnation(2))
    ]


def test_a_member_that_ends_without_a_lease_lets_it_go() -> None:
    lone = without_lease()
    lone.feed(messages.Notice.TERMINATED)
    assert lone.member.batch is None


def test_a_fenced_member_lets_it_go_without_a_word() -> None:
    lone = LoneMember().in_batch().superseded()
    lone.feed(messages.BatchEnded(batch=B1))
    assert lone.member.batch is None
    assert lone.wanted(commands.DiscardBatch) == []


def test_so_does_one_that_the_store_refused() -> None:
    lone = without_lease()
    lone.feed(answers.registration_refused(why="another holds it"))
    assert lone.member.batch is None
    assert lone.state is not State.PROCESSING


def test_an_end_that_was_finished_under_an_older_incarnation_is_a_discard() -> None:
    lone = LoneMember().in_batch()
    lone.now = 10.0
    lone.feed(messages.Notice.TICK)
    lone.feed(answers.registered(incarnation=Incarnation(2), sent_at=lone.now))
    lone.feed(messages.BatchEnded(batch=B1))
    assert lone.wanted(commands.FinishBatch) == []
    assert lone.wanted(commands.DiscardBatch) == [
        commands.DiscardBatch(member=ME, batch=B1, incarnation=Incarnation(2))
    ]
