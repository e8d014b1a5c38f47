"""The Airflow task that an application works for, as its driver knows it: by what stands in its environment.

Where the driver runs in a cluster, the task's process is another host's, and over as soon as the cluster has the
application. Then the store is between them: the task is gone when its last checkpoint is asked for.

A process id may be reused, so the time at which the process started belongs to it. The task's own parent, Airflow's
supervisor, belongs to it too: a task that has lost it is a task no longer, though its process may not notice before it
has something to say.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final, Self, TextIO

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol import documents

PID: Final = "KCR_TASK_PID"
STARTED: Final = "KCR_TASK_STARTED"
PARENT: Final = "KCR_TASK_PARENT"
REQUEST_ID: Final = "KCR_TASK_REQUEST_ID"
DRAIN: Final = "KCR_TASK_GONE_DRAIN"

DRAIN_WITHIN: Final = timedelta(seconds=30)
"""How long an application whose task is gone may take to drain, by default."""

_UNKNOWN: Final = 0
_DEAD: Final = frozenset("ZXx")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessState:
    """What the system says of a process."""

    started: int
    """Clock ticks from the system's start to its own; 0: not known here."""

    parent: int
    """Process id; 0: not known here."""


def process_state(pid: int) -> ProcessState | None:
    """Return what the system says of a process; None: there is none of that id, or it is over and not yet buried."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None if Path("/proc/self/stat").exists() else _state_without_proc(pid)
    # The program's name stands in brackets, and may hold spaces and brackets of its own.
    fields = text[text.rindex(")") + 1 :].split()
    if fields[0] in _DEAD:
        return None
    return ProcessState(started=int(fields[19]), parent=int(fields[1]))


def _state_without_proc(pid: int) -> ProcessState | None:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return ProcessState(started=_UNKNOWN, parent=_UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One try of a task: its process, on the host of the driver; or only the name of its last checkpoint."""

    pid: int = _UNKNOWN
    """0: it has no process on this host."""

    started: int = _UNKNOWN
    parent: int = _UNKNOWN
    request_id: str = ""
    """Names the checkpoint that is requested when the task goes, by whichever process requests it first."""

    drain: timedelta = DRAIN_WITHIN
    """How long the application may take to drain once the task is gone."""

    @classmethod
    def of_this_process(cls, request_id: str, drain: timedelta = DRAIN_WITHIN) -> Self:
        """Return this process as a task.

        Args:
            request_id: names this try's checkpoint.
            drain: how long its application may drain when it is gone.
        """
        state = process_state(os.getpid())
        started = _UNKNOWN if state is None else state.started
        return cls(pid=os.getpid(), started=started, parent=os.getppid(), request_id=request_id, drain=drain)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Self | None:
        """Return the task of an application; None if none has started it.

        Raises:
            ConfigurationError: a variable is not what a task writes.
        """
        if not environ.get(PID):
            return None
        try:
            return cls(
                pid=int(environ[PID]),
                started=int(environ.get(STARTED, _UNKNOWN)),
                parent=int(environ.get(PARENT, _UNKNOWN)),
                request_id=environ.get(REQUEST_ID, ""),
                drain=timedelta(seconds=float(environ.get(DRAIN, DRAIN_WITHIN.total_seconds()))),
            )
        except (ValueError, OverflowError) as error:
            names = f"{PID}, {STARTED}, {PARENT} and {DRAIN}"
            raise ConfigurationError(f"{names} are numbers, set by the task; unset them elsewhere: {error}") from error

    def __str__(self) -> str:
        return f"process {self.pid}" if self.pid else self.request_id

    def environment(self) -> dict[str, str]:
        """Return the variables that tell an application about its task."""
        return {
            PID: str(self.pid),
            STARTED: str(self.started),
            PARENT: str(self.parent),
            REQUEST_ID: self.request_id,
            DRAIN: f"{self.drain.total_seconds():g}",
        }

    def is_gone(self) -> bool:
        """Whether the process is over, is another one by now, or has lost its parent; False: it is not on this host."""
        if not self.pid:
            return False
        state = process_state(self.pid)
        if state is None:
            return True
        is_other = _UNKNOWN not in (self.started, state.started) and self.started != state.started
        is_orphan = _UNKNOWN not in (self.parent, state.parent) and self.parent != state.parent
        return is_other or is_orphan


# -- what the driver writes for it ---------------------------------------------------------------------------------
#
# A driver's output comes mixed with that of its JVM. One line of it is for programs: it begins with `PREFIX` and is
# JSON, the `RunningApplication`. The others are for people: log lines, progress, and the sentence with which a
# command ends.

PREFIX: Final = "kcr-application: "
_COMPARED: Final = "kcr-compared: "
LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(message)s"

KEPT: Final = 50
"""How many lines of Spark's are kept, to be shown where the application fails."""

_LOG: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (DEBUG|INFO|WARNING|ERROR|CRITICAL) (.*)")
_PROGRESS: Final = re.compile(r"region [^\s:]+: ")
_VERDICT: Final = "kcr: "
_SPARKS: Final = re.compile(
    r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d |Setting default log level|To adjust logging level|Using Spark's |WARNING: "
    r"|Picked up |:: |\s+at \S+\(|\tat |Caused by: |Exception in thread "
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningApplication:
    """A running application and the members that it hosts."""

    application: str
    """Spark's id."""

    ui: str = ""
    """Address of Spark's page; empty if it is off."""

    host: str = ""
    pid: int = 0
    started: int = 0
    """Of the driver's process, see `task.ProcessState`."""

    members: Mapping[str, int] = field(default_factory=dict)
    """The incarnation of each member; empty before they are registered."""

    def line(self) -> str:
        """Return the application as a line of output."""
        return PREFIX + json.dumps(documents.write(self, RunningApplication), sort_keys=True)

    @classmethod
    def read(cls, line: str) -> Self | None:
        """Return the application that a line tells of; None where it tells of none."""
        if not line.startswith(PREFIX):
            return None
        try:
            return documents.read(json.loads(line.removeprefix(PREFIX)), cls)
        except (ValueError, RecursionError):
            return None

    def label(self) -> str:
        """Return host, process and application, for people; what is not known is left out."""
        known = (self.host, f"process {self.pid}" if self.pid else "", self.application, self.ui)
        return ", ".join(part for part in known if part)


def tell(listener: TextIO, line: str) -> None:
    """Write a line for programs, at once."""
    listener.write(f"{line}\n")
    listener.flush()


def compared_line(comparisons: Sequence[Mapping[str, object]]) -> str:
    """Return comparisons of output as a line of output."""
    return _COMPARED + json.dumps(comparisons, sort_keys=True)


def compared_in(line: str) -> list[dict[str, object]] | None:
    """Return the comparisons that a line tells of; None where it tells of none."""
    if not line.startswith(_COMPARED):
        return None
    try:
        found: list[dict[str, object]] = json.loads(line.removeprefix(_COMPARED))
    except ValueError:
        return None
    return found


class Sieve:
    """Takes an application's output line by line, and says what of it is for people.

    A line that begins nothing belongs to the one before: a traceback is shown or hidden with what it explains.
    """

    def __init__(self) -> None:
        self._level: int | None = None
        self.hidden: deque[str] = deque(maxlen=KEPT)
        """The last lines that were not shown."""

        self.verdict = ""
        """What the application said when it ended; empty where it said nothing."""

    def take(self, line: str) -> tuple[int, str] | None:
        """Return what to show of a line, with its level as in `logging`; None: nothing."""
        line = line.rstrip()
        text = line
        if match := _LOG.match(line):
            self._level, text = logging.getLevelNamesMapping()[match[1]], match[2]
        elif _PROGRESS.match(line):
            self._level = logging.INFO
        elif line.startswith(_VERDICT):
            self._level = logging.ERROR
            self.verdict = line.removeprefix(_VERDICT)
        elif _SPARKS.match(line):
            self._level = None
        if self._level is None or not line:
            self.hidden.append(line)
            return None
        return self._level, text
