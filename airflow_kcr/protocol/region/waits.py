"""Why something waits, said once: what a region waits for, and what a goal still needs, each with whom and since when.

`liveness` judges those that concern the region as a whole, with how long each may last; a goal (`airflow_kcr/goals`)
takes those that stand between the region and what it names. All read the rows of the present only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TypeAlias

from airflow_kcr.protocol.offsets import EMPTY
from airflow_kcr.protocol.region import boundaries, checkpoints, completion, coverage, rows, specs, timelines
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.values import DesiredState, GroupId, RequestId, format_instant


class Rule(StrEnum):
    """Which rule waits."""

    PERSON = "person"
    """The region is halted or paused; a person chooses."""

    MEMBERS = "members"
    """No member lives."""

    PARTITIONS = "partitions"
    """Partitions have no living owner."""

    RESET = "reset"
    """A reset, or a start, is not done."""

    CHECKPOINT = "checkpoint"
    """A checkpoint is open: members continue to its boundary, or drain."""

    PUBLISH = "publish"
    """A complete checkpoint is not published."""

    RUN = "run"
    """Members hold at a boundary until a DAG run asks for its checkpoint."""

    BOUNDARY = "boundary"
    """A boundary has passed, and its checkpoint is not open."""

    REQUEST = "request"
    """A request for a checkpoint is queued."""

    BATCH = "batch"
    """A batch takes longer than it may."""

    ENGINE = "engine"
    """A member can run no batch, as its Spark has no executor; or only slowly, as Kafka throttles what it reads."""

    RECORDS = "records"
    """There are records to read, and no batch reads them."""

    RECONCILE = "reconcile"
    """The region has to be reconciled, and no caller has done it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """One thing that is waited for."""

    rule: Rule
    what: str
    """A sentence for people, with who or what is missing, by name."""

    since: datetime | None = None
    """By the store's clock; None: that is not stored."""

    until: datetime | None = None
    """From when on it has lasted too long; None: never."""

    group: GroupId | None = None
    """The only group that it is about; None: the whole region."""

    def is_over(self, now: datetime) -> bool:
        """Whether it has lasted for longer than it may."""
        return self.until is not None and now >= self.until

    def text(self) -> str:
        """Return the wait as people read it."""
        since = "" if self.since is None else f" since {format_instant(self.since)}"
        return f"{self.rule}{since}: {self.what}"


Waits: TypeAlias = Iterator[Wait]


def to_run(region: Region, now: datetime) -> Waits:
    """Yield what a region that starts waits for: members of the spec that are not there, and what its reset needs."""
    yield from absent(region, now)
    yield from reset(region, now)


def absent(region: Region, now: datetime) -> Waits:
    """Yield the members that the spec asks for and that hold no lease."""
    failures = {c.member: specs.describe_start_failure(region, now, c) for c in specs.start_failures(region, now)}
    attempt = region.resets.get(region.epoch)
    began = None if attempt is None else attempt.started_at
    for member in coverage.expected_members(region):
        if not region.is_live(member, now):
            lease = region.leases.get(member)
            what = failures.get(member, f"{member} is not there (no lease)")
            # A lease from before the newest reset may be one from before the region was stopped.
            ended = began if lease is None else lease.until
            since = max((at for at in (began, ended) if at is not None), default=None)
            yield Wait(rule=Rule.MEMBERS, what=what, since=since, group=member.group)


def reset(region: Region, now: datetime) -> Waits:
    """Yield what keeps the running reset from ending."""
    since = None if region.reset is None else region.reset.started_at
    for what in coverage.unready(region, now):
        yield Wait(rule=Rule.RESET, what=what, since=since)


def to_pause(region: Region, now: datetime) -> Waits:
    """Yield the running batches, the oldest first."""
    for batch in sorted(region.running.values(), key=lambda b: b.started_at):
        seconds = (now - batch.started_at).total_seconds()
        what = f"a batch of {batch.member} has been running for {seconds:.0f} s"
        yield Wait(rule=Rule.BATCH, what=what, since=batch.started_at, group=batch.member.group)


def to_stop(region: Region, now: datetime) -> Waits:
    """Yield what is between a region and being stopped without a member."""
    if region.state is rows.RegionState.STOPPED:
        for member in region.live_members(now):
            yield Wait(rule=Rule.MEMBERS, what=f"{member} still holds a lease", group=member.group)
    elif region.stopping is not None:
        yield from to_settle(region, region.checkpoints[region.stopping])
    elif region.checkpoint is not None:
        yield from to_complete(region, now, region.checkpoint)
    else:
        yield from to_open(region, now)


def to_change(region: Region, now: datetime) -> Waits:
    """Yield what a changed spec waits for until the region goes on under it."""
    for what in specs.notes(region, now):
        yield Wait(rule=Rule.CHECKPOINT, what=what)
    if region.next_spec is None:
        yield from to_run(region, now)


def to_open(region: Region, now: datetime) -> Waits:
    """Yield why a queued checkpoint is not open yet."""
    if region.state is not rows.RegionState.RUNNING:
        yield Wait(rule=Rule.RESET, what=f"the region is {region.state}")
        yield from reset(region, now)
        return
    if region.desired_state is DesiredState.PAUSED:
        yield Wait(rule=Rule.PERSON, what="it is paused, and goes on to no boundary until it is resumed")
    if region.open_checkpoint is not None:
        yield Wait(rule=Rule.CHECKPOINT, what=f"checkpoint {region.open_checkpoint} is open, others wait for it")
    for checkpoint in timelines.unpublished(region):
        yield unpublished(checkpoint)
    for what in coverage.gaps(region, now):
        yield Wait(rule=Rule.PARTITIONS, what=what)
    known = region.universe()
    for partition, since in coverage.awaited(region, now).items():
        if partition not in known:
            what = f"{partition} is on the brokers and no member owns it yet"
            yield Wait(rule=Rule.PARTITIONS, what=what, since=since, group=partition.group)


def to_publish(region: Region, now: datetime, request: rows.CheckpointRequest) -> Waits:
    """Yield what a request waits for until the checkpoint that answers it is published."""
    checkpoint = None if request.sequence is None else region.checkpoint_of(request.sequence)
    if request.state is rows.RequestState.QUEUED:
        yield from to_open(region, now)
    elif checkpoint is not None and checkpoint.is_open:
        yield from to_complete(region, now, checkpoint)
    elif checkpoint is not None and checkpoint.published_at is None:
        yield unpublished(checkpoint)


def to_complete(region: Region, now: datetime, checkpoint: rows.Checkpoint) -> Waits:
    """Yield what an open checkpoint waits for."""
    if checkpoint.state is not rows.CheckpointState.APPROACHING:
        yield from to_drain(region, checkpoint)
    elif checkpoint.boundary is not None:
        yield from to_boundary(region, now, checkpoint, checkpoint.boundary)


def to_drain(region: Region, checkpoint: rows.Checkpoint) -> Waits:
    """Yield the members that have yet to contribute, with what they hold; then the partitions without an owner."""
    late = checkpoints.late(region)
    for who in late:
        what = f"checkpoint {checkpoint.sequence} waits for {who}"
        yield Wait(rule=Rule.CHECKPOINT, what=what, since=checkpoint.opened_at)
    if not late:
        for lacks in completion.lacking(region, checkpoint):
            what = f"checkpoint {checkpoint.sequence}: {lacks}"
            yield Wait(rule=Rule.CHECKPOINT, what=what, since=checkpoint.opened_at)


def to_boundary(region: Region, now: datetime, checkpoint: rows.Checkpoint, boundary: datetime) -> Waits:
    """Yield how far an approaching checkpoint still is: the whole way, then the partitions, the furthest first."""
    if now < boundary:
        what = f"the boundary {format_instant(boundary)} is {(boundary - now).total_seconds():.0f} s away"
        yield Wait(rule=Rule.BOUNDARY, what=what)
    left: dict[str, int] = {}
    for partition in sorted(region.frozen[checkpoint.sequence]):
        claim, place = region.claims[partition], boundaries.boundary_offset(region, partition, boundary)
        if place is None:
            yield Wait(rule=Rule.CHECKPOINT, what=f"{partition}: it is not known yet where the boundary falls")
        elif claim.position is not None and claim.position < place.offset:
            left[f"{partition} at {claim.position}, the boundary is at {place.offset}"] = place.offset - claim.position
    if left:
        what = f"{sum(left.values()):,} records to the boundary, on {len(left)} partition(s)"
        yield Wait(rule=Rule.CHECKPOINT, what=what)
    for what in sorted(left, key=lambda text: -left[text]):
        yield Wait(rule=Rule.CHECKPOINT, what=what)


def unpublished(checkpoint: rows.Checkpoint) -> Wait:
    """Return the wait for the publication of a complete checkpoint."""
    what = f"checkpoint {checkpoint.sequence} is complete and not published yet"
    return Wait(rule=Rule.PUBLISH, what=what, since=checkpoint.finished_at)


def to_settle(region: Region, checkpoint: rows.Checkpoint) -> Waits:
    """Yield what a checkpoint waits for until it is published and it is known whether Kafka holds its offsets."""
    if checkpoint.is_open:
        yield Wait(rule=Rule.CHECKPOINT, what=f"checkpoint {checkpoint.sequence} is not complete yet")
    elif checkpoint.published_at is None:
        yield unpublished(checkpoint)
    elif checkpoint.committed is rows.Committed.PENDING:
        held = region.read_backs.get(checkpoint.sequence, EMPTY)
        late = [p for p in sorted(region.offsets_of(checkpoint.sequence) or EMPTY) if p not in held]
        owners = sorted({str(owner) for p in late if (owner := region.claim_of(p).owner)})
        what = (
            f"Kafka's commit read-back of checkpoint {checkpoint.sequence} is outstanding for {len(late)} "
            f"partition(s), {late[0] if late else 'none'} first, held by {', '.join(owners) or 'no member'}"
        )
        yield Wait(rule=Rule.PUBLISH, what=what, since=checkpoint.published_at)


def to_reset(region: Region, now: datetime, request_id: RequestId) -> Waits:
    """Yield what a person's accepted reset waits for."""
    request, person_reset = region.requests.get(request_id), region.person_resets.get(request_id)
    if person_reset is not None and person_reset.state is rows.PersonResetState.WAITING:
        yield Wait(rule=Rule.RESET, what="another reset has its turn first")
        yield from reset(region, now)
    elif region.reset is not None:
        yield from reset(region, now)
    elif request is not None and region.checkpoint is not None and region.checkpoint.sequence == request.sequence:
        yield from to_complete(region, now, region.checkpoint)
    else:
        yield from to_open(region, now)


def to_exist(region: Region, now: datetime) -> Waits:
    """Yield where a region is on its way to a later published checkpoint."""
    yield Wait(rule=Rule.CHECKPOINT, what=_newest(region))
    if region.halt is not None:
        yield Wait(rule=Rule.PERSON, what=f"it is halted: {region.halt.text}")
    elif region.checkpoint is not None:
        what = f"checkpoint {region.checkpoint.sequence} is {region.checkpoint.state}"
        yield Wait(rule=Rule.CHECKPOINT, what=what, since=region.checkpoint.opened_at)
    elif region.next_boundary is not None:
        yield Wait(rule=Rule.BOUNDARY, what=f"its next boundary is {format_instant(region.next_boundary)}")


def _newest(region: Region) -> str:
    """Return a sentence about the newest current checkpoint: the restore point, unless a reset opened a timeline."""
    newest = region.restore_checkpoint or region.archive.newest_current(None)
    if newest is None:
        return "it has no checkpoint yet"
    progress = "" if newest.published_at is not None else ", not published yet"
    boundary = "none" if newest.boundary is None else format_instant(newest.boundary)
    return f"its newest checkpoint is {newest.sequence} (boundary {boundary}{progress})"
