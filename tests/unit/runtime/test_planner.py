from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_kcr.errors import BrokerUnavailable
from airflow_kcr.protocol import values
from airflow_kcr.protocol.member.messages import RangesPlanned
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region.rows import BoundaryOffset, CheckpointState, Claim
from airflow_kcr.protocol.region.view import MemberRegion
from airflow_kcr.protocol.values import BatchId, GroupPartition, Offset, Range
from airflow_kcr.runtime.leases import StoreClock
from airflow_kcr.runtime.planner import AT_END, KEPT, Limits, Planner
from tests.support.lone_member import checkpoint_view, view_of
from tests.support.runtime_fakes import NOON, FakeLogs, Hands, p, records
from tests.support.simulation.broker import Log

BATCH = BatchId("b-1")
GRACE = timedelta(seconds=2)
SECOND = timedelta(seconds=1)


def a_view(**changes: object) -> MemberRegion:
    """What a member of a running region sees, without a boundary."""
    seen = view_of({p(n): Claim(topic_id=values.TopicId("topic-1")) for n in range(3)})
    return replace(seen, **changes)  # type: ignore[arg-type]


ANY = Limits(target=timedelta(seconds=2), least=0, most=1_000_000)


class Desk:
    """A planner with what it asks; the store's clock reads NOON when the member's reads 1000."""

    def __init__(self, *logs: Log) -> None:
        self.hands = Hands(1000.0)
        self.logs = FakeLogs({p(n): log for n, log in enumerate(logs)})
        self.planner = Planner(self.logs, self.hands, StoreClock(self.hands, NOON), GRACE, ANY)

    def plan(self, *positions: int, view: MemberRegion | None = None, size: int = 100) -> RangesPlanned:
        places = OffsetMap({p(n): Offset(o) for n, o in enumerate(positions)})
        return self.planner.plan(BATCH, places, view or a_view(), size)


def ranges(planned: RangesPlanned) -> Mapping[GroupPartition, tuple[int, int]]:
    return {partition: (r.from_, r.to) for partition, r in planned.ranges.items()}


# -- ends ----------------------------------------------------------------------------------------------------------


def test_a_batch_reads_from_the_positions_to_the_ends_of_the_logs() -> None:
    planned = Desk(records(10), records(5)).plan(4, 0)
    assert planned.batch == BATCH
    assert ranges(planned) == {p(0): (4, 10), p(1): (0, 5)}
    assert planned.ranges[p(0)] == Range(Offset(4), Offset(10))
    assert (planned.boundary, planned.boundary_offsets, planned.outside) == (None, {}, {})


def test_nothing_beyond_the_last_stable_offset_is_planned() -> None:
    open_transaction = records(10)
    open_transaction.open_from = 6
    assert ranges(Desk(open_transaction).plan(0)) == {p(0): (0, 6)}


def test_a_partition_with_nothing_to_read_gets_no_range() -> None:
    assert ranges(Desk(records(10), records(5)).plan(10, 0)) == {p(1): (0, 5)}


def test_a_log_that_the_cluster_does_not_have_is_left_out() -> None:
    planned = Desk(records(10)).plan(0, 3)
    assert ranges(planned) == {p(0): (0, 10)}
    assert planned.outside == {}


def test_a_batch_takes_no_more_than_its_size_shared_out_by_backlog() -> None:
    assert ranges(Desk(records(300), records(100)).plan(0, 0, size=40)) == {p(0): (0, 30), p(1): (0, 10)}


def test_brokers_that_do_not_answer_are_the_callers_to_know() -> None:
    desk = Desk(records(10))
    desk.logs.failures.append(BrokerUnavailable("localhost:1 does not answer"))
    with pytest.raises(BrokerUnavailable):
        desk.plan(0)
    assert ranges(desk.plan(0)) == {p(0): (0, 10)}


# -- what is kept --------------------------------------------------------------------------------------------------


def test_plans_are_cut_from_what_was_read_while_it_has_a_whole_batch() -> None:
    desk = Desk(records(300))
    assert ranges(desk.plan(0)) == {p(0): (0, 100)}
    assert ranges(desk.plan(100)) == {p(0): (100, 200)}
    assert ranges(desk.plan(200)) == {p(0): (200, 300)}
    assert desk.logs.asked == ["bounds"]


def test_the_logs_are_read_again_when_less_than_a_whole_batch_is_left_of_them() -> None:
    desk = Desk(records(150))
    desk.plan(0)
    desk.logs.logs[p(0)] = records(400)
    assert ranges(desk.plan(100)) == {p(0): (100, 200)}
    assert desk.logs.asked == ["bounds", "bounds"]


def test_a_member_that_has_read_everything_asks_only_whether_there_is_more() -> None:
    desk = Desk(records(10), records(5))
    for _ in range(3):
        assert ranges(desk.plan(10, 5)) == {}
    assert desk.logs.asked == ["bounds", "ends", "ends"]
    desk.logs.logs[p(1)] = records(6)
    assert ranges(desk.plan(10, 5)) == {p(1): (5, 6)}
    assert desk.logs.asked[3:] == ["ends", "bounds"]


def test_logs_with_nothing_to_read_are_looked_at_as_a_whole_now_and_then() -> None:
    desk = Desk(records(10))
    desk.plan(10)
    desk.hands.now += AT_END - 0.01
    assert ranges(desk.plan(10)) == {}
    assert desk.logs.asked == ["bounds", "ends"]
    desk.hands.now += 0.01
    assert ranges(desk.plan(10)) == {}
    assert desk.logs.asked[2:] == ["bounds"]


def test_logs_that_go_on_behind_what_must_not_be_read_yet_are_looked_at_sooner() -> None:
    # Retention may overtake the position.
    desk, view = Desk(records(10)), a_view(skips={p(0): (Offset(5),)})
    desk.plan(5, view=view)
    desk.hands.now += KEPT - 0.01
    desk.plan(5, view=view)
    assert desk.logs.asked == ["bounds", "ends"]
    desk.hands.now += 0.01
    desk.plan(5, view=view)
    assert desk.logs.asked[2:] == ["bounds"]


def test_where_a_boundary_that_has_passed_falls_is_asked_for_though_no_record_comes() -> None:
    desk = Desk(records(10, at=NOON - SECOND))
    view = a_view(limit=NOON + SECOND)
    desk.plan(10, view=view)
    desk.plan(10, view=view)
    assert desk.logs.asked == ["bounds", "times", "ends"]
    desk.hands.now += 1.5
    desk.plan(10, view=view)
    assert desk.logs.asked[3:] == ["bounds", "times"]


def test_what_was_read_is_not_planned_from_for_long() -> None:
    desk = Desk(records(1_000))
    desk.plan(0)
    desk.hands.now += KEPT - 0.01
    desk.plan(100)
    assert desk.logs.asked == ["bounds"]
    desk.hands.now += 0.01
    desk.plan(200)
    assert desk.logs.asked == ["bounds", "bounds"]


def test_a_partition_that_was_not_read_has_the_logs_read_again() -> None:
    desk = Desk(records(1_000), records(1_000))
    desk.plan(0)
    assert p(1) in ranges(desk.plan(100, 0))


def test_after_a_claim_the_logs_are_read_again() -> None:
    desk = Desk(records(1_000))
    desk.plan(0)
    desk.planner.forget()
    desk.plan(0)
    assert desk.logs.asked == ["bounds", "bounds"]


def test_a_contribution_tells_logs_that_were_read_a_moment_ago_or_reads_them() -> None:
    desk = Desk(records(10), records(20))
    desk.plan(0, 0)
    assert desk.planner.logs_seen(frozenset({p(1)}))[p(1)].end == 20
    assert desk.logs.asked == ["bounds"]
    desk.logs.logs[p(1)] = records(25)
    desk.hands.now += KEPT
    assert desk.planner.logs_seen(frozenset({p(1)}))[p(1)].end == 25


def test_the_ends_that_are_shown_are_those_that_were_read_last() -> None:
    desk = Desk(records(10))
    assert desk.planner.ends == {}
    desk.plan(0)
    assert desk.planner.ends[p(0)].end == 10


# -- boundaries --------------------------------------------------------------------------------------------------------

BOUNDARY = NOON - timedelta(seconds=60)
BEFORE, AFTER = BOUNDARY - SECOND, BOUNDARY + SECOND


def test_no_batch_crosses_a_boundary_whose_place_the_store_knows() -> None:
    view = a_view(limit=BOUNDARY, boundary_offsets={p(0): BoundaryOffset(offset=Offset(7))})
    desk = Desk(records(10))
    planned = desk.plan(0, view=view)
    assert ranges(planned) == {p(0): (0, 7)}
    assert (planned.boundary, planned.boundary_offsets) == (BOUNDARY, {})
    assert desk.logs.asked == ["bounds"]


def test_a_partition_at_the_boundary_reads_nothing() -> None:
    view = a_view(limit=BOUNDARY, boundary_offsets={p(0): BoundaryOffset(offset=Offset(7))})
    assert ranges(Desk(records(10)).plan(7, view=view)) == {}
    assert ranges(Desk(records(10)).plan(9, view=view)) == {}


def test_where_a_boundary_falls_is_looked_up_after_the_ends_were_read_and_told_with_the_plan() -> None:
    desk = Desk(Log(stamps=[BEFORE] * 4 + [AFTER] * 6))
    planned = desk.plan(0, view=a_view(limit=BOUNDARY))
    assert desk.logs.asked == ["highs", "bounds", "times"]
    assert ranges(planned) == {p(0): (0, 4)}
    assert planned.boundary_offsets[p(0)].offset == 4
    assert planned.boundary_offsets[p(0)].inexact == ""


def test_a_record_written_between_the_two_questions_is_not_in_the_batch() -> None:
    # Scenarios C5, C26: the look-up says none, and a moment later there is a record of the next interval.
    desk = Desk(Log(stamps=[BEFORE] * 4))
    late = desk.logs.logs[p(0)].stamps

    def produce() -> None:
        late.extend([BEFORE, AFTER])

    desk.logs.in_between = produce
    planned = desk.plan(0, view=a_view(limit=NOON))
    assert ranges(planned) == {p(0): (0, 4)}
    assert planned.boundary_offsets == {}


def test_the_ends_and_the_look_up_after_them_are_kept_as_a_pair_when_the_boundary_passes_meanwhile() -> None:
    # Scenario C26: asked before the boundary the index says none; a second later the log ends behind it.
    boundary = NOON + SECOND
    desk = Desk(records(400, at=NOON))
    assert ranges(desk.plan(0, view=a_view(limit=boundary))) == {p(0): (0, 100)}
    desk.hands.now += 1.5
    desk.logs.logs[p(0)].stamps.extend([boundary] * 100)
    for position in (100, 200, 300):
        planned = desk.plan(position, view=a_view(limit=boundary))
        assert ranges(planned) == {p(0): (position, position + 100)}
        assert planned.boundary_offsets == {}
    assert desk.logs.asked == ["bounds", "times"]
    planned = desk.plan(400, view=a_view(limit=boundary))
    assert ranges(planned) == {}
    assert planned.boundary_offsets[p(0)].offset == 400
    assert desk.logs.asked == ["bounds", "times"] * 2


def test_without_a_record_after_it_the_boundary_falls_at_the_end_once_the_grace_is_over() -> None:
    desk = Desk(records(4, at=BEFORE))
    view = a_view(limit=NOON)
    assert desk.plan(0, view=view).boundary_offsets == {}
    desk.hands.now += GRACE.total_seconds() + 0.001
    planned = desk.plan(0, view=view)
    assert planned.boundary_offsets[p(0)] == BoundaryOffset(offset=Offset(4))
    assert ranges(planned) == {p(0): (0, 4)}


def test_a_boundary_above_an_open_transaction_says_that_records_are_hidden_from_it() -> None:
    # Scenario C4. The high watermark is asked for only where the end may be the answer.
    desk = Desk(Log(stamps=[BEFORE] * 10, open_from=4))
    view = a_view(limit=NOON)
    assert desk.plan(0, view=view).boundary_offsets == {}
    assert "highs" not in desk.logs.asked
    desk.hands.now += GRACE.total_seconds() + 0.001
    found = desk.plan(0, view=view).boundary_offsets[p(0)]
    assert found.offset == 4
    assert "hides the records from 4 on" in found.inexact


def test_a_log_that_grows_between_the_questions_is_not_taken_for_an_open_transaction() -> None:
    desk = Desk(Log(stamps=[BEFORE] * 4))
    desk.hands.now += GRACE.total_seconds() + 0.001

    def produce() -> None:
        desk.logs.logs[p(0)].stamps.append(BEFORE)

    desk.logs.in_between = produce
    assert desk.plan(0, view=a_view(limit=NOON)).boundary_offsets[p(0)] == BoundaryOffset(offset=Offset(4))


def test_the_grace_is_judged_by_when_the_logs_were_read_not_by_when_the_plan_is_made() -> None:
    # The end was read before the grace was over: records of the interval may have been written behind it since.
    boundary = NOON - SECOND
    desk = Desk(records(400, at=boundary - SECOND))
    assert desk.plan(0, view=a_view(limit=boundary)).boundary_offsets == {}
    desk.logs.logs[p(0)].stamps.extend([boundary - SECOND] * 10)
    desk.hands.now += 1.5
    assert desk.plan(100, view=a_view(limit=boundary)).boundary_offsets == {}
    assert desk.logs.asked == ["bounds", "times"]
    assert desk.plan(400, view=a_view(limit=boundary)).boundary_offsets[p(0)].offset == 410


def test_an_open_transaction_keeps_the_boundary_from_falling_behind_it() -> None:
    # Scenario C5: the record that answers lies beyond the last stable offset.
    log = Log(stamps=[BEFORE] * 4 + [AFTER] * 6, open_from=3)
    planned = Desk(log).plan(0, view=a_view(limit=BOUNDARY))
    assert planned.boundary_offsets[p(0)].offset == 3
    assert ranges(planned) == {p(0): (0, 3)}


def test_another_boundary_is_looked_up_at_once() -> None:
    desk = Desk(Log(stamps=[BEFORE] * 500 + [AFTER] * 500))
    desk.plan(0)
    planned = desk.plan(450, view=a_view(limit=BOUNDARY))
    assert desk.logs.asked == ["bounds", "highs", "bounds", "times"]
    assert ranges(planned) == {p(0): (450, 500)}


def test_only_partitions_without_a_stored_place_are_looked_up() -> None:
    desk = Desk(Log(stamps=[BEFORE, AFTER]), Log(stamps=[BEFORE, AFTER]))
    view = a_view(limit=BOUNDARY, boundary_offsets={p(0): BoundaryOffset(offset=Offset(2))})
    planned = desk.plan(0, 0, view=view)
    assert ranges(planned) == {p(0): (0, 2), p(1): (0, 1)}
    assert planned.boundary_offsets.keys() == {p(1)}


# -- skips, counts -------------------------------------------------------------------------------------------------


# -- few records ---------------------------------------------------------------------------------------------------


def lingering(*logs: Log) -> Desk:
    desk = Desk(*logs)
    desk.planner.limits = replace(ANY, least=50, linger=3 * SECOND)
    return desk


def test_few_records_are_waited_with_from_when_the_first_was_seen() -> None:
    desk = lingering(records(0), records(10))
    assert ranges(desk.plan(0, 10)) == {}, "there is nothing yet"
    desk.hands.now += 60
    desk.logs.logs[p(0)] = records(7)
    assert ranges(desk.plan(0, 10)) == {}
    desk.hands.now += 2.9
    assert ranges(desk.plan(0, 10)) == {}
    desk.hands.now += 0.1
    assert ranges(desk.plan(0, 10)) == {p(0): (0, 7)}
    desk.logs.logs[p(0)] = records(8)
    assert ranges(desk.plan(7, 10)) == {}, "the next few are waited with anew"


def test_enough_records_are_taken_at_once_and_what_comes_after_them_is_waited_with_anew() -> None:
    desk = lingering(records(20), records(20))
    assert ranges(desk.plan(0, 0)) == {}
    desk.hands.now += 1
    desk.logs.logs[p(1)] = records(30)
    assert ranges(desk.plan(0, 0)) == {p(0): (0, 20), p(1): (0, 30)}
    desk.hands.now += 2
    desk.logs.logs[p(0)] = records(21)
    assert ranges(desk.plan(20, 30)) == {}


def test_records_before_a_boundary_that_has_passed_are_not_waited_with() -> None:
    desk = lingering(records(10, at=NOON - SECOND), records(0))
    view = a_view(limit=NOON)
    assert ranges(desk.plan(0, 0, view=view)) == {}, "others may come"
    desk.hands.now += 2.5  # the grace is over, so the boundary falls at the ends
    planned = desk.plan(0, 0, view=view)
    assert planned.boundary_offsets
    assert ranges(planned) == {p(0): (0, 10)}
    known = a_view(limit=NOON, boundary_offsets=planned.boundary_offsets)
    assert ranges(desk.plan(0, 0, view=known)) == {p(0): (0, 10)}


def test_in_an_open_checkpoint_and_where_a_count_is_to_be_reached_nothing_is_waited_with() -> None:
    desk = lingering(records(10))
    opened = checkpoint_view(CheckpointState.APPROACHING)
    assert ranges(desk.plan(0, view=a_view(checkpoint=opened))) == {p(0): (0, 10)}
    assert ranges(desk.plan(0, view=a_view(records_left=30))) == {p(0): (0, 10)}
    assert ranges(desk.plan(0)) == {}


def test_a_batch_ends_before_a_record_that_is_skipped() -> None:
    view = a_view(skips={p(0): (Offset(6), Offset(3))})
    desk = Desk(records(10))
    assert ranges(desk.plan(0, view=view)) == {p(0): (0, 3)}
    assert ranges(desk.plan(4, view=view)) == {p(0): (4, 6)}
    assert ranges(desk.plan(7, view=view)) == {p(0): (7, 10)}


def test_a_batch_does_not_begin_more_than_the_checkpoint_by_count_has_left() -> None:
    desk = Desk(records(300), records(100))
    assert ranges(desk.plan(0, 0, view=a_view(records_left=8))) == {p(0): (0, 6), p(1): (0, 2)}
    assert ranges(desk.plan(0, 0, view=a_view(records_left=0))) == {}


# -- out of range --------------------------------------------------------------------------------------------------


def test_a_position_outside_of_its_log_is_told_and_nothing_of_it_is_read() -> None:
    log = records(10)
    log.start = 5
    planned = Desk(log, records(10), records(4)).plan(2, 0, 5)
    assert ranges(planned) == {p(1): (0, 10)}
    assert planned.outside == {p(0): log.bounds(), p(2): records(4).bounds()}


def test_outside_is_declared_only_after_the_logs_were_read_again() -> None:
    # What is kept has a whole batch of the other partition, so only the position that seems outside asks again.
    desk = Desk(records(300), records(1_000))
    desk.plan(0, 0)
    desk.logs.logs[p(0)] = records(600)
    planned = desk.plan(400, 100)
    assert planned.outside == {}
    assert p(0) in ranges(planned)
    assert desk.logs.asked == ["bounds", "bounds"]


def test_a_position_behind_a_skipped_last_record_is_inside() -> None:
    view = a_view(skips={p(0): (Offset(10),)})
    assert Desk(records(10)).plan(11, view=view).outside == {}


def test_a_topic_made_anew_is_outside_even_where_the_position_would_fit() -> None:
    log = records(10)
    log.topic_id = "topic-2"
    planned = Desk(log).plan(5)
    assert planned.outside.keys() == {p(0)}
    assert ranges(planned) == {}
