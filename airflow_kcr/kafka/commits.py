"""Commits of a member: one at a time, under a deadline of our own, and read back.

What is known of the broker and the client decides the order of steps:

- The broker checks the member, not who owns what, and drops some offsets silently; a partition that is refused takes
  the others' results with it. So what counts is what `committed` answers afterwards.
- A commit between a revoke and the next assignment waits behind the rebalance, and a static member that is joining
  again after a loss fences itself with it. So it is only sent while assigned, all of its partitions.
- A refusal because of the generation wrote nothing; after the *next* assignment it may be sent again. One because of an
  old member epoch wrote nothing either; the client learns the new one with a heartbeat, so it is sent again after a
  pause, in the same assignment. An answer that says neither yes nor no is never repeated: what it did is read.
- After the next assignment the broker takes whatever was asked for before, also where others had the partitions in
  between, and have committed later offsets. So who asked for it is asked, each time, whether it still may write.
- Where the session was over, others may have had the partitions since, and committed a newer checkpoint; Kafka would
  take the older one all the same in the next assignment. So what was asked for before that is not sent after it.
- While one is on its way, even an abandoned one, no other is sent: which answer is whose would be a guess.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto
from typing import Final

from confluent_kafka import KafkaException

from airflow_kcr.kafka import failures
from airflow_kcr.kafka.failures import Kind
from airflow_kcr.kafka.group_consumer import CommitResponse, GroupConsumer
from airflow_kcr.ports import CommitAnswer, CommittedOffset, always
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.values import GroupId, GroupPartition, few

READ_SLICE: Final = timedelta(milliseconds=500)
"""How long one read of the committed offsets may keep the event thread from polling."""

STALE_PAUSE: Final = 0.5
"""Seconds after which a commit is sent again whose member epoch was an old one."""

LONGEST_RESERVE: Final = 2.0
"""Seconds of a commit's time that are kept for reading it back."""


class CommitStage(Enum):
    """Where a commit is."""

    WAITING = auto()
    SENT = auto()
    READING = auto()


@dataclass(slots=True, kw_only=True)
class PendingCommit:
    """One commit that was asked for."""

    offsets: OffsetMap
    metadata: str
    asked_at: float
    timeout: timedelta
    answered: Callable[[CommitAnswer], None]
    may_write: Callable[[], bool] = always
    stage: CommitStage = CommitStage.WAITING
    failure: str = ""
    sent_in: int = 0
    """The assignment in which it was sent last."""

    again_at: float = float("inf")
    """When it is sent again in that assignment."""

    @property
    def ends_at(self) -> float:
        """When it must be answered."""
        return self.asked_at + self.timeout.total_seconds()

    @property
    def reads_at(self) -> float:
        """When it is read back, whatever has become of it."""
        return self.ends_at - min(LONGEST_RESERVE, self.timeout.total_seconds() / 4)

    def read(self, failure: str) -> None:
        """Go on to reading, with what has gone wrong."""
        self.stage, self.failure = CommitStage.READING, failure


class Commits:
    """The commits of one member, oldest first; used by the event thread alone.

    Args:
        group: of the partitions that may be committed.
        settings: of the client, whose secrets stay out of messages.
    """

    def __init__(self, group: GroupId, settings: Mapping[str, str]) -> None:
        self._group, self._settings = group, settings
        self._queue: deque[PendingCommit] = deque()

    @property
    def busy(self) -> bool:
        """Whether an answer of the broker is awaited."""
        return bool(self._queue) and self._queue[0].stage is not CommitStage.WAITING

    def add(self, commit: PendingCommit) -> None:
        """Take a commit; one that can't be is answered at once, and replaces none that waits."""
        foreign = [str(p) for p in commit.offsets if p.group != self._group]
        if foreign:
            self._answer(commit, {}, f"{', '.join(foreign)}: not of group {self._group}; nothing was sent")
        elif not commit.offsets:
            self._answer(commit, {}, "there is no offset to commit; nothing was sent")
        else:
            self._queue.append(commit)

    def give_up(self, why: str) -> None:
        """Answer every commit: there is no client any more that could send or read one."""
        while self._queue:
            commit = self._queue.popleft()
            self._answer(commit, {}, f"{commit.failure}; {why}" if commit.failure else why)

    def step(self, group_consumer: GroupConsumer, now: float) -> None:
        """Do what is possible now; returns without waiting, but for one read of the committed offsets."""
        if not self._queue:
            return
        commit = self._queue[0]
        if commit.stage is CommitStage.WAITING:
            self._send(commit, group_consumer, now)
        if commit.stage is CommitStage.SENT:
            self._hear(commit, group_consumer, now)
        if commit.stage is CommitStage.READING:
            self._read(commit, group_consumer, now)

    def _send(self, commit: PendingCommit, group_consumer: GroupConsumer, now: float) -> None:
        """Send a commit if that is possible, or find that it never will be."""
        outdated = len(self._queue) > 1 and not group_consumer.commit_open
        elsewhere = group_consumer.assigned is not None and not commit.offsets.keys() <= group_consumer.assigned
        if group_consumer.fatal:
            commit.read(commit.failure or "the client is fenced")
        elif commit.asked_at <= group_consumer.lost_at:
            commit.read(_both(commit.failure, "not sent: its session was over, others may have committed since"))
        elif now >= commit.reads_at:
            commit.read(_both(commit.failure, self._why_not(commit, group_consumer)))
        elif not commit.may_write():
            commit.read(_both(commit.failure, "not sent: the lease of the member that asked for it is over"))
        elif (
            not elsewhere
            and group_consumer.assigned is not None
            and not group_consumer.commit_open
            and (group_consumer.assignments > commit.sent_in or now >= commit.again_at)
        ):
            self._put(commit, group_consumer)
        elif outdated and not elsewhere:
            # It waited for an assignment until a newer one came; sent after that one, it could move Kafka backwards.
            commit.read(_both(commit.failure, "a newer commit took its place"))
        elif elsewhere:
            commit.read(_both(commit.failure, self._why_not(commit, group_consumer)))

    def _put(self, commit: PendingCommit, group_consumer: GroupConsumer) -> None:
        commit.sent_in, commit.again_at = group_consumer.assignments, float("inf")
        try:
            group_consumer.send_commit(commit.offsets, commit.metadata)
        except KafkaException as exception:
            commit.read(failures.described(failures.of(exception), self._settings))
        else:
            commit.stage = CommitStage.SENT

    def _hear(self, commit: PendingCommit, group_consumer: GroupConsumer, now: float) -> None:
        answer = group_consumer.commit_answer()
        if answer is not None:
            kinds = answer.kinds
            why = self._described(answer)
            if kinds == {Kind.REJOIN}:
                # Nothing was written. Sent again only in another assignment: in this one it would be refused again,
                # or fence a static member.
                commit.stage, commit.failure = CommitStage.WAITING, why
            elif kinds == {Kind.STALE}:
                commit.stage, commit.failure, commit.again_at = CommitStage.WAITING, why, now + STALE_PAUSE
            else:
                commit.read(why)
        elif group_consumer.fatal or now >= commit.reads_at:
            waited = now - commit.asked_at
            commit.read(
                "the client was fenced" if group_consumer.fatal else f"Kafka did not answer within {waited:.1f} s"
            )

    def _read(self, commit: PendingCommit, group_consumer: GroupConsumer, now: float) -> None:
        left = timedelta(seconds=commit.ends_at - now)
        held: dict[GroupPartition, CommittedOffset] = {}
        try:
            if left > timedelta(0):
                held = group_consumer.committed(list(commit.offsets), min(READ_SLICE, left))
        except KafkaException as exception:
            error = failures.of(exception)
            if failures.kind(error) is Kind.RETRIABLE and left > READ_SLICE:
                return  # again, after a poll
            commit.failure = _both(commit.failure, f"not read back: {failures.described(error, self._settings)}")
        else:
            if left <= timedelta(0):
                commit.failure = _both(commit.failure, "no time was left to read it back")
            else:
                commit.failure = _verdict(commit, held)
        self._queue.popleft()
        self._answer(commit, held, commit.failure)

    def _described(self, answer: CommitResponse) -> str:
        errors = {p: failures.described(error, self._settings) for p, error in answer.partitions.items()}
        if answer.error is not None and not errors:
            return failures.described(answer.error, self._settings)
        # A group-wide refusal is repeated for each partition; one of them says it all.
        most = 1 if len(set(errors.values())) == 1 and len(errors) > 3 else len(errors)
        return few((f"{p.topic}-{p.partition}: {error}" for p, error in errors.items()), most, separator="; ")

    @staticmethod
    def _why_not(commit: PendingCommit, group_consumer: GroupConsumer) -> str:
        if group_consumer.commit_open:
            return "not sent: an earlier commit is still on its way"
        if group_consumer.assigned is None:
            return f"not sent: nothing was assigned within {commit.timeout.total_seconds():.1f} s"
        missing = sorted(str(p.topic_partition) for p in commit.offsets.keys() - group_consumer.assigned)
        if missing:
            return f"not sent: {few(missing)} not assigned"
        if not commit.sent_in:
            return "not sent: its time was over"
        return "not sent again: there was no new assignment in time"

    @staticmethod
    def _answer(commit: PendingCommit, held: dict[GroupPartition, CommittedOffset], failure: str) -> None:
        commit.answered(CommitAnswer(held=held, failure=failure))


def _verdict(commit: PendingCommit, held: dict[GroupPartition, CommittedOffset]) -> str:
    """Return what is wrong after reading: what Kafka holds counts, not what it said."""
    expected = {p: CommittedOffset(offset=o, metadata=commit.metadata) for p, o in commit.offsets.items()}
    if held == expected:
        return ""
    other = sorted(str(p.topic_partition) for p, row in expected.items() if held.get(p) != row)
    return commit.failure or f"Kafka said yes, but does not hold it: {few(other)}"


def _both(first: str, second: str) -> str:
    return f"{first}; {second}" if first else second
