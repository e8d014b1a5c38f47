"""Partitions that the brokers have and no member owns, and what a member is advised to do about them."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from airflow_kcr.protocol.region import checkpoints, coverage, events, lost_logs
from airflow_kcr.protocol.region.commands import PartitionAdvice, ReportPartitions
from airflow_kcr.protocol.region.rows import CLAIM_STATES, RESET_STATES, RegionState, Unserved
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.values import GroupPartition, MemberId, replace


def report_partitions(region: Region, now: datetime, inventory: ReportPartitions) -> Region:
    """Return the region knowing which partitions of one group have no owner, and which the brokers do not have.

    Repeating it changes nothing, but that what has been absent for long enough is gone (`lost_logs`). An open
    checkpoint that was opened before such a partition was known is aborted, as it would be by the partition's claim.

    Raises:
        StaleIncarnation, UnknownMember, LeaseExpired: the member may not act.
    """
    region.require_member(inventory.member, inventory.incarnation, now)
    if region.state not in CLAIM_STATES:
        return region
    before = {p: row for p, row in region.unserved.items() if row.is_there}
    region = lost_logs.partitions_seen(region, now, inventory.member.group, inventory.partitions)
    others = {p: row for p, row in before.items() if p.group != inventory.member.group}
    reads = region.rules.subscribes
    bare = sorted(p for p in inventory.partitions if region.claim_of(p).owner is None and reads(p.group, p.topic))
    ownerless = others | {p: before.get(p, Unserved(since=now)) for p in bare}
    if ownerless == before:
        return region
    region = replace(region, unserved=region.absent() | ownerless)
    region = region.record(now, events.PartitionsUnowned(partitions=tuple(sorted(ownerless))))
    return _without_blind_checkpoint(region, now, [p for p in bare if p not in before])


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


def advice(region: Region, now: datetime, report: ReportPartitions) -> PartitionAdvice:
    """Return what a member has to do about the partitions of its group that have no owner."""
    group = report.member.group
    gone = frozenset(p for p in region.gone() if p.group == group)
    is_reset = region.state in RESET_STATES
    if not is_reset and not any(p.group == group for p in coverage.unowned(region)):
        return PartitionAdvice(report_again=any(p.group == group and p not in gone for p in region.absent()), gone=gone)
    # A rebalance may cost a reset one more attempt; one that does not wait for the partition is done without it.
    waited_for = region.universe() if is_reset else coverage.overdue(region, now).keys()
    late = any(p.group == group and p in waited_for for p in coverage.overdue(region, now))
    return PartitionAdvice(report_again=True, rejoin=late and _would_help(region, now, report.member), gone=gone)


def _would_help(region: Region, now: datetime, member: MemberId) -> bool:
    """Whether a rebalance would give the group's partitions to its members, and this one is to cause it.

    While a partition's owner is down, Kafka keeps its slot, and a rebalance would keep all other members waiting for
    it. The owner comes back, or the end of its session is a rebalance. A foreign consumer gets its share of any.
    """
    group = member.group
    live = [m for m in region.live_members(now) if m.group == group]
    owners = {c.owner for p, c in region.claims.items() if p.group == group and c.owner is not None}
    is_foreign = any(foreign_consumer.group == group for foreign_consumer in region.foreign_consumers)
    drains = region.state is RegionState.DRAINING
    return not drains and live[:1] == [member] and owners <= set(live) and not is_foreign
