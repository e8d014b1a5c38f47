"""One region as a value, and the few things that every rule does with it.

A rule takes a `Region` and returns another; what it refuses, it raises, and nothing has changed. A decision's events
and ledger changes travel with the value until the store has written them (`Region.stored`).

The value holds what is open, and so is bounded by members, partitions and open work, however long the region has lived.
What is over stays in the store; a rule that has to know of it asks `Region.archive`, by name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias, TypeVar

from airflow_kcr.errors import LeaseExpired, RegionInState, StaleEpoch, StaleIncarnation, UnknownMember
from airflow_kcr.protocol import values
from airflow_kcr.protocol.observations import ForeignConsumer
from airflow_kcr.protocol.offsets import EMPTY, OffsetMap, SeekMap, past_skips
from airflow_kcr.protocol.region import events, rows
from airflow_kcr.protocol.region.archive import NOTHING, Archive, Named
from airflow_kcr.protocol.region.events import Body, Event
from airflow_kcr.protocol.rules import RegionRules
from airflow_kcr.protocol.values import DesiredState, GroupPartition, Offset, replace

InitialKey: TypeAlias = tuple[GroupPartition, values.TopicId]

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A region's spec: its text, which the store keeps, and the rules that follow from it."""

    text: str
    """Canonical JSON of the spec, without secrets' values."""

    rules: RegionRules
    revision: int = 1

    @property
    def digest(self) -> str:
        """A short hash over the text, to recognise it by."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchesProven:
    """Ledger: unaccepted batches of this epoch that lie wholly at or below a sink's progress were done after all.

    A batch is one transaction of its sink. So a partition of which no sink can tell, because the brokers have it no
    more or a foreign consumer has it, is not asked for, where another one of the batch tells.

    Of a partition, only of the epoch in which it ran before: an older one has had its own reset, which found less, and
    its ranges were since processed by others.
    """

    epoch: values.Epoch
    proven_in: values.Epoch
    """Of the reset whose sinks told their progress."""

    progress: OffsetMap
    """Of the partitions that were placed; 0 if that was not at a sink's progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """Ledger: offsets and contributions of retired checkpoints go, and where old boundaries fall, the oldest first."""

    sequences: tuple[values.CheckpointNumber, ...] = ()
    boundaries: datetime | None = None
    """The newest boundary to forget; None: none is."""

    limit: int = 0
    """Rows of boundaries that one transaction may forget; the next one continues."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointsUndone:
    """Ledger: a new timeline has undone these checkpoints, most of which the region does not hold."""

    sequences: tuple[values.CheckpointNumber, ...]
    by: values.Timeline


LedgerChange: TypeAlias = rows.Batch | BatchesProven | Forgotten | CheckpointsUndone
"""A batch is its row as it is now: it began, has its outcome, or its incarnation was superseded."""


@dataclass(frozen=True, kw_only=True)
class Region:
    """What decisions about one region read: what is open, and what it goes back to.

    Of the tables that grow with time it holds a part. Of checkpoints: the open one, those not yet published, the
    restore point, that of a stop, and the newest aligned to a boundary. Of requests: queued and open ones. Of persons'
    resets: those not ended. Of resets and their seek maps: the present epoch's and the restore point's. Of boundary
    offsets: those of the next boundary and of the boundaries that are asked for. A decision adds the rows that it
    makes.
    """

    name: values.RegionName
    region_id: values.RegionId
    """What it is beyond its name; made when it was declared."""

    spec: Spec
    next_spec: Spec | None = None
    """A changed spec whose topics, members, pipeline or delivery wait for the next checkpoint or start."""

    start_failures: tuple[rows.StartFailure, ...] = ()
    """Why members can't start with the spec in force."""

    reset_answers: tuple[rows.ResetAnswer, ...] = ()
    """What persons have answered about resets that are not applied yet, the newest last."""

    state: rows.RegionState = rows.RegionState.STOPPED
    desired_state: DesiredState = DesiredState.STOPPED
    epoch: values.Epoch = values.Epoch(0)
    timeline: values.Timeline = values.Timeline(0)
    next_sequence: values.CheckpointNumber = values.CheckpointNumber(1)
    counter: values.EventNumber = values.EventNumber(0)
    recorded_at: datetime | None = None
    """When the event of this number was recorded; None: nothing was, or its history was dropped before an upgrade."""

    restore_point: rows.RestorePoint | None = None
    """Where the next automatic reset goes back to; None: the region was never started."""

    next_boundary: datetime | None = None
    held_boundary: datetime | None = None
    """The boundary for which it was said that members have held there for longer than a period."""

    aligned: values.CheckpointNumber | None = None
    """The newest current checkpoint that was aligned to a boundary."""

    failures: int = 0
    open_checkpoint: values.CheckpointNumber | None = None
    stopping: values.CheckpointNumber | None = None
    """The complete checkpoint of a stop, until it is published and committed."""

    halt: rows.Halt | None = None
    reconcile_at: datetime | None = None
    """When a transition is due without a request; None: nothing is."""

    initialised: bool = False
    """Whether the region was ever covered: partitions found later start at their beginning."""

    clusters: Mapping[values.GroupId, values.ClusterId] = field(default_factory=dict)
    """Which cluster each group is on, as far as known; see `lost_logs`."""

    foreign_consumers: tuple[ForeignConsumer, ...] = ()
    """The foreign consumers in the groups at the last check, in order."""

    unserved: Mapping[GroupPartition, rows.Unserved] = field(default_factory=dict)
    """Partitions that have no owner, see `unowned`, or that the brokers do not have, see `lost_logs`."""

    members: Mapping[values.MemberId, rows.Member] = field(default_factory=dict)
    leases: Mapping[values.MemberId, rows.Lease] = field(default_factory=dict)
    claims: Mapping[GroupPartition, rows.Claim] = field(default_factory=dict)
    running: Mapping[values.BatchId, rows.Batch] = field(default_factory=dict)
    """Batches started and not ended."""

    initial: Mapping[InitialKey, rows.InitialOffset] = field(default_factory=dict)
    retire_at: datetime | None = None
    """When retention may next have something to forget; None: never, as it stands."""

    archive: Archive = field(default=NOTHING, compare=False, repr=False)
    """What is over, as it was stored before this decision; asked by name."""

    boundary_offsets: Mapping[rows.BoundaryKey, rows.BoundaryOffset] = field(default_factory=dict)
    requests: Mapping[values.RequestId, rows.CheckpointRequest] = field(default_factory=dict)
    checkpoints: Mapping[values.CheckpointNumber, rows.Checkpoint] = field(default_factory=dict)
    offsets: Mapping[values.CheckpointNumber, OffsetMap] = field(default_factory=dict)
    """Offsets of the restore point, where it is a checkpoint."""

    frozen: Mapping[values.CheckpointNumber, frozenset[GroupPartition]] = field(default_factory=dict)
    """Partitions frozen when a checkpoint was opened."""

    contributions: Mapping[tuple[values.CheckpointNumber, values.MemberId], rows.Contribution] = field(
        default_factory=dict
    )
    read_backs: Mapping[values.CheckpointNumber, OffsetMap] = field(default_factory=dict)
    resets: Mapping[values.Epoch, rows.ResetAttempt] = field(default_factory=dict)
    seek_maps: Mapping[values.Epoch, SeekMap] = field(default_factory=dict)
    person_resets: Mapping[values.RequestId, rows.PersonReset] = field(default_factory=dict)
    skips: Mapping[GroupPartition, tuple[Offset, ...]] = field(default_factory=dict)
    """Single records that a person chose to step over, ascending."""

    events: tuple[Event, ...] = ()
    ledger: tuple[LedgerChange, ...] = ()

    @property
    def rules(self) -> RegionRules:
        """The rules in force."""
        return self.spec.rules

    @property
    def own_groups(self) -> Mapping[values.GroupId, values.ClusterId]:
        """The groups that are no other region's, each with its cluster: of the spec in force, and of one that waits."""
        waiting = () if self.next_spec is None else self.next_spec.rules.groups
        return {g: self.clusters.get(g, values.NO_CLUSTER) for g in sorted({*self.rules.groups, *waiting})}

    @property
    def reset(self) -> rows.ResetAttempt | None:
        """The reset that runs, if one does."""
        return self.resets.get(self.epoch) if self.state in rows.RESET_STATES else None

    @property
    def seek(self) -> SeekMap:
        """The seek map of the current epoch."""
        held = self.seek_maps.get(self.epoch)
        return (self.archive.seek_map(self.epoch) or NO_SEEK) if held is None else held

    @property
    def restore_sequence(self) -> values.CheckpointNumber | None:
        """The number of the restore point: the checkpoint's, or the one that its reset has burnt."""
        return None if self.restore_point is None else self.restore_point.sequence

    @property
    def restore_epoch(self) -> values.Epoch | None:
        """The epoch whose seek map is the restore point, where that is a reset."""
        return None if self.restore_point is None else self.restore_point.epoch

    @property
    def restore_checkpoint(self) -> rows.Checkpoint | None:
        """The checkpoint that is the restore point, if one is."""
        point = self.restore_point
        return None if point is None or point.epoch is not None else self.checkpoints[point.sequence]

    @property
    def uncommitted(self) -> rows.Checkpoint | None:
        """The restore point, while its commit to Kafka is outstanding."""
        point = self.restore_checkpoint
        return point if point is not None and point.committed is rows.Committed.PENDING else None

    @property
    def checkpoint(self) -> rows.Checkpoint | None:
        """The open checkpoint, if there is one."""
        return None if self.open_checkpoint is None else self.checkpoints[self.open_checkpoint]

    @property
    def complete(self) -> tuple[values.CheckpointNumber, ...]:
        """The checkpoints that are complete and not published yet, oldest first."""
        found = (s for s, row in self.checkpoints.items() if row.state is rows.CheckpointState.COMPLETE)
        return tuple(sorted(found))

    @property
    def runs(self) -> tuple[rows.CheckpointRequest, ...]:
        """The requests of runs whose checkpoint is not there yet."""
        waiting = {rows.RequestState.QUEUED, rows.RequestState.OPEN}
        return tuple(one for one in self.requests.values() if one.is_of_run and one.state in waiting)

    @property
    def is_in_run(self) -> bool:
        """Whether it was started for a run whose checkpoint is not there yet."""
        return bool(self.runs)

    def record(self, now: datetime, body: Body) -> Region:
        """Return the region with one more event; the only place where the event counter moves."""
        number = values.EventNumber(self.counter + 1)
        event = Event(number=number, at=now, epoch=self.epoch, timeline=self.timeline, body=body)
        return replace(self, counter=number, recorded_at=now, events=(*self.events, event))

    def stored(self) -> Region:
        """Return the region as it is once its events and ledger changes are written."""
        return replace(self, events=(), ledger=()) if self.events or self.ledger else self

    def without_forgotten(self, changes: tuple[LedgerChange, ...]) -> Region:
        """Return the region without the offsets of checkpoints that a decision's changes have forgotten."""
        gone = frozenset(s for change in changes if isinstance(change, Forgotten) for s in change.sequences)
        if not gone:
            return self
        return replace(
            self,
            offsets=without(self.offsets, gone),
            frozen=without(self.frozen, gone),
            read_backs=without(self.read_backs, gone),
            contributions={key: part for key, part in self.contributions.items() if key[0] not in gone},
        )

    def moved_to(self, now: datetime, state: rows.RegionState, why: str) -> Region:
        """Return the region in another state; the single writer of `state`."""
        if state is self.state:
            return self
        before = self.state
        moved = replace(self, state=state)
        return moved.record(now, events.StateChanged(before=before, after=state, why=why))

    def wanting(self, now: datetime, desired: DesiredState, requester: rows.Requester) -> Region:
        """Return the region with what was asked of it; the single writer of `desired_state`."""
        if desired is self.desired_state:
            return self
        body = events.DesiredStateChanged(desired_state=desired, requester=requester)
        return replace(self, desired_state=desired).record(now, body)

    def with_initial(self, now: datetime, initial: Mapping[InitialKey, rows.InitialOffset]) -> Region:
        """Return the region with the initial offsets of partitions, each for a topic id."""
        if not initial:
            return self
        body = events.InitialOffsetsStored(
            offsets=OffsetMap({p: row.offset for (p, _), row in initial.items()}),
            bounds={p: row.bounds for (p, _), row in initial.items()},
            sources={p: row.source for (p, _), row in initial.items()},
        )
        return replace(self, initial=put(self.initial, initial)).record(now, body)

    def with_checkpoint(self, checkpoint: rows.Checkpoint) -> Region:
        """Return the region with one checkpoint row replaced."""
        return replace(self, checkpoints=put(self.checkpoints, {checkpoint.sequence: checkpoint}))

    def with_request(self, request: rows.CheckpointRequest) -> Region:
        """Return the region with one checkpoint request replaced."""
        return replace(self, requests=put(self.requests, {request.request_id: request}))

    def with_reset(self, reset: rows.ResetAttempt) -> Region:
        """Return the region with one attempt of a reset replaced."""
        return replace(self, resets=put(self.resets, {reset.epoch: reset}))

    def with_person_reset(self, reset: rows.PersonReset) -> Region:
        """Return the region with one reset of a person replaced."""
        return replace(self, person_resets=put(self.person_resets, {reset.request_id: reset}))

    def with_person_reset_failed(self, now: datetime, reset: rows.PersonReset, why: str) -> Region:
        """Return the region with a reset of a person failed."""
        failed = replace(reset, state=rows.PersonResetState.FAILED, failure=why, finished_at=now)
        body = events.PersonResetFailed(request_id=reset.request_id, why=why)
        return self.with_person_reset(failed).record(now, body)

    def person_of(self, reset: rows.ResetAttempt | None) -> rows.PersonReset | None:
        """Return what a person asked for, where that is why the reset began and it is not over."""
        return None if reset is None or reset.person is None else self.person_resets.get(reset.person)

    def is_live(self, member: values.MemberId, now: datetime) -> bool:
        """Whether the member's newest incarnation holds a lease that is not over, by the store's clock."""
        lease, row = self.leases.get(member), self.members.get(member)
        return (
            lease is not None
            and row is not None
            and not row.left
            and lease.incarnation == row.incarnation
            and lease.until > now
        )

    def live_members(self, now: datetime) -> tuple[values.MemberId, ...]:
        """The members that hold leases, in order."""
        return tuple(m for m in sorted(self.members) if self.is_live(m, now))

    def member_of(self, member: values.MemberId) -> rows.Member:
        """Return a member's row.

        Raises:
            UnknownMember: it was never registered.
        """
        row = self.members.get(member)
        if row is None:
            raise UnknownMember(f"{member} is not registered in region {self.name}; register it first")
        return row

    def require_member(
        self,
        member: values.MemberId,
        incarnation: values.Incarnation,
        now: datetime,
        *,
        epoch: values.Epoch | None = None,
    ) -> rows.Member:
        """Return the member's row if this incarnation may act.

        Args:
            region: the region.
            member: who asks.
            incarnation: the incarnation it believes to be.
            now: the store's clock.
            epoch: the epoch it believes in; None where the verb is not bound to one.

        Raises:
            UnknownMember: it was never registered.
            StaleIncarnation: a newer incarnation exists.
            LeaseExpired: its lease is over.
            StaleEpoch: the region is in another epoch.
        """
        row = self.member_of(member)
        if row.incarnation != incarnation:
            raise StaleIncarnation(f"{member}: incarnation {incarnation} was superseded by {row.incarnation}; stop it")
        if not self.is_live(member, now):
            raise LeaseExpired(
                f"{member}, incarnation {incarnation}: its lease is over; come back as a new incarnation"
            )
        self.require_epoch(epoch)
        return row

    def of_process(self, member: values.MemberId, token: str) -> Region:
        """Return the region, if this process is the member.

        Raises:
            UnknownMember: the member was never registered.
            StaleIncarnation: another process is the member, by whatever number.
        """
        if self.member_of(member).token != token:
            raise StaleIncarnation(f"{member}: another process is this member of region {self.name} now; stop this one")
        return self

    def require_epoch(self, epoch: values.Epoch | None) -> None:
        """Refuse a caller of another epoch.

        Raises:
            StaleEpoch: `epoch` is not the region's.
        """
        if epoch is not None and epoch != self.epoch:
            raise StaleEpoch(f"region {self.name} is in epoch {self.epoch}, the request was made in epoch {epoch}")

    def require_state(self, allowed: frozenset[rows.RegionState], verb: str) -> None:
        """Refuse a verb in a state that does not allow it.

        Raises:
            RegionInState: names the state and those that allow the verb.
        """
        if self.state not in allowed:
            raise RegionInState(
                f"region {self.name} is {self.state}; {verb} needs it {' or '.join(sorted(allowed))}"
                + (f" ({self.halt.text})" if self.halt else "")
            )

    def claim_of(self, partition: GroupPartition) -> rows.Claim:
        """Return a partition's claim; of one that was never claimed, one without an owner and a place."""
        return self.claims.get(partition, rows.UNCLAIMED)

    def initial_offset(self, partition: GroupPartition) -> rows.InitialOffset | None:
        """Return the stored initial offset of a partition's present topic id."""
        return self.initial.get((partition, self.claim_of(partition).topic_id))

    def initial_offsets(self) -> OffsetMap:
        """Return the stored initial offsets of every partition, each for its present topic id."""
        claims = self.claims
        return OffsetMap(
            {
                p: row.offset
                for (p, topic_id), row in self.initial.items()
                if (claim := claims.get(p)) is not None and claim.topic_id == topic_id
            }
        )

    def restore_point_offsets(self) -> OffsetMap:
        """Return the restore point's offsets: of the checkpoint, or of the seek map that opened the timeline."""
        point = self.restore_point
        if point is None:
            return EMPTY
        return self.offsets[point.sequence] if point.epoch is None else self.seek_maps[point.epoch].offsets

    def restore_point_offset(self, partition: GroupPartition) -> Offset | None:
        """Return where the restore point has one partition; None: nowhere, or its entry is still open."""
        point = self.restore_point
        if point is None:
            return None
        if point.epoch is None:
            return self.offsets[point.sequence].get(partition)
        entry = self.seek_maps[point.epoch].get(partition)
        return None if entry is None else entry.offset

    def contributions_to(self, sequence: values.CheckpointNumber) -> Mapping[values.MemberId, rows.Contribution]:
        """Return what was contributed to one checkpoint, by member, in order; of a retired one nothing is left."""
        found = {member: part for (of, member), part in sorted(self.contributions.items()) if of == sequence}
        return found if found or sequence == self.open_checkpoint else self.archive.contributions(sequence)

    def checkpoint_of(self, sequence: values.CheckpointNumber) -> rows.Checkpoint | None:
        """Return a checkpoint's row, whatever became of it; None: there is none of that number."""
        held = self.checkpoints.get(sequence)
        return self.archive.checkpoint(sequence) if held is None else held

    def offsets_of(self, sequence: values.CheckpointNumber) -> OffsetMap | None:
        """Return the offsets of a checkpoint; None: it is not complete, or retired."""
        held = self.offsets.get(sequence)
        return self.archive.offsets([sequence]).get(sequence) if held is None else held

    def request_of(self, request_id: values.RequestId) -> rows.CheckpointRequest | None:
        """Return the request that a request id names, whatever became of it."""
        held = self.requests.get(request_id)
        return self.archive.request(request_id) if held is None else held

    def named_by(self, request_id: values.RequestId) -> Named:
        """Return what a request id names, whatever became of it."""
        request, reset = self.requests.get(request_id), self.person_resets.get(request_id)
        if request is not None and reset is not None:
            return request, reset
        stored_request, stored_reset = self.archive.named(request_id)
        return request or stored_request, reset or stored_reset

    def person_reset_of(self, request_id: values.RequestId) -> rows.PersonReset | None:
        """Return a person's reset by its request id, whatever became of it."""
        held = self.person_resets.get(request_id)
        return self.archive.person_reset(request_id) if held is None else held

    def is_unsettled(self, partition: GroupPartition, claim: rows.Claim) -> bool:
        """Whether a partition can't go on with another owner, or incarnation, from where it stands.

        A batch started there was not accepted and may still write, or what accepted batches have written may be in the
        owner's process alone. Otherwise all that was started is accepted, and nothing runs: its position is the place.
        """
        rules = self.rules.groups.get(partition.group)
        return claim.is_in_flight or (claim.is_started and rules is not None and rules.holds_output)

    def belongs(self, partition: GroupPartition) -> bool:
        """Whether a partition can be the region's: the spec reads its topic, and the brokers have it, or may again."""
        row = self.unserved.get(partition)
        return self.rules.subscribes(partition.group, partition.topic) and not (row and row.is_gone)

    def universe(self) -> frozenset[GroupPartition]:
        """Return the region's partitions.

        In the restore point or with an initial offset, in the current spec, not gone.
        """
        known = {p for p, claim in self.claims.items() if claim.resume is not None or claim.owner is not None}
        known.update(self.restore_point_offsets())
        known.update(p for p, _ in self.initial)
        # A few topics have all the partitions, so a topic is asked about once.
        strange = {
            (group, topic)
            for group, topic in {(p.group, p.topic) for p in known}
            if not self.rules.subscribes(group, topic)
        }
        if strange:
            known = {p for p in known if (p.group, p.topic) not in strange}
        return frozenset(known.difference(self.gone()))

    def gone(self) -> frozenset[GroupPartition]:
        """Return the partitions that are no part of the region any more, as the brokers do not have them."""
        return frozenset(p for p, row in self.unserved.items() if row.is_gone)

    def absent(self) -> dict[GroupPartition, rows.Unserved]:
        """Return the partitions that the brokers do not have, in order."""
        return {p: row for p, row in sorted(self.unserved.items()) if not row.is_there}

    def universe_in_order(self) -> tuple[GroupPartition, ...]:
        """Return the region's partitions in their order, as maps of them are."""
        known = self.universe()
        # Claims are read in order, which leaves little to sort; a set has none.
        return tuple(sorted([*(p for p in self.claims if p in known), *(known - self.claims.keys())]))

    def past_skips(self, partition: GroupPartition, offset: Offset) -> Offset:
        """Return the next offset at or after `offset` that is not skipped."""
        return past_skips(offset, self.skips.get(partition, ()))


NO_SEEK = SeekMap({})


def put(table: Mapping[K, V], added: Mapping[K, V]) -> Mapping[K, V]:
    """Return the table with these rows added or replaced."""
    return {**table, **added} if added else table


def without(table: Mapping[K, V], keys: frozenset[K]) -> Mapping[K, V]:
    """Return the table without the rows of these keys."""
    return {k: v for k, v in table.items() if k not in keys}


def digest(offsets: OffsetMap) -> str:
    """Return a short hash over an offset map, to recognise it by."""
    text = "\n".join(f"{p.group}\0{p.topic}\0{p.partition}\0{o}" for p, o in offsets.items())
    return hashlib.sha256(text.encode()).hexdigest()[:16]
