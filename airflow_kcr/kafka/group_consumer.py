"""One client of the control consumer, from its creation to its close: a group consumer in the group.

Only one thread at a time touches it: the event thread, until it is handed to a thread that closes it. The client's
callbacks run inside `poll` and record; what they recorded is taken with `news`. Only the one that gives a part of the
assignment back waits, until nothing runs on it any more: Kafka gives it to no other member before the callback returns.

An assignment is set arithmetic in both of Kafka's protocols. In the classic one each change takes everything and gives
everything; in the broker's own it takes some partitions, gives some, and leaves the rest, paused as they are.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeAlias

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from airflow_kcr.kafka import failures
from airflow_kcr.kafka.failures import Kind
from airflow_kcr.kafka.settings import make_consumer
from airflow_kcr.ports import CommittedOffset
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.rules import GroupProtocol
from airflow_kcr.protocol.values import GroupId, GroupPartition, Offset, TopicName
from airflow_kcr.settings import KafkaSettings


@dataclass(frozen=True, slots=True)
class GroupConsumerAssigned:
    """What is assigned is these partitions now; they are paused."""

    partitions: frozenset[GroupPartition] | None
    """None: the assignment was revoked, or lost."""


@dataclass(frozen=True, slots=True)
class GroupConsumerLost:
    """The client is fatally fenced; it will never be of use again."""

    why: str


@dataclass(frozen=True, slots=True)
class GroupConsumerWaits:
    """The group keeps this static member's place for a client of before, until that one's session is over.

    Only in the broker's own protocol; in the classic one the client of before is fenced. This one is of no use any
    more: another has to ask again.
    """

    why: str


@dataclass(frozen=True, slots=True)
class Complaint:
    """Something that may heal by itself; such come by the hundred while a broker is away."""

    text: str


SETTLE_SHARE: Final = 0.6
"""The share of a close's time in which an assignment that is on its way has to come."""

SETTLE_POLL: Final = 0.1
"""Seconds of one poll for it."""

News: TypeAlias = GroupConsumerAssigned | GroupConsumerLost | GroupConsumerWaits | Complaint

_UNRELEASED: Final = KafkaError(KafkaError.UNRELEASED_INSTANCE_ID).str()
"""How the client's fatal error, which has no other code than that it is fatal, says that a static id is in use."""


@dataclass(frozen=True, slots=True)
class CommitResponse:
    """What a broker said to a commit: an error of the whole, and those of single partitions."""

    error: KafkaError | None
    partitions: Mapping[TopicPartition, KafkaError]

    @property
    def kinds(self) -> frozenset[Kind]:
        """What can be done about it; empty: Kafka said yes to all of it."""
        errors = (*self.partitions.values(), *([self.error] if self.error else []))
        return frozenset(failures.kind(error) for error in errors)


def _at_once(_partitions: frozenset[GroupPartition]) -> None:
    """Let partitions go without waiting for anything."""


def _abandon(client: Consumer) -> None:
    """Leave a client behind for as long as the process lives: its destructor would close it after all."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))


class GroupConsumer:
    """A consumer that takes part in its group and fetches nothing.

    Args:
        settings: from `settings.member_settings`.
        group: what partitions are keyed by.
        drain: called inside of `poll` with partitions that Kafka takes from the others; returns when nothing runs on
            them any more, or it has taken too long.

    Raises:
        ConfigurationError: the client doesn't take the settings.
    """

    def __init__(
        self, settings: KafkaSettings, group: GroupId, drain: Callable[[frozenset[GroupPartition]], None] = _at_once
    ) -> None:
        self._settings, self._group, self._drain = settings, group, drain
        self._is_incremental = settings.get("group.protocol") == GroupProtocol.CONSUMER
        self._news: deque[News] = deque()
        self._answer: CommitResponse | None = None
        self._client = make_consumer(settings, self._complain, self._on_commit)
        self.assigned: frozenset[GroupPartition] | None = None
        """None while nothing is assigned: not yet, all of it revoked, or lost."""
        self.assignments = 0
        """Counts the assignments."""
        self.fatal = False
        self.subscribed = False
        self.commit_open = False
        """Whether a commit was sent and is not answered: while it is, `close` may take as long as the broker."""
        self.lost_at = float("-inf")
        """When it was heard last that the session was over: others may have had the partitions, and committed."""
        self.is_adrift = False
        """Whether a static client lost its place with a commit on its way: it must not be polled again. It would join
        once more, and the old commit that follows would be taken for that of another process and fence it."""

    def subscribe(self, topics: Sequence[str]) -> None:
        """Ask to join the group; what comes of it is news.

        Raises:
            KafkaException: the client refuses.
        """
        self._client.subscribe(
            list(topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )
        self.subscribed = True

    def has_nothing(self) -> None:
        """Take it that nothing is assigned, where the client would have said something by now.

        Where the broker decides, the client does not tell of an assignment without partitions.
        """
        if self._is_incremental and self.subscribed and self.assigned is None and not self.fatal:
            self._holds(frozenset())

    def unsubscribe(self) -> None:
        """Give the assignment back and leave the group, static or not; done when polled to `has_left`."""
        try:
            self._client.unsubscribe()
        except KafkaException as exception:
            # Only a client that is fatally fenced refuses, and that one is out already.
            self._complain(failures.of(exception))
        self.subscribed = False

    @property
    def has_left(self) -> bool:
        """Whether the group has let this client go: only then does a static member's place move at once.

        Where the broker decides, the client leaves as soon as it has given everything back, and keeps its id. A static
        member's place is kept for it all the same: this client has no other way to leave.
        """
        return not self.assigned if self._is_incremental else self.assigned is None and not self._client.memberid()

    def poll(self, wait: float) -> None:
        """Serve the client until there is nothing more to hear, waiting up to `wait` seconds for something."""
        message = self._client.poll(wait)
        while message is not None:
            self._note(message)
            message = None if self.is_adrift else self._client.poll(0)

    def news(self) -> tuple[News, ...]:
        """Take what was recorded."""
        news = tuple(self._news)
        self._news.clear()
        return news

    def send_commit(self, offsets: OffsetMap, metadata: str) -> None:
        """Send a commit; its answer is taken with `commit_answer`, and no other may be sent before.

        Raises:
            KafkaException: it was not sent.
        """
        rows = [TopicPartition(p.topic, p.partition, o, metadata=metadata) for p, o in offsets.items()]
        self._answer = None
        self._client.commit(offsets=rows, asynchronous=True)
        self.commit_open = True

    def commit_answer(self) -> CommitResponse | None:
        """Return the answer to the last commit; None while there is none."""
        return self._answer

    def committed(
        self, partitions: Collection[GroupPartition], timeout: timedelta
    ) -> dict[GroupPartition, CommittedOffset]:
        """Return what Kafka holds for the group; a partition is absent if that is nothing, or not known.

        Raises:
            KafkaException: there was no answer in time, or it was a refusal.
        """
        asked = [TopicPartition(p.topic, p.partition) for p in partitions]
        held = self._client.committed(asked, timeout=timeout.total_seconds())
        return {
            self._key(row): CommittedOffset(offset=Offset(row.offset), metadata=row.metadata or "")
            for row in held
            if row.error is None and row.offset >= 0
        }

    def close(self, bound: timedelta) -> bool:
        """Close the client; a static member keeps its place until its session is over, a dynamic one leaves.

        The client can't be told how long that may take, so it is done in a thread of its own, and left behind with it
        where it takes longer. The caller must not touch the group consumer afterwards.

        An assignment that comes while the client closes hangs it for ever, and every thread of Python with it
        (librdkafka's `assign` waits for an answer that a closing group does not give, and the client holds the
        interpreter's lock meanwhile). So one that is on its way is taken first; where it does not come in time, or the
        client must not be polled, it is not closed but abandoned: its session ends without it.

        Returns:
            Whether it is closed.
        """
        if not self.fatal and not self._is_settled(bound * SETTLE_SHARE):
            _abandon(self._client)
            return False
        closing = threading.Thread(target=self._client.close, name=f"kcr-close-{self._group}", daemon=True)
        closing.start()
        closing.join(bound.total_seconds())
        return not closing.is_alive()

    def _is_settled(self, bound: timedelta) -> bool:
        """Take the assignment that is on its way, if one is; return whether none is any more.

        Where the broker decides, there may always be one on its way. Having left, the client is given no more; a static
        member's place is kept for it then, too.
        """
        if self.is_adrift:
            return False
        until = time.monotonic() + bound.total_seconds()
        if self._is_incremental and self.subscribed:
            self.unsubscribe()
        self.poll(0)
        while self._is_awaited and not self.fatal and not self.is_adrift:
            left = until - time.monotonic()
            if left <= 0:
                return False
            self.poll(min(left, SETTLE_POLL))
        return not self.is_adrift

    @property
    def _is_awaited(self) -> bool:
        """Whether the client has yet to say something: an assignment once it has subscribed, or that it let it go."""
        return self.assigned is None if self.subscribed else self._is_incremental and bool(self.assigned)

    # -- what the client calls, inside of poll ---------------------------------------------------------------------

    def _on_assign(self, client: Consumer, partitions: list[TopicPartition]) -> None:
        # With an explicit offset the client fetches no position, about which it would complain: there need not be one,
        # and auto.offset.reset is an error. Nothing is read from there: paused in the same breath.
        rows = [TopicPartition(p.topic, p.partition, 0) for p in partitions]
        if self._is_incremental:
            client.incremental_assign(rows)
        else:
            client.assign(rows)
        client.pause(rows)
        self.assignments += 1
        self._holds(self._keys(partitions) | (self.assigned or frozenset()))

    def _on_revoke(self, client: Consumer, partitions: list[TopicPartition]) -> None:
        if not self._is_incremental or not self.subscribed or self.assigned is None:
            self._let_go(client, partitions)
            return
        taken = self._keys(partitions)
        self._drain(taken)
        client.incremental_unassign(partitions)
        self._holds(self.assigned - taken)

    def _on_lost(self, client: Consumer, partitions: list[TopicPartition]) -> None:
        self.lost_at = time.monotonic()
        self.is_adrift = not self._is_incremental and self.commit_open and "group.instance.id" in self._settings
        self._let_go(client, partitions)

    def _holds(self, partitions: frozenset[GroupPartition]) -> None:
        """Note what is assigned now; a part of an assignment that changes nothing is no news."""
        if partitions != self.assigned:
            self._news.append(GroupConsumerAssigned(partitions))
        self.assigned = partitions

    def _let_go(self, client: Consumer, partitions: list[TopicPartition]) -> None:
        """Give all of the assignment back."""
        if self._is_incremental:
            client.incremental_unassign(partitions)
        else:
            client.unassign()
        self.assigned = None
        self._news.append(GroupConsumerAssigned(None))

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        self.commit_open = False
        self._answer = CommitResponse(error, {p: p.error for p in partitions if p.error is not None})
        if error is not None and Kind.FENCED in self._answer.kinds:
            self._fence(error)

    # -- what poll returns -----------------------------------------------------------------------------------------

    def _note(self, message: Message) -> None:
        error = message.error()
        if error is None:
            self._news.append(Complaint("the control consumer got a record of a paused partition; ignored"))
        elif failures.kind(error) is Kind.FENCED and _UNRELEASED in error.str():
            self.assigned, self.fatal = None, True
            self._news.append(GroupConsumerWaits(self._described(error)))
        elif failures.kind(error) is Kind.FENCED:
            self._fence(error)
        else:
            self._complain(error)

    def _fence(self, error: KafkaError) -> None:
        """Note that the client is lost: said once and by no callback, and the assignment goes without a revoke."""
        self.assigned = None
        if not self.fatal:
            self.fatal, self.lost_at = True, time.monotonic()
            self._news.append(GroupConsumerLost(self._described(error)))

    def _complain(self, error: KafkaError) -> None:
        self._news.append(Complaint(self._described(error)))

    def _described(self, error: KafkaError) -> str:
        return failures.described(error, self._settings)

    def _keys(self, partitions: Collection[TopicPartition]) -> frozenset[GroupPartition]:
        return frozenset(self._key(p) for p in partitions)

    def _key(self, partition: TopicPartition) -> GroupPartition:
        return GroupPartition(self._group, TopicName(partition.topic), partition.partition)
