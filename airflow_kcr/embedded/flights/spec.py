"""The region of the example, as the package ships it."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from airflow_kcr.protocol.values import GroupId
from airflow_kcr.spec import RegionSpec, parse

BOOTSTRAP_VARIABLE: Final = "KCR_KAFKA_BOOTSTRAP"
"""The environment variable that the spec takes the brokers' addresses from."""

TABLE_VARIABLE: Final = "KCR_FLIGHTS_DATABASE"
"""The environment variable with the URL of the database that the exactly-once variant writes to."""

GROUP: Final = GroupId("flights-etl")


def spec_text() -> str:
    """Return the spec of the region as its YAML file has it, for `kcr region apply -f`."""
    return (files("airflow_kcr.embedded.flights") / "flights.yaml").read_text(encoding="utf-8")


def spec() -> RegionSpec:
    """Return the spec of the region."""
    return parse(spec_text())


def exactly_once_text() -> str:
    """Return the spec of the variant whose flights go into a table of Postgres, each of them once."""
    return (files("airflow_kcr.embedded.flights") / "flights_exactly_once.yaml").read_text(encoding="utf-8")
