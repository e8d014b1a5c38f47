"""Long tests take turns: a run of CI has some of them, the next commit's run others, and all of them come round.

Which ones follows from the commit, so that a run that fails can be run again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Turn:
    """Whose turn it is.

    Args:
        size: how many tests have theirs.
        key: what decides which, a commit's id for instance.
    """

    size: int
    key: str

    @classmethod
    def of(cls, text: str) -> Self:
        """Read `SIZE:KEY`.

        Raises:
            ValueError: it is not of that form.
        """
        size, colon, key = text.partition(":")
        if not size.isdecimal() or not colon or not key:
            raise ValueError(f"{text!r}: write how many and of which commit, as in 4:3f2a9c1")
        return cls(int(size), key)

    def chosen(self, names: Iterable[str]) -> frozenset[str]:
        """Return those of the names whose turn it is; the same for the same key, in whatever order they come."""
        return frozenset(sorted(set(names), key=self._rank)[: self.size])

    def _rank(self, name: str) -> str:
        return hashlib.sha256(f"{self.key} {name}".encode()).hexdigest()
