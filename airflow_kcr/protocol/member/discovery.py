"""Partition discovery: what the brokers have is compared with what is claimed, and a member joins anew for the rest.

Kafka is not believed here: it gives a static member that comes back its old assignment without a rebalance, and only
the leader of a group rejoins when it sees that a topic has grown. So every member asks the brokers itself, after each
claim and once a lease, and tells the store what it has not told yet; the store knows what has an owner.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from airflow_kcr.protocol.member import effects, facts
from airflow_kcr.protocol.member.effects import Driven
from airflow_kcr.protocol.member.state import Member, awaiting
from airflow_kcr.protocol.region.rows import RegionState
from airflow_kcr.protocol.region.unowned import Inventory

REJOIN_PAUSE: Final = 30.0
"""Seconds between the first rejoin and the second; each further pause is `REJOIN_FACTOR` times as long.

A rebalance may cost the group a reset. Where joining anew does not help, a region must still get to its next cuts.
"""

REJOIN_FACTOR: Final = 4.0


def discover(member: Member, now: float) -> Driven:
    """Ask the brokers what they have, after each claim and once a lease."""
    view, known = member.view, member.discovery
    if view is None or view.state is not RegionState.RUNNING or not facts.is_well(member):
        return member, ()
    if not facts.has_claimed(member, view) or member.awaited & {"discover", "report_partitions"}:
        return member, ()
    claim = member.claimed, member.claimed_epoch
    if known.asked_for == claim:
        if now - known.asked_at < facts.seconds(member.timeouts.lease):
            return member, ()
    else:
        known = replace(known, told=None)
    asked = replace(known, asked_at=now, asked_for=claim)
    return awaiting(replace(member, discovery=asked), "discover"), (effects.DiscoverPartitions(),)


def report(member: Member, now: float) -> Driven:
    """Tell the store what was found, if it is not what it was told last."""
    found = member.discovery.found
    if found is None or not facts.is_well(member):
        return member, ()
    is_known = found == member.discovery.told
    member = replace(member, discovery=replace(member.discovery, found=None, told=found))
    if is_known:
        return member, ()
    inventory = Inventory(member=member.member, incarnation=facts.own(member), partitions=found)
    return awaiting(member, "report_partitions"), (effects.ReportPartitions(inventory=inventory),)


def rejoin(member: Member, now: float) -> Driven:
    """Leave the group, between two batches, so as to join it again: Kafka then assigns every partition."""
    known, view = member.discovery, member.view
    if not known.rejoin or member.batch is not None or not member.in_group or "leave" in member.awaited:
        return member, ()
    if view is None or view.state is not RegionState.RUNNING or not facts.is_well(member):
        return member, ()
    if known.rejoins and now - known.rejoined_at < REJOIN_PAUSE * REJOIN_FACTOR ** (known.rejoins - 1):
        return member, ()
    left = replace(known, rejoin=False, rejoins=known.rejoins + 1, rejoined_at=now)
    # Nothing is begun on what is given back in the same breath.
    return awaiting(replace(member, discovery=left, assignment=None), "leave"), (effects.LeaveGroup(),)
