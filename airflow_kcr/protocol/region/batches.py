"""Batches: the admission to start, the admission to finish, and what a refused finish means (tests/annex/moves.md).

Both are decided under the shared region lock, from the region's row, the member's row and the claims of the ranges
alone: a store may hand over a `Region` that holds no more than those. Begin is where everything is checked; end asks
only whether the batch still stands on what it was started under. A refused end means the work is discarded; a started
batch that does not end is always followed by a reset.
"""

from __future__ import annotations

from datetime import datetime

from airflow_kcr.errors import BatchRefused, NotClaimed
from airflow_kcr.protocol import values
from airflow_kcr.protocol.region import boundaries, rows
from airflow_kcr.protocol.region.commands import DiscardBatch, FinishBatch, StartBatch
from airflow_kcr.protocol.region.state import Region, put, without
from airflow_kcr.protocol.values import DesiredState, GroupPartition, Offset, drawn, replace


def start(region: Region, now: datetime, request: StartBatch) -> tuple[Region, rows.Batch]:
    """Return the region with the batch started, its ranges marked, and the batch's row in the ledger.

    Raises:
        StaleEpoch, StaleIncarnation, LeaseExpired, UnknownMember: the member may not act, or not in this epoch.
        NotClaimed: it holds no current claim on a partition of the ranges.
        BatchRefused: the region does not process now, a range does not start at its position, crosses the boundary, a
            skipped record or the count of the next checkpoint, or an earlier batch there has not ended.
        NumberOutOfRange: a range is empty, reversed or negative.
    """
    running = region.running.get(request.batch)
    if running is not None:
        return region, running
    region.require_member(request.member, request.incarnation, now, epoch=request.epoch)
    _require_processing(region)
    if not request.ranges:
        raise BatchRefused(f"batch {request.batch} has no ranges; nothing was planned")
    begun: dict[GroupPartition, rows.Claim] = {}
    limit = boundaries.limit(region)
    for partition, range_ in request.ranges.items():
        claim = _require_claim(region, partition, request.member, request.incarnation)
        _require_range(region, partition, values.checked_range(range_, partition), claim, limit)
        begun[partition] = replace(claim, started_to=range_.to)
    _require_count(region, request)
    batch = drawn(
        rows.Batch,
        request,
        timeline=region.timeline,
        sequence=stamp(region),
        ranges=dict(sorted(request.ranges.items())),
        started_at=now,
        started_after=region.counter,
    )
    started = replace(
        region,
        claims=put(region.claims, begun),
        running=put(region.running, {batch.batch: batch}),
        ledger=(*region.ledger, batch),
    )
    return started, batch


def stamp(region: Region) -> values.CheckpointNumber:
    """Return the sequence that a batch is stamped with at its start: the open checkpoint's, else the next one."""
    return region.next_sequence if region.open_checkpoint is None else region.open_checkpoint


def _require_processing(region: Region) -> None:
    checkpoint = region.checkpoint
    if region.state is not rows.RegionState.RUNNING:
        raise BatchRefused(f"region {region.name} is {region.state}; a batch starts only while it is running")
    approaching = checkpoint is not None and checkpoint.state is rows.CheckpointState.APPROACHING
    if region.desired_state is not DesiredState.RUNNING and not approaching:
        raise BatchRefused(f"region {region.name} has the desired state {region.desired_state}; no batch starts")


def _require_claim(
    region: Region, partition: GroupPartition, member: values.MemberId, incarnation: values.Incarnation
) -> rows.Claim:
    claim = region.claims.get(partition, rows.UNCLAIMED)
    if not claim.is_of(member, incarnation, region.epoch):
        holder = "no member" if claim.owner is None else f"{claim.owner}, epoch {claim.epoch}"
        raise NotClaimed(f"{member}, incarnation {incarnation}, does not hold {partition} now (held by {holder})")
    return claim


def _require_range(
    region: Region, partition: GroupPartition, range_: values.Range, claim: rows.Claim, limit: datetime | None
) -> None:
    if claim.is_in_flight:
        raise BatchRefused(f"{partition}: an earlier batch, started up to {claim.started_to}, has not ended")
    if range_.from_ != claim.position:
        raise BatchRefused(f"{partition}: the batch would start at {range_.from_}, its position is {claim.position}")
    row = None if limit is None else boundaries.boundary_offset(region, partition, limit)
    if row is not None and range_.to > max(row.offset, range_.from_) and not _may_overshoot(region, range_, row.offset):
        raise BatchRefused(f"{partition}: {range_} crosses the boundary {limit}, whose offset is {row.offset}")
    crossed = [o for o in region.skips.get(partition, ()) if range_.from_ <= o < range_.to]
    if crossed:
        raise BatchRefused(f"{partition}: {range_} contains the skipped record {crossed[0]}; end the batch before it")


def _may_overshoot(region: Region, range_: values.Range, boundary_offset: Offset) -> bool:
    """Whether the position is past the boundary already.

    Then the boundary no longer limits it (its checkpoint is inexact).
    """
    return range_.from_ > boundary_offset and region.open_checkpoint is None


def _require_count(region: Region, request: StartBatch) -> None:
    records = region.rules.checkpoint.records
    if records is None:
        return
    left = records_left(region)
    width = sum(r.width for r in request.ranges.values())
    if left is not None and width > left:
        raise BatchRefused(f"the batch has {width} offsets, {left} are left until the checkpoint at {records}")


def records_left(region: Region) -> int | None:
    """Return how many offsets may still be started before the checkpoint by count; None if there is no count.

    None either while another one is on its way to a boundary: no checkpoint can come between, and the count begins anew
    with that one.
    """
    records, checkpoint = region.rules.checkpoint.records, region.checkpoint
    if records is None or region.is_in_run or (checkpoint is not None and checkpoint.boundary is not None):
        return None
    restore_point = region.restore_point_offsets()
    begun = sum(
        claim.started_to - restore_point.get(p, claim.resume)
        for p, claim in region.claims.items()
        if claim.started_to is not None and claim.resume is not None
    )
    return max(records - begun, 0)


def finish(region: Region, now: datetime, request: FinishBatch) -> tuple[Region, None]:
    """Return the region with the batch accepted: positions advance, its outcome is done.

    It needs the epoch, incarnation and claims that it was started under, in RUNNING or DRAINING, whatever the desired
    state.

    Raises:
        StaleEpoch, StaleIncarnation: as it says.
        NotClaimed: a claim under the batch has gone.
        BatchRefused: the batch is not running (already ended otherwise), or the region's state forbids it.
    """
    batch, member, incarnation = region.running.get(request.batch), request.member, request.incarnation
    if batch is None or batch.member != member:
        raise BatchRefused(f"batch {request.batch} of {member} is not running; read its outcome from the ledger")
    if batch.incarnation != incarnation or region.members[member].incarnation != incarnation:
        raise BatchRefused(f"batch {batch.batch} was started by incarnation {batch.incarnation}; a newer one exists")
    region.require_epoch(batch.epoch)
    if region.state not in rows.WORKING:
        raise BatchRefused(f"region {region.name} is {region.state}; the work of batch {batch.batch} is discarded")
    ended: dict[GroupPartition, rows.Claim] = {}
    for partition, range_ in batch.ranges.items():
        claim = _require_claim(region, partition, member, incarnation)
        if claim.position != range_.from_:
            raise BatchRefused(f"{partition}: the position is {claim.position}, the batch began at {range_.from_}")
        place = region.past_skips(partition, range_.to)
        ended[partition] = replace(claim, position=place, started_to=place)
    region = replace(region, claims=put(region.claims, ended))
    return closed(region, now, batch, rows.Outcome.DONE), None


def discard(region: Region, now: datetime, request: DiscardBatch) -> Region:
    """Return the region with a batch's work discarded: its tasks have ended, nothing of it will be accepted.

    A newer incarnation in the same process says so for its predecessor's batch. One that does not run changes nothing.

    Raises:
        BatchRefused: the batch is not this member's.
        StaleIncarnation, LeaseExpired: the caller may not act.
    """
    batch = region.running.get(request.batch)
    if batch is None:
        return region
    if batch.member != request.member or batch.incarnation > request.incarnation:
        raise BatchRefused(
            f"batch {request.batch} of {request.member} is not running; read its outcome from the ledger"
        )
    region.require_member(request.member, request.incarnation, now)
    return closed(region, now, batch, rows.Outcome.DISCARDED)


def closed(region: Region, now: datetime, batch: rows.Batch, outcome: rows.Outcome) -> Region:
    """Return the region with a running batch ended in this outcome."""
    ended = replace(batch, outcome=outcome, finished_at=now, finished_after=region.counter)
    running = without(region.running, frozenset({batch.batch}))
    return replace(region, running=running, ledger=(*region.ledger, ended))
