"""What exactly-once into Postgres costs: against Spark's own JDBC append of the same batches, with no promise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count

import psycopg
import pytest

from airflow_kcr.embedded.servers import USER
from tests.benchmarks.contenders import Reading, member, rates, shown
from tests.benchmarks.figures import Report, Scale, in_turns, ratio
from tests.benchmarks.lab import PARTITIONS, Filled, Lab
from tests.benchmarks.pipelines import DATABASE_VARIABLE
from tests.support.tied import Postgres, start_postgres

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(1800)]

RECORDS = 120_000
BATCHES = (20_000, 60_000)
SIZE = 1_000


@pytest.fixture
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """A database for the tables, whose every COMMIT waits for the disk."""
    with start_postgres(tmp_path_factory.mktemp("target"), settings={}) as server:
        yield server


@pytest.mark.parametrize("batch", BATCHES)
def test_exactly_once_against_an_append(
    batch: int,
    lab: Lab,
    scale: Scale,
    report: Callable[[str], Report],
    target: Postgres,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(DATABASE_VARIABLE, f"jdbc:postgresql://127.0.0.1:{target.port}/postgres?user={USER}")
    monkeypatch.setenv("KCR_BENCHMARK_SINK", target.url())
    found = report(f"sink-postgres-{batch}")
    topic = lab.filled(scale.of(RECORDS, batch), SIZE)
    numbers = count()

    def into_sink(delivery: str) -> Reading:
        # A table of its own each time, so that none is larger than the other's.
        out = f"{{kind: postgres, url: '${{KCR_BENCHMARK_SINK}}', table: out_{next(numbers)}}}"
        more = f", delivery: {delivery}, sinks: {{out: {out}}}"
        return emptied(target, member(lab, topic, batch, "sink", more))

    def appended(topic: Filled, pipeline: str) -> Reading:
        return emptied(target, member(lab, topic, batch, pipeline))

    ours, theirs, tuned = "the sink, exactly_once", "Spark's JDBC append", "Spark's JDBC append with our settings"
    contenders = {
        ours: partial(into_sink, "exactly_once"),
        theirs: partial(appended, topic, "append"),
        tuned: partial(appended, topic, "append_with_our_settings"),
    }
    race = in_turns(contenders, scale.rounds)
    found.table(
        f"{topic.records:,} records of {SIZE:,} B, {PARTITIONS} partitions, batches of {batch:,}: records a second",
        ("who writes", "batches a round", "median", "smallest to largest"),
        shown(race, rates),
    )
    found.at_least("exactly once: to an append", ratio(rates(race[ours]), rates(race[theirs])), 0.8)
    found.at_least("exactly once: to an append with our settings", ratio(rates(race[ours]), rates(race[tuned])), 0.8)


def emptied(target: Postgres, reading: Reading) -> Reading:
    """Drop what a round has written; return its figures."""
    with psycopg.connect(target.url(), autocommit=True) as connection:
        tables = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename ~ '^(out|append)_'"
        ).fetchall()
        for (name,) in tables:
            connection.execute(f'DROP TABLE "{name}"'.encode())
        connection.execute("CHECKPOINT")
    return reading
