"""Complaints of the client, which come by the thousand while a broker is away: each kind is told now and then."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

EVERY: Final = timedelta(seconds=5)


@dataclass(slots=True)
class _Kind:
    told_at: float
    untold: int = 0
    text: str = ""


class Complaints:
    """Counts complaints of the same kind and tells the newest of them, the first one at once.

    Args:
        every: how long one kind is silent after it was told.
    """

    def __init__(self, every: timedelta = EVERY) -> None:
        self._every = every.total_seconds()
        self._kinds: dict[str, _Kind] = {}

    def heard(self, kind: str, text: str, now: float) -> str | None:
        """Note a complaint.

        Args:
            kind: complaints of one kind are the same complaint, however their texts differ.
            text: for the reader.
            now: monotonic seconds.

        Returns:
            What is to be told now; None: it was counted.
        """
        known = self._kinds.get(kind)
        if known is None or (now - known.told_at >= self._every and not known.untold):
            self._kinds[kind] = _Kind(told_at=now)
            return text
        known.untold += 1
        known.text = text
        return None

    def due(self, now: float) -> tuple[str, ...]:
        """Return what was counted and is to be told now."""
        told: list[str] = []
        for kind in self._kinds.values():
            if kind.untold and now - kind.told_at >= self._every:
                told.append(f"{kind.text} ({kind.untold} more in the last {now - kind.told_at:.0f} s)")
                kind.told_at, kind.untold = now, 0
        return tuple(told)
