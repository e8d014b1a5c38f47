"""Kafka as validation reads it: one cluster of a region, its logs, its groups and what is committed there."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TypeAlias

from airflow_kcr.api.regions import Cluster, client_settings
from airflow_kcr.protocol.observations import GroupSeen
from airflow_kcr.protocol.timeouts import BrokerTimes
from airflow_kcr.protocol.values import GroupId, TopicName
from airflow_kcr.spec import RegionSpec


class GroupReader(Cluster, Protocol):
    """One Kafka cluster, as validation sees it. Calls block, each under a deadline."""

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


GroupReaders: TypeAlias = Callable[[RegionSpec, GroupId], AbstractContextManager[GroupReader]]
"""Opens the cluster of one of a region's groups, for as long as the context lasts."""


@contextmanager
def reader_with(settings: Mapping[str, str]) -> Iterator[GroupReader]:
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


def real_reader(spec: RegionSpec, group: GroupId) -> AbstractContextManager[GroupReader]:
    """Open the cluster of one of a region's groups, by the environment of this process.

    Raises:
        ConfigurationError: its settings need a variable that is not set, or can't be used by the client.
    """
    return reader_with(client_settings(spec, group, os.environ))
