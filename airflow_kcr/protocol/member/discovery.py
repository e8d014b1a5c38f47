"""Looking for new partitions, and for those that are there no more.

Kafka is not believed about partitions: it gives a static member that comes back its old assignment without a rebalance,
and only the leader of a group rejoins when it sees that a topic has grown. So every member asks the brokers itself,
after each claim and once a lease, and tells the store what it has not told yet; the store knows what has an owner.

The old assignment may also hold partitions that are there no more. No member can claim those, so the brokers are asked
then too. Once the store knows that they are gone, or the brokers have lacked one for as long that no member ever
claimed, the member joins again.
"""

from __future__ import annotations

from typing import Final

from airflow_kcr.protocol.member import messages, state
from airflow_kcr.protocol.member.messages import GroupRequest
from airflow_kcr.protocol.member.state import Driven, MemberMachine, asking
from airflow_kcr.protocol.region import commands
from airflow_kcr.protocol.region.rows import CLAIM_STATES, RegionState
from airflow_kcr.protocol.values import replace

_ASKED: Final = frozenset({GroupRequest.DISCOVER_PARTITIONS, commands.ReportPartitions})

REJOIN_PAUSE: Final = 30.0
"""Seconds between the first rejoin and the second; each further pause is `REJOIN_FACTOR` times as long.

A rebalance may cost the group a reset. Where rejoining does not help, a region must still get to its next
checkpoints.
"""


REJOIN_FACTOR: Final = 4.0


def discover(member: MemberMachine, now: float) -> Driven:
    """Ask the brokers what they have: after each claim, once a lease, and where a claim lacks logs."""
    view, known = member.view, member.discovery
    if view is None or not state.is_well(member) or member.awaited & _ASKED:
        return member, ()
    if known.claim_lacks_logs:
        asked = replace(known, claim_lacks_logs=False, reported=None)
        return asking(replace(member, discovery=asked), GroupRequest.DISCOVER_PARTITIONS)
    # A reset and a drain wait for every partition that was known, so in them, too, it matters which are there no more.
    if view.state not in CLAIM_STATES or not state.has_claimed(member, view):
        return member, ()
    if known.asked_for == member.claimed:
        if now - known.asked_at < state.seconds(member.timeouts.lease):
            return member, ()
    else:
        known = replace(known, reported=None)
    asked = replace(known, asked_at=now, asked_for=member.claimed)
    return asking(replace(member, discovery=asked), GroupRequest.DISCOVER_PARTITIONS)


def report(member: MemberMachine, now: float) -> Driven:
    """Report to the store what was found, if it differs from the last report."""
    found = member.discovery.found
    if found is None or not state.is_well(member):
        return member, ()
    is_known = found == member.discovery.reported
    member = replace(member, discovery=replace(member.discovery, found=None, reported=found))
    if is_known:
        return member, ()
    inventory = commands.ReportPartitions(member=member.member, incarnation=state.own(member), partitions=found)
    return asking(member, inventory)


def rejoin(member: MemberMachine, now: float) -> Driven:
    """Leave the group, between two batches, so as to join it again: Kafka then assigns what there is, all of it."""
    known, view = member.discovery, member.view
    if (
        view is None
        or member.batch is not None
        or not member.in_group
        or not {messages.ClaimAssignment, GroupRequest.LEAVE}.isdisjoint(member.awaited)
    ):
        return member, ()
    # What can't be claimed keeps a member from everything, a drain too; what has no owner waits until that is over.
    held = frozenset() if member.assignment is None else member.assignment.partitions
    can_claim = member.claim_backoff == 0 or (held.isdisjoint(known.gone) and not known.lacks)
    if can_claim and (not known.rejoin or member.awaited & _ASKED or view.state is RegionState.DRAINING):
        return member, ()
    if view.state not in CLAIM_STATES or not state.is_well(member):
        return member, ()
    if known.rejoins and now - known.rejoined_at < REJOIN_PAUSE * REJOIN_FACTOR ** (known.rejoins - 1):
        return member, ()
    left = replace(known, rejoin=False, lacks_since=None, lacks=False, rejoins=known.rejoins + 1, rejoined_at=now)
    # Nothing is started on what is given back in the same breath.
    return asking(replace(member, discovery=left, assignment=None), GroupRequest.LEAVE)
