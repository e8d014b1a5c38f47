"""Why libpq made no connection to a Postgres, and whether one that was made is what was asked for.

It is recognised by its text, as it has no SQLSTATE for that. No text of libpq's own is passed on, since it may quote
values. What the server itself says as it refuses is, in its language: it knows no password.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import psycopg

_REFUSED_LOGIN: Final = "the server refused the login; look at user and password"
_NO_DATABASE: Final = "the server has no database of that name"
FULL: Final = "the server has no connection left"
NOT_NOW: Final = "the server does not take connections now"

_DIRECTLY: Final = "give the address of Postgres itself, not that of a pooler (PgBouncer)"
_POOLER_REFUSES: Final = f"a pooler in between takes no start-up options; {_DIRECTLY}"

REFUSALS: Final[Mapping[str, str]] = MappingProxyType(
    {"28000": _REFUSED_LOGIN, "28P01": _REFUSED_LOGIN, "3D000": _NO_DATABASE}
)
"""By SQLSTATE: until somebody has changed something, there or in the address, every further try is refused too."""


@dataclass(frozen=True, slots=True)
class NotMade:
    """Why a connection was not made."""

    why: str
    is_refusal: bool
    """Whether every further try is refused too, until somebody has changed something, there or in the address."""


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
            "look at its pg_hba.conf and sslmode",
            True,
        ),
        (r"FATAL: +unsupported startup parameter", _POOLER_REFUSES, True),
        (r"FATAL: +database \".*\" does not exist", _NO_DATABASE, True),
        (r"permission denied for database", "this user may not use the database", True),
        (r"Connection refused|No such file or directory", "nothing listens there", False),
        (r"timeout expired|timed out", "no answer in time", False),
        (r"resolve host|translate host name", "the host's name is not known", False),
        (r"not support SSL|certificate", "no encryption that both sides accept; look at sslmode", False),
        (r"too many clients|too many connections|slots are reserved", FULL, False),
        (r"the database system is", NOT_NOW, False),
    )
)


def not_made(text: str) -> NotMade | None:
    """Return why a connection was not made; None: it can't be told.

    Args:
        text: what libpq says, several lines where it tried several hosts.
    """
    known = next((reason for pattern, reason in _REASONS if pattern.search(text)), None)
    said = _SAID.search(text)
    if known is not None or said is None:
        return known
    return NotMade(f"the server says: {said[1].strip()[:_LONGEST]}", is_refusal=False)


_SAID: Final = re.compile(r"FATAL: +(.+)")

_LONGEST: Final = 200
"""Characters of a server's words that are passed on."""

# name: in_force — milliseconds, whatever unit the server shows them in; one way to the server for each new connection.
_IN_FORCE: Final = """
    SELECT pg_backend_pid(), (
        SELECT array_agg(CAST(extract(epoch FROM CAST(current_setting(name) AS interval)) * 1000 AS bigint) ORDER BY n)
        FROM unnest(CAST(%s AS text[])) WITH ORDINALITY AS asked (name, n)
    )
"""


def settle(connection: psycopg.Connection, asked: Mapping[str, int]) -> str:
    """Make sure that a new connection is what was asked for; return what is wrong with it, empty where nothing is.

    A pooler may drop the options that a connection is started with: no statement would ever be ended then. It may also
    give each transaction another server process, which knows statements of that name that another client has prepared.
    So none are prepared where there is one; that of the server's process is known by its number.

    Args:
        connection: just made; nothing was run on it.
        asked: settings in milliseconds, by their names.
    """
    was, connection.autocommit = connection.autocommit, True
    row = connection.execute(_IN_FORCE, [list(asked)], prepare=False).fetchone()
    connection.autocommit = was
    if row is None:
        return "it does not answer"
    process, found = row
    is_pooled = process != connection.info.backend_pid
    if is_pooled:
        connection.prepare_threshold = None
    differing = [
        f"{name} is {there} ms, not {wanted} ms"
        for (name, wanted), there in zip(asked.items(), found, strict=True)
        if there != wanted
    ]
    if not differing:
        return ""
    who = "a pooler in between" if is_pooled else "something in between, or the server,"
    return f"{'; '.join(differing)}: {who} drops the options of a connection; {_DIRECTLY}"
