"""Why libpq made no connection to a Postgres: recognised by its text, as it has no SQLSTATE for that.

No text of its own is passed on, since it may quote values. A server that speaks another language is not understood: it
is then said that it can't be reached, as for every other reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

_REFUSED_LOGIN: Final = "the server refused the login; look at user and password"
_NO_DATABASE: Final = "the server has no database of that name"
FULL: Final = "the server has no connection left"
NOT_NOW: Final = "the server does not take connections now"

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
    return next((reason for pattern, reason in _REASONS if pattern.search(text)), None)
