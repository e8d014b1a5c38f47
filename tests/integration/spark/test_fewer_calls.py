"""A region on a service that lacks some of a broker's calls, and has older versions of others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_kcr.api import Region, ResetRequest
from airflow_kcr.api.clusters import real_reader
from airflow_kcr.api.validation import report, validate
from airflow_kcr.goals import STOPPED
from airflow_kcr.protocol.targets import ToDatetime, ToOffset
from airflow_kcr.protocol.validation import Check, Question
from airflow_kcr.protocol.values import EPOCH_START, Offset
from tests.support.fewer_calls import EVENT_HUBS, broker_with
from tests.support.kafka import Kafka
from tests.support.members import BRISK, Live, live

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with broker_with(EVENT_HUBS, tmp_path_factory.mktemp("service") / "broker") as service:
        yield service


def checks(one: Live) -> dict[Question, Check]:
    return {check.question: check for check in validate(one.store, one.name, real_reader).checks}


def test_a_region_of_dynamic_members_works_as_on_a_broker(service: Kafka, database_url: str, tmp_path: Path) -> None:
    dynamic = ", static_membership: false"
    with live(service, database_url, tmp_path, members=2, partitions=3, spec=BRISK, group=dynamic) as one:
        one.fill(100)
        process = one.start(0, 1)
        one.until(one.consumed, "all records")
        one.checkpoint()
        found = checks(one)
        assert {q: c.detail for q, c in found.items() if c.verdict != "ok"} == {}
        assert "Kafka's own limits are assumed" in found[Question.TIMES].detail
        with Region(one.name, one.store) as region:
            region.stop()
            region.wait_for(STOPPED)
            process.wait(30)
            assert service.committed(one.group, one.topic) == {(one.topic, n): 100 for n in range(3)}
            by_time = region.resets.plan(ResetRequest(target=ToDatetime(instant=EPOCH_START)))
            assert [line.target for line in by_time.entries] == [0, 0, 0]
            region.resets.apply(region.resets.plan(ResetRequest(target=ToOffset(offset=Offset(60)))), "to see")
            assert service.committed(one.group, one.topic) == {(one.topic, n): 60 for n in range(3)}
            region.start()
            one.start(0, 1)
            one.until(one.consumed, "the rest once more")
            one.checkpoint()
        one.require_sound()


def test_static_members_are_taken_for_foreign_consumers(service: Kafka, database_url: str, tmp_path: Path) -> None:
    with live(service, database_url, tmp_path, members=1, partitions=1, spec=BRISK) as one:
        one.start(0)
        one.until_running()
        one.until(lambda: one.owners() == {0: 0}, "the member in its group")
        # What members do every few seconds.
        halt = report(one.store, one.name, validate(one.store, one.name, real_reader)).halt
        assert halt is not None
        assert f"kcr.{one.name}.{one.group}.0000" in halt.text


def test_executors_read_the_records(service: Kafka, spark: SparkSession) -> None:
    topic = service.topic(2)
    service.fill(topic, {0: 40, 1: 20})
    read = spark.read.format("kafka").option("kafka.bootstrap.servers", service.bootstrap_servers)
    assert read.option("subscribe", topic).option("kafka.isolation.level", "read_committed").load().count() == 60
