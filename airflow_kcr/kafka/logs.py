"""What the brokers of a cluster say about its logs (`ports.Logs`), by admin calls that need no group."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, TypeAlias

from confluent_kafka import IsolationLevel

from airflow_kcr.errors import BrokerUnavailable, KcrError
from airflow_kcr.kafka import questions
from airflow_kcr.kafka.admin_process import AdminProcess
from airflow_kcr.kafka.questions import EARLIEST, LATEST, NO_RECORD, LogOffset, LogPlace
from airflow_kcr.protocol.observations import LogBounds, TimeAnswer
from airflow_kcr.protocol.values import ClusterId, GroupPartition, Offset, TopicId, TopicName

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)

_INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"})
"""Topics of the brokers themselves; a user's topic may well begin with two underscores."""

_TRIES: Final = 4
"""How often offsets are asked for whose topic is another one before and after: once as nothing was known of it before,
and brokers may learn of a new topic one after the other."""

Log: TypeAlias = tuple[str, int]
"""Topic and partition."""

SHARED_WITHIN: Final = timedelta(seconds=2)
"""In which a request for several members has to be answered; after it each asks for itself."""

GATHER: Final = 0.01
"""Seconds in which further members may ask after the first one: they do at the same moment (`drive.plan`)."""

_LOG = logging.getLogger(__name__)


class BrokerLogs:
    """The logs of one cluster; any thread may ask. Implements `ports.Logs`.

    Args:
        process: asks the brokers.
    """

    def __init__(self, process: AdminProcess) -> None:
        self._process = process
        self._topic_ids: Mapping[str, TopicId] = {}
        self._ends = SharedEnds(self._ends_of_all, self._ends_of_one, partial(time.sleep, GATHER))

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
            found = self._offsets([LogPlace(*log, at) for log in logs for at in (EARLIEST, LATEST)])
            ids = self._ids(topics)
            if all(before.get(topic) == topic_id for topic, topic_id in ids.items()):
                return {
                    p: LogBounds(
                        start=Offset(start.offset),
                        end=Offset(end.offset),
                        topic_id=ids[str(p.topic)],
                        leader_epoch=-1 if end.leader_epoch is None else end.leader_epoch,
                    )
                    for p in partitions
                    if (start := found.get(LogPlace(p.topic, p.partition, EARLIEST)))
                    and (end := found.get(LogPlace(p.topic, p.partition, LATEST)))
                }
        raise BrokerUnavailable(f"one of {', '.join(topics)} has another topic id each time that it is asked for")

    def _ids(self, topics: Collection[str]) -> dict[str, TopicId]:
        """Return the ids that topics have now, and remember them; that of a topic that is not there is empty."""
        found = self._described(topics)
        ids = {topic: found[TopicName(topic)][0] if topic in found else TopicId("") for topic in topics}
        # Replaced, not changed: other threads may be reading what was known before they asked.
        self._topic_ids = {**self._topic_ids, **ids}
        return ids

    def _described(self, topics: Collection[str]) -> dict[TopicName, tuple[TopicId, int]]:
        """Return the id of each topic that is there, and how many partitions it has."""
        question = partial(questions.topics, names=sorted(map(TopicName, topics)))
        return self._process.read(question, topics=len(topics))

    def stable_ends(self, partitions: Collection[GroupPartition]) -> dict[GroupPartition, Offset]:
        """Return the last stable offset of each log, read now; one that the cluster doesn't have is absent.

        Threads that ask at the same moment are answered by one request.

        Raises:
            BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse.
        """
        return _by_partition(partitions, self._ends.of)

    def _ends_of_all(self, logs: Collection[Log]) -> Mapping[Log, Offset] | None:
        """Return where each log ends; None: not every one has an answer, or not soon."""
        try:
            found, absent = self._process.read(partial(questions.offsets, places=_ends(logs)), SHARED_WITHIN)
        except KcrError as error:
            _LOG.debug("each member asks for its own ends of logs: %s", error)
            return None
        return None if absent else _by_log(found)

    def _ends_of_one(self, logs: Collection[Log]) -> Mapping[Log, Offset]:
        """Return where each log ends; one that the cluster doesn't have is absent."""
        return _by_log(self._offsets(_ends(logs)))

    def high_watermarks(self, partitions: Collection[GroupPartition]) -> dict[GroupPartition, Offset]:
        """Return where each log ends with open transactions counted; one that the cluster doesn't have is absent.

        Raises:
            BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse.
        """
        return _by_partition(
            partitions, lambda logs: _by_log(self._offsets(_ends(logs), IsolationLevel.READ_UNCOMMITTED))
        )

    def first_at_or_after(self, instants: Mapping[GroupPartition, datetime]) -> dict[GroupPartition, TimeAnswer]:
        """Return each log's first record at or after an instant (read_committed), with its own timestamp.

        Kafka counts in milliseconds; an instant between two is taken for the later one. A partition that the cluster
        doesn't have is absent.

        Raises:
            BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse.
        """
        if not instants:
            return {}
        places: dict[GroupPartition, LogPlace] = {
            p: LogPlace(p.topic, p.partition, _ms(i)) for p, i in instants.items()
        }
        found = self._offsets(sorted(set(places.values())))
        return {p: _time_answer(found[place]) for p, place in places.items() if place in found}

    def topics(self, names: Collection[TopicName] = ()) -> Mapping[TopicName, int]:
        """Return the topics that exist, internal ones left out, with how many partitions each has.

        Args:
            names: which ones; none named: all of the cluster.

        Raises:
            BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse.
        """
        if names:
            return {name: partitions for name, (_, partitions) in sorted(self._described(names).items())}
        return {name: count for name, count in sorted(self._partition_counts().items()) if name not in _INTERNAL}

    def _partition_counts(self) -> dict[TopicName, int]:
        """Return all topics that are there, with how many partitions each has, and renew what the client remembers."""
        return self._process.read(partial(questions.all_topics))

    def cluster_id(self) -> ClusterId:
        """Return what the cluster calls itself, asked now: what the client remembers may be of another one.

        Raises:
            BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse.
        """
        return self._process.read(partial(questions.cluster))

    def _offsets(
        self, places: Collection[LogPlace], isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    ) -> dict[LogPlace, LogOffset]:
        """Return what logs have at places; one that is not answered is of a log that the cluster does not have.

        The client remembers for minutes how many partitions a topic has, and denies those that were added since. So
        what is missing is looked up, and if it is there, that memory renewed and the question asked again.
        """
        ask = partial(questions.offsets, isolation=isolation)
        found, absent = self._process.read(partial(ask, places=places))
        counts = self._described({place.topic for place in absent}) if absent else {}
        there = [p for p in absent if (topic := TopicName(p.topic)) in counts and p.partition < counts[topic][1]]
        if there:
            # Of all topics, for the sake of that memory. Not for one that is gone: it is asked for as long as it is.
            self._partition_counts()
            found |= self._process.read(partial(ask, places=there))[0]
        return found


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


def _ends(logs: Collection[Log]) -> list[LogPlace]:
    return [LogPlace(*log, LATEST) for log in sorted(logs)]


def _by_log(found: Mapping[LogPlace, LogOffset]) -> Mapping[Log, Offset]:
    return {(topic, number): Offset(row.offset) for (topic, number, _), row in found.items()}


def _by_partition(
    partitions: Collection[GroupPartition], offsets: Callable[[frozenset[Log]], Mapping[Log, Offset]]
) -> dict[GroupPartition, Offset]:
    logs = {p: (str(p.topic), p.partition) for p in partitions}
    found = offsets(frozenset(logs.values())) if logs else {}
    return {p: found[log] for p, log in logs.items() if log in found}


def _ms(instant: datetime) -> int:
    """Return milliseconds since 1970, rounded up; never negative: negative "times" mean other things to Kafka."""
    return max(0, -((_EPOCH - instant) // _MILLISECOND))


def _time_answer(found: LogOffset) -> TimeAnswer:
    if found.offset == NO_RECORD:
        return TimeAnswer(offset=None)
    return TimeAnswer(offset=Offset(found.offset), found=_EPOCH + found.timestamp * _MILLISECOND)
