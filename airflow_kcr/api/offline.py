"""A reset while the groups are empty: the same map, told to Kafka from outside.

The store comes first: its new epoch makes whatever a zombie still does void, and its restore point is where the next
start goes, whatever Kafka holds. Then Kafka's committed offsets are altered with three guards (only an empty group's,
every partition's result looked at, read back), so that lag tools tell the truth. What fails there can be repeated with
the same plan: it is one reset, and only Kafka is told again.
"""

from __future__ import annotations

from collections.abc import Collection

from airflow_kcr.api.clusters import Clusters
from airflow_kcr.errors import GroupNotEmpty, KcrError
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region.rows import PersonReset, PersonResetState, RegionState
from airflow_kcr.protocol.region.state import Region as StoredRegion
from airflow_kcr.protocol.values import GroupId, GroupPartition
from airflow_kcr.runtime.identity import CommitNote
from airflow_kcr.spec import RegionSpec


def is_told_from_outside(region: StoredRegion, reset: PersonReset) -> bool:
    """Whether a reset was applied to the stopped region as it still is: nobody but its caller tells Kafka."""
    return (
        region.state is RegionState.STOPPED
        and reset.state is PersonResetState.DONE
        and reset.epoch is not None
        and region.restore_point_epoch == region.epoch == reset.epoch
    )


def require_empty(region: StoredRegion, clusters: Clusters) -> None:
    """Refuse while anybody is in one of the region's groups; changes nothing.

    Raises:
        GroupNotEmpty: names the members of every such group.
        BrokerUnavailable, CredentialsRefused: a cluster does not answer, or refuses.
    """
    spec = RegionSpec.from_json(region.spec.text)
    found: list[str] = []
    for group in sorted(region.rules.groups):
        with clusters(spec, group) as cluster:
            try:
                cluster.require_empty(group)
            except GroupNotEmpty as error:
                found.append(error.message)
    if found:
        raise GroupNotEmpty(f"{'; '.join(found)}. Nothing was changed")


def tell_kafka(region: StoredRegion, clusters: Clusters) -> None:
    """Alter the committed offsets of the region's groups to its restore point, read back.

    Raises:
        GroupNotEmpty, KcrError, BrokerUnavailable, CredentialsRefused: of the first group that could not be altered;
            the message says what stands, and how to repeat the rest.
    """
    spec, offsets = RegionSpec.from_json(region.spec.text), region.seek.offsets
    note = CommitNote(
        region=region.name,
        timeline=region.timeline,
        sequence=region.resets[region.epoch].sequence,
        epoch=region.epoch,
    ).text()
    failed: list[tuple[GroupId, KcrError]] = []
    for group in sorted(region.rules.groups):
        own = offsets.restrict(_of_group(offsets, group))
        if not own:
            continue
        try:
            with clusters(spec, group) as cluster:
                cluster.alter(group, own, note)
        except KcrError as error:
            failed.append((group, error))
    if failed:
        what = "; ".join(f"group {group}: {error.message}" for group, error in failed)
        raise type(failed[0][1])(
            f"the reset is stored (epoch {region.epoch}): the next start of region {region.name} resumes there, "
            f"whatever Kafka says. But Kafka's committed offsets do not all say so: {what}. Apply the same plan again "
            "to tell Kafka alone"
        ) from failed[0][1]


def _of_group(offsets: OffsetMap, group: GroupId) -> Collection[GroupPartition]:
    return [partition for partition in offsets if partition.group == group]
