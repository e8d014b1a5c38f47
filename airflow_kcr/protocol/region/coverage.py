"""Who covers a region's partitions, and who is quiesced: what membership means for checkpoints and resets.

Questions only, about a region as it is: they decide when a reset may end and a checkpoint may open
(docs/explanation/what-if.md). A claim is *current* when its owner's newest incarnation made it in this epoch and holds
a live lease. Coverage by stale claims would let a region run with a partition that has no owner (scenario C50); being
quiesced is what keeps two incarnations from writing at once (C13, C51).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from airflow_kcr.protocol.region.rows import Batch, Claim, ResetCause
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.rules import ForeignConsumerPolicy
from airflow_kcr.protocol.values import GroupPartition, MemberId, format_instant

_NONE: Final[frozenset[GroupPartition]] = frozenset()


def is_current(region: Region, claim: Claim, now: datetime) -> bool:
    """Whether the claim's owner may act on it now."""
    if claim.owner is None or claim.epoch != region.epoch or not region.is_live(claim.owner, now):
        return False
    return region.members[claim.owner].incarnation == claim.incarnation


def missing(region: Region, now: datetime) -> dict[GroupPartition, MemberId | None]:
    """Return the partitions that no current claim covers, each with its last owner."""
    return {p: last_owner(region, p) for p in sorted(region.universe() - covered(region, now))}


def last_owner(region: Region, partition: GroupPartition) -> MemberId | None:
    """Return who has a partition, or had it last."""
    claim = region.claim_of(partition)
    return claim.owner or claim.last_owner


def gap_text(partition: GroupPartition, owner: MemberId | None) -> str:
    """Return what is said of a partition that no current claim covers."""
    return f"{partition} is not covered (last owner: {owner or 'none'})"


def covered(region: Region, now: datetime) -> frozenset[GroupPartition]:
    """Return the partitions with a current claim."""
    # A lease and an incarnation are looked up once for each member, not for each of its claims.
    incarnations = {member: region.members[member].incarnation for member in region.live_members(now)}
    return frozenset(
        p
        for p, claim in region.claims.items()
        if claim.epoch == region.epoch
        and claim.owner is not None
        and incarnations.get(claim.owner) == claim.incarnation
    )


def held_by(region: Region, member: MemberId, now: datetime) -> dict[GroupPartition, Claim]:
    """Return the current claims of one member."""
    if not region.is_live(member, now):
        return {}
    incarnation = region.members[member].incarnation
    return {p: claim for p, claim in region.claims.items() if claim.is_of(member, incarnation, region.epoch)}


def taken(region: Region, now: datetime) -> frozenset[GroupPartition]:
    """Return the partitions that Kafka has given to foreign consumers, as far as the store can tell.

    A foreign consumer was found in their group, every live member of it has claimed in this epoch, and no member holds
    them. What a dead member held is its own until its session is over.
    """
    if not region.foreign_consumers:
        return _NONE
    live = region.live_members(now)
    complete = {
        group
        for group in {o.group for o in region.foreign_consumers}
        if (own := [m for m in live if m.group == group])
        and all(region.members[m].claimed == region.epoch for m in own)
    }
    return (
        frozenset(p for p in region.universe() if p.group in complete and _is_free(region, p, now))
        if complete
        else _NONE
    )


def _is_free(region: Region, partition: GroupPartition, now: datetime) -> bool:
    """Whether no member holds a partition any more, not even as a slot that Kafka keeps for it."""
    claim = region.claim_of(partition)
    if claim.owner is None:
        return True
    if region.is_live(claim.owner, now):
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
        p for p in excused(region, now) if (claim := region.claim_of(p)).position is not None and not claim.is_in_flight
    )


def gaps(region: Region, now: datetime) -> Iterator[str]:
    """Yield what the region waits to be covered, with who had it last, and who else is in its group."""
    without = excused(region, now)
    for partition, owner in missing(region, now).items():
        if partition not in without:
            others = strangers(region, partition)
            beside = f"; beside its members there is {others}" if others else ""
            yield gap_text(partition, owner) + beside


def strangers(region: Region, partition: GroupPartition) -> str:
    """Return the foreign consumers in a partition's group, by name; empty: there are none."""
    return "; ".join(str(o) for o in region.foreign_consumers if o.group == partition.group)


def could_cover(region: Region, now: datetime) -> bool:
    """Whether members with leases could cover every partition: only then does an attempt's deadline run.

    For Kafka, a partition whose last owner is dead stays with it until its session is over; no other member can claim
    it before, so no attempt is burnt meanwhile (scenarios C14, C37). Nor is one for what foreign
    consumers have, where the region does without it.
    """
    partitions = region.universe() - excused(region, now)
    live = set(region.live_members(now))
    groups_served = {m.group for m in live}
    if not partitions or not live:
        return False
    for partition in partitions:
        owner = region.claim_of(partition).owner
        if not (partition.group in groups_served if owner is None else owner in live):
            return False
    return True


def unowned(region: Region) -> dict[GroupPartition, datetime]:
    """Return the partitions that the brokers have, the spec subscribes to and no member owns, each with since when."""
    return {
        p: row.since
        for p, row in sorted(region.unserved.items())
        if row.is_there and region.rules.subscribes(p.group, p.topic)
    }


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
    return tuple(m for m in expected_members(region) if not region.is_live(m, now))


def expected_members(region: Region) -> tuple[MemberId, ...]:
    """Return every member that the spec in force asks for."""
    return tuple(MemberId(g, i) for g, rules in sorted(region.rules.groups.items()) for i in range(rules.members))


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
    for member in region.live_members(now):
        if region.members[member].acknowledged != region.epoch:
            yield f"{member} has not acknowledged epoch {region.epoch}"
    for batch in region.running.values():
        if batch.epoch != region.epoch and not is_batch_quiesced(region, batch, now):
            moment = None if region.is_live(batch.member, now) else _quiesced_after(region, batch)
            until = "" if moment is None else f", until {format_instant(moment)} at the latest"
            yield f"batch {batch.batch} of {batch.member}, incarnation {batch.incarnation}, may still write{until}"


def unready(region: Region, now: datetime) -> Iterator[str]:
    """Yield whatever keeps the running reset from ending, by name; nothing: it may end."""
    reset = region.reset
    if reset is None:
        return
    if not region.universe():
        yield "no partition is known yet: no topic matches, or no member has been assigned one"
    without = excused(region, now)
    for partition in region.seek.open:
        known = partition in region.claims and region.belongs(partition)
        if known and partition not in without:
            yield f"{partition} has no seek offset yet ({region.seek[partition].source})"
    yield from gaps(region, now)
    yield from busy(region, now)
    for member in arriving(region, now):
        until = _arrived_by(region)
        at = "" if until is None else f", until {format_instant(until)} at the latest"
        yield f"{member} has not arrived{at}"
    for sequence in reset.must_publish:
        # The region holds every one that is not published.
        if sequence in region.checkpoints and region.checkpoints[sequence].published_at is None:
            yield f"checkpoint {sequence} is complete but not published"


def horizon(region: Region, now: datetime) -> datetime | None:
    """Return the next moment at which time alone changes what this module says, or None."""
    moments = [lease.until for m, lease in region.leases.items() if region.is_live(m, now)]
    moments += [moment for batch in region.running.values() if (moment := _quiesced_after(region, batch)) is not None]
    moments += [since + region.rules.timeouts.unowned_wait for since in awaited(region, now).values()]
    arrived_by = _arrived_by(region)
    if arrived_by is not None and arriving(region, now):
        moments.append(arrived_by)
    if region.foreign_consumers:
        moments += [over for member in region.leases if (over := _session_over(region, member)) is not None]
    return min((m for m in moments if m > now), default=None)
