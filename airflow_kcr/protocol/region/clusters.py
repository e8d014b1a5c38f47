"""Which cluster a group is on: a group is a name on one Kafka cluster, by whatever address that is reached.

Who starts members tells the cluster's id before they join, and members tell it with every claim. The first one to tell
reserves the group in that cluster for the region. Offsets of another cluster mean other records, however similar its
topics: members are not started there, and a region whose members live is halted. Nothing is carried over.
"""

from __future__ import annotations

from datetime import datetime

from airflow_kcr.errors import GroupInOtherRegion, OtherCluster
from airflow_kcr.protocol.commands import ReportClusters
from airflow_kcr.protocol.region import events, resets
from airflow_kcr.protocol.region.rows import Halt, HaltReason, RegionState
from airflow_kcr.protocol.region.state import Region, put, record
from airflow_kcr.protocol.values import ClusterId, GroupId, RegionName, replace


def is_another(region: Region, group: GroupId, cluster: ClusterId) -> bool:
    """Whether a group was found on another cluster than before; an unknown id says nothing."""
    known = region.clusters.get(group)
    return bool(known and cluster) and known != cluster


def found(region: Region, now: datetime, group: GroupId, cluster: ClusterId) -> Region:
    """Return the region knowing which cluster a group of it is on; the first one to tell counts, for ever.

    Raises:
        OtherCluster: it is another one than the region knows.
    """
    if is_another(region, group, cluster):
        raise OtherCluster(f"{_text(region, group, cluster)}; {'; or '.join(_choices(region, group, cluster))}")
    if not cluster or region.clusters.get(group) == cluster:
        return region
    region = replace(region, clusters=put(region.clusters, {group: cluster}))
    return record(region, now, events.ClusterFound(group=group, cluster=cluster))


def report(region: Region, now: datetime, told: ReportClusters) -> Region:
    """Return the region knowing which clusters its groups are on; reports about other groups are ignored.

    Raises:
        OtherCluster: one is another than the region knows.
    """
    for group, cluster in sorted(told.found.items()):
        if group in region.own_groups:
            region = found(region, now, group, cluster)
    return region


def halted(region: Region, now: datetime, group: GroupId, cluster: ClusterId) -> Region:
    """Return the region halted because a live member finds itself on another cluster; a halted or stopped one stays."""
    if region.state in {RegionState.HALTED, RegionState.STOPPED}:
        return region
    text, choices = _text(region, group, cluster), _choices(region, group, cluster)
    return resets.halt(region, now, Halt(reason=HaltReason.OTHER_CLUSTER, text=text, choices=choices))


def taken(group: GroupId, cluster: ClusterId, other: RegionName) -> GroupInOtherRegion:
    """Return the refusal of a group that another region has, with what to change."""
    where = f", by either address the group of that name on cluster {cluster}" if cluster else ""
    return GroupInOtherRegion(
        f"group {group} belongs to region {other}{where}; one group of one cluster is in exactly one region. Give this "
        "region another group; or, where it is meant to be on another cluster, that one's address, and apply the spec "
        "while both clusters answer"
    )


def _text(region: Region, group: GroupId, cluster: ClusterId) -> str:
    return (
        f"the address of group {group} leads to Kafka cluster {cluster}; region {region.name} has consumed it from "
        f"cluster {region.clusters[group]}"
    )


def _choices(region: Region, group: GroupId, cluster: ClusterId) -> tuple[str, ...]:
    return (
        f"let the address lead to cluster {region.clusters[group]} again, then start the region "
        f"(kcr region start {region.name})",
        f"consume from cluster {cluster} from now on: stop the region, delete it and declare it anew; nothing that is "
        "stored of the one cluster holds on the other",
    )
