"""Connections to a Postgres whose transactions run under the settings asked for, and what it says as one fails.

Store and sinks have their own sentences; the SQLSTATEs are judged here. The one question that matters to a caller is
what became of its transaction: before COMMIT was sent nothing was changed, whatever failed; while it was on its way, a
lost connection leaves that open (`CommitLost`), an answer of the server does not.

A connection that was not made is recognised by its text, as libpq has no SQLSTATE for that. No text of libpq's own is
passed on, since it may quote values. What the server itself says as it refuses is, in its language: it knows no
password.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import psycopg
from psycopg import IsolationLevel, RawCursor, sql
from psycopg.rows import TupleRow

from airflow_kcr.protocol.timeouts import Timeouts

_REFUSED_LOGIN: Final = "the server refused the login; check user and password"
_NO_DATABASE: Final = "the server has no database of that name"
FULL: Final = "the server has no connection left"
READ_ONLY: Final = (
    "the server is read-only, as a standby is; give the address of the primary, or of all with "
    "target_session_attrs=read-write"
)
NOT_NOW: Final = "the server does not take connections now"

LOCK_NOT_AVAILABLE: Final = "55P03"

BUSY: Final[Mapping[str, str]] = {
    LOCK_NOT_AVAILABLE: "it waited too long for a lock",
    "57014": "a statement took too long",
    "40P01": "it was chosen to end a deadlock",
    "40001": "it could not be serialised",
    "25P03": "it was idle for too long, so the server ended it",
    "25P04": "it took too long, so the server ended it",
}
"""By SQLSTATE: the server gave the transaction up, so nothing was changed."""

AWAY: Final[Mapping[str, str]] = {
    "57P01": "the server ended the connection",
    "57P02": "the server crashed",
    "57P03": NOT_NOW,
    "57P05": "the server ended the idle connection",
    "53300": FULL,
    "53100": "the server's disk is full",
    "53200": "the server is out of memory",
    "25006": READ_ONLY,
}
"""By SQLSTATE: the server can't be used at the moment."""

DIRECTLY: Final = "give the address of Postgres itself, not that of a pooler (PgBouncer)"

OLDEST: Final = 14
"""The first version of Postgres that is supported."""

REFUSALS: Final[Mapping[str, str]] = {"28000": _REFUSED_LOGIN, "28P01": _REFUSED_LOGIN, "3D000": _NO_DATABASE}
"""By SQLSTATE: every further try is refused too, until the server or the address is changed."""


@dataclass(frozen=True, slots=True)
class NotMade:
    """Why a connection was not made."""

    why: str
    is_refusal: bool
    """Whether every further try is refused too, until the server or the address is changed."""


_REASONS: Final = tuple(
    (re.compile(pattern), NotMade(why, is_refusal))
    for pattern, why, is_refusal in (
        (
            r"password authentication failed|no password supplied|FATAL: +role \".*\" does not exist|"
            r"authentication failed for user|not permitted to log in",
            _REFUSED_LOGIN,
            True,
        ),
        (
            r"no pg_hba\.conf entry",
            "the server lets this user in neither from here nor with this encryption; "
            "check its pg_hba.conf and sslmode",
            True,
        ),
        (
            r"statement pooling mode",
            "a pooler in between pools by statement, which has no transactions; "
            f"set its pool_mode to transaction or session, or {DIRECTLY}",
            True,
        ),
        (r"FATAL: +database \".*\" does not exist", _NO_DATABASE, True),
        (r"permission denied for database", "this user may not use the database", True),
        (r"Connection refused|No such file or directory", "nothing listens there", False),
        (r"timeout expired|timed out", "no answer in time", False),
        (r"resolve host|translate host name", "the host's name is not known", False),
        (r"not support SSL|certificate", "no encryption that both sides accept; check sslmode", False),
        (r"too many clients|too many connections|slots are reserved", FULL, False),
        (r"the database system is", NOT_NOW, False),
    )
)


def known_reason(text: str) -> NotMade | None:
    """Return why a connection was not made or is lost, in words of ours; None: it can't be told.

    Args:
        text: what libpq says.
    """
    return next((reason for pattern, reason in _REASONS if pattern.search(text)), None)


def not_made(text: str) -> NotMade | None:
    """Return why a connection was not made, also in the server's words: no row is on its way yet; None: unknown.

    Args:
        text: what libpq says, several lines where it tried several hosts.
    """
    known = known_reason(text)
    said = _SAID.search(text)
    if known is not None or said is None:
        return known
    return NotMade(f"the server says: {said[1].strip()[:_LONGEST]}", is_refusal=False)


_SAID: Final = re.compile(r"FATAL: +(.+)")

_LONGEST: Final = 200
"""Characters of a server's words that are passed on."""

_TAKES_NO_OPTIONS: Final = re.compile(r"unsupported startup parameter|command-line options")
"""As PgBouncer and the proxy of Amazon RDS say it."""

# name: in_force — each setting as it is, then as the server shows what was asked for; one way to the server for each
# new connection. What is set here ends with the transaction.
_IN_FORCE: Final = """
    SELECT pg_backend_pid(), CAST(current_setting('server_version_num') AS integer) / 10000, (
        SELECT array_agg(ARRAY[current_setting(name, true), set_config(name, wanted, true)] ORDER BY n)
        FROM unnest(CAST(%s AS text[]), CAST(%s AS text[])) WITH ORDINALITY AS asked (name, wanted, n)
    )
"""

_OPTION: Final = re.compile(r"(?:-c\s*|--)(?P<name>[A-Za-z_][\w.-]*)=(?P<value>(?:\\.|[^\s\\])*)(?:\s+|$)")
"""One setting among the options that a connection is started with; blanks in its value are escaped."""


def sqlstate_of(error: BaseException | None) -> str:
    """Return the five characters that the server classified an error with; empty where it never reached one."""
    return (error.sqlstate or "") if isinstance(error, psycopg.Error) else ""


def is_lost(error: BaseException | None) -> bool:
    """Return whether the connection is gone, rather than a statement refused."""
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and not error.sqlstate


class CommitLost(Exception):
    """COMMIT was sent, and no answer says whether it counts; its cause is what the driver raised."""


class Unsuitable(Exception):
    """A server answers but can't be used until it is changed; its text says how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """The way in which a connection's transactions begin."""

    isolation: IsolationLevel | None = None
    """None: READ COMMITTED."""

    read_only: bool | None = None
    autocommit: bool = False
    """Whether each statement is a transaction of its own; behind a pooler there is one all the same."""


WRITING: Final = Mode()
"""How a connection begins its transactions before it is told otherwise."""


class Connection(psycopg.Connection[TupleRow]):
    """A connection that knows whether its session is its own.

    Behind a pooler it may have another server process in each transaction. Nothing of a session can be relied on
    there: no setting, prepared statement, LISTEN or lock that outlasts a transaction.
    """

    mode: Mode = WRITING
    of_each_transaction: bytes = b""
    """The statement that sets what was asked for, in the transaction alone; empty where the session has it."""

    @property
    def is_pooled(self) -> bool:
        """True if each transaction has to be told its settings."""
        return bool(self.of_each_transaction)

    def take_mode(self, mode: Mode) -> None:
        """Have the transactions from now on begin so; none may be open."""
        if mode != self.mode:
            self.isolation_level, self.read_only, self.autocommit = mode.isolation, mode.read_only, mode.autocommit
            self.mode = mode

    def run(self, statement: bytes, parameters: Sequence[object]) -> RawCursor[TupleRow]:
        """Run a statement that names its parameters by number, `$1` the first, and return the cursor with its rows."""
        return RawCursor(self).execute(statement, parameters)

    def begin(self) -> None:
        """Begin a transaction with its settings, in one round trip; where the session has them, the driver begins it.

        The isolation is that of the connection, else READ COMMITTED.
        """
        if not self.is_pooled:
            return
        # Else the driver would send a BEGIN of its own before this one.
        self.autocommit = True
        level = IsolationLevel(self.isolation_level or IsolationLevel.READ_COMMITTED).name.replace("_", " ")
        access = {None: "", True: " READ ONLY", False: " READ WRITE"}[self.read_only]
        self.execute(f"BEGIN ISOLATION LEVEL {level}{access};".encode() + self.of_each_transaction, prepare=False)

    def settle(self) -> None:
        """Commit.

        Raises:
            CommitLost: whether it counts is open.
            psycopg.Error: nothing was changed.
        """
        try:
            self.commit()
        except psycopg.Error as error:
            state = sqlstate_of(error)
            # A pooler that loses the server tells so itself, by a state of class 08.
            if state not in BUSY and (not state or state in AWAY or state.startswith("08") or self.closed):
                raise CommitLost from error
            raise


def limits(times: Timeouts, statement: timedelta) -> dict[str, str]:
    """Return the settings by which a frozen process can't hold others up, and those that our statements rely on.

    Args:
        times: the region's; those of a connection follow from its lease.
        statement: how long one may take at least.
    """
    spans = {
        "idle_in_transaction_session_timeout": times.idle_in_transaction_session_timeout,
        "lock_timeout": times.lock_timeout,
        "statement_timeout": max(statement, times.statement_timeout),
    }
    return {
        **{name: str(max(span // timedelta(milliseconds=1), 1)) for name, span in spans.items()},
        "default_transaction_isolation": "read committed",
        "timezone": "UTC",
    }


def connect(parameters: Mapping[str, object], settings: Mapping[str, str]) -> Connection:
    """Return a connection whose transactions run under these settings; where it is pooled, after its `begin`.

    A session of its own has them as options of its start. A pooler may refuse such options, drop them, or give each
    transaction another server process. That is found out here, by asking once what is in force; the process is known
    by its number. Behind one, each transaction sets its own settings, and nothing is prepared: a server process may
    know a statement of that name that another client has prepared.

    Args:
        parameters: of libpq, by their names, the password among them.
        settings: of the server, by their names; they win over those in the parameter `options`.

    Raises:
        Unsuitable: what was asked for can't be had there, or the server is too old.
        psycopg.Error: there is no connection; see `not_made`.
    """
    given = str(parameters.get("options") or "")
    # Ours come last, because the last one counts.
    options = " ".join([given, *(f"-c {name}={_escaped(value)}" for name, value in settings.items())]).strip()
    try:
        connection = _connected({**parameters, "options": options})
    except psycopg.OperationalError as error:
        if not _TAKES_NO_OPTIONS.search(str(error)):
            raise
        connection = _connected({name: value for name, value in parameters.items() if name != "options"})
    try:
        _correct(connection, given, settings)
    except BaseException:
        connection.close()
        raise
    return connection


def _connected(parameters: Mapping[str, object]) -> Connection:
    return Connection.connect(**parameters)  # type: ignore[arg-type]


def _correct(connection: Connection, given: str, settings: Mapping[str, str]) -> None:
    asked = {**{found["name"]: _plain(found["value"]) for found in _OPTION.finditer(given)}, **settings}
    was, connection.autocommit = connection.autocommit, True
    process, differing = _read_settings(connection, asked)
    if process != connection.info.backend_pid or differing:
        if _OPTION.sub("", given).strip():
            raise Unsuitable(
                "a pooler in between drops the options of its address, and they are more than settings; write "
                f"-c NAME=VALUE alone, or {DIRECTLY}"
            )
        connection.prepare_threshold = None
        each = [
            sql.SQL("set_config({}, {}, true)").format(sql.Literal(name), sql.Literal(value))
            for name, value in asked.items()
        ]
        connection.of_each_transaction = sql.SQL("SELECT {}").format(sql.SQL(", ").join(each)).as_bytes(connection)
        connection.begin()
        _, differing = _read_settings(connection, asked)
        connection.rollback()
        if differing:
            raise Unsuitable(f"{'; '.join(differing)}, although its transaction was told; {DIRECTLY}")
    connection.autocommit = was


def _read_settings(connection: Connection, asked: Mapping[str, str]) -> tuple[int, list[str]]:
    """Return the number of the server's process, and what is not as it was asked for."""
    row = connection.execute(_IN_FORCE, [list(asked), list(asked.values())], prepare=False).fetchone()
    if row is None:
        raise Unsuitable("it does not answer")
    process, version, found = row
    if version < OLDEST:
        raise Unsuitable(f"it is Postgres {version}; {OLDEST} or newer is needed")
    return process, [
        f"{name} is {there or 'not set'}, not {wanted}"
        for name, (there, wanted) in zip(asked, found or (), strict=True)
        if there != wanted
    ]


def _escaped(value: str) -> str:
    return re.sub(r"([\s\\])", r"\\\1", value)


def _plain(value: str) -> str:
    return re.sub(r"\\(.)", r"\1", value)
