"""What is told of an error that a pipeline raised, or Spark in it: its kind and place, never its words.

A message can quote a record: Spark's casts, Postgres, a driver and a pipeline's own code all do. Events, pages and logs
are read by more people than records are, and kept longer. So the words stay behind; what passes is the type of the
error, Spark's condition or the SQLSTATE, and the line of the pipeline's code. Words pass that are known to be of this
package, or of Kafka's client about offsets.

Who wants the words sets the level of the logger `airflow_kcr.pipeline_errors`, by that name: it is silent otherwise.
"""

from __future__ import annotations

import logging
import os
import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from airflow_kcr.errors import KcrError

if TYPE_CHECKING:
    from airflow_kcr.spark.jvm import JavaObject

WORDS: Final = logging.getLogger("airflow_kcr.pipeline_errors")
"""Gets each error of a pipeline with all its words, at level ERROR."""

if WORDS.level == logging.NOTSET:
    WORDS.setLevel(logging.CRITICAL)

OWN: Final = "kcr: "
"""Begins what this package has Spark raise; it names places, never values."""

OUTSIDE: Final = frozenset(
    {
        "org.apache.spark.sql.kafka010.KafkaIllegalStateException",
        "org.apache.kafka.clients.consumer.OffsetOutOfRangeException",
        "org.apache.kafka.common.errors.OffsetOutOfRangeException",
        "org.apache.kafka.common.errors.UnknownTopicOrPartitionException",
        "org.apache.kafka.common.errors.UnknownTopicIdException",
    }
)
"""Raised where a range is not, or not yet, in its log."""

_OF_KAFKA: Final = re.compile(
    r"org\.apache\.(spark\.sql\.kafka010\..*|kafka\.common\.errors\.\w*(Timeout|Authentication|Authorization)Exception)"
)
"""Their words are about brokers, topics and offsets."""

_LOGIN: Final = "javax.security.auth.login.LoginException"
"""Its words are Kafka's client's, or the token endpoint's: they say why an executor is not let in."""

_WRAPPED: Final = re.compile(r"^(?:[\w.$]+(?:Exception|Error): )+")

_HARMLESS: Final = re.compile(
    r"ExecutorLostFailure \(.*?\)(?: Reason: [^\n]*)?|No space left on device|Task not serializable|"
    r"Total size of serialized results of \d+ tasks \([\w .]+\) is bigger than [\w.]+ \([\w .]+\)"
)
"""Words of Spark and of the system that are about neither code nor data."""

_UNKNOWN_COLUMN: Final = "UNRESOLVED_COLUMN"
_RAISED: Final = "USER_RAISED_EXCEPTION"
_PYTHON_TASK: Final = "org.apache.spark.api.python.PythonException"
_POSTGRES: Final = "org.postgresql.util.PSQLException"
_LONGEST: Final = 500
_DEEPEST: Final = 50

_FRAME: Final = re.compile(r'  File "(?P<file>.+)", line (?P<line>\d+), in ')
_KIND: Final = re.compile(r"(?P<kind>[A-Za-z_][\w.]*)(:|$)")
_PACKAGE: Final = str(Path(__file__).parents[1]) + os.sep


def essential_line(error: BaseException) -> str:
    """Return what a reader needs first: kind and condition of the innermost cause, and the line of the user's code."""
    if isinstance(error, SystemExit):
        return f"the pipeline ended its process (SystemExit{_place(error)}); it must return"
    own = next((link for link in _python_chain(error) if isinstance(link, KcrError)), None)
    if own is not None:
        return _shortened(f"{type(own).__name__}: {own}{_place(error)}")
    if said := _python_of_task(error):
        return _shortened(_of_traceback(said))
    thrown = tuple(java_chain(error))
    if not thrown:
        of_system = f": {os.strerror(error.errno)}" if isinstance(error, OSError) and error.errno else ""
        return _shortened(f"{type(error).__name__}{of_system}{_place(error)}")
    innermost = thrown[-1]
    if innermost.getClass().getName() == _PYTHON_TASK:
        return _shortened(_of_traceback(str(innermost.getMessage() or "")))
    return _shortened(f"{_of_java(innermost)}{_place(error)}")


def conditions(error: BaseException) -> frozenset[str]:
    """Return the error conditions of Spark in the chain of causes."""
    found = (condition_of(throwable) for throwable in java_chain(error))
    return frozenset(condition for condition in found if condition)


def java_chain(error: BaseException) -> Iterator[JavaObject]:
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


def is_login(error: BaseException) -> bool:
    """Whether Kafka's client in Spark had no login, or brokers didn't let it in."""
    names = (str(throwable.getClass().getName()) for throwable in java_chain(error))
    return any(name == _LOGIN or name.endswith(".SaslAuthenticationException") for name in names)


def of_postgres(error: BaseException) -> JavaObject | None:
    """Return what the JDBC driver of Postgres threw, if that is behind an error."""
    return next((one for one in java_chain(error) if one.getClass().getName() == _POSTGRES), None)


def condition_of(throwable: JavaObject) -> str | None:
    """Return Spark's error condition; None: it is not one of Spark's throwables."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    try:
        condition = throwable.getCondition()
    except Py4JError:
        return None
    return None if condition is None else str(condition)


def _of_java(throwable: JavaObject) -> str:
    name, message = str(throwable.getClass().getName()), str(throwable.getMessage() or "")
    kind, condition = name.rpartition(".")[2], condition_of(throwable)
    if name in OUTSIDE or _OF_KAFKA.fullmatch(name):
        return f"{kind}: {_first_line(message)}"
    if name == _LOGIN:
        return f"{kind}: {_WRAPPED.sub('', _first_line(message))}"
    if condition == _RAISED and (own := message.partition(f"[{_RAISED}] {OWN}")[2]):
        return _first_line(own)
    if condition is not None:
        column = f" {throwable.getMessageParameters().get('objectName')}" if _UNKNOWN_COLUMN in condition else ""
        return f"{kind}: {condition}{column}"
    if harmless := _HARMLESS.search(message):
        return f"{kind}: {harmless[0]}"
    return f"{kind}{_state(throwable)}"


def _state(throwable: JavaObject) -> str:
    from py4j.protocol import Py4JError

    try:
        state = throwable.getSQLState()
    except Py4JError:
        return ""
    return f": SQLSTATE {state}" if state else ""


def _of_traceback(text: str) -> str:
    """Return kind and place of the first error in a worker's traceback, which is the cause of those after it.

    What stands before its message is Python's own; after that, anything may be a record's.
    """
    lines = iter(text.splitlines())
    places: list[str] = []
    for line in lines:
        if line.endswith("Traceback (most recent call last):"):
            break
    for line in lines:
        if frame := _FRAME.match(line):
            if _is_users(frame["file"]):
                places.append(f" ({frame['file']}, line {frame['line']})")
        elif not line.startswith("  "):
            kind = _KIND.match(line)
            return f"{kind['kind'] if kind else 'an error'}{places[-1] if places else ''}"
    return "an error in a Python worker"


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


def _place(error: BaseException) -> str:
    """Return where in the user's code it arose: the last frame that is of no library."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""


def _is_users(file: str) -> bool:
    of_library = ("site-packages" in file) or ("pyspark" in Path(file).parts) or "pyspark.zip" in file
    return not (of_library or file.startswith((_PACKAGE, "<")))


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "no message")


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"
