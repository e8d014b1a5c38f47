"""What executors hold of records between batches: Spark's heap of a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

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
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "tests.integration.spark.heap_driver"),
            *(kafka.bootstrap_servers, topic, str(partitions), json.dumps(conf)),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=Path(__file__).parents[3],
    )
    assert ran.returncode == 0, ran.stderr
    return [int(line) for line in ran.stdout.split()]


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
