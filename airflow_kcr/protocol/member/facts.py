"""Questions about a member's facts that several rules ask, and the two changes that several rules make."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from airflow_kcr.errors import IllegalEvent
from airflow_kcr.protocol.member.state import ACTIVE, MemberMachine, State, Why, moved
from airflow_kcr.protocol.offsets import EMPTY
from airflow_kcr.protocol.region.view import MemberRegion
from airflow_kcr.protocol.values import GroupPartition, Incarnation, Offset


def seconds(duration: timedelta) -> float:
    """Return a duration in seconds, as the member's clock counts."""
    return duration.total_seconds()


def doomed(member: MemberMachine) -> MemberMachine:
    """Return the member whose batch, if it has one, is not to be finished any more."""
    if member.batch is None or member.batch.doomed:
        return member
    return replace(member, batch=replace(member.batch, doomed=True))


def without_lease(member: MemberMachine) -> MemberMachine:
    """Return the member whose lease is lost: its batch is void, and it comes back as a new incarnation."""
    batch = None if member.batch is None else replace(member.batch, doomed=True)
    lost = replace(
        member,
        incarnation=None,
        batch=batch,
        batch_cause=None,
        claimed=None,
        claimed_epoch=None,
        positions=EMPTY,
        reset_epoch=None,
        found=None,
        prepared=None,
        view=None,
        view_is_stale=True,
        plan=None,
    )
    return moved(lost, State.JOINING) if member.state in ACTIVE else lost


def has_claimed(member: MemberMachine, view: MemberRegion) -> bool:
    """Whether the member's present assignment is claimed in the region's present epoch."""
    assignment = member.assignment
    return (
        assignment is not None
        and member.claimed == assignment.assignment
        and member.claimed_epoch == view.epoch
        and view.claims.keys() == assignment.partitions
    )


def is_doubtful(member: MemberMachine) -> bool:
    """Whether Kafka has fenced the member's client, and no lease renewed since says that it is this process."""
    return member.fenced_at is not None and member.lease_sent_at <= member.fenced_at


def is_well(member: MemberMachine) -> bool:
    """Whether the member holds a lease and means to stay."""
    return (
        member.incarnation is not None
        and member.state in ACTIVE
        and not member.terminating
        and member.why is not Why.STORE_AWAY
    )


def is_at_limit(member: MemberMachine, view: MemberRegion) -> bool:
    """Whether every partition of the member is at the boundary, or beyond."""
    if view.limit is None or not view.claims:
        return view.limit is not None and view.checkpoint is not None
    return all(
        p in view.boundary_offsets and member.positions.get(p, -1) >= view.boundary_offsets[p].offset
        for p in view.claims
    )


def past_skips(view: MemberRegion | None, partition: GroupPartition, offset: Offset) -> Offset:
    """Return the next offset at or after `offset` that is not skipped, as far as the view tells."""
    for skipped in () if view is None else view.skips.get(partition, ()):
        if skipped == offset:
            offset = Offset(skipped + 1)
    return offset


def own(member: MemberMachine) -> Incarnation:
    """Return the incarnation of a member that holds a lease."""
    if member.incarnation is None:
        raise IllegalEvent(f"{member.member} has no lease; nothing can be asked in its name")
    return member.incarnation


def next_due(member: MemberMachine, now: float) -> float:
    """Return the first moment after `now` at which the member has something to do because of the time alone.

    Of what comes often: a renewal, the next plan, a claim or a batch after a refusal. The rest may come a little late.
    """
    interval = seconds(member.timeouts.renew)
    moments = (
        (now // interval + 1) * interval,
        member.plan_after,
        member.claim_after,
        member.retry_at,
        member.register_after,
    )
    return min(moment for moment in moments if moment > now)
