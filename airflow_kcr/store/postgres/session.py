"""One transaction, as those see it who read and write rows in it, and what Postgres and its driver report.

Failures are recognised by SQLSTATE and by the names of constraints, and by the text of a message only where a
connection was never made, of which there is nothing else. No text of the driver is passed on, since it may quote
values. The one question that matters to a caller is what became of its transaction:

- before COMMIT was sent nothing was changed, whatever failed (`StoreBusy`, `StoreUnavailable`);
- while COMMIT was on its way, a lost connection leaves it open (`OutcomeUnknown`); an answer of the server does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType, NoneType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import psycopg
from sqlalchemy import text
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from airflow_kcr import libpq
from airflow_kcr.errors import (
    BatchRefused,
    GroupInOtherRegion,
    InvalidIdentifier,
    KcrError,
    NumberOutOfRange,
    OffsetOutsideLog,
    OutcomeUnknown,
    OverlappingOffsets,
    RegionExists,
    StoreBusy,
    StoreError,
    StoreRefused,
    StoreUnavailable,
)
from airflow_kcr.protocol.rules import RegionRules

if TYPE_CHECKING:
    from psycopg import RawCursor
    from psycopg.rows import TupleRow
    from psycopg.sql import Composable
    from sqlalchemy import TextClause
    from sqlalchemy.engine import URL


Found: TypeAlias = tuple[Any, ...]
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


_NUMBERED: Final = postgresql.dialect(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]


@lru_cache(maxsize=1024)
def _for_driver(statement: TextClause) -> tuple[bytes, tuple[str, ...]]:
    """Return a statement as the server takes it, its parameters numbered, and their names in that order."""
    compiled = statement.compile(dialect=_NUMBERED)
    return str(compiled).encode(), tuple(compiled.positiontup or ())


def execute(
    connection: libpq.Connection, statement: TextClause, parameters: Mapping[str, object]
) -> RawCursor[TupleRow]:
    """Run a statement of the store, and return the cursor with its rows.

    SQLAlchemy writes the statement, once, and the driver runs it: to bind the parameters of a text that is always the
    same and to inspect its columns takes SQLAlchemy longer at each call than the driver needs for all of it.
    """
    text_, names = _for_driver(statement)
    return connection.run(text_, [parameters[name] for name in names])


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

    def rows(self, statement: TextClause, **parameters: object) -> Sequence[Found]:
        """Return the rows of a statement about this region; `:region` is bound."""
        parameters = self._bound(parameters)
        if self.connection is not None:
            return execute(self.connection, statement, parameters).fetchall()
        return self.answer(statement, **parameters)

    def run(self, statement: TextClause, **parameters: object) -> int:
        """Run a statement that writes, `:region` bound, and return how many rows it touched."""
        if self.connection is None:
            raise RuntimeError("this session's transaction is over; nothing can be written in it")
        return execute(self.connection, statement, self._bound(parameters)).rowcount

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


# Failures

LOCK_NOT_AVAILABLE: Final = "55P03"

_BUSY: Final[Mapping[str, str]] = MappingProxyType(
    {
        LOCK_NOT_AVAILABLE: "it waited too long for a lock",
        "57014": "a statement took too long",
        "40P01": "it was chosen to end a deadlock",
        "40001": "it could not be serialised",
        "25P03": "it was idle for too long, so the server ended it",
        "25P04": "it took too long, so the server ended it",
    }
)

_AWAY: Final[Mapping[str, str]] = MappingProxyType(
    {
        "57P01": "the server ended the connection",
        "57P02": "the server crashed",
        "57P03": libpq.NOT_NOW,
        "57P05": "the server ended the idle connection",
        "53300": libpq.FULL,
        "53100": "the server's disk is full",
        "53200": "the server is out of memory",
        "25006": libpq.READ_ONLY,
    }
)

_REFUSED: Final[Mapping[str, str]] = MappingProxyType(
    {**libpq.REFUSALS, "42501": "this user may not use the kcr schema"}
)
"""Every further try is refused too, until the server or the address is changed."""

UNDEFINED: Final = frozenset({"42P01", "42703", "3F000", "42883"})
"""Undefined table, column, schema or function: the schema is not the one that this program was written for."""

_BY_CONSTRAINT: Final[Mapping[str, type[KcrError]]] = MappingProxyType(
    {
        "region_name_key": RegionExists,
        "consumer_group_cluster_id_group_id_key": GroupInOtherRegion,
        "batch_region_id_batch_id_key": BatchRefused,
        "contribution_offset_pkey": OverlappingOffsets,
        "initial_offset_inside_log": OffsetOutsideLog,
    }
)

_SENTENCES: Final[Mapping[type[KcrError], str]] = MappingProxyType(
    {
        BatchRefused: "a batch of this id exists already; make a new id for every batch",
        OverlappingOffsets: "two members contributed one partition to the same checkpoint",
        OffsetOutsideLog: "an initial offset lies outside of its log",
    }
)


class Address:
    """Where a store is, for messages: never its password.

    Args:
        url: the engine's URL.
    """

    def __init__(self, url: URL) -> None:
        socket = url.query.get("host")
        host = url.host or (socket if isinstance(socket, str) else "") or "localhost"
        port = f":{url.port}" if url.port else ""
        self._text = f"{url.username or ''}@{host}{port}/{url.database or ''}".removeprefix("@")

    def __str__(self) -> str:
        return self._text


def sqlstate_of(error: BaseException) -> str:
    """Return the five characters that the server classified an error with; empty where it never reached one."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return (cause.sqlstate or "") if isinstance(cause, psycopg.Error) else ""


def constraint_of(error: BaseException) -> str:
    """Return the name of the constraint that was violated; empty if none was."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return (cause.diag.constraint_name or "") if isinstance(cause, psycopg.Error) else ""


def is_lost(error: BaseException) -> bool:
    """Whether the connection is gone, rather than a statement refused."""
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    cause = error.orig if isinstance(error, DBAPIError) else error
    return isinstance(cause, psycopg.OperationalError | psycopg.InterfaceError) and not sqlstate_of(error)


def before_commit(error: Exception, address: Address, seconds: float) -> KcrError:
    """Return the error for a failure before COMMIT was sent: nothing was changed.

    Args:
        error: what SQLAlchemy or the driver raised.
        address: the store's.
        seconds: how long the call has been trying.
    """
    state, name = sqlstate_of(error), constraint_of(error)
    if isinstance(error, PoolTimeout):
        return StoreBusy(f"no connection to the store at {address} became free in {seconds:.1f} s; nothing was changed")
    if name:
        return _by_constraint(name)
    if state in _BUSY:
        return StoreBusy(
            f"the store at {address} gave the transaction up after {seconds:.1f} s: {_BUSY[state]}; "
            "nothing was changed, ask again"
        )
    if state in _AWAY:
        return StoreUnavailable(
            f"the store at {address} can't be used ({_AWAY[state]}); tried for {seconds:.1f} s, nothing was changed"
        )
    if state in _REFUSED:
        return StoreRefused(f"the store at {address} can't be used: {_REFUSED[state]}; nothing was changed")
    if is_lost(error) or state.startswith("08"):
        return _not_reached(error, address, seconds)
    return _by_value(error, state) or StoreError(
        f"the store at {address} refused a statement (SQLSTATE {state or 'none'}, {type(error).__name__}); "
        "nothing was changed"
    )


def _not_reached(error: Exception, address: Address, seconds: float) -> StoreUnavailable:
    """The error for a connection that is lost, or was never made."""
    text = str(error.orig if isinstance(error, DBAPIError) else error)
    known = libpq.not_made(text)
    if known is not None and known.is_refusal:
        return StoreRefused(f"the store at {address} can't be used: {known.why}; nothing was changed")
    reason = "" if known is None else f" ({known.why})"
    return StoreUnavailable(
        f"the store at {address} can't be reached{reason}; tried for {seconds:.1f} s, nothing was changed"
    )


def during_commit(error: Exception, address: Address, seconds: float) -> KcrError:
    """Return the error for a failure of COMMIT itself; only an answer of the server says that nothing was changed."""
    state = sqlstate_of(error)
    # A pooler that loses the server tells so itself, by a state of class 08.
    if state in _BUSY or (state and not is_lost(error) and state not in _AWAY and not state.startswith("08")):
        return before_commit(error, address, seconds)
    return OutcomeUnknown(
        f"the connection to the store at {address} was lost while COMMIT was on its way, after {seconds:.1f} s; "
        "read what became of it before asking again"
    )


def unstorable() -> InvalidIdentifier:
    """Return the error for a name that no text of Postgres can be."""
    return InvalidIdentifier("a name in this request holds NUL or half of a surrogate pair; the store can't keep it")


def _by_constraint(name: str) -> KcrError:
    kind = _BY_CONSTRAINT.get(name)
    if kind is not None:
        return kind(_SENTENCES.get(kind))
    if name.endswith(("_not_negative", "_not_empty")):
        return NumberOutOfRange(f"the store refused a number (constraint {name}); nothing was changed")
    return StoreError(f"the store refused a row (constraint {name}); nothing was changed")


def _by_value(error: Exception, state: str) -> KcrError | None:
    if state == "22003":
        return NumberOutOfRange("a number does not fit into the store's 64 bits; nothing was changed")
    cause = error.orig if isinstance(error, DBAPIError) else error
    # NUL is found by the driver, which then has no SQLSTATE; a wrong encoding by the server.
    if state in {"22021", "22P05"} or (isinstance(cause, psycopg.DataError) and not state):
        return unstorable()
    return None


FAILURES: Final = (SQLAlchemyError, psycopg.Error)
"""What a statement may raise; everything else is a mistake in the code."""
