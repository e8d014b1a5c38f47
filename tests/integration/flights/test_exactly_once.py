"""Every flight once in a table, whatever is killed and wherever the region goes back to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from pyspark.sql import functions as F

from airflow_kcr.api import Region
from airflow_kcr.embedded.flights import producer, result
from airflow_kcr.embedded.flights.data import BOOTSTRAP_VARIABLE, text_of
from airflow_kcr.embedded.flights.pipeline import FLIGHT
from airflow_kcr.protocol.region.rows import RegionState, ResetCause, ResetRequest
from airflow_kcr.protocol.targets import ToCheckpoint
from airflow_kcr.protocol.values import Offset
from airflow_kcr.spec import parse
from tests.support.delivery_accounts import rows_of
from tests.support.faults import checkpoints
from tests.support.kafka import Kafka
from tests.support.members import named
from tests.support.tied import start_postgres

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
WITHIN = 300.0


@pytest.fixture
def target_url(tmp_path: Path) -> Iterator[str]:
    """A database of its own for the table, by TCP as executors need it."""
    with start_postgres(tmp_path / "target") as server:
        yield server.url()


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
    on_spark: dict[str, str],
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The members, and the plan of a reset, which looks at the logs, take the addresses from the environment.
    monkeypatch.setenv(BOOTSTRAP_VARIABLE, kafka.bootstrap_servers)
    monkeypatch.setenv("KCR_FLIGHTS_DATABASE", target_url)
    name = kafka.group_id("flights")
    producer.ensure_topic(kafka.settings, name)
    text = text_of("flights_exactly_once.yaml").replace("flights-etl", name).replace("[flights]", f"[{name}]")
    # However many checkpoints a slow machine makes meanwhile, the one that is gone back to is there.
    spec = parse(text.replace("region: flights", f"region: {name}") + "retention: {keep: 1000}\n")
    with (
        named(kafka, database_url, spec, tmp_path / "region", hosting=on_spark["hosting"]) as one,
        Region(name, one.store) as region,
    ):
        one.start(0, 1)
        victim = one.start(2)
        one.until_running(WITHIN)
        producer.produce(kafka.settings, topic=name, first=FLIGHTS, rate=RATE)
        one.until(lambda: rows(target_url) > 0 and bool(checkpoints(one)), "rows and a checkpoint", WITHIN)
        victim.kill()
        one.start(2)
        one.until(lambda: rows(target_url) == FLIGHTS, "every flight in the table", WITHIN)
        region.wait_for_checkpoint(region.drain().request.request_id)
        # What is newer leaves the table, and comes again.
        found = checkpoints(one)
        target = ToCheckpoint(sequence=found[(len(found) - 1) // 2].sequence)
        plan = region.resets.plan(ResetRequest(target=target))
        region.resets.apply(plan, "to see")
        region.resets.wait_for(plan.plan, timedelta(seconds=120))
        one.until(lambda: rows(target_url) == FLIGHTS, "every flight in the table again", WITHIN)
        region.stop()
        one.until(lambda: one.region().state is RegionState.STOPPED, "stopped", WITHIN)
        stopped = one.region()
        assert ResetCause.PERSON in {r.cause for r in stopped.resets.values()}
        assert region.verify().violations == ()
        ends = {place: claim.position or Offset(0) for place, claim in stopped.claims.items()}
    records = Counter((place.topic, place.partition, o) for place, end in ends.items() for o in range(end))
    assert records.total() == FLIGHTS
    assert Counter(rows_of(target_url, "flights")) == records
    address = target_url.replace("postgresql://postgres@", "jdbc:postgresql://")
    table = spark.read.jdbc(address, "flights", properties={"user": "postgres", "driver": "org.postgresql.Driver"})
    direct = result.from_topic(spark, result.read_topics(spark, kafka.settings, ends))
    assert result.compare(result.fold(table.withColumn("kind", F.lit(FLIGHT))), direct)[1] == 0
