"""The region that the package ships."""

from __future__ import annotations

from datetime import timedelta

from airflow_kcr.embedded.flights import producer
from airflow_kcr.embedded.flights.data import BOOTSTRAP_VARIABLE, GROUP, spec
from airflow_kcr.spark.pipelines import load_pipeline
from airflow_kcr.spec import resolve_environment


def test_three_members_consume_the_flights_and_a_checkpoint_is_made_every_five_seconds() -> None:
    flights = spec()
    group = flights.group(GROUP)
    assert (flights.region, group.topics, group.members) == ("flights", (producer.TOPIC,), 3)
    assert flights.checkpoint.every == timedelta(seconds=5)


def test_the_address_of_the_brokers_comes_from_the_environment() -> None:
    found = resolve_environment(spec().kafka or {}, {BOOTSTRAP_VARIABLE: "127.0.0.1:1"})
    assert found == {"bootstrap.servers": "127.0.0.1:1"}


def test_its_pipeline_can_be_loaded() -> None:
    assert callable(load_pipeline(spec().group(GROUP).pipeline))
