"""Settings of clients: what is a secret among them, which Kafka settings are refused, and what `${NAME}` stands for.

A secret is judged by the name, as Kafka's clients, Spark and Postgres name their secrets, and by the value, since an
address, a login configuration or Java's options may hold one under any name. Names that only lead to a secret, to its
file or to the address that gives it, are none.

Rules for Kafka:

- Some settings are refused by name: each of them would let the client do what only the region may
  do, or says again what a field of the spec says. A value that is ours anyway is no clash.
- A spec is stored and shown, so a secret in it is always a reference, `${NAME}`, filled in where the client is built.
  Stored specs, errors and representations hold the reference, or nothing.
- Values are text, as librdkafka takes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from airflow_kcr.errors import ConfigurationError

# Secrets

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


# Kafka client settings

AUTH: Final = "auth"
"""The setting that is ours: by which named login of a managed service both clients get in."""

AUTH_REGION: Final = "auth.region"
AUTH_ROLE: Final = "auth.role.arn"

AUTHS: Final[Mapping[str, tuple[str, ...]]] = {"msk_iam": (AUTH_REGION, AUTH_ROLE), "google": ()}
"""The named logins, and the settings of each."""

_SHOWN: Final = frozenset(
    {
        *("bootstrap.servers", "security.protocol", "sasl.mechanism", "sasl.mechanisms", "client.id"),
        *(AUTH, AUTH_REGION, AUTH_ROLE),
    }
)
"""Settings that can't hold a secret and help a reader; all others are shown by name only."""

_COMMITS: Final = "Kafka is committed only at checkpoints, by the region"
_GROUP: Final = "the region names its groups and members itself"
_SAID: Final = "the spec says how members agree on who owns what"

_CALLED: Final = re.compile(r"_cb$|^on_|^logger$|^plugin\.library\.paths$|^ssl\.engine\.location$|\.kinit\.cmd$")
"""Settings that name code: of the client in Python, a library or a program. The right to edit a connection must not
include running code wherever it is read."""

REFUSED: Final[Mapping[str, tuple[str | None, str]]] = {
    "enable.auto.commit": ("false", f"{_COMMITS}; leave it out"),
    "auto.commit.enable": ("false", f"{_COMMITS}; leave it out"),
    "auto.commit.interval.ms": (None, f"{_COMMITS}; leave it out"),
    "enable.auto.offset.store": ("false", f"{_COMMITS}, and from checkpoints; leave it out"),
    "offset.store.method": ("broker", f"{_COMMITS}, in the broker; leave it out"),
    "group.id": (None, f"{_GROUP}; write it as group_id of a group"),
    "group.instance.id": (None, f"{_GROUP}; write static_membership"),
    "group.protocol": ("classic", f"{_SAID}; write protocol of a group"),
    "group.protocol.type": ("consumer", f"{_SAID}; leave it out"),
    "group.remote.assignor": (None, f"{_SAID}; write assignor of a group with protocol: consumer"),
    "partition.assignment.strategy": (None, f"{_SAID}, never by a cooperative assignor; write assignor"),
    "auto.offset.reset": ("error", "positions come from the store; write start and out_of_range"),
    "isolation.level": ("read_committed", "ends of logs are last stable offsets; leave it out"),
    "session.timeout.ms": (None, "it is checked together with the other times; write timeouts.session"),
    "max.poll.interval.ms": (None, "it is checked together with the other times; write timeouts.max_poll_interval"),
    "topic.blacklist": (None, "the region has to know which topics a group reads; write exclude beside pattern"),
    "topic.metadata.refresh.interval.ms": (None, "new partitions must be seen; write timeouts.metadata_refresh"),
}
"""What a user may not set: the one value that is accepted all the same, and why, and what to write instead."""


BROKERS_OWN: Final[Mapping[str, str]] = {
    "heartbeat.interval.ms": "consumer.heartbeat.interval.ms",
    "session.timeout.ms": "consumer.session.timeout.ms",
}
"""What the client refuses where the broker decides who owns what, and the setting of the group in its place."""


class KafkaSettings(Mapping[str, str]):
    """Immutable client settings by name; their representation shows no value that could be a secret.

    Args:
        settings: names as librdkafka has them, values as text, references unresolved.
    """

    __slots__ = ("_settings",)

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = dict(sorted(settings.items()))

    def __getitem__(self, name: str) -> str:
        return self._settings[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._settings)

    def __len__(self) -> int:
        return len(self._settings)

    def __hash__(self) -> int:
        return hash(tuple(self._settings.items()))

    def __eq__(self, other: object) -> bool:
        return self._settings == other._settings if isinstance(other, KafkaSettings) else NotImplemented

    def __repr__(self) -> str:
        shown = (f"{name!r}: {value!r}" if is_shown(name, value) else f"{name!r}: …" for name, value in self.items())
        return f"KafkaSettings({{{', '.join(shown)}}})"


def is_shown(name: str, value: str) -> bool:
    """Whether a setting may be shown with its value: a reference, or one of the few that can't hold a secret."""
    return name in _SHOWN or REFERENCE.fullmatch(value) is not None


def refusals(settings: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the settings that a user may not give, each as (name, why and what to write instead).

    Also for settings that don't come from a spec (a connection's), which may hold secrets as they are.

    Args:
        settings: by name; values are compared as text, in lower case.
    """
    return (
        *(
            (name, f"is refused: {REFUSED[name][1]}")
            for name, value in settings.items()
            if name in REFUSED and str(value).lower() != REFUSED[name][0]
        ),
        *_auth_refusals(settings),
    )


def _auth_refusals(settings: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a named login, or contradicts it."""
    auth = settings.get(AUTH)
    if auth is not None and auth not in AUTHS:
        yield AUTH, f"is refused: there is no such login; write one of {', '.join(AUTHS)}, or settings of your own"
        return
    for name, value in settings.items():
        if name.startswith(f"{AUTH}.") and name not in AUTHS.get(auth or "", ()):
            yield name, f"is refused: {'no auth is given' if auth is None else f'auth: {auth} does not have it'}"
        elif auth is not None and name.startswith("sasl."):
            yield name, f"is refused: auth: {auth} says how both clients log in; leave it out"
        elif auth is not None and name == "security.protocol" and not str(value).upper().startswith("SASL_"):
            yield name, f"is refused: auth: {auth} logs in by SASL; leave it out, it is SASL_SSL"


def connection_settings(values: Mapping[str, object], where: str) -> dict[str, str]:
    """Return the client settings that an Airflow connection holds, as text; secrets in them are written out.

    Args:
        values: setting by name, as the JSON has them; a `${` in a value is no reference.
        where: the connection, or the variable that stands for it, for the message.

    Raises:
        ConfigurationError: with every setting that can't be used, by name and never with its value.
    """
    wrong = [f"{name} {why}" for name, why in refusals({name: str(value) for name, value in values.items()})]
    for name, value in values.items():
        if _CALLED.search(name):
            wrong.append(f"{name} is refused: it names code to run; leave it out")
        elif not isinstance(value, str | int | float):
            wrong.append(f"{name} is refused: it is no text, number or true/false; write the one value")
    if wrong:
        raise ConfigurationError(
            f"Kafka settings of {where}: {'; '.join(wrong)}. Where others need them, make the region its own connection"
        )
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in values.items()}


def broken_references(settings: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of settings with a `${` that begins no reference."""
    return tuple(name for name, value in settings.items() if "${" in REFERENCE.sub("", value))


def resolve_environment(settings: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings with every `${NAME}` filled in; for the client only, never to be stored or shown.

    The result is not substituted again: a password may contain `${`.

    Args:
        settings: as in the spec.
        environ: normally `os.environ` of the process that builds the client.

    Raises:
        ConfigurationError: with every variable that is not set, and the settings that need it.
    """
    missing = [
        f"{name} needs {variable}"
        for name, value in settings.items()
        for variable in REFERENCE.findall(value)
        if variable not in environ
    ]
    if missing:
        raise ConfigurationError(
            f"environment variables that the spec refers to are not set: {'; '.join(missing)}; "
            "set them where the process runs"
        )
    return {name: REFERENCE.sub(lambda match: environ[match[1]], value) for name, value in settings.items()}
