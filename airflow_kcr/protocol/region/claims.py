"""Claims: what the store grants of what Kafka proposes (docs/reference/states.md).

A member claims its whole assignment at once. A rebalance is absorbed at the resume point if nothing was started; if
another owner has started a batch in this epoch, the claim begins a reset in the same transaction, because both owners
may have processed the same records (scenarios C2, C3, C44, C45). A member's own re-claim keeps row, position and
running batch. Callbacks only notify; the claim decides.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from airflow_kcr.errors import ConfigurationError, OffsetOutsideLog
from airflow_kcr.protocol.commands import ClaimPartitions
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region import absent_partitions, checkpoints, clusters, coverage, events, out_of_range, resets
from airflow_kcr.protocol.region.rows import CLAIM_STATES, RESET_STATES, Claim, InitialOffset, ResetCause
from airflow_kcr.protocol.region.state import (
    InitialKey,
    Region,
    initial_offset,
    put,
    record,
    require_member,
    require_state,
)
from airflow_kcr.protocol.seek_map import SeekEntry, SeekMap, SeekSource
from airflow_kcr.protocol.values import Epoch, GroupPartition, TopicId, checked


def claim(region: Region, now: datetime, proposal: ClaimPartitions) -> Region:
    """Return the region with the member's claims replaced by its assignment.

    The member reads from the answer (`Region.claims`, `Region.epoch`) what it holds and where; where a reset began, it
    claims again when it is quiesced. Where the claim's logs are another cluster's, the region is halted.

    Raises:
        StaleIncarnation, LeaseExpired, UnknownMember: the member may not act.
        RegionInState: the region is halted or stopped.
        ConfigurationError: a partition is not of the member's group or not of its subscription.
        OffsetOutsideLog: a proposed initial offset does not lie in the log that was read with it.
    """
    member = require_member(region, proposal.member, proposal.incarnation, now)
    require_state(region, CLAIM_STATES, "a claim")
    _check(region, proposal)
    if clusters.is_another(region, proposal.member.group, proposal.cluster):
        return clusters.halted(region, now, proposal.member.group, proposal.cluster)
    region = clusters.found(region, now, proposal.member.group, proposal.cluster)
    region = _with_initial_offsets(region, now, proposal)
    trouble = out_of_range.found(region, {p: a.bounds for p, a in proposal.partitions.items()})
    if trouble:
        return out_of_range.handled(region, now, trouble)

    held = {p for p, c in region.claims.items() if c.owner == proposal.member}
    dropped = tuple(sorted(held - proposal.partitions.keys()))
    contested = tuple(p for p in sorted(proposal.partitions) if _is_contested(region, p, proposal))
    moved = contested or _moves(region, proposal)
    taken = {
        p: owner
        for p in sorted(proposal.partitions)
        if (owner := region.claims[p].owner) is not None and owner != proposal.member
    }
    rows = {p: replace(region.claims[p], owner=None, last_owner=proposal.member) for p in dropped}
    rows.update({p: _granted(region, p, proposal) for p in proposal.partitions})
    settled = region.state not in RESET_STATES and not contested
    row = replace(
        member,
        assignment=proposal.assignment,
        claimed=region.epoch,
        acknowledged=region.epoch if settled else member.acknowledged,
        arrived_at=now,
    )
    region = replace(region, claims=put(region.claims, rows), members=put(region.members, {proposal.member: row}))
    region = absent_partitions.claimed(coverage.claimed(region, proposal.partitions.keys()), proposal.partitions.keys())
    body = events.Claimed(
        member=proposal.member,
        incarnation=proposal.incarnation,
        assignment=proposal.assignment,
        epoch=region.epoch,
        partitions=tuple(sorted(proposal.partitions)),
        dropped=dropped,
        taken=taken,
    )
    region = record(region, now, body)
    if contested:
        detail = f"{proposal.member} was assigned {', '.join(map(str, contested[:5]))}, where another was before"
        return resets.demand(region, now, ResetCause.CLAIM, detail)
    if moved and region.open_checkpoint is not None:
        return checkpoints.abort(region, now, f"{proposal.member} claimed partitions that were not its own")
    return region


def _check(region: Region, proposal: ClaimPartitions) -> None:
    for partition in proposal.partitions:
        checked(partition.partition, f"the partition number of {partition}")
        if partition.group != proposal.member.group or not region.rules.subscribes(partition.group, partition.topic):
            raise ConfigurationError(
                f"{proposal.member} claims {partition}, which the spec of region {region.name} does not give its "
                "group; does the running member use an older spec?"
            )


def _with_initial_offsets(region: Region, now: datetime, proposal: ClaimPartitions) -> Region:
    """Store what is new about the partitions: rows, topic ids, initial offsets; the first writer wins, for ever."""
    rows: dict[GroupPartition, Claim] = {}
    fresh: dict[InitialKey, InitialOffset] = {}
    named: dict[InitialKey, InitialOffset] = {}
    for partition, assigned in proposal.partitions.items():
        row = region.claims.get(partition)
        if (
            row is None
            or not row.topic_id
            or (row.position is None and (partition, row.topic_id) not in region.initial)
        ):
            rows[partition] = replace(row or Claim(), topic_id=assigned.bounds.topic_id)
        topic_id = (rows.get(partition) or row or Claim()).topic_id
        start, nameless = assigned.initial, region.initial.get((partition, TopicId("")))
        if (partition, topic_id) in region.initial:
            continue
        if assigned.bounds.topic_id not in {TopicId(""), topic_id}:
            # What was read is another topic's log; the out-of-range policy decides, and the next claim stores.
            continue
        if nameless is not None and row is not None and not row.topic_id:
            # The broker now tells the id of a topic that was known without one: its start position stays resolved.
            named[partition, topic_id] = nameless
            continue
        if start is None or start.offset is None:
            continue
        if start.offset not in assigned.bounds:
            raise OffsetOutsideLog(
                f"{partition}: the start position {start.offset} is not in the log "
                f"[{assigned.bounds.start}, {assigned.bounds.end}]"
            )
        fresh[partition, topic_id] = InitialOffset(
            offset=start.offset, source=str(start.source), bounds=assigned.bounds
        )
    region = replace(region, claims=put(region.claims, rows), initial=put(region.initial, {**fresh, **named}))
    if fresh:
        body = events.InitialOffsetsStored(
            offsets=OffsetMap({p: row.offset for (p, _), row in fresh.items()}),
            bounds={p: row.bounds for (p, _), row in fresh.items()},
            sources={p: row.source for (p, _), row in fresh.items()},
        )
        region = record(region, now, body)
    return _with_resume_points(region, now, proposal)


def _with_resume_points(region: Region, now: datetime, proposal: ClaimPartitions) -> Region:
    """Write the seek entries that only waited for an initial offset, and those of partitions never seen before."""
    entries: dict[GroupPartition, SeekEntry] = {}
    for partition in proposal.partitions:
        entry, initial = region.seek.get(partition), initial_offset(region, partition)
        if region.claims[partition].resume is not None or initial is None:
            continue
        if entry is None:
            entries[partition] = SeekEntry(offset=initial.offset, source=SeekSource.INITIAL)
        elif entry.offset is None and entry.source is SeekSource.START_POSITION:
            entries[partition] = SeekEntry(offset=initial.offset, source=SeekSource.START_POSITION)
    return resets.write_seek(region, now, SeekMap(entries))


def _is_own(row: Claim, proposal: ClaimPartitions, epoch: Epoch) -> bool:
    return row.owner == proposal.member and row.incarnation == proposal.incarnation and row.epoch == epoch


def _is_contested(region: Region, partition: GroupPartition, proposal: ClaimPartitions) -> bool:
    """Whether another member, an earlier incarnation or a dropped claim has started a batch there in this epoch.

    In STARTING and RESETTING nothing has started in the epoch, so a claim there never begins a reset. A partition that
    the last reset was done without, as a foreign consumer had it, was neither rolled back in the sinks nor told where
    to go.
    """
    row = region.claims[partition]
    if region.state not in RESET_STATES and Epoch(0) < row.epoch < region.epoch:
        return True
    return row.is_started and not _is_own(row, proposal, region.epoch)


def _moves(region: Region, proposal: ClaimPartitions) -> bool:
    """Whether the claim changes who holds what, or adds a partition.

    An open checkpoint's participants no longer fit.
    """
    checkpoint = region.checkpoint
    frozen = frozenset() if checkpoint is None else region.frozen[checkpoint.sequence]
    return any(
        not _is_own(region.claims[p], proposal, region.epoch) or p not in frozen for p in proposal.partitions
    ) or (checkpoint is not None and checkpoint.participants.get(proposal.member) != proposal.incarnation)


def _granted(region: Region, partition: GroupPartition, proposal: ClaimPartitions) -> Claim:
    row = region.claims[partition]
    leader_epoch = max(row.leader_epoch, proposal.partitions[partition].bounds.leader_epoch)
    if _is_own(row, proposal, region.epoch):
        return replace(row, leader_epoch=leader_epoch)
    place = row.resume if not row.is_started else row.position
    return replace(
        row,
        owner=proposal.member,
        incarnation=proposal.incarnation,
        epoch=region.epoch,
        last_owner=row.owner or row.last_owner,
        leader_epoch=leader_epoch,
        position=place,
        started_to=row.started_to if row.is_started else place,
    )
