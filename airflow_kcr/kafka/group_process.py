"""The process in which group calls are made: JSON lines in, JSON lines out; see `groups`, which starts it.

Calls that go to a group's coordinator can end a whole process around an outage of its broker (an assertion of the
client library, known and open upstream). So they are made here, where nothing else lives.

The first line has the client settings, which therefore are never seen in arguments or the environment; every other line
is one request, answered by one line. The end of standard input ends the process.
"""

from __future__ import annotations

import json
import resource
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaException,
    Node,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AclOperation, ConfigResource, ResourceType

from airflow_kcr.errors import CredentialsRefused, KcrError
from airflow_kcr.kafka.calls import AdminCalls, BrokerQuestion, kind, told
from airflow_kcr.protocol.observations import SHARE_OR_STREAMS
from airflow_kcr.protocol.timeouts import HEARTBEAT, SESSION
from airflow_kcr.settings import KafkaSettings

if TYPE_CHECKING:
    from confluent_kafka.admin import (
        AdminClient,
        ConfigEntry,
        ConsumerGroupDescription,
        TopicDescription,
    )

Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    """One line of standard input."""

    call: str
    group: str
    rows: tuple[tuple[str, int, int], ...]
    """Topic, partition, offset."""

    metadata: str
    timeout: timedelta


LISTED_WITHIN: Final = 2.0
"""Seconds for the list of groups, which waits for every broker, also for one that is down."""


def describe(calls: AdminCalls, request: Request) -> Json:
    """Say how the coordinator sees the group; one that does not exist is `dead`."""
    found = _described(calls, request)
    kind, state = found.type.name.lower(), found.state.name.lower()
    # To the client a share or streams group is as dead as one that doesn't exist, but only the former is listed. It is
    # described again, as a consumer may have made the group in between.
    if found.state is ConsumerGroupState.DEAD and _is_listed(calls, request.group):
        found = _described(calls, request)
        if found.state is ConsumerGroupState.DEAD:
            kind, state = SHARE_OR_STREAMS, "unknown"
    # The client has no word for the two states in which a target is being made or acknowledged.
    elif found.type is ConsumerGroupType.CONSUMER and found.state is ConsumerGroupState.UNKNOWN:
        state = "reconciling"
    coordinator: Node | None = found.coordinator
    return {
        "state": state,
        "type": kind,
        "assignor": found.partition_assignor or "",
        "coordinator": "" if coordinator is None else f"{coordinator.host}:{coordinator.port}",
        "coordinator_id": None if coordinator is None else coordinator.id,
        "members": [
            {
                "member_id": member.member_id,
                "client_id": member.client_id,
                "host": member.host,
                "instance_id": member.group_instance_id,
                "partitions": [[p.topic, p.partition] for p in member.assignment.topic_partitions],
                "target": None
                if member.target_assignment is None
                else [[p.topic, p.partition] for p in member.target_assignment.topic_partitions],
            }
            for member in found.members
        ],
    }


def _described(calls: AdminCalls, request: Request) -> ConsumerGroupDescription:
    def ask(admin: AdminClient, groups: list[str], left: float) -> Mapping[str, Future[ConsumerGroupDescription]]:
        return dict(admin.describe_consumer_groups(groups, request_timeout=left))

    found: ConsumerGroupDescription = _only(
        calls, request, BrokerQuestion("the description of group", [request.group], ask)
    )
    return found


def _is_listed(calls: AdminCalls, group: str) -> bool:
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

    return calls.blocking(f"the list of group {group}", ask)


def committed(calls: AdminCalls, request: Request) -> Json:
    """Say what is committed: of all partitions if none are named."""

    def ask(admin: AdminClient, groups: list[str], left: float) -> Mapping[str, Future[ConsumerGroupTopicPartitions]]:
        rows = [TopicPartition(topic, partition) for topic, partition, _ in request.rows] or None
        return dict(
            admin.list_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group, rows) for group in groups], request_timeout=left
            )
        )

    return _rows(_only(calls, request, BrokerQuestion("the committed offsets of group", [request.group], ask)))


def alter(calls: AdminCalls, request: Request) -> Json:
    """Write offsets; the errors of single partitions come back with them. Asked once: it may have been done."""

    def ask(admin: AdminClient, groups: list[str], left: float) -> Mapping[str, Future[ConsumerGroupTopicPartitions]]:
        rows = [TopicPartition(t, p, o, metadata=request.metadata) for t, p, o in request.rows]
        return dict(
            admin.alter_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group, rows) for group in groups], request_timeout=left
            )
        )

    question = BrokerQuestion("altering the offsets of group", [request.group], ask)
    calls.answer_once(question, request.timeout)
    return _rows(_first(calls, question))


_LIMITS: Final = ("group.min.session.timeout.ms", "group.max.session.timeout.ms")
_CONSUMER: Final = (SESSION, HEARTBEAT)
_PROTOCOLS: Final = "group.coordinator.rebalance.protocols"
_MIGRATION: Final = "group.consumer.migration.policy"


def times(calls: AdminCalls, request: Request) -> Json:
    """Say which times the brokers set for the group, which rebalance protocols they speak, and which they convert.

    Null: they don't tell this client, or have no such setting.
    """
    (_, number, _), *_ = request.rows
    broker = _configured(calls, request, ConfigResource(ResourceType.BROKER, str(number)))
    group = _configured(calls, request, ConfigResource(ResourceType.GROUP, request.group))
    return {
        "limits": _milliseconds(broker, _LIMITS),
        "consumer": _milliseconds(group, _CONSUMER),
        "protocols": broker[_PROTOCOLS].split(",") if _PROTOCOLS in broker else None,
        "migration": broker.get(_MIGRATION, "").lower() or None,
    }


def _configured(calls: AdminCalls, request: Request, resource: ConfigResource) -> dict[str, str]:
    """Return the settings that this client may read."""

    def ask(
        admin: AdminClient, keys: list[ConfigResource], left: float
    ) -> Mapping[ConfigResource, Future[dict[str, ConfigEntry]]]:
        return dict(admin.describe_configs(keys, request_timeout=left))

    question = BrokerQuestion("the settings of", [resource], ask)
    try:
        calls.answer(question, timeout=request.timeout)
    except CredentialsRefused:
        # Nothing depends on it: a member is told by the broker when it joins.
        return {}
    return {name: entry.value for name, entry in question.found.get(resource, {}).items() if entry.value}


def _milliseconds(settings: Mapping[str, str], names: tuple[str, ...]) -> list[int] | None:
    return [int(settings[name]) for name in names] if settings.keys() >= set(names) else None


def unreadable(calls: AdminCalls, request: Request) -> Json:
    """Say which of the group and the topics named this client may describe, and not read."""

    def ask_group(admin: AdminClient, groups: list[str], left: float) -> Mapping[str, Future[ConsumerGroupDescription]]:
        return dict(admin.describe_consumer_groups(groups, include_authorized_operations=True, request_timeout=left))

    def ask_topics(admin: AdminClient, topics: list[str], left: float) -> Mapping[str, Future[TopicDescription]]:
        named = TopicCollection(topics)
        return dict(admin.describe_topics(named, include_authorized_operations=True, request_timeout=left))

    group = BrokerQuestion("the rights on group", [request.group], ask_group)
    topics = BrokerQuestion("the rights on topic", [topic for topic, _, _ in request.rows], ask_topics)
    calls.answer(group, topics, timeout=request.timeout)
    # A topic that is gone is none that may not be read; neither is what the broker tells no rights of.
    told = {
        **{f"group {name}": found.authorized_operations for name, found in group.found.items()},
        **{f"topic {name}": found.authorized_operations for name, found in topics.found.items()},
    }
    lacking = [name for name, may in told.items() if may and AclOperation.READ not in may]
    return {"unreadable": lacking}


CALLS: Final[Mapping[str, Callable[[AdminCalls, Request], Json]]] = {
    "describe": describe,
    "committed": committed,
    "alter": alter,
    "times": times,
    "unreadable": unreadable,
}


def serve(lines: Iterable[str], answer: Callable[[str], None]) -> None:
    """Answer requests until there are no more.

    Args:
        lines: settings first, then requests.
        answer: takes one line for each request.
    """
    calls: AdminCalls | None = None
    for line in lines:
        try:
            message: Json = json.loads(line)
            if calls is None:
                calls = AdminCalls(KafkaSettings(message["settings"]), timedelta(seconds=10))
                reply: Json = {"ready": True}
            else:
                request = _request(message)
                reply = {"answer": CALLS[request.call](calls, request)}
        except KcrError as error:
            reply = {"failure": type(error).__name__, "message": error.message}
        except (KafkaException, ValueError, TypeError, LookupError) as error:
            # By its kind only: the text might repeat a setting.
            reply = {"failure": "KcrError", "message": f"a group call could not be made ({type(error).__name__})"}
        answer(json.dumps(reply))


def _request(message: Json) -> Request:
    return Request(
        call=message["call"],
        group=message.get("group", ""),
        rows=tuple((str(t), int(p), int(o)) for t, p, o in message.get("rows", ())),
        metadata=message.get("metadata", ""),
        timeout=timedelta(seconds=message["timeout"]),
    )


def _only(calls: AdminCalls, request: Request, question: BrokerQuestion[str, Any]) -> Any:  # noqa: ANN401 - the question's type
    calls.answer(question, timeout=request.timeout)
    return _first(calls, question)


def _first(calls: AdminCalls, question: BrokerQuestion[str, Any]) -> Any:  # noqa: ANN401 - the question's type
    for key, error in question.failed.items():
        raise KcrError(f"{question.what} {key}: {told(error)}")
    return next(iter(question.found.values()))


def _rows(found: ConsumerGroupTopicPartitions) -> Json:
    rows, failed = [], []
    for row in found.topic_partitions or ():
        if row.error is None:
            rows.append([row.topic, row.partition, row.offset, row.metadata or ""])
        else:
            failed.append([row.topic, row.partition, kind(row.error), told(row.error)])
    return {"rows": rows, "failed": failed}


def main() -> None:
    """Serve standard input."""
    # If the library aborts, a core file would hold the settings.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def answer(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    serve(sys.stdin, answer)


if __name__ == "__main__":
    main()
