"""An Airflow connection of type `kcr` as the store's URL, and one of type `kafka` as client settings.

Extras are read key by key. What else a connection holds is never passed on: users who may edit one could otherwise
choose what runs where it is read. No message quotes a value.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from airflow_kcr.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow.sdk import Connection
    from sqlalchemy.engine import URL

STORE_TYPE: Final = "kcr"
DEFAULT_CONNECTION: Final = "kcr_default"
"""The connection that is used if none is named."""

KAFKA_TYPE: Final = "kafka"
POSTGRES_TYPE: Final = "postgres"

SSL_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
"""As libpq has them."""


def store_url(connection: Connection) -> URL:
    """Return the URL of the store that a connection leads to; the driver is psycopg 3.

    Raises:
        ConfigurationError: the connection is of another type, or a field is missing or can't be used.
    """
    return _postgres_url(connection, STORE_TYPE)


def sink_url(connection: Connection) -> URL:
    """Return the URL of the database that a connection of the Postgres provider leads to.

    Raises:
        ConfigurationError: the connection is of another type, or a field is missing or can't be used.
    """
    return _postgres_url(connection, POSTGRES_TYPE)


def _postgres_url(connection: Connection, wanted: str) -> URL:
    from sqlalchemy.engine import URL

    _require_type(connection, wanted)
    for field, label in (("host", "host"), ("schema", "database (schema)")):
        if not getattr(connection, field):
            raise ConfigurationError(f"{_named(connection)} has no {label}; fill it in")
    query = _query(connection)
    host: str | None = connection.host
    if host is not None and host.startswith("/"):
        # A directory of sockets has no place in the host of a URL.
        query["host"] = host
        host = None
    return URL.create(
        "postgresql+psycopg",
        username=connection.login or None,
        password=connection.password or None,
        host=host,
        port=connection.port,
        database=connection.schema,
        query=query,
    )


def kafka_settings(connection: Connection) -> dict[str, str]:
    """Return the client settings that a connection of the Kafka provider holds, secrets included.

    Raises:
        ConfigurationError: the connection is of another type, or a setting can't be used; see
            `settings.connection_settings`.
    """
    from airflow_kcr.settings import connection_settings

    _require_type(connection, KAFKA_TYPE)
    settings = connection_settings(_extra(connection), _named(connection))
    if not settings.get("bootstrap.servers"):
        raise ConfigurationError(f"{_named(connection)} has no bootstrap.servers in its extra; write HOST:PORT")
    return settings


def _query(connection: Connection) -> dict[str, str]:
    extra = _extra(connection)
    query: dict[str, str] = {}
    mode = extra.get("sslmode")
    if mode:
        if mode not in SSL_MODES:
            raise ConfigurationError(f"{_named(connection)}: sslmode is none of {', '.join(SSL_MODES)}")
        query["sslmode"] = str(mode)
    certificate = extra.get("sslrootcert")
    if certificate:
        if not isinstance(certificate, str):
            raise ConfigurationError(f"{_named(connection)}: sslrootcert is no text; write the path of a file")
        query["sslrootcert"] = certificate
    timeout = extra.get("connect_timeout")
    if timeout is not None and timeout != "":
        if isinstance(timeout, bool) or not str(timeout).isdecimal() or int(str(timeout)) < 1:
            raise ConfigurationError(f"{_named(connection)}: connect_timeout is no positive number of seconds")
        query["connect_timeout"] = str(timeout)
    return query


def _extra(connection: Connection) -> Mapping[str, object]:
    """Return the extra; not with `extra_dejson`, which answers with nothing where the text is no JSON."""
    if not connection.extra:
        return {}
    try:
        found = json.loads(connection.extra)
    except ValueError:
        found = None  # from nothing: the error would quote what may be a secret
    if not isinstance(found, dict):
        raise ConfigurationError(f"the extra of {_named(connection)} is no JSON object; correct it")
    return found


def _require_type(connection: Connection, wanted: str) -> None:
    if connection.conn_type != wanted:
        raise ConfigurationError(
            f"{_named(connection)} is of type {connection.conn_type or '(none)'}, not {wanted}; "
            f"make one of type {wanted}, or name another"
        )


def _named(connection: Connection) -> str:
    return f"Airflow connection {connection.conn_id}"
