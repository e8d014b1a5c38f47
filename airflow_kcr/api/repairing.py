"""Kafka is told a checkpoint's offsets from outside, where no member could tell it.

The store comes first and Kafka second, so a checkpoint is complete whatever Kafka holds; but lag tools believe Kafka.
Only the restore point is ever told, or Kafka would move back, and only while its groups are empty: with members in them
the broker refuses, and they commit by themselves.
"""

from __future__ import annotations

from airflow_kcr.api.checkpoint_goals import require_on_path
from airflow_kcr.api.clusters import Clusters
from airflow_kcr.errors import CheckpointRefused
from airflow_kcr.protocol.region.state import Region as StoredRegion
from airflow_kcr.protocol.values import CheckpointNumber, RegionName
from airflow_kcr.runtime.identity import CommitNote
from airflow_kcr.spec import RegionSpec
from airflow_kcr.store.regions import RegionStore


def is_restore_point(region: StoredRegion, sequence: CheckpointNumber) -> bool:
    """Whether a checkpoint is the region's restore point, and so the one that Kafka should hold."""
    return region.restore_point == sequence and region.restore_point_epoch is None


def repair(store: RegionStore, name: RegionName, sequence: CheckpointNumber, clusters: Clusters) -> StoredRegion:
    """Alter every group's committed offsets to the restore point's, read them back, and return the region.

    Where one group fails, those before it are told already; to repeat it is harmless.

    Args:
        store: where the region is.
        name: the region's.
        sequence: the restore point.
        clusters: how Kafka is reached.

    Raises:
        UnknownCheckpoint, CheckpointNotUsable: there is no such checkpoint, or it is undone.
        CheckpointRefused: it is not the restore point, and nothing moves Kafka back to it; or the restore point is a
            reset.
        GroupNotEmpty: somebody is in a group.
        KcrError: Kafka refused a partition, or holds something else.
        BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse.
    """
    region, _ = store.read(name)
    if region.restore_point == sequence and region.restore_point_epoch is not None:
        raise CheckpointRefused(
            f"{sequence}, the restore point of region {name}, is a reset and no checkpoint; Kafka is told its "
            "offsets when the "
            "region is started, or by applying its plan once more"
        )
    row = require_on_path(region, sequence)
    if not is_restore_point(region, sequence):
        raise CheckpointRefused(
            f"checkpoint {sequence} is not the restore point of region {name}; Kafka is told no other checkpoint"
        )
    offsets, spec = region.offsets[sequence], RegionSpec.from_json(region.spec.text)
    note = CommitNote(region=name, timeline=row.timeline, sequence=sequence, epoch=region.epoch).text()
    for group in sorted(region.rules.groups):
        own = offsets.restrict([partition for partition in offsets if partition.group == group])
        if own:
            with clusters(spec, group) as cluster:
                cluster.alter(group, own, note)
    return store.repair_read_back(name, sequence, offsets)
