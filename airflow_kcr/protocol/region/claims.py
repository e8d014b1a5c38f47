"""Claims: what the store grants of what Kafka proposes, and what a member sees of its region.

A member claims its whole assignment at once. A partition is *handed over* at its position if every batch that was
started there is accepted: nothing runs on it, and each record below is processed once. While a batch of a live owner
runs there, the claim is refused, and made again. If that takes too long, or the batch will never be accepted, the claim
begins a reset in the same transaction, because both owners may process the same records (scenarios C2, C3, C44, C45). A
member's own re-claim keeps row, position and running batch. Callbacks only notify; the claim decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from airflow_kcr.errors import ConfigurationError, OffsetOutsideLog, PartitionBusy
from airflow_kcr.protocol import values
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.offsets import EMPTY, SeekEntry, SeekMap, SeekSource
from airflow_kcr.protocol.region import batches, boundaries, checkpoints, coverage, events, lost_logs, resets, rows
from airflow_kcr.protocol.region.commands import Acknowledge, ClaimPartitions, Contribute, ReadRegion, ReportPublished
from airflow_kcr.protocol.region.state import InitialKey, Region, put
from airflow_kcr.protocol.region.view import MemberRegion
from airflow_kcr.protocol.values import GroupPartition, drawn, few, replace


def claim(region: Region, now: datetime, proposal: ClaimPartitions) -> Region:
    """Return the region with the member's claims replaced by its assignment.

    The member reads from the answer (`Region.claims`, `Region.epoch`) what it holds and where; where a reset began, it
    claims again when it is quiesced. Where the claim's logs are another cluster's, the region is halted.

    Raises:
        StaleIncarnation, LeaseExpired, UnknownMember: the member may not act.
        RegionInState: the region is halted or stopped.
        ConfigurationError: a partition is not of the member's group or not of its subscription.
        OffsetOutsideLog: a proposed initial offset does not lie in the log that was read with it.
        PartitionBusy: a batch of another live member still runs on a partition; to be made again.
    """
    member = region.require_member(proposal.member, proposal.incarnation, now)
    region.require_state(rows.CLAIM_STATES, "a claim")
    _check(region, proposal)
    if lost_logs.is_another_cluster(region, proposal.member.group, proposal.cluster):
        return lost_logs.halted_on_cluster(region, now, proposal.member.group, proposal.cluster)
    _require_nothing_runs(region, now, proposal)
    region = lost_logs.cluster_found(region, now, proposal.member.group, proposal.cluster)
    region = _with_initial_offsets(region, now, proposal)
    trouble = lost_logs.out_of_range(region, {p: _log(region, p, proposal) for p in proposal.partitions})
    if trouble:
        return lost_logs.moved_into_logs(region, now, trouble)

    held = {p for p, c in region.claims.items() if c.owner == proposal.member}
    dropped = tuple(sorted(held - proposal.partitions.keys()))
    contested = tuple(p for p in sorted(proposal.partitions) if _is_contested(region, p, proposal))
    moved = contested or _moves(region, proposal)
    taken = {
        p: owner
        for p in sorted(proposal.partitions)
        if (owner := region.claims[p].owner) is not None and owner != proposal.member
    }
    granted = {p: replace(region.claims[p], owner=None, last_owner=proposal.member) for p in dropped}
    granted.update({p: _granted(region, p, proposal) for p in proposal.partitions})
    row = replace(
        member,
        claimed=region.epoch,
        acknowledged=member.acknowledged if contested else _acknowledged(region, member, proposal),
        arrived_at=now,
    )
    region = replace(region, claims=put(region.claims, granted), members=put(region.members, {proposal.member: row}))
    region = lost_logs.partitions_claimed(region, proposal.partitions.keys())
    given = {"partitions": tuple(sorted(proposal.partitions)), "dropped": dropped, "taken": taken}
    body = drawn(events.Claimed, proposal, epoch=region.epoch, **given)
    region = region.record(now, body)
    if contested:
        detail = f"{proposal.member} was assigned {few(contested)}, where another was before"
        return resets.demand(region, now, rows.ResetCause.CLAIM, detail)
    if moved and region.open_checkpoint is not None:
        return checkpoints.abort(region, now, f"{proposal.member} claimed partitions that were not its own")
    return region


def _check(region: Region, proposal: ClaimPartitions) -> None:
    for partition in proposal.partitions:
        values.checked(partition.partition, f"the partition number of {partition}")
        if partition.group != proposal.member.group or not region.rules.subscribes(partition.group, partition.topic):
            raise ConfigurationError(
                f"{proposal.member} claims {partition}, which the spec of region {region.name} does not give its "
                "group; does the running member use an older spec?"
            )


def _require_nothing_runs(region: Region, now: datetime, proposal: ClaimPartitions) -> None:
    """Refuse a claim while a batch of another live member runs on a partition of it, for as long as a batch may take.

    Its owner has been told by Kafka, finishes the batch and starts no other. One that Kafka can't reach doesn't know,
    and would go on for ever: after that time the claim counts, and resets.
    """
    rules = region.rules.groups.get(proposal.member.group)
    if rules is None or rules.holds_output or proposal.waited >= region.rules.timeouts.batch:
        return
    for batch in region.running.values():
        busy = batch.ranges.keys() & proposal.partitions.keys()
        if busy and batch.member != proposal.member and _stands(region, batch, now):
            raise PartitionBusy(
                f"{proposal.member} was assigned {min(busy)}, where a batch of {batch.member} runs; it waits for that"
            )


def _stands(region: Region, batch: rows.Batch, now: datetime) -> bool:
    """Whether a running batch may still be accepted: by the claims that it was started under, all of them current."""
    claims = [region.claims[partition] for partition in batch.ranges]
    return all(
        c.is_of(batch.member, batch.incarnation, batch.epoch) and coverage.is_current(region, c, now) for c in claims
    )


def _log(region: Region, partition: GroupPartition, proposal: ClaimPartitions) -> LogBounds:
    """Return a partition's log as it was read for the claim, and at least to where its owner before has come since.

    A log that really ends before the position is found out by the new owner's first plan, or its contribution.
    """
    row, log = region.claims[partition], proposal.partitions[partition].bounds
    if row.position is None or not row.is_started or _is_own(row, proposal, region.epoch):
        return log
    return replace(log, end=max(log.end, row.position))


def _with_initial_offsets(region: Region, now: datetime, proposal: ClaimPartitions) -> Region:
    """Store what is new about the partitions: rows, topic ids, initial offsets; the first writer wins, for ever."""
    newly_named: dict[GroupPartition, rows.Claim] = {}
    fresh: dict[InitialKey, rows.InitialOffset] = {}
    named: dict[InitialKey, rows.InitialOffset] = {}
    for partition, assigned in proposal.partitions.items():
        row = region.claim_of(partition)
        if not row.topic_id or (row.position is None and (partition, row.topic_id) not in region.initial):
            newly_named[partition] = replace(row, topic_id=assigned.bounds.topic_id)
        topic_id = newly_named.get(partition, row).topic_id
        start, nameless = assigned.initial, region.initial.get((partition, values.TopicId("")))
        if (partition, topic_id) in region.initial:
            continue
        if assigned.bounds.topic_id not in {values.TopicId(""), topic_id}:
            # What was read is another topic's log; the out-of-range policy decides, and the next claim stores.
            continue
        if nameless is not None and not row.topic_id:
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
        fresh[partition, topic_id] = rows.InitialOffset(
            offset=start.offset, source=str(start.source), bounds=assigned.bounds
        )
    region = replace(region, claims=put(region.claims, newly_named), initial=put(region.initial, named))
    return _with_resume_points(region.with_initial(now, fresh), now, proposal)


def _with_resume_points(region: Region, now: datetime, proposal: ClaimPartitions) -> Region:
    """Write the seek entries that only waited for an initial offset, and those of partitions that the reset lacks."""
    entries: dict[GroupPartition, SeekEntry] = {}
    for partition in proposal.partitions:
        entry, initial = region.seek.get(partition), region.initial_offset(partition)
        if entry is None and region.state in rows.RESET_STATES and region.claims[partition].resume is not None:
            # The reset began without it, as the brokers did not have it.
            entries[partition] = resets.late(region, partition)
        if region.claims[partition].resume is not None or initial is None:
            continue
        if entry is None:
            entries[partition] = SeekEntry(offset=initial.offset, source=SeekSource.INITIAL)
        elif entry.offset is None and entry.source is SeekSource.START_POSITION:
            entries[partition] = SeekEntry(offset=initial.offset, source=SeekSource.START_POSITION)
    return resets.write_seek(region, now, SeekMap(entries))


def _is_own(row: rows.Claim, proposal: ClaimPartitions, epoch: values.Epoch) -> bool:
    return row.is_of(proposal.member, proposal.incarnation, epoch)


def _acknowledged(region: Region, member: rows.Member, proposal: ClaimPartitions) -> values.Epoch | None:
    """Return which epoch a member has acknowledged once it holds what it claims.

    Who claims in a running region has nothing to acknowledge. In a reset, the sinks are still to go where partitions
    resume that the member did not have when it acknowledged, and that no other has acknowledged with.
    """
    if region.state not in rows.RESET_STATES:
        return region.epoch
    assigned = (region.claims[p] for p in proposal.partitions)
    is_placed = all(_is_own(row, proposal, region.epoch) or _is_placed(region, row) for row in assigned)
    return member.acknowledged if is_placed or member.acknowledged != region.epoch else None


def _is_placed(region: Region, row: rows.Claim) -> bool:
    """Whether the sinks are where the running reset has a partition: who had it in this epoch has acknowledged."""
    owner = row.owner or row.last_owner
    former = None if owner is None else region.members.get(owner)
    return former is not None and row.epoch == region.epoch and former.acknowledged == region.epoch


def _is_contested(region: Region, partition: GroupPartition, proposal: ClaimPartitions) -> bool:
    """Whether another member, an earlier incarnation or a dropped claim has left something there that never ends well.

    In STARTING and RESETTING nothing has started in the epoch, so a claim there never begins a reset. A partition that
    the last reset was done without, as a foreign consumer had it or the brokers did not, was neither rolled back in the
    sinks nor told where to go.
    """
    row, entry = region.claims[partition], region.seek.get(partition)
    if region.state not in rows.RESET_STATES and entry is not None and entry.offset is None:
        return True
    if values.Epoch(0) < row.epoch < region.epoch and (row.is_started or region.state not in rows.RESET_STATES):
        return True
    return region.is_unsettled(partition, row) and not _is_own(row, proposal, region.epoch)


def _moves(region: Region, proposal: ClaimPartitions) -> bool:
    """Whether the claim changes who holds what, or adds a partition.

    An open checkpoint's participants no longer fit.
    """
    checkpoint = region.checkpoint
    frozen = frozenset() if checkpoint is None else region.frozen[checkpoint.sequence]
    return any(
        not _is_own(region.claims[p], proposal, region.epoch) or p not in frozen for p in proposal.partitions
    ) or (checkpoint is not None and checkpoint.participants.get(proposal.member) != proposal.incarnation)


def _granted(region: Region, partition: GroupPartition, proposal: ClaimPartitions) -> rows.Claim:
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


# What one member sees

PUBLISHER_TURN: Final = timedelta(seconds=20)
"""How long one member may try to publish a checkpoint before it is the next one's turn."""


def shown(
    region: Region, now: datetime, command: ReadRegion | ClaimPartitions | Acknowledge | Contribute | ReportPublished
) -> MemberRegion:
    """Return what a member sees of the region after its command, so that it need not read the region again."""
    return of_member(region, command.member, now)


def of_member(region: Region, member: values.MemberId, now: datetime) -> MemberRegion:
    """Return what `member` sees of `region`.

    Args:
        region: may hold only this member's claims, and those of its group's rows that its rules touch.
        member: a registered member.
        now: the store's clock.

    Raises:
        UnknownMember: it was never registered; a member that was has to do with a restored store.
    """
    row = region.member_of(member)
    claims = {p: c for p, c in region.claims.items() if c.is_of(member, row.incarnation, region.epoch)}
    limit = boundaries.limit(region)
    located = {p: boundaries.boundary_offset(region, p, limit) for p in claims} if limit is not None else {}
    person = region.person_of(region.reset)
    return drawn(
        MemberRegion,
        region,
        spec_digest=region.spec.digest,
        incarnation=row.incarnation,
        token=row.token,
        left=row.left,
        acknowledged=row.acknowledged == region.epoch,
        stopping=region.stopping is not None,
        contributed=(region.open_checkpoint, member) in region.contributions,
        publish=_publish(region, member, now),
        commit=_commit(region, claims),
        claims=claims,
        open=resets.open_targets(region, member) if any(c.resume is None for c in claims.values()) else {},
        target=None if person is None else person.target,
        limit=limit,
        boundary_offsets={p: row for p, row in located.items() if row is not None},
        restore_point=EMPTY if limit is None else region.restore_point_offsets().restrict(claims),
        skips={p: region.skips[p] for p in claims if p in region.skips},
        records_left=batches.records_left(region),
    )


def publisher(region: Region, checkpoint: rows.Checkpoint, now: datetime) -> values.MemberId | None:
    """Return whose turn it is to publish a checkpoint.

    The live member of lowest group and index, then the next.
    """
    live = region.live_members(now)
    if not live or checkpoint.finished_at is None:
        return None
    return live[int((now - checkpoint.finished_at) / PUBLISHER_TURN) % len(live)]


def _publish(region: Region, member: values.MemberId, now: datetime) -> tuple[values.CheckpointNumber, ...]:
    due = region.complete
    return due if due and publisher(region, region.checkpoints[due[0]], now) == member else ()


def _commit(region: Region, claims: Mapping[GroupPartition, rows.Claim]) -> values.CheckpointNumber | None:
    """Return the restore point if its commit is pending and this member's part of the commit read-back is missing.

    Until then no reset has started since its completion, so the resume points of the member's claims are its offsets.
    """
    restore_point = region.uncommitted
    if restore_point is None or not claims:
        return None
    known_read_back = region.read_backs.get(restore_point.sequence, EMPTY)
    return restore_point.sequence if any(p not in known_read_back for p in claims) else None
