"""The engine of one member: runs a pipeline on a batch, and returns when nothing of it runs any more.

- A batch is one Spark job group, named after the batch, in a scheduler pool of the member.
- Whoever asks to cancel decides: a batch that was asked to cancel ends as cancelled, whatever its pipeline made of the
  cancellation. A cancellation by anybody else is a failure.
- A pipeline's own Python can't be stopped from outside. Its waits inside Spark's driver can: planning a read asks
  Kafka, which may not answer; so a thread that a cancellation has not freed by then is interrupted.
- A plain `threading.Thread` of the pipeline starts jobs that belong to no batch: they are neither cancelled nor waited
  for. `pyspark.InheritableThread` is the one to use.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from airflow_kcr.errors import BatchCancelled, BatchError, BatchFailed, SinkError
from airflow_kcr.ports import BatchCall, BatchReport
from airflow_kcr.protocol.values import BatchId
from airflow_kcr.spark import jvm
from airflow_kcr.spark.context import BatchContext
from airflow_kcr.spark.failures import EngineLost, failure
from airflow_kcr.spark.job_groups import JobGroup
from airflow_kcr.spark.pipelines import Pipeline
from airflow_kcr.spark.reads import Source, read
from airflow_kcr.spark.scans import count_scans
from airflow_kcr.spark.session import member_session
from airflow_kcr.spark.sinks import Output, no_output

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_kcr.spark.jvm import JavaObject

logger = logging.getLogger(__name__)

_INTERRUPT_AFTER: Final = 2.0
"""Seconds that a cancellation has to end the pipeline's call before its thread in the JVM is interrupted."""

_PYTHON_ENDS_WITHIN: Final = 0.4
"""Seconds that a Python worker may go on after its task: two looks of `kcr_python_daemon`."""

_FIRST_LOOK: Final = 0.002
_LONGEST_LOOK: Final = 0.1
_TELL_EVERY: Final = 10.0

_ALWAYS_COUNTED: Final = 8
_COUNTED_EVERY: Final = 64
"""How often a pipeline reads its ranges is its own, not the batch's, and takes some 30 questions to the JVM to find
out: it is counted in the first batches of a member, and in one of so many after them."""

_REMEMBERED: Final = 64
"""How many cancellations are kept that came before their batch, or after it."""


@dataclass(slots=True, kw_only=True)
class _Running:
    """The batch that runs: read and written under the engine's lock, but for the group."""

    batch: BatchId
    group: JobGroup
    thread: JavaObject
    """The JVM's thread in which the pipeline runs; None once it must not be interrupted any more."""

    cancelled: threading.Event = field(default_factory=threading.Event)


class SparkEngine:
    """Runs one member's batches, one at a time.

    Args:
        spark: the application's session, shared with the other members that it hosts.
        pipeline: called with each batch and its context.
        source: where and how to read.
        output: makes what a batch writes into its group's sinks.

    Raises:
        ConfigurationError: the application's settings would break exactness.
    """

    def __init__(
        self, spark: SparkSession, pipeline: Pipeline, source: Source, output: Callable[[BatchCall], Output] = no_output
    ) -> None:
        self._spark = member_session(spark)
        self._pipeline = pipeline
        self._source = source
        self._output = output
        self._lock = threading.Lock()
        self._running: _Running | None = None
        self._cancelled: deque[BatchId] = deque(maxlen=_REMEMBERED)
        self._told_scans = False
        self._finished_batches = 0

    def run(self, call: BatchCall) -> BatchReport:
        """Read the ranges, call the pipeline, and return when it has returned and none of its tasks runs any more.

        Raises:
            BatchCancelled: it was cancelled; its tasks have ended.
            BatchFailed: it failed; its tasks have ended.
            RangeUnreadable: one of them: a range is not in its log as it is now.
            EngineLost: Spark is gone; nothing is known of the tasks, and this process can run no batch.
        """
        output = self._output(call)
        context = BatchContext.of(call, output.writers)
        self._refuse_cancelled(call.batch, context)
        try:
            return self._run(call, context, output)
        except BatchError:
            raise
        except Exception as error:
            raise self._lost(context, error) from error

    def cancel(self, batch: BatchId) -> None:
        """Cancel a batch, from any thread; returns at once, `run` raises when its tasks have ended.

        One that has not begun is refused when it does; one that has ended is left alone.
        """
        with self._lock:
            running = self._running
            if running is None or running.batch != batch:
                self._cancelled.append(batch)
                return
            first = not running.cancelled.is_set()
            running.cancelled.set()
        running.group.cancel()
        if first:
            timer = threading.Timer(_INTERRUPT_AFTER, self._interrupt, (running,))
            timer.daemon = True
            timer.start()

    def _run(self, call: BatchCall, context: BatchContext, output: Output) -> BatchReport:
        machine = jvm.virtual_machine(self._spark.sparkContext)
        group = JobGroup(self._spark, f"{call.region}/{call.member}/{call.batch}")
        running = _Running(batch=call.batch, group=group, thread=machine.java.lang.Thread.currentThread())
        since = int(machine.java.lang.System.currentTimeMillis())
        group.enter(_description(context), str(call.member))
        try:
            with self._lock:
                self._running = running
            # Once more: a cancellation from now on finds the batch, one from before is remembered.
            self._refuse_cancelled(call.batch, context)
            try:
                self._pipeline(read(self._spark, self._source, call.ranges, call.timeline), context)
            except (Exception, SystemExit) as error:
                self._closed(running)
                raise self._outcome(running, context, error) from error
            except BaseException:
                self._closed(running)
                raise
            report = self._finished(running, context, since)
            self._publish(running, context, output)
            return report
        finally:
            with self._lock:
                self._running = None
            group.leave()

    def _finished(self, running: _Running, context: BatchContext, since: int) -> BatchReport:
        """Wait for what the pipeline left running, and look at what it did."""
        self._uninterrupted(running)
        group, warnings = running.group, []
        self._wait(running, group.is_told)
        jobs = group.jobs()
        left = group.running(jobs)
        if left:
            warnings.append(
                f"the pipeline returned while {left} of its jobs ran; the batch waited for them, but what they raised "
                "is not known: wait for them in the pipeline"
            )
            self._wait(running, lambda: group.is_told() and not group.running(group.jobs()))
            jobs = group.jobs()
        self._wait(running, group.is_quiesced)
        if running.cancelled.is_set():
            self._closed(running)
            raise BatchCancelled(f"{context} was cancelled")
        if not jobs:
            raise BatchFailed(
                f"{context} processed nothing: the pipeline returned without any Spark job; a DataFrame does nothing "
                "until it is written or collected, and jobs of a plain threading.Thread don't count as the batch's "
                "(use pyspark.InheritableThread)"
            )
        number, self._finished_batches = self._finished_batches, self._finished_batches + 1
        is_counted = number < _ALWAYS_COUNTED or number % _COUNTED_EVERY == 0
        scans = self._scans(jobs, since) if is_counted else None
        if scans is not None and scans > 1:
            warnings.append(
                f"the pipeline read its ranges {scans} times, once for each action; persist the batch where reading "
                "is what takes the time"
            )
        return BatchReport(scans=scans, warnings=tuple(warnings))

    def _publish(self, running: _Running, context: BatchContext, output: Output) -> None:
        """Publish what the pipeline wrote, now that none of its tasks can write any more."""
        try:
            output.publish()
        except SinkError as error:
            raise self._outcome(running, context, error) from error
        if running.cancelled.is_set():
            # What is published stays, and the reset that follows finds it.
            raise BatchCancelled(f"{context} was cancelled while it was published")

    def _scans(self, jobs: tuple[int, ...], since: int) -> int | None:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]

        try:
            return count_scans(self._spark, jobs, since)
        except (Py4JError, ValueError, TypeError) as error:
            if not self._told_scans:
                logger.warning("how often a batch was read can't be told with this Spark: %s", error)
            self._told_scans = True
            return None

    def _outcome(self, running: _Running, context: BatchContext, error: BaseException) -> BatchError:
        if running.cancelled.is_set():
            return BatchCancelled(f"{context} was cancelled")
        return failure(error, str(context))

    def _closed(self, running: _Running) -> None:
        """Let nothing of the batch begin any more, and wait until nothing of it runs."""
        self._uninterrupted(running)
        running.group.cancel()
        running.group.settle()
        self._wait(running, running.group.is_quiesced)
        # A task's Python worker notices a moment later that its task has ended.
        threading.Event().wait(_PYTHON_ENDS_WITHIN)

    def _wait(self, running: _Running, done: Callable[[], bool]) -> None:
        """Return when `done`; there is no deadline, since a batch is not over before (the runtime ends the process)."""
        pause, waited = _FIRST_LOOK, 0.0
        never = threading.Event()
        while not done():
            never.wait(pause)
            waited += pause
            pause = min(2 * pause, _LONGEST_LOOK)
            if waited > _TELL_EVERY:
                logger.warning("%s: waiting for %s task(s) to end", running.group.name, running.group.tasks())
                waited = 0.0

    def _refuse_cancelled(self, batch: BatchId, context: BatchContext) -> None:
        with self._lock:
            if batch in self._cancelled:
                raise BatchCancelled(f"{context} was cancelled before it began")

    def _interrupt(self, running: _Running) -> None:
        with self._lock:
            if running.thread is not None:
                running.thread.interrupt()

    def _uninterrupted(self, running: _Running) -> None:
        """Let the thread of the JVM not be interrupted from here on, and forget an interruption that came late."""
        with self._lock:
            running.thread = None
        jvm.virtual_machine(self._spark.sparkContext).java.lang.Thread.interrupted()

    def _lost(self, context: BatchContext, error: Exception) -> EngineLost:
        return EngineLost(f"{context}: Spark does not answer any more ({type(error).__name__}: {error})")


def _description(context: BatchContext) -> str:
    partitions = len(context.ranges)
    return f"{context}: {context.offsets} offset(s) of {partitions} partition(s)"
