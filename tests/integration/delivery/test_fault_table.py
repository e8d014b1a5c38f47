"""The table of faults: each delivery, each fault, at each step of a batch (docs/explanation/delivery.md).

Real broker, real store, real table, both in servers that the test kills; members in processes of their own with an
engine without Spark. Judged by what each delivery promises, `tests.support.delivery_accounts`, after every fault. With
`KCR_FAULT_TABLE` set to a file, each combination is added to it as a line of JSON.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_kcr.protocol.rules import Delivery
from tests.conftest import StartKafka
from tests.support.delivery_faults import STEPS, scene, stage
from tests.support.delivery_servers import Servers, killing, noted
from tests.support.faults import Note, checkpoints
from tests.support.kafka import Kafka

FAULTS = ("process", "zombie", "store", "target", "outage", "broker")

pytestmark = [pytest.mark.timeout(180), pytest.mark.postgres]


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


@pytest.mark.soak
@pytest.mark.timeout(2_400)
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "target"])
def test_files_hold_each_record_once_at_every_step(
    kafka_set: StartKafka, servers: Servers, tmp_path: Path, record_property: Note, fault: str
) -> None:
    kafka = kafka_set(1)
    with stage(kafka, servers.store.url(), tmp_path / "files", tmp_path, (Delivery.EXACTLY_ONCE,)) as regions:
        try:
            regions.play(fault, STEPS, killing(fault, servers, kafka))
        finally:
            noted([row for scene in regions.scenes for row in scene.rows], record_property)


@pytest.mark.timeout(300)
def test_a_sample_of_the_table(kafka: Kafka, servers: Servers, tmp_path: Path, record_property: Note) -> None:
    deliveries = (Delivery.EXACTLY_ONCE, Delivery.AT_MOST_ONCE)
    with stage(kafka, servers.store.url(), servers.target.url(), tmp_path, deliveries) as regions:
        noted(regions.play("process", ("staged",)), record_property)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("step", ["processing", "staged", "published"])
@pytest.mark.parametrize("delivery", Delivery)
def test_a_member_killed_before_the_first_checkpoint_keeps_the_promise(
    kafka: Kafka, servers: Servers, tmp_path: Path, record_property: Note, delivery: Delivery, step: str
) -> None:
    with scene(kafka, servers.store.url(), servers.target.url(), delivery, tmp_path / "region") as now:
        now.is_held(step)
        assert not checkpoints(now.one)
        now.is_killed()
        now.is_over("process", step)
        noted(now.rows, record_property)
