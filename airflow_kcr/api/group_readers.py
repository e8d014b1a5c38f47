"""Kafka as validation reads it, over the Kafka client: logs, committed offsets, and how a group is described."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_kcr.api.clusters import client_settings
from airflow_kcr.api.validation import GroupReader
from airflow_kcr.ports import CommittedOffset, Logs
from airflow_kcr.protocol.group_members import GroupSeen
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.values import GroupId, GroupPartition
from airflow_kcr.spec import RegionSpec

if TYPE_CHECKING:
    from airflow_kcr.kafka.groups import Groups


@dataclass(frozen=True, slots=True)
class RealGroupReader:
    """One cluster; implements `GroupReader`."""

    logs: Logs
    groups: Groups
    client: str | None = None
    """See `GroupReader.client`."""

    def committed(
        self, group: GroupId, partitions: Collection[GroupPartition]
    ) -> Mapping[GroupPartition, CommittedOffset]:
        """See `clusters.Cluster.committed`; without partitions there is nothing to ask."""
        return self.groups.committed(group, partitions) if partitions else {}

    def describe(self, group: GroupId) -> GroupSeen:
        """See `GroupReader.describe`."""
        return self.groups.describe(group)

    def require_empty(self, group: GroupId) -> None:
        """See `clusters.Cluster.require_empty`."""
        self.groups.require_empty(group)

    def alter(self, group: GroupId, offsets: OffsetMap, metadata: str) -> None:
        """See `clusters.Cluster.alter`."""
        self.groups.alter(group, offsets, metadata)


@contextmanager
def reader_with(settings: Mapping[str, str]) -> Iterator[GroupReader]:
    """Open the cluster that client settings lead to.

    Args:
        settings: the user's, secrets filled in.

    Raises:
        ConfigurationError: they can't be used by the client.
    """
    from airflow_kcr.kafka.groups import Groups
    from airflow_kcr.kafka.logs import BrokerLogs
    from airflow_kcr.kafka.settings import admin_settings

    with closing(BrokerLogs(admin_settings(settings))) as logs, Groups(admin_settings(settings)) as groups:
        yield RealGroupReader(logs, groups, client=settings.get("client.id"))


def real_reader(spec: RegionSpec, group: GroupId) -> AbstractContextManager[GroupReader]:
    """Open the cluster of one of a region's groups, by the environment of this process.

    Raises:
        ConfigurationError: its settings need a variable that is not set, or can't be used by the client.
    """
    return reader_with(client_settings(spec, group, os.environ))
