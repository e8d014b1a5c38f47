"""Scripts of verbs for a region, to be drawn at random: what members, a person, time and the world may do to it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial

from airflow_kcr.errors import ConfigurationError, ProtocolError, RefusedError
from airflow_kcr.protocol.observations import ForeignConsumer
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region import commands
from airflow_kcr.protocol.region.rows import BoundaryOffset, CheckpointPurpose, RegionState, ResetCause
from airflow_kcr.protocol.region.state import Spec
from airflow_kcr.protocol.rules import Delivery
from airflow_kcr.protocol.scopes import EVERYTHING, Scope
from airflow_kcr.protocol.targets import (
    ShiftBy,
    Target,
    ToCheckpoint,
    ToCurrent,
    ToEarliest,
    ToInitial,
    ToLatest,
    ToOffset,
)
from airflow_kcr.protocol.values import (
    CheckpointNumber,
    DesiredState,
    Epoch,
    GroupPartition,
    MemberId,
    Offset,
    RequestId,
    TopicId,
    TopicName,
)
from airflow_kcr.schedules import Every
from tests.support.driver import GROUP, PAUSE, START, STOP, Driver, Process, group_rules

Step = tuple[str, int, int, int]
"""A verb, and three small numbers that it reads as it needs them."""

REFUSALS = (RefusedError, ProtocolError, ConfigurationError)
"""What a store may answer to any caller; anything else is an error of ours."""

PARTITIONS = 3


EveryMinute = partial(Every, timedelta(minutes=1))
"""A schedule with a boundary every minute."""


@dataclass(slots=True)
class Script:
    """Runs steps."""

    driver: Driver
    zombies: list[Process] = field(default_factory=list)
    """Processes that others have superseded, and that don't know it."""

    def run(self, step: Step) -> None:
        verb, a, b, c = step
        act: Callable[[int, int, int], None] = getattr(self, f"do_{verb}")
        with suppress(*REFUSALS):
            act(a, b, c)

    def member(self, a: int) -> MemberId:
        members = self.driver.all_members()
        return members[a % len(members)]

    def present(self, a: int) -> MemberId:
        """One with a process; the region's first member where there is none, which then is refused."""
        members = sorted(self.driver.processes)
        if not members:
            raise RefusedError("nobody is there")
        return members[a % len(members)]

    def partition(self, member: MemberId, a: int) -> GroupPartition:
        logs = sorted(p for p in self.driver.logs if p.group == member.group)
        return logs[a % len(logs)]

    # -- verbs ---------------------------------------------------------------------------------------------------

    def do_start(self, a: int, b: int, c: int) -> None:
        self.driver.handle(START)

    def do_pause(self, a: int, b: int, c: int) -> None:
        self.driver.handle(PAUSE)

    def do_stop(self, a: int, b: int, c: int) -> None:
        self.driver.handle(STOP)

    def do_kill(self, a: int, b: int, c: int) -> None:
        self.driver.handle(commands.KillRegion())

    def do_up(self, a: int, b: int, c: int) -> None:
        """Everything that a healthy application would do by itself."""
        if self.driver.region.state in {RegionState.STOPPED, RegionState.HALTED}:
            self.driver.handle(START)
        for member in self.driver.all_members():
            if member not in self.driver.processes:
                with suppress(*REFUSALS):
                    self.driver.join(member)
        self.driver.spread()
        self.driver.finish_reset()

    def do_recover(self, a: int, b: int, c: int) -> None:
        self.driver.recover()

    def do_join(self, a: int, b: int, c: int) -> None:
        old = self.driver.processes.get(self.member(a))
        self.driver.join(self.member(a), takeover=b % 2 == 1, came_back=old is not None and b % 4 >= 2)
        if old is not None:
            self.zombies.append(old)

    def do_crash(self, a: int, b: int, c: int) -> None:
        member = self.present(a)
        self.zombies.append(self.driver.processes[member])
        self.driver.crash(member)

    def do_leave(self, a: int, b: int, c: int) -> None:
        self.driver.leave(self.present(a))

    def do_keep_slot(self, a: int, b: int, c: int) -> None:
        process = self.driver.processes[self.present(a)]
        self.driver.handle(commands.KeepSlot(member=process.member, incarnation=process.incarnation))

    def do_zombie(self, a: int, b: int, c: int) -> None:
        """Let a superseded process do something."""
        if not self.zombies:
            return
        process = self.zombies[a % len(self.zombies)]
        living = self.driver.processes.get(process.member)
        self.driver.processes[process.member] = process
        try:
            [self.do_claim, self.do_begin, self.do_contribute, self.do_acknowledge, self.do_read_back][b % 5](
                sorted(self.driver.processes).index(process.member), c, 0
            )
        finally:
            if living is None:
                del self.driver.processes[process.member]
            else:
                self.driver.processes[process.member] = living

    def do_claim(self, a: int, b: int, c: int) -> None:
        """Claim a part of the group's partitions: `b` is a set of bits."""
        member = self.present(a)
        self.driver.claim(member, [self.partition(member, i) for i in range(PARTITIONS) if b >> i & 1])

    def do_spread(self, a: int, b: int, c: int) -> None:
        self.driver.spread()

    def do_answer(self, a: int, b: int, c: int) -> None:
        self.driver.answer(self.present(a))

    def do_acknowledge(self, a: int, b: int, c: int) -> None:
        self.driver.acknowledge(self.present(a))

    def do_finish_reset(self, a: int, b: int, c: int) -> None:
        self.driver.finish_reset()

    def do_wait(self, a: int, b: int, c: int) -> None:
        self.driver.wait(1 + 7 * (a + b))

    def do_freeze(self, a: int, b: int, c: int) -> None:
        """Time passes without renewals."""
        self.driver.clock.advance(1 + 3 * a + 10 * b)
        self.driver.handle(commands.Reconcile())

    def do_begin(self, a: int, b: int, c: int) -> None:
        member = self.present(a)
        held = sorted(self.driver.claims(member))
        self.driver.start_batch(member, 1 + c, None if b % 2 == 0 or not held else [held[b % len(held)]])

    def do_process(self, a: int, b: int, c: int) -> None:
        member = self.present(a)
        self.driver.process(member, width=1 + b)

    def do_end(self, a: int, b: int, c: int) -> None:
        running = [batch for batch in self.driver.batches if batch.outcome is None]
        if running:
            batch = running[a % len(running)]
            if batch.epoch == self.driver.region.epoch:
                self.driver.commit_output(batch.batch)
            self.driver.handle(
                commands.FinishBatch(batch=batch.batch, member=batch.member, incarnation=batch.incarnation)
            )

    def do_discard(self, a: int, b: int, c: int) -> None:
        running = [batch for batch in self.driver.batches if batch.outcome is None]
        if running:
            batch = running[a % len(running)]
            if batch.epoch == self.driver.region.epoch and b % 2:
                self.driver.commit_output(batch.batch)
            process = self.driver.processes[self.present(a)]
            self.driver.handle(
                commands.DiscardBatch(batch=batch.batch, member=batch.member, incarnation=process.incarnation)
            )

    def do_request_reset(self, a: int, b: int, c: int) -> None:
        process, region = self.driver.processes[self.present(a)], self.driver.region
        causes = [ResetCause.BATCH_FAILED, ResetCause.BATCH_REFUSED, ResetCause.SINK_FAILED]
        caller = commands.Caller(
            member=process.member, incarnation=process.incarnation, epoch=Epoch(max(region.epoch - c % 2, 0))
        )
        self.driver.handle(commands.RequestReset(caller=caller, cause=causes[b % 3], detail="as scripted"))

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def do_request_checkpoint(self, a: int, b: int, c: int) -> None:
        purposes = [CheckpointPurpose.REQUEST, CheckpointPurpose.REQUEST, CheckpointPurpose.DRAIN]
        self.driver.handle(
            commands.RequestCheckpoint(
                request_id=RequestId(f"n{a}"),
                purpose=purposes[a % 3],
                then=DesiredState.PAUSED if c == 7 else None,
            )
        )

    def do_request_boundary(self, a: int, b: int, c: int) -> None:
        boundary = EveryMinute().at_or_before(self.driver.clock.now) + timedelta(minutes=a % 3 - 1)
        self.driver.handle(
            commands.RequestCheckpoint(
                request_id=RequestId(f"b{boundary.isoformat()}"), boundary=boundary, allow_inexact=c % 2 == 1
            )
        )

    def do_find_bounds(self, a: int, b: int, c: int) -> None:
        member, region = self.present(a), self.driver.region
        checkpoint = region.checkpoint
        boundary = (
            checkpoint.boundary if checkpoint is not None and checkpoint.boundary is not None else region.next_boundary
        )
        if boundary is not None:
            found = {
                p: BoundaryOffset(offset=Offset((claim.position or 0) + b), inexact="guessed" if c == 7 else "")
                for p, claim in self.driver.claims(member).items()
            }
            self.driver.handle(
                commands.StoreBoundaryOffsets(caller=self.driver.caller(member), boundary=boundary, found=found)
            )

    def do_contribute(self, a: int, b: int, c: int) -> None:
        self.driver.contribute(self.present(a))

    def do_publish(self, a: int, b: int, c: int) -> None:
        self.driver.publish()

    def do_read_back(self, a: int, b: int, c: int) -> None:
        member, region = self.present(a), self.driver.region
        told = region.offsets.get(region.restore_sequence or CheckpointNumber(0), OffsetMap()).restrict(
            self.driver.claims(member)
        )
        wrong = {p: Offset(o + 1) for p, o in told.items()} if c == 7 else {}
        self.driver.read_back(member, {**told, **wrong})

    def do_repair(self, a: int, b: int, c: int) -> None:
        restore_point = self.driver.region.restore_sequence or CheckpointNumber(0)
        if restore_point in self.driver.region.offsets:
            self.driver.handle(
                commands.ReportReadBack(sequence=restore_point, offsets=self.driver.region.offsets[restore_point])
            )

    def do_checkpoint(self, a: int, b: int, c: int) -> None:
        """A whole checkpoint, as far as it goes."""
        if self.driver.region.open_checkpoint is None:
            self.driver.request_checkpoint(f"n{a}")
        if self.driver.region.open_checkpoint is not None:
            self.driver.complete()
        if b % 4:
            self.driver.publish()
            for member in sorted(self.driver.processes):
                self.driver.read_back(member)

    def do_retire(self, a: int, b: int, c: int) -> None:
        self.driver.handle(commands.RetireCheckpoints())

    def do_pin(self, a: int, b: int, c: int) -> None:
        complete = sorted(self.driver.region.offsets)
        if complete:
            self.driver.handle(
                commands.PinCheckpoint(sequence=complete[a % len(complete)], label="kept" if b % 2 else "", reason="")
            )

    # -- a person ------------------------------------------------------------------------------------------------

    def do_person(self, a: int, b: int, c: int) -> None:
        sequences = sorted(self.driver.region.checkpoints) or [CheckpointNumber(1)]
        targets: list[Target] = [
            ToCheckpoint(sequence=sequences[b % len(sequences)]),
            ToInitial(),
            ToEarliest(),
            ToLatest(),
            ToOffset(offset=Offset(5 * b)),
            ToCurrent(),
            ShiftBy(by=3 * b - 10),
        ]
        scope: Scope = EVERYTHING if c % 2 else Scope(topics={TopicName("t"): frozenset({b % PARTITIONS})})
        skip = {self.driver.partition(b % PARTITIONS): Offset(5 * b)} if c >= 6 else {}
        self.driver.reset(
            targets[a % len(targets)],
            scope=scope,
            forced=c % 4 == 3,
            skip=skip,
            forward=c % 3 == 0,
            allow_partial=c % 3 == 1,
        )

    def do_whole_person(self, a: int, b: int, c: int) -> None:
        self.do_person(a, b, c)
        if self.driver.region.open_checkpoint is not None:
            self.driver.complete()
        self.driver.finish_reset()

    # -- the world -----------------------------------------------------------------------------------------------

    def do_retain(self, a: int, b: int, c: int) -> None:
        """Retention, or truncation, moves a log; its owner reports it."""
        member = self.present(a)
        partition = self.partition(member, b)
        log = self.driver.logs[partition]
        self.driver.logs[partition] = (
            replace(log, start=Offset(min(log.start + 10 * c, log.end))) if a % 2 else replace(log, end=Offset(20 * c))
        )
        bounds = {partition: self.driver.logs[partition]}
        self.driver.handle(commands.ReportOutOfRange(caller=self.driver.caller(member), observed=bounds))

    def do_recreate(self, a: int, b: int, c: int) -> None:
        """A topic is deleted and created again."""
        member = self.present(a)
        topic_id = f"id-{c}"
        bounds = {
            p: replace(self.driver.logs[p], start=Offset(0), topic_id=TopicId(topic_id)) for p in self.driver.logs
        }
        self.driver.logs.update(bounds)
        held = {p: bounds[p] for p in self.driver.claims(member)}
        self.driver.handle(commands.ReportOutOfRange(caller=self.driver.caller(member), observed=held))

    def do_report_groups(self, a: int, b: int, c: int) -> None:
        """Members look at who else is in their group."""
        strangers = tuple(ForeignConsumer(group=GROUP, client_id=f"c{n}", host="/10.0.0.1") for n in range(a % 3))
        self.driver.handle(commands.ReportGroups(seen={GROUP: strangers}))

    def do_report_partitions(self, a: int, b: int, c: int) -> None:
        """A member tells what the brokers have, at times one more partition, or one less."""
        caller = self.driver.caller(self.present(a))
        if b == 7:
            self.driver.grow(self.driver.partition(PARTITIONS), end=500)
        seen = sorted(self.driver.logs)[: None if b % 2 else -1]
        self.driver.handle(
            commands.ReportPartitions(member=caller.member, incarnation=caller.incarnation, partitions=frozenset(seen))
        )

    def do_change_spec(self, a: int, b: int, c: int) -> None:
        """Another delivery and another number of members, from the next checkpoint or start on."""
        now = self.driver.region.spec
        group = group_rules("g", members=1 + a % 2, delivery=list(Delivery)[b % 4])
        rules = replace(now.rules, groups={**now.rules.groups, group.group_id: group})
        later = Spec(text=f"{a} {b}", rules=rules, revision=now.revision + 1)
        self.driver.handle(commands.ChangeSpec(at_once=now, later=later))


WAITED_FOR = ("retain", "recreate", "change_spec", "request_boundary")
"""After these a region may wait for a person, or for where its boundary is."""

VERBS = sorted(name.removeprefix("do_") for name in vars(Script) if name.startswith("do_"))
USUAL = ["up", "process", "process", "begin", "end", "checkpoint", "claim", "finish_reset", "whole_person", "recover"]
"""What is tried more often: without it, a random script rarely gets anywhere."""
