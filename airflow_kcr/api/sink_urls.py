"""How the database of a sink is reached: the spec's URL with its references filled in, or an Airflow connection."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.kafka_settings import resolve_environment
from airflow_kcr.spec import SinkSpec

CONNECTION_PREFIX: Final = "KCR_POSTGRES_"
"""Begins the variables that hold the URLs of Airflow connections, outside of Airflow."""

_NOT_IN_VARIABLES: Final = re.compile(r"[^A-Z0-9]")


def sink_url(sink: SinkSpec, environ: Mapping[str, str] = os.environ) -> str:
    """Return the URL of a sink's database, its password in it: for the sink only, never to be stored or shown.

    Args:
        sink: of the spec.
        environ: where references are looked up, and the URLs of Airflow connections.

    Raises:
        ConfigurationError: a variable is not set.
    """
    if sink.url is not None:
        return resolve_environment({f"sinks.{sink.name}.url": sink.url}, environ)[f"sinks.{sink.name}.url"]
    variable = connection_variable(sink.conn_id or "")
    url = environ.get(variable)
    if url is None:
        raise ConfigurationError(
            f"sink {sink.name} is reached by the Airflow connection {sink.conn_id}, which can only be read inside "
            f"Airflow; elsewhere set {variable} to its URL, or write url: ${{NAME}} into the spec"
        )
    return url


def connection_variable(connection: str) -> str:
    """Return the environment variable that holds the URL of an Airflow connection of type `postgres`."""
    return CONNECTION_PREFIX + _NOT_IN_VARIABLES.sub("_", connection.upper())
