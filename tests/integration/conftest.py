"""One JVM with a Spark session for all tests of a worker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_kcr.embedded.jars import resolve
from airflow_kcr.spark.session import SparkSettings, open_session
from tests.support.jar_sets import POSTGRES_DRIVER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(connector_jars: tuple[Path, ...], delta_jars: tuple[Path, ...]) -> Iterator[SparkSession]:
    """The session of this worker: two cores, and a task may fail once."""
    session = open_session(
        SparkSettings(
            app_name="airflow_kcr tests",
            master="local[2,2]",
            jars=tuple(map(str, (*connector_jars, *delta_jars, *resolve(POSTGRES_DRIVER)))),
            # What a cancelled or failing batch prints is part of these tests.
            log_level="OFF",
            conf={
                "spark.driver.host": "127.0.0.1",
                "spark.driver.memory": "1g",
                "spark.ui.port": "0",
                # Delta's own library, as people maintain their tables with it.
                "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
                "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
                "spark.sql.shuffle.partitions": "2",
                "spark.databricks.delta.snapshotPartitions": "2",
            },
        )
    )
    yield session
    session.stop()
