"""One running member: its machine, and the threads that work for it (tests/annex/moves.md).

The loop takes what happened out of one queue, lets the pure machine step, and hands on what that wants: to the event
thread (Kafka's client, behind `Membership`), to the store's threads (requests; leases, which must not wait behind them)
and to those that read logs and run batches. They answer into the queue. Only the loop touches the machine.
"""

from __future__ import annotations

import logging
import queue
import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum
from functools import partial
from itertools import count
from typing import Final, TypeAlias, assert_never

from airflow_kcr import ports
from airflow_kcr.errors import KcrError, RefusedError, SpecOutdated, StoreError, UnknownMember
from airflow_kcr.floods import unflooded
from airflow_kcr.protocol.member import messages, state
from airflow_kcr.protocol.member.state import BatchPhase, MemberMachine, State, Why
from airflow_kcr.protocol.member.step import step
from airflow_kcr.protocol.region import commands
from airflow_kcr.protocol.region.rows import CheckpointState, ResetCause
from airflow_kcr.protocol.rules import CheckpointRules
from airflow_kcr.protocol.values import CheckpointNumber, GroupPartition
from airflow_kcr.runtime import leases
from airflow_kcr.runtime.effects import Grouping, Happening, Working
from airflow_kcr.runtime.metrics import Counts, Metrics, Snapshot
from airflow_kcr.runtime.planner import BatchSize, Limits, Planner
from airflow_kcr.runtime.positions import Places

SLOWED_MOST: Final = 10
"""How many times its timeout a batch may take while something slows the engine down: it may hang as well."""

TICK: Final = 0.5
"""Seconds after which the machine is asked again when nothing happened, and it does not know itself when to be."""

CLOSE_SHARE: Final = 0.6
"""The share of the close time in which a batch has to end, or the process does."""

Held: TypeAlias = "Mapping[GroupPartition, ports.CommittedOffset]"

_USUAL: Final = frozenset({None, Why.DRAINED, Why.BOUNDARY})

_TEACHES: Final = frozenset({ResetCause.BATCH_TIMEOUT, ResetCause.BATCH_FAILED})
"""What says of a batch that it may have been too large."""

_LOG = logging.getLogger(__name__)
_AGAIN = unflooded(f"{__name__}.again")


class End(Enum):
    """How a member's run ended."""

    CLOSED = "closed"
    """By itself: the region stopped, or the process was asked to end."""

    FENCED = "fenced"
    """Another process is this member now."""

    REFUSED = "refused"
    """The store has no place for it; `error` says why."""

    FAILED = "failed"
    """Something went wrong that a member can't answer; `error` is it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The end of a member's run."""

    how: End
    error: BaseException | None = None

    @property
    def is_outdated(self) -> bool:
        """Whether it was refused because the spec that it was built from is not in force any more."""
        return isinstance(self.error, SpecOutdated | UnknownMember)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Everything that a member needs, as ports."""

    store: ports.MemberStore
    logs: ports.Logs
    engine: ports.Engine
    sinks: ports.Sinks
    membership: Callable[[ports.MembershipListener], ports.Membership]
    """Makes the Kafka client of this member, which tells the listener."""

    end_process: Callable[[str], None]
    """Ends the process at once, for the reason given; does not return."""

    clock: leases.Clock
    store_clock: leases.StoreClock
    renewals: leases.Renewals
    """Of all members of the process; their maker ends it after them."""

    is_ready: Callable[[], bool] = ports.always
    """Whether the engine can run a batch at its usual pace; none is planned before."""

    lacks: Callable[[], str] = ports.nothing
    """What the engine lacks to run a batch at all, asked as long as one waits; it answers at once."""

    slowed: Callable[[], str] = ports.nothing
    """What slows the engine down, though it runs batches; it answers at once."""


class MemberHost:
    """Runs one member from `start` to its end.

    Args:
        who: the member.
        checkpoint: the region's checkpoints, for the grace of boundaries.
        limits: of a batch.
        world: what it works with.
    """

    def __init__(self, who: leases.Identity, checkpoint: CheckpointRules, limits: Limits, world: World) -> None:
        self.who, self._world, self._clock = who, world, world.clock
        # What is left of the close time is for telling the store, and for closing the Kafka client.
        times = replace(who.timeouts, close=who.timeouts.close * CLOSE_SHARE)
        process = who.registration(sinks_fenced=world.sinks.fenced)
        self._machine = MemberMachine(process=process, timeouts=times, static=who.group.static_membership)
        self._happenings: queue.SimpleQueue[Happening] = queue.SimpleQueue()
        self._batch_numbers = count(1)
        self._size = BatchSize.first(limits)
        self._run_since = 0.0
        self._has_waited = False
        """Whether the running batch has waited for what its engine lacked: how long it took teaches nothing."""

        self._metrics = Metrics()
        self._failure: BaseException | None = None
        self.turns = 0
        """How often the loop has taken something out of its queue, or found nothing in it; it never waits for long."""

        self._done = threading.Event()
        self._end = Ended(how=End.CLOSED)
        silence = who.timeouts.statement_timeout + who.timeouts.renew / 2
        self._requests = StoreCalls(world.store, who, self.post, self.fail, self._clock, silence)
        self._leases = world.renewals.member(self.post, self.fail, world.store_clock, silence)
        self._grouping = Grouping(who, world.membership, self.post, self.fail, self._metrics)
        self._planner = Planner(world.logs, self._clock, world.store_clock, checkpoint.grace, limits)
        self._working = Working(
            who,
            world.engine,
            world.sinks,
            self._planner,
            Places(world.logs, self._grouping.membership, who.group, world.store_clock),
            happened=self.post,
            failed=self.fail,
            clock=self._clock,
        )
        self._loop = threading.Thread(target=self._run, name=f"{who.member} loop", daemon=True)

    # -- from any thread -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin; returns at once."""
        self._loop.start()

    def terminate(self) -> None:
        """Ask the member to end within the close time, keeping a static member's slot (SIGTERM, Ctrl-C)."""
        self.post(messages.Notice.TERMINATED)

    def leave(self) -> None:
        """Ask the member to end within the close time and leave its group, static or not: others take over at once."""

        def leaving() -> None:
            self._machine = replace(self._machine, static=False)
            self._deliver(messages.Notice.TERMINATED)

        self.post(leaving)

    def hold(self) -> None:
        """Plan no further batch.

        For a process that is about to end, and wants nothing started that no checkpoint would hold.
        """
        self._working.hold()

    @property
    def snapshot(self) -> Snapshot:
        """The member as it is now; made on demand, because it is rarely read."""
        return self._metrics.snapshot(self._machine, self._planner.ends)

    @property
    def spec_digest(self) -> str | None:
        """The digest of the spec in force, as the member sees it; None before it has seen any."""
        view = self._machine.view  # the machine is replaced as a whole, so any thread may read it
        return None if view is None else view.spec_digest

    @property
    def newest_checkpoint(self) -> CheckpointNumber:
        """The newest number that a checkpoint or a reset has used, as far as the member has seen."""
        return self._machine.memory.sequence

    def adopt(self, checkpoint: CheckpointRules, limits: Limits, digest: str) -> None:
        """Follow a changed spec from now on, as far as it changes while members live.

        Args:
            checkpoint: the region's checkpoints, for the grace of boundaries.
            limits: of a batch.
            digest: of that spec.
        """

        def adopted() -> None:
            self._planner.grace, self._planner.limits = checkpoint.grace, limits
            self._size = self._size.within(limits)
            # A change that counts at once: it registers from now on as built from that spec.
            process = replace(self._machine.process, spec_digest=digest)
            self._machine = replace(self._machine, process=process)

        self.post(adopted)

    def post(self, happening: Happening) -> None:
        """Put an event for the machine, or something to do in the loop, into its queue."""
        self._happenings.put(happening)

    def fail(self, error: BaseException) -> None:
        """End the member because of an error that it can't answer."""

        def failed() -> None:
            if self._failure is None:
                self._failure = error

        self.post(failed)

    def wait(self, timeout: float) -> Ended | None:
        """Return how the member ended; None if it has not within `timeout` seconds."""
        return self._end if self._done.wait(timeout) else None

    # -- the loop ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._deliver(messages.Notice.TICK)
            while self._failure is None and not self._is_over():
                self._take()
        except BaseException as error:  # noqa: BLE001 - told in the end of this member, which its application shows
            self._failure = error
        try:
            self._finish()
        finally:
            self._end = self._how()
            self._done.set()

    def _take(self) -> None:
        self.turns += 1
        now = self._clock()
        until_due = state.next_due(self._machine, now) - now
        try:
            happening = self._happenings.get(timeout=min(until_due, TICK))
        except queue.Empty:
            happening = messages.Notice.TICK
        if callable(happening):
            happening()
        else:
            self._deliver(happening)
        if self._requests.is_silent() or self._leases.is_silent():
            self._deliver(messages.StoreLost())
        self._look_at_engine()

    def _look_at_engine(self) -> None:
        """Tell what the engine lacks, if a batch runs, or would; or what slows it down."""
        batch = self._machine.batch
        runs = batch is not None and batch.phase is BatchPhase.RUNNING
        is_wanted = runs or self._working.is_held_back or not self._world.is_ready()
        why = self._world.lacks() if is_wanted else ""
        self._has_waited = self._has_waited or (runs and bool(why))
        slowed = "" if why else self._world.slowed()
        longest = SLOWED_MOST * self.who.timeouts.batch.total_seconds()
        excuses = not slowed or self._clock() - self._run_since <= longest
        why = why or slowed
        if why != self._machine.lacks or (why and runs and excuses):
            self._deliver(messages.EngineLacks(why=why, excuses=excuses))

    def _deliver(self, event: messages.Event) -> None:
        now, before = self._clock(), self._machine
        self._note(event)
        self._machine, wanted = step(before, event, now)
        self._show(before)
        for effect in wanted:
            self._execute(effect)

    def _note(self, event: messages.Event) -> None:
        """Count what the event says."""
        match event:
            case messages.Answered(command=commands.FinishBatch()):
                batch = self._machine.batch
                records = 0 if batch is None else sum(r.width for r in batch.ranges.values())
                self._metrics.add(Counts(batches=1, records=records))
            case messages.BatchEnded(failure=str()):
                self._metrics.add(Counts(failed_batches=1))
            case messages.Answered(command=commands.DiscardBatch()) | messages.Refused(command=commands.DiscardBatch()):
                self._metrics.add(Counts(discarded_batches=1))
            case messages.Answered(command=commands.Contribute(sequence=sequence)):
                self._metrics.contributed(sequence, self._clock())
            case messages.SinksReset(epoch=epoch):
                self._metrics.reset(epoch)
            case messages.StoreLost(why=why) if self._machine.store_lost_at is None:
                self._metrics.add(Counts(store_losses=1))
                _LOG.warning("%s: the store does not answer%s", self.who.member, f": {why}" if why else "")
            case messages.Notice.STORE_BACK:
                _LOG.info("%s: the store answers again", self.who.member)
            case _:
                pass

    def _show(self, before: MemberMachine) -> None:
        """Tell what changed in the member's state, and time its drains."""
        after = self._machine
        if (before.state, before.why) != (after.state, after.why):
            why = "" if after.why is None else f" ({after.why})"
            # What every checkpoint brings is for debugging; rarer transitions are for every reader of the log.
            usual = {before.state, after.state} <= {State.PROCESSING, State.HOLDING} and after.why in _USUAL
            level = logging.DEBUG if usual else logging.INFO
            _LOG.log(level, "%s: %s, now %s%s", self.who.member, before.state, after.state, why)
        view = after.view
        checkpoint = None if view is None else view.checkpoint
        self._working.open_checkpoint = None if checkpoint is None else checkpoint.sequence
        is_drained = view is None or view.contributed
        if checkpoint is not None and checkpoint.state is CheckpointState.DRAINING and not is_drained:
            self._metrics.drain_seen(checkpoint.sequence, self._clock())

    def _is_over(self) -> bool:
        machine = self._machine
        if machine.state is State.CLOSED:
            return True
        return machine.state is State.FENCED and machine.batch is None and not machine.in_group

    def _finish(self) -> None:
        """End all threads of the member; the store's remaining commands are sent first."""
        left = self.who.timeouts.close * (1 - CLOSE_SHARE)
        self._working.end()
        is_sent = self._requests.end(left.total_seconds() / 2)
        self._leases.end()
        ended = self._grouping.membership.end(left / 2)
        if not is_sent:
            _LOG.warning("%s: the store could not be told that this member ends", self.who.member)
        if not ended:
            _LOG.warning("%s: the Kafka client did not close in time", self.who.member)

    def _how(self) -> Ended:
        if self._failure is not None:
            return Ended(how=End.FAILED, error=self._failure)
        if self._machine.state is State.FENCED:
            return Ended(how=End.FENCED)
        refusal = self._machine.refusal
        return Ended(how=End.CLOSED) if refusal is None else Ended(how=End.REFUSED, error=refusal)

    # -- effects -------------------------------------------------------------------------------------------------

    def _execute(self, effect: messages.Effect) -> None:  # noqa: C901 - one row an effect
        """Hand an effect to its executor; the answer comes later, as an event."""
        working = self._working
        match effect:
            case commands.Renew() as renewal:
                self._leases.ask(self.who.region, renewal)
            case commands.ReportOutOfRange() as report:
                working.locate(report, self._requests.ask)
            case commands.ReportPublished() as report:
                working.publish(report, self._requests.ask)
            case commands.Command() as command:
                if isinstance(command, commands.RequestReset) and command.cause in _TEACHES:
                    self._learn_from_failure()
                self._requests.ask(command)
            case messages.GroupRequest.JOIN:
                self._grouping.membership.join()
            case messages.GroupRequest.LEAVE:
                self._grouping.membership.leave()
            case messages.GroupRequest.CLOSE_KEEPING_SLOT:
                self._grouping.membership.close_keeping_slot()
            case messages.ClaimAssignment():
                self._claim(effect)
            case messages.ReleasePartitions():
                self._grouping.release(effect)
            case messages.GroupRequest.DISCOVER_PARTITIONS:
                working.discover()
            case messages.PlanRanges():
                self._plan(effect)
            case messages.RunBatch():
                self._run_batch(effect)
            case messages.Cancel():
                working.cancel(effect)
            case messages.ResetSinks():
                working.reset_sinks(effect)
            case messages.PrepareSinks():
                working.prepare(effect)
            case messages.Commit():
                self._grouping.commit(effect, self._lease())
            case messages.CommitSeek():
                self._grouping.commit_seek(effect, partial(self._report_seek, effect), self._lease())
            case messages.EndProcess(why=why):
                _LOG.critical("%s: the process ends: %s", self.who.member, why)
                self._world.end_process(why)
            case _:
                assert_never(effect)

    def _claim(self, effect: messages.ClaimAssignment) -> None:
        view = self._machine.view
        initialised = view is not None and view.initialised
        newest = self._machine.memory.sequence

        def ready(claim: commands.ClaimPartitions, held: Held) -> None:
            later = leases.later_note(self.who.region_id, self.who.member, held, newest)
            if later is not None:
                self._requests.ask(later)
            self._requests.ask(claim)

        self._working.claim(effect, initialised=initialised, ready=ready)

    def _plan(self, effect: messages.PlanRanges) -> None:
        batch = self.who.batch_id(next(self._batch_numbers))
        self._size = self._size.warned(effect.view.failures)
        if self._world.is_ready():
            self._working.plan(effect, batch, self._size.records, self._world.lacks)
        else:
            self.post(messages.RangesPlanned(batch=batch, ranges={}))  # nothing to read, for now

    def _run_batch(self, effect: messages.RunBatch) -> None:
        row, view = effect.row, self._machine.view
        records = sum(r.width for r in row.ranges.values())

        def took(seconds: leases.Seconds, did_its_work: bool) -> None:
            self._metrics.batch_took(seconds)
            if did_its_work and not self._has_waited:
                after = self._size.slowed if self._world.slowed() else self._size.after
                self._size = after(records, seconds)

        call = ports.BatchCall(
            region=self.who.region,
            member=row.member,
            batch=row.batch,
            epoch=row.epoch,
            timeline=row.timeline,
            sequence=row.sequence,
            ranges=row.ranges,
            progress=effect.progress,
            boundary=None if view is None else view.limit,
        )
        self._run_since, self._has_waited = self._clock(), False
        self._working.run(call, took)

    def _learn_from_failure(self) -> None:
        """Make the next batch smaller than the one that has just failed or run into its timeout."""
        batch = self._machine.batch
        if batch is None:
            return
        records = sum(r.width for r in batch.ranges.values())
        self._size = self._size.after_failure(records, self._clock() - self._run_since)
        _LOG.warning(
            "%s: a batch of %s offset(s) did not do its work; the next one takes at most %s",
            self.who.member,
            records,
            self._size.records,
        )

    def _report_seek(self, effect: messages.CommitSeek, failure: str) -> None:
        self._requests.ask(commands.ReportSeekCommit(caller=effect.caller, failure=failure))

    def _lease(self) -> Callable[[], bool]:
        """Return what tells, in any thread, whether the lease that the member holds now is not over yet.

        It does not wait for the loop to notice: in a process that was frozen, any thread may be the first to continue.
        """
        mine, lease = self._machine.incarnation, self.who.timeouts.lease.total_seconds()

        def holds() -> bool:
            machine = self._machine  # replaced as a whole
            return machine.incarnation == mine and self._clock() - machine.lease_sent_at < lease

        return holds


class StoreCalls:
    """The commands of one member, in the order in which it gave them, by a thread of its own.

    Args:
        store: handles them.
        who: the member.
        deliver: takes the answers; from any thread.
        failed: told what can't be answered; from any thread.
        clock: the member's.
        silence: how long a command may go without an answer before the store counts as lost.
    """

    def __init__(
        self,
        store: ports.MemberStore,
        who: leases.Identity,
        deliver: Callable[[messages.Event], None],
        failed: Callable[[BaseException], None],
        clock: leases.Clock,
        silence: timedelta,
    ) -> None:
        self._store, self._who, self._deliver, self._failed = store, who, deliver, failed
        self._clock, self._silence = clock, silence.total_seconds()
        self._commands: queue.SimpleQueue[commands.Command[object] | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._asked_at: leases.Seconds | None = None
        self._thread = threading.Thread(target=self._run, name=f"{who.member} store", daemon=True)
        self._thread.start()

    def ask(self, command: commands.Command[object]) -> None:
        """Give a command, and deliver what becomes of it as `Answered` or `Refused`; returns at once."""
        self._commands.put(command)

    def is_silent(self) -> bool:
        """Whether the command that is under way has had no answer for too long: a frozen server says nothing."""
        asked_at = self._asked_at
        return asked_at is not None and self._clock() - asked_at >= self._silence

    def end(self, timeout: float) -> bool:
        """End after the commands given so far, or give them up after `timeout` seconds; return whether all were."""
        self._commands.put(None)
        self._thread.join(timeout)
        if self._thread.is_alive():
            self._stopping.set()
            return False
        return True

    def _run(self) -> None:
        """Have the store handle one command after the other; one that it does not answer is given again."""
        command, pause, is_lost = self._commands.get(), leases.FIRST_PAUSE, False
        while command is not None and not self._stopping.is_set():
            answer: messages.Event
            sent_at = self._asked_at = self._clock()
            try:
                own = commands.from_process(self._who.member, self._who.token, command)
                result = self._store.handle(self._who.region, own)
                answer = messages.Answered(command=command, result=result, sent_at=sent_at)
            except StoreError as error:
                self._asked_at = None
                if isinstance(error, leases.FINAL):
                    self._failed(error)
                    return
                is_lost = True
                self._deliver(messages.StoreLost(why=error.message))
                # Members that lost the same store shall not all come back in the same moment.
                self._stopping.wait(pause * random.uniform(0.5, 1.0))  # noqa: S311 - nothing depends on the numbers
                pause = min(pause * 2, leases.LONGEST_PAUSE)
                continue
            except KcrError as error:
                level = logging.DEBUG if isinstance(error, RefusedError) else logging.WARNING
                _AGAIN.log(level, "%s: %s was refused: %s", self._who.member, type(command).__name__, error)
                answer = messages.Refused(command=command, error=error)
            except BaseException as error:  # noqa: BLE001 - reported, not swallowed: the member ends
                self._failed(error)
                return
            self._asked_at = None
            if is_lost:
                self._deliver(messages.Notice.STORE_BACK)
            self._deliver(answer)
            command, pause, is_lost = self._commands.get(), leases.FIRST_PAUSE, False
