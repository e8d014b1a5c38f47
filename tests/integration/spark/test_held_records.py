"""What executors hold of records between batches: Spark's heap of a process of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.spark.batches import said_by
from tests.support.kafka import Kafka

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

MEMORY = "512m"


def heap(kafka: Kafka, jars: tuple[Path, ...], topic: str, partitions: int) -> list[int]:
    """Return the live heap of `heap_driver`: before, after a batch, and once that could be forgotten."""
    conf = {
        "spark.jars": ",".join(map(str, jars)),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": MEMORY,
        "spark.ui.enabled": "false",
    }
    said = said_by("heap_driver", kafka.bootstrap_servers, topic, partitions, json.dumps(conf))
    return [int(line) for line in said.split()]


def test_what_was_fetched_for_a_timeline_that_is_over_is_forgotten_soon(
    kafka: Kafka, connector_jars: tuple[Path, ...]
) -> None:
    topic = kafka.topic(12)
    kafka.fill(topic, dict.fromkeys(range(12), 6_000), size=1_000)
    before, read, later = heap(kafka, connector_jars, topic, 12)
    # Else there would be nothing to forget.
    assert read - before > 60
    assert later - before < 30


def test_consumers_of_many_partitions_leave_a_small_executor_room(
    kafka: Kafka, connector_jars: tuple[Path, ...]
) -> None:
    topic = kafka.topic(48)
    kafka.fill(topic, dict.fromkeys(range(48), 5_000), size=1_000)
    before, read, _ = heap(kafka, connector_jars, topic, 48)
    assert read - before < 512 / 2
