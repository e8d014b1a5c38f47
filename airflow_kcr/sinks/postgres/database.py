"""The database of a sink: a connection for each transaction, and what its refusals are called.

A connection is opened for a transaction and closed after it: a zombie keeps none, and nothing has to be found to have
died. No text of the driver is passed on, since it may quote rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import timedelta
from types import MappingProxyType
from typing import Final

import psycopg

from airflow_kcr import libpq
from airflow_kcr.errors import ConfigurationError, SinkError, SinkRefused, SinkUnavailable
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.sinks.postgres.addresses import parameters

CONNECT_TIMEOUT: Final = "10"
"""Seconds in which a server has to answer, where the URL has no `connect_timeout`."""

_REASONS: Final[Mapping[str, str]] = {
    **libpq.BUSY,
    **libpq.AWAY,
    **libpq.REFUSALS,
    "42501": "this user has no right to it",
    "42P01": "a table is gone; it was there before",
    "42703": "a column is gone; it was there before",
    "23502": "a value is missing where NULL is not allowed",
    "23505": "a row with these unique values exists already",
    "22001": "a text is too long for its column",
    "22003": "a number is too large for its column",
    "22P02": "a text is no value of its column's type",
    "22007": "a text is no day or time",
    "22008": "a day or time is none that Postgres has",
    "23514": "a row does not pass a check",
    "42804": "a column is of another type than what is written to it",
    "22021": "a text holds what this database's encoding can't, or a NUL, which no text of Postgres can",
}

_PASSING: Final = frozenset({"55P03", "40P01", "40001"})
"""Nothing was changed, and the same again may well work."""


class SinkBusy(SinkError):
    """The database gave a transaction up; nothing was changed, and it may be tried again."""


class Database:
    """One target database.

    Args:
        url: of libpq, or of SQLAlchemy with the driver psycopg; with its password.
        timeouts: of the region; those of the connections follow from its lease.
        who: the sink, for messages and for `pg_stat_activity`.

    Raises:
        ConfigurationError: the URL can't be read, or its service is not there.
    """

    def __init__(self, url: str, *, timeouts: Timeouts, who: str) -> None:
        try:
            self._given = parameters(url)
        except ConfigurationError as wrong:
            raise ConfigurationError(f"{who}: {wrong}") from None
        self.who = who
        self._timeouts = timeouts
        self._given.setdefault("connect_timeout", CONNECT_TIMEOUT)
        self._given["application_name"] = f"kcr {who}"
        self.is_pooled = False
        """Whether a pooler was in between when it was last connected to: executors then prepare nothing either."""

    @property
    def address(self) -> str:
        """Where it is, for messages: never its password."""
        given = self._given
        user, port = given.get("user", ""), given.get("port", "")
        host = f"{given.get('host') or given.get('hostaddr')}{':' if port else ''}{port}"
        return f"{user}{'@' if user else ''}{host}/{given.get('dbname', '')}"

    @property
    def parameters(self) -> Mapping[str, str]:
        """How it is reached, by libpq's names, the password among them: for a driver, never to be shown."""
        return MappingProxyType(self._given)

    @contextmanager
    def transaction(self, statement_timeout: timedelta) -> Iterator[libpq.Connection]:
        """Run the body in one transaction, READ COMMITTED, and commit it.

        Args:
            statement_timeout: how long a statement may take; while one runs the server does not see an idle
                transaction, so this limits what it may hold up.

        Raises:
            SinkError: it failed, and nothing was changed.
            CommitLost: the outcome is unknown; the caller looks it up.
        """
        with closing(self._connected(statement_timeout)) as connection, self._translated():
            connection.begin()
            yield connection
            connection.settle()

    def _connected(self, statement_timeout: timedelta) -> libpq.Connection:
        # Policies that come to apply later are an error then, and hide no rows.
        settings = {**libpq.limits(self._timeouts, statement_timeout), "row_security": "off"}
        try:
            connection = libpq.connect(self._given, settings)
        except libpq.Unsuitable as wrong:
            raise self._refused(str(wrong)) from None
        except psycopg.Error as error:
            raise self._translation(error, libpq.not_made(str(error))) from None
        self.is_pooled = connection.is_pooled
        if self.is_pooled and "options" in self._given:
            connection.close()
            raise self._refused(
                "a pooler in between drops the options of its URL for executors; set them for the user "
                f"(ALTER ROLE … SET …) and leave them out, or {libpq.DIRECTLY}"
            )
        return connection

    def _refused(self, why: str) -> SinkRefused:
        return SinkRefused(f"{self.who}: the database {self.address} can't be used: {why}; nothing was changed")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise self._translation(error) from None

    def _translation(self, error: psycopg.Error, not_made: libpq.NotMade | None = None) -> SinkError:
        state, diag = libpq.sqlstate_of(error), error.diag
        if isinstance(error, psycopg.OperationalError) and not state:
            return self._not_reached(not_made or libpq.known_reason(str(error)))
        if not state:
            # The driver's own: its text is about the statement, or quotes a value.
            return SinkError(
                f"{self.who}: a statement for the database {self.address} can't be run ({type(error).__name__}); "
                "nothing was changed"
            )
        return self.refusal(state, table=diag.table_name, column=diag.column_name, constraint=diag.constraint_name)

    def refusal(self, state: str, **named: str | None) -> SinkError:
        """Return the error for what the server refused, whose own words may quote a row.

        Args:
            state: its SQLSTATE.
            named: what it names: table, column and constraint.
        """
        kind = SinkBusy if state in _PASSING else SinkRefused if state in libpq.REFUSALS else SinkError
        what = _REASONS.get(state) or f"SQLSTATE {state}"
        told = ", ".join(f"{word} {name}" for word, name in named.items() if name)
        where = f" ({told})" if told else ""
        return kind(f"{self.who}: the database {self.address} refused: {what}{where}; nothing was changed")

    def _not_reached(self, known: libpq.NotMade | None) -> SinkError:
        """The error for a connection that is lost, or was never made."""
        if known is not None and known.is_refusal:
            return SinkRefused(f"{self.who}: the database {self.address} refused: {known.why}; nothing was changed")
        reason = "" if known is None else f" ({known.why})"
        return SinkUnavailable(f"{self.who}: the database {self.address} can't be reached{reason}; nothing was changed")
