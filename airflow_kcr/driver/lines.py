"""What a driver writes for the process that started it, and how to tell it from everything that Spark writes beside it.

A driver's output comes mixed with that of its JVM. One line of it is for programs: it begins with `PREFIX` and is JSON,
the `RunningApplication`. The others are for people: log lines, progress, and the sentence with which a command ends.
"""

from __future__ import annotations

import json
import logging
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Final, Self

PREFIX: Final = "kcr-application: "
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
        return PREFIX + json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def read(cls, line: str) -> Self | None:
        """Return the application that a line tells of; None where it tells of none."""
        if not line.startswith(PREFIX):
            return None
        try:
            found = json.loads(line.removeprefix(PREFIX))
            return cls(
                application=str(found["application"]),
                ui=str(found["ui"]),
                host=str(found["host"]),
                pid=int(found["pid"]),
                started=int(found["started"]),
                members={str(member): int(number) for member, number in found["members"].items()},
            )
        except (ValueError, TypeError, KeyError, AttributeError):
            return None

    def label(self) -> str:
        """Return host, process and application, for people; what is not known is left out."""
        known = (self.host, f"process {self.pid}" if self.pid else "", self.application, self.ui)
        return ", ".join(part for part in known if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A line for people."""

    level: int
    """As in `logging`."""

    text: str


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

    def take(self, line: str) -> Shown | None:
        """Return what to show of a line; None: nothing."""
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
        return Shown(level=self._level, text=text)
