"""A region that rests between its runs, by `kcr run` on a real broker, a real store and real Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from airflow_kcr.api import Region
from airflow_kcr.embedded.jars import resolve
from airflow_kcr.protocol.region.rows import RegionState
from airflow_kcr.spec import parse
from tests.support.interval_pipeline import KILL
from tests.support.jar_sets import POSTGRES_DRIVER
from tests.support.kafka import Kafka, Record
from tests.support.members import TOP
from tests.support.sink_tables import libpq
from tests.support.tied import Postgres, start_postgres

PARTITIONS = 2
WITHIN = 280.0
NO_SPARK = ("--master", "spark://127.0.0.1:1")
"""A master that no session comes from: a command that succeeds with it has started no Spark."""

pytestmark = [pytest.mark.timeout(900), pytest.mark.postgres]


@dataclass(slots=True)
class Runs:
    """A stopped region of two groups, one with a table, and its topics."""

    kafka: Kafka
    store: str
    table: Postgres
    name: str
    topic: str
    jars: str
    environ: Mapping[str, str] = field(default_factory=dict)

    def fill(self, word: str, at: datetime) -> None:
        """Produce ten records of each partition, stamped with an instant."""
        records = [
            Record(value=f"{word} {p}-{n}".encode(), partition=p, timestamp=at) for p in range(2) for n in range(10)
        ]
        self.kafka.produce(self.topic, records)

    def kcr(self, *arguments: str) -> tuple[int, str, str]:
        """Return how a command ended, and what it said on both channels."""
        command = [sys.executable, "-m", "airflow_kcr", *arguments]
        environ = {**os.environ, "KCR_STORE_URL": self.store, **self.environ}
        done = subprocess.run(
            command, cwd=TOP, env=environ, capture_output=True, text=True, timeout=WITHIN, check=False
        )
        return done.returncode, done.stdout, done.stderr

    def run(self, *options: str, spark: tuple[str, ...] | None = None) -> dict[str, object]:
        """Carry a run out, and return what it answers."""
        master = ("--master", "local[2]", "--jars", self.jars) if spark is None else spark
        status, out, said = self.kcr("run", self.name, *options, *master)
        assert status == 0, said
        answer: dict[str, object] = json.loads(out)
        return answer

    def rows(self) -> Counter[str]:
        """How often the table has each value."""
        with psycopg.connect(libpq(self.table.url())) as connection:
            return Counter(dict(connection.execute("SELECT value, count(*) FROM out GROUP BY value").fetchall()))

    def at_rest(self) -> bool:
        """Whether the region is stopped, no member has a lease, and Kafka holds the newest checkpoint."""
        with Region(self.name, self.store) as region:
            view = region.show()
            assert region.verify().violations == ()
            sequence = view.last_complete
            equal = sequence is None or all(str(row.finding) == "equal" for row in region.checkpoints.compare(sequence))
            alive = any(member.alive for group in view.groups for member in group.members)
            return str(view.state) == RegionState.STOPPED and not alive and equal


def all_of(*words: str) -> Counter[str]:
    """Every record of these words once."""
    return Counter(f"{word} {p}-{n}" for word in words for p in range(PARTITIONS) for n in range(10))


@pytest.fixture
def runs(kafka: Kafka, database_url: str, tmp_path: Path, connector_jars: tuple[Path, ...]) -> Iterator[Runs]:
    """A declared region that has never run."""
    table, name, topic = start_postgres(tmp_path / "target"), kafka.group_id("runs"), kafka.topic(PARTITIONS)
    spec = parse(
        f"region: {name}\n"
        f"kafka: {{bootstrap.servers: '{kafka.bootstrap_servers}'}}\n"
        "groups:\n"
        f"  - {{group_id: {name}-rows, topics: [{topic}], members: 2, delivery: exactly_once,\n"
        "     pipeline: 'tests.support.interval_pipeline:process',\n"
        f"     sinks: {{out: {{kind: postgres, url: '{table.url()}', table: out}}}}}}\n"
        f"  - {{group_id: {name}-count, topics: [{topic}], pipeline: 'tests.support.interval_pipeline:count'}}\n"
    )
    with psycopg.connect(libpq(table.url())) as connection:
        connection.execute(
            "CREATE TABLE out (value text, kcr_topic text, kcr_partition int, kcr_offset bigint, kcr_source int, "
            "kcr_timeline bigint, kcr_sequence bigint)"
        )
    with Region(name, database_url) as region:
        region.apply(spec)
    jars = ",".join(map(str, (*connector_jars, *resolve(POSTGRES_DRIVER))))
    yield Runs(kafka, database_url, table, name, topic, jars)
    table.stop()


def test_each_run_has_the_records_of_its_interval_and_leaves_nothing(runs: Runs) -> None:
    hour = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=3)
    runs.fill("first", hour - timedelta(minutes=1))
    runs.fill("second", hour + timedelta(minutes=1))
    first = runs.run("--until", hour.isoformat(), "--request-id", "one")
    assert (first["state"], first["checkpoint"], first["inexact"]) == ("answered", "published", False)
    assert runs.rows() == all_of("first")
    assert runs.at_rest()
    # The same run again, and one of an interval without a record, need no Spark.
    assert runs.run("--until", hour.isoformat(), "--request-id", "one", spark=NO_SPARK) == first
    idle = runs.run("--until", (hour + timedelta(seconds=30)).isoformat(), spark=NO_SPARK)
    assert idle["sequence"] == int(str(first["sequence"])) + 1
    assert runs.at_rest()
    # What is there now.
    runs.run()
    assert runs.rows() == all_of("first", "second")
    assert runs.at_rest()
    runs.run(spark=NO_SPARK)
    assert runs.at_rest()


@pytest.mark.long
def test_a_run_that_is_killed_goes_on_with_its_next_try(runs: Runs, tmp_path: Path) -> None:
    kill = tmp_path / "kill"
    kill.touch()
    runs.environ = {KILL: str(kill)}
    runs.fill("first", datetime.now(UTC) - timedelta(hours=2))
    status, _, said = runs.kcr("run", runs.name, "--request-id", "one", "--master", "local[2]", "--jars", runs.jars)
    assert status < 0, said
    runs.run("--request-id", "one", "--takeover")
    assert runs.rows() == all_of("first")
    assert runs.at_rest()


def test_what_can_not_run_is_refused_and_changes_nothing(runs: Runs) -> None:
    runs.fill("first", datetime.now(UTC) - timedelta(hours=2))
    with Region(runs.name, runs.store) as region:
        before = region.counter()
        spec = region.spec()
    for options, status, why in (
        (("--until", "2030-01-01T00:00:00Z"), 3, "until: 2030-01-01T00:00:00Z is yet to come"),
        (("--until", "2026-01-01T00:00:00"), 2, "has no zone"),
    ):
        ended, _, said = runs.kcr("run", runs.name, *options, *NO_SPARK)
        assert (ended, why in said) == (status, True), said
    with Region(runs.name, runs.store) as region:
        assert region.counter() == before
        groups = spec.to_json_text().replace("interval_pipeline:count", "interval_pipeline:absent")
        region.apply(parse(groups))
        before = region.counter()
    ended, _, said = runs.kcr("run", runs.name, *NO_SPARK)
    assert ended == 2, said
    assert "absent" in said
    assert runs.at_rest()
