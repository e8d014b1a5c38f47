"""Child processes of the embedded services: started, watched until ready, stopped with everything they started.

Each service runs in a session of its own, so a Ctrl-C at the terminal reaches us alone and we decide in which order
services end. It runs until it is stopped, by us or by its recorded process id.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import psutil

from airflow_kcr.errors import ServiceFailed

LOOPBACK: Final = "127.0.0.1"
STOP_WITHIN: Final = 10.0
KILL_WITHIN: Final = 10.0
BURIED_WITHIN: Final = 2.0
SHELL_WITHIN: Final = 10.0
"""Seconds that the small shell which starts a service has for that."""

READY_WITHIN: Final = 60.0
# A process is recognised by its pid and its start; the latter is computed from the machine's boot time, which moves a
# little when the clock is set.
SAME_START: Final = 5.0
LOG_LINES: Final = 20

_DETACH: Final = '"$@" </dev/null 1>&2 & echo $! $$'
"""Starts a service and says its pid and its group's; what it starts is no child of ours, and outlives us."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What a service's main process runs, and how it is asked to end."""

    name: str
    command: Sequence[str]
    log: Path
    """Its output is appended to this file."""

    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ), repr=False)
    user: str | None = None
    ask: signal.Signals = signal.SIGTERM


@dataclass(slots=True)
class ServiceProcess:
    """The main process of a service, recognised by its pid and its start, also by who reads them from a file."""

    pid: int
    group: int
    started: float
    name: str = ""
    log: Path = Path(os.devnull)
    log_begin: int = 0
    """Where in the log this start begins."""

    ask: signal.Signals = signal.SIGTERM

    @property
    def alive(self) -> bool:
        """Whether this very process still runs; another one with its pid doesn't count."""
        try:
            process = psutil.Process(self.pid)
            return abs(process.create_time() - self.started) < SAME_START and _runs(process)
        except psutil.NoSuchProcess:
            return False

    def signal_all(self, number: signal.Signals) -> None:
        """Send a signal to the process and to everything it has started."""
        for one in self._all():
            with suppress(psutil.NoSuchProcess):
                one.send_signal(number)

    def stop(self, *, within: float = STOP_WITHIN) -> None:
        """Ask the process to end, and kill it after `within` seconds; whatever it leaves is killed at once.

        Raises:
            ServiceFailed: if it can't be killed either.
        """
        left = self._all()
        self.signal_all(signal.SIGCONT)  # who is suspended would not hear the other
        if self.alive:
            with suppress(ProcessLookupError):
                os.kill(self.pid, self.ask)
        happened(lambda: not self.alive, within=within)
        self._end(left)  # what it has left, or did not end

    def kill(self) -> None:
        """End the process and everything it has started at once, as a crash would (SIGKILL).

        Raises:
            ServiceFailed: if it can't be killed.
        """
        self._end(self._all())

    def _end(self, processes: list[psutil.Process]) -> None:
        for one in processes:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        if not happened(lambda: not any(_runs(one) for one in processes), within=KILL_WITHIN):
            raise ServiceFailed(f"process {self.pid} did not end, not even when it was killed")
        # Postgres takes the pid of its former server for one that runs, as long as the system has not buried it.
        happened(lambda: not any(one.is_running() for one in processes), within=BURIED_WITHIN)

    def wait_until(self, ready: Callable[[], bool], *, within: float = READY_WITHIN) -> None:
        """Wait until the service is ready.

        Raises:
            ServiceFailed: with the end of its log, if it ended or was not ready in time; it is stopped then.
        """
        reached = happened(lambda: ready() or not self.alive, within=within)
        if reached and self.alive:
            return
        why = "ended" if not self.alive else f"was not ready within {within:g} s"
        self.stop(within=1)
        raise ServiceFailed(f"{self.name} {why}; the end of its log {self.log}:\n{last_lines(self._said())}")

    def has_logged(self, words: str) -> bool:
        """Return whether the words are in the log since this start."""
        return words in self._said()

    def _said(self) -> str:
        with self.log.open("rb") as file:
            file.seek(self.log_begin)
            return file.read().decode(errors="replace")

    def _all(self) -> list[psutil.Process]:
        """The process and what it has started: its descendants, and who else is in its group."""
        found: set[psutil.Process] = set()
        with suppress(psutil.NoSuchProcess):
            if self.alive:
                main = psutil.Process(self.pid)
                found |= {main, *main.children(recursive=True)}
        # A group's number is not reused while a process is in it, and its first process, the shell, is known.
        if self.alive or not psutil.pid_exists(self.group):
            found |= {one for one in psutil.process_iter() if _group_of(one) == self.group}
        return list(found)


Launch: TypeAlias = Callable[[Program], ServiceProcess]
"""How a service is started: `start_detached`, or one that does more."""


@dataclass(slots=True, kw_only=True)
class EmbeddedServer(ABC):
    """A server of one process, with its data in a folder: after a stop or a kill it comes back with them."""

    folder: Path
    port: int
    launch: Launch = field(repr=False)
    child: ServiceProcess | None = field(default=None, repr=False)
    host: str = LOOPBACK
    """The address at which clients reach it."""

    @property
    def pid(self) -> int | None:
        """The pid of its main process, None while there is none."""
        return self.child.pid if self.child is not None and self.child.alive else None

    def start(self) -> None:
        """Start the server with the data it has, and wait until it serves; nothing happens if it runs.

        Raises:
            ServiceFailed: with the end of its log, if it does not start.
        """
        if self.pid is None:
            self._start()

    @abstractmethod
    def _start(self) -> None:
        """Launch the process as `child`, and wait until it serves."""

    def stop(self) -> None:
        """Stop the server in good order."""
        if self.child is not None:
            self.child.stop()


def started(start: Callable[[], None], stop: Callable[[], None]) -> None:
    """Start a server; if it does not start, nothing of it is left running."""
    try:
        start()
    except BaseException:
        stop()
        raise


def run(command: Sequence[str], what: str, *, within: float, env: Mapping[str, str] | None = None) -> None:
    """Run a program to its end.

    Args:
        command: the program and its arguments.
        what: what it is or does, for the message.
        within: seconds that it may take.
        env: its environment; None: this process's.

    Raises:
        ServiceFailed: it failed or took longer; with the end of what it said.
    """
    try:
        ran = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env, check=False, timeout=within
        )
    except subprocess.TimeoutExpired as error:
        raise ServiceFailed(f"{what} was not done within {within:g} s") from error
    if ran.returncode != 0:
        raise ServiceFailed(f"{what} failed:\n{last_lines(ran.stdout + ran.stderr)}")


def start_detached(program: Program) -> ServiceProcess:
    """Start a service that continues after this process, until it is stopped."""
    program.log.parent.mkdir(parents=True, exist_ok=True)
    with program.log.open("ab") as output:
        begin = output.tell()
        try:
            said = subprocess.run(
                ["/bin/sh", "-c", _DETACH, "kcr", *program.command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=output,
                env=dict(program.env),
                text=True,
                user=program.user,
                start_new_session=True,
                check=True,
                timeout=SHELL_WITHIN,
            ).stdout
        except subprocess.SubprocessError as error:
            raise ServiceFailed(f"{program.name} could not be started: {error}") from error
    pid, group = map(int, said.split())
    return ServiceProcess(pid, group, _created(pid), program.name, program.log, begin, program.ask)


def _created(pid: int) -> float:
    try:
        return psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:
        return 0.0  # ended already; its waiter will notice


def _group_of(process: psutil.Process) -> int | None:
    try:
        return os.getpgid(process.pid)
    except ProcessLookupError:
        return None


def _runs(process: psutil.Process) -> bool:
    try:
        # While other threads of a killed process are still ending, it has its files and ports, whatever its status.
        return process.is_running() and (process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1)
    except psutil.NoSuchProcess:
        return False


def last_lines(text: str) -> str:
    """Return the last lines of what a program has said."""
    return "\n".join(text.splitlines()[-LOG_LINES:])


# What is kept in files.


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_text(text, encoding="utf-8")


def remembered(path: Path, make: Callable[[], Mapping[str, object]]) -> dict[str, Any]:
    """Return what a file has, made if there is none; only its owner may read it."""
    if not path.exists():
        write_private(path, json.dumps(make()))
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


# Waiting for a condition, and ports that are free.

PAUSE = 0.02

# Below the ports that systems hand to outgoing connections. A client that reconnects to a stopped server could
# otherwise be given that server's own port, and the server could not come back.
FIRST_PORT = 20_000
PORTS = 10_000

_given: set[int] = set()


def happened(condition: Callable[[], bool], *, within: float, pause: float = PAUSE) -> bool:
    """Wait until the condition holds, at most `within` seconds; return whether it came to hold.

    Args:
        condition: asked again and again.
        within: seconds.
        pause: seconds between two polls, longer where each costs another service something.
    """
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause)
    return True


def together(actions: Sequence[Callable[[], None]]) -> None:
    """Do all at once, and raise what the first of them raised when all are done."""
    with ThreadPoolExecutor(max_workers=max(1, len(actions))) as pool:
        running = [pool.submit(action) for action in actions]
    for one in running:
        one.result()


def free_port() -> int:
    """Return a free port of the loopback address, another one at each call."""
    while (port := FIRST_PORT + random.SystemRandom().randrange(PORTS)) in _given or accepts(port):
        pass
    _given.add(port)
    return port


def accepts(port: int, host: str = LOOPBACK) -> bool:
    """Return whether this port of an address of this machine accepts connections."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((host, port)) == 0
