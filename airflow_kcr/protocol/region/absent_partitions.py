"""Partitions of the region that the brokers do not have any more: a topic was deleted, or recreated with fewer.

No member can claim them, so a region that waited for them would wait for ever. A broker that does not answer says
nothing, and one that lags may deny for a moment what is there. So a partition is **gone** only once the brokers have
been asked at least twice, two leases apart, and said each time that they do not have it. From then on it is no part of
the region: checkpoints and resets go without it. What was known of it stays. If the brokers have it again and it is
claimed, it is the same topic and continues where it was, or another one and the policy for that decides.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from airflow_kcr.protocol.region import checkpoints, events, resets
from airflow_kcr.protocol.region.rows import Absence, Claim, RegionState, ResetCause
from airflow_kcr.protocol.region.state import Region, put, record, universe
from airflow_kcr.protocol.times import format_instant
from airflow_kcr.protocol.values import GroupId, GroupPartition, replace


def seen(region: Region, now: datetime, group: GroupId, there: Collection[GroupPartition]) -> Region:
    """Return the region knowing which partitions of one group the brokers do not have.

    Args:
        region: the region.
        now: the store's clock.
        group: the group.
        there: every partition that the brokers have of what the group subscribes to.
    """
    known = {p for p in (*universe(region), *gone(region)) if p.group == group}
    rows = {p: row for p, row in region.absent.items() if p.group != group}
    rows |= {p: _seen_again(region, now, region.absent.get(p)) for p in known.difference(there)}
    return _told(region, now, rows)


def _seen_again(region: Region, now: datetime, earlier: Absence | None) -> Absence:
    if earlier is None:
        return Absence(since=now)
    is_gone = earlier.is_gone or now - earlier.since >= region.rules.timeouts.rejoin_after
    return replace(earlier, is_gone=is_gone)


def _told(region: Region, now: datetime, rows: dict[GroupPartition, Absence]) -> Region:
    if rows == region.absent:
        return region
    before, after = gone(region), frozenset(p for p, row in rows.items() if row.is_gone)
    fresh = sorted(after - before)
    given_back = {p: _given_back(region, p, claim) for p in fresh if (claim := region.claims.get(p)) is not None}
    region = replace(region, absent=rows, claims=put(region.claims, given_back))
    if after == before:
        return region
    region = record(region, now, events.PartitionsGone(partitions=tuple(sorted(after))))
    checkpoint = region.checkpoint
    if checkpoint is not None and not region.frozen[checkpoint.sequence].isdisjoint(fresh):
        region = checkpoints.abort(region, now, f"the brokers do not have {fresh[0]} any more")
    begun = [p for p in fresh if (c := region.claims.get(p)) is not None and c.is_in_flight]
    if begun and region.state in {RegionState.RUNNING, RegionState.DRAINING}:
        # The batch of a member that died: the claim of the partition's next owner would have reset the region.
        return resets.demand(
            region, now, ResetCause.LEASE_LOST, f"{begun[0]} has a batch that no member finishes, and is gone"
        )
    return region


def _given_back(region: Region, partition: GroupPartition, claim: Claim) -> Claim:
    """Return the claim without its owner; no member is asked any more where it goes, so it is where that would be."""
    if claim.resume is None:
        entry = region.seek.get(partition)
        claim = claim.at(resets.without_progress(region, partition, None if entry is None else entry.current))
    return claim if claim.owner is None else replace(claim, owner=None, last_owner=claim.owner)


def claimed(region: Region, partitions: Collection[GroupPartition]) -> Region:
    """Return the region after partitions were claimed, whose logs were read for that: they are there."""
    rows = {p: row for p, row in region.absent.items() if p not in partitions}
    return region if len(rows) == len(region.absent) else replace(region, absent=rows)


def told(region: Region, absence: Absence) -> str:
    """Return what a person should know of a partition that the brokers do not have."""
    since = f"the brokers have not had it since {format_instant(absence.since)}"
    if absence.is_gone:
        return f"{since}; it is no part of the region any more"
    boundary = region.rules.timeouts.rejoin_after.total_seconds()
    return f"{since}; once that has lasted {boundary:g} s the region goes on without it"


def gone(region: Region) -> frozenset[GroupPartition]:
    """Return the partitions that are no part of the region any more, as the brokers do not have them."""
    return frozenset(p for p, row in region.absent.items() if row.is_gone)
