"""What is a secret among settings: one rule for all that may reach arguments, logs, errors, specs, or a page.

Judged by the name, as Kafka's clients, Spark and Postgres name their secrets, and by the value, since an address, a
login configuration or Java's options may hold one under any name. Names that only lead to a secret, to its file or to
the address that gives it, are none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

REFERENCE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""Stands for a variable of the environment, `${NAME}`, in what is stored and shown."""

NAMES: Final = (
    r"passw(?:or)?d|passphrase|secret|token|credential|jaas|(?:access|account|private|api|client|server)[._-]?key"
    r"|key[._]pem|ssl[._-]key$|keystore\.(?:key|certificate)|truststore\.certificates|oauthbearer\.config"
)
"""How names of secrets are recognised, as a pattern for Python and for Java; in small letters."""

_NAME: Final = re.compile(NAMES, re.IGNORECASE)
_LEADS_TO_ONE: Final = re.compile(
    r"[._-](?:file|files|location|path|url|uri|class|provider|mechanism|type|enabled|algorithm|ms)$|_cb$|client[._]id$"
    r"|(?:[a-z]File|[a-z]Path|BitLength)$"
    # Kubernetes gives a driver a variable, or a folder, from one of its secrets: the value names it.
    r"|spark\.kubernetes\.(?:driver|executor)\.secret(?:KeyRef|s)\."
)
_VALUE: Final = re.compile(
    r"(?i)://[^/\s:@]*:[^/\s@]+@"
    r"|(?:passw(?:or)?d|passphrase|secret|token|credentials?|(?:access|account|private|api)[._-]?key)[\"']?\s*[=:]\s*[^\s;]"
    r"|loginmodule\s+(?:required|requisite|sufficient|optional)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)


def names_secret(name: str) -> bool:
    """Whether the name of a setting, a parameter or a variable says that its value is a secret."""
    return _NAME.search(name) is not None and _LEADS_TO_ONE.search(name) is None


def is_secret(text: str) -> bool:
    """Whether a text holds a secret, whatever its name: an address with a password, a login, a private key.

    A reference is none.
    """
    return _VALUE.search(REFERENCE.sub("", text)) is not None


def secrets_in(settings: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of settings that hold a secret written out; what is empty, or a reference, holds none.

    Args:
        settings: values by name.
    """
    return tuple(
        name
        for name, value in settings.items()
        if is_secret(value) or (value and names_secret(name) and not REFERENCE.search(value))
    )
