"""The region of the example, as the package ships it."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from airflow_kcr.protocol.values import GroupId
from airflow_kcr.spec import RegionSpec, parse

BOOTSTRAP_VARIABLE: Final = "KCR_KAFKA_BOOTSTRAP"
"""The environment variable that the spec takes the brokers' addresses from."""

GROUP: Final = GroupId("flights-etl")


def spec_text() -> str:
    """Return the spec of the region as its YAML file has it, for `kcr region apply -f`."""
    return (files("airflow_kcr.embedded.flights") / "flights.yaml").read_text(encoding="utf-8")


def spec() -> RegionSpec:
    """Return the spec of the region."""
    return parse(spec_text())
