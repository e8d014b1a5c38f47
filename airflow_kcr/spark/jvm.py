"""The places at which Spark's own objects are reached behind PySpark's public ones, all in one module.

Spark offers no public way to ask which tasks of a job group still run, nor how often a plan read its source. What is
used for it is there in 4.0 and 4.2; each use says what it becomes without it. Types are those of py4j, which has none.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

JavaObject: TypeAlias = Any
"""An object in the JVM, of which py4j knows no type; never leaves this package's modules that talk to the JVM."""

_LOG = logging.getLogger(__name__)


def launch(conf: SparkConf, errors: int, within: float) -> None:
    """Start the JVM of this process, or use the one that `spark-submit` has started.

    Args:
        conf: what the JVM must know as it starts; ignored if it runs already.
        errors: descriptor of what becomes its standard error.
        within: seconds that it may take.

    Raises:
        TimeoutError: it took longer, and was killed.
    """
    from pyspark import SparkContext

    # SparkContext would do it with all settings at once, and give it the standard error of this process.
    gateway = None if launched() else _started(conf, errors, within)
    SparkContext._ensure_initialized(gateway=gateway, conf=conf)  # noqa: SLF001


def _started(conf: SparkConf, errors: int, within: float) -> JavaObject:
    """Return the gateway to a JVM that is started in a thread: PySpark's launcher waits for a frozen one for ever."""
    from pyspark.java_gateway import launch_gateway

    found: Future[JavaObject] = Future()

    def start() -> None:
        try:
            found.set_result(launch_gateway(conf, {"stderr": errors}))  # type: ignore[no-untyped-call]
        except Exception as error:  # noqa: BLE001 - the caller's to know
            found.set_exception(error)

    starter = threading.Thread(target=start, name="starts Spark's JVM", daemon=True)
    starter.start()
    try:
        return found.result(within)
    except TimeoutError:
        for process in _children(Path(f"/proc/self/task/{starter.native_id}")):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        raise


def _children(thread: Path) -> Iterator[int]:
    """Yield the processes that a thread has started, and those that they have; none where the system doesn't say."""
    with suppress(FileNotFoundError):
        for child in map(int, (thread / "children").read_text().split()):
            yield child
            for one in Path(f"/proc/{child}/task").glob("*"):
                yield from _children(one)


def launched() -> bool:
    """Whether the JVM of this process runs, or `spark-submit` has started one for it."""
    from pyspark import SparkContext

    return SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ  # noqa: SLF001


def connected() -> JavaObject | None:
    """Return py4j's view of the JVM, for a thread that starts none; None as long as this process has none."""
    import sys

    if "pyspark" not in sys.modules:
        return None
    from pyspark import SparkContext

    return SparkContext._jvm  # noqa: SLF001


def own_process() -> int | None:
    """Return the JVM's process id, if this process has started it; None: `spark-submit` has, or nothing yet."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001
    return None if process is None else int(process.pid)


def active_context() -> SparkContext | None:
    """Return the context of this process as it is now; None before it has started, and after its end."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context  # noqa: SLF001
    return None if context is None or getattr(context, "_jsc", None) is None else context


class _SignalHandler:
    """A `sun.misc.SignalHandler` that the JVM finds here."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call

    def handle(self, signal: JavaObject) -> None:
        """Take a signal, in a thread of py4j's."""
        self._call()

    class Java:
        """What py4j reads."""

        implements: ClassVar = ["sun.misc.SignalHandler"]


def take_sigterm(call: Callable[[], object]) -> None:
    """Have SIGTERM to the JVM call this, and not end the JVM: it ends with this process, whose parent it is.

    Args:
        call: returns at once.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.java_gateway import ensure_callback_server_started

    context = active_context()
    if context is None:
        return
    try:
        ensure_callback_server_started(context._gateway)  # type: ignore[no-untyped-call]  # noqa: SLF001
        package = virtual_machine(context).sun.misc
        package.Signal.handle(package.Signal("TERM"), _SignalHandler(call))
    except Py4JError as error:  # as with -Xrs, by which the JVM leaves signals alone
        _LOG.warning("SIGTERM ends Spark's JVM, and its members with it, without a drain: %s", error)


def executors(context: SparkContext) -> int | None:
    """Return how many executors there are now; None where the driver itself is the executor."""
    scala = scala_context(context)
    return None if scala.isLocal() else int(scala.getExecutorMemoryStatus().size()) - 1


def newest_loss(context: SparkContext) -> str:
    """Return why the executor that went last has gone, in Spark's words; empty: none has, or it was not said."""
    books = scala_context(context).statusStore().executorList(False)
    gone = [one for one in scala_items(books) if not one.isActive() and one.removeReason().isDefined()]
    last = max(gone, key=lambda one: int(one.removeTime().get().getTime()), default=None)
    return "" if last is None else str(last.removeReason().get())


# Each question to the JVM costs a batch some 70 µs of Python, and as much again for each object that is let go of: what
# stays the same as long as the context is asked for once.


@lru_cache(maxsize=1)
def scala_context(context: SparkContext) -> JavaObject:
    """Return the `org.apache.spark.SparkContext`."""
    return context._jsc.sc()  # noqa: SLF001


@lru_cache(maxsize=1)
def listener_bus(context: SparkContext) -> JavaObject:
    """Return the `LiveListenerBus`, through which Spark's books of jobs and plans are told."""
    return scala_context(context).listenerBus()


@lru_cache(maxsize=1)
def status_tracker(context: SparkContext) -> JavaObject:
    """Return the `JavaSparkStatusTracker`, which reads the books of jobs."""
    return java_context(context).statusTracker()


@lru_cache(maxsize=1)
def _text_of_array(context: SparkContext) -> JavaObject:
    return virtual_machine(context).java.util.Arrays.toString


def numbers(context: SparkContext, array: JavaObject) -> tuple[int, ...]:
    """Return the items of a Java `int[]`, by one question however many they are."""
    return tuple(json.loads(_text_of_array(context)(array)))


def java_context(context: SparkContext) -> JavaObject:
    """Return the `JavaSparkContext`."""
    return context._jsc  # noqa: SLF001


def virtual_machine(context: SparkContext) -> JavaObject:
    """Return py4j's view of the JVM, through which classes are named."""
    return context._jvm  # noqa: SLF001


def run_task(context: SparkContext) -> None:
    """Run a job of one task that needs neither Python nor a query.

    Raises:
        Py4JJavaError: it failed, or the job group of this thread is cancelled.
    """
    nothing = virtual_machine(context).java.util.Collections.singletonList(0)
    java_context(context).parallelize(nothing, 1).count()


def status_store(spark: SparkSession) -> JavaObject:
    """Return the `SQLAppStatusStore`, which all sessions of an application share."""
    return spark._jsparkSession.sharedState().statusStore()  # noqa: SLF001


def scala_items(sequence: JavaObject) -> Iterator[JavaObject]:
    """Yield the items of a Scala sequence."""
    for index in range(sequence.size()):
        yield sequence.apply(index)


def java_elements(table: JavaObject) -> Iterator[JavaObject]:
    """Yield the values of a `ConcurrentHashMap`, which may change meanwhile."""
    elements = table.elements()
    while elements.hasMoreElements():
        yield elements.nextElement()


def set_property(context: SparkContext, name: str, value: str) -> None:
    """Set a system property of the driver's JVM."""
    virtual_machine(context).java.lang.System.setProperty(name, value)


def has_class(context: SparkContext, name: str) -> bool:
    """Whether the driver can load this Java class."""
    from py4j.protocol import Py4JJavaError

    try:
        virtual_machine(context).java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
    except Py4JJavaError:
        return False
    return True
