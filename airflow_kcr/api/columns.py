"""The columns of an answer, declared once: the names of its JSON and its CSV, and what people see of it in a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic, TypeVar

V = TypeVar("V")


class ShownTo(Enum):
    """Where a column is shown."""

    ALL = auto()
    PROGRAMS = auto()
    """In JSON and CSV only."""

    PEOPLE = auto()
    """In tables only."""


@dataclass(frozen=True, slots=True)
class AnswerColumn(Generic[V]):
    """One column: its name, and its value in an answer."""

    name: str
    of: Callable[[V], object]
    shown: ShownTo = ShownTo.ALL
    is_number: bool = False
    """Whether a table has it aligned to the right."""


class AnswerColumns(Generic[V]):
    """The columns of one kind of answer, in their order.

    Args:
        columns: each of them.
    """

    def __init__(self, *columns: AnswerColumn[V]) -> None:
        self._columns = columns
        self.data = tuple(c.name for c in columns if c.shown is not ShownTo.PEOPLE)
        """The names in JSON and CSV."""

        self.table = tuple(c.name for c in columns if c.shown is not ShownTo.PROGRAMS)
        """The names in a table."""

        self.numbers = frozenset(c.name for c in columns if c.is_number)
        """The names of those aligned to the right."""

    def facts(self, answer: V) -> Mapping[str, object]:
        """Return the values of an answer, as its JSON has them."""
        return {c.name: c.of(answer) for c in self._columns if c.shown is not ShownTo.PEOPLE}

    def row(self, answer: V) -> Mapping[str, object]:
        """Return the values of an answer, those for people too."""
        return {c.name: c.of(answer) for c in self._columns}
