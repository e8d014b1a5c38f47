"""The garbage collector, which waits while a region is read and decided on."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Have the garbage collector wait while a region is read, decided on and written; not while its lock is.

    That makes some twenty objects for each partition and drops hardly one before its end. A collection in between
    visits every object of the process and finds nothing: at 10,000 partitions that was nearly half of a decision's
    time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        # Where two threads do this at once, the first one's end lets the second be collected again: slower, not wrong.
        if was_enabled:
            gc.enable()
