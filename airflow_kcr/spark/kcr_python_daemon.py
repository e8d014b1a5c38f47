"""Spark's Python daemon on executors, whose workers end with their tasks, and which is ended itself where it is frozen.

A task that is cancelled closes the connection to its Python worker and ends. The worker continues with the records that
it has been sent: for minutes, where the user's function is slow. What it writes then is written after the batch is
over. So this module stands in for `pyspark.daemon` and does the same, but each worker has a thread that ends its
process when the other side has closed the connection.

While sent records wait to be read, the worker's own end of the connection seems open: the other side's state in the
kernel's table of connections decides. If there is no such table, a worker ends when it has read all.

A daemon that is frozen starts no worker, and Spark waits for it without end; so does a task for a frozen worker. Either
would cost a batch its time-out, one batch after another. So a process beside them looks at both and kills what has been
stopped for a while; Spark starts another daemon then, and tries the task again.

It is sent to executors as a single file, where nothing of `airflow_kcr` need be installed; so it imports nothing of it.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, Protocol

from pyspark import daemon

POLL_MILLIS: Final = 200
"""How long a worker can continue after its task."""

LOOK_PERIOD: Final = 1.0
"""Seconds between two looks at whether a process is stopped."""

STOPPED_FOR: Final = 10.0
"""Seconds after which a stopped process is killed."""

_CLOSED: Final = getattr(select, "POLLRDHUP", select.POLLHUP) | select.POLLHUP | select.POLLERR
_TABLES: Final = ("/proc/net/tcp", "/proc/net/tcp6")
_ESTABLISHED: Final = "01"


class WorkerTask(Protocol):
    """What a worker does for each task, in every line of Spark."""

    def __call__(self, sock: socket.socket, authenticated: bool) -> int:
        """Serve a task over a connection, which may have shown its secret already; return the worker's exit code."""


def watched(task: WorkerTask) -> WorkerTask:
    """Return `task`, which is called for each task of a worker, with an eye on the connection while it works."""

    def work(sock: socket.socket, authenticated: bool) -> int:
        done, ended = os.pipe()
        watcher = threading.Thread(target=_watch, args=(sock.fileno(), done), daemon=True, name="kcr-watch")
        watcher.start()
        try:
            return task(sock, authenticated)
        finally:
            os.write(ended, b".")
            watcher.join()
            os.close(done)
            os.close(ended)

    return work


def _watch(connection: int, done: int) -> None:
    """Return when the task is done; end the process as it is when its results are no longer wanted."""
    poll = select.poll()
    poll.register(connection, _CLOSED)
    poll.register(done, select.POLLIN)
    with socket.socket(fileno=os.dup(connection)) as own:
        while True:
            found = poll.poll(POLL_MILLIS)
            if any(which == done for which, _ in found):
                return
            if found or closed_by_peer(own):
                os._exit(1)


def closed_by_peer(own: socket.socket) -> bool:
    """Whether the other side has closed a connection within this machine, even if there is still something to read."""
    if own.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    ends = f"{own.getpeername()[1]:04X}", f"{own.getsockname()[1]:04X}"
    for path in _TABLES:
        try:
            with open(path, encoding="ascii") as table:
                states = [fields[3] for fields in map(str.split, table) if _ports(fields) == ends]
        except OSError:
            continue
        if states:
            return _ESTABLISHED not in states
    return False


def _ports(fields: list[str]) -> tuple[str, str]:
    return fields[1].rpartition(":")[2], fields[2].rpartition(":")[2]


def start_guard() -> None:
    """Start the process that looks at this one and its workers; it ends with this one."""
    guarded = os.getpid()
    if os.fork():
        return
    # The other ends are for Spark and the daemon alone.
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    with suppress(KeyboardInterrupt):
        guard(guarded)
    os._exit(0)


def guard(guarded: int) -> None:
    """Kill a daemon, or a worker of it, that has been stopped for a while; return when the daemon is gone.

    Args:
        guarded: process id of the daemon, the parent of this process.
    """
    stopped: dict[int, float] = {}
    while os.getppid() == guarded:
        time.sleep(LOOK_PERIOD)
        stopped = {
            pid: stopped.get(pid, 0.0) + LOOK_PERIOD for pid in (guarded, *_children(guarded)) if _is_stopped(pid)
        }
        for pid, seconds in stopped.items():
            if seconds >= STOPPED_FOR:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _children(pid: int) -> Iterator[int]:
    with suppress(OSError), open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as listed:
        yield from map(int, listed.read().split())


def _is_stopped(pid: int) -> bool:
    """Whether a process is stopped; not by a debugger, and unknown where the kernel has no such table."""
    with suppress(OSError), open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
        return stat.read().rpartition(")")[2].split()[0] == "T"
    return False


if __name__ == "__main__":
    start_guard()
    daemon.worker = watched(daemon.worker)
    daemon.manager()  # type: ignore[no-untyped-call, unused-ignore]  # has types since Spark 4.1
