"""A plan of a thousand partitions, the broker's answers included."""

from __future__ import annotations

from datetime import timedelta

from airflow_kcr.api import Region, ResetRequest
from airflow_kcr.protocol.targets import ByDuration, ToEarliest
from tests.support.kafka import Kafka
from tests.support.live_region import SPEC, live_region

PARTITIONS = 1_000


def test_a_thousand_partitions_are_planned(kafka: Kafka, database_url: str) -> None:
    topic = kafka.topic(PARTITIONS)
    spec = SPEC.replace("broker.invalid:9092", kafka.bootstrap_servers).replace("topics: [t]", f"topics: [{topic}]")
    with live_region(database_url, spec, partitions=PARTITIONS) as driver:
        driver.up()
        with Region(driver.name, driver.store) as region:
            for target in (ToEarliest(), ByDuration(back=timedelta(hours=1))):
                assert region.resets.plan(ResetRequest(target=target)).totals.partitions == PARTITIONS
    kafka.delete_topic(topic)
