"""What the API asks of Kafka: where logs begin and end, what groups have committed, which topics there are.

Nothing here changes anything in Kafka. The client is loaded only when something is asked, so that whoever looks at the
store alone needs none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.ports import CommittedOffset, Logs
from airflow_kcr.protocol.values import GroupId, GroupPartition
from airflow_kcr.spec import RegionSpec


class Cluster(Protocol):
    """One Kafka cluster, as far as somebody who looks needs it. Calls block, each under a deadline."""

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


Clusters: TypeAlias = Callable[[RegionSpec, GroupId], AbstractContextManager[Cluster]]
"""Opens the cluster of one of a region's groups, for as long as the context lasts."""


def client_settings(spec: RegionSpec, group: GroupId) -> Mapping[str, str]:
    """Return the client settings of a group's cluster, references unresolved.

    Raises:
        ConfigurationError: they are in an Airflow connection, which only Airflow can read.
    """
    settings, connection = spec.cluster_of(group)
    if settings is None:
        raise ConfigurationError(
            f"group {group} is reached by the Airflow connection {connection}, which can only be read inside Airflow; "
            "run this where Airflow is, or write the client settings into the spec (kafka: …)"
        )
    return settings
