"""The Spark jobs of one batch as one: begun under a name, cancelled from anywhere, and known to have ended.

Spark answers a cancellation before the tasks have ended: on a cluster the executors are only told. A batch is over when
the scheduler has no task of the group any more, and that is what `is_quiesced` asks the scheduler itself for. A task
leaves its books when its executor reports the end, or when the executor is gone; so an executor that is cut off from
the driver is taken for gone, as everywhere in Spark, and what it still writes is for the sinks' fences.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from airflow_kcr.spark import jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_kcr.spark.jvm import JavaObject

_GROUP: Final = "spark.jobGroup.id"
_DESCRIPTION: Final = "spark.job.description"
_INTERRUPT: Final = "spark.job.interruptOnCancel"
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
        self.name = name

    def enter(self, description: str, pool: str) -> None:
        """Let all jobs that this thread starts belong to the group, until `leave`.

        Args:
            description: what Spark's UI shows for each of them.
            pool: the scheduler's pool; made where it doesn't exist.
        """
        self._context.setLocalProperty(_POOL, pool)
        self._context.setJobGroup(self.name, description, interruptOnCancel=True)

    def leave(self) -> None:
        """Let this thread's jobs belong to nobody again."""
        for name in (_GROUP, _DESCRIPTION, _INTERRUPT, _POOL):
            self._context.setLocalProperty(name, None)  # type: ignore[arg-type]  # None removes it

    def cancel(self) -> None:
        """Cancel the group's jobs, and those that it may still start; from any thread, returns at once."""
        jvm.scala_context(self._context).cancelJobGroupAndFutureJobs(self.name)

    def settle(self) -> None:
        """Return when a cancellation asked for before has reached every job; call it in the thread that entered.

        The scheduler handles what it is asked for in order, so a job that is sent after the cancellation is answered
        after it.
        """
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

        machine, context = jvm.virtual_machine(self._context), jvm.java_context(self._context)
        try:
            context.parallelize(machine.java.util.Collections.singletonList(0), 1).count()
        except Py4JJavaError:
            # Refused, as it should be: the group is cancelled. A thread that was interrupted raises, too.
            return

    def is_quiesced(self) -> bool:
        """Whether no task of the group runs, or waits to run."""
        return self.tasks() == 0

    def tasks(self) -> int:
        """Return how many tasks of the group run, counting a set of tasks that waits as one."""
        scheduler = jvm.scala_context(self._context).taskScheduler()
        if scheduler is None:
            return 0
        # Tasks first: one that starts in between is in a set that is looked at afterwards.
        running = sum(map(self._is_ours, jvm.java_elements(scheduler.taskIdToTaskSetManager())))
        waiting = sum(map(self._is_ours, jvm.scala_items(scheduler.rootPool().getSortedTaskSetQueue())))
        return running or waiting

    def running(self, jobs: Iterable[int]) -> int:
        """Return how many of these jobs have begun and not ended, as the books say now."""
        tracker = self._context.statusTracker()
        return sum(1 for info in map(tracker.getJobInfo, jobs) if info is not None and info.status == "RUNNING")

    def is_told(self) -> bool:
        """Whether all that happened so far is in Spark's books of jobs and plans, which are kept in the background."""
        from py4j.protocol import Py4JJavaError

        try:
            jvm.scala_context(self._context).listenerBus().waitUntilEmpty(_BUS_MILLIS)
        except Py4JJavaError as error:
            if error.java_exception.getClass().getName() != _TIMED_OUT:
                raise
            return False
        return True

    def jobs(self) -> tuple[int, ...]:
        """Return the ids of the group's jobs, also of those that have ended, as the books say now."""
        return tuple(self._context.statusTracker().getJobIdsForGroup(self.name))

    def _is_ours(self, manager: JavaObject) -> bool:
        properties = manager.taskSet().properties()
        return properties is not None and properties.getProperty(_GROUP) == self.name
