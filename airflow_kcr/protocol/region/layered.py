"""A table of a region that is changed without being read.

Rules replace a mapping as a whole, and most of them only add to it or replace a row. Where the store reads its rows
only when they are asked for, copying would ask for all of them: every seek map that the region ever had, to add one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Layered(Mapping[K, V]):
    """A mapping that makes its own successors, of which only the changes are held in memory."""

    __slots__ = ()

    @abstractmethod
    def put(self, rows: Mapping[K, V]) -> Mapping[K, V]:
        """Return the mapping with these rows added or replaced."""

    @abstractmethod
    def without(self, keys: frozenset[K]) -> Mapping[K, V]:
        """Return the mapping without the rows of these keys."""
