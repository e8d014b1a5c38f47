"""A changed spec takes effect: some of it at once, the rest at the next cut or start (design section 6, end).

What changes the members themselves (topics, number, pipeline, delivery) waits for a moment at which nothing is in
flight: the completion of the next cut, where it is a reset to that very cut, or the next start.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from airflow_kcr.protocol.region import bounds, events, resets
from airflow_kcr.protocol.region.rows import Claim, Lease, RegionState, ResetCause
from airflow_kcr.protocol.region.state import Region, Spec, put, record
from airflow_kcr.protocol.values import GroupPartition


def change(region: Region, now: datetime, *, at_once: Spec, later: Spec | None) -> Region:
    """Return the region with a changed spec.

    Args:
        region: the region.
        now: the store's clock.
        at_once: the spec in force from now on: the old one with what may change while members run.
        later: the whole new spec, where some of it waits; None where `at_once` is all of it.
    """
    if region.state is RegionState.STOPPED:
        return _in_force(replace(region, next_spec=None), now, later or at_once)
    return replace(_in_force(region, now, at_once), next_spec=later)


def _in_force(region: Region, now: datetime, spec: Spec) -> Region:
    if spec == region.spec:
        return region
    schedule_changed = spec.rules.cut.schedule != region.rules.cut.schedule
    region = _without_strangers(replace(region, spec=spec), now)
    deliveries = {str(g): str(rules.delivery) for g, rules in spec.rules.groups.items()}
    region = record(region, now, events.SpecChanged(revision=spec.revision, deliveries=deliveries))
    if schedule_changed and region.base is not None:
        after = bounds.next_bound_after(region, now)
        return bounds.with_next_bound(region, now, after, "the cut schedule was changed")
    return region


def _without_strangers(region: Region, now: datetime) -> Region:
    """Fence members that the new spec has no place for, and forget their claims: nobody waits for them any more."""
    groups = region.rules.groups
    strangers = [
        row
        for member, row in sorted(region.members.items())
        if not row.left and (member.group not in groups or member.index >= groups[member.group].members)
    ]
    for row in strangers:
        held: dict[GroupPartition, Claim] = {
            p: replace(c, owner=None, last_owner=c.owner) for p, c in region.claims.items() if c.owner == row.member
        }
        lease = Lease(incarnation=row.incarnation, until=now)
        region = replace(
            region,
            claims=put(region.claims, held),
            leases=put(region.leases, {row.member: lease}),
            members=put(region.members, {row.member: replace(row, left=True)}),
        )
        body = events.MemberLeft(member=row.member, incarnation=row.incarnation, dropped=tuple(sorted(held)))
        region = record(region, now, body)
    return region


def take_pending(region: Region, now: datetime) -> Region:
    """Return the region with a waiting spec in force: nothing is in flight now."""
    if region.next_spec is None:
        return region
    return _in_force(replace(region, next_spec=None), now, region.next_spec)


def restart(region: Region, now: datetime) -> Region:
    """Return the region in a reset to the cut that has just been completed, under its changed spec.

    The automatic target is that cut, so no lineage opens. Whoever lives was built from the old spec: its lease ends, so
    that it can neither begin nor acknowledge anything, and it comes back built from the new one.
    """
    detail = f"the spec changed; members restart at cut {region.base}"
    region = _without_leases(take_pending(region, now), now)
    return resets.begin(region, now, ResetCause.SPEC_CHANGED, detail=detail)


def _without_leases(region: Region, now: datetime) -> Region:
    """End every lease; nothing of a batch runs now, and claims stay until the next incarnations make theirs."""
    ended = {m: Lease(incarnation=lease.incarnation, until=min(lease.until, now)) for m, lease in region.leases.items()}
    return replace(region, leases=put(region.leases, ended))
