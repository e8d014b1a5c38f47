"""One transaction, as those see it who read and write rows in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeAlias

from sqlalchemy import column, text

from airflow_kcr.protocol.rules import RegionRules

if TYPE_CHECKING:
    from psycopg.sql import Composable
    from sqlalchemy import Connection, Row, TextClause, TextualSelect

Found: TypeAlias = "Row[*tuple[Any, ...]]"
"""A row as the driver hands it over; the caller knows its columns, and converts them at once."""


def array(values: list[Any]) -> object:
    """Return a list as the text of an array, where that is simple; else as it is.

    Ten columns of ten thousand values each are written at once, and the driver inspects every one of them.
    """
    kinds = set(map(type, values))
    if kinds == {int}:
        return "{" + ",".join(map(str, values)) + "}"
    kinds.discard(NoneType)
    if kinds <= {int}:
        return "{" + ",".join(["NULL" if value is None else str(value) for value in values]) + "}"
    if kinds == {str}:
        # Thousands of values are of few topics and groups: each is quoted once, and nothing is kept afterwards.
        quoted = {value: "NULL" if value is None else _quoted(value) for value in set(values)}
        return "{" + ",".join([quoted[value] for value in values]) + "}"
    return values


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def composed(parts: Composable) -> TextClause:
    """Return a statement that is put together of parts; its parameters are written as in any other, `:name`."""
    return text(parts.as_string())


def positional(statement: TextClause, width: int) -> TextualSelect:
    """Return a statement whose rows are read by position.

    The columns of a plain text are inspected again for every result: of sixty, that takes as long as to fetch the row.

    Args:
        statement: it returns rows.
        width: how many columns they have.
    """
    return statement.columns(*[column(f"c{number}") for number in range(width)])


@dataclass(slots=True)
class Session:
    """One region, over one connection as long as its transaction lasts; afterwards each statement over one of its own.

    A region that a transaction returned may be asked for tables that its rule never read. They are then read as they
    are at that moment. Nothing that a rule decided on is read so, and no verb needs it; it is for people.
    """

    connection: Connection | None
    answer: Callable[..., Sequence[Found]]
    """Runs one statement that reads by itself: with it and its parameters, by name."""

    read_rules: Callable[[str], RegionRules]
    first: Sequence[Found]
    """The rows of the statement that the transaction began with."""

    region_id: int = 0

    def rows(self, statement: TextClause | TextualSelect, **parameters: object) -> Sequence[Found]:
        """Return the rows of a statement about this region; `:region` is bound."""
        parameters = self._bound(parameters)
        if self.connection is not None:
            return self.connection.execute(statement, parameters).all()
        return self.answer(statement, **parameters)

    def run(self, statement: TextClause, **parameters: object) -> int:
        """Run a statement that writes, `:region` bound, and return how many rows it touched."""
        if self.connection is None:
            raise RuntimeError("this session's transaction is over; nothing can be written in it")
        return self.connection.execute(statement, self._bound(parameters)).rowcount

    def commit(self) -> None:
        """Make what was written count."""
        if self.connection is None:
            raise RuntimeError("this session's transaction is over; nothing is left to be committed")
        self.connection.commit()

    def _bound(self, parameters: dict[str, object]) -> dict[str, object]:
        bound = {name: array(value) if isinstance(value, list) else value for name, value in parameters.items()}
        return {**bound, "region": self.region_id}

    def end(self) -> None:
        """Let go of the connection: from now on whatever is still asked for is read again."""
        self.connection = None
