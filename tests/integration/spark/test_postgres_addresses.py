"""A sink of several servers: both sides, libpq and executors' JDBC, find the one that takes writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_kcr.sinks.contract import SinkOfBatch
from airflow_kcr.sinks.postgres import addresses
from airflow_kcr.sinks.postgres.frames import reached
from tests.support.sink_tables import Table, records
from tests.support.tied import Postgres, start_postgres


@pytest.fixture
def reading(tmp_path: Path) -> Iterator[Postgres]:
    """A server that takes no writes, as a standby does."""
    with start_postgres(tmp_path / "standby", settings={"default_transaction_read_only": "on"}) as started:
        yield started


@pytest.fixture
def writing(tmp_path: Path) -> Iterator[Postgres]:
    """The one that takes them."""
    with start_postgres(tmp_path / "primary") as started:
        yield started


def test_batches_go_to_the_server_that_takes_them_though_another_is_first(
    reading: Postgres, writing: Postgres, spark: SparkSession
) -> None:
    hosts = f"127.0.0.1:{reading.port},127.0.0.1:{writing.port}"
    table = Table(url=f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write")
    reached(table.sink.database)
    table.reset({0: 0})
    for begin in (0, 5):
        writer = SinkOfBatch(table.sink, table.call({0: (begin, begin + 5)}))
        writer.write(spark.range(begin, begin + 5).selectExpr("'t' topic", "0 partition", "id offset", "'v' value"))
        writer.finish()
    assert Table(url=writing.url()).held() == records(p0=(0, 10))


def test_every_word_that_the_driver_is_told_is_one_of_its_own(spark: SparkSession) -> None:
    machine = spark._jvm
    assert machine is not None
    told = [*addresses._NAMES.values(), *(name for name, _ in addresses._VALUES.values()), "sslfactory"]
    assert [name for name in told if machine.org.postgresql.PGProperty.forName(name) is None] == []
