"""What the API asks of Kafka: where logs begin and end, what groups have committed, which topics there are.

Only `alter` changes anything in Kafka. The client is loaded only on first use, so that commands which read only the
store don't need it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from typing import Final, Protocol, TypeAlias

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.kafka_settings import connection_settings, resolve_environment
from airflow_kcr.ports import CommittedOffset, Logs
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.values import GroupId, GroupPartition
from airflow_kcr.spec import RegionSpec


class Cluster(Protocol):
    """One Kafka cluster, as far as a reader needs it. Calls block, each under a deadline."""

    @property
    def logs(self) -> Logs:
        """The logs of its topics."""
        ...

    def committed(
        self, group: GroupId, partitions: Collection[GroupPartition]
    ) -> Mapping[GroupPartition, CommittedOffset]:
        """Return what Kafka holds for a group; a partition without a committed offset is absent.

        Raises:
            BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse.
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


Clusters: TypeAlias = Callable[[RegionSpec, GroupId], AbstractContextManager[Cluster]]
"""Opens the cluster of one of a region's groups, for as long as the context lasts."""


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
