"""One transaction, as those see it who read and write rows in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from airflow_kcr import libpq
from airflow_kcr.protocol.rules import RegionRules
from airflow_kcr.store.postgres.statements import Statement

Found: TypeAlias = tuple[Any, ...]
"""A row as the driver hands it over; the caller knows its columns, and converts them at once."""


@dataclass(slots=True)
class Session:
    """One region, over one connection as long as its transaction lasts; afterwards each statement over one of its own.

    A region that a transaction returned may be asked for tables that its rule never read. They are then read as they
    are at that moment. Nothing that a rule decided on is read so, and no verb needs it; it is for people.
    """

    connection: libpq.Connection | None
    answer: Callable[..., Sequence[Found]]
    """Runs one statement that reads by itself: with it and its parameters, by name."""

    read_rules: Callable[[str], RegionRules]
    first: Sequence[Found]
    """The rows of the statement that the transaction began with."""

    region_id: int = 0

    def rows(self, statement: Statement, **parameters: object) -> Sequence[Found]:
        """Return the rows of a statement about this region; `:region` is bound."""
        parameters["region"] = self.region_id
        if self.connection is None:
            return self.answer(statement, **parameters)
        return self.connection.run(statement.numbered, statement.bound(parameters)).fetchall()

    def run(self, statement: Statement, **parameters: object) -> int:
        """Run a statement that writes, `:region` bound, and return how many rows it touched."""
        if self.connection is None:
            raise RuntimeError("this session's transaction is over; nothing can be written in it")
        parameters["region"] = self.region_id
        return self.connection.run(statement.numbered, statement.bound(parameters)).rowcount

    def end(self) -> None:
        """Let go of the connection: from now on whatever is still asked for is read again."""
        self.connection = None
