"""The clock, the queue of what happens next, and the one source of chance."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from random import Random

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(order=True, slots=True)
class _Due:
    at: float
    chance: float
    order: int
    action: Callable[[], None] = field(compare=False)


class World:
    """Virtual time and seeded chance.

    Actions due at the same moment run in an order that the seed decides.

    Args:
        seed: everything random follows from it.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.now = 0.0
        self.steps = 0
        self.skew = 0.0
        """By how much the store's clock is ahead; a database that failed over has another one."""

        self._queue: list[_Due] = []
        self._order = count()

    def clock(self) -> datetime:
        """The store's clock."""
        return EPOCH + timedelta(seconds=self.now + self.skew)

    def after(self, delay: float, action: Callable[[], None]) -> None:
        """Let something happen `delay` seconds from now."""
        heapq.heappush(self._queue, _Due(self.now + delay, self.random.random(), next(self._order), action))

    def soon(self, action: Callable[[], None], most: float = 0.05) -> None:
        """Let something happen within `most` seconds."""
        self.after(self.random.uniform(0.001, most), action)

    def run_until(self, end: float) -> None:
        """Let everything happen that is due before `end`."""
        while self._queue and self._queue[0].at <= end:
            due = heapq.heappop(self._queue)
            self.now = due.at
            self.steps += 1
            due.action()
        self.now = end

    def chance(self, probability: float) -> bool:
        """Whether something of this probability happens."""
        return self.random.random() < probability
