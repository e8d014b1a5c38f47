"""Who is in a region's groups: members, foreign consumers, who covers the partitions, and who is quiesced.

A member is stable over restarts; each start is a new incarnation. An index with a live lease is not taken over by
accident; a takeover waits for a running drain, then fences. What an old incarnation left running is not quiesced before
its lease is over, plus the bound after which its process ends itself (scenario C51).

**Foreign consumers.** The reporting member may die the next moment: the region keeps the report, and the next report
corrects it. So a report names what is in a group now, not what came or went, and telling it twice changes nothing.

**Coverage** says when a reset may end and a checkpoint may open (docs/explanation/what-if.md). A claim is *current*
when its owner's newest incarnation made it in this epoch and holds a live lease. Coverage by stale claims would let a
region run with a partition that has no owner (scenario C50); being quiesced is what keeps two incarnations from writing
at once (C13, C51).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from airflow_kcr.errors import MemberInUse, RegionInState, SpecOutdated, UnknownMember
from airflow_kcr.protocol.commands import GroupStanding, Register, ReportPartitions
from airflow_kcr.protocol.observations import ForeignConsumer
from airflow_kcr.protocol.region import checkpoints, events, lost_logs, resets
from airflow_kcr.protocol.region.rows import (
    CLAIM_STATES,
    RESET_STATES,
    Batch,
    CheckpointPurpose,
    CheckpointRequest,
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
    belongs,
    is_live,
    live_members,
    put,
    record,
    require_member,
    universe,
)
from airflow_kcr.protocol.rules import ForeignConsumerPolicy
from airflow_kcr.protocol.values import (
    CheckpointNumber,
    GroupId,
    GroupPartition,
    Incarnation,
    MemberId,
    format_instant,
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


def leave(region: Region, now: datetime, member: MemberId, incarnation: Incarnation) -> Region:
    """Return the region without the member's lease and claims: it left its group by itself.

    Its partitions have no owner until Kafka moves them; their resume points stay. One that has a batch running is not
    let go before that batch is closed, by its own discard or the lease's end. Who has left already need not leave.

    Raises:
        StaleIncarnation, UnknownMember, LeaseExpired: it may not act any more, and need not.
    """
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


def keep_slot(region: Region, now: datetime, member: MemberId, incarnation: Incarnation) -> Region:
    """Return the region with the member's lease ended but its claims in place: it stops and expects to come back.

    Kafka keeps a static member's partitions until its session is over; no other member could claim them before.

    Raises:
        StaleIncarnation, UnknownMember, LeaseExpired: it may not act any more, and need not.
    """
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


def holding_for(region: Region) -> tuple[ForeignConsumer, ...]:
    """Return the foreign consumers that the region holds for; empty: it does not hold."""
    if not region.foreign_consumers or region.rules.foreign_consumers is not ForeignConsumerPolicy.HOLD:
        return ()
    return tuple(o for o in region.foreign_consumers if o.group in region.rules.groups)


def lets_open(region: Region, request: CheckpointRequest) -> bool:
    """Whether the checkpoint of this request may open: any while the region does not hold, else only that of a stop.

    A stop starts nothing, and a person has to be able to leave a group that a foreign consumer has entered.
    """
    return request.purpose is CheckpointPurpose.STOP or not holding_for(region)


def report_foreign_consumers(
    region: Region, now: datetime, seen: Mapping[GroupId, tuple[ForeignConsumer, ...]]
) -> Region:
    """Return the region knowing who was found in its groups: halted, holding or warned by its policy.

    Args:
        region: the region.
        now: the store's clock.
        seen: the foreign consumers of each checked group; empty: it is clean. Reports about groups that were not
            checked stay.
    """
    groups = region.rules.groups
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
        return halt_for_foreign_consumer(region, now, "; ".join(map(str, sorted(there))))
    # What a reset waits for is not the same any more.
    return resets.progress(region, now) if fresh or gone else region


def halt_for_foreign_consumer(region: Region, now: datetime, text: str) -> Region:
    """Return the region halted because a foreign consumer is in one of its groups (policy `fail`).

    One that is halted keeps its reason, and what follows from it; one that is stopped has nothing to be halted.
    """
    if region.state in {RegionState.HALTED, RegionState.STOPPED}:
        return region
    choices = ("remove the foreign consumer, then resume", "set foreign_consumers to hold or warn, then resume")
    return resets.halt(region, now, Halt(reason=HaltReason.FOREIGN_CONSUMER, text=text, choices=choices))


# Coverage

_NONE: Final[frozenset[GroupPartition]] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """One partition without coverage."""

    partition: GroupPartition
    last_owner: MemberId | None

    def __str__(self) -> str:
        return f"{self.partition} (last owner: {self.last_owner or 'none'})"


def is_current(region: Region, claim: Claim, now: datetime) -> bool:
    """Whether the claim's owner may act on it now."""
    if claim.owner is None or claim.epoch != region.epoch or not is_live(region, claim.owner, now):
        return False
    return region.members[claim.owner].incarnation == claim.incarnation


def missing(region: Region, now: datetime) -> tuple[Missing, ...]:
    """Return the partitions that no current claim covers, with their last owners."""
    found = []
    for partition in sorted(universe(region) - covered(region, now)):
        claim = region.claims.get(partition)
        last = None if claim is None else claim.owner or claim.last_owner
        found.append(Missing(partition=partition, last_owner=last))
    return tuple(found)


def covered(region: Region, now: datetime) -> frozenset[GroupPartition]:
    """Return the partitions with a current claim."""
    # A lease and an incarnation are looked up once for each member, not for each of its claims.
    incarnations = {member: region.members[member].incarnation for member in live_members(region, now)}
    return frozenset(
        p
        for p, claim in region.claims.items()
        if claim.epoch == region.epoch
        and claim.owner is not None
        and incarnations.get(claim.owner) == claim.incarnation
    )


def held_by(region: Region, member: MemberId, now: datetime) -> dict[GroupPartition, Claim]:
    """Return the current claims of one member."""
    if not is_live(region, member, now):
        return {}
    incarnation = region.members[member].incarnation
    return {
        p: claim
        for p, claim in region.claims.items()
        if claim.epoch == region.epoch and claim.incarnation == incarnation and claim.owner == member
    }


def taken(region: Region, now: datetime) -> frozenset[GroupPartition]:
    """Return the partitions that Kafka has given to foreign consumers, as far as the store can tell.

    A foreign consumer was found in their group, every live member of it has claimed in this epoch, and no member holds
    them. What a dead member held is its own until its session is over.
    """
    if not region.foreign_consumers:
        return _NONE
    live = live_members(region, now)
    complete = {
        group
        for group in {o.group for o in region.foreign_consumers}
        if (own := [m for m in live if m.group == group])
        and all(region.members[m].claimed == region.epoch for m in own)
    }
    return (
        frozenset(p for p in universe(region) if p.group in complete and _is_free(region, p, now))
        if complete
        else _NONE
    )


def _is_free(region: Region, partition: GroupPartition, now: datetime) -> bool:
    """Whether no member holds a partition any more, not even as a slot that Kafka keeps for it."""
    claim = region.claims.get(partition)
    if claim is None or claim.owner is None:
        return True
    if is_live(region, claim.owner, now):
        return not is_current(region, claim, now)
    over = _session_over(region, claim.owner)
    return over is None or over <= now


def _session_over(region: Region, member: MemberId) -> datetime | None:
    """Return when Kafka has surely given up the slot of a member that renews its lease no more; None: it has none."""
    lease, rules = region.leases.get(member), region.rules.groups.get(member.group)
    if lease is None or rules is None:
        return None
    return lease.until + region.rules.timeouts.session_timeout(static=rules.static_membership)


def excused(region: Region, now: datetime) -> frozenset[GroupPartition]:
    """Return the partitions that the region leaves out: foreign consumers have them, and its policy is to warn."""
    return taken(region, now) if region.rules.foreign_consumers is ForeignConsumerPolicy.WARN else _NONE


def left_out(region: Region, now: datetime) -> frozenset[GroupPartition]:
    """Return the excused partitions that a checkpoint may have where they stand: nothing is open or in flight there."""
    return frozenset(
        p
        for p in excused(region, now)
        if (claim := region.claims.get(p)) is not None and claim.position is not None and not claim.is_in_flight
    )


def gaps(region: Region, now: datetime) -> Iterator[str]:
    """Yield what the region waits to be covered, with who had it last, and who else is in its group."""
    without = excused(region, now)
    for gap in missing(region, now):
        if gap.partition not in without:
            strangers = "; ".join(str(o) for o in region.foreign_consumers if o.group == gap.partition.group)
            beside = f"; beside its members there is {strangers}" if strangers else ""
            yield f"{gap.partition} is not covered (last owner: {gap.last_owner or 'none'}{beside})"


def could_cover(region: Region, now: datetime) -> bool:
    """Whether members with leases could cover every partition: only then does an attempt's deadline run.

    For Kafka, a partition whose last owner is dead stays with it until its session is over; no other member can claim
    it before, so no attempt is burnt meanwhile (scenarios C14, C37). Nor is one for what a foreign
    consumer has: a region that holds waits for that to end, one that is to warn does without.
    """
    strange = taken(region, now)
    if strange and region.rules.foreign_consumers is not ForeignConsumerPolicy.WARN:
        return False
    partitions = universe(region) - strange
    live = set(live_members(region, now))
    groups_served = {m.group for m in live}
    if not partitions or not live:
        return False
    for partition in partitions:
        claim = region.claims.get(partition)
        owner = None if claim is None else claim.owner
        if owner is None and partition.group not in groups_served:
            return False
        if owner is not None and owner not in live:
            return False
    return True


def unowned(region: Region) -> dict[GroupPartition, datetime]:
    """Return the partitions that the brokers have, the spec subscribes to and no member owns, each with since when."""
    return {p: since for p, since in sorted(region.unowned.items()) if region.rules.subscribes(p.group, p.topic)}


def overdue(region: Region, now: datetime) -> dict[GroupPartition, datetime]:
    """Return the partitions that have had no owner for longer than a rebalance that begins by itself takes."""
    limit = region.rules.timeouts.rejoin_after
    return {p: since for p, since in unowned(region).items() if now - since >= limit}


def awaited(region: Region, now: datetime) -> dict[GroupPartition, datetime]:
    """Return the partitions without an owner that a checkpoint still waits for."""
    limit = region.rules.timeouts.unowned_wait
    return {p: since for p, since in unowned(region).items() if now - since < limit}


def arriving(region: Region, now: datetime) -> tuple[MemberId, ...]:
    """Return the members of the spec without a lease that the running start still waits for, in order.

    Members seldom come at one moment. The first of them gets every partition; had it started batches, each that comes
    later would wait for them, and where sinks hold output it would cost a reset.
    """
    until = _arrived_by(region)
    if until is None or until <= now:
        return ()
    places = (MemberId(g, i) for g, rules in sorted(region.rules.groups.items()) for i in range(rules.members))
    return tuple(m for m in places if not is_live(region, m, now))


def _arrived_by(region: Region) -> datetime | None:
    """Return until when a start waits for members; None: none runs, or those that live can't cover all partitions."""
    reset, timeouts = region.reset, region.rules.timeouts
    if reset is None or reset.cause is not ResetCause.START or reset.deadline is None:
        return None
    return reset.deadline - timeouts.reset + timeouts.arrival_wait


def is_batch_quiesced(region: Region, batch: Batch, now: datetime) -> bool:
    """Whether a started, unfinished batch of an older epoch can't write any more.

    It can't once its incarnation has acknowledged the epoch (which ends the batch), or its lease is over plus the bound
    after which its process ends itself; the lease alone where all its sinks are fenced.
    """
    moment = _quiesced_after(region, batch)
    return moment is not None and moment <= now


def _quiesced_after(region: Region, batch: Batch) -> datetime | None:
    """Return when time alone quiesces a batch; None: it is not known yet, something else has to come first."""
    if batch.quiesced_after is not None:
        return batch.quiesced_after
    member, lease = region.members.get(batch.member), region.leases.get(batch.member)
    if member is None or lease is None or lease.incarnation != batch.incarnation:
        return None
    return member.quiesced_after(lease.until)


def busy(region: Region, now: datetime) -> Iterator[str]:
    """Yield who is not quiesced in this epoch, by name: the reset waits for each of them."""
    for member in live_members(region, now):
        if region.members[member].acknowledged != region.epoch:
            yield f"{member} has not acknowledged epoch {region.epoch}"
    for batch in region.running.values():
        if batch.epoch != region.epoch and not is_batch_quiesced(region, batch, now):
            moment = None if is_live(region, batch.member, now) else _quiesced_after(region, batch)
            until = "" if moment is None else f", until {format_instant(moment)} at the latest"
            yield f"batch {batch.batch} of {batch.member}, incarnation {batch.incarnation}, may still write{until}"


def unready(region: Region, now: datetime) -> Iterator[str]:
    """Yield whatever keeps the running reset from ending, by name; nothing: it may end."""
    reset = region.reset
    if reset is None:
        return
    if not universe(region):
        yield "no partition is known yet: no topic matches, or no member has been assigned one"
    without = excused(region, now)
    for partition in region.seek.open:
        known = partition in region.claims and belongs(region, partition)
        if known and partition not in without:
            yield f"{partition} has no seek offset yet ({region.seek[partition].source})"
    yield from gaps(region, now)
    yield from busy(region, now)
    for member in arriving(region, now):
        until = _arrived_by(region)
        at = "" if until is None else f", until {format_instant(until)} at the latest"
        yield f"{member} has not arrived{at}"
    for sequence in reset.must_publish:
        if is_unpublished(region, sequence):
            yield f"checkpoint {sequence} is complete but not published"


def is_unpublished(region: Region, sequence: CheckpointNumber) -> bool:
    """Whether a checkpoint that was complete once still is, and not published: the region holds every one of these."""
    return sequence in region.checkpoints and region.checkpoints[sequence].published_at is None


def horizon(region: Region, now: datetime) -> datetime | None:
    """Return the next moment at which time alone changes what this module says, or None."""
    moments = [lease.until for m, lease in region.leases.items() if is_live(region, m, now)]
    moments += [moment for batch in region.running.values() if (moment := _quiesced_after(region, batch)) is not None]
    moments += [since + region.rules.timeouts.unowned_wait for since in awaited(region, now).values()]
    arrived_by = _arrived_by(region)
    if arrived_by is not None and arriving(region, now):
        moments.append(arrived_by)
    if region.foreign_consumers:
        moments += [over for member in region.leases if (over := _session_over(region, member)) is not None]
    return min((m for m in moments if m > now), default=None)


def report_partitions(region: Region, now: datetime, inventory: ReportPartitions) -> Region:
    """Return the region knowing which partitions of one group have no owner, and which the brokers do not have.

    Repeating it changes nothing, but that what has been absent for long enough is gone (`lost_logs`). An open
    checkpoint that was opened before such a partition was known is aborted, as it would be by the partition's claim.

    Args:
        region: the region.
        now: the store's clock.
        inventory: what the brokers have.

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
    left = left_out(region, now)
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


def standing(region: Region, now: datetime, member: MemberId) -> GroupStanding:
    """Return what a member has to do about the partitions of its group that have no owner."""
    group = member.group
    gone = frozenset(p for p in lost_logs.gone(region) if p.group == group)
    is_reset = region.state in RESET_STATES
    if not is_reset and not any(p.group == group for p in unowned(region)):
        return GroupStanding(again=any(p.group == group and p not in gone for p in region.absent), gone=gone)
    # A rebalance may cost a reset one more attempt; one that does not wait for the partition is done without it.
    waited_for = universe(region) if is_reset else overdue(region, now).keys()
    late = any(p.group == group and p in waited_for for p in overdue(region, now))
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
    drains = region.state is RegionState.DRAINING
    return not drains and live[:1] == [member] and owners <= set(live) and not is_foreign
