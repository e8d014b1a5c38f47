"""Every flight once in the checkpoints of a file sink, whatever is killed and wherever the region goes back to."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_kcr.api import Region
from airflow_kcr.embedded.flights import producer
from airflow_kcr.embedded.flights.data import BOOTSTRAP_VARIABLE, exactly_once_text
from airflow_kcr.embedded.flights.producer import Order
from airflow_kcr.errors import CheckpointNotUsable
from airflow_kcr.protocol.region.rows import RegionState, ResetRequest
from airflow_kcr.protocol.targets import ToCheckpoint
from airflow_kcr.protocol.values import CheckpointNumber, RegionName
from airflow_kcr.sinks import read_checkpoint
from airflow_kcr.sinks.files.folder import Folder
from airflow_kcr.sinks.files.frames import Checkpoints
from airflow_kcr.spec import parse
from tests.integration.flights.test_exactly_once import Flights
from tests.support.kafka import Kafka

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    # What CI samples of this is the same with a table (`test_exactly_once`), and the sink's own tests.
    pytest.mark.soak,
    pytest.mark.timeout(1_200),
    # PySpark leaves the sockets of collect() to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

FLIGHTS = 6_000
RATE = 400.0
TABLE = """kind: postgres
        url: ${KCR_FLIGHTS_DATABASE}
        table: flights"""
FOLDER = "KCR_TEST_FOLDER"


@contextmanager
def flights(kafka: Kafka, url: str, folder: Path, jars: tuple[Path, ...]) -> Iterator[Flights]:
    name = kafka.group_id("flights")
    topic, group = f"{name}-topic", f"{name}-etl"
    text = exactly_once_text().replace("flights-etl", group).replace("[flights]", f"[{topic}]")
    assert TABLE in text
    text = text.replace(TABLE, f"kind: files\n        path: ${{{FOLDER}}}/flights")
    producer.ensure_topic(kafka.settings, topic)
    environment = {
        **os.environ,
        "KCR_STORE_URL": url,
        BOOTSTRAP_VARIABLE: kafka.bootstrap_servers,
        FOLDER: str(folder),
        "PYSPARK_PYTHON": sys.executable,
    }
    with Region(name, url) as region, ExitStack() as stack:
        region.apply(parse(text.replace("region: flights", f"region: {name}")))
        yield Flights(
            region=region,
            name=RegionName(name),
            group=group,
            topic=topic,
            folder=folder,
            environment=environment,
            jars=jars,
            stack=stack,
        )


def everything(spark: SparkSession, path: str) -> DataFrame:
    """The rows of all checkpoints that are published."""
    checkpoints = Checkpoints.of(Folder(spark, path)).published()
    parts = (read_checkpoint(spark, path, sequence=checkpoint.sequence) for checkpoint in checkpoints)
    # Checkpoints from before the first batch know of no columns but the coordinates.
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)


def counted(spark: SparkSession, path: str) -> tuple[int, int]:
    """How many rows there are, and of how many records."""
    rows = everything(spark, path).select("kcr_topic", "kcr_partition", "kcr_offset")
    return rows.count(), rows.distinct().count()


def test_the_checkpoints_hold_each_flight_once_after_a_kill_and_a_reset(
    kafka: Kafka,
    database_url: str,
    tmp_path: Path,
    connector_jars: tuple[Path, ...],
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The plan of a reset looks at the logs, and the spec takes the address from the environment.
    monkeypatch.setenv(BOOTSTRAP_VARIABLE, kafka.bootstrap_servers)
    monkeypatch.setenv(FOLDER, str(tmp_path))
    path = f"{tmp_path}/flights"
    with flights(kafka, database_url, tmp_path, connector_jars) as one:

        def consumed() -> int:
            return sum(int(claim.position or 0) for claim in one.row().claims.values())

        one.host(0, 1)
        victim = one.host(2)
        one.until(lambda: one.row().state is RegionState.RUNNING, "running")
        # On a busy machine the first batch may have all flights, and every later checkpoint holds what the first does.
        one.region.wait_for_checkpoint(one.region.drain().request.request_id)
        oldest = one.checkpoints()[0]
        # On a busy machine it would be retired by the time that every flight is consumed.
        one.region.checkpoints.pin(oldest)
        producer.produce(kafka.settings, Order(topic=one.topic, first=FLIGHTS, rate=RATE))
        one.until(lambda: consumed() > 0 and len(one.checkpoints()) > 1, "records and a checkpoint")
        os.killpg(victim.pid, signal.SIGKILL)
        victim.wait(30)
        one.host(2)
        one.until(lambda: one.row().state is RegionState.RUNNING and consumed() == FLIGHTS, "every flight consumed")
        one.region.wait_for_checkpoint(one.region.drain().request.request_id)
        assert counted(spark, path) == (FLIGHTS, FLIGHTS)
        again = [read_checkpoint(spark, path, sequence=one.checkpoints()[-1]).inputFiles() for _ in range(2)]
        assert sorted(again[0]) == sorted(again[1])
        # Back to the oldest checkpoint: the checkpoints after it are superseded, and what they had comes again.
        newest = one.checkpoints()[-1]
        plan = one.region.resets.plan(ResetRequest(target=ToCheckpoint(sequence=CheckpointNumber(oldest))))
        one.region.resets.apply(plan, "to see")
        one.region.resets.wait_for(plan.plan, timedelta(seconds=120))
        with pytest.raises(CheckpointNotUsable, match="superseded by timeline 2"):
            read_checkpoint(spark, path, sequence=newest)
        one.until(lambda: one.row().state is RegionState.RUNNING and consumed() == FLIGHTS, "every flight once more")
        one.region.wait_for_checkpoint(one.region.drain().request.request_id)
        assert counted(spark, path) == (FLIGHTS, FLIGHTS)
        one.region.stop()
        one.until(lambda: one.row().state is RegionState.STOPPED, "stopped")
        assert one.region.verify().violations == ()
        assert counted(spark, path) == (FLIGHTS, FLIGHTS)
