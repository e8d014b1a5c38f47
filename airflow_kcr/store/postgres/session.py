"""One transaction, as those see it who read and write rows in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, TextClause

from airflow_kcr.protocol.rules import RegionRules


@dataclass(slots=True)
class Session:
    """One region, over one connection as long as its transaction lasts; afterwards over short ones of its own.

    A region that a transaction returned may be asked for tables that its rule never read. They are then read as they
    are at that moment. Nothing that a rule decided on is read so, and no verb needs it; it is for people who look.
    """

    connection: Connection | None
    reopen: Callable[[], AbstractContextManager[Connection]]
    """Opens a short transaction that reads."""

    read_rules: Callable[[str], RegionRules]
    region_id: int = 0

    def rows(self, statement: TextClause, **parameters: object) -> Sequence[Row[Any]]:
        """Return the rows of a statement about this region; `:region` is bound."""
        parameters["region"] = self.region_id
        if self.connection is not None:
            return self.connection.execute(statement, parameters).all()
        with self.reopen() as connection:
            return connection.execute(statement, parameters).all()

    def run(self, statement: TextClause, **parameters: object) -> int:
        """Run a statement that writes, `:region` bound, and return how many rows it touched."""
        if self.connection is None:
            raise RuntimeError("this session's transaction is over; nothing can be written in it")
        parameters["region"] = self.region_id
        return self.connection.execute(statement, parameters).rowcount

    def end(self) -> None:
        """Let go of the connection: from now on whatever is still asked for is read anew."""
        self.connection = None
