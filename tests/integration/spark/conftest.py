"""What the tests of Spark run in its session."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.integration.spark.batches import Bench
from tests.support.kafka import Kafka

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # PySpark leaves the sockets of `collect` to the garbage collector.
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


@pytest.fixture
def bench(spark: SparkSession, kafka: Kafka) -> Bench:
    """Makes engines and batches on the shared broker."""
    return Bench(spark, kafka)
