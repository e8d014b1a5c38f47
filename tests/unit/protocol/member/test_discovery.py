from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from airflow_kcr.protocol.member import messages
from airflow_kcr.protocol.member.discovery import REJOIN_FACTOR, REJOIN_PAUSE
from airflow_kcr.protocol.member.messages import Effect
from airflow_kcr.protocol.region import commands
from airflow_kcr.protocol.region.commands import PartitionAdvice, ReportPartitions
from airflow_kcr.protocol.region.rows import CLAIM_STATES, RegionState
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import (
    AssignmentId,
    Epoch,
    EventNumber,
    GroupId,
    GroupPartition,
    Incarnation,
    TopicName,
)
from tests.support import answers
from tests.support.answers import ME
from tests.support.lone_member import MINE, LoneMember, claims_of, view_of

FRESH = GroupPartition(GroupId("g"), TopicName("t"), 2)
ALL = frozenset({*MINE, FRESH})
LEASE = Timeouts().lease.total_seconds()
AGAIN, REJOIN = PartitionAdvice(report_again=True), PartitionAdvice(report_again=True, rejoin=True)


def found(lone: LoneMember, partitions: frozenset[GroupPartition] | None = ALL) -> list[commands.ReportPartitions]:
    """Have the brokers answer."""
    lone.feed(messages.PartitionsDiscovered(partitions=partitions))
    return lone.wanted(commands.ReportPartitions)


def told(lone: LoneMember, advice: PartitionAdvice) -> tuple[Effect, ...]:
    """Have the store answer."""
    return lone.feed(answers.partitions_reported(advice=advice))


def asks(lone: LoneMember, seconds: float) -> int:
    """How often the brokers are asked while time passes; they find nothing new."""
    asked = 0
    for _ in range(int(seconds)):
        lone.wait(1)
        for _ in lone.wanted(messages.GroupRequest.DISCOVER_PARTITIONS):
            asked += 1
            found(lone)
    return asked


def test_the_brokers_are_asked_after_a_claim_and_then_once_a_lease() -> None:
    lone = LoneMember().join().assign()
    assert not any(e is messages.GroupRequest.DISCOVER_PARTITIONS for e in lone.all)
    lone.grant()
    assert len(lone.wanted(messages.GroupRequest.DISCOVER_PARTITIONS)) == 1
    found(lone)
    told(lone, PartitionAdvice())
    assert asks(lone, 5 * LEASE) == 5


def test_the_store_is_told_what_it_does_not_know_and_nothing_twice() -> None:
    lone = LoneMember().processing()
    (report,) = found(lone)
    assert report == ReportPartitions(member=ME, incarnation=Incarnation(1), partitions=ALL)
    told(lone, PartitionAdvice())
    lone.wait(LEASE)
    assert found(lone) == []
    lone.wait(LEASE)
    assert len(found(lone, frozenset(MINE))) == 1


@pytest.mark.parametrize("advice", [AGAIN, REJOIN])
def test_the_store_is_told_again_while_a_partition_has_no_owner(advice: PartitionAdvice) -> None:
    lone = LoneMember().processing().plan()
    found(lone)
    told(lone, advice)
    lone.wait(LEASE)
    assert len(found(lone)) == 1


def test_a_claim_in_another_epoch_is_told_of_again() -> None:
    lone = LoneMember().processing()
    found(lone)
    told(lone, PartitionAdvice())
    view = replace(view_of(claims_of(epoch=2)), epoch=Epoch(2), counter=EventNumber(20))
    lone.feed(answers.view_read(view=view))
    lone.grant(view)
    assert len(lone.wanted(messages.GroupRequest.DISCOVER_PARTITIONS)) == 1
    assert len(found(lone)) == 1, "a store that was restored has forgotten it"


def test_brokers_that_do_not_answer_are_asked_again_later() -> None:
    lone = LoneMember().processing()
    assert found(lone, None) == []
    lone.wait(LEASE)
    assert len(lone.wanted(messages.GroupRequest.DISCOVER_PARTITIONS)) == 1


@pytest.mark.parametrize("state", sorted(set(RegionState) - CLAIM_STATES))
def test_only_a_region_that_takes_claims_is_compared_with_the_brokers(state: RegionState) -> None:
    lone = LoneMember().join().assign()
    lone.grant(replace(view_of(claims_of()), state=state))
    assert lone.wanted(messages.GroupRequest.DISCOVER_PARTITIONS) == []


def test_a_member_leaves_its_group_and_joins_it_again_where_that_gives_a_partition_an_owner() -> None:
    lone = LoneMember().processing()
    found(lone)
    told(lone, REJOIN)
    assert len(lone.wanted(messages.GroupRequest.LEAVE)) == 1
    assert lone.wanted(commands.Leave) == [], "it stays a member of the region"
    lone.feed(messages.Notice.REVOKED)
    lone.feed(messages.Notice.LEFT_GROUP)
    assert len(lone.wanted(messages.GroupRequest.JOIN)) == 1
    lone.assign(ALL, assignment=2)
    (claim,) = lone.wanted(messages.ClaimAssignment)
    assert claim.partitions == ALL


@pytest.mark.parametrize("state", sorted(CLAIM_STATES))
def test_a_member_joins_anew_in_a_reset_too_but_not_in_a_drain(state: RegionState) -> None:
    lone = LoneMember().join().assign()
    lone.grant(replace(view_of(claims_of()), state=state))
    found(lone)
    told(lone, REJOIN)
    assert len(lone.wanted(messages.GroupRequest.LEAVE)) == (state is not RegionState.DRAINING)


def test_nor_in_a_region_that_has_halted_meanwhile() -> None:
    lone = LoneMember().processing()
    found(lone)
    lone.see(replace(view_of(claims_of()), counter=EventNumber(11), state=RegionState.HALTED))
    told(lone, REJOIN)
    assert lone.wanted(messages.GroupRequest.LEAVE) == []


def test_a_member_joins_anew_between_two_batches() -> None:
    lone = LoneMember().processing().plan()
    found(lone)
    told(lone, REJOIN)
    assert lone.wanted(messages.GroupRequest.LEAVE) == []
    batch = lone.member.batch
    assert batch is not None
    lone.feed(
        answers.batch_started(batch=batch.batch),
        messages.BatchEnded(batch=batch.batch),
        answers.batch_accepted(batch=batch.batch),
    )
    assert len(lone.wanted(messages.GroupRequest.LEAVE)) == 1
    assert lone.wanted(messages.PlanRanges) == []


@pytest.mark.parametrize("state", [RegionState.RUNNING, RegionState.RESETTING])
def test_a_claim_is_answered_and_the_store_asked_again_before_an_assignment_is_given_back(state: RegionState) -> None:
    lone = LoneMember().processing().plan()
    batch = lone.member.batch
    assert batch is not None
    lone.feed(answers.batch_started(batch=batch.batch))
    found(lone)
    told(lone, REJOIN)
    view = replace(view_of(claims_of(epoch=2)), epoch=Epoch(2), counter=EventNumber(20), state=state)
    lone.feed(answers.view_read(view=view))
    lone.feed(messages.BatchEnded(batch=batch.batch), answers.discarded(batch=batch.batch))
    assert len(lone.wanted(messages.ClaimAssignment)) == 1
    assert lone.wanted(messages.GroupRequest.LEAVE) == []
    lone.grant(view)
    assert lone.wanted(messages.GroupRequest.LEAVE) == [], "what was told of the epoch before is over"
    found(lone)
    told(lone, REJOIN)
    assert len(lone.wanted(messages.GroupRequest.LEAVE)) == 1


def answer_all(lone: LoneMember, assignment: int, seen: int) -> int:
    """Answer everything that was wanted since: nothing that the member does gives the partition an owner."""
    while seen < len(lone.all):
        match lone.all[seen]:
            case messages.GroupRequest.DISCOVER_PARTITIONS:
                found(lone)
            case commands.ReportPartitions():
                told(lone, REJOIN)
            case messages.GroupRequest.LEAVE:
                lone.feed(messages.Notice.REVOKED, messages.Notice.LEFT_GROUP)
            case messages.GroupRequest.JOIN:
                lone.assign(assignment=assignment)
            case messages.ClaimAssignment():
                lone.grant(assignment=assignment)
            case _:
                pass
        seen += 1
    return seen


def test_where_joining_anew_does_not_help_each_pause_is_longer_than_the_one_before() -> None:
    lone = LoneMember().processing()
    left: list[float] = []
    seen = lone.all.index(messages.GroupRequest.DISCOVER_PARTITIONS)
    while len(left) < 4 and lone.now < 2 * REJOIN_PAUSE * REJOIN_FACTOR**3:
        seen = answer_all(lone, len(left) + 2, seen)
        left += [lone.now] * (sum(e is messages.GroupRequest.LEAVE for e in lone.all) - len(left))
        lone.wait(1)
    pauses = [after - before for before, after in pairwise(left)]
    assert len(pauses) == 3
    for number, pause in enumerate(pauses):
        least = REJOIN_PAUSE * REJOIN_FACTOR**number
        assert least <= pause <= least + 2 * LEASE


# -- what can't be claimed ---------------------------------------------------------------------------------------------


def refused(lone: LoneMember, *, lacks_logs: bool = True) -> int:
    """Have the claim of the present assignment refused, and return how often the brokers were asked after it."""
    lone.feed(answers.claim_refused(assignment=AssignmentId(1), why="no such log", lacks_logs=lacks_logs))
    return len(lone.wanted(messages.GroupRequest.DISCOVER_PARTITIONS))


@pytest.mark.parametrize("state", sorted(CLAIM_STATES))
def test_a_member_joins_its_group_anew_where_its_assignment_has_a_partition_that_is_gone(state: RegionState) -> None:
    lone = LoneMember().join().assign()
    lone.feed(answers.view_read(view=replace(view_of(), state=state, counter=EventNumber(20))))
    assert refused(lone) == 1
    there = frozenset(MINE[:1])
    assert len(found(lone, there)) == 1
    told(lone, AGAIN)
    assert lone.wanted(messages.GroupRequest.LEAVE) == [], "nobody knows yet that it is gone"
    assert refused(lone) == 1
    assert len(found(lone, there)) == 1
    told(lone, PartitionAdvice(gone=frozenset(MINE[1:])))
    assert len(lone.wanted(messages.GroupRequest.LEAVE)) == 1
    lone.feed(messages.Notice.LEFT_GROUP)
    assert len(lone.wanted(messages.GroupRequest.JOIN)) == 1


def leaves(lone: LoneMember) -> int:
    """How often it has left its group."""
    return sum(effect is messages.GroupRequest.LEAVE for effect in lone.all)


def lacking(lone: LoneMember, there: frozenset[GroupPartition] | None, seconds: float) -> None:
    """Have a claim refused, the brokers answer, and time pass."""
    assert refused(lone) == 1
    found(lone, there)
    if leaves(lone) == 0:
        told(lone, AGAIN)
        lone.wait(seconds)


def test_a_member_joins_its_group_anew_where_the_brokers_lack_for_long_what_nobody_ever_claimed() -> None:
    lone = LoneMember().join().assign()
    for _ in range(int(2 * LEASE)):
        lacking(lone, frozenset(MINE[:1]), 1)
        assert leaves(lone) == 0
    lacking(lone, frozenset(MINE[:1]), 1)
    assert leaves(lone) == 1


@pytest.mark.parametrize(("between", "left"), [(ALL, 0), (None, 1)])
def test_brokers_that_have_it_in_between_are_believed_and_those_that_do_not_answer_say_nothing(
    between: frozenset[GroupPartition] | None, left: int
) -> None:
    lone = LoneMember().join().assign()
    lacking(lone, frozenset(MINE[:1]), LEASE + 1)
    lacking(lone, between, LEASE + 1)
    lacking(lone, frozenset(MINE[:1]), 0)
    assert leaves(lone) == left


def test_a_claim_that_is_refused_for_another_reason_asks_nobody() -> None:
    assert refused(LoneMember().join().assign(), lacks_logs=False) == 0


def test_a_member_without_a_partition_that_is_gone_stays_in_its_group() -> None:
    lone = LoneMember().join().assign()
    refused(lone, lacks_logs=False)
    told(lone, PartitionAdvice(gone=frozenset({FRESH})))
    assert lone.wanted(messages.GroupRequest.LEAVE) == []


def test_a_member_that_is_assigned_what_is_there_again_claims_it_before_it_judges() -> None:
    lone = LoneMember().processing()
    found(lone)
    told(lone, PartitionAdvice(gone=frozenset({FRESH})))
    lone.feed(messages.Assigned(assignment=AssignmentId(2), partitions=ALL))
    assert lone.wanted(messages.GroupRequest.LEAVE) == []
    assert lone.wanted(messages.ClaimAssignment)[-1].partitions == ALL
