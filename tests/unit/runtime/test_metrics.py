from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from airflow_kcr.protocol.member.messages import Assigned
from airflow_kcr.protocol.member.state import MemberMachine
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region.commands import Register
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import AssignmentId, CheckpointNumber, Epoch, Offset
from airflow_kcr.runtime.metrics import UNKNOWN, Counts, Metrics
from tests.support.runtime_fakes import MEMBER, p

FIRST, SECOND = CheckpointNumber(1), CheckpointNumber(2)


def at_work() -> MemberMachine:
    return replace(
        MemberMachine(process=Register(member=MEMBER, token="t"), timeouts=Timeouts()),
        in_group=True,
        assignment=Assigned(assignment=AssignmentId(1), partitions=frozenset({p(0), p(1), p(2)})),
        positions=OffsetMap({p(0): Offset(4), p(1): Offset(9)}),
    )


def test_the_lag_is_what_lies_between_position_and_end_and_unknown_where_the_end_is() -> None:
    ends = {p(0): LogBounds(start=Offset(0), end=Offset(10))}
    shown = Metrics().snapshot(at_work(), ends)
    assert shown.lag == {p(0): 6, p(1): UNKNOWN}


def test_an_end_that_was_read_before_the_position_moved_past_it_is_no_negative_lag() -> None:
    ends = {p(1): LogBounds(start=Offset(0), end=Offset(5))}
    assert Metrics().snapshot(at_work(), ends).lag[p(1)] == 0


def test_a_drain_counts_from_the_first_look_at_it_to_the_contribution() -> None:
    metrics = Metrics()
    metrics.drain_seen(FIRST, 10.0)
    metrics.drain_seen(FIRST, 10.5)
    metrics.contributed(FIRST, 12.0)
    assert metrics.counts == Counts(checkpoints=1, longest_drain=timedelta(seconds=2))


def test_the_longest_drain_is_remembered() -> None:
    metrics = Metrics()
    for checkpoint, seconds in ((FIRST, 3.0), (SECOND, 1.0)):
        metrics.drain_seen(checkpoint, 0.0)
        metrics.contributed(checkpoint, seconds)
    assert metrics.counts == Counts(checkpoints=2, longest_drain=timedelta(seconds=3))


def test_a_drain_that_was_aborted_does_not_count_into_the_next() -> None:
    metrics = Metrics()
    metrics.drain_seen(FIRST, 0.0)
    metrics.drain_seen(SECOND, 100.0)
    metrics.contributed(SECOND, 101.0)
    assert metrics.counts.longest_drain == timedelta(seconds=1)


def test_a_contribution_whose_drain_was_not_seen_has_no_time() -> None:
    metrics = Metrics()
    metrics.contributed(FIRST, 12.0)
    assert metrics.counts == Counts(checkpoints=1)


def test_the_last_batch_counts_with_its_time_and_not_with_the_longest() -> None:
    metrics = Metrics()
    metrics.batch_took(2.0)
    metrics.batch_took(0.25)
    assert metrics.counts.last_batch == timedelta(seconds=0.25)


def test_the_reset_that_a_member_starts_with_is_no_incident() -> None:
    metrics = Metrics()
    metrics.reset(Epoch(4))
    metrics.reset(Epoch(4))
    assert metrics.counts.resets == 0
    metrics.reset(Epoch(5))
    metrics.reset(Epoch(5))
    assert metrics.counts.resets == 1


def test_members_counts_add_up_with_the_longest_times_the_last_complaint_and_the_resets_they_share() -> None:
    metrics = Metrics()
    metrics.add(Counts(batches=2, records=15, resets=2, failed_commits=3))
    metrics.troubled("broker 1 is down")
    metrics.troubled("broker 2 is down")
    other = Counts(batches=1, records=5, resets=1, last_batch=timedelta(seconds=1), longest_drain=timedelta(seconds=4))
    assert metrics.snapshot(at_work(), {}).counts + other == Counts(
        batches=3,
        records=20,
        resets=2,
        failed_commits=3,
        troubles=2,
        last_trouble="broker 2 is down",
        last_batch=timedelta(seconds=1),
        longest_drain=timedelta(seconds=4),
    )
