"""Kafka is told a checkpoint's offsets from outside, where no member could tell it.

The store comes first and Kafka second, so a checkpoint is complete whatever Kafka holds; but lag
tools believe Kafka. Only the base is ever told, or Kafka would move back, and only while its groups are empty: with
members in them the broker refuses, and they commit by themselves.
"""

from __future__ import annotations

from airflow_kcr.api.checkpoint_goals import require_on_path
from airflow_kcr.api.clusters import Clusters
from airflow_kcr.errors import CutRefused
from airflow_kcr.protocol.region.state import Region as StoredRegion
from airflow_kcr.protocol.values import RegionName, Sequence
from airflow_kcr.runtime.identity import CommitNote
from airflow_kcr.spec import RegionSpec
from airflow_kcr.store.regions import RegionStore


def is_base(region: StoredRegion, sequence: Sequence) -> bool:
    """Whether a checkpoint is the region's base, and so the one that Kafka should hold."""
    return region.base == sequence and region.base_epoch is None


def repair(store: RegionStore, name: RegionName, sequence: Sequence, clusters: Clusters) -> StoredRegion:
    """Alter the committed offsets of every group to the base's, read them back, and return the region that says so.

    Where one group fails, those before it are told already; to repeat it is harmless.

    Args:
        store: where the region is.
        name: the region's.
        sequence: the base.
        clusters: how Kafka is reached.

    Raises:
        UnknownCheckpoint, CheckpointNotUsable: there is no such checkpoint, or it is undone.
        CutRefused: it is not the base, and nothing moves Kafka back to it; or the base is a reset.
        GroupNotEmpty: somebody is in a group.
        KcrError: Kafka refused a partition, or holds something else.
        BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse.
    """
    region, _ = store.read(name)
    if region.base == sequence and region.base_epoch is not None:
        raise CutRefused(
            f"{sequence}, the base of region {name}, is a reset and no checkpoint; Kafka is told its offsets when the "
            "region is started, or by applying its plan once more"
        )
    row = require_on_path(region, sequence)
    if not is_base(region, sequence):
        raise CutRefused(f"cut {sequence} is not the base of region {name}; Kafka is told no other checkpoint")
    offsets, spec = region.offsets[sequence], RegionSpec.from_json(region.spec.text)
    note = CommitNote(region=name, lineage=row.lineage, sequence=sequence, epoch=region.epoch).text()
    for group in sorted(region.rules.groups):
        own = offsets.restrict([partition for partition in offsets if partition.group == group])
        if own:
            with clusters(spec, group) as cluster:
                cluster.alter(group, own, note)
    return store.repair_echo(name, sequence, offsets)
