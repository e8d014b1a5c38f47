"""A scripted region: a store, a clock and a few members that do what a test says, in as few words as it takes.

The driver keeps no rules of its own. It calls the verbs of the region store as members, a person and a DAG run would,
and remembers only what those remember: which incarnation a process is, how often it was assigned something, what a
fenced sink holds. Refusals pass through to the test.

    driver = Driver(partitions=4, members=2)
    driver.up()
    driver.process(driver.member(0), width=10)
    driver.checkpoint("n1")
    driver.crash(driver.member(1))
    driver.recover()
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from airflow_kcr.errors import KcrError
from airflow_kcr.protocol.observations import ForeignConsumer, LogBounds
from airflow_kcr.protocol.offsets import OffsetMap, SeekEntry, SeekMap, SeekSource
from airflow_kcr.protocol.region import commands, rows
from airflow_kcr.protocol.region.events import Event
from airflow_kcr.protocol.region.resets import open_targets
from airflow_kcr.protocol.region.state import Region, Spec
from airflow_kcr.protocol.rules import Delivery, GroupRules, RegionRules
from airflow_kcr.protocol.scopes import EVERYTHING, Scope
from airflow_kcr.protocol.table_outputs import TableVersion
from airflow_kcr.protocol.targets import Target
from airflow_kcr.protocol.values import (
    AssignmentId,
    BatchId,
    CheckpointNumber,
    DesiredState,
    Epoch,
    EventNumber,
    GroupId,
    GroupPartition,
    Incarnation,
    MemberId,
    Offset,
    Range,
    RegionId,
    RegionName,
    RequestId,
    Timeline,
    TopicId,
    TopicName,
)
from airflow_kcr.store.regions import RegionStore
from tests.support import start_failures
from tests.support.memory import MemoryTransactions
from tests.support.whole import everything

A = TypeVar("A")

BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
GROUP = GroupId("g")
TOPIC = TopicName("t")

START = commands.ChangeDesiredState(desired_state=DesiredState.RUNNING)
PAUSE = commands.ChangeDesiredState(desired_state=DesiredState.PAUSED)
STOP = commands.ChangeDesiredState(desired_state=DesiredState.STOPPED)


def group_rules(
    name: str = "g", *, members: int = 2, delivery: Delivery = Delivery.AT_LEAST_ONCE, topic: str = "t"
) -> GroupRules:
    """Return a group that reads one topic."""
    return GroupRules(group_id=GroupId(name), topics=(TopicName(topic),), members=members, delivery=delivery)


class Clock:
    """The store's clock, moved by hand."""

    def __init__(self, now: datetime = BEGINNING) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += timedelta(seconds=seconds)


@dataclass(slots=True)
class Process:
    """What one running member remembers."""

    member: MemberId
    incarnation: Incarnation
    token: str = ""
    assigned: tuple[GroupPartition, ...] = ()
    assignments: int = 0
    lacks: str = ""
    """What it says with each renewal that it lacks."""


@dataclass(slots=True)
class Driver:
    """One region and those who work for it.

    Args:
        partitions: how many partitions each group's topic has.
        members: how many members the group has, where `rules` is not given.
        delivery: of that group.
        rules: the whole rules, for anything else.
        transactions: another store than the one in memory; its clock is then its own business.

    What a verb is given as `region` was just read, so that it isn't read once more.
    """

    partitions: int = 4
    members: int = 2
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    rules: RegionRules | None = None
    transactions: RegionStore | None = None
    name: RegionName = RegionName("flights")
    region_id: RegionId | None = None
    clock: Clock = field(default_factory=Clock)
    logs: dict[GroupPartition, LogBounds] = field(default_factory=dict)
    processes: dict[MemberId, Process] = field(default_factory=dict)
    progress: dict[GroupPartition, tuple[Timeline, Offset]] = field(default_factory=dict)
    """What a fenced sink would hold, for groups that process exactly once."""

    store: RegionStore = field(init=False)
    _made: int = 0

    def __post_init__(self) -> None:
        self.rules = self.rules or RegionRules(
            groups={GROUP: group_rules(members=self.members, delivery=self.delivery)}
        )
        self.store = self.transactions or MemoryTransactions(self.clock)
        for group, rules in self.rules.groups.items():
            for topic in rules.topics:
                for number in range(self.partitions):
                    self.grow(GroupPartition(group, topic, number), end=1_000)
        self.store.handle(
            self.name,
            commands.DeclareRegion(
                spec=Spec(text="{}", rules=self.rules), region_id=self.region_id or RegionId(f"id of {self.name}")
            ),
        )

    # -- names ---------------------------------------------------------------------------------------------------

    def member(self, index: int, group: str = "g") -> MemberId:
        """Return a member's id."""
        return MemberId(GroupId(group), index)

    def partition(self, number: int, group: str = "g", topic: str = "t") -> GroupPartition:
        """Return a partition."""
        return GroupPartition(GroupId(group), TopicName(topic), number)

    def grow(self, partition: GroupPartition, *, end: int, start: int = 0, topic_id: str = "id-1") -> None:
        """Set the bounds of a log; a new partition is thereby made."""
        self.logs[partition] = LogBounds(start=Offset(start), end=Offset(end), topic_id=TopicId(topic_id))

    def all_members(self) -> tuple[MemberId, ...]:
        """Return every member of the spec."""
        return tuple(
            MemberId(g, i) for g, rules in sorted(self.held.rules.groups.items()) for i in range(rules.members)
        )

    # -- what there is -------------------------------------------------------------------------------------------

    @property
    def region(self) -> Region:
        """The region as stored, with every row that it ever had."""
        return everything(self.held)

    @property
    def held(self) -> Region:
        """The region as rules get it."""
        return self.store.read(self.name)[0]

    @property
    def events(self) -> tuple[Event, ...]:
        """All events."""
        found: list[Event] = []
        while page := self.store.events(self.name, EventNumber(len(found))):
            found.extend(page)
        return tuple(found)

    @property
    def batches(self) -> tuple[rows.Batch, ...]:
        """The ledger."""
        return tuple(self.store.batches(self.name))

    def claims(self, member: MemberId, region: Region | None = None) -> dict[GroupPartition, rows.Claim]:
        """Return what a member holds now, in this epoch and by its present process."""
        region, process = region or self.held, self.processes[member]
        return {
            p: c
            for p, c in region.claims.items()
            if (c.owner, c.incarnation, c.epoch) == (member, process.incarnation, region.epoch)
        }

    def caller(self, member: MemberId, region: Region | None = None) -> commands.Caller:
        """Return a member's way to say who it is, in the present epoch."""
        epoch = (region or self.held).epoch
        return commands.Caller(member=member, incarnation=self.processes[member].incarnation, epoch=epoch)

    def handle(self, command: commands.Command[A]) -> A:
        """Have the store handle a command."""
        return self.store.handle(self.name, command)

    def change(self, rule: Callable[[Region, datetime], Region]) -> Region:
        """Bring the region into a state in which a rule puts it, and nothing that is due with it."""
        return self.store.decide(self.name, lambda region, now: (rule(region, now), None))[0]

    def request_reset(self, member: MemberId, cause: rows.ResetCause, detail: str = "") -> Region:
        """Ask for a reset in a member's name, in the present epoch."""
        return self.handle(commands.RequestReset(caller=self.caller(member), cause=cause, detail=detail))

    # -- members -------------------------------------------------------------------------------------------------

    def number_from(self, sequence: int) -> None:
        """Have a region that was never started number from there, as one does that has run for long."""
        self.change(lambda region, now: replace(region, next_sequence=CheckpointNumber(sequence)))

    def up(self) -> None:
        """Start the region with every member, partitions spread evenly, and let it run."""
        self.store.handle(self.name, START)
        for member in self.all_members():
            self.join(member)
        self.spread()
        self.finish_reset()

    def fail_to_start(self, *members: MemberId, refusal: str) -> None:
        """Have processes say why they can't start members with the spec in force."""
        start_failures.say(self.store, self.name, members, refusal)

    def join(
        self, member: MemberId, *, takeover: bool = False, came_back: bool = False, built_from: Spec | None = None
    ) -> Incarnation:
        """Register a new process for a member; `came_back`: the same process after a lost lease."""
        before = self.processes[member] if came_back else None
        arrival = commands.Register(
            member=member,
            token=self._fresh("token") if before is None else before.token,
            takeover=takeover,
            previous=None if before is None else before.incarnation,
            spec_digest=None if built_from is None else built_from.digest,
        )
        incarnation = self.handle(arrival)
        self.processes[member] = Process(member=member, incarnation=incarnation, token=arrival.token)
        return incarnation

    def spread(self) -> None:
        """Claim as Kafka's range assignor would propose, over the members that have a process."""
        region = self.held
        for group in region.rules.groups:
            members = sorted(m for m in self.processes if m.group == group)
            logs = sorted(p for p in self.logs if p.group == group)
            for place, member in enumerate(members):
                own = logs[place * len(logs) // len(members) : (place + 1) * len(logs) // len(members)]
                self.claim(member, own, region=region)

    def insist(self, member: MemberId, partitions: Iterable[GroupPartition] | None = None) -> None:
        """Claim as a member does that has been refused for as long as a batch of another may take."""
        self.claim(member, partitions, waited=self.held.rules.timeouts.batch)

    def claim(
        self,
        member: MemberId,
        partitions: Iterable[GroupPartition] | None = None,
        *,
        waited: timedelta = timedelta(0),
        region: Region | None = None,
    ) -> None:
        """Claim a set of partitions, which Kafka has just assigned; without one, the last assignment again."""
        process, initial = self.processes[member], (region or self.held).initial
        if partitions is not None:
            process.assigned = tuple(partitions)
        process.assignments += 1
        start = {p: SeekEntry(offset=self.logs[p].start, source=SeekSource.START_POSITION) for p in process.assigned}
        assigned = {
            p: commands.AssignedPartition(
                bounds=self.logs[p], initial=None if (p, self.logs[p].topic_id) in initial else start[p]
            )
            for p in process.assigned
        }
        proposal = commands.ClaimPartitions(
            member=member,
            incarnation=process.incarnation,
            assignment=AssignmentId(process.assignments),
            partitions=assigned,
            waited=waited,
        )
        self.handle(proposal)

    def answer(self, member: MemberId, region: Region | None = None) -> Region:
        """Answer a member's open seek entries: from the sink's progress, otherwise with the log's start."""
        region = region or self.held
        found: dict[GroupPartition, commands.Found] = {}
        for partition, target in open_targets(region, member).items():
            if target.source is not SeekSource.SINK_PROGRESS:
                found[partition] = commands.Found(offset=self.logs[partition].start, log=self.logs[partition])
                continue
            timeline, offset = self.progress.get(partition, (Timeline(-1), Offset(0)))
            found[partition] = commands.Found(offset=offset if timeline == region.timeline else None)
        if not found:
            return region
        return self.handle(commands.AnswerEntries(caller=self.caller(member, region), found=found))

    def acknowledge(self, member: MemberId, region: Region | None = None) -> None:
        """Acknowledge the running reset, its open entries answered first."""
        self.handle(commands.Acknowledge(caller=self.caller(member, self.answer(member, region))))

    def finish_reset(self) -> None:
        """Let every process do its part of a running reset, and publish what has to be."""
        self.publish()
        region = self.held
        for member in sorted(self.processes):
            if region.reset is None:
                return
            if region.members[member].claimed != region.epoch:
                self.claim(member, region=region)
                region = self.held
        for member in sorted(self.processes):
            if region.reset is not None:
                self.acknowledge(member, region)
                region = self.held

    def find_stranger(self) -> None:
        """Find a foreign consumer in the region's first group: it halts, if its policy is `fail`."""
        group = min(self.region.rules.groups)
        stranger = ForeignConsumer(group=group, client_id="stranger", host="host")
        self.handle(commands.ReportGroups(seen={group: (stranger,)}))

    def report_partitions(self, member: MemberId) -> commands.PartitionAdvice:
        """Have a member tell what the brokers have of its group, and return what it is told to do."""
        there = frozenset(p for p in self.logs if p.group == member.group)
        incarnation = self.processes[member].incarnation
        return self.handle(commands.ReportPartitions(member=member, incarnation=incarnation, partitions=there))

    def crash(self, member: MemberId) -> None:
        """Let a process vanish; its lease stays until its time is over, and so does its batch: it starts one if it may.

        One that vanishes between two batches leaves nothing behind (`vanish`).
        """
        with suppress(KcrError):
            self.start_batch(member)
        self.vanish(member)

    def vanish(self, member: MemberId) -> None:
        """Let a process vanish as it is; its lease, and its batch if it has one, stay until their time is over."""
        del self.processes[member]

    def leave(self, member: MemberId) -> None:
        """Let a member leave its group by itself."""
        self.handle(commands.Leave(member=member, incarnation=self.processes.pop(member).incarnation))

    def heartbeat(self) -> None:
        """Renew the lease of every process."""
        self._renew(self.held.rules.timeouts.lease)

    def _renew(self, lease: timedelta) -> None:
        for member, process in self.processes.items():
            renewal = commands.Renew(member=member, incarnation=process.incarnation, lease=lease, lacks=process.lacks)
            self.store.handle(self.name, renewal)

    def wait(self, seconds: float) -> None:
        """Let time pass while every process renews its lease, and do what is due."""
        lease = self.held.rules.timeouts.lease
        step = lease.total_seconds() / 2
        while seconds > 0:
            self.clock.advance(min(step, seconds))
            self._renew(lease)
            seconds -= step
        self.store.handle(self.name, commands.Reconcile())

    def recover(self) -> None:
        """Bring every member back that has no process, after leases and their batches are over, and let all run."""
        self.wait(60)
        for member in self.all_members():
            if member not in self.processes:
                self.join(member)
        self.spread()
        self.finish_reset()

    # -- batches -------------------------------------------------------------------------------------------------

    def start_batch(
        self, member: MemberId, width: int = 10, partitions: Iterable[GroupPartition] | None = None
    ) -> BatchId:
        """Start a batch of `width` offsets on each of the partitions, by default all that the member holds."""
        return self._start_batch(self.held, member, width, partitions).batch

    def _start_batch(
        self, region: Region, member: MemberId, width: int, partitions: Iterable[GroupPartition] | None = None
    ) -> rows.Batch:
        held = self.claims(member, region)
        ranges: dict[GroupPartition, Range] = {}
        for partition in held if partitions is None else partitions:
            place = held[partition].position
            if place is not None and place < self.logs[partition].end:
                ranges[partition] = Range(place, Offset(min(place + width, self.logs[partition].end)))
        return self.handle(self.batch_of(member, ranges, self._fresh("batch"), region))

    def start_ranges(self, member: MemberId, ranges: Mapping[GroupPartition, Range]) -> BatchId:
        """Start a batch of exactly these ranges."""
        request = self.batch_of(member, ranges, self._fresh("batch"))
        self.handle(request)
        return request.batch

    def batch_of(
        self,
        member: MemberId,
        ranges: Mapping[GroupPartition, Range],
        batch: str = "b",
        region: Region | None = None,
    ) -> commands.StartBatch:
        """Return what a member asks for to start a batch of exactly these ranges."""
        caller = self.caller(member, region)
        return commands.StartBatch(
            batch=BatchId(batch), member=member, incarnation=caller.incarnation, epoch=caller.epoch, ranges=ranges
        )

    def commit_output(self, batch: BatchId) -> rows.Batch:
        """Let a fenced sink commit a batch's output, whatever becomes of the batch, and return the batch's row."""
        region = self.held
        row = region.running.get(batch) or self.row(batch)
        self._commit_output(region, row)
        return row

    def _commit_output(self, region: Region, row: rows.Batch) -> None:
        for partition, range_ in row.ranges.items():
            if region.rules.groups[partition.group].delivery is Delivery.EXACTLY_ONCE:
                self.progress[partition] = (row.timeline, range_.to)

    def row(self, batch: BatchId) -> rows.Batch:
        """Return a batch's row in the ledger."""
        return next(b for b in self.batches if b.batch == batch)

    def finish_batch(self, batch: BatchId) -> None:
        """Finish a batch, its output committed first."""
        self._finish_batch(self.commit_output(batch))

    def _finish_batch(self, row: rows.Batch) -> None:
        self.handle(commands.FinishBatch(batch=row.batch, member=row.member, incarnation=row.incarnation))

    def discard(self, batch: BatchId) -> None:
        """Discard a batch, said by its member's present process."""
        member = self.row(batch).member
        self.handle(commands.DiscardBatch(batch=batch, member=member, incarnation=self.processes[member].incarnation))

    def process(self, *members: MemberId, width: int = 10) -> None:
        """Start and finish one batch of each member; of all, where none is named."""
        for member in members or sorted(self.processes):
            region = self.held
            row = self._start_batch(region, member, width)
            self._commit_output(region, row)
            self._finish_batch(row)

    # -- checkpoints
    # ----------------------------------------------------------------------------------------------------

    def request_checkpoint(
        self,
        request_id: str,
        *,
        boundary: datetime | None = None,
        purpose: rows.CheckpointPurpose = rows.CheckpointPurpose.REQUEST,
        allow_inexact: bool = False,
        requester: rows.Requester | None = None,
    ) -> rows.CheckpointRequest:
        """Ask for a checkpoint."""
        return self.store.handle(
            self.name,
            commands.RequestCheckpoint(
                request_id=RequestId(request_id),
                boundary=boundary,
                purpose=purpose,
                allow_inexact=allow_inexact,
                requester=requester or rows.Requester(),
            ),
        )

    def contribute(self, member: MemberId) -> None:
        """Contribute a member's positions to the open checkpoint."""
        self.handle(self.part_of(member))

    def part_of(self, member: MemberId, region: Region | None = None) -> commands.Contribute:
        """Return what a member has to contribute to the open checkpoint."""
        region = region or self.held
        caller = self.caller(member, region)
        offsets = {p: c.position for p, c in self.claims(member, region).items() if c.position is not None}
        return commands.Contribute(
            sequence=region.open_checkpoint or CheckpointNumber(0),
            member=member,
            incarnation=caller.incarnation,
            epoch=caller.epoch,
            offsets=OffsetMap(offsets),
            bounds={p: self.logs[p] for p in offsets},
        )

    def complete(self) -> CheckpointNumber:
        """Let every process contribute to the open checkpoint, and return its sequence."""
        region = self.held
        sequence = region.open_checkpoint
        if sequence is None:
            raise AssertionError("no checkpoint is open")
        for member in sorted(self.processes):
            if region.open_checkpoint == sequence:
                self.handle(self.part_of(member, region))
                region = self.held
        return sequence

    def publish(self, tables: tuple[TableVersion, ...] = ()) -> None:
        """Publish every complete checkpoint, in order; the first member's sinks have them in these tables."""
        for sequence, checkpoint in sorted(self.held.checkpoints.items()):
            if checkpoint.state is rows.CheckpointState.COMPLETE:
                report = commands.ReportPublished(sequence=sequence, member=self.member(0), tables=tables)
                self.store.handle(self.name, report if tables else commands.PublishCheckpoint(sequence=sequence))

    def read_back(
        self,
        member: MemberId,
        offsets: Mapping[GroupPartition, Offset] | None = None,
        region: Region | None = None,
    ) -> Region:
        """Store what Kafka answered to a member's commit of the restore point; by default, what it was told."""
        region = region or self.held
        restore_point = region.restore_sequence or CheckpointNumber(0)
        held = self.claims(member, region)
        told = region.offsets.get(restore_point, OffsetMap()).restrict(held) if offsets is None else OffsetMap(offsets)
        return self.handle(
            commands.ReportReadBack(
                sequence=restore_point, member=member, incarnation=self.processes[member].incarnation, offsets=told
            )
        )

    def checkpoint(self, request_id: str, *, requester: rows.Requester | None = None) -> CheckpointNumber:
        """Make a checkpoint from its request to its last commit read-back, and return its sequence."""
        self.request_checkpoint(request_id, requester=requester)
        sequence = self.complete()
        self.publish()
        region = self.held
        for member in sorted(self.processes):
            if region.restore_sequence == sequence:
                region = self.read_back(member, region=region)
        return sequence

    # -- resets --------------------------------------------------------------------------------------------------

    def reset(
        self,
        target: Target,
        *,
        request_id: str = "",
        scope: Scope = EVERYTHING,
        forced: bool = False,
        skip: Mapping[GroupPartition, Offset] | None = None,
        forward: bool = False,
        allow_partial: bool = False,
        consent_upsert: bool = False,
        resolved: SeekMap | None = None,
        logs: Mapping[GroupPartition, LogBounds] | None = None,
        epoch: Epoch | None = None,
        requester: rows.Requester | None = None,
    ) -> rows.PersonReset:
        """Apply a person's reset; the checkpoint that it drains to is the caller's to complete.

        `epoch`: the one that the plan was made in, by default the present one.
        """
        region = self.held
        wanted = rows.PersonReset(
            request_id=RequestId(request_id or self._fresh("reset")),
            target=target,
            scope=scope,
            state=rows.PersonResetState.WAITING,
            requester=requester or rows.Requester(who="somebody"),
            requested_at=self.store.read(self.name)[1],
            order=0,
            forced=forced,
            skip=OffsetMap(skip or {}),
            forward=forward,
            allow_partial=allow_partial,
            consent_upsert=consent_upsert,
        )
        return self.store.handle(
            self.name,
            commands.ApplyReset(
                reset=wanted,
                epoch=region.epoch if epoch is None else epoch,
                resolved=resolved,
                logs=logs or {},
            ),
        )

    def _fresh(self, what: str) -> str:
        self._made += 1
        return f"{what}-{self._made}"
