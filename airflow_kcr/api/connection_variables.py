"""The environment variables by which a process outside of Airflow is handed what an Airflow connection says."""

from __future__ import annotations

import re
from typing import Final

_NOT_IN_VARIABLES: Final = re.compile(r"[^A-Z0-9]")


def kafka_variable(connection: str) -> str:
    """Return the variable for the client settings of a connection of type `kafka`, as one JSON object."""
    return f"KCR_KAFKA_{_in_variables(connection)}"


def postgres_variable(connection: str) -> str:
    """Return the variable for the URL of a connection of type `postgres`."""
    return f"KCR_POSTGRES_{_in_variables(connection)}"


def _in_variables(connection: str) -> str:
    return _NOT_IN_VARIABLES.sub("_", connection.upper())
