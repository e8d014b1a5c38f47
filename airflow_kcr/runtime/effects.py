"""The effects of a member: those that concern its Kafka group, and those that read logs, run batches and move sinks.

What the Kafka client tells comes in its event thread; it is put into the loop's queue and nothing else. Reading,
batches and sinks block, so each has a thread of its own, and none runs in the loop.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import TypeAlias, TypeVar

from airflow_kcr import ports
from airflow_kcr.errors import BatchCancelled, BatchError, KcrError, SinkAhead, SinkError
from airflow_kcr.floods import unflooded
from airflow_kcr.protocol.member import messages
from airflow_kcr.protocol.offsets import EMPTY, OffsetMap, SeekSource
from airflow_kcr.protocol.region.commands import ClaimPartitions, Found, ReportOutOfRange, ReportPublished
from airflow_kcr.protocol.values import AssignmentId, BatchId, CheckpointNumber, Epoch, GroupPartition, Timeline
from airflow_kcr.runtime.leases import Clock, CommitNote, Identity, Seconds
from airflow_kcr.runtime.metrics import Counts, Metrics
from airflow_kcr.runtime.planner import Planner
from airflow_kcr.runtime.positions import Places

Task: TypeAlias = Callable[[], None]


class Worker:
    """Runs tasks one after the other in a thread of its own.

    A task that raises is a fault of the program, or one that a member can't answer: it ends the worker and is reported.

    Args:
        name: the thread's.
        failed: told what a task raised, in this thread.
    """

    def __init__(self, name: str, failed: Callable[[BaseException], None]) -> None:
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._failed = failed
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def post(self, task: Task) -> None:
        """Have a task done after all that were posted before."""
        self._tasks.put(task)

    def end(self) -> None:
        """End after the tasks that were posted before; returns at once."""
        self._tasks.put(None)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except BaseException as error:  # noqa: BLE001 - reported, not swallowed: the worker's owner ends
                self._failed(error)
                return


Happening: TypeAlias = "messages.Event | Callable[[], None]"
"""What the loop's queue holds: an event for the machine, or something to do in the loop."""

_LOG = logging.getLogger(__name__)
_AGAIN = unflooded(f"{__name__}.again")
"""For what is told with each try while a broker, the store or Spark is away, and with each batch of a pipeline."""


class Grouping:
    """A member's place in its group, as its loop sees it; a `MembershipListener`.

    Args:
        who: the member.
        membership: makes the member's Kafka client, which tells this object what happens.
        happened: the loop's queue.
        failed: ends the member because of an error.
        metrics: written in the loop only.
    """

    def __init__(
        self,
        who: Identity,
        membership: Callable[[ports.MembershipListener], ports.Membership],
        happened: Callable[[Happening], None],
        failed: Callable[[BaseException], None],
        metrics: Metrics,
    ) -> None:
        self._who, self._happened, self.failed, self._metrics = who, happened, failed, metrics
        self._assignments = 0
        self._released: Callable[[], None] = lambda: None
        self._revoking: frozenset[GroupPartition] = frozenset()
        self.membership = membership(self)
        """The client."""

    # -- what the client tells, in its thread --------------------------------------------------------------------

    def assigned(self, partitions: frozenset[GroupPartition]) -> None:
        """The assignment is these partitions now."""
        self._assignments += 1
        self._happened(messages.Assigned(assignment=AssignmentId(self._assignments), partitions=partitions))
        self._happened(self._count_rebalance)

    def revoking(self, partitions: frozenset[GroupPartition], released: Callable[[], None]) -> None:
        """Kafka takes these partitions as soon as nothing runs on them."""
        self._revoking, self._released = partitions, released
        self._happened(messages.Revoking(partitions=partitions))

    def revoked(self) -> None:
        """Kafka revoked all of the assignment, or it was lost."""
        self._happened(messages.Notice.REVOKED)

    def left(self) -> None:
        """The group was left, or the client closed keeping its slot."""
        self._happened(messages.Notice.LEFT_GROUP)

    def fenced(self, why: str) -> None:
        """Kafka fenced the client; whether this process is still the member, the store says."""
        _AGAIN.warning("%s: Kafka fenced the client, it joins anew if its lease holds: %s", self._who.member, why)
        self._happened(lambda: self._metrics.troubled(why))
        self._happened(messages.Notice.INSTANCE_FENCED)

    def troubled(self, why: str) -> None:
        """The client complained."""
        _AGAIN.warning("%s: %s", self._who.member, why)
        self._happened(lambda: self._metrics.troubled(why))

    def _count_rebalance(self) -> None:
        self._metrics.add(Counts(rebalances=1))

    # -- effects -------------------------------------------------------------------------------------------------

    def release(self, effect: messages.ReleasePartitions) -> None:
        """Let Kafka take what it is revoking; where it has not waited so long, nothing happens."""
        if effect.partitions == self._revoking:
            self._released()

    def commit(self, effect: messages.Commit, may_write: Callable[[], bool]) -> None:
        """Commit the restore point, while the member may write.

        What Kafka holds afterwards, as read, is the commit read-back.
        """

        def answered(answer: ports.CommitAnswer) -> None:
            held = OffsetMap({p: row.offset for p, row in answer.held.items() if p in effect.offsets})
            failed = bool(answer.failure)
            self._happened(messages.CommitAnswered(sequence=effect.sequence, offsets=held, failed=failed))

        self._send(effect, effect.epoch, f"checkpoint {effect.sequence}", answered, may_write)

    def commit_seek(
        self, effect: messages.CommitSeek, noted: Callable[[str], None], may_write: Callable[[], bool]
    ) -> None:
        """Tell Kafka where the member resumed after a reset, while it may write.

        `noted` gets why that failed, or an empty text.
        """
        epoch = effect.caller.epoch
        self._send(effect, epoch, f"where epoch {epoch} resumed", lambda answer: noted(answer.failure), may_write)

    def _send(
        self,
        effect: messages.Commit | messages.CommitSeek,
        epoch: Epoch,
        what: str,
        answered: Callable[[ports.CommitAnswer], None],
        may_write: Callable[[], bool],
    ) -> None:
        def heard(answer: ports.CommitAnswer) -> None:
            if answer.failure:
                self._commit_failed(f"the commit of {what}: {answer.failure}")
            answered(answer)

        note = CommitNote(
            region=self._who.region,
            region_id=self._who.region_id,
            timeline=effect.timeline,
            sequence=effect.sequence,
            epoch=epoch,
        )
        self.membership.commit(effect.offsets, note.text(), self._who.timeouts.commit, heard, may_write)

    def _commit_failed(self, why: str) -> None:
        _AGAIN.warning("%s: %s", self._who.member, why)

        def count() -> None:
            self._metrics.add(Counts(failed_commits=1))
            self._metrics.troubled(why)

        self._happened(count)


T = TypeVar("T")

TRY_AGAIN = 0.5
"""Seconds before something that Kafka or a sink did not answer is tried again."""


class Working:
    """Does a member's work.

    Args:
        who: the member.
        engine: runs its batches.
        sinks: of its pipeline.
        planner: says what a batch reads.
        places: says where partitions begin.
        happened: the loop's queue.
        failed: told what can't be answered.
        clock: the member's.
    """

    def __init__(
        self,
        who: Identity,
        engine: ports.Engine,
        sinks: ports.Sinks,
        planner: Planner,
        places: Places,
        *,
        happened: Callable[[Happening], None],
        failed: Callable[[BaseException], None],
        clock: Clock,
    ) -> None:
        self._who, self._engine, self._sinks, self._planner, self._places = who, engine, sinks, planner, places
        self._happened, self._clock = happened, clock
        self._reader = Worker(f"{who.member} reads", failed)
        self._batches = Worker(f"{who.member} batches", failed)
        # A checkpoint of many files takes its time; meanwhile the next batches are planned, and a reset is carried out.
        self._publisher = Worker(f"{who.member} publishes", failed)
        # Cancelling asks the engine, which may not answer; the loop has a lease to keep.
        self._canceller = Worker(f"{who.member} cancels", failed)
        self._cancelled: frozenset[BatchId] = frozenset()
        """Written in the loop before the engine gets the batch, so that it is there when the end is reported."""

        self.open_checkpoint: CheckpointNumber | None = None
        """The checkpoint that is open, as the loop last saw it; written by the loop."""

        self.is_held_back = False
        """Whether there was something to read when a batch was planned last, and the engine could not run it."""

        self._ending = threading.Event()
        self._holding = threading.Event()

    def hold(self) -> None:
        """Find nothing to read from now on."""
        self._holding.set()

    def end(self) -> None:
        """End when what is being done is done; nothing is tried again. Returns at once."""
        self._ending.set()
        for worker in (self._reader, self._batches, self._publisher, self._canceller):
            worker.end()

    # -- reading -------------------------------------------------------------------------------------------------

    def plan(
        self, effect: messages.PlanRanges, batch: BatchId, size: int, lacks: Callable[[], str] = ports.nothing
    ) -> None:
        """Plan a batch; where the brokers don't answer, or the engine lacks something, there is none for now."""

        def task() -> None:
            if self._holding.is_set():
                self._happened(messages.RangesPlanned(batch=batch, ranges={}))
                return
            try:
                planned = self._planner.plan(batch, effect.positions, effect.view, size)
            except KcrError as error:
                _AGAIN.warning("%s: nothing can be planned: %s", self._who.member, error)
                planned = messages.RangesPlanned(batch=batch, ranges={})
            self.is_held_back = bool(planned.ranges) and bool(lacks())
            self._happened(replace(planned, ranges={}) if self.is_held_back else planned)

        self._reader.post(task)

    def claim(
        self,
        effect: messages.ClaimAssignment,
        *,
        initialised: bool,
        ready: Callable[[ClaimPartitions, Mapping[GroupPartition, ports.CommittedOffset]], None],
    ) -> None:
        """Read the logs of an assignment and what Kafka holds for them; `ready` gives the claim to the store.

        A claim is refused where that can't be read, and so is made again.
        """

        def task() -> None:
            self._planner.forget()
            try:
                assigned = self._places.assigned(effect.partitions, initialised=initialised)
                held = self._places.committed(effect.partitions)
                # Asked last: logs that were read before a cluster was replaced count as the new one's, and are refused.
                cluster = self._places.cluster()
            except KcrError as error:
                _AGAIN.warning("%s: can't claim yet: %s", self._who.member, error)
                self._happened(messages.Refused(command=effect.claim, error=error))
                return
            ready(replace(effect.claim, partitions=assigned, cluster=cluster), held)

        self._reader.post(task)

    def locate(self, report: ReportOutOfRange, ready: Callable[[ReportOutOfRange], None]) -> None:
        """Ask which cluster has such logs; `ready` gives the report to the store.

        Where that can't be read there is no report: the next plan, or contribution, finds the same.
        """

        def task() -> None:
            try:
                cluster = self._places.cluster()
            except KcrError as error:
                _AGAIN.warning("%s: can't tell whose logs are out of range: %s", self._who.member, error)
                return
            ready(replace(report, cluster=cluster))

        self._reader.post(task)

    def discover(self) -> None:
        """Ask which partitions the brokers have of what the group subscribes to."""

        def task() -> None:
            try:
                found = self._places.subscribed()
            except KcrError as error:
                _AGAIN.warning("%s: can't tell which partitions there are: %s", self._who.member, error)
                self._happened(messages.PartitionsDiscovered(partitions=None))
                return
            self._happened(messages.PartitionsDiscovered(partitions=found))

        self._reader.post(task)

    def prepare(self, effect: messages.PrepareSinks) -> None:
        """Have the sinks make durable what they hold for a checkpoint, and read what the contribution tells."""

        def read() -> messages.Event:
            began = self._clock()
            self._sinks.prepare(effect.sequence)
            took = timedelta(seconds=self._clock() - began)
            bounds = self._planner.logs_seen(effect.partitions)
            held = {p: row.offset for p, row in self._places.committed(effect.partitions).items()}
            return messages.SinksPrepared(sequence=effect.sequence, bounds=bounds, committed=OffsetMap(held), took=took)

        def task() -> None:
            # A checkpoint that can't be prepared in time is aborted; what is said of one that is gone is refused.
            nothing = messages.SinksPrepared(sequence=effect.sequence, bounds={}, committed=EMPTY)
            within = self._who.timeouts.drain
            what = f"prepare checkpoint {effect.sequence}"
            self._happened(
                self._persistently(read, what, within, nothing, wanted=lambda: self.open_checkpoint == effect.sequence)
            )

        self._reader.post(task)

    def publish(self, report: ReportPublished, done: Callable[[ReportPublished], None]) -> None:
        """Publish a checkpoint; `done` reports it to the store. A failure is tried again in its turn."""

        def task() -> None:
            try:
                tables = self._sinks.publish(report.sequence)
            except SinkError as error:
                _AGAIN.warning("%s: checkpoint %s is not published: %s", self._who.member, report.sequence, error)
                # It is asked for again as soon as this is answered.
                self._ending.wait(TRY_AGAIN)
                self._happened(messages.Refused(command=report, error=error))
                return
            done(replace(report, tables=tables))

        self._publisher.post(task)

    def reset_sinks(self, effect: messages.ResetSinks) -> None:
        """Carry out a reset on the sinks, then answer the open entries."""

        def reset() -> messages.Event:
            progress = self._sinks.reset(effect)
            of_logs = {p: t for p, t in effect.open.items() if t.source is not SeekSource.SINK_PROGRESS}
            found = {p: Found(offset=progress.get(p)) for p in effect.open.keys() - of_logs.keys()}
            in_logs = self._places.found(of_logs, effect.target)
            places = {p: answer.offset for p, answer in in_logs.items() if answer.offset is not None}
            if places:
                # Where these resume is known only now; a sink whose timeline is older goes back to there.
                self._sinks.reset(replace(effect, resume=OffsetMap(places), open={}))
            return messages.SinksReset(epoch=effect.epoch, found={**found, **in_logs})

        def attempt() -> messages.Event:
            try:
                return reset()
            except SinkAhead as error:
                # Trying again would not make it younger: the store was restored, or a newer epoch is there.
                fence, timeline = Epoch(error.fence), Timeline(error.timeline)
                return messages.SinkFailed(epoch=effect.epoch, why=error.message, fence=fence, timeline=timeline)

        def task() -> None:
            within = self._who.timeouts.reset
            late = messages.SinkFailed(epoch=effect.epoch, why=f"no answer within {within}")
            answer = self._persistently(attempt, f"reset to epoch {effect.epoch}", within, late)
            self._planner.forget()
            self._happened(answer)

        self._reader.post(task)

    def _persistently(
        self,
        attempt: Callable[[], messages.Event],
        what: str,
        within: timedelta,
        late: messages.Event,
        wanted: Callable[[], bool] = lambda: True,
    ) -> messages.Event:
        """Try until it works, it is no longer wanted, or the time of the waiting caller is over."""
        deadline = self._clock() + within.total_seconds()
        while True:
            try:
                return attempt()
            except KcrError as error:
                _AGAIN.warning("%s: can't %s yet: %s", self._who.member, what, error)
                if self._clock() >= deadline or self._ending.wait(TRY_AGAIN) or not wanted():
                    return late

    # -- batches -------------------------------------------------------------------------------------------------

    def run(self, call: ports.BatchCall, took: Callable[[Seconds, bool], None]) -> None:
        """Run a batch; `took` is called in the loop with the seconds it took, and whether it did its work."""

        def task() -> None:
            began = self._clock()
            failure = self._failure_of(call)
            seconds = self._clock() - began
            self._happened(lambda: took(seconds, failure is None))
            # If it was cancelled from elsewhere, in Spark's own page for instance, it is a failure like any other.
            is_cancelled = call.batch in self._cancelled
            self._happened(messages.BatchEnded(batch=call.batch, failure=None if is_cancelled else failure))

        self._batches.post(task)

    def _failure_of(self, call: ports.BatchCall) -> str | None:
        """Run a batch, and return why it did not do its work; None: it did."""
        try:
            report = self._engine.run(call)
        except BatchCancelled as error:
            return error.message
        except BatchError as error:
            _LOG.warning("%s: %s", self._who.member, error)
            return error.message
        for warning in report.warnings:
            _AGAIN.warning("%s: batch %s: %s", self._who.member, call.batch, warning)
        return None

    def cancel(self, effect: messages.Cancel) -> None:
        """Cancel a batch."""
        self._cancelled = frozenset({effect.batch})
        self._canceller.post(lambda: self._engine.cancel(effect.batch))
