"""Locks between the processes of one machine: files that one of them holds at a time, and that end with it."""

from __future__ import annotations

import fcntl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

POLL_PERIOD: Final = 0.1
"""Seconds between two tries."""


@contextmanager
def locked(path: Path, *, within: float, late: Callable[[], Exception]) -> Iterator[None]:
    """Hold a lock file, made if it is not there, until the block ends.

    Args:
        path: the file; its folder is made, too.
        within: seconds to wait for another process that holds it.
        late: makes what is raised then.

    Raises:
        OSError: the file can't be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline, pause = time.monotonic() + within, threading.Event()
    with path.open("ab") as lock:
        while not _taken(lock.fileno()):
            if time.monotonic() >= deadline:
                raise late()
            pause.wait(POLL_PERIOD)
        yield


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
