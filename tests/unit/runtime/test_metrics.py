from __future__ import annotations

from dataclasses import replace

from airflow_kcr.protocol.assignments import Assignment
from airflow_kcr.protocol.commands import Register
from airflow_kcr.protocol.member.state import Member, State
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import AssignmentId, CheckpointNumber, Offset
from airflow_kcr.runtime.metrics import UNKNOWN, Metrics
from tests.support.runtime_fakes import MEMBER, p

FIRST, SECOND = CheckpointNumber(1), CheckpointNumber(2)


def at_work() -> Member:
    return replace(
        Member(process=Register(member=MEMBER, token="t"), timeouts=Timeouts()),
        in_group=True,
        assignment=Assignment(assignment=AssignmentId(1), partitions=frozenset({p(0), p(1), p(2)})),
        positions=OffsetMap({p(0): Offset(4), p(1): Offset(9)}),
    )


def test_a_member_that_just_began_knows_nothing() -> None:
    shown = Metrics().snapshot(Member(process=Register(member=MEMBER, token="t"), timeouts=Timeouts()), {})
    assert (shown.state, shown.region_state, shown.checkpoint, shown.checkpoint_phase) == (
        State.JOINING,
        None,
        None,
        None,
    )
    assert (shown.positions, shown.lag) == ({}, {})
    assert shown.counters["isGroupManagementActive"] == 0
    assert shown.counters["drainTimeMillis"] == UNKNOWN
    assert shown.counters["drainTimeMillisMax"] == UNKNOWN


def test_the_lag_is_what_lies_between_position_and_end_and_unknown_where_the_end_is() -> None:
    ends = {p(0): LogBounds(start=Offset(0), end=Offset(10))}
    shown = Metrics().snapshot(at_work(), ends)
    assert shown.lag == {p(0): 6, p(1): UNKNOWN}
    assert shown.counters["nPendingMessages"] == 6


def test_an_end_that_was_read_before_the_position_moved_past_it_is_no_negative_lag() -> None:
    ends = {p(1): LogBounds(start=Offset(0), end=Offset(5))}
    assert Metrics().snapshot(at_work(), ends).lag[p(1)] == 0


def test_the_counters_have_the_names_of_streamsx_kafka() -> None:
    counters = Metrics(rebalances=3).snapshot(at_work(), {}).counters
    assert counters["isGroupManagementActive"] == 1
    assert counters["nAssignedPartitions"] == 3
    assert counters["nConsumedTopics"] == 1
    assert counters["nClaimedPartitions"] == 2
    assert counters["nPartitionRebalances"] == 3
    assert {"nPendingMessages", "drainTimeMillis", "drainTimeMillisMax"} <= counters.keys()


def test_a_drain_counts_from_the_first_look_at_it_to_the_contribution() -> None:
    metrics = Metrics()
    metrics.drain_seen(FIRST, 10.0)
    metrics.drain_seen(FIRST, 10.5)
    metrics.contributed(FIRST, 12.0)
    assert (metrics.checkpoints, metrics.drain_millis, metrics.drain_millis_max) == (1, 2000, 2000)


def test_the_longest_drain_is_remembered() -> None:
    metrics = Metrics()
    for checkpoint, seconds in ((FIRST, 3.0), (SECOND, 1.0)):
        metrics.drain_seen(checkpoint, 0.0)
        metrics.contributed(checkpoint, seconds)
    assert (metrics.checkpoints, metrics.drain_millis, metrics.drain_millis_max) == (2, 1000, 3000)


def test_a_drain_that_was_aborted_does_not_count_into_the_next() -> None:
    metrics = Metrics()
    metrics.drain_seen(FIRST, 0.0)
    metrics.drain_seen(SECOND, 100.0)
    metrics.contributed(SECOND, 101.0)
    assert metrics.drain_millis == 1000


def test_a_contribution_whose_drain_was_not_seen_has_no_time() -> None:
    metrics = Metrics()
    metrics.contributed(FIRST, 12.0)
    assert (metrics.checkpoints, metrics.drain_millis) == (1, UNKNOWN)


def test_batches_and_complaints_are_counted() -> None:
    metrics = Metrics(last_batch_seconds=0.25, busy_seconds=1.5)
    metrics.batch_ended(10)
    metrics.batch_ended(5)
    metrics.troubled("broker 2 is down")
    counters = metrics.snapshot(at_work(), {}).counters
    assert (counters["nBatches"], counters["nRecords"], counters["nTroubles"]) == (2, 15, 1)
    assert (counters["batchTimeMillis"], counters["busyTimeMillis"]) == (250, 1500)
    assert metrics.last_trouble == "broker 2 is down"
