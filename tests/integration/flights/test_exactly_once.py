"""Every flight once in a table, whatever is killed and wherever the region goes back to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from airflow_kcr.api import Region
from airflow_kcr.embedded.flights import producer
from airflow_kcr.embedded.flights.data import BOOTSTRAP_VARIABLE, text_of
from airflow_kcr.embedded.jars import resolve
from airflow_kcr.embedded.processes import happened
from airflow_kcr.protocol.region.rows import CheckpointState, RegionState, ResetCause, ResetRequest
from airflow_kcr.protocol.region.state import Region as StoredRegion
from airflow_kcr.protocol.targets import ToCheckpoint
from airflow_kcr.protocol.values import CheckpointNumber, Offset, RegionName
from airflow_kcr.spec import parse
from tests.support.flights_table import judge
from tests.support.jar_sets import POSTGRES_DRIVER
from tests.support.kafka import Kafka
from tests.support.tied import start_postgres
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
RATE = 600.0


@pytest.fixture
def target_url(tmp_path: Path) -> Iterator[str]:
    """A database of its own for the table, by TCP as executors need it."""
    server = start_postgres(tmp_path / "target")
    yield server.url()
    server.stop()


@dataclass(slots=True, kw_only=True)
class Flights:
    """The region, and processes that host its members."""

    region: Region
    name: RegionName
    group: str
    topic: str
    folder: Path
    environment: dict[str, str]
    jars: tuple[Path, ...]
    stack: ExitStack
    logs: list[Path] = field(default_factory=list)

    def host(self, *indexes: int) -> subprocess.Popen[bytes]:
        """Start an application with these members."""
        log = self.folder / f"members-{len(self.logs)}.log"
        self.logs.append(log)
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "airflow_kcr", "member", "run", self.name, "--group", self.group),
                *("--index", ",".join(map(str, indexes)), "--master", "local[1,3]"),
                *("--jars", ",".join(map(str, self.jars)), "--conf", "spark.driver.host=127.0.0.1"),
            ],
            env=self.environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=self.stack.enter_context(log.open("wb")),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.stack.callback(ended, process)
        return process

    def row(self) -> StoredRegion:
        """The region as the store has it."""
        return everything(self.region.store.read(self.name)[0])

    def until(self, condition: Callable[[], bool], what: str, within: float = 300.0) -> None:
        """Wait for a condition, or fail with the end of the logs."""
        if not happened(condition, within=within):
            told = "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-4000:]}" for log in self.logs)
            raise AssertionError(f"not within {within} s: {what}\n{told}")

    def checkpoints(self) -> list[int]:
        """The checkpoints that can be gone back to, oldest first."""
        found = self.row().checkpoints.values()
        return sorted(c.sequence for c in found if c.state is CheckpointState.PUBLISHED)


def ended(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


@contextmanager
def flights(kafka: Kafka, url: str, target: str, folder: Path, jars: tuple[Path, ...]) -> Iterator[Flights]:
    name = kafka.group_id("flights")
    topic, group = f"{name}-topic", f"{name}-etl"
    text = text_of("flights_exactly_once.yaml").replace("flights-etl", group).replace("[flights]", f"[{topic}]")
    producer.ensure_topic(kafka.settings, topic)
    environment = {
        **os.environ,
        "KCR_STORE_URL": url,
        BOOTSTRAP_VARIABLE: kafka.bootstrap_servers,
        "KCR_FLIGHTS_DATABASE": target,
        "PYSPARK_PYTHON": sys.executable,
    }
    with Region(name, url) as region, ExitStack() as stack:
        text = text.replace("region: flights", f"region: {name}")
        # However many checkpoints a slow machine makes meanwhile, the one that is gone back to is there.
        region.apply(parse(f"{text}retention: {{keep: 1000}}\n"))
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


def rows(url: str) -> int:
    """How many rows the table has; none as long as no batch made it."""
    with psycopg.connect(url) as connection:
        if connection.execute("SELECT to_regclass('flights')").fetchone() == (None,):
            return 0
        found = connection.execute("SELECT count(*) FROM flights").fetchone()
        return 0 if found is None else int(found[0])


def test_the_table_is_what_a_direct_computation_gives_after_a_kill_and_a_reset(
    kafka: Kafka,
    database_url: str,
    target_url: str,
    tmp_path: Path,
    connector_jars: tuple[Path, ...],
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The plan of a reset looks at the logs, and the spec takes the address from the environment.
    monkeypatch.setenv(BOOTSTRAP_VARIABLE, kafka.bootstrap_servers)
    jars = (*connector_jars, *resolve(POSTGRES_DRIVER))
    with flights(kafka, database_url, target_url, tmp_path, jars) as one:
        one.host(0, 1)
        victim = one.host(2)
        one.until(lambda: one.row().state is RegionState.RUNNING, "running")
        producer.produce(kafka.settings, topic=one.topic, first=FLIGHTS, rate=RATE)
        one.until(lambda: rows(target_url) > 0 and bool(one.checkpoints()), "rows and a checkpoint")
        os.killpg(victim.pid, signal.SIGKILL)
        victim.wait(30)
        one.host(2)
        one.until(lambda: rows(target_url) == FLIGHTS, "every flight in the table")
        one.region.wait_for_checkpoint(one.region.drain().request.request_id)
        # What is newer leaves the table, and comes again.
        found = one.checkpoints()
        target = ToCheckpoint(sequence=CheckpointNumber(found[(len(found) - 1) // 2]))
        plan = one.region.resets.plan(ResetRequest(target=target))
        one.region.resets.apply(plan, "to see")
        one.region.resets.wait_for(plan.plan, timedelta(seconds=120))
        one.until(lambda: rows(target_url) == FLIGHTS, "every flight in the table again")
        one.region.stop()
        one.until(lambda: one.row().state is RegionState.STOPPED, "stopped")
        region = one.row()
        assert ResetCause.PERSON in {r.cause for r in region.resets.values()}
        assert one.region.verify().violations == ()
        judgement = judge(
            spark,
            {place: claim.position or Offset(0) for place, claim in region.claims.items()},
            target_url,
            kafka.settings,
        )
    assert judgement.rows == FLIGHTS
    assert judgement.sound, judgement
