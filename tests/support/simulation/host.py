"""A process with one member: it executes the effects of the real state machine, late, out of order and under faults."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import assert_never

from airflow_kcr.errors import KcrError, UnknownTopics
from airflow_kcr.protocol.member import messages
from airflow_kcr.protocol.member.state import MemberMachine, State
from airflow_kcr.protocol.member.step import step
from airflow_kcr.protocol.observations import LogBounds, LogView
from airflow_kcr.protocol.offsets import EMPTY, OffsetMap, SeekEntry, SeekSource
from airflow_kcr.protocol.region import commands
from airflow_kcr.protocol.region.rows import Batch
from airflow_kcr.protocol.rules import Delivery
from airflow_kcr.protocol.scopes import EVERYTHING
from airflow_kcr.protocol.target_resolution import resolve
from airflow_kcr.protocol.targets import Situation, Target
from airflow_kcr.protocol.values import AssignmentId, BatchId, ClusterId, GroupPartition, RegionName
from airflow_kcr.runtime.effects import TRY_AGAIN
from airflow_kcr.store.regions import RegionStore
from tests.support.simulation.broker import HEARTBEAT, Broker, Consumer, NotInGroup, Unavailable
from tests.support.simulation.planner import plan
from tests.support.simulation.sinks import FencedSink, OpenSink
from tests.support.simulation.world import World

TICK = 0.25


@dataclass(slots=True)
class Surroundings:
    """What every host of a run shares."""

    world: World
    broker: Broker
    store: RegionStore
    name: RegionName
    delivery: Delivery
    open_sink: OpenSink = field(default_factory=OpenSink)
    fenced_sink: FencedSink = field(default_factory=FencedSink)
    holds_output: bool = False
    """Whether a process keeps what its batches write for itself until a checkpoint is prepared."""

    processes: list[Host] = field(default_factory=list)
    """Every process that there was, whether it lives or not."""

    store_back_at: float = 0.0
    """Until then no process reaches the store."""

    poison: GroupPartition | None = None
    poison_offset: int = -1
    """A batch that contains this record fails."""

    slow: float = 0.03
    """Chance of a batch that takes very long."""

    wrong: list[str] = field(default_factory=list)
    """What hosts saw that must not be."""


@dataclass(slots=True)
class Running:
    """The pipeline's call."""

    row: Batch
    progress: OffsetMap
    began: float
    takes: float
    cancelled: bool = False

    def share(self, now: float) -> float:
        """How much of the work is written by now."""
        return min(1.0, (now - self.began) / self.takes)


class Host:
    """One process, one member.

    Args:
        around: what it shares with the others.
        machine: the member's first state, which says who it is.
        on_end: called when the process has ended, with whether it ended by itself.
    """

    def __init__(
        self,
        around: Surroundings,
        machine: MemberMachine,
        on_end: Callable[[Host, str], None],
    ) -> None:
        self.around, self.member, self.machine, self.on_end = around, machine.member, machine, on_end
        self.digest = machine.process.spec_digest
        self.world = around.world
        self.alive = True
        self.frozen_until = 0.0
        self.store_back_at = 0.0
        self.notifications_back_at = 0.0
        """Until then nothing tells this process that there is something to read."""

        self.sinks_back_at = 0.0
        self.sinks_fail = False
        """Whether, until then, the sinks fail in a reset; otherwise they hang."""

        self.running: Running | None = None
        self.held: list[tuple[Batch, float]] = []
        """Batches whose output, up to a share of it, only this process has."""

        self.consumer: Consumer | None = None
        self.consumer_open = False
        self.assignments = 0
        self.batches = 0
        self.told_lost = False
        around.processes.append(self)
        self._calls: deque[Callable[[], None]] = deque()
        self._calling = False
        self._tick()
        self._poll()

    # -- life ----------------------------------------------------------------------------------------------------

    @property
    def frozen(self) -> bool:
        """Whether the process is stopped (SIGSTOP, a suspended machine)."""
        return self.world.now < self.frozen_until

    @property
    def reaches_store(self) -> bool:
        """Whether the process reaches the store."""
        return self.world.now >= max(self.store_back_at, self.around.store_back_at)

    def later(self, delay: float, action: Callable[[], None]) -> None:
        """Do something in this process: not once it is dead, and not before it thaws."""

        def due() -> None:
            if not self.alive:
                return
            if self.frozen:
                self.world.after(self.frozen_until - self.world.now + 0.001, due)
                return
            action()

        self.world.after(delay, due)

    def soon(self, action: Callable[[], None], most: float = 0.05) -> None:
        """Do something in this process within `most` seconds."""
        self.later(self.world.random.uniform(0.001, most), action)

    def crash(self) -> None:
        """kill -9: whatever the running batch has written so far stays written."""
        if not self.alive:
            return
        self._write_partial()
        self.running = None
        self._ended("crashed")

    def _ended(self, how: str) -> None:
        self.alive = False
        self.on_end(self, how)

    def freeze(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after `seconds`."""
        self.frozen_until = max(self.frozen_until, self.world.now + seconds)

    def terminate(self) -> None:
        """SIGTERM."""
        self.soon(lambda: self.deliver(messages.Notice.TERMINATED))

    def _tick(self) -> None:
        self.deliver(messages.Notice.TICK)
        self.later(TICK, self._tick)

    def _asked(self, action: Callable[[], None], most: float) -> None:
        """Do something with the broker within `most` seconds of its answer, which may be late, or never come."""
        broker = self.around.broker

        def answered() -> None:
            if broker.is_away:
                self.later(broker.back_at - self.world.now + 0.01, answered)
            else:
                action()

        if broker.late or broker.is_away:
            self.later(broker.late + self.world.random.uniform(0.001, most), answered)
        else:
            self.soon(action, most)

    def _poll(self) -> None:
        if self.consumer is not None and self.consumer_open and not self.around.broker.is_away:
            self.around.broker.poll(self.consumer.number)
            if not self.around.broker.knows(self.consumer.number):
                self._lost()
        self.later(HEARTBEAT, self._poll)

    # -- the machine ---------------------------------------------------------------------------------------------

    def deliver(self, event: messages.Event) -> None:
        """Let the member step, and execute what it wants."""
        if not self.alive:
            return
        self.machine, wanted = step(self.machine, event, self.world.now)
        for effect in wanted:
            self.execute(effect)
        done = self.machine.state is State.CLOSED or (
            self.machine.state is State.FENCED and self.machine.batch is None and not self.machine.in_group
        )
        if done and not self._calls and not self._calling:
            self._ended(str(self.machine.state))

    def execute(self, effect: messages.Effect) -> None:  # noqa: C901 - one row an effect
        """Start what an effect asks for; the answer comes later as an event."""
        match effect:
            case commands.Command() as command:
                self.ask(command)
            case messages.GroupRequest.JOIN:
                self._asked(self._join, 0.05)
            case messages.GroupRequest.LEAVE:
                self._asked(self._leave, 0.3)
            case messages.GroupRequest.CLOSE_KEEPING_SLOT:
                self.soon(self._close, 0.3)
            case messages.ClaimAssignment():
                if self.around.broker.late or self.around.broker.is_away:
                    self._asked(lambda: self._claim(effect), 0.05)
                else:
                    self._claim(effect)
            case messages.ReleasePartitions():
                self.soon(lambda: self._release(effect.partitions), 0.2)
            case messages.GroupRequest.DISCOVER_PARTITIONS:
                self._asked(self._discover, 0.2)
            case messages.PlanRanges():
                self._asked(lambda: self._plan(effect), 0.1)
            case messages.RunBatch():
                self._run(effect)
            case messages.Cancel(batch=batch):
                self._cancel(batch)
            case messages.ResetSinks():
                until = self.world.now + self.machine.timeouts.reset.total_seconds()
                self.soon(lambda: self._reset_sinks(effect, until), 0.3)
            case messages.PrepareSinks():
                self._asked(lambda: self._prepared(effect), 0.2)
            case messages.Commit():
                self.soon(lambda: self._commit(effect, self.world.now + 5), 0.2)
            case messages.CommitSeek():
                self._commit_seek(effect)
            case messages.EndProcess():
                self.crash()
            case _:
                assert_never(effect)

    # -- the store thread ----------------------------------------------------------------------------------------

    def ask(self, command: commands.Command[object]) -> None:
        """Give the store a command, one after the other; a refusal is an answer, the store being away is not."""

        def attempt() -> None:
            if not self.reaches_store:
                if not self.told_lost:
                    self.told_lost = True
                    self.deliver(messages.StoreLost())
                self.later(0.3, attempt)
                return
            if self.told_lost:
                self.told_lost = False
                self.deliver(messages.Notice.STORE_BACK)
            answer = self._answer(command)
            self.soon(lambda: self.deliver(answer))
            self._calls.popleft()
            self._next_call()

        self._calls.append(attempt)
        if not self._calling:
            self._next_call()

    def _next_call(self) -> None:
        self._calling = bool(self._calls)
        if self._calls:
            self.soon(self._calls[0], 0.02)

    def _answer(self, command: commands.Command[object]) -> messages.Event:
        try:
            own = commands.from_process(self.member, self.machine.process.token, command)
            result = self.around.store.handle(self.around.name, own)
        except KcrError as error:
            return messages.Refused(command=command, error=error)
        view = self.machine.view
        if (
            isinstance(result, commands.Heartbeat)
            and result.renewed
            and view
            and self.world.now < self.notifications_back_at
        ):
            # Nothing tells this process that there is something to read.
            result = replace(result, counter=view.counter, reconcile_at=None)
        if isinstance(command, commands.StartBatch):
            self._check_spec(command)
        return messages.Answered(command=command, result=result, sent_at=self.world.now)

    def _check_spec(self, started: commands.StartBatch) -> None:
        in_force = self.around.store.read(self.around.name)[0].spec
        if self.digest != in_force.digest and self.machine.memory.epoch == started.epoch:
            wrong = f"{self.member}, of spec {self.digest}, began a batch under revision {in_force.revision}"
            self.around.wrong.append(f"{wrong}, {in_force.digest}")

    def _claim(self, effect: messages.ClaimAssignment) -> None:
        if not all(self.around.broker.has(p) for p in effect.partitions):
            self.deliver(messages.Refused(command=effect.claim, error=UnknownTopics("no such log")))
            return
        assigned: dict[GroupPartition, commands.AssignedPartition] = {}
        for partition in effect.partitions:
            bounds = self.around.broker.log(partition).bounds()
            start = SeekEntry(offset=bounds.start, source=SeekSource.START_POSITION)
            assigned[partition] = commands.AssignedPartition(bounds=bounds, initial=start)
        self.ask(replace(effect.claim, partitions=assigned, cluster=ClusterId(f"of {self.member.group}")))

    def _discover(self) -> None:
        broker = self.around.broker
        there = frozenset(broker.partition(number) for number in range(len(broker.logs)))
        self.deliver(messages.PartitionsDiscovered(partitions=there))

    # -- the event thread ----------------------------------------------------------------------------------------

    def _join(self) -> None:
        static = f"{self.member.group}-{self.member.index:04}" if self.machine.static else None
        number = self.around.broker.new_number()
        self.consumer = Consumer(
            number=number,
            static_id=static,
            hear=self._hear,
            drains=True,
            polls=self._polls,
        )
        self.consumer_open = True
        self.around.broker.join(self.consumer)

    def _polls(self) -> bool:
        return self.alive and not self.frozen and self.consumer_open

    def _hear(self, what: str, held: frozenset[GroupPartition]) -> None:
        if what == "assigned":
            self.assignments += 1
            number = AssignmentId(self.assignments)
            self.deliver(messages.Assigned(assignment=number, partitions=held))
        elif what == "revoking":
            self.deliver(messages.Revoking(partitions=held))
        elif what == "revoked":
            self.deliver(messages.Notice.REVOKED)
        elif self.alive and self.consumer_open:
            self.consumer_open = False
            self.soon(lambda: self.deliver(messages.Notice.INSTANCE_FENCED), 0.5)

    def _release(self, partitions: frozenset[GroupPartition]) -> None:
        batch = self.machine.batch
        if self.machine.revoking != partitions or self.consumer is None:
            return
        if batch is not None and not partitions.isdisjoint(batch.ranges):
            self.around.wrong.append(f"{self.member} released {sorted(partitions)} while {batch.batch} runs there")
        self.around.broker.acknowledge(self.consumer.number, partitions)

    def _lost(self) -> None:
        """The session is over: the client says so at the next poll, and joins again by itself."""
        self.deliver(messages.Notice.REVOKED)
        if self.alive and self.consumer_open:
            self._join()

    def _leave(self) -> None:
        if self.consumer is not None:
            self.around.broker.leave(self.consumer.number)
        self._closed()

    def _close(self) -> None:
        if self.consumer is not None and self.consumer.static_id is None:
            self.around.broker.leave(self.consumer.number)
        elif self.consumer is not None:
            self.around.broker.close(self.consumer.number)
        self._closed()

    def _closed(self) -> None:
        self.consumer, self.consumer_open = None, False
        self.deliver(messages.Notice.LEFT_GROUP)

    def _commit(self, effect: messages.Commit, deadline: float) -> None:
        """Commit under a deadline; whatever came back, what Kafka holds is read."""
        try:
            if self.consumer is None:
                raise NotInGroup
            self.around.broker.commit(self.consumer.number, effect.offsets)
        except Unavailable:
            if self.world.now < deadline:
                self.later(0.5, lambda: self._commit(effect, deadline))
                return
        except NotInGroup:
            self.deliver(messages.CommitAnswered(sequence=effect.sequence, offsets=EMPTY, failed=True))
            return
        known = self.around.broker.committed
        held = OffsetMap({p: known[p] for p in effect.offsets if p in known})
        self.deliver(messages.CommitAnswered(sequence=effect.sequence, offsets=held, failed=held != effect.offsets))

    def _commit_seek(self, effect: messages.CommitSeek) -> None:
        failure = ""
        try:
            if self.consumer is not None:
                self.around.broker.commit(self.consumer.number, effect.offsets)
        except (NotInGroup, Unavailable) as error:
            failure = type(error).__name__
        self.ask(commands.ReportSeekCommit(caller=effect.caller, failure=failure))

    # -- Spark and the sinks -------------------------------------------------------------------------------------

    def _plan(self, effect: messages.PlanRanges) -> None:
        self.batches += 1
        batch = BatchId(f"{self.machine.process.token}/{self.batches}")
        planned = plan(
            batch,
            OffsetMap({p: o for p, o in effect.positions.items() if self.around.broker.has(p)}),
            effect.view,
            {p: self.around.broker.log(p) for p in effect.positions if self.around.broker.has(p)},
            now=self.world.clock(),
            size=self.world.random.randint(1, 12),
        )
        self.deliver(planned)

    def _run(self, effect: messages.RunBatch) -> None:
        takes = self.world.random.uniform(0.05, 0.8)
        if self.world.chance(self.around.slow):
            takes = self.world.random.uniform(2.0, 14.0)
        run = Running(row=effect.row, progress=effect.progress, began=self.world.now, takes=takes)
        self.running = run
        self.later(takes, lambda: self._finish(run))

    def _finish(self, run: Running) -> None:
        if self.running is not run or run.cancelled:
            return
        self.running = None
        poison, offset = self.around.poison, self.around.poison_offset
        hit = None if poison is None else run.row.ranges.get(poison)
        if hit is not None and hit.from_ <= offset < hit.to:
            self._write(run, self.world.random.random() / 2)
            self.deliver(
                messages.BatchEnded(batch=run.row.batch, failure=f"the record {poison}@{offset} can't be processed")
            )
        elif self._write(run, 1.0):
            self.deliver(messages.BatchEnded(batch=run.row.batch))
        else:
            self.deliver(messages.BatchEnded(batch=run.row.batch, failure="the sink refused the batch"))

    def _write(self, run: Running, share: float) -> bool:
        """Write output; a fenced sink takes all of it in one transaction or nothing."""
        if self.around.holds_output:
            self.held.append((run.row, share))
            return True
        if self.around.delivery is not Delivery.EXACTLY_ONCE:
            self.around.open_sink.write(run.row.batch, run.row.ranges, share)
            return True
        row = run.row
        return share == 1.0 and self.around.fenced_sink.publish(row.epoch, row.timeline, row.ranges, run.progress)

    def _write_partial(self) -> None:
        if self.running is not None and not self.running.cancelled:
            share = self.running.share(self.world.now)
            if self.around.delivery is not Delivery.EXACTLY_ONCE:
                self._write(self.running, share)
            elif self.world.chance(share / 2):
                # The transaction was committed, and the process died before it heard of that.
                self._write(self.running, 1.0)

    def _cancel(self, batch: BatchId) -> None:
        """Cancel: the exception comes first, the tasks end later, and write until then."""
        run = self.running
        if run is None or run.row.batch != batch:
            return

        def quiesced() -> None:
            if self.running is not run or run.cancelled:
                return
            self._write_partial()
            run.cancelled = True
            self.running = None
            self.deliver(messages.BatchEnded(batch=batch))

        self.soon(quiesced, 1.0)

    def _reset_sinks(self, effect: messages.ResetSinks, until: float) -> None:
        """Reset the sinks and answer the open entries; where a log is gone, try again `until` then, and fail."""
        if self.world.now < self.sinks_back_at:
            if self.sinks_fail:
                self.deliver(messages.SinkFailed(epoch=effect.epoch, why="the sink is out of order"))
            else:
                self.later(self.sinks_back_at - self.world.now + 0.1, lambda: self._reset_sinks(effect, until))
            return
        of_logs = {p: t for p, t in effect.open.items() if t.source is not SeekSource.SINK_PROGRESS}
        if all(map(self.around.broker.has, of_logs)):
            self._sinks_reset(effect, of_logs)
        elif self.world.now < until:
            self.later(TRY_AGAIN, lambda: self._reset_sinks(effect, until))
        else:
            self.deliver(messages.SinkFailed(epoch=effect.epoch, why="no answer: a log is gone"))

    def _sinks_reset(self, effect: messages.ResetSinks, of_logs: dict[GroupPartition, SeekEntry]) -> None:
        """Reset the sinks, and answer the open entries; `of_logs` are those that the logs answer."""
        found = dict.fromkeys(effect.open, commands.Found(offset=None))
        found.update({p: self._found(p, t, effect.target) for p, t in of_logs.items()})
        sink = self.around.fenced_sink
        if self.around.delivery is Delivery.EXACTLY_ONCE:
            newest = max((timeline for timeline, _ in sink.progress.values()), default=effect.timeline)
            if not sink.raise_fence(effect.epoch) or newest > effect.timeline:
                why = f"the fence stands at {sink.fence}, progress is of timeline {newest}"
                self.deliver(messages.SinkFailed(epoch=effect.epoch, why=why, fence=sink.fence, timeline=newest))
                return
            for partition, offset in effect.resume.items():
                sink.roll_back(partition, effect.timeline, offset)
            sink.step_over(effect.skips)
            for partition, target in effect.open.items():
                if target.source is SeekSource.SINK_PROGRESS:
                    progress = sink.found(partition, effect.timeline)
                    found[partition] = commands.Found(offset=progress)
                    if progress is None and target.current is not None:
                        sink.roll_back(partition, effect.timeline, target.current)
                elif (place := found[partition].offset) is not None:
                    sink.roll_back(partition, effect.timeline, place)
        self.deliver(messages.SinksReset(epoch=effect.epoch, found=found))

    def _found(self, partition: GroupPartition, open_target: SeekEntry, target: Target | None) -> commands.Found:
        """Answer an open entry: a person's target against this partition's log, a start position otherwise."""
        log = self.around.broker.log(partition)
        bounds = log.bounds()
        if open_target.source is not SeekSource.EXPLICIT or target is None:
            return commands.Found(offset=bounds.start, log=bounds)
        current = EMPTY if open_target.current is None else OffsetMap({partition: open_target.current})
        read_at = self.world.clock()
        instant = target.time_needed(read_at)
        view = LogView(
            bounds={partition: bounds},
            answers={} if instant is None else {partition: log.first_at_or_after(instant)},
            read_at=read_at,
        )
        situation = Situation(partitions=[partition], current=current, initial=EMPTY, log=view)
        entry = resolve(target, EVERYTHING, situation)[0].entry
        return commands.Found(offset=entry.offset, clamped_from=entry.clamped_from, log=bounds)

    def _prepared(self, effect: messages.PrepareSinks) -> None:
        for row, share in self.held:
            self.around.open_sink.write(row.batch, row.ranges, share)
        self.held.clear()
        logs: dict[GroupPartition, LogBounds] = {
            p: self.around.broker.log(p).bounds() for p in effect.partitions if self.around.broker.has(p)
        }
        committed = {p: o for p, o in self.around.broker.committed.items() if p in effect.partitions}
        self.deliver(messages.SinksPrepared(sequence=effect.sequence, bounds=logs, committed=OffsetMap(committed)))
