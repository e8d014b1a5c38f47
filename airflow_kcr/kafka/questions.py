"""What an admin client is asked: each question is a function that only the child of `admin_process` calls.

A question is sent to the child with its arguments, and its answer comes back, as values of the protocol.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

import confluent_kafka
from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    IsolationLevel,
    KafkaException,
    TopicCollection,
)
from confluent_kafka.admin import AclOperation, ConfigResource, ListOffsetsResultInfo, OffsetSpec, ResourceType

from airflow_kcr.errors import CredentialsRefused, KcrError
from airflow_kcr.kafka.calls import AdminCalls, BrokerQuestion
from airflow_kcr.kafka.failures import Kind, described, kind
from airflow_kcr.ports import CommittedOffset
from airflow_kcr.protocol.observations import SHARE_OR_STREAMS, GroupSeen, MemberSeen
from airflow_kcr.protocol.timeouts import HEARTBEAT, SESSION, BrokerLimits, BrokerTimes, ConsumerProtocolTimes
from airflow_kcr.protocol.values import ClusterId, GroupId, Offset, TopicId, TopicName, TopicPartition, few

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ConsumerGroupDescription, MemberDescription

K = TypeVar("K")

LISTED_WITHIN: Final = 2.0
"""Seconds for the list of groups, which waits for every broker, also for one that is down."""


def describe(calls: AdminCalls, within: timedelta, *, group: GroupId) -> GroupSeen:
    """Return how the coordinator sees the group; one that does not exist is `dead`."""
    found = _described(calls, within, group)
    kind, state = found.type.name.lower(), found.state.name.lower()
    # To the client a share or streams group is as dead as one that doesn't exist, but only the former is listed. It is
    # described again, as a consumer may have made the group in between.
    if found.state is ConsumerGroupState.DEAD and _is_listed(calls, within, group):
        found = _described(calls, within, group)
        if found.state is ConsumerGroupState.DEAD:
            kind, state = SHARE_OR_STREAMS, "unknown"
    # The client has no word for the two states in which a target is being made or acknowledged.
    elif found.type is ConsumerGroupType.CONSUMER and found.state is ConsumerGroupState.UNKNOWN:
        state = "reconciling"
    coordinator: confluent_kafka.Node | None = found.coordinator
    return GroupSeen(
        group=group,
        state=state,
        type=kind,
        assignor=found.partition_assignor or "",
        members=tuple(map(_member, found.members)),
        coordinator="" if coordinator is None else f"{coordinator.host}:{coordinator.port}",
        coordinator_id=None if coordinator is None else coordinator.id,
    )


def _member(member: MemberDescription) -> MemberSeen:
    target = member.target_assignment
    return MemberSeen(
        member_id=member.member_id,
        client_id=member.client_id,
        host=member.host,
        instance_id=member.group_instance_id,
        partitions=_places(member.assignment.topic_partitions),
        target=None if target is None else _places(target.topic_partitions),
    )


def _places(rows: Iterable[confluent_kafka.TopicPartition]) -> frozenset[TopicPartition]:
    return frozenset(map(_place, rows))


def _place(row: confluent_kafka.TopicPartition) -> TopicPartition:
    return TopicPartition(TopicName(row.topic), row.partition)


def _described(calls: AdminCalls, within: timedelta, group: GroupId) -> ConsumerGroupDescription:
    question: BrokerQuestion[str, ConsumerGroupDescription] = BrokerQuestion(
        "the description of group",
        [str(group)],
        lambda admin, groups, left: admin.describe_consumer_groups(groups, request_timeout=left),
    )
    return calls.only(question, within)


def _is_listed(calls: AdminCalls, within: timedelta, group: GroupId) -> bool:
    """Whether a broker lists the group, of whatever type; no answer is no."""

    def ask(admin: AdminClient, left: float) -> bool:
        with warnings.catch_warnings():
            # What is to be used instead lists no group of another type.
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                return any(row.error is None for row in admin.list_groups(group, timeout=min(left, LISTED_WITHIN)))
            except KafkaException:
                # A broker is down. That a consumer can't join is then only seen when it tries.
                return False

    return calls.blocking(f"the list of group {group}", ask, within)


Refused: TypeAlias = "dict[TopicPartition, tuple[Kind, str]]"
"""Partitions that a broker had an error for: what can be done about it, and its text."""


def committed(
    calls: AdminCalls, within: timedelta, *, group: GroupId, partitions: Collection[TopicPartition] | None
) -> dict[TopicPartition, CommittedOffset]:
    """Return what is committed, of all partitions if none are named; one without a committed offset is absent.

    Raises:
        KcrError: a partition's could not be read.
    """
    rows = None if partitions is None else [confluent_kafka.TopicPartition(*place) for place in partitions]

    asked = [ConsumerGroupTopicPartitions(group, rows)]
    question = BrokerQuestion(
        "the committed offsets of group",
        [str(group)],
        lambda admin, _, left: admin.list_consumer_group_offsets(asked, request_timeout=left),
    )
    found = calls.only(question, within)
    if failed := _refused(found):
        raise KcrError(f"the committed offsets of group {group} could not be read: {refusals(failed)}")
    return {
        _place(row): CommittedOffset(offset=Offset(row.offset), metadata=row.metadata or "")
        for row in found.topic_partitions or ()
        if row.offset >= 0
    }


def alter(
    calls: AdminCalls, within: timedelta, *, group: GroupId, offsets: Mapping[TopicPartition, Offset], metadata: str
) -> Refused:
    """Write offsets, and return what was refused. Asked once: it may have been done."""
    rows = [confluent_kafka.TopicPartition(t, p, o, metadata=metadata) for (t, p), o in offsets.items()]

    asked = [ConsumerGroupTopicPartitions(group, rows)]
    question = BrokerQuestion(
        "altering the offsets of group",
        [str(group)],
        lambda admin, _, left: admin.alter_consumer_group_offsets(asked, request_timeout=left),
    )
    return _refused(calls.once(question, within))


def _refused(found: ConsumerGroupTopicPartitions) -> Refused:
    rows = found.topic_partitions or ()
    return {_place(row): (kind(row.error), described(row.error)) for row in rows if row.error is not None}


def refusals(refused: Refused) -> str:
    """Return a few of them as text."""
    return few((f"{place}: {text}" for place, (_, text) in refused.items()), separator="; ")


_LIMITS: Final = ("group.min.session.timeout.ms", "group.max.session.timeout.ms")
_PROTOCOLS: Final = "group.coordinator.rebalance.protocols"
_MIGRATION: Final = "group.consumer.migration.policy"


def times(calls: AdminCalls, within: timedelta, *, broker: int, group: GroupId) -> BrokerTimes:
    """Return which times the brokers set for the group, which rebalance protocols they speak, and which they convert.

    None: they don't tell this client, or have no such setting.
    """
    node = _configured(calls, within, ConfigResource(ResourceType.BROKER, str(broker)))
    limits = _milliseconds(node, _LIMITS)
    consumer = _milliseconds(
        _configured(calls, within, ConfigResource(ResourceType.GROUP, group)), (SESSION, HEARTBEAT)
    )
    return BrokerTimes(
        limits=None if limits is None else BrokerLimits(shortest_session=limits[0], longest_session=limits[1]),
        consumer=None if consumer is None else ConsumerProtocolTimes(session=consumer[0], heartbeat=consumer[1]),
        protocols=frozenset(node[_PROTOCOLS].split(",")) if _PROTOCOLS in node else None,
        migration=node.get(_MIGRATION, "").lower() or None,
    )


def compacted(calls: AdminCalls, within: timedelta, *, names: Collection[TopicName]) -> frozenset[TopicName]:
    """Return the topics from whose logs compaction takes records, of those whose settings this client may read."""
    asked = {name: ConfigResource(ResourceType.TOPIC, name) for name in names}
    found = _settings(calls, within, asked.values())
    return frozenset(
        name for name, resource in asked.items() if "compact" in found.get(resource, {}).get("cleanup.policy", "")
    )


def _configured(calls: AdminCalls, within: timedelta, resource: ConfigResource) -> dict[str, str]:
    """Return the settings that this client may read."""
    return _settings(calls, within, [resource]).get(resource, {})


def _settings(
    calls: AdminCalls, within: timedelta, resources: Collection[ConfigResource]
) -> dict[ConfigResource, dict[str, str]]:
    """Return the settings that this client may read, of each resource."""
    question = BrokerQuestion(
        "the settings of", [*resources], lambda admin, keys, left: admin.describe_configs(keys, request_timeout=left)
    )
    try:
        calls.answer(question, timeout=within)
    except CredentialsRefused:
        # Nothing depends on it: a member is told by the broker when it joins.
        return {}
    return {
        resource: {name: entry.value for name, entry in entries.items() if entry.value}
        for resource, entries in question.found.items()
    }


def _milliseconds(settings: Mapping[str, str], names: tuple[str, str]) -> tuple[timedelta, timedelta] | None:
    if not settings.keys() >= set(names):
        return None
    first, second = (timedelta(milliseconds=int(settings[name])) for name in names)
    return first, second


def unreadable(
    calls: AdminCalls, within: timedelta, *, group: GroupId, names: Collection[TopicName]
) -> tuple[str, ...]:
    """Return which of the group and the topics named this client may describe, and not read."""
    of_group = BrokerQuestion(
        "the rights on group",
        [str(group)],
        lambda admin, groups, left: admin.describe_consumer_groups(
            groups, include_authorized_operations=True, request_timeout=left
        ),
    )
    of_topics = BrokerQuestion(
        "the rights on topic",
        [*map(str, names)],
        lambda admin, topics, left: admin.describe_topics(
            TopicCollection(topics), include_authorized_operations=True, request_timeout=left
        ),
    )
    calls.answer(of_group, of_topics, timeout=within)
    # A topic that is gone is none that may not be read; neither is what the broker tells no rights of.
    allowed = {
        **{f"group {name}": found.authorized_operations for name, found in of_group.found.items()},
        **{f"topic {name}": found.authorized_operations for name, found in of_topics.found.items()},
    }
    return tuple(name for name, may in allowed.items() if may and AclOperation.READ not in may)


def topics(
    calls: AdminCalls, within: timedelta, *, names: Collection[TopicName]
) -> dict[TopicName, tuple[TopicId, int]]:
    """Return which id and how many partitions topics have now; one that is not there is absent."""
    question = BrokerQuestion(
        "topic",
        [*map(str, names)],
        lambda admin, keys, left: admin.describe_topics(TopicCollection(keys), request_timeout=left),
    )
    calls.answer(question, timeout=within)
    _absent(calls, question)
    return {
        TopicName(name): (TopicId(str(found.topic_id)), len(found.partitions)) for name, found in question.found.items()
    }


def all_topics(calls: AdminCalls, within: timedelta) -> dict[TopicName, int]:
    """Return how many partitions each topic has that is there, and renew what the client remembers of them."""
    found = calls.blocking("the list of topics", lambda admin, left: admin.list_topics(timeout=left), within)
    return {
        TopicName(name): len(topic.partitions)
        for name, topic in found.topics.items()
        if topic.error is None or kind(topic.error) is not Kind.ABSENT
    }


def cluster(calls: AdminCalls, within: timedelta) -> ClusterId:
    """Return what the cluster calls itself, asked now: what the client remembers may be of another one."""
    question = BrokerQuestion(
        "the id of",
        ["the cluster"],
        lambda admin, keys, left: {key: admin.describe_cluster(request_timeout=left) for key in keys},
    )
    return ClusterId(str(calls.only(question, within).cluster_id))


class LogPlace(NamedTuple):
    """A log, and a time as the protocol has it: milliseconds, or one of the two that mean an end of the log."""

    topic: str
    partition: int
    at: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class LogOffset(NamedTuple):
    """What a log has at a place."""

    offset: int
    leader_epoch: int | None
    timestamp: int


EARLIEST: Final = -2
LATEST: Final = -1
"""What Kafka's protocol has in place of a time for the two ends of a log."""

NO_RECORD: Final = -1
"""The offset of "no record at or after that time"; any other negative one is no answer at all."""

_SPECS: Final[Mapping[int, OffsetSpec]] = {
    EARLIEST: OffsetSpec.earliest(),  # type: ignore[no-untyped-call]
    LATEST: OffsetSpec.latest(),  # type: ignore[no-untyped-call]
}
_NAMES: Final[Mapping[int, str]] = {EARLIEST: "the start of", LATEST: "the end of"}
_BY_TIME: Final = "the offset by time of"


def offsets(
    calls: AdminCalls,
    within: timedelta,
    *,
    places: Collection[LogPlace],
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
) -> tuple[dict[LogPlace, LogOffset], list[LogPlace]]:
    """Return which offset each log has at a time, and which logs the client does not know.

    A paused consumer's own watermarks are never fresh, hence `list_offsets`: one request to each broker for all of its
    partitions, with the last stable offset as the end.
    """

    def ask(admin: AdminClient, keys: list[LogPlace], left: float) -> Mapping[LogPlace, Future[ListOffsetsResultInfo]]:
        asked: dict[LogPlace, Future[ListOffsetsResultInfo]] = {}
        for at in sorted({place.at for place in keys}):
            spec = _SPECS[at] if at in _SPECS else OffsetSpec.for_timestamp(at)
            rows = {confluent_kafka.TopicPartition(p.topic, p.partition): spec for p in keys if p.at == at}
            futures = admin.list_offsets(rows, isolation_level=isolation, request_timeout=left)
            asked |= {LogPlace(row.topic, row.partition, at): future for row, future in futures.items()}
        return asked

    named: dict[str, list[LogPlace]] = {}
    for place in places:
        named.setdefault(_NAMES.get(place.at, _BY_TIME), []).append(place)
    questions = [
        BrokerQuestion(what, keys, ask, _is_offset_or_none if what == _BY_TIME else _is_offset)
        for what, keys in named.items()
    ]
    calls.answer(*questions, timeout=within)
    absent = [place for question in questions for place in _absent(calls, question)]
    found = (item for question in questions for item in question.found.items())
    return {place: LogOffset(row.offset, row.leader_epoch, row.timestamp) for place, row in found}, absent


def _is_offset(found: ListOffsetsResultInfo) -> bool:
    return found.offset >= 0


def _is_offset_or_none(found: ListOffsetsResultInfo) -> bool:
    return found.offset >= 0 or found.offset == NO_RECORD


def _absent(calls: AdminCalls, question: BrokerQuestion[K, Any]) -> list[K]:
    """Return what is not there.

    Raises:
        KcrError: an answer is another error.
    """
    for key, error in question.failed.items():
        if kind(error) is not Kind.ABSENT:
            raise calls.failed(question, key)
    return list(question.failed)
