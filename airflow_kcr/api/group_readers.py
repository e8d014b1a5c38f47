"""Kafka as validation reads it, over the Kafka client: logs, committed offsets, and how a group is described."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_kcr.api.clusters import client_settings
from airflow_kcr.api.validation import GroupReader
from airflow_kcr.kafka_settings import resolve_environment
from airflow_kcr.ports import CommittedOffset, Logs
from airflow_kcr.protocol.group_members import GroupSeen
from airflow_kcr.protocol.values import GroupId, GroupPartition
from airflow_kcr.spec import RegionSpec

if TYPE_CHECKING:
    from airflow_kcr.kafka.groups import Groups


@dataclass(frozen=True, slots=True)
class RealGroupReader:
    """One cluster; implements `GroupReader`."""

    logs: Logs
    groups: Groups

    def committed(
        self, group: GroupId, partitions: Collection[GroupPartition]
    ) -> Mapping[GroupPartition, CommittedOffset]:
        """See `clusters.Cluster.committed`; without partitions there is nothing to ask."""
        return self.groups.committed(group, partitions) if partitions else {}

    def describe(self, group: GroupId) -> GroupSeen:
        """See `GroupReader.describe`."""
        return self.groups.describe(group).seen


@contextmanager
def real_reader(spec: RegionSpec, group: GroupId) -> Iterator[GroupReader]:
    """Open the cluster of one of a region's groups.

    Raises:
        ConfigurationError: its settings are in an Airflow connection, refer to a variable that is not set, or can't be
            used by the client.
    """
    from airflow_kcr.kafka.groups import Groups
    from airflow_kcr.kafka.logs import BrokerLogs
    from airflow_kcr.kafka.settings import admin_settings

    settings = admin_settings(resolve_environment(client_settings(spec, group), os.environ))
    with closing(BrokerLogs(settings)) as logs, Groups(settings) as groups:
        yield RealGroupReader(logs, groups)
