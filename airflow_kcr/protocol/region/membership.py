"""Who comes to a region's groups and leaves them: members, foreign consumers; and which partitions have no owner.

A member is stable over restarts; each start is a new incarnation. An index with a live lease is not taken over by
accident; a takeover waits for a running drain, then fences. What an old incarnation left running is not quiesced before
its lease is over, plus the bound after which its process ends itself (scenario C51).

**Foreign consumers.** The reporting member may die the next moment: the region keeps the report, and the next report
corrects it. So a report names what is in a group now, not what came or went, and telling it twice changes nothing.

What follows for checkpoints and resets is told by `coverage`.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from airflow_kcr.errors import MemberInUse, RegionInState, SpecOutdated, UnknownMember
from airflow_kcr.protocol.region import checkpoints, coverage, events, lost_logs, resets
from airflow_kcr.protocol.region.commands import (
    KeepSlot,
    Leave,
    PartitionAdvice,
    Register,
    ReportForeignConsumer,
    ReportGroups,
    ReportPartitions,
)
from airflow_kcr.protocol.region.rows import (
    CLAIM_STATES,
    RESET_STATES,
    Claim,
    Halt,
    HaltReason,
    Lease,
    Member,
    RegionState,
    ResetCause,
)
from airflow_kcr.protocol.region.state import (
    BatchQuiescedAfter,
    Region,
    is_live,
    live_members,
    put,
    record,
    require_member,
    universe,
)
from airflow_kcr.protocol.rules import ForeignConsumerPolicy
from airflow_kcr.protocol.values import (
    GroupPartition,
    Incarnation,
    MemberId,
    replace,
)


def register(region: Region, now: datetime, arrival: Register) -> Region:
    """Return the region with a new incarnation of the member, holding a fresh lease.

    Raises:
        UnknownMember: the spec has no such group, or no such index in it (scenario C20).
        RegionInState: the region is stopped; start it first.
        MemberInUse: another live process holds the index, or holds it until its running drain is over.
        SpecOutdated: the process has built the member from an older spec.
    """
    member = arrival.member
    require_place(region, member)
    if arrival.spec_revision is not None and arrival.spec_revision < region.spec.revision:
        raise SpecOutdated(
            f"{member} was built from revision {arrival.spec_revision} of the spec of region {region.name}, "
            f"{region.spec.revision} is in force; build it again"
        )
    if region.state is RegionState.STOPPED:
        raise RegionInState(f"region {region.name} is stopped; start it before its members join")
    row = region.members.get(member)
    if row is not None and row.token == arrival.token and is_live(region, member, now):
        return region
    live = is_live(region, member, now) and row is not None and row.incarnation != arrival.previous
    if live and not arrival.takeover:
        raise MemberInUse(f"{member} is held by {row.label if row else '?'}; stop that process or ask for a takeover")
    if live and _is_draining(region, member):
        raise MemberInUse(f"{member} is draining for checkpoint {region.open_checkpoint}; the takeover waits for that")
    region = with_predecessor_fenced(region, member)
    incarnation = Incarnation(1 if row is None else row.incarnation + 1)
    fresh = Member(
        member=member,
        incarnation=incarnation,
        token=arrival.token,
        label=arrival.label,
        version=arrival.version,
        sinks_fenced=arrival.sinks_fenced,
        ends_within=arrival.ends_within,
        spec_revision=region.spec.revision,
        arrived_at=now,
    )
    lease = Lease(incarnation=incarnation, until=now + region.rules.timeouts.lease)
    region = replace(region, members=put(region.members, {member: fresh}), leases=put(region.leases, {member: lease}))
    body = events.MemberRegistered(member=member, incarnation=incarnation, label=arrival.label, took_over=live)
    return resets.progress(lapse(record(region, now, body), now), now)


def registered(region: Region, now: datetime, arrival: Register) -> Incarnation:
    """Return the incarnation that a registration has made, or found."""
    return region.members[arrival.member].incarnation


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


def _is_draining(region: Region, member: MemberId) -> bool:
    checkpoint = region.checkpoint
    return (
        region.state is RegionState.DRAINING
        and checkpoint is not None
        and member in checkpoint.participants
        and (checkpoint.sequence, member) not in region.contributions
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
    changes = tuple(BatchQuiescedAfter(batch=b, at=quiesced_after) for b in fenced)
    return replace(region, running=put(region.running, fenced), ledger=(*region.ledger, *changes))


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
    row = require_member(region, member, incarnation, now)
    rows: dict[GroupPartition, Claim] = {
        p: replace(c, owner=None, last_owner=member) for p, c in region.claims.items() if c.owner == member
    }
    region = replace(
        region,
        members=put(region.members, {member: replace(row, left=True)}),
        leases=put(region.leases, {member: Lease(incarnation=incarnation, until=now)}),
        claims=put(region.claims, rows),
    )
    body = events.MemberLeft(member=member, incarnation=incarnation, dropped=tuple(sorted(rows)))
    return record(region, now, body)


def keep_slot(region: Region, now: datetime, command: KeepSlot) -> Region:
    """Return the region with the member's lease ended but its claims in place: it stops and expects to come back.

    Kafka keeps a static member's partitions until its session is over; no other member could claim them before.

    Raises:
        StaleIncarnation, UnknownMember, LeaseExpired: it may not act any more, and need not.
    """
    member, incarnation = command.member, command.incarnation
    require_member(region, member, incarnation, now)
    lease = Lease(incarnation=incarnation, until=now)
    region = replace(region, leases=put(region.leases, {member: lease}))
    return record(region, now, events.MemberLeft(member=member, incarnation=incarnation))


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
    return resets.demand(region, now, ResetCause.LEASE_LOST, detail) if begun else region


# Foreign consumers


def report_foreign_consumers(region: Region, now: datetime, report: ReportGroups) -> Region:
    """Return the region knowing who was found in its groups: halted or warned by its policy.

    Earlier reports about groups that were not checked stay.
    """
    groups, seen = region.rules.groups, report.seen
    there = {o for group, found in seen.items() if group in groups for o in found}
    unseen = {o for o in region.foreign_consumers if o.group in groups and o.group not in seen}
    fresh = tuple(sorted(there.difference(region.foreign_consumers)))
    gone = tuple(o for o in region.foreign_consumers if o not in there and o not in unseen)
    if fresh or gone:
        region = replace(region, foreign_consumers=tuple(sorted(there | unseen)))
    if fresh:
        region = record(
            region, now, events.ForeignConsumersSeen(foreign_consumers=fresh, policy=region.rules.foreign_consumers)
        )
    if gone:
        region = record(region, now, events.ForeignConsumersGone(foreign_consumers=gone))
    if there and region.rules.foreign_consumers is ForeignConsumerPolicy.FAIL:
        return halt_for_foreign_consumer(region, now, ReportForeignConsumer(text="; ".join(map(str, sorted(there)))))
    # What a reset waits for is not the same any more.
    return resets.progress(region, now) if fresh or gone else region


def halt_for_foreign_consumer(region: Region, now: datetime, report: ReportForeignConsumer) -> Region:
    """Return the region halted because a foreign consumer is in one of its groups (policy `fail`).

    One that is halted keeps its reason, and what follows from it; one that is stopped has nothing to be halted.
    """
    if region.state in {RegionState.HALTED, RegionState.STOPPED}:
        return region
    choices = ("remove the foreign consumer, then resume", "set foreign_consumers to warn, then resume")
    return resets.halt(region, now, Halt(reason=HaltReason.FOREIGN_CONSUMER, text=report.text, choices=choices))


# Partitions without an owner


def report_partitions(region: Region, now: datetime, inventory: ReportPartitions) -> Region:
    """Return the region knowing which partitions of one group have no owner, and which the brokers do not have.

    Repeating it changes nothing, but that what has been absent for long enough is gone (`lost_logs`). An open
    checkpoint that was opened before such a partition was known is aborted, as it would be by the partition's claim.

    Raises:
        StaleIncarnation, UnknownMember, LeaseExpired: the member may not act.
    """
    require_member(region, inventory.member, inventory.incarnation, now)
    if region.state not in CLAIM_STATES:
        return region
    region = lost_logs.partitions_seen(region, now, inventory.member.group, inventory.partitions)
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


def ownership_claimed(region: Region, partitions: Collection[GroupPartition]) -> Region:
    """Return the region after partitions were claimed: they have an owner."""
    rows = {p: since for p, since in region.unowned.items() if p not in partitions}
    return region if len(rows) == len(region.unowned) else replace(region, unowned=rows)


def advice(region: Region, now: datetime, report: ReportPartitions) -> PartitionAdvice:
    """Return what a member has to do about the partitions of its group that have no owner."""
    group = report.member.group
    gone = frozenset(p for p in lost_logs.gone(region) if p.group == group)
    is_reset = region.state in RESET_STATES
    if not is_reset and not any(p.group == group for p in coverage.unowned(region)):
        return PartitionAdvice(report_again=any(p.group == group and p not in gone for p in region.absent), gone=gone)
    # A rebalance may cost a reset one more attempt; one that does not wait for the partition is done without it.
    waited_for = universe(region) if is_reset else coverage.overdue(region, now).keys()
    late = any(p.group == group and p in waited_for for p in coverage.overdue(region, now))
    return PartitionAdvice(report_again=True, rejoin=late and _would_help(region, now, report.member), gone=gone)


def _would_help(region: Region, now: datetime, member: MemberId) -> bool:
    """Whether a rebalance would give the group's partitions to its members, and this one is to cause it.

    While a partition's owner is down, Kafka keeps its slot, and a rebalance would keep all other members waiting for
    it. The owner comes back, or the end of its session is a rebalance. A foreign consumer gets its share of any.
    """
    group = member.group
    live = [m for m in live_members(region, now) if m.group == group]
    owners = {c.owner for p, c in region.claims.items() if p.group == group and c.owner is not None}
    is_foreign = any(foreign_consumer.group == group for foreign_consumer in region.foreign_consumers)
    drains = region.state is RegionState.DRAINING
    return not drains and live[:1] == [member] and owners <= set(live) and not is_foreign
