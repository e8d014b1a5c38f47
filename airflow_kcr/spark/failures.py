"""What went wrong in a batch, in one line for the reader, and of which kind it is.

Kinds are distinguished by classes and error conditions, never by text: a user's message may contain any word. The line
is the innermost cause, since everything around it says only that a job, a stage and a task were aborted.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from airflow_kcr.errors import BatchFailed, KcrError

if TYPE_CHECKING:
    from airflow_kcr.spark.jvm import JavaObject

CANCELLED: Final = "SPARK_JOB_CANCELLED"

_OUTSIDE: Final = frozenset(
    {
        "org.apache.spark.sql.kafka010.KafkaIllegalStateException",
        "org.apache.kafka.clients.consumer.OffsetOutOfRangeException",
        "org.apache.kafka.common.errors.OffsetOutOfRangeException",
        "org.apache.kafka.common.errors.UnknownTopicOrPartitionException",
        "org.apache.kafka.common.errors.UnknownTopicIdException",
    }
)
"""Raised where a range is not, or not yet, in its log."""

_OUTSIDE_CONDITION: Final = "KAFKA_DATA_LOSS"

_LONGEST: Final = 500
_DEEPEST: Final = 50
_PYTHON_TASK: Final = "org.apache.spark.api.python.PythonException"


class RangeUnreadable(BatchFailed):
    """A range of the batch is not in its log as it is now; read log start and end again before judging."""


class EngineLost(KcrError):
    """Spark's JVM has gone, or its context was stopped; no batch can run in this process any more."""


def failure(error: BaseException, what: str) -> BatchFailed:
    """Return the error of a batch that failed because of `error`, which is to be its cause.

    Args:
        error: what the pipeline, or Spark in it, raised.
        what: region, member and batch, for the message.
    """
    line = essential_line(error)
    if _is_outside(error):
        return RangeUnreadable(f"{what} can't read its range: {line}")
    if CANCELLED in conditions(error):
        return BatchFailed(f"{what} was cancelled by someone else, in Spark's UI or by the pipeline itself: {line}")
    return BatchFailed(f"{what} failed: {line}")


def essential_line(error: BaseException) -> str:
    """Return what a reader needs first: kind and message of the innermost cause, and the line of the user's code."""
    if isinstance(error, SystemExit):
        return f"the pipeline ended its process (SystemExit: {error.code}); it must return"
    told = _python_of_task(error)
    if told:
        return _shortened(_last_line(told))
    thrown = tuple(_java_chain(error))
    if not thrown:
        return _shortened(f"{type(error).__name__}: {_first_line(str(error))}{_place(error)}")
    innermost = thrown[-1]
    name, message = innermost.getClass().getName(), str(innermost.getMessage() or "")
    if name == _PYTHON_TASK:
        # Its message is the worker's traceback, whose last line is the user's error.
        return _shortened(_last_line(message))
    return _shortened(f"{name.rpartition('.')[2]}: {_first_line(message)}")


def conditions(error: BaseException) -> frozenset[str]:
    """Return the error conditions of Spark in the chain of causes."""
    found = (_condition(throwable) for throwable in _java_chain(error))
    return frozenset(condition for condition in found if condition)


def _is_outside(error: BaseException) -> bool:
    return any(
        throwable.getClass().getName() in _OUTSIDE or (_condition(throwable) or "").startswith(_OUTSIDE_CONDITION)
        for throwable in _java_chain(error)
    )


def _java_chain(error: BaseException) -> Iterator[JavaObject]:
    """Yield the Java throwables behind a Python error, outermost first; also behind an error raised from one."""
    for link in _python_chain(error):
        throwable = getattr(link, "java_exception", None) or getattr(link, "_origin", None)
        if throwable is not None:
            for _ in range(_DEEPEST):
                yield throwable
                throwable = throwable.getCause()
                if throwable is None:
                    return
            return


def _python_of_task(error: BaseException) -> str:
    """Return what a Python worker said, where PySpark has made an error of its own of it; it drops Java's then."""
    from pyspark.errors import PythonException

    return next(
        (str(getattr(link, "_desc", "")) for link in _python_chain(error) if isinstance(link, PythonException)), ""
    )


def _python_chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    for _ in range(_DEEPEST):
        if link is None:
            return
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _condition(throwable: JavaObject) -> str | None:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    try:
        condition = throwable.getCondition()
    except Py4JError:
        # Not one of Spark's throwables.
        return None
    return None if condition is None else str(condition)


def _place(error: BaseException) -> str:
    """Return where in the user's code it arose: the last frame that is not of a library."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "site-packages" not in frame.filename and not frame.filename.endswith(("spark/engine.py", "<string>"))
    ]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "no message")


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no message")


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"
