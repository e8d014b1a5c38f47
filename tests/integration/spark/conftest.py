"""One JVM with a Spark session for all tests of a worker, and what they run in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_kcr.spark.session import DELTA_CATALOG, DELTA_EXTENSION, SparkSettings, open_session
from tests.integration.spark.batches import Bench

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from tests.support.kafka import Kafka


HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # PySpark leaves the sockets of `collect` to the garbage collector.
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
            if item.get_closest_marker("timeout") is None:
                # The first test's time has the start of the broker and of the JVM in it, on whatever CI there is.
                item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def spark(connector_jars: tuple[Path, ...], delta_jars: tuple[Path, ...]) -> Iterator[SparkSession]:
    """The session of this worker: two cores, and a task may fail once."""
    session = open_session(
        SparkSettings(
            app_name="airflow_kcr tests",
            master="local[2,2]",
            jars=tuple(map(str, (*connector_jars, *delta_jars))),
            extensions=(DELTA_EXTENSION,),
            catalog=DELTA_CATALOG,
            # What a cancelled or failing batch prints is part of these tests.
            log_level="OFF",
            conf={
                "spark.driver.host": "127.0.0.1",
                "spark.driver.memory": "1g",
                "spark.ui.port": "0",
                "spark.sql.shuffle.partitions": "2",
                "spark.databricks.delta.snapshotPartitions": "2",
            },
        )
    )
    yield session
    session.stop()


@pytest.fixture
def bench(spark: SparkSession, kafka: Kafka) -> Bench:
    """Makes engines and batches on the shared broker."""
    return Bench(spark, kafka)
