"""The embedded services as tests start them: they end with this process at the latest, however it ends.

A small shell beside each waits on a pipe that only our death closes, then kills the service's group. (The kernel's
parent-death signal would not do: it fires when the *thread* ends that started the child.)
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Self

from airflow_kcr.embedded import airflow, servers
from airflow_kcr.embedded.processes import STOP_WITHIN, EmbeddedServer, Program, ServiceProcess, start_detached

_GUARD = 'read -r _; kill -KILL "-$1"'


@dataclass(slots=True)
class TiedProcess(ServiceProcess):
    """A service's process with its guard."""

    guard: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def stop(self, *, within: float = STOP_WITHIN) -> None:
        try:
            ServiceProcess.stop(self, within=within)
        finally:
            self._release()

    def kill(self) -> None:
        try:
            ServiceProcess.kill(self)
        finally:
            self._release()

    def _release(self) -> None:
        if self.guard is not None:
            self.guard.kill()
            self.guard.communicate()
            self.guard = None


def start_tied(program: Program) -> ServiceProcess:
    """Start a service that ends with this process at the latest."""
    child = start_detached(program)
    guard = subprocess.Popen(
        ["/bin/sh", "-c", _GUARD, "kcr", str(child.group)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    return TiedProcess(**asdict(child), guard=guard)


class Breakable(EmbeddedServer):
    """A server that tests stop, kill and suspend; it stops with its context."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def kill(self) -> None:
        """End the server as a crash would (SIGKILL)."""
        if self.child is not None:
            self.child.kill()

    def restart(self) -> None:
        """Stop the server in good order, if it runs, and start it with the same data."""
        self.stop()
        self.start()

    def suspend(self) -> None:
        """Hold its processes (SIGSTOP): connections stay, but nothing is answered."""
        if self.child is not None:
            self.child.signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume a suspended server (SIGCONT)."""
        if self.child is not None:
            self.child.signal_all(signal.SIGCONT)


class Postgres(Breakable, servers.Postgres):
    """One server of Postgres."""


def start_postgres(folder: Path, *, settings: Mapping[str, str] = servers.UNSAFE_BUT_FAST) -> Postgres:
    """Start a new server, or that of the folder again, with the data and the port it had."""
    made = servers.start_postgres(folder, launch=start_tied, settings=settings)
    return Postgres(folder=folder, port=made.port, settings=settings, launch=start_tied, child=made.child)


start_airflow = partial(airflow.start_airflow, launch=start_tied)


@contextmanager
def standalone(folder: Path, *, workers: int = 2, memory: str = "600m") -> Iterator[servers.StandaloneCluster]:
    """Lend a standalone cluster of Spark; see `servers.start_standalone`."""
    cluster = servers.start_standalone(folder, workers=workers, memory=memory, launch=start_tied)
    try:
        yield cluster
    finally:
        cluster.stop()
