"""Liveness: does the region make progress, what does it wait for, and is that taking longer than it may?

A region whose desired state is running, and has something to do, either works or waits for something that this module
names. Each **wait** has the rule that waits, since when by the store's clock, and how long that may last; beyond it the
region is **stalled**. Waits for a person or a DAG run may last for ever.

All times are stored ones, so every reader reaches the same verdict, and a restart doesn't begin it again. It
reads the rows of the present only: what it costs does not grow with the region's history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple, TypeVar

from airflow_kcr.protocol import values
from airflow_kcr.protocol.region import batches, boundaries, coverage, requests, rows, specs, timelines, waits
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.region.waits import Rule, Wait, Waits
from airflow_kcr.protocol.rules import CheckpointMode
from airflow_kcr.protocol.values import GroupPartition, few, format_instant, replace

V = TypeVar("V")

RESETS_IN_A_ROW: Final = 5
"""How many resets without a checkpoint between them, while one is wanted, may each be in time."""

_NAMED: Final = 3
"""How many members, partitions or reasons one wait names."""


class LivenessVerdict(StrEnum):
    """What the waits come to."""

    PROGRESSING = "progressing"
    """Nothing is waited for: the region works, or has nothing to do."""

    WAITING = "waiting"
    """It waits, and no longer than it may."""

    STALLED = "stalled"
    """It waits for longer than it may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Liveness:
    """What a region waits for, as judged at one moment."""

    waits: tuple[Wait, ...]
    """Those that last too long first, then by their start."""

    now: datetime

    @property
    def verdict(self) -> LivenessVerdict:
        """What the waits come to."""
        if self.stalled:
            return LivenessVerdict.STALLED
        return LivenessVerdict.WAITING if self.waits else LivenessVerdict.PROGRESSING

    @property
    def stalled(self) -> tuple[Wait, ...]:
        """The waits that last for too long."""
        return tuple(w for w in self.waits if w.is_over(self.now))

    def text(self) -> str:
        """Return the verdict with what is waited for; only the verdict, where that is nothing."""
        waits = "; ".join(w.text() for w in self.stalled or self.waits)
        return f"{self.verdict}: {waits}" if waits else str(self.verdict)


class LogEnd(NamedTuple):
    """How far a log could be read at some moment."""

    offset: values.Offset
    at: datetime
    """By the store's clock, or earlier than it was: a record is not missed for longer than it has been there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the judgement needs beside the region's rows."""

    worked_at: datetime | None = None
    """When the batch that was started last began or ended; `NEVER`: there was none; None: that was not read."""

    ends: Mapping[GroupPartition, LogEnd] = field(default_factory=dict)
    """How far logs could be read, where Kafka was asked; of others, what members saw at the restore point counts."""

    linger: timedelta = timedelta(0)
    """For how long members wait for more records before they begin a small batch, while no boundary waits."""


NEVER: Final = datetime.min.replace(tzinfo=UTC)
"""Before every moment."""

NOTHING_SEEN: Final = Seen()


def patience(region: Region) -> timedelta:
    """Return how long a region may do nothing about something that a member could do at once.

    A member that died is back, or its partitions are with others, within the longer of a relaunch and a session; then
    its lease, and the longest wait after failed batches.
    """
    timeouts = region.rules.timeouts
    sessions = [timeouts.session_timeout(static=g.static_membership) for g in region.rules.groups.values()]
    return max(timeouts.relaunch, *sessions) + timeouts.lease + timeouts.retry_after(region.failures)


def _reading_patience(region: Region) -> timedelta:
    """For records: before it reads on, a member waits for Kafka's answer to its commit, as long as that may take."""
    return patience(region) + region.rules.timeouts.commit


def missed_before(region: Region, now: datetime, seen: Seen) -> datetime | None:
    """Return the time before which an unread record must have come to be a stall; None: batches run, or ran lately.

    Only then is it worth asking Kafka for when the unread records came.
    """
    idle = _idle_since(region, seen)
    moment = now - seen.linger - _reading_patience(region)
    return None if idle is None or idle > moment or not _may_work(region) else moment


def judge(region: Region, now: datetime, seen: Seen = NOTHING_SEEN) -> Liveness:
    """Return what the region waits for at `now`.

    Args:
        region: as stored.
        now: the store's clock.
        seen: when it last worked, and the ends of its logs.
    """
    if region.state in rows.RESTING:
        return Liveness(waits=tuple(_person(region, now, seen, ())), now=now)
    found: list[Wait] = []
    for rule in _RULES:
        found += rule(region, now, seen, tuple(found))
    settled = _settled(region, now)
    found = [w if w.until is None or w.until >= settled else replace(w, until=settled) for w in found]
    # Members claim in each of these resets; that they have only just come explains nothing.
    found += _resets_without_end(region, now)
    last = datetime.max.replace(tzinfo=UTC)
    return Liveness(waits=tuple(sorted(found, key=lambda w: (not w.is_over(now), w.since or last))), now=now)


def _settled(region: Region, now: datetime) -> datetime:
    """Return when each live member has had a lease's time since it came or claimed; before, it may be about to act.

    What has waited for members that were away would otherwise be called stalled as they come back.
    """
    arrivals = (region.members[member].arrived_at for member in region.live_members(now))
    return _latest(*arrivals) + region.rules.timeouts.lease


def _person(region: Region, now: datetime, seen: Seen, earlier: tuple[Wait, ...]) -> Waits:
    if region.halt is not None:
        yield Wait(rule=Rule.PERSON, since=None, what=f"the region is halted: {region.halt.text}")
    elif region.desired_state is values.DesiredState.PAUSED and region.state is not rows.RegionState.STOPPED:
        yield Wait(rule=Rule.PERSON, since=None, what="the region is paused; resume it")


def _members(region: Region, now: datetime, seen: Seen, earlier: tuple[Wait, ...]) -> Waits:
    if region.live_members(now):
        return
    ended = [lease.until for lease in region.leases.values() if lease.until <= now]
    reset = region.reset
    since = max([*ended, *([] if reset is None else [reset.started_at])], default=None)
    until = None if since is None else since + patience(region)
    failures = [f"{c.member} can't start: {c.refusal}" for c in specs.start_failures(region, now)]
    what = f"no member lives; {few(failures, _NAMED) if failures else 'start them'}"
    yield Wait(rule=Rule.MEMBERS, since=since, what=what, until=until)


def _partitions(region: Region, now: datetime, seen: Seen, earlier: tuple[Wait, ...]) -> Waits:
    if region.state not in rows.WORKING or not region.live_members(now):
        return
    unowned = coverage.unowned(region)
    for group, found in _by_group(coverage.missing(region, now)).items():
        moments = (unowned.get(p) or _lost_at(region, now, owner) for p, owner in found.items())
        since = max((moment for moment in moments if moment is not None), default=None)
        since = since or _running_since(region)
        until = None if since is None else since + patience(region)
        what = few((coverage.gap_text(p, owner) for p, owner in found.items()), _NAMED)
        yield Wait(rule=Rule.PARTITIONS, since=since, what=what, until=until, group=group)
    yield from _unassigned(region)


def _unassigned(region: Region) -> Waits:
    """Partitions that the brokers have and no member ever owned."""
    for group, found in _by_group(coverage.unowned(region)).items():
        since = min(found.values())
        what = (
            f"no member owns {few(found, _NAMED)}: their records are not read; a member joins its group anew for them"
        )
        yield Wait(rule=Rule.PARTITIONS, since=since, what=what, until=since + patience(region), group=group)


def _by_group(found: Mapping[GroupPartition, V]) -> dict[values.GroupId, dict[GroupPartition, V]]:
    groups: dict[values.GroupId, dict[GroupPartition, V]] = {}
    for partition, value in found.items():
        groups.setdefault(partition.group, {})[partition] = value
    return groups


def _lost_at(region: Region, now: datetime, owner: values.MemberId | None) -> datetime | None:
    """When the lease of the last owner ended, or when it came back or let go; None: that is not known."""
    lease = None if owner is None else region.leases.get(owner)
    if owner is None or lease is None:
        return None
    return lease.until if lease.until <= now else region.members[owner].arrived_at


def _running_since(region: Region) -> datetime | None:
    reset = region.resets.get(region.epoch)
    return None if reset is None else reset.done_at


def _reset(region: Region, now: datetime, seen: Seen, earlier: tuple[Wait, ...]) -> Waits:
    reset = region.reset
    if reset is None or Rule.MEMBERS in _rules(earlier):
        return
    deadline = reset.started_at if reset.deadline is None else reset.deadline
    what = f"{reset.cause}: {_named(waits.reset(region, now))}"
    yield Wait(rule=Rule.RESET, since=reset.started_at, what=what, until=deadline + patience(region))


def _resets_without_end(region: Region, now: datetime) -> Waits:
    """Resets that follow one another while a checkpoint is wanted: each alone is over in time, and nothing comes of it.

    Rows of earlier resets are not read here; their epochs count them.
    """
    last = region.resets.get(region.epoch)
    wanted = _checkpoint_wanted_since(region, now)
    if last is None or wanted is None:
        return
    checkpoint = region.restore_checkpoint
    free_since = NEVER if checkpoint is None else checkpoint.finished_at or checkpoint.opened_at
    resets = region.epoch - ((region.restore_epoch or 0) if checkpoint is None else checkpoint.epoch)
    until = max(wanted, free_since) + RESETS_IN_A_ROW * (region.rules.timeouts.reset + patience(region))
    is_recent = last.done_at is None or now - last.done_at < patience(region)
    if resets >= RESETS_IN_A_ROW and is_recent and now >= until:
        what = f"{resets} resets and no checkpoint since the restore point; the last one because of {last.cause}"
        detail = f": {last.detail}" if last.detail else ""
        yield Wait(rule=Rule.RESET, since=wanted, what=what + detail, until=until)


def _checkpoint_wanted_since(region: Region, now: datetime) -> datetime | None:
    """Since when a checkpoint has been asked for, or its boundary has passed; None: none is wanted."""
    moments = [request.requested_at for request in requests.queue(region)]
    if region.checkpoint is not None:
        request = region.requests.get(region.checkpoint.request_id)
        moments.append(region.checkpoint.opened_at if request is None else request.requested_at)
    boundary = region.next_boundary
    if boundary is not None and boundary <= now and region.rules.checkpoint.mode is CheckpointMode.AUTO:
        moments.append(boundary)
    return min(moments, default=None)


def _checkpoint(region: Region, now: datetime, seen: Seen, earlier: tuple[Wait, ...]) -> Waits:
    checkpoint = region.checkpoint
    if checkpoint is None:
        return
    if checkpoint.state is rows.CheckpointState.DRAINING:
        until = None if checkpoint.drain_deadline is None else checkpoint.drain_deadline + patience(region)
        what = _named(waits.to_drain(region, checkpoint))
        yield Wait(rule=Rule.CHECKPOINT, since=checkpoint.opened_at, what=what, until=until)
    elif checkpoint.boundary is not None and checkpoint.boundary <= now:
        yield from _approach(region, checkpoint, checkpoint.boundary, seen)


def _approach(region: Region, checkpoint: rows.Checkpoint, boundary: datetime, seen: Seen) -> Waits:
    """A backlog takes as long as it takes: only one without a running batch is a wait that may last too long."""
    since = max(checkpoint.opened_at, boundary)
    left = sorted(boundaries.unreached(region, boundary, region.frozen[checkpoint.sequence]))
    idle = _idle_since(region, seen)
    until = None if idle is None else max(since, idle) + region.rules.checkpoint.grace + patience(region)
    what = (
        f"checkpoint {checkpoint.sequence} approaches its boundary {format_instant(boundary)}; not there yet: "
        f"{few(left, _NAMED) or 'nothing'}"
    )
    yield Wait(rule=Rule.CHECKPOINT, since=since, what=what, until=until)


def _idle_since(region: Region, seen: Seen) -> datetime | None:
    """Since when no batch has run; None: one runs, or that is not known."""
    if region.running or seen.worked_at is None:
        return None
    return max(seen.worked_at, _running_since(region) or NEVER)


def _publish(region: Region, now: datetime, seen: Seen, earlier: tuple[Wait, ...]) -> Waits:
    for checkpoint in timelines.unpublished(region):
        ended = checkpoint.finished_at or checkpoint.opened_at
        until = (checkpoint.publish_deadline or ended + region.rules.timeouts.publish) + region.rules.timeouts.lease
        yield replace(waits.unpublished(checkpoint), since=ended, until=until)


def _boundary(region: Region, now: datetime, seen: Seen, earlier: tuple[Wait, ...]) -> Waits:
    boundary, checkpoint = region.next_boundary, region.checkpoint
    if not _may_work(region) or boundary is None or boundary > now:
        return
    if checkpoint is not None and checkpoint.boundary is not None and checkpoint.boundary >= boundary:
        return
    is_asked_for = any(r.boundary is not None and r.boundary >= boundary for r in requests.queue(region))
    if region.rules.checkpoint.mode is CheckpointMode.DAG_RUN and not is_asked_for:
        what = f"members hold at the boundary {format_instant(boundary)} until a DAG run asks for its checkpoint"
        yield Wait(rule=Rule.RUN, since=boundary, what=what)
        return
    what = f"the boundary {format_instant(boundary)} has passed and no checkpoint of it is open{_behind(earlier)}"
    since = max(boundary, _free_since(region))
    yield Wait(rule=Rule.BOUNDARY, since=since, what=what, until=_unless_behind(earlier, since + patience(region)))


def _may_work(region: Region) -> bool:
    return region.state is rows.RegionState.RUNNING and region.desired_state is values.DesiredState.RUNNING


def _request(region: Region, now: datetime, seen: Seen, earlier: tuple[Wait, ...]) -> Waits:
    queue = requests.queue(region)
    if region.state is not rows.RegionState.RUNNING or region.checkpoint is not None or not queue:
        return
    first = queue[0]
    if first.boundary is not None and region.next_boundary == first.boundary and Rule.BOUNDARY in _rules(earlier):
        return
    what = f"request {first.request_id} is queued{_behind(earlier)}"
    since = max(first.requested_at, _free_since(region))
    yield Wait(rule=Rule.REQUEST, since=since, what=what, until=_unless_behind(earlier, since + patience(region)))


def _free_since(region: Region) -> datetime:
    """Since when nothing that came earlier keeps a checkpoint from being opened: a reset, or the checkpoint before."""
    return _latest(_running_since(region), *_shown_at(region.restore_checkpoint))


_BLOCKING: Final = (Rule.PERSON, Rule.MEMBERS, Rule.PARTITIONS, Rule.CHECKPOINT, Rule.PUBLISH)
"""What keeps a checkpoint from being opened; each has its own deadline, or waits for a person or another system."""


def _rules(waits: tuple[Wait, ...]) -> frozenset[Rule]:
    return frozenset(w.rule for w in waits)


def _behind(earlier: tuple[Wait, ...]) -> str:
    blocking = [str(rule) for rule in _BLOCKING if rule in _rules(earlier)]
    return f" (behind: {', '.join(blocking)})" if blocking else ""


def _unless_behind(earlier: tuple[Wait, ...], until: datetime) -> datetime | None:
    return None if _rules(earlier) & set(_BLOCKING) else until


def _batch(region: Region, now: datetime, seen: Seen, earlier: tuple[Wait, ...]) -> Waits:
    timeouts = region.rules.timeouts
    longest = timeouts.batch + timeouts.process_end_limit
    for batch in sorted(region.running.values(), key=lambda b: b.started_at):
        if now < batch.started_at + longest or not region.is_live(batch.member, now):
            continue
        lacks = region.leases[batch.member].lacks
        why = f": {lacks}" if lacks else ""
        what = f"batch {batch.batch} of {batch.member} runs for longer than {timeouts.batch}{why}"
        until = batch.started_at + longest + patience(region)
        yield Wait(rule=Rule.BATCH, since=batch.started_at, what=what, until=until, group=batch.member.group)


def _engine(region: Region, now: datetime, seen: Seen, earlier: tuple[Wait, ...]) -> Waits:
    for member in region.live_members(now):
        if lacks := region.leases[member].lacks:
            yield Wait(rule=Rule.ENGINE, since=None, what=f"{member}: {lacks}", group=member.group)


def _records(region: Region, now: datetime, seen: Seen, earlier: tuple[Wait, ...]) -> Waits:
    """Records that could be read, by partitions whose owner may begin a batch, while none has run for too long."""
    idle = _idle_since(region, seen)
    if idle is None or not _may_work(region):
        return
    ends = _ends_at_restore_point(region) | dict(seen.ends)
    left = {p: _readable(region, now, p, end.offset) for p, end in sorted(ends.items())}
    unread = _by_group({p: offsets for p, offsets in left.items() if offsets > 0})
    # Members that have read as many records as a checkpoint takes continue when it has been made.
    behind = _behind(earlier) if batches.records_left(region) == 0 else ""
    for group, found in unread.items():
        since = max(idle, min(ends[p].at for p in found), _limited_since(region))
        if now < since + region.rules.timeouts.lease:
            continue  # members that work plan their next batch
        lacking = [wait.what for wait in earlier if wait.rule is Rule.ENGINE and wait.group == group]
        why = f": {few(lacking, _NAMED)}" if lacking else behind
        what = f"{few((f'{n:,} of {p}' for p, n in found.items()), _NAMED)} can be read, and no batch reads them{why}"
        until = None if behind else max(since + _reading_patience(region), _settled(region, now)) + seen.linger
        yield Wait(rule=Rule.RECORDS, since=since, what=what, until=until, group=group)


def _limited_since(region: Region) -> datetime:
    """Since when members may read up to where they may read now: what lies beyond an earlier boundary waited for it.

    Only what comes once for each boundary counts. A checkpoint without one is complete wherever members are, and an
    aborted one is opened again, so neither says that a member could have read more than before.
    """
    restore_point, open_ = region.restore_checkpoint, region.checkpoint
    request = None if open_ is None else region.requests.get(open_.request_id)
    is_aligned = restore_point is not None and restore_point.boundary is not None
    asked_at = None if request is None or request.boundary is None else request.requested_at
    return _latest(asked_at, *(_shown_at(restore_point) if is_aligned else ()))


def _shown_at(checkpoint: rows.Checkpoint | None) -> tuple[datetime | None, ...]:
    """Return when a checkpoint was complete, and when it was published."""
    return () if checkpoint is None else (checkpoint.finished_at, checkpoint.published_at)


def _latest(*moments: datetime | None) -> datetime:
    return max((moment for moment in moments if moment is not None), default=NEVER)


def _ends_at_restore_point(region: Region) -> dict[GroupPartition, LogEnd]:
    checkpoint = region.restore_checkpoint
    parts = () if checkpoint is None else region.contributions_to(checkpoint.sequence).values()
    return {p: LogEnd(log.end, part.contributed_at) for part in parts for p, log in part.bounds.items()}


def _readable(region: Region, now: datetime, partition: GroupPartition, end: values.Offset) -> int:
    claim, boundary = region.claim_of(partition), boundaries.limit(region)
    if claim.position is None or not coverage.is_current(region, claim, now):
        return 0
    place = None if boundary is None else boundaries.boundary_offset(region, partition, boundary)
    return (end if place is None else min(end, place.offset)) - claim.position


def _due(region: Region, now: datetime, seen: Seen, earlier: tuple[Wait, ...]) -> Waits:
    due = region.reconcile_at
    until = None if due is None else due + patience(region)
    if until is not None and now >= until and Rule.MEMBERS not in _rules(earlier):
        what = "something is due that no member does; their logs say why"
        yield Wait(rule=Rule.RECONCILE, since=due, what=what, until=until)


_RULES: Final[tuple[Callable[[Region, datetime, Seen, tuple[Wait, ...]], Waits], ...]] = (
    _person,
    _members,
    _partitions,
    _reset,
    _checkpoint,
    _publish,
    _boundary,
    _request,
    _batch,
    _engine,
    _records,
    _due,
)
"""Each gets what those before it have found."""


def _named(found: Iterable[Wait]) -> str:
    return few((wait.what for wait in found), _NAMED) or "nothing"
