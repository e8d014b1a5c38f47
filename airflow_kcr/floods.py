"""Log lines that come again and again while something is away: the first, then one a minute with how many there were.

An outage of a weekend must not fill a disk. What differs by numbers only is one reason: times, ports, tries, members.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

EVERY: Final = 60.0
"""Seconds between two lines of one reason."""

REASONS: Final = 100
"""Of how many reasons it is known when they were told last; there are a few, unless their words never repeat."""

_NUMBERED: Final = re.compile(r"\w*\d\w*")
_PASSING: Final = re.compile(r" \(after # in state .*")
"""What librdkafka adds about one attempt: for how long it lasted, and what else it has not told."""


@dataclass(slots=True)
class _Reason:
    told_at: float
    left_out: int = 0


class FloodFilter(logging.Filter):
    """Lets a reason's first record pass, and then one in a time, which says how many were left out; any thread may log.

    Args:
        every: seconds between two records of one reason.
        clock: monotonic, in seconds.
    """

    def __init__(self, every: float = EVERY, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._every, self._clock = every, clock
        self._lock = threading.Lock()
        self._reasons: dict[str, _Reason] = {}
        """The one that was told last is the last."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is told; one that is says what was not."""
        text = record.getMessage()
        reason = f"{record.levelname} {_PASSING.sub('', _NUMBERED.sub('#', text))}"
        with self._lock:
            now, known = self._clock(), self._reasons.get(reason)
            if known is not None and now - known.told_at < self._every:
                known.left_out += 1
                return False
            self._reasons.pop(reason, None)
            self._reasons[reason] = _Reason(now)
            if len(self._reasons) > REASONS:
                del self._reasons[next(iter(self._reasons))]
        if known is not None and known.left_out:
            left_out = f"{known.left_out:,} more like it in the {now - known.told_at:,.0f} s before are left out"
            record.msg, record.args = f"{text} ({left_out})", ()
        return True


def unflooded(name: str) -> logging.Logger:
    """Return a logger for lines that come again and again.

    Args:
        name: of the logger; its other lines are for another one.
    """
    logger = logging.getLogger(name)
    if not any(isinstance(one, FloodFilter) for one in logger.filters):
        logger.addFilter(FloodFilter())
    return logger
