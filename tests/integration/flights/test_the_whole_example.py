"""The example as a person runs it.

A region, three members, flights written meanwhile, checkpoints made, all compared.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_kcr.api import Region
from airflow_kcr.embedded.flights import producer
from airflow_kcr.embedded.flights.data import BOOTSTRAP_VARIABLE, spec_text
from airflow_kcr.embedded.flights.producer import Order
from airflow_kcr.embedded.flights.result import judge
from airflow_kcr.protocol.region.rows import CheckpointPurpose, CheckpointState, RegionState
from airflow_kcr.protocol.values import GroupId, Offset, RegionName
from airflow_kcr.spec import parse
from airflow_kcr.store.regions import RegionStore
from tests.support.kafka import Kafka
from tests.support.whole import everything

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1_200),
    # PySpark leaves the sockets of collect() to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

FLIGHTS = 9_000
RATE = 1_500.0


@dataclass(slots=True, kw_only=True)
class Example:
    """The region of the example, on a topic and in a group of this test."""

    store: RegionStore
    region: Region
    name: RegionName
    group: GroupId
    topic: str
    log: Path
    process: subprocess.Popen[bytes]

    def until(self, condition: Callable[[], bool], what: str, within: float = 420.0) -> None:
        """Wait for a condition, or fail with the member's log."""
        deadline = time.monotonic() + within
        while not condition():
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise AssertionError(f"{what}: not in time\n{self.log.read_text(errors='replace')[-6000:]}")
            time.sleep(0.1)  # a poll of a condition, with a deadline

    def is_consumed(self, kafka: Kafka) -> bool:
        """Whether every position is at the end of its log."""
        claims = self.store.read(self.name)[0].claims
        places = {p.partition: c.position for p, c in claims.items()}
        return all(places.get(n) == end for n, end in kafka.ends(self.topic).items())


@contextmanager
def example(kafka: Kafka, url: str, folder: Path, jars: tuple[Path, ...]) -> Iterator[Example]:
    """Lend the running example; whatever happens, its process is ended."""
    name = kafka.group_id("flights")
    topic, group = f"{name}-topic", f"{name}-etl"
    text = spec_text().replace("flights-etl", group).replace("[flights]", f"[{topic}]")
    parsed = parse(text.replace("region: flights", f"region: {name}"))
    producer.ensure_topic(kafka.settings, topic)
    environment = {
        **os.environ,
        "KCR_STORE_URL": url,
        BOOTSTRAP_VARIABLE: kafka.bootstrap_servers,
        "KCR_FLIGHTS_OUTPUT": str(folder / "output"),
        "PYSPARK_PYTHON": sys.executable,
    }
    with Region(name, url) as region:
        region.apply(parsed)
        log = folder / "member.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "airflow_kcr", "member", "run", name),
                    *("--group", group, "--index", "0,1,2", "--master", "local[2,3]"),
                    *("--jars", ",".join(map(str, jars)), "--conf", "spark.driver.host=127.0.0.1"),
                ],
                env=environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield Example(
                store=region._store,
                region=region,
                name=RegionName(name),
                group=GroupId(group),
                topic=topic,
                log=log,
                process=process,
            )
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(30)


def test_three_members_consume_the_flights_under_checkpoints_and_the_result_is_that_of_a_direct_computation(
    kafka: Kafka, database_url: str, tmp_path: Path, connector_jars: tuple[Path, ...], spark: SparkSession
) -> None:
    with example(kafka, database_url, tmp_path, connector_jars) as one:
        one.until(lambda: one.store.read(one.name)[0].state is RegionState.RUNNING, "running")
        producer.produce(kafka.settings, Order(topic=one.topic, first=FLIGHTS, rate=RATE))
        one.until(lambda: one.is_consumed(kafka), "everything consumed")
        one.region.stop()
        assert one.process.wait(120) == 0, one.log.read_text(errors="replace")[-6000:]
        region = everything(one.store.read(one.name)[0])
        assert region.state is RegionState.STOPPED
        scheduled = [
            c
            for c in region.checkpoints.values()
            if c.state is CheckpointState.PUBLISHED and c.purpose is CheckpointPurpose.SCHEDULE
        ]
        assert scheduled, [str(c) for c in region.checkpoints.values()]
        assert one.region.verify().violations == ()
        judgement = judge(
            spark,
            {place: claim.position or Offset(0) for place, claim in region.claims.items()},
            tuple(one.store.batches(one.name)),
            str(tmp_path / "output"),
            kafka.settings,
        )
    assert judgement.accepted == FLIGHTS
    assert judgement.duplicates == 0
    assert judgement.sound, judgement
