"""The engine of one member: runs a pipeline on a batch, and returns when nothing of it runs any more.

- A batch is one Spark job group, named after the batch, in a scheduler pool of the member.
- A requested cancellation decides: the batch ends as cancelled, whatever its pipeline made of the cancellation. Any
  other cancellation is a failure.
- A pipeline's own Python can't be stopped from outside. Its waits inside Spark's driver can: planning a read asks
  Kafka, which may not answer; so a thread that a cancellation has not freed by then is interrupted.
- A plain `threading.Thread` of the pipeline starts jobs that belong to no batch: they are neither cancelled nor waited
  for. `pyspark.InheritableThread` is the one to use.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from airflow_kcr.errors import BatchCancelled, BatchError, BatchFailed, KcrError, SinkError
from airflow_kcr.ports import BatchCall, BatchReport
from airflow_kcr.protocol.values import BatchId
from airflow_kcr.spark import jvm
from airflow_kcr.spark.causes import OUTSIDE, WORDS, condition_of, conditions, essential_line, is_login, java_chain
from airflow_kcr.spark.context import BatchContext, SinkWriter, finish
from airflow_kcr.spark.pipelines import Pipeline
from airflow_kcr.spark.reads import Reader, Source
from airflow_kcr.spark.session import member_session
from airflow_kcr.spark.throttling import ThrottlingWatch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_kcr.spark.jvm import JavaObject


logger = logging.getLogger(__name__)

_INTERRUPT_AFTER: Final = 2.0
"""Seconds that a cancellation has to end the pipeline's call before its thread in the JVM is interrupted.

And again after as many, until the call has ended: an interruption can lead into the next wait. Spark's connector,
interrupted in a call of its admin client, closes that client. While the broker is away, its thread can miss that it
should end until its metadata expire, after minutes (seen).
"""

_PYTHON_ENDS_WITHIN: Final = 0.4
"""Seconds that a Python worker may continue after its task: two polls of `kcr_python_daemon`."""

_FIRST_PAUSE: Final = 0.002
_LONGEST_PAUSE: Final = 0.1
_TELL_EVERY: Final = 10.0

_ALWAYS_COUNTED: Final = 8
_COUNTED_EVERY: Final = 64
"""How often a pipeline reads its ranges is its own, not the batch's, and takes some 30 questions to the JVM to find
out: it is counted in the first batches of a member, and in one of this many after them."""

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
        writers: makes what a batch writes to its group's sinks with, by their names.

    Raises:
        ConfigurationError: the application's settings would break exactness.
    """

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        source: Source,
        writers: Callable[[BatchCall], Mapping[str, SinkWriter]] = lambda call: {},
    ) -> None:
        self._spark = member_session(spark)
        self._source = source
        self._pipeline = pipeline
        self._reader = Reader(self._spark, source)
        self._writers = writers
        self._throttling = ThrottlingWatch()
        self._lock = threading.Lock()
        self._running: _Running | None = None
        self._cancelled: deque[BatchId] = deque(maxlen=_REMEMBERED)
        self._has_warned = False
        self._started_batches = 0
        threads = jvm.virtual_machine(self._spark.sparkContext).java.lang.Thread
        self._current_thread, self._interrupted = threads.currentThread, threads.interrupted

    def slowed(self) -> str:
        """Return what slows batches down; empty: nothing that is known."""
        return self._throttling.slowed()

    def run(self, call: BatchCall) -> BatchReport:
        """Read the ranges, call the pipeline, and return when it has returned and none of its tasks runs any more.

        Raises:
            BatchCancelled: it was cancelled; its tasks have ended.
            BatchFailed: it failed; its tasks have ended.
            RangeUnreadable: one of them: a range is not in its log as it is now.
            EngineLost: Spark is gone; nothing is known of the tasks, and this process can run no batch.
        """
        context = BatchContext.of(call, self._writers(call))
        self._refuse_cancelled(call.batch, context)
        try:
            return self._run(call, context)
        except BatchError:
            raise
        except Exception as error:  # noqa: BLE001 (whatever it is, Spark is gone)
            raise self._lost(context, error) from None

    def cancel(self, batch: BatchId) -> None:
        """Cancel a batch, from any thread; returns at once, `run` raises when its tasks have ended.

        One that has not started is refused when it does; one that has ended is left alone.
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
            self._interrupt_later(running)

    def _run(self, call: BatchCall, context: BatchContext) -> BatchReport:
        # A batch's id is never used again, whatever the region's name is.
        group = JobGroup(self._spark, f"{call.region}/{call.member}/{call.batch}")
        running = _Running(batch=call.batch, group=group, thread=self._current_thread())
        number, self._started_batches = self._started_batches, self._started_batches + 1
        is_counted = number < _ALWAYS_COUNTED or number % _COUNTED_EVERY == 0
        since = self._jvm_millis() if is_counted else None
        group.enter(_description(context), str(call.member))
        try:
            with self._lock:
                self._running = running
            # Once more: a cancellation from now on finds the batch, one from before is remembered.
            self._refuse_cancelled(call.batch, context)
            try:
                with self._throttling.over(str(context), lambda: self._reader.throttled(call.ranges, call.timeline)):
                    self._pipeline(self._reader.read(call.ranges, call.timeline), context)
            except (Exception, SystemExit) as error:  # noqa: BLE001 (its kind and place are told)
                self._closed(running)
                raise self._outcome(running, context, error) from None
            except BaseException:
                self._closed(running)
                raise
            report = self._finished(running, context, since)
            self._finish(running, context)
            return report
        finally:
            with self._lock:
                self._running = None
            group.leave()

    def _finished(self, running: _Running, context: BatchContext, since: int | None) -> BatchReport:
        """Wait for what the pipeline left running, and check what it did.

        Args:
            running: the batch.
            context: likewise.
            since: when it began, in milliseconds of the JVM's clock; None: how often it read is not counted.
        """
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
        scans = None if since is None else self._scans(jobs, since)
        if scans is not None and scans > 1:
            warnings.append(
                f"the pipeline read its ranges {scans} times, once for each action; persist the batch where reading "
                "is what takes the time"
            )
        return BatchReport(scans=scans, warnings=tuple(warnings))

    def _finish(self, running: _Running, context: BatchContext) -> None:
        """Finish what the pipeline wrote, now that none of its tasks can write any more."""
        try:
            finish(context.sinks)
        except SinkError as error:
            raise self._outcome(running, context, error) from None
        if running.cancelled.is_set():
            # What is written stays, and the reset that follows finds it.
            raise BatchCancelled(f"{context} was cancelled while it was published")

    def _jvm_millis(self) -> int:
        return int(jvm.virtual_machine(self._spark.sparkContext).java.lang.System.currentTimeMillis())

    def _scans(self, jobs: tuple[int, ...], since: int) -> int | None:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]

        try:
            return count_scans(self._spark, jobs, since)
        except (Py4JError, ValueError, TypeError) as error:
            if not self._has_warned:
                logger.warning("how often a batch was read can't be told with this Spark: %s", error)
            self._has_warned = True
            return None

    def _outcome(self, running: _Running, context: BatchContext, error: BaseException) -> BatchError:
        if running.cancelled.is_set():
            return BatchCancelled(f"{context} was cancelled")
        return failure(error, str(context), self._source.login)

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
        pause, waited = _FIRST_PAUSE, 0.0
        never = threading.Event()
        while not done():
            never.wait(pause)
            waited += pause
            pause = min(2 * pause, _LONGEST_PAUSE)
            if waited > _TELL_EVERY:
                logger.warning("%s: waiting for %s task(s) to end", running.group.name, running.group.tasks())
                waited = 0.0

    def _refuse_cancelled(self, batch: BatchId, context: BatchContext) -> None:
        with self._lock:
            if batch in self._cancelled:
                raise BatchCancelled(f"{context} was cancelled before it began")

    def _interrupt_later(self, running: _Running) -> None:
        timer = threading.Timer(_INTERRUPT_AFTER, self._interrupt, (running,))
        timer.daemon = True
        timer.start()

    def _interrupt(self, running: _Running) -> None:
        with self._lock:
            if running.thread is None:
                return
            running.thread.interrupt()
        self._interrupt_later(running)

    def _uninterrupted(self, running: _Running) -> None:
        """Let the thread of the JVM not be interrupted from here on, and forget an interruption that came late."""
        with self._lock:
            running.thread = None
        self._interrupted()

    def _lost(self, context: BatchContext, error: Exception) -> EngineLost:
        return EngineLost(f"{context}: Spark does not answer any more ({type(error).__name__})")


def _description(context: BatchContext) -> str:
    partitions = len(context.ranges)
    return f"{context}: {context.offsets} offset(s) of {partitions} partition(s)"


# The Spark jobs of one batch as one: started under a name, cancelled from anywhere, and known to have ended.
#
# Spark answers a cancellation before the tasks have ended: on a cluster the executors are only told. A batch is over
# when the scheduler has no task of the group any more, and that is what `is_quiesced` asks the scheduler itself for.
# A task leaves its books when its executor reports the end, or when the executor is gone; so an executor that is cut
# off from the driver is taken for gone, as everywhere in Spark, and what it still writes is for the sinks' fences.

_GROUP: Final = "spark.jobGroup.id"
_POOL: Final = "spark.scheduler.pool"
_BUS_MILLIS: Final = 1_000
_TIMED_OUT: Final = "java.util.concurrent.TimeoutException"


class JobGroup:
    """The jobs of one batch.

    Args:
        spark: the member's session.
        name: never used by another batch: a cancelled group refuses jobs for ever.
    """

    def __init__(self, spark: SparkSession, name: str) -> None:
        self._context = spark.sparkContext
        self._scala = jvm.scala_context(self._context)
        self.name = name

    def enter(self, description: str, pool: str) -> None:
        """Let all jobs that this thread starts belong to the group, until `leave`.

        Args:
            description: what Spark's UI shows for each of them.
            pool: the scheduler's pool; made if it doesn't exist.
        """
        self._context.setLocalProperty(_POOL, pool)
        self._context.setJobGroup(self.name, description, interruptOnCancel=True)

    def leave(self) -> None:
        """Detach this thread's jobs from the batch."""
        jvm.java_context(self._context).clearJobGroup()
        self._context.setLocalProperty(_POOL, None)  # type: ignore[arg-type]  # None removes it

    def cancel(self) -> None:
        """Cancel the group's jobs, and those that it may still start; from any thread, returns at once."""
        self._scala.cancelJobGroupAndFutureJobs(self.name)

    def settle(self) -> None:
        """Return when a cancellation asked for before has reached every job; call it in the thread that entered.

        The scheduler handles what it is asked for in order, so a job that is sent after the cancellation is answered
        after it.
        """
        from py4j.protocol import Py4JJavaError

        try:
            jvm.run_task(self._context)
        except Py4JJavaError:
            # Refused, as it should be: the group is cancelled. A thread that was interrupted raises, too.
            return

    def is_quiesced(self) -> bool:
        """Whether no task of the group runs, or waits to run."""
        return self.tasks() == 0

    def tasks(self) -> int:
        """Return how many tasks of the group run, counting a set of tasks that waits as one."""
        scheduler = self._scala.taskScheduler()
        if scheduler is None:
            return 0
        # Tasks first: one that starts in between is in a set that is read afterwards.
        running = sum(map(self._is_ours, jvm.java_elements(scheduler.taskIdToTaskSetManager())))
        waiting = sum(map(self._is_ours, jvm.scala_items(scheduler.rootPool().getSortedTaskSetQueue())))
        return running or waiting

    def running(self, jobs: Iterable[int]) -> int:
        """Return how many of these jobs have started and not ended, as the books say now."""
        active = jvm.status_tracker(self._context).getActiveJobIds()
        return len(set(jobs).intersection(jvm.numbers(self._context, active)))

    def is_told(self) -> bool:
        """Whether all that happened so far is in Spark's books of jobs and plans, which are kept in the background."""
        from py4j.protocol import Py4JJavaError

        try:
            jvm.listener_bus(self._context).waitUntilEmpty(_BUS_MILLIS)
        except Py4JJavaError as error:
            if error.java_exception.getClass().getName() != _TIMED_OUT:
                raise
            return False
        return True

    def jobs(self) -> tuple[int, ...]:
        """Return the ids of the group's jobs, also of those that have ended, as the books say now."""
        return jvm.numbers(self._context, jvm.status_tracker(self._context).getJobIdsForGroup(self.name))

    def _is_ours(self, manager: JavaObject) -> bool:
        properties = manager.taskSet().properties()
        return properties is not None and properties.getProperty(_GROUP) == self.name


# How often a batch read its ranges: a pipeline with two actions reads Kafka twice.
#
# The number of a group's jobs doesn't tell; what each plan's read of Kafka put out does. Spark keeps that for its UI,
# and has no public way to it; without it nothing is known, which is no reason to fail a batch.

_READ: Final = "BatchScan KafkaTable"
_ROWS: Final = "number of output rows"


def count_scans(spark: SparkSession, jobs: Collection[int], since: int) -> int | None:
    """Return how often the jobs read Kafka, leaving out those that read a few records only (`isEmpty`, `take`).

    A read counts if it put out at least half as many records as the one that put out most.

    Args:
        spark: any session of the application.
        jobs: the batch's.
        since: when the batch began, in milliseconds of the JVM's clock.

    Returns:
        None if no plan is known to have read Kafka: it may have been done through an RDD.
    """
    rows = [count for plan in _plans(spark, jobs, since) for count in _reads(spark, plan) if count]
    return sum(1 for count in rows if 2 * count >= max(rows)) or None


def _plans(spark: SparkSession, jobs: Collection[int], since: int) -> Iterator[JavaObject]:
    store = jvm.status_store(spark)
    total = store.executionsCount()
    for place in range(total - 1, -1, -1):
        page = store.executionsList(place, 1)
        if not page.size():
            # Forgotten in the meantime; those before it are older.
            return
        plan = page.apply(0)
        if plan.submissionTime() < since:
            return
        of_plan = plan.jobs().keySet().mkString(",")
        if any(int(job) in jobs for job in of_plan.split(",") if job):
            yield plan


def _reads(spark: SparkSession, plan: JavaObject) -> Iterator[int]:
    store, plan_id = jvm.status_store(spark), plan.executionId()
    nodes = [node for node in jvm.scala_items(store.planGraph(plan_id).allNodes()) if node.name() == _READ]
    if not nodes:
        return
    values = store.executionMetrics(plan_id)
    for node in nodes:
        for metric in jvm.scala_items(node.metrics()):
            if metric.name() == _ROWS:
                value = values.get(metric.accumulatorId())
                # Written for people: '1,200,000'.
                yield int(value.get().replace(",", "")) if value.isDefined() else 0


CANCELLED: Final = "SPARK_JOB_CANCELLED"

_OUTSIDE_CONDITION: Final = "KAFKA_DATA_LOSS"


class RangeUnreadable(BatchFailed):
    """A range of the batch is not in its log as it is now; read log start and end again before judging."""


class EngineLost(KcrError):
    """Spark's JVM has gone, or its context was stopped; no batch can run in this process any more."""


def failure(error: BaseException, what: str, login: str = "") -> BatchFailed:
    """Return the error of a batch that failed because of `error`, whose words it does not repeat.

    Args:
        error: what the pipeline, or Spark in it, raised.
        what: region, member and batch, for the message.
        login: what to do where Kafka's client got no token or was refused.
    """
    WORDS.error("%s failed", what, exc_info=error)
    line = essential_line(error)
    if _is_outside(error):
        return RangeUnreadable(f"{what} can't read its range: {line}")
    if CANCELLED in conditions(error):
        return BatchFailed(f"{what} was cancelled by someone else, in Spark's UI or by the pipeline itself: {line}")
    return BatchFailed(f"{what} failed: {line}" + (f"; {login}" if login and is_login(error) else ""))


def _is_outside(error: BaseException) -> bool:
    return any(
        throwable.getClass().getName() in OUTSIDE or (condition_of(throwable) or "").startswith(_OUTSIDE_CONDITION)
        for throwable in java_chain(error)
    )
