"""The order of steps of a commit, against a group consumer that says what it is told to."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from airflow_kcr.kafka.commits import STALE_PAUSE, Commits, PendingCommit
from airflow_kcr.kafka.group_consumer import CommitResponse, GroupConsumer
from airflow_kcr.ports import CommitAnswer, CommittedOffset
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.values import GroupId, GroupPartition, Offset, TopicName

G, T = GroupId("g"), TopicName("t")
P0, P1 = GroupPartition(G, T, 0), GroupPartition(G, T, 1)


@dataclass(eq=False)
class FakeGroupConsumer(GroupConsumer):
    assigned: frozenset[GroupPartition] | None = frozenset({P0, P1})
    assignments: int = 1
    fatal: bool = False
    lost_at: float = float("-inf")
    commit_open: bool = False
    sent: list[OffsetMap] = field(default_factory=list)
    holds: dict[GroupPartition, CommittedOffset] = field(default_factory=dict)
    answer: CommitResponse | None = None
    read_error: int | None = None
    send_error: int | None = None

    def send_commit(self, offsets: OffsetMap, metadata: str) -> None:
        if self.send_error is not None:
            raise KafkaException(KafkaError(self.send_error))
        self.sent.append(offsets)
        self.commit_open, self.answer = True, None

    def commit_answer(self) -> CommitResponse | None:
        return self.answer

    def committed(
        self, partitions: Collection[GroupPartition], timeout: timedelta
    ) -> dict[GroupPartition, CommittedOffset]:
        if self.read_error is not None:
            raise KafkaException(KafkaError(self.read_error))
        return {p: self.holds[p] for p in partitions if p in self.holds}

    def says(self, code: int | None = None, partition: int | None = None) -> None:
        """Answer the commit on its way: yes, no, or no for one partition. What Kafka takes, it holds."""
        self.commit_open = False
        error = KafkaError(code) if code is not None else None
        if error is None or partition is not None:
            taken = {p: o for p, o in self.sent[-1].items() if p.partition != partition}
            self.holds |= {p: CommittedOffset(offset=o, metadata="m") for p, o in taken.items()}
        errors = {TopicPartition(T, partition): error} if partition is not None and error is not None else {}
        self.answer = CommitResponse(error, errors)

    def reassigned(self, *partitions: GroupPartition) -> None:
        self.assigned, self.assignments = frozenset(partitions), self.assignments + 1


@dataclass
class Story:
    """A commits' queue, its group consumer, and the answers."""

    group_consumer: FakeGroupConsumer = field(default_factory=FakeGroupConsumer)
    commits: Commits = field(default_factory=lambda: Commits(G, {}))
    answers: list[CommitAnswer] = field(default_factory=list)

    may_write: bool = True

    def add(self, *, at: float = 0.0, timeout: float = 8.0, **offsets: int) -> None:
        concrete = OffsetMap({GroupPartition(G, T, int(n[1:])): Offset(o) for n, o in offsets.items()})
        self.commits.add(
            PendingCommit(
                offsets=concrete,
                metadata="m",
                asked_at=at,
                timeout=timedelta(seconds=timeout),
                answered=self.answers.append,
                may_write=lambda: self.may_write,
            )
        )

    def step(self, now: float) -> None:
        self.commits.step(self.group_consumer, now)

    def held(self) -> dict[int, int]:
        return {p.partition: row.offset for p, row in self.answers[-1].held.items()}


def asked(*, timeout: float = 8.0, **offsets: int) -> Story:
    """Return a story in which a commit was asked for at 0, and has gone out."""
    story = Story()
    story.add(timeout=timeout, **offsets)
    story.step(0.0)
    return story


def test_a_commit_is_sent_answered_and_read() -> None:
    story = asked(p0=1, p1=2)
    assert story.commits.busy
    story.step(0.1)
    assert story.answers == []
    story.group_consumer.says()
    story.step(0.2)
    assert story.answers[0].failure == ""
    assert story.held() == {0: 1, 1: 2}
    assert not story.commits.busy


def test_a_commit_of_an_old_member_epoch_is_sent_again_after_a_pause_in_the_same_assignment() -> None:
    story = asked(p0=1)
    story.group_consumer.says(KafkaError.STALE_MEMBER_EPOCH)
    story.step(0.1)
    story.step(0.1 + STALE_PAUSE - 0.01)
    assert (len(story.group_consumer.sent), story.answers) == (1, [])
    story.step(0.1 + STALE_PAUSE)
    assert len(story.group_consumer.sent) == 2
    story.group_consumer.says()
    story.step(1.0)
    assert (story.answers[0].failure, story.held()) == ("", {0: 1})


def test_it_is_sent_again_only_for_so_long_and_not_where_a_partition_was_taken() -> None:
    story = Story()
    story.add(p0=1)
    for turn in range(40):
        story.step(turn * STALE_PAUSE)
        if story.group_consumer.commit_open:
            story.group_consumer.says(KafkaError.STALE_MEMBER_EPOCH)
        story.step(turn * STALE_PAUSE)
    assert "STALE_MEMBER_EPOCH" in story.answers[0].failure
    assert len(story.group_consumer.sent) < 8 / STALE_PAUSE
    taken = asked(p0=1)
    taken.group_consumer.says(KafkaError.STALE_MEMBER_EPOCH)
    taken.group_consumer.reassigned(P1)
    taken.step(0.1)
    taken.step(1.0)
    assert (len(taken.group_consumer.sent), "not assigned" in taken.answers[0].failure) == (1, True)


def test_one_whose_lease_is_over_by_then_is_not_sent_again() -> None:
    story = asked(p0=1)
    story.group_consumer.says(KafkaError.STALE_MEMBER_EPOCH)
    story.step(0.1)
    story.may_write = False
    story.step(1.0)
    assert len(story.group_consumer.sent) == 1


@pytest.mark.parametrize(
    "code", [KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS]
)
def test_a_refused_generation_is_sent_again_only_after_the_next_assignment(code: int) -> None:
    story = asked(p0=1)
    story.group_consumer.says(code)
    for now in (0.1, 0.2):
        story.step(now)  # still assigned, as far as the client knows
    story.group_consumer.assigned = None
    story.step(0.3)
    assert len(story.group_consumer.sent) == 1
    story.group_consumer.reassigned(P0)
    story.step(0.4)
    assert len(story.group_consumer.sent) == 2
    story.group_consumer.says()
    story.step(0.5)
    assert story.answers[0].failure == ""


def test_a_refused_generation_is_not_sent_again_where_the_partitions_went_elsewhere() -> None:
    story = asked(p0=1, p1=1)
    story.group_consumer.says(KafkaError.ILLEGAL_GENERATION)
    story.step(0.1)
    story.group_consumer.reassigned(P0)
    story.step(0.2)
    assert len(story.group_consumer.sent) == 1
    assert "ILLEGAL_GENERATION" in story.answers[0].failure
    assert "t-1 not assigned" in story.answers[0].failure


def test_nothing_that_was_asked_for_before_the_session_was_lost_is_sent_in_the_next_assignment() -> None:
    story = asked(p0=1)
    story.group_consumer.says(KafkaError.UNKNOWN_MEMBER_ID)
    story.step(0.1)
    story.group_consumer.assigned, story.group_consumer.lost_at = None, 0.2
    story.group_consumer.holds = {P0: CommittedOffset(offset=Offset(7), metadata="of a newer checkpoint")}
    story.group_consumer.reassigned(P0)
    story.step(0.3)
    assert len(story.group_consumer.sent) == 1
    assert story.held() == {0: 7}
    assert "others may have committed since" in story.answers[0].failure
    story.add(at=0.4, p0=9)
    story.step(0.4)
    assert dict(story.group_consumer.sent[-1]) == {P0: 9}


def test_a_refused_generation_without_a_new_assignment_is_answered_in_time() -> None:
    story = asked(p0=1, timeout=8.0)
    story.group_consumer.says(KafkaError.UNKNOWN_MEMBER_ID)
    story.step(1.0)
    story.step(7.0)
    assert "UNKNOWN_MEMBER_ID" in story.answers[0].failure
    assert len(story.group_consumer.sent) == 1


@pytest.mark.parametrize("code", [KafkaError._TIMED_OUT, KafkaError._WAIT_COORD, KafkaError.REQUEST_TIMED_OUT])
def test_an_answer_that_says_neither_yes_nor_no_is_read_and_not_repeated(code: int) -> None:
    story = asked(p0=1)
    story.group_consumer.says(code)
    story.group_consumer.holds = {P0: CommittedOffset(offset=Offset(1), metadata="m")}
    story.step(0.1)
    assert len(story.group_consumer.sent) == 1
    # It was done after all.
    assert (story.held(), story.answers[0].failure) == ({0: 1}, "")


def test_a_commit_without_an_answer_is_read_before_its_time_is_over() -> None:
    story = Story()
    story.group_consumer.holds = {P0: CommittedOffset(offset=Offset(0), metadata="old")}
    story.add(p0=1, timeout=8.0)
    story.step(0.0)
    story.step(5.9)
    assert story.answers == []
    story.step(6.0)
    assert "did not answer within" in story.answers[0].failure
    assert story.held() == {0: 0}


def test_none_is_sent_while_an_abandoned_one_is_on_its_way() -> None:
    story = asked(p0=1, timeout=4.0)
    story.step(3.5)
    story.add(at=4.0, p0=2)
    story.step(4.0)
    assert len(story.group_consumer.sent) == 1
    story.group_consumer.says()
    story.step(4.1)
    assert dict(story.group_consumer.sent[-1]) == {P0: 2}
    story.group_consumer.says()
    story.step(4.2)
    assert story.answers[1].failure == ""


def test_one_that_waits_gives_way_to_a_newer_one() -> None:
    story = asked(p0=1)
    story.group_consumer.says(KafkaError.ILLEGAL_GENERATION)
    story.group_consumer.assigned = None
    story.step(0.1)
    story.add(at=0.2, p0=2)
    story.step(0.2)
    assert "a newer commit took its place" in story.answers[0].failure
    story.group_consumer.reassigned(P0)
    story.step(0.3)
    assert [dict(offsets) for offsets in story.group_consumer.sent] == [{P0: 1}, {P0: 2}]


def test_a_partition_that_was_refused_is_named_and_the_others_are_held() -> None:
    story = asked(p0=1, p1=1)
    story.group_consumer.says(KafkaError.UNKNOWN_TOPIC_OR_PART, partition=1)
    story.step(0.1)
    assert "t-1: UNKNOWN_TOPIC_OR_PART" in story.answers[0].failure
    assert story.held() == {0: 1}


def test_a_partition_that_was_dropped_silently_is_named() -> None:
    story = asked(p0=1, p1=1)
    story.group_consumer.says()
    del story.group_consumer.holds[P1]
    story.step(0.1)
    assert story.answers[0].failure == "Kafka said yes, but does not hold it: t-1"


def test_an_offset_with_other_metadata_is_not_ours() -> None:
    story = asked(p0=1)
    story.group_consumer.says()
    story.group_consumer.holds[P0] = CommittedOffset(offset=Offset(1), metadata="somebody else's")
    story.step(0.1)
    assert story.answers[0].failure == "Kafka said yes, but does not hold it: t-0"


def test_reading_is_tried_again_within_the_time_and_then_given_up() -> None:
    story = asked(p0=1, timeout=8.0)
    story.group_consumer.says()
    story.group_consumer.read_error = KafkaError._TIMED_OUT
    story.step(0.1)
    story.step(7.0)
    assert story.answers == []
    story.step(7.9)
    assert "not read back: _TIMED_OUT" in story.answers[0].failure
    assert story.answers[0].held == {}


def test_a_refused_commit_is_not_sent_again_in_the_next_assignment_once_the_lease_is_over() -> None:
    story = asked(p0=1)
    story.group_consumer.says(KafkaError.UNKNOWN_MEMBER_ID)
    story.step(0.1)
    story.may_write = False
    story.group_consumer.reassigned(GroupPartition(G, T, 0))
    story.step(0.2)
    assert len(story.group_consumer.sent) == 1
    assert "lease" in story.answers[0].failure


def test_what_can_not_be_committed_is_answered_at_once() -> None:
    story = Story()
    story.add()
    foreign = OffsetMap({GroupPartition(GroupId("other"), T, 0): Offset(1)})
    story.commits.add(
        PendingCommit(
            offsets=foreign, metadata="", asked_at=0.0, timeout=timedelta(seconds=1), answered=story.answers.append
        )
    )
    assert ["nothing was sent" in answer.failure for answer in story.answers] == [True, True]


def test_giving_up_answers_all_of_them() -> None:
    story = Story()
    story.add(p0=1)
    story.add(p0=2)
    story.step(0.0)
    story.commits.give_up("left")
    assert [answer.failure for answer in story.answers] == ["left", "left"]


@pytest.mark.parametrize(
    ("consumer", "may_write", "turns", "failure"),
    [
        pytest.param({}, True, [7.0], "not sent: its time was over", id="the process was held up"),
        pytest.param({}, False, [0.0], "not sent: the lease of the member that asked for it is over", id="lease"),
        pytest.param({"fatal": True, "assigned": None}, True, [0.0], "the client is fenced", id="fenced"),
        pytest.param({"send_error": KafkaError._NO_OFFSET}, True, [0.0], "_NO_OFFSET", id="refused by the client"),
        pytest.param(
            {"assigned": None}, True, [0.0, 5.0, 6.0], "not sent: nothing was assigned within 8.0 s", id="revoked"
        ),
    ],
)
def test_what_is_not_sent_is_answered_with_the_reason(
    consumer: dict[str, Any], may_write: bool, turns: list[float], failure: str
) -> None:
    story = Story(FakeGroupConsumer(**consumer), may_write=may_write)
    story.add(p0=1, timeout=8.0)
    for now in turns:
        assert story.answers == []
        story.step(now)
    assert story.group_consumer.sent == []
    assert failure in story.answers[0].failure
