"""How the database of a sink is reached: the spec's URL with its references filled in, or an Airflow connection."""

from __future__ import annotations

import os
from collections.abc import Mapping

from airflow_kcr.api.connection_variables import postgres_variable
from airflow_kcr.errors import ConfigurationError
from airflow_kcr.kafka_settings import resolve_environment
from airflow_kcr.spec import SinkSpec


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
    variable = postgres_variable(sink.conn_id or "")
    url = environ.get(variable)
    if url is None:
        raise ConfigurationError(
            f"sink {sink.name} is reached by the Airflow connection {sink.conn_id}, which can only be read inside "
            f"Airflow; elsewhere set {variable} to its URL, or write url: ${{NAME}} into the spec"
        )
    return url
