"""Partitions that the brokers have and no member owns: noted, waited for, and named where a checkpoint lacks them.

Kafka hands a returning static member its old assignment, without a rebalance, so partitions that were added meanwhile
are assigned to no member and no claim ever mentions them. Members therefore compare what the brokers have with what is
claimed. What has no owner is a fact of the region from then on: a member joins its group anew for it, a checkpoint
waits for it, and one that goes on without it is inexact.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime

from airflow_kcr.protocol.commands import GroupStanding, ReportPartitions
from airflow_kcr.protocol.region import absent_partitions, checkpoints, coverage, events
from airflow_kcr.protocol.region.rows import CLAIM_STATES, RegionState
from airflow_kcr.protocol.region.state import Region, live_members, record, require_member
from airflow_kcr.protocol.values import GroupPartition, MemberId

_COVERED = frozenset({RegionState.RUNNING, RegionState.DRAINING})
"""States in which every partition that was known had an owner: only then does one without an owner mean anything."""


def report(region: Region, now: datetime, inventory: ReportPartitions) -> Region:
    """Return the region knowing which partitions of one group have no owner, and which the brokers do not have.

    Repeating it changes nothing, but that what has been absent for long enough is gone (`absent_partitions`). An open
    checkpoint that was opened before such a partition was known is aborted, as it would be by the partition's claim.

    Args:
        region: the region.
        now: the store's clock.
        inventory: what the brokers have.

    Raises:
        StaleIncarnation, UnknownMember, LeaseExpired: the member may not act.
    """
    require_member(region, inventory.member, inventory.incarnation, now)
    if region.state in CLAIM_STATES:
        region = absent_partitions.seen(region, now, inventory.member.group, inventory.partitions)
    if region.state not in _COVERED:
        return region
    others = {p: since for p, since in region.unowned.items() if p.group != inventory.member.group}
    bare = sorted(p for p in inventory.partitions if _is_bare(region, p))
    rows = others | {p: region.unowned.get(p, now) for p in bare}
    if rows == region.unowned:
        return region
    fresh = [p for p in bare if p not in region.unowned]
    body = events.PartitionsUnowned(partitions=tuple(sorted(rows)))
    return _without_blind_checkpoint(record(replace(region, unowned=rows), now, body), now, fresh)


def _is_bare(region: Region, partition: GroupPartition) -> bool:
    claim = region.claims.get(partition)
    subscribed = region.rules.subscribes(partition.group, partition.topic)
    return subscribed and (claim is None or claim.owner is None)


def _without_blind_checkpoint(region: Region, now: datetime, fresh: Collection[GroupPartition]) -> Region:
    checkpoint = region.checkpoint
    left = coverage.left_out(region, now)
    unseen = (
        []
        if checkpoint is None
        else [p for p in fresh if p not in region.frozen[checkpoint.sequence] and p not in left]
    )
    if not unseen:
        return region
    return checkpoints.abort(region, now, f"{unseen[0]} is on the brokers and no member owns it")


def claimed(region: Region, partitions: Collection[GroupPartition]) -> Region:
    """Return the region after partitions were claimed: they have an owner."""
    rows = {p: since for p, since in region.unowned.items() if p not in partitions}
    return region if len(rows) == len(region.unowned) else replace(region, unowned=rows)


def standing(region: Region, now: datetime, member: MemberId) -> GroupStanding:
    """Return what a member has to do about the partitions of its group that have no owner."""
    group = member.group
    gone = frozenset(p for p in absent_partitions.gone(region) if p.group == group)
    if region.state not in _COVERED:
        return GroupStanding(again=True, gone=gone)
    if not any(p.group == group for p in coverage.unowned(region)):
        return GroupStanding(again=any(p.group == group and p not in gone for p in region.absent), gone=gone)
    late = any(p.group == group for p in coverage.overdue(region, now))
    return GroupStanding(again=True, rejoin=late and _would_help(region, now, member), gone=gone)


def _would_help(region: Region, now: datetime, member: MemberId) -> bool:
    """Whether a rebalance would give the group's partitions to its members, and this one is to cause it.

    While a partition's owner is down, Kafka keeps its slot, and a rebalance would keep all other members waiting for
    it. The owner comes back, or the end of its session is a rebalance. A foreign consumer gets its share of any.
    """
    group = member.group
    live = [m for m in live_members(region, now) if m.group == group]
    owners = {c.owner for p, c in region.claims.items() if p.group == group and c.owner is not None}
    is_foreign = any(foreign_consumer.group == group for foreign_consumer in region.foreign_consumers)
    return region.state is RegionState.RUNNING and live[:1] == [member] and owners <= set(live) and not is_foreign
