"""Who comes to a region's groups, and leaves them.

A member is stable over restarts; each start is a new incarnation. An index with a live lease is not taken over by
accident; a takeover waits for a running drain, then fences. What an old incarnation left running is not quiesced before
its lease is over, plus the bound after which its process ends itself (scenario C51).

Which process a member is, its token says and not its incarnation, which is a number that a restored store gives away a
second time. A process that finds another one by its own number has no lease, whichever came first; it asks for the
index as any other process does (scenario C33).

A foreign consumer is in a group and none of the region's members. Who reports one may die the next moment: the region
keeps the report, and the next one corrects it. So a report names what is in a group now, not what came or went, and
telling it twice changes nothing.

What follows for checkpoints and resets is told by `coverage`.
"""

from __future__ import annotations

from datetime import datetime

from airflow_kcr.errors import MemberInUse, RegionInState, SpecOutdated, UnknownMember
from airflow_kcr.protocol.region import checkpoints, events, resets, rows
from airflow_kcr.protocol.region.commands import KeepSlot, Leave, Register, ReportGroups
from airflow_kcr.protocol.region.state import Region, put
from airflow_kcr.protocol.rules import ForeignConsumerPolicy
from airflow_kcr.protocol.values import GroupPartition, Incarnation, MemberId, drawn, replace


def register(region: Region, now: datetime, arrival: Register) -> Region:
    """Return the region with a new incarnation of the member, holding a fresh lease.

    Raises:
        UnknownMember: the spec has no such group, or no such index in it (scenario C20).
        RegionInState: the region is stopped; start it first.
        MemberInUse: another live process holds the index, or holds it until its running drain is over.
        SpecOutdated: the process has built the member from another spec.
    """
    member = arrival.member
    require_place(region, member)
    if arrival.spec_digest not in (None, region.spec.digest):
        raise SpecOutdated(
            f"{member} was built from another spec of region {region.name} than revision {region.spec.revision}, which "
            "is in force; build it again"
        )
    if region.state is rows.RegionState.STOPPED:
        raise RegionInState(f"region {region.name} is stopped; start it before its members join")
    row = region.members.get(member)
    own = row if row is not None and row.token == arrival.token else None
    if own is not None and region.is_live(member, now) and own.incarnation > (arrival.previous or 0):
        return region
    live = region.is_live(member, now) and own is None
    if live and not arrival.takeover:
        raise MemberInUse(f"{member} is held by {row.label if row else '?'}; stop that process or ask for a takeover")
    if live and region.state is rows.RegionState.DRAINING and member in checkpoints.awaited(region):
        raise MemberInUse(f"{member} is draining for checkpoint {region.open_checkpoint}; the takeover waits for that")
    region = with_predecessor_fenced(region, member)
    incarnation = Incarnation(1 if row is None else row.incarnation + 1)
    revision = region.spec.revision
    fresh = drawn(rows.Member, arrival, incarnation=incarnation, spec_revision=revision, arrived_at=now)
    lease = rows.Lease(incarnation=incarnation, until=now + region.rules.timeouts.lease)
    region = replace(region, members=put(region.members, {member: fresh}), leases=put(region.leases, {member: lease}))
    body = drawn(events.MemberRegistered, fresh, took_over=live)
    return resets.progress(lapse(region.record(now, body), now), now)


def require_place(region: Region, member: MemberId) -> None:
    """Refuse a member that the spec has no place for.

    Raises:
        UnknownMember: names the groups, or the indexes, that there are.
    """
    rules = region.rules.groups.get(member.group)
    if rules is None:
        known = ", ".join(sorted(region.rules.groups)) or "none"
        raise UnknownMember(f"region {region.name} has no group {member.group!r}; it has: {known}")
    if not 0 <= member.index < rules.members:
        raise UnknownMember(
            f"group {member.group} of region {region.name} has {rules.members} member(s), "
            f"indexes 0 to {rules.members - 1}; index {member.index} is not one of them"
        )


def with_predecessor_fenced(region: Region, member: MemberId) -> Region:
    """Note from when on the running batches of the earlier incarnation can't write any more.

    One in this very process says itself when it is quiesced, by discarding its batch, and mostly earlier than this.
    """
    row, lease = region.members.get(member), region.leases.get(member)
    if row is None or lease is None:
        return region
    quiesced_after = row.quiesced_after(lease.until)
    fenced = {
        b.batch: replace(b, quiesced_after=quiesced_after)
        for b in region.running.values()
        if b.member == member and b.incarnation == row.incarnation and b.quiesced_after is None
    }
    return replace(region, running=put(region.running, fenced), ledger=(*region.ledger, *fenced.values()))


def leave(region: Region, now: datetime, command: Leave) -> Region:
    """Return the region without the member's lease and claims: it left its group by itself.

    Its partitions have no owner until Kafka moves them; their resume points stay. One that has a batch running is not
    let go before that batch is closed, by its own discard or the lease's end. Who has left already need not leave.

    Raises:
        StaleIncarnation, UnknownMember, LeaseExpired: it may not act any more, and need not.
    """
    member, incarnation = command.member, command.incarnation
    known = region.members.get(member)
    if known is not None and known.left and known.incarnation == incarnation:
        return region
    return let_go(region, now, region.require_member(member, incarnation, now))


def let_go(region: Region, now: datetime, row: rows.Member) -> Region:
    """Return the region without a member's lease and claims: it left, or the spec has no place for it any more."""
    lease = region.leases.get(row.member)
    # One that died long ago can't write since then; nothing waits for it anew.
    ended = rows.Lease(incarnation=row.incarnation, until=now if lease is None else min(lease.until, now))
    dropped: dict[GroupPartition, rows.Claim] = {
        p: replace(c, owner=None, last_owner=row.member) for p, c in region.claims.items() if c.owner == row.member
    }
    region = replace(
        region,
        members=put(region.members, {row.member: replace(row, left=True)}),
        leases=put(region.leases, {row.member: ended}),
        claims=put(region.claims, dropped),
    )
    body = events.MemberLeft(member=row.member, incarnation=row.incarnation, dropped=tuple(sorted(dropped)))
    return region.record(now, body)


def keep_slot(region: Region, now: datetime, command: KeepSlot) -> Region:
    """Return the region with the member's lease ended but its claims in place: it stops and expects to come back.

    Kafka keeps a static member's partitions until its session is over; no other member could claim them before.

    Raises:
        StaleIncarnation, UnknownMember, LeaseExpired: it may not act any more, and need not.
    """
    member, incarnation = command.member, command.incarnation
    region.require_member(member, incarnation, now)
    lease = rows.Lease(incarnation=incarnation, until=now)
    region = replace(region, leases=put(region.leases, {member: lease}))
    return region.record(now, events.MemberLeft(member=member, incarnation=incarnation))


def lapse(region: Region, now: datetime) -> Region:
    """Return the region after leases that ended under an open checkpoint: the checkpoint is aborted at once.

    It is a reset where the member has left work behind; otherwise the checkpoint is tried again, and waits for the
    partitions to be covered, naming them.
    """
    member = checkpoints.lapsed(region, now)
    if member is None:
        return region
    begun = checkpoints.leaves_work(region, member)
    detail = f"the lease of {member} ended before its contribution to checkpoint {region.open_checkpoint}"
    region = checkpoints.abort(region, now, detail)
    return resets.demand(region, now, rows.ResetCause.LEASE_LOST, detail) if begun else region


def report_foreign_consumers(region: Region, now: datetime, report: ReportGroups) -> Region:
    """Return the region knowing who was found in its groups: halted or warned by its policy.

    Earlier reports about groups that were not checked stay.
    """
    groups, seen = region.rules.groups, report.seen
    there = {o for group, found in seen.items() if group in groups for o in found}
    unseen = {o for o in region.foreign_consumers if o.group in groups and o.group not in seen}
    known, policy = tuple(sorted(there | unseen)), region.rules.foreign_consumers
    is_news = known != region.foreign_consumers
    if is_news:
        body = events.ForeignConsumersChanged(foreign_consumers=known, policy=policy)
        region = replace(region, foreign_consumers=known).record(now, body)
    if there and policy is ForeignConsumerPolicy.FAIL:
        if region.state in rows.RESTING:
            return region  # a halted one keeps its reason, and what follows from it
        text = "; ".join(map(str, sorted(there)))
        choices = ("remove the foreign consumer, then resume", "set foreign_consumers to warn, then resume")
        return resets.halt(region, now, rows.Halt(reason=rows.HaltReason.FOREIGN_CONSUMER, text=text, choices=choices))
    # What a reset waits for is not the same any more.
    return resets.progress(region, now) if is_news else region
