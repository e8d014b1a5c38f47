"""A region that rests between its runs, of two groups on a real broker, a real store and real Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import psycopg

from airflow_kcr.api import Region
from airflow_kcr.embedded.jars import resolve
from airflow_kcr.embedded.processes import happened
from airflow_kcr.protocol.region.rows import RegionState
from airflow_kcr.spec import parse
from tests.support.databases import execute, libpq
from tests.support.jar_sets import POSTGRES_DRIVER
from tests.support.kafka import Kafka, Record
from tests.support.members import TOP
from tests.support.tied import Postgres, start_postgres

PARTITIONS = 2
WITHIN = 280.0
NO_SPARK = ("--master", "spark://127.0.0.1:1")
"""A master that no session comes from: a command that succeeds with it has started no Spark."""


@dataclass(slots=True)
class RestedRegion:
    """A stopped region of two groups, one with a table, and its topics."""

    kafka: Kafka
    store: str
    table: Postgres
    name: str
    topic: str
    jars: str
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def group(self) -> str:
        """The group with the table."""
        return f"{self.name}-rows"

    @property
    def spark(self) -> tuple[str, ...]:
        """The options that start Spark."""
        return ("--master", "local[2]", "--jars", self.jars)

    def fill(self, word: str, at: datetime) -> None:
        """Produce ten records of each partition, stamped with an instant."""
        records = [
            Record(value=f"{word} {p}-{n}".encode(), partition=p, timestamp=at) for p in range(2) for n in range(10)
        ]
        self.kafka.produce(self.topic, records)

    def begun(self, *arguments: str) -> subprocess.Popen[str]:
        """Return a command that was started."""
        command = [sys.executable, "-m", "airflow_kcr", *arguments]
        environ = {**os.environ, "KCR_STORE_URL": self.store, **self.environ}
        pipe = subprocess.PIPE
        return subprocess.Popen(command, cwd=TOP, env=environ, stdout=pipe, stderr=pipe, text=True)

    def kcr(self, *arguments: str) -> tuple[int, str, str]:
        """Return how a command ended, and what it said on both channels."""
        with self.begun(*arguments) as process:
            try:
                out, said = process.communicate(timeout=WITHIN)
            except subprocess.TimeoutExpired:
                process.kill()
                out, said = process.communicate()
                raise AssertionError(f"not over within {WITHIN} s: {arguments}\n{said}") from None
        return process.returncode, out, said

    def run(self, *options: str, spark: tuple[str, ...] | None = None) -> dict[str, object]:
        """Carry a run out, and return what it answers."""
        status, out, said = self.kcr("run", self.name, *options, *(self.spark if spark is None else spark))
        assert status == 0, said
        answer: dict[str, object] = json.loads(out)
        return answer

    def recompute(self, *options: str, spark: tuple[str, ...] | None = None) -> list[dict[str, object]]:
        """Recompute what the group with the table has, and return what is answered."""
        its = ("--group", self.group, *(self.spark if spark is None else spark))
        status, out, said = self.kcr("recompute", self.name, *options, *its)
        assert status == 0, said
        answer: list[dict[str, object]] = json.loads(out)
        return answer

    def rows(self, table: str = "out") -> Counter[str]:
        """How often a table has each value."""
        return Counter(dict(execute(self.table.url(), f'SELECT value, count(*) FROM "{table}" GROUP BY value')))

    def table_in_order(self) -> list[tuple[object, ...]]:
        """The rows by boundary of their checkpoint, partition and offset; two regions can have the same."""
        found = execute(self.table.url(), "SELECT value, kcr_partition, kcr_offset, kcr_sequence FROM out")
        with Region(self.name, self.store) as region:
            rows = [one.checkpoint for one in region.checkpoints.list()]
        ends = {int(row.sequence): row.boundary.isoformat() for row in rows if row.boundary is not None}
        return sorted(((*row, ends[sequence]) for *row, sequence in found), key=lambda row: (row[3], row[1], row[2]))

    def at_rest(self) -> bool:
        """Whether the region is stopped, no member has a lease, and Kafka holds the newest checkpoint."""
        with Region(self.name, self.store) as region:
            view = region.show()
            assert region.verify().violations == ()
            sequence = view.last_complete
            equal = sequence is None or all(str(row.finding) == "equal" for row in region.checkpoints.compare(sequence))
            alive = any(member.alive for group in view.groups for member in group.members)
            return str(view.state) == RegionState.STOPPED and not alive and equal


def all_of(*words: str, suffix: str = "") -> Counter[str]:
    """Every record of these words once."""
    return Counter(f"{word} {p}-{n}{suffix}" for word in words for p in range(PARTITIONS) for n in range(10))


def until(reached: Callable[[], bool], what: str) -> None:
    """Wait for something that a command brings about."""
    assert happened(reached, within=WITHIN, pause=0.2), f"not in time: {what}"


@contextmanager
def rested_region(
    kafka: Kafka, store: str, folder: Path, connector_jars: tuple[Path, ...], sink: str = ""
) -> Iterator[RestedRegion]:
    """Lend a declared region that has never run.

    Args:
        kafka: the broker.
        store: the store's URL.
        folder: for the server of the table.
        connector_jars: of Spark's connector.
        sink: further fields of the sink.
    """
    name, topic = kafka.group_id("runs"), kafka.topic(PARTITIONS)
    with start_postgres(folder) as table:
        spec = parse(
            f"region: {name}\n"
            f"kafka: {{bootstrap.servers: '{kafka.bootstrap_servers}'}}\n"
            "groups:\n"
            f"  - {{group_id: {name}-rows, topics: [{topic}], members: 2, delivery: exactly_once,\n"
            "     pipeline: 'tests.support.interval_pipeline:process',\n"
            f"     sinks: {{out: {{kind: postgres, url: '{table.url()}', table: out{sink}}}}}}}\n"
            f"  - {{group_id: {name}-count, topics: [{topic}], pipeline: 'tests.support.interval_pipeline:count'}}\n"
        )
        with psycopg.connect(libpq(table.url())) as connection:
            connection.execute(
                "CREATE TABLE out (value text, kcr_topic text, kcr_partition int, kcr_offset bigint, kcr_source int, "
                "kcr_timeline bigint, kcr_sequence bigint)"
            )
        with Region(name, store) as region:
            region.apply(spec)
        jars = ",".join(map(str, (*connector_jars, *resolve(POSTGRES_DRIVER))))
        yield RestedRegion(kafka, store, table, name, topic, jars)
