"""Whom the demo tells what it does: phases that begin, go on and end, and what they took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol


class Phase(Protocol):
    """One part of the demo, while it goes on."""

    def tell(self, done: float, total: float | None = None, text: str = "") -> None:
        """Say how much of it is done, out of how much where that is known."""
        ...


class Audience(Protocol):
    """Shows phases to somebody."""

    def phase(self, name: str) -> AbstractContextManager[Phase]:
        """Begin a phase; it ends with the block."""
        ...


@dataclass(slots=True)
class Timed:
    """An audience that hands everything on, and writes down how many seconds each phase took."""

    audience: Audience
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[Phase]:
        """Begin a phase; it ends with the block."""
        begun = time.monotonic()
        try:
            with self.audience.phase(name) as phase:
                yield phase
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - begun
