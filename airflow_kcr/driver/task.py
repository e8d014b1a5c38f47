"""The Airflow task that an application works for, and what else its life hangs on: its region and its JVM.

Where the driver runs in a cluster, the task's process is another host's, and over as soon as the cluster has the
application. Then the store is between them: the task is gone when its last checkpoint is asked for.

A process id may be reused, so the time at which the process started belongs to it. The task's own parent, Airflow's
supervisor, belongs to it too: a task that has lost it is a task no longer, though its process may not notice before it
has something to say.

A kill from Airflow's page ends the task's process group within seconds, and there is no time in it for a drain. So the
application runs in a session of its own, and ends itself: when its task is gone, it begins no further batch, asks the
region for a checkpoint, waits for it within a bound, and ends as SIGTERM would have it. Its work is in a checkpoint
then, and its successor continues there, without a reset. A driver in a cluster has no task on its host; that one's last
checkpoint is asked for by its trigger, and the driver finds the request in the store. When the JVM is gone, nothing can
be drained: it ends at once. Everything else, a lost host or a cluster's own kill, is for the lease.
"""

from __future__ import annotations

import json
import logging
import os
import re
import select
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Final, Self

from airflow_kcr.errors import ConfigurationError, KcrError, OutcomeUnknown, StoreBusy
from airflow_kcr.protocol.commands import RequestCheckpoint
from airflow_kcr.protocol.offsets import EMPTY
from airflow_kcr.protocol.region.rows import CheckpointPurpose, Committed, Requester, RequestState
from airflow_kcr.protocol.region.state import Region, request_of
from airflow_kcr.protocol.values import MemberId, RegionName, RequestId
from airflow_kcr.runtime.member_pool import MemberPool
from airflow_kcr.store.regions import RegionStore

# The task

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
LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(message)s"

KEPT: Final = 50
"""How many lines of Spark's are kept, to be shown where the application fails."""

_LOGGED_LINE: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (DEBUG|INFO|WARNING|ERROR|CRITICAL) (.*)")
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
        if match := _LOGGED_LINE.match(line):
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


# The watchdog

POLL_PERIOD: Final = 0.5
"""Seconds between two reads of the task's process."""

REQUEST_PERIOD: Final = 2.0
"""Seconds between two looks in the store for the last checkpoint of a task that is not on this host."""

LAST_START: Final = 0.3
"""Seconds in which a batch that was planned already begins, after none may be planned any more."""

GRACE: Final = 30.0
"""Seconds after the close time within which the process is over, whatever hangs."""

GATEWAY: Final = "PYSPARK_GATEWAY_PORT"
"""Set where `spark-submit` has started this process: its JVM is the parent, and the other end of standard input."""

_LOG = logging.getLogger(__name__)


class Jvm:
    """The JVM that has started this process; when it goes, standard input ends.

    Args:
        stdin: descriptor of the pipe from it.
    """

    def __init__(self, stdin: int) -> None:
        self._stdin, self._parent = stdin, os.getppid()

    @classmethod
    def of_this_process(cls, environ: Mapping[str, str]) -> Self | None:
        """Return the JVM; None where this process has not been started by one."""
        if not environ.get(GATEWAY):
            return None
        try:
            return cls(sys.stdin.fileno())
        except (AttributeError, OSError, ValueError):  # no standard input at all
            return None

    def is_gone_within(self, seconds: float) -> bool:
        """Wait that long for its end; return whether it is gone."""
        readable, _, _ = select.select([self._stdin], [], [], seconds)
        ended = bool(readable) and not os.read(self._stdin, 4096)
        return ended or os.getppid() != self._parent


class ParentWatchdog:
    """Watches the task and the JVM of this process, and ends its members when one of them is gone.

    Args:
        store: the region's.
        region: the members'.
        task: None: no task; then only the JVM is watched.
        jvm: None: this process has started its own.
        end_process: ends this process at once, with a reason.
    """

    def __init__(
        self,
        store: RegionStore,
        region: RegionName,
        *,
        task: Task | None,
        jvm: Jvm | None,
        end_process: Callable[[str], None],
    ) -> None:
        self._store, self._region, self._task, self._jvm, self._end_process = store, region, task, jvm, end_process
        self._told = threading.Event()
        self._over = threading.Event()
        self._member_pool: MemberPool | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch for as long as the block lasts; if there is nothing to watch, do nothing."""
        watched = [self._watch_task] * (self._task is not None) + [self._watch_jvm] * (self._jvm is not None)
        with self._listening():
            for watch in watched:
                threading.Thread(target=watch, name=watch.__name__.strip("_").replace("_", " "), daemon=True).start()
            try:
                yield
            finally:
                self._over.set()

    def hold(self, member_pool: MemberPool) -> None:
        """Set which members to end; before this call there is nothing to drain, and the process ends at once."""
        self._member_pool = member_pool

    # -- watching ------------------------------------------------------------------------------------------------

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Have SIGUSR1 say that the task is about to go: its `on_kill` knows seconds before its process is over."""
        if self._task is None:
            yield
            return

        def told(number: int, frame: FrameType | None) -> None:
            self._told.set()

        before = signal.signal(signal.SIGUSR1, told)
        try:
            yield
        finally:
            # Not back to the default, by which a late signal would end the process at once.
            signal.signal(signal.SIGUSR1, signal.SIG_IGN if before is signal.SIG_DFL else before)

    def _watch_task(self) -> None:
        task = self._task
        while task is not None and not self._over.is_set():
            period = POLL_PERIOD if task.pid else REQUEST_PERIOD
            if self._told.wait(period) or task.is_gone() or self._is_asked(task):
                self._task_gone(task)
                return

    def _is_asked(self, task: Task) -> bool:
        """Whether the last checkpoint of a task that is not on this host is asked for; its trigger asks by its name.

        Before there are members, nothing is asked here: they would not begin any work in the meantime.
        """
        member_pool = self._member_pool
        if task.pid or member_pool is None:
            return False
        request_id = RequestId(task.request_id)
        try:
            return self._store.read_as(
                self._region, member_pool.members[0], lambda region, now: request_of(region, request_id) is not None
            )
        except KcrError as error:
            _LOG.debug("whether the task is gone could not be read, it is tried again: %s", error)
            return False

    def _watch_jvm(self) -> None:
        jvm = self._jvm
        while jvm is not None and not self._over.is_set():
            if jvm.is_gone_within(POLL_PERIOD):
                member_pool = self._member_pool
                if self._over.is_set() or (member_pool is not None and member_pool.is_ending):
                    return  # Ctrl-C ends both at once, and this process tells the store before it goes
                self._end_process("Spark's JVM is gone")
                return

    # -- the end -------------------------------------------------------------------------------------------------

    def _task_gone(self, task: Task) -> None:
        member_pool = self._member_pool
        if member_pool is None:
            self._end_process("the Airflow task is gone, and nothing was consumed yet")
            return
        if member_pool.is_ending:
            return
        _LOG.warning("the Airflow task (%s) is gone or going: drain within %s, then end", task, task.drain)
        member_pool.hold()
        draining = threading.Thread(target=self._drained, args=(member_pool, task), name="last drain", daemon=True)
        draining.start()
        draining.join(task.drain.total_seconds())
        if draining.is_alive():
            _LOG.warning(
                "the drain is not over within %s; what no checkpoint holds will be processed again", task.drain
            )
        member_pool.terminate()
        if not self._over.wait(member_pool.close_time + GRACE):
            self._end_process("its members did not end")

    def _drained(self, member_pool: MemberPool, task: Task) -> None:
        """Return when what the members have done is in a checkpoint that Kafka has, or when it won't be."""
        self._over.wait(LAST_START)
        try:
            drain(self._store, self._region, frozenset(member_pool.members), task)
        except KcrError as error:
            _LOG.warning("no drain, as the task is gone: %s", error)


def drain(store: RegionStore, name: RegionName, members: frozenset[MemberId], task: Task) -> None:
    """Wait until everything that these members have processed is in a checkpoint, asking for one where it is not.

    They must not begin anything meanwhile.

    Args:
        store: the region's.
        name: the region.
        members: all of this process.
        task: names the request, and says how long to wait.

    Raises:
        KcrError: there will be no checkpoint, or the store is away.
    """
    deadline = monotonic() + task.drain.total_seconds()
    request_id = RequestId(task.request_id or f"task-gone:{task.pid}/{task.started}")
    while (left := deadline - monotonic()) > 0:
        try:
            region, _ = store.read(name)
            if may_go(region, members):
                _LOG.info("everything that was processed is in checkpoint %s", region.restore_point)
                return
            known = request_of(region, request_id)
            if known is not None and known.state is RequestState.ANSWERED and _is_beyond(region, members):
                # The trigger's request was answered before the members were held: what they did since needs another.
                request_id = RequestId(f"{request_id}/held")
                known = request_of(region, request_id)
            if known is None or known.state is RequestState.ABORTED:
                ask(store, name, request_id, Requester(who="airflow", reason="the task is gone"))
            store.wait(name, region.counter, timedelta(seconds=min(left, POLL_PERIOD)))
        except (StoreBusy, OutcomeUnknown):
            continue


def ask(store: RegionStore, name: RegionName, request_id: RequestId, requester: Requester) -> None:
    """Ask for the last checkpoint of a task, or find it asked for.

    It does not wait for a boundary: the successor answers the request for that one.

    Raises:
        RefusedError: the region is halted or stopped, or has no live member.
    """
    if not request_id:
        raise ConfigurationError("a request for a checkpoint needs a request id")
    store.handle(name, RequestCheckpoint(request_id=request_id, purpose=CheckpointPurpose.DRAIN, requester=requester))


def may_go(region: Region, members: frozenset[MemberId]) -> bool:
    """Whether these members may go without anything being processed again: nothing lies beyond the newest checkpoint.

    While a checkpoint is open they stay: to leave would abort it.
    """
    if region.checkpoint is not None or any(batch.member in members for batch in region.running.values()):
        return False
    if _is_beyond(region, members):
        return False
    own = {p: claim for p, claim in region.claims.items() if claim.owner in members}
    restore_point = None if region.restore_point is None else region.checkpoints.get(region.restore_point)
    if restore_point is None or restore_point.committed is not Committed.PENDING:
        return True
    return own.keys() <= region.read_backs.get(restore_point.sequence, EMPTY).keys()


def _is_beyond(region: Region, members: frozenset[MemberId]) -> bool:
    """Whether these members have processed anything since the newest checkpoint."""
    return any(claim.owner in members and claim.position != claim.resume for claim in region.claims.values())
