"""The clusters of a region's groups: what is asked of one, and by which settings it is reached.

Only `alter` changes anything in Kafka. The client is loaded only on first use, so that commands which read only the
store don't need it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Final, Protocol, TypeAlias, TypeVar

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.ports import CommittedOffset, Logs
from airflow_kcr.protocol.observations import GroupSeen, TimeAnswer
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.rules import GroupRules
from airflow_kcr.protocol.timeouts import BrokerTimes
from airflow_kcr.protocol.values import GroupId, GroupPartition, Offset, TopicName
from airflow_kcr.settings import connection_settings, resolve_environment
from airflow_kcr.spec import RegionSpec, stored_spec

T = TypeVar("T")


class Cluster(Protocol):
    """One Kafka cluster: its logs, its groups and what is committed there. Calls block, each under a deadline."""

    @property
    def logs(self) -> Logs:
        """The logs of its topics."""
        ...

    def committed(
        self, group: GroupId, partitions: Collection[GroupPartition] | None
    ) -> Mapping[GroupPartition, CommittedOffset]:
        """Return what Kafka holds for a group; a partition without a committed offset is absent.

        Args:
            group: any group of the cluster.
            partitions: which ones; None: all that have one.

        Raises:
            BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse.
        """
        ...

    def first_records(self, places: Mapping[GroupPartition, Offset]) -> Mapping[GroupPartition, TimeAnswer]:
        """Return the first record at or beyond each place; with no offset, where there is none up to the end.

        A log of which that is not known is absent: not answered in time, or not to be read by this client.
        """
        ...

    def require_empty(self, group: GroupId) -> None:
        """Refuse a group that has members.

        Raises:
            GroupNotEmpty: names them.
            BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse.
        """
        ...

    def alter(self, group: GroupId, offsets: OffsetMap, metadata: str) -> None:
        """Write the committed offsets of a group that has no members, and read them back.

        Raises:
            GroupNotEmpty: it has members; nothing was written.
            KcrError: partitions were refused, or Kafka holds something else; the message names them.
            BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse.
        """
        ...

    @property
    def client(self) -> str | None:
        """The user's own `client.id` for it, by which a member's begins; None: there is none."""
        ...

    def describe(self, group: GroupId) -> GroupSeen:
        """Return the group as its coordinator describes it; one that does not exist is `dead`.

        Raises:
            BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse.
        """
        ...

    def times(self, seen: GroupSeen) -> BrokerTimes:
        """Return the times that the brokers set for a group that was described; what may not be read is None.

        Raises:
            BrokerUnavailable: the brokers don't answer.
        """
        ...

    def compacted(self, names: Collection[TopicName]) -> frozenset[TopicName]:
        """Return the topics from whose logs compaction takes records, of those whose settings may be described.

        Raises:
            BrokerUnavailable: the brokers don't answer.
        """
        ...

    def unreadable(self, group: GroupId, topics: Collection[TopicName]) -> tuple[str, ...]:
        """Return which of a group and topics this client may describe but not read, in words.

        Raises:
            BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse.
        """
        ...


Clusters: TypeAlias = Callable[[RegionSpec, GroupId], AbstractContextManager[Cluster]]
"""Opens the cluster of one of a region's groups, for as long as the context lasts."""


def ask_each(
    region: Region,
    clusters: Clusters,
    question: Callable[[Cluster, GroupRules], T],
    groups: Collection[GroupId] | None = None,
) -> dict[GroupId, T]:
    """Return the answer of the cluster of each of a region's groups, in their order.

    Args:
        region: as stored.
        clusters: how Kafka is reached.
        question: asks a cluster about a group.
        groups: which; None: all.

    Raises:
        BrokerUnavailable, CredentialsRefused: a cluster does not answer, or refuses.
    """
    spec, found = stored_spec(region.spec.text), dict[GroupId, T]()
    for group, rules in sorted(region.rules.groups.items()):
        if groups is None or group in groups:
            with clusters(spec, group) as cluster:
                found[group] = question(cluster, rules)
    return found


@contextmanager
def reader_with(settings: Mapping[str, str]) -> Iterator[Cluster]:
    """Open the cluster that client settings lead to.

    Args:
        settings: the user's, secrets filled in.

    Raises:
        ConfigurationError: they can't be used by the client.
    """
    from airflow_kcr.kafka.admin_process import AdminProcess
    from airflow_kcr.kafka.groups import Groups
    from airflow_kcr.kafka.settings import admin_settings

    with AdminProcess(admin_settings(settings)) as process:
        yield Groups(process, settings)


def real_reader(spec: RegionSpec, group: GroupId) -> AbstractContextManager[Cluster]:
    """Open the cluster of one of a region's groups, by the environment of this process.

    Raises:
        ConfigurationError: its settings need a variable that is not set, or can't be used by the client.
    """
    return reader_with(client_settings(spec, group, os.environ))


def client_settings(spec: RegionSpec, group: GroupId, environ: Mapping[str, str] = os.environ) -> Mapping[str, str]:
    """Return the client settings of a group's cluster, for the client only: secrets in them are filled in.

    Args:
        spec: the region's.
        group: one of its groups.
        environ: where references of the spec are looked up, and the settings of an Airflow connection: Airflow's hook
            reads the connection, and hands its settings to the processes that it starts in `kafka_variable`.

    Raises:
        ConfigurationError: a variable is not set, or its settings can't be used.
    """
    settings, connection = spec.cluster_of(group)
    if settings is not None:
        return resolve_environment(settings, environ)
    variable = kafka_variable(connection or "")
    text = environ.get(variable)
    if text is None:
        raise ConfigurationError(
            f"group {group} is reached by the Airflow connection {connection}, which can only be read inside Airflow; "
            f"elsewhere set {variable} to its client settings, one JSON object, or write them into the spec (kafka: …)"
        )
    return connection_settings(_json_object(text, variable), where=variable)


def _json_object(text: str, variable: str) -> Mapping[str, object]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None  # from nothing: the error would quote what may be a secret
    if not isinstance(found, dict):
        raise ConfigurationError(f'{variable} is no JSON object; write it as {{"bootstrap.servers": "HOST:PORT"}}')
    return found


# The environment variables by which a process outside of Airflow is handed what an Airflow connection says.

_NOT_IN_VARIABLES: Final = re.compile(r"[^A-Z0-9]")


def kafka_variable(connection: str) -> str:
    """Return the variable for the client settings of a connection of type `kafka`, as one JSON object."""
    return f"KCR_KAFKA_{_in_variables(connection)}"


def postgres_variable(connection: str) -> str:
    """Return the variable for the URL of a connection of type `postgres`."""
    return f"KCR_POSTGRES_{_in_variables(connection)}"


def _in_variables(connection: str) -> str:
    return _NOT_IN_VARIABLES.sub("_", connection.upper())
