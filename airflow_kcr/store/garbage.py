"""The garbage collector, which waits while a region is read and decided on."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final


class _Waiting:
    """How many threads have the collector wait, and whether it collects once none does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._was_enabled = False

    def begin(self) -> None:
        with self._lock:
            if self._count == 0:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._count += 1

    def end(self) -> None:
        with self._lock:
            self._count -= 1
            if self._count == 0 and self._was_enabled:
                gc.enable()


_WAITING: Final = _Waiting()


@contextmanager
def uncollected() -> Iterator[None]:
    """Have the garbage collector wait while a region is read, decided on and written; not while its lock is.

    That makes some twenty objects for each partition and drops hardly one before its end. A collection in between
    visits every object of the process and finds nothing: at 10,000 partitions that was nearly half of a decision's
    time.
    """
    _WAITING.begin()
    try:
        yield
    finally:
        _WAITING.end()
