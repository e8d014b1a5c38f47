"""The region of the example, as the package ships it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from importlib.resources import files
from typing import Final

from airflow_kcr.protocol.durations import parse_duration
from airflow_kcr.protocol.instants import parse_instant
from airflow_kcr.protocol.values import GroupId
from airflow_kcr.schedules import Every
from airflow_kcr.spec import CheckpointSpec, RegionSpec, parse

BOOTSTRAP_VARIABLE: Final = "KCR_KAFKA_BOOTSTRAP"
"""The environment variable that the spec takes the brokers' addresses from."""

EVERY_VARIABLE: Final = "KCR_FLIGHTS_EVERY"
"""The environment variable with the time between two checkpoints of the example DAGs; a minute without it."""

TABLE_VARIABLE: Final = "KCR_FLIGHTS_DATABASE"
"""The environment variable with the URL of the database that the exactly-once variant writes to."""

SINCE_VARIABLE: Final = "KCR_FLIGHTS_SINCE"
"""The environment variable that says from when on the example DAGs have checkpoints: when the region went live."""

LINGER: Final = timedelta(seconds=15)
"""How long the members of the example DAGs wait with few flights."""

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


def airflow_spec(environ: Mapping[str, str] = os.environ) -> RegionSpec:
    """Return the spec as the example DAGs have it.

    Checkpoint less often, and once for each data interval whatever happens.

    Its members wait some seconds for a batch that is worth its files, instead of writing all the time.

    Raises:
        ConfigurationError: `KCR_FLIGHTS_EVERY` is no duration.
    """
    shipped = spec()
    batch = replace(shipped.batch, linger=LINGER)
    return replace(shipped, checkpoint=CheckpointSpec(every=_every(environ), catchup=True), batch=batch)


def live_since(environ: Mapping[str, str] = os.environ) -> datetime:
    """Return when the region of the example DAGs went live, which is when their first data interval begins.

    That is the last boundary at or before `KCR_FLIGHTS_SINCE`: with catch-up, Airflow counts a DAG's data intervals
    from its start date, and they have to end at the region's boundaries.

    Raises:
        ConfigurationError: `KCR_FLIGHTS_SINCE` is no time with a zone, or `KCR_FLIGHTS_EVERY` no duration.
    """
    since = parse_instant(environ.get(SINCE_VARIABLE, "2026-01-01T00:00:00Z"))
    return Every(_every(environ)).at_or_before(since)


def _every(environ: Mapping[str, str]) -> timedelta:
    return parse_duration(environ.get(EVERY_VARIABLE, "1m"))
