"""Broker, durable store and Spark for the benchmarks, and what becomes of their figures."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_kcr.api.regions import connect, store_url
from airflow_kcr.embedded.jars import resolve
from airflow_kcr.spark.session import SparkSettings, open_session
from airflow_kcr.store.schema_upgrade import upgrade
from tests.benchmarks.figures import RESULTS_VARIABLE, Report, Scale, chosen_scale
from tests.benchmarks.lab import Lab, new_store
from tests.support import quick_spark
from tests.support.jar_sets import POSTGRES_DRIVER
from tests.support.kafka import KafkaSet
from tests.support.kafka_cluster import start_cluster
from tests.support.tied import Postgres, start_postgres

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.kafka import Kafka

MOST_CONSUMERS = 1_000
"""Partitions that one engine reads in the benchmark of many partitions."""


@pytest.fixture(scope="session", autouse=True)
def users_spark() -> Iterator[None]:
    """The Spark that is measured is the one that users have."""
    with quick_spark.left_out():
        yield


@pytest.fixture(scope="session")
def scale() -> Scale:
    """How much is measured."""
    return chosen_scale()


@pytest.fixture(scope="session")
def results() -> Path:
    """Where the figures go."""
    return Path(os.environ.get(RESULTS_VARIABLE) or Path(tempfile.gettempdir()) / "kcr-benchmarks").absolute()


@pytest.fixture
def report(request: pytest.FixtureRequest, scale: Scale, results: Path) -> Iterator[Callable[[str], Report]]:
    """Makes reports that are shown and kept at the end of the test; nothing is, of one that failed."""
    made: list[Report] = []

    def make(name: str) -> Report:
        made.append(Report(name, scale))
        return made[-1]

    yield make
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        for one in made:
            if one.tables:
                one.close(results)


@pytest.fixture(scope="session")
def durable_server() -> Iterator[Postgres]:
    """A server whose every COMMIT waits for the disk."""
    # A socket's path must be short, which those of pytest are not.
    folder = Path(tempfile.mkdtemp(prefix="kcr-bench-"))
    with start_postgres(folder, settings={}) as server:
        yield server
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def durable_store(durable_server: Postgres) -> Iterator[str]:
    """The address of a store of the test's own, with nothing in it; afterwards the server has no work left with it."""
    with new_store(durable_server) as url:
        yield url


@pytest.fixture
def default_kafka(tmp_path: Path) -> Iterator[Kafka]:
    """A broker that gives a new group Kafka's own time to gather (3 s); the tests' broker gives it none."""
    settings = {"group.initial.rebalance.delay.ms": "3000"}
    with KafkaSet(start_cluster(tmp_path / "kafka", settings=settings)) as kafka:
        yield kafka


@pytest.fixture(scope="session")
def bench_spark(connector_jars: tuple[Path, ...], delta_jars: tuple[Path, ...]) -> Iterator[SparkSession]:
    """A session on two cores, as the project sets it up; Structured Streaming runs in it too, into Delta as well."""
    session = open_session(
        SparkSettings(
            app_name="airflow_kcr benchmarks",
            master="local[2,4]",
            jars=tuple(map(str, (*connector_jars, *delta_jars, *resolve(POSTGRES_DRIVER)))),
            log_level="OFF",
            consumers=MOST_CONSUMERS,
            conf={
                "spark.driver.host": "127.0.0.1",
                "spark.driver.memory": "3g",
                "spark.ui.port": "0",
                "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
                "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            },
        )
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def lab(
    bench_spark: SparkSession, kafka: Kafka, durable_server: Postgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Lab]:
    """Everything together."""
    url = durable_server.ensure_database("lab")
    upgrade(url)
    with connect(store_url(url)) as store:
        yield Lab(
            spark=bench_spark,
            kafka=kafka,
            store=store,
            store_address=url,
            folder=tmp_path_factory.mktemp("benchmarks"),
        )
