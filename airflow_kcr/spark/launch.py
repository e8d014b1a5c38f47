"""Starting Spark's JVM: alone where jars have to be fetched, and with its own words where it does not start."""

from __future__ import annotations

import os
import re
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from airflow_kcr.errors import KcrError, ServiceFailed
from airflow_kcr.spark import jvm
from airflow_kcr.spark.fetching import PACKAGES, fetched_alone
from airflow_kcr.spark.installation import require_java

if TYPE_CHECKING:
    from pyspark import SparkConf

_KEPT: Final = 200
"""Lines of the JVM that are kept while it starts."""

_SHOWN: Final = 3
_TELLING: Final = re.compile(
    r"^(?:Exception in thread|Error\b|Unrecognized|Invalid|.*[a-z]Error:|.*unresolved dependency)"
)
_STANDARD_ERROR: Final = 2
_ENDS_WITHIN: Final = 5.0
"""Seconds in which the last words of a JVM that has ended are read."""


def launch(conf: SparkConf) -> None:
    """Start the JVM of this process, or use the one that runs; jars that are missing are fetched by one at a time.

    Args:
        conf: what the JVM must know as it starts.

    Raises:
        ToolMissing: there is no Java.
        ConfigurationError: JAVA_HOME leads nowhere, or jars can't be stored where they are fetched to.
        ServiceFailed: the JVM ended as it started; the message has its own words.
    """
    from pyspark.errors import PySparkRuntimeError

    if jvm.launched():
        jvm.launch(conf, _STANDARD_ERROR)
        return
    settings = dict(conf.getAll())
    with fetched_alone(settings):
        overheard = _Overheard()
        try:
            jvm.launch(conf, overheard.end)
        except (PySparkRuntimeError, OSError) as error:
            overheard.close()
            raise _failure(settings, overheard.last()) from error
        overheard.close()


class _Overheard:
    """What the JVM writes to its standard error: passed on to this process's, its last lines kept."""

    def __init__(self) -> None:
        self._read, self.end = os.pipe()
        self._lines: deque[str] = deque(maxlen=_KEPT)
        self._thread = threading.Thread(target=self._pass_on, name="Spark's standard error", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Let go of this process's end, so that the JVM's end is the last."""
        os.close(self.end)

    def last(self) -> tuple[str, ...]:
        """Return the last lines of a JVM that has ended."""
        self._thread.join(_ENDS_WITHIN)
        return tuple(self._lines)

    def _pass_on(self) -> None:
        with open(self._read, "rb", buffering=0) as source:
            rest = b""
            while chunk := source.read(65536):
                with suppress(OSError):  # nobody listens; the JVM must be able to write all the same
                    os.write(_STANDARD_ERROR, chunk)
                *lines, rest = (rest + chunk).split(b"\n")
                self._lines.extend(line.decode(errors="replace") for line in lines)
                rest = rest[-4096:]
            self._lines.append(rest.decode(errors="replace"))


def _failure(conf: Mapping[str, str], lines: tuple[str, ...]) -> KcrError:
    try:
        require_java(os.environ)
    except KcrError as missing:
        return missing
    told = f"Spark's JVM did not start: {_reason(lines)}"
    if conf.get(PACKAGES):
        told += (
            f"\nIt fetches {conf[PACKAGES]}: check that a Maven repository can be reached from here, or name the jars "
            "themselves (--jars)"
        )
    return ServiceFailed(told)


def _reason(lines: tuple[str, ...]) -> str:
    """Return the line that says most; else the last ones."""
    said = [line.strip() for line in lines if line.strip()]
    telling = next((line for line in said if _TELLING.match(line)), "")
    return telling or "\n".join(said[-_SHOWN:]) or "it said nothing"
