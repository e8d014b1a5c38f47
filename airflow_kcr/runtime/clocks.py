"""The two clocks of a member: its own, which leases are judged by, and what it knows of the store's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final, TypeAlias

Seconds: TypeAlias = float
Clock: TypeAlias = Callable[[], Seconds]

_BOOT: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_time() -> Seconds:
    """Return monotonic seconds that also count while the machine is suspended, where the system has such a clock.

    A lease ends while a laptop sleeps; a clock that stands still meanwhile would not notice.
    """
    return time.clock_gettime(_BOOT)


class StoreClock:
    """A lower bound of the store's clock, from its last answer.

    Boundaries are judged by the store's clock. It was read before its answer arrived, so what it said plus the time
    since the arrival is never ahead of it: a boundary is noticed late, never early.

    Args:
        clock: the member's own.
        now: what the store just said.
    """

    def __init__(self, clock: Clock, now: datetime) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._told = (now, clock())

    def tell(self, now: datetime) -> None:
        """Note what the store just answered; an older answer than the one known changes nothing."""
        heard = self._clock()
        with self._lock:
            if now > self._at(self._told, heard):
                self._told = (now, heard)

    def now(self) -> datetime:
        """Return a moment that the store's clock has reached."""
        with self._lock:
            return self._at(self._told, self._clock())

    @staticmethod
    def _at(told: tuple[datetime, Seconds], moment: Seconds) -> datetime:
        return told[0] + timedelta(seconds=moment - told[1])
