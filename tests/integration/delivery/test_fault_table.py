"""The table of faults: each delivery, each fault, at each step of a batch (design section 12).

Real broker, real store, real table, both in servers that the test kills; members in processes of their own with an
engine without Spark. Judged by what each delivery promises, `tests.support.delivery_accounts`, after every fault. With
`KCR_FAULT_TABLE` set to a file, each combination is added to it as a line of JSON.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_kcr.embedded.postgres import Postgres, start_postgres
from airflow_kcr.protocol.delivery import Delivery
from airflow_kcr.store.schema_upgrade import upgrade
from tests.conftest import StartKafka
from tests.support.delivery_faults import STEPS, Row, stage
from tests.support.faults import Note
from tests.support.kafka import Kafka, KafkaSet

FAULTS = ("process", "zombie", "store", "target", "broker")
ROWS = "KCR_FAULT_TABLE"

pytestmark = [pytest.mark.timeout(180), pytest.mark.postgres]


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """What can be killed: the store's Postgres and the table's."""

    store: Postgres
    target: Postgres


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    """Two servers of this test alone, the store's with its schema."""
    with_store = start_postgres(tmp_path / "store")
    try:
        with_table = start_postgres(tmp_path / "target")
        upgrade(with_store.url())
        yield Servers(store=with_store, target=with_table)
        with_table.stop()
    finally:
        with_store.stop()


def noted(rows: Sequence[Row], note: Note) -> None:
    """Keep the rows."""
    for row in rows:
        note(f"{row.delivery} {row.fault} {row.step}", str(row))
    if ROWS in os.environ:
        with Path(os.environ[ROWS]).open("a") as out:
            out.writelines(f"{row}\n" for row in rows)


def killing(fault: str, servers: Servers, kafka: KafkaSet) -> Callable[[], None] | None:
    """What kills a service and starts it again; None where a process of a member is meant."""

    def broker() -> None:
        kafka.broker(1).kill()
        kafka.broker(1).start()

    def database(server: Postgres) -> Callable[[], None]:
        def killed() -> None:
            server.kill()
            server.start()

        return killed

    return {"store": database(servers.store), "target": database(servers.target), "broker": broker}.get(fault)


@pytest.mark.soak
@pytest.mark.timeout(2_400)
@pytest.mark.parametrize("fault", FAULTS)
def test_every_delivery_keeps_its_promise_at_every_step(
    kafka_set: StartKafka, servers: Servers, tmp_path: Path, record_property: Note, fault: str
) -> None:
    kafka = kafka_set(1)
    with stage(kafka, servers.store.url(), servers.target.url(), tmp_path) as regions:
        try:
            regions.play(fault, STEPS, killing(fault, servers, kafka))
        finally:
            noted([row for scene in regions.scenes for row in scene.rows], record_property)


def test_a_sample_of_the_table(kafka: Kafka, servers: Servers, tmp_path: Path, record_property: Note) -> None:
    deliveries = (Delivery.EXACTLY_ONCE, Delivery.AT_MOST_ONCE)
    with stage(kafka, servers.store.url(), servers.target.url(), tmp_path, deliveries) as regions:
        noted(regions.play("process", ("written", "published")), record_property)
