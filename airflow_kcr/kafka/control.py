"""The control consumer: a member's place in its group (docs/explanation/consistent-regions.md).

Since client 2.16 a consumer that is polled in one thread starves every other thread that calls it. So the event thread
alone has the client; the others hand it commands. It waits for commands, not for the client: a command is seen at once,
and the client is served every `IDLE` seconds, or without a pause while an answer of Kafka is awaited.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Final

from confluent_kafka import KafkaException

from airflow_kcr.errors import BrokerUnavailable, CredentialsRefused, ProtocolError
from airflow_kcr.kafka import failures
from airflow_kcr.kafka.commits import READ_SLICE, Commits, PendingCommit
from airflow_kcr.kafka.failures import Kind
from airflow_kcr.kafka.group_consumer import (
    Complaint,
    GroupConsumer,
    GroupConsumerAssigned,
    GroupConsumerLost,
    GroupConsumerWaits,
    News,
)
from airflow_kcr.kafka.settings import bootstrap_servers, without_secrets
from airflow_kcr.ports import CommitAnswer, CommittedOffset, MembershipListener, always
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.values import GroupId, GroupPartition
from airflow_kcr.settings import KafkaSettings

IDLE: Final = 0.2
"""Seconds between two polls when nothing is awaited: 0.05 % of a core, and how late a rebalance is heard of at most."""

AWAITING: Final = 0.001
"""Seconds that one poll waits for what is awaited: how late a command is seen meanwhile."""

EAGER_FOR: Final = 2.0
"""Seconds after a join or revoke in which the assignment is awaited like an answer; after that nothing hurries.

Where the broker decides, none that came by then is one without partitions.
"""

DRAIN_SHARE: Final = 1 / 3
"""The share of the poll interval in which nothing may run any more on partitions that Kafka takes back.

Kafka waits for the whole interval before it throws the member out. The interval is derived as three drains.
"""

_MAX_POLL: Final = "300000"
"""The client's own."""

DRAIN_SLICE: Final = 0.05
"""Seconds after which a wait for that sees that the member is to leave or end."""

ASK_AGAIN: Final = 1.0
"""Seconds between two clients that ask for a static member's place while the group keeps it for one of before."""

LEAVE_TIMEOUT: Final = 5.0
"""Seconds that leaving may take: the client itself gives its LeaveGroup no more."""

CLOSE_TIMEOUT: Final = timedelta(seconds=6)
"""How long a close is waited for: the client's own takes 5 s where a broker hangs."""

_log = logging.getLogger(__name__)


# Reads a group's committed offsets that other threads wait for: each in slices, so that the member stays polled.


@dataclass(frozen=True, slots=True)
class CommittedRead:
    """One request, wanted until `by` (monotonic seconds)."""

    partitions: frozenset[GroupPartition]
    by: float
    result: Future[Mapping[GroupPartition, CommittedOffset]] = field(default_factory=Future)


class Reads:
    """The wanted requests, oldest first; used by the event thread, but for `unavailable`.

    Args:
        settings: for the addresses in messages.
        group: whose offsets.
    """

    def __init__(self, settings: KafkaSettings, group: GroupId) -> None:
        self._settings, self._group = settings, group
        self._queue: deque[CommittedRead] = deque()

    @property
    def busy(self) -> bool:
        """Whether a caller waits."""
        return bool(self._queue)

    def add(self, read: CommittedRead) -> None:
        """Add a request."""
        self._queue.append(read)

    def give_up(self, why: str) -> None:
        """Tell every waiting caller that there will be no answer."""
        while self._queue:
            self._queue.popleft().result.set_exception(self.unavailable(why))

    def step(self, group_consumer: GroupConsumer) -> None:
        """Make one attempt, for the oldest; what may heal is tried again with the next step."""
        if not self._queue:
            return
        read = self._queue[0]
        left = timedelta(seconds=read.by - time.monotonic())
        try:
            if left <= timedelta(0):
                raise self.unavailable("no answer in time")
            read.result.set_result(group_consumer.committed(read.partitions, min(READ_SLICE, left)))
        except BrokerUnavailable as late:
            read.result.set_exception(late)
        except KafkaException as exception:
            error = failures.of(exception)
            why = failures.described(error, self._settings)
            match failures.kind(error):
                case Kind.RETRIABLE:
                    return
                case Kind.REFUSED:
                    refused = f"reading the committed offsets of group {self._group}: {why}"
                    read.result.set_exception(CredentialsRefused(refused))
                case _:
                    read.result.set_exception(self.unavailable(why))
        self._queue.popleft()

    def unavailable(self, why: str) -> BrokerUnavailable:
        """Return the error for a request without an answer."""
        return BrokerUnavailable(
            f"the brokers at {bootstrap_servers(self._settings)} did not tell the committed offsets of group "
            f"{self._group}: {why}"
        )


class ControlConsumer:
    """A member's place in its group; implements `ports.Membership`.

    The first client is made here, so that its maker gets the error if a setting is not accepted. Nothing is joined
    before `join`.

    Args:
        settings: from `settings.member_settings`.
        group: the group's id.
        topics: from `settings.subscription`.
        listener: hears what happens, in the event thread.

    Raises:
        ConfigurationError: the client doesn't take the settings, or its named login gets no token.
        BrokerUnavailable: who gives tokens does not answer.
    """

    def __init__(
        self, settings: KafkaSettings, *, group: GroupId, topics: Sequence[str], listener: MembershipListener
    ) -> None:
        self._settings, self._group, self._topics, self._listener = settings, group, tuple(topics), listener
        self._group_consumer: GroupConsumer | None = GroupConsumer(settings, group, self._drain)
        self._drains_within = int(settings.get("max.poll.interval.ms", _MAX_POLL)) / 1000 * DRAIN_SHARE
        self._going = threading.Event()
        self._asks_again_at: float | None = None
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._reads = Reads(settings, group)
        self._commits = Commits(group, settings)
        self._joined_at = 0.0
        self._muted = threading.Event()
        self._ends_by: float | None = None
        """When the caller of `end` stops waiting; None: the end was not asked for."""

        self._thread = threading.Thread(target=self._run, name=f"kcr-events-{group}", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"ControlConsumer({self._group!r})"

    # -- for every thread ------------------------------------------------------------------------------------------

    def join(self) -> None:
        """Subscribe, every partition paused; also again after having left. Where it is joined, nothing happens."""
        self._commands.put(self._join)

    def leave(self) -> None:
        """Leave the group so that its partitions move at once: unsubscribe, poll to the revoke, close.

        Those of a static member move only when its session is over, where the broker decides: the client can't say
        there that it leaves for good.
        """
        self._going.set()
        self._commands.put(self._leave)

    def close_keeping_slot(self) -> None:
        """Close without leaving: a static member's partitions wait for it until its session is over."""
        self._going.set()
        self._commands.put(self._close_keeping_slot)

    def commit(
        self,
        offsets: OffsetMap,
        metadata: str,
        timeout: timedelta,
        answered: Callable[[CommitAnswer], None],
        may_write: Callable[[], bool] = always,
    ) -> None:
        """Commit in one request and read back; `answered` is called once, in the event thread, within the timeout.

        It waits for an assignment where there is none; a partition that is not assigned, an empty map and a partition
        of another group are a failure, and nothing is sent; nor is it once `may_write` says no. Not called any more
        once the event thread has ended.
        """
        commit = PendingCommit(
            offsets=offsets,
            metadata=metadata,
            asked_at=time.monotonic(),
            timeout=timeout,
            answered=answered,
            may_write=may_write,
        )
        self._commands.put(partial(self._take_commit, commit))

    def committed(
        self, partitions: frozenset[GroupPartition], timeout: timedelta
    ) -> Mapping[GroupPartition, CommittedOffset]:
        """Return what Kafka holds for the group, whether joined or not; one without a committed offset is absent.

        Raises:
            BrokerUnavailable: there was no answer in time.
            CredentialsRefused: the brokers don't let the client read them.
        """
        seconds = timeout.total_seconds()
        if not self._thread.is_alive():
            raise self._reads.unavailable("the member has ended")
        read = CommittedRead(partitions, time.monotonic() + seconds)
        self._commands.put(partial(self._take_read, read))
        try:
            return read.result.result(seconds)
        except TimeoutError:
            raise self._reads.unavailable(f"no answer within {seconds:.1f} s") from None

    def end(self, timeout: timedelta) -> bool:
        """End the event thread, leaving nothing to be heard; return whether it ended in time.

        A client that is still open is closed, a static member keeps its slot. Where that hangs, the thread is left
        behind: it doesn't keep the process alive.
        """
        self._going.set()
        self._commands.put(partial(self._take_end, time.monotonic() + timeout.total_seconds()))
        self._thread.join(timeout.total_seconds())
        self._muted.set()
        return not self._thread.is_alive()

    # -- the event thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._ends_by is None:
                self._turn()
        except Exception as error:  # noqa: BLE001 - the thread's last word: without it the member would wait for ever
            why = without_secrets(f"{type(error).__name__}: {error}", self._settings)
            _log.error("The event thread of group %s failed: %s", self._group, why)
            failure = ProtocolError(f"the event thread of group {self._group} failed: {why}")
            failure.__cause__ = error
            self._report(partial(self._listener.failed, failure))
        finally:
            self._commits.give_up("the member has ended")
            self._close(self._until_end())

    def _turn(self) -> None:
        """Run the commands that wait, serve the client, and do what can be done next."""
        waits = 0.0
        pause = 0.0 if self._awaits_answer else IDLE  # for a command, before the client is served
        try:
            command = self._commands.get(timeout=None if self._group_consumer is None else pause)
        except queue.Empty:
            waits = AWAITING if self._awaits_answer else 0.0
        else:
            command()
        if self._ends_by is None and self._group_consumer is not None:
            self._serve(self._group_consumer, waits)

    @property
    def _awaits_answer(self) -> bool:
        group_consumer = self._group_consumer
        if group_consumer is None:
            return False
        joining = (
            group_consumer.subscribed
            and group_consumer.assigned is None
            and time.monotonic() - self._joined_at < EAGER_FOR
        )
        return joining or self._commits.busy or self._reads.busy

    def _serve(self, group_consumer: GroupConsumer, waits: float) -> None:
        group_consumer.poll(waits)
        if time.monotonic() - self._joined_at >= EAGER_FOR:
            group_consumer.has_nothing()
        self._deliver(group_consumer.news())
        if group_consumer.is_adrift:
            self._group_consumer = self._successor(group_consumer)
            self._join()
            return
        if self._asks_again_at is not None and time.monotonic() >= self._asks_again_at:
            self._join()
            return
        self._commits.step(group_consumer, time.monotonic())
        self._reads.step(group_consumer)

    def _take_end(self, by: float) -> None:
        self._ends_by = by

    def _take_read(self, read: CommittedRead) -> None:
        self._group_consumer_to_use()
        self._reads.add(read)

    def _take_commit(self, commit: PendingCommit) -> None:
        self._commits.add(commit)
        if self._group_consumer is None:
            self._commits.give_up("the member is not in its group")

    def _group_consumer_to_use(self) -> GroupConsumer:
        if self._group_consumer is None:
            self._group_consumer = self._made()
        return self._group_consumer

    def _made(self) -> GroupConsumer:
        """Return another client; while there is no token to log in with, which may heal, it is asked for again."""
        while True:
            try:
                return GroupConsumer(self._settings, self._group, self._drain)
            except (BrokerUnavailable, CredentialsRefused) as error:
                self._complain(error.message)
                if self._going.wait(ASK_AGAIN):
                    raise

    def _join(self) -> None:
        self._asks_again_at = None
        if self._group_consumer is not None and self._group_consumer.fatal:
            self._group_consumer = self._successor(self._group_consumer)
        group_consumer = self._group_consumer_to_use()
        if not group_consumer.subscribed:
            self._joined_at = time.monotonic()
            group_consumer.subscribe(self._topics)

    def _successor(self, old: GroupConsumer) -> GroupConsumer:
        """Return another client for the same slot; the old one is left behind, as its commit may keep it from closing.

        What became of that commit is read when its time is nearly over.
        """
        old.close(timedelta(0))
        fresh = self._made()
        fresh.assignments, fresh.lost_at = old.assignments, old.lost_at
        return fresh

    def _leave(self) -> None:
        """Leave, and say so when the group has let the client go, or the time for it is over."""
        group_consumer = self._group_consumer
        self._commits.give_up("the member left its group")
        if group_consumer is not None and group_consumer.subscribed:
            was_assigned = group_consumer.assigned is not None
            group_consumer.unsubscribe()
            until = time.monotonic() + LEAVE_TIMEOUT
            while not group_consumer.fatal and time.monotonic() < until and not group_consumer.has_left:
                group_consumer.poll(AWAITING)
                self._deliver(group_consumer.news())
            if was_assigned and not group_consumer.fatal and not group_consumer.has_left:
                self._complain(f"the group did not answer a leave within {LEAVE_TIMEOUT:.0f} s")
        self._close(CLOSE_TIMEOUT)
        self._report(self._listener.left)

    def _close_keeping_slot(self) -> None:
        self._commits.give_up("the member closed its consumer")
        self._close(CLOSE_TIMEOUT)
        self._report(self._listener.left)

    def _close(self, bound: timedelta) -> None:
        group_consumer, self._group_consumer = self._group_consumer, None
        self._asks_again_at = None
        self._going.clear()
        self._reads.give_up("the consumer was closed")
        if group_consumer is not None and not group_consumer.close(bound):
            self._complain(f"the client did not close within {bound.total_seconds():.0f} s and is left behind")

    def _until_end(self) -> timedelta:
        if self._ends_by is None:
            return CLOSE_TIMEOUT
        return max(timedelta(0), timedelta(seconds=self._ends_by - time.monotonic()) * 0.9)

    def _deliver(self, news: Sequence[News]) -> None:
        for item in news:
            match item:
                case GroupConsumerAssigned(partitions) if partitions is not None:
                    self._report(partial(self._listener.assigned, partitions))
                case GroupConsumerAssigned():
                    self._joined_at = time.monotonic()
                    self._report(self._listener.revoked)
                case GroupConsumerLost(why):
                    self._report(partial(self._listener.fenced, why))
                case GroupConsumerWaits(why):
                    self._asks_again_at = time.monotonic() + ASK_AGAIN
                    self._complain(f"{why}; asked again until that one's session is over")
                case Complaint(text):
                    self._complain(text)

    def _drain(self, partitions: frozenset[GroupPartition]) -> None:
        """Wait until the member runs nothing any more on partitions that Kafka takes; inside of the client's poll."""
        if self._group_consumer is not None:
            self._deliver(self._group_consumer.news())
        released = threading.Event()
        self._report(partial(self._listener.revoking, partitions, released.set))
        until = time.monotonic() + self._drains_within
        while not released.wait(DRAIN_SLICE) and not self._going.is_set():
            if time.monotonic() >= until:
                limit = f"{self._drains_within:.0f} s"
                self._complain(f"work on {len(partitions)} revoked partition(s) did not end within {limit}")
                return

    def _complain(self, text: str) -> None:
        self._report(partial(self._listener.troubled, text))

    def _report(self, say: Callable[[], None]) -> None:
        if not self._muted.is_set():
            say()
