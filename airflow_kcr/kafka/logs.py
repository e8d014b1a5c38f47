"""What the brokers of a cluster say about its logs (`ports.Logs`), by admin calls that need no group.

A paused consumer's own watermarks are never fresh, hence `list_offsets`: one request to each broker for all of its
partitions, with the last stable offset as the end.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, TypeAlias

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    DescribeClusterResult,
    ListOffsetsResultInfo,
    OffsetSpec,
)

from airflow_kcr.errors import BrokerUnavailable, KcrError
from airflow_kcr.kafka.admin_process import AdminProcess
from airflow_kcr.kafka.calls import AdminCalls, BrokerQuestion, Kind, kind
from airflow_kcr.protocol.observations import LogBounds, TimeAnswer
from airflow_kcr.protocol.values import ClusterId, GroupPartition, Offset, TopicId, TopicName

_EARLIEST: Final[OffsetSpec] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Final[OffsetSpec] = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)

_INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"})
"""Topics of the brokers themselves; a user's topic may well begin with two underscores."""

_NO_RECORD: Final = -1
"""The offset of "no record at or after that time"; any other negative one is no answer at all."""

_TRIES: Final = 4
"""How often offsets are asked for whose topic is another one before and after: once as nothing was known of it before,
and brokers may learn of a new topic one after the other."""

Log: TypeAlias = tuple[str, int]
"""Topic and partition."""

_Instant: TypeAlias = tuple[str, int, int]
"""Topic, partition, milliseconds."""

_Places: TypeAlias = BrokerQuestion[Log, ListOffsetsResultInfo]

SHARED_WITHIN: Final = timedelta(seconds=2)
"""In which a request for several members has to be answered; after it each asks for itself."""

GATHER: Final = 0.01
"""Seconds in which further members may ask after the first one: they do at the same moment (`drive.plan`)."""

_LOG = logging.getLogger(__name__)


class BrokerLogs:
    """The logs of one cluster; any thread may ask. Implements `ports.Logs`.

    Args:
        process: has the settings and the timeout, and describes topics.

    Raises:
        ConfigurationError: the client doesn't take the settings.
    """

    def __init__(self, process: AdminProcess) -> None:
        self._process, self._calls = process, AdminCalls(process.settings, process.timeout)
        self._topic_ids: Mapping[str, TopicId] = {}
        self._ends = SharedEnds(self._ends_of_all, self._ends_of_one, partial(time.sleep, GATHER))

    def close(self) -> None:
        """Let the client go."""
        self._calls.close()

    def bounds(self, partitions: Collection[GroupPartition]) -> dict[GroupPartition, LogBounds]:
        """Return start and last stable offset of each log, read now; one that the cluster doesn't have is absent.

        Offsets and topic id are answers to two questions. Ids that were the same before and after make sure that the
        offsets are of that topic, and not of one that was deleted, or created again, in between.

        Raises:
            BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse; or a topic is created again as
                often as it is asked for.
        """
        if not partitions:
            return {}
        logs = sorted({(str(p.topic), p.partition) for p in partitions})
        topics = sorted({topic for topic, _ in logs})
        for _ in range(_TRIES):
            before = dict(self._topic_ids)
            starts: _Places = BrokerQuestion("the start of", list(logs), _ask_starts, _is_place)
            ends = _about_ends(logs)
            self._answer(starts, ends)
            ids = self._ids(topics)
            if all(before.get(topic) == topic_id for topic, topic_id in ids.items()):
                return {
                    p: LogBounds(
                        start=Offset(starts.found[log].offset),
                        end=Offset(ends.found[log].offset),
                        topic_id=ids[str(p.topic)],
                        leader_epoch=_leader_epoch(ends.found[log]),
                    )
                    for p in partitions
                    if (log := (str(p.topic), p.partition)) in starts.found and log in ends.found
                }
        raise BrokerUnavailable(f"one of {', '.join(topics)} has another topic id each time that it is asked for")

    def _ids(self, topics: Collection[str]) -> dict[str, TopicId]:
        """Return the ids that topics have now, and remember them; that of a topic that is not there is empty."""
        found = self._described(topics)
        ids = {topic: found[topic][0] if topic in found else TopicId("") for topic in topics}
        # Replaced, not changed: other threads may be reading what was known before they asked.
        self._topic_ids = {**self._topic_ids, **ids}
        return ids

    def _described(self, topics: Collection[str]) -> dict[str, tuple[TopicId, int]]:
        """Return the id of each topic that is there, and how many partitions it has."""
        found = self._process.read("topics", rows=[[topic, 0, 0] for topic in sorted(topics)])
        return {topic: (TopicId(topic_id), partitions) for topic, (topic_id, partitions) in found.items()}

    def stable_ends(self, partitions: Collection[GroupPartition]) -> dict[GroupPartition, Offset]:
        """Return the last stable offset of each log, read now; one that the cluster doesn't have is absent.

        Threads that ask at the same moment are answered by one request.

        Raises:
            BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse.
        """
        return _by_partition(partitions, self._ends.of)

    def _ends_of_all(self, logs: Collection[Log]) -> Mapping[Log, Offset] | None:
        """Return where each log ends; None: not every one has an answer, or not soon."""
        question = _about_ends(logs)
        try:
            self._calls.answer(question, timeout=SHARED_WITHIN)
        except KcrError as error:
            _LOG.debug("each member asks for its own ends of logs: %s", error)
            return None
        return None if question.failed else _found(question)

    def _ends_of_one(self, logs: Collection[Log]) -> Mapping[Log, Offset]:
        """Return where each log ends; one that the cluster doesn't have is absent."""
        question = _about_ends(logs)
        self._answer(question)
        return _found(question)

    def high_watermarks(self, partitions: Collection[GroupPartition]) -> dict[GroupPartition, Offset]:
        """Return where each log ends with open transactions counted; one that the cluster doesn't have is absent.

        Raises:
            BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse.
        """
        return _by_partition(partitions, self._high_watermarks)

    def _high_watermarks(self, logs: Collection[Log]) -> Mapping[Log, Offset]:
        question: _Places = BrokerQuestion("the high watermark of", sorted(logs), _ask_highs, _is_place)
        self._answer(question)
        return _found(question)

    def first_at_or_after(self, instants: Mapping[GroupPartition, datetime]) -> dict[GroupPartition, TimeAnswer]:
        """Return each log's first record at or after an instant (read_committed), with its own timestamp.

        Kafka counts in milliseconds; an instant between two is taken for the later one. A partition that the cluster
        doesn't have is absent.

        Raises:
            BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse.
        """
        if not instants:
            return {}
        keys: dict[GroupPartition, _Instant] = {p: (p.topic, p.partition, _ms(i)) for p, i in instants.items()}
        times: BrokerQuestion[_Instant, ListOffsetsResultInfo] = BrokerQuestion(
            "the offset by time of", sorted(set(keys.values())), _ask_times, _is_place_or_none
        )
        self._answer(times)
        return {p: _time_answer(times.found[key]) for p, key in keys.items() if key in times.found}

    def topics(self, names: Collection[TopicName] = ()) -> Mapping[TopicName, int]:
        """Return the topics that exist, internal ones left out, with how many partitions each has.

        Args:
            names: which ones; none named: all of the cluster.

        Raises:
            BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse.
        """
        if names:
            described = self._described(names)
            return {TopicName(name): partitions for name, (_, partitions) in sorted(described.items())}
        return {
            TopicName(name): count for name, count in sorted(self._partition_counts().items()) if name not in _INTERNAL
        }

    def _partition_counts(self) -> dict[str, int]:
        """Return all topics that are there, with how many partitions each has, and renew what the client remembers."""
        found = self._calls.blocking("the list of topics", lambda admin, left: admin.list_topics(timeout=left))
        return {
            name: len(topic.partitions)
            for name, topic in found.topics.items()
            if topic.error is None or kind(topic.error) is not Kind.ABSENT
        }

    def cluster_id(self) -> ClusterId:
        """Return what the cluster calls itself, asked now: what the client remembers may be of another one.

        Raises:
            BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse.
        """
        asked: BrokerQuestion[str, DescribeClusterResult] = BrokerQuestion("the id of", ["the cluster"], _ask_cluster)
        self._answer(asked)
        return ClusterId(str(asked.found["the cluster"].cluster_id))

    def _answer(self, *questions: BrokerQuestion[Any, Any]) -> None:
        """Answer all questions; a key that is still not answered is one of a log that the cluster does not have.

        The client remembers for minutes how many partitions a topic has, and denies those that were added since. So
        what is missing is looked up, and if it is there, that memory renewed and the question asked again.
        """
        self._calls.answer(*questions)
        missing = [(q, key) for q in questions for key, error in q.failed.items() if kind(error) is Kind.ABSENT]
        topics = {key[0] for _, key in missing if isinstance(key, tuple)}
        described = self._described(topics) if topics else {}
        there = [(q, key) for q, key in missing if key[0] in described and key[1] < described[key[0]][1]]
        if there:
            # Of all topics, for the sake of that memory. Not for one that is gone: it is asked for as long as it is.
            self._partition_counts()
            for question in questions:
                question.reopen([key for q, key in there if q is question])
            self._calls.answer(*questions)
        for question in questions:
            for key, error in question.failed.items():
                if kind(error) is not Kind.ABSENT:
                    raise KcrError(f"{question.what} {key}: {self._calls.told(error)}")


class _Asked:
    """What is asked for together, and what became of it."""

    def __init__(self, logs: frozenset[Log]) -> None:
        self.logs = logs
        self.found: Future[Mapping[Log, Offset] | None] = Future()


class SharedEnds:
    """Ends of logs that several threads ask for at the same moment, each for those of its member.

    Where there is no answer to all of it, each asks for itself; and goes on so while its own logs are not all answered.
    So a log that loses its leader keeps the other members waiting once, and not for as long as it has none.

    Args:
        of_all: answers for the logs of several; None: it can't.
        of_one: answers for those of one.
        gather: waits a moment for others to ask.
    """

    def __init__(
        self,
        of_all: Callable[[frozenset[Log]], Mapping[Log, Offset] | None],
        of_one: Callable[[frozenset[Log]], Mapping[Log, Offset]],
        gather: Callable[[], None],
    ) -> None:
        self._of_all, self._of_one, self._gather = of_all, of_one, gather
        self._lock = threading.Lock()
        self._open: _Asked | None = None
        self._alone: frozenset[Log] = frozenset()

    def of(self, logs: frozenset[Log]) -> Mapping[Log, Offset]:
        """Return where logs end, asked after this call; one that the cluster doesn't have is absent.

        Those of others who asked may be among them.

        Raises:
            BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse.
        """
        found = self._together(logs) if logs.isdisjoint(self._alone) else None
        return self._by_itself(logs) if found is None else found

    def _by_itself(self, logs: frozenset[Log]) -> Mapping[Log, Offset]:
        found: Mapping[Log, Offset] = {}
        try:
            found = self._of_one(logs)
        finally:
            with self._lock:
                self._alone = self._alone - logs if logs <= found.keys() else self._alone | logs
        return found

    def _together(self, logs: frozenset[Log]) -> Mapping[Log, Offset] | None:
        with self._lock:
            asked, is_first = self._open, self._open is None
            if asked is None:
                asked = self._open = _Asked(logs)
            asked.logs |= logs
        if is_first:
            return self._ask(asked)
        try:
            return asked.found.result(2 * SHARED_WITHIN.total_seconds())
        except TimeoutError:
            return None

    def _ask(self, asked: _Asked) -> Mapping[Log, Offset] | None:
        try:
            self._gather()
        finally:
            with self._lock:
                self._open = None
        found: Mapping[Log, Offset] | None = None
        try:
            found = self._of_all(asked.logs)
        finally:
            asked.found.set_result(found)
        return found


def _about_ends(logs: Collection[Log]) -> _Places:
    return BrokerQuestion("the end of", sorted(logs), _ask_ends, _is_place)


def _found(question: _Places) -> Mapping[Log, Offset]:
    return {log: Offset(row.offset) for log, row in question.found.items()}


def _by_partition(
    partitions: Collection[GroupPartition], offsets: Callable[[frozenset[Log]], Mapping[Log, Offset]]
) -> dict[GroupPartition, Offset]:
    logs = {p: (str(p.topic), p.partition) for p in partitions}
    found = offsets(frozenset(logs.values())) if logs else {}
    return {p: found[log] for p, log in logs.items() if log in found}


def _ask_starts(admin: AdminClient, logs: list[Log], left: float) -> dict[Log, Future[ListOffsetsResultInfo]]:
    return _listed(admin, dict.fromkeys(logs, _EARLIEST), left)


def _ask_ends(admin: AdminClient, logs: list[Log], left: float) -> dict[Log, Future[ListOffsetsResultInfo]]:
    return _listed(admin, dict.fromkeys(logs, _LATEST), left)


def _ask_highs(admin: AdminClient, logs: list[Log], left: float) -> dict[Log, Future[ListOffsetsResultInfo]]:
    return _listed(admin, dict.fromkeys(logs, _LATEST), left, IsolationLevel.READ_UNCOMMITTED)


def _ask_times(
    admin: AdminClient, instants: list[_Instant], left: float
) -> dict[_Instant, Future[ListOffsetsResultInfo]]:
    asked: dict[_Instant, Future[ListOffsetsResultInfo]] = {}
    for ms in sorted({ms for _, _, ms in instants}):
        specs = {(topic, number): OffsetSpec.for_timestamp(ms) for topic, number, at in instants if at == ms}
        asked |= {(*log, ms): future for log, future in _listed(admin, specs, left).items()}
    return asked


def _listed(
    admin: AdminClient,
    specs: Mapping[Log, OffsetSpec],
    left: float,
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
) -> dict[Log, Future[ListOffsetsResultInfo]]:
    rows = {TopicPartition(topic, number): spec for (topic, number), spec in specs.items()}
    asked = admin.list_offsets(rows, isolation_level=isolation, request_timeout=left)
    return {(row.topic, row.partition): future for row, future in asked.items()}


def _ask_cluster(admin: AdminClient, keys: list[str], left: float) -> dict[str, Future[DescribeClusterResult]]:
    return {key: admin.describe_cluster(request_timeout=left) for key in keys}


def _is_place(found: ListOffsetsResultInfo) -> bool:
    return found.offset >= 0


def _is_place_or_none(found: ListOffsetsResultInfo) -> bool:
    return found.offset >= 0 or found.offset == _NO_RECORD


def _leader_epoch(found: ListOffsetsResultInfo) -> int:
    epoch = found.leader_epoch
    return -1 if epoch is None else int(epoch)


def _ms(instant: datetime) -> int:
    """Return milliseconds since 1970, rounded up; never negative: negative "times" mean other things to Kafka."""
    return max(0, -((_EPOCH - instant) // _MILLISECOND))


def _time_answer(found: ListOffsetsResultInfo) -> TimeAnswer:
    if found.offset == _NO_RECORD:
        return TimeAnswer(offset=None)
    return TimeAnswer(offset=Offset(found.offset), found=_EPOCH + found.timestamp * _MILLISECOND)
