"""One JVM with a Spark session for all tests of a worker, and regions whose members have JVMs of their own."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_kcr.embedded.jars import resolve
from airflow_kcr.spark.session import SparkSettings, open_session
from tests.support.jar_sets import POSTGRES_DRIVER
from tests.support.kafka import Kafka
from tests.support.members import BRISK, UNHURRIED, Lend, live
from tests.support.spark_gated_pipeline import JARS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(
    connector_jars: tuple[Path, ...], delta_jars: tuple[Path, ...], iceberg_jars: tuple[Path, ...]
) -> Iterator[SparkSession]:
    """The session of this worker: two cores, and a task may fail once."""
    session = open_session(
        SparkSettings(
            app_name="airflow_kcr tests",
            master="local[2,2]",
            jars=tuple(map(str, (*connector_jars, *delta_jars, *iceberg_jars, *resolve(POSTGRES_DRIVER)))),
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


@pytest.fixture
def lend(kafka: Kafka, database_url: str, tmp_path: Path) -> Lend:
    """Lends started regions of the run's broker and of a store of the test's own."""
    return partial(live, kafka=kafka, url=database_url, folder=tmp_path, spec=BRISK)


@pytest.fixture
def on_spark(connector_jars: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What makes members of a region run on Spark: the module of their processes, and a pipeline."""
    monkeypatch.setenv(JARS, ",".join(map(str, (*connector_jars, *resolve(POSTGRES_DRIVER)))))
    return {
        "hosting": "tests.support.spark_member_process",
        "pipeline": "tests.support.spark_gated_pipeline:process",
    }


@pytest.fixture
def lend_on_spark(kafka: Kafka, database_url: str, tmp_path: Path, on_spark: dict[str, str]) -> Lend:
    """Lends started regions whose members run on Spark: one over two partitions, unless more is said."""
    return partial(
        live,
        kafka=kafka,
        url=database_url,
        folder=tmp_path / "region",
        members=1,
        partitions=2,
        spec=UNHURRIED,
        hosting=on_spark["hosting"],
        pipeline=on_spark["pipeline"],
    )
