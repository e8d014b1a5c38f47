"""Executors and rights: READ of the topic is all that they need, as docs/reference/rights.md says."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from airflow_kcr.errors import BatchFailed
from airflow_kcr.kafka.settings import spark_options
from airflow_kcr.protocol.values import MemberId, RegionId
from airflow_kcr.spark.engine import SparkEngine
from airflow_kcr.spark.reads import Source
from tests.conftest import StartKafka
from tests.integration.spark.batches import GROUP, REGION, Collected, call
from tests.support.kafka import KafkaSet
from tests.support.rights import AUTHORIZER, LOGIN, ON_TOPIC, PASSWORD, READ, USER, Right, Row, grant, listed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = [row for row in listed() if row.client == "executors"]


@pytest.fixture
def kafka(kafka_set: StartKafka) -> KafkaSet:
    return kafka_set(settings=AUTHORIZER, sasl_users={USER: PASSWORD})


@pytest.fixture
def read(spark: SparkSession, kafka: KafkaSet) -> Callable[[str], list[int]]:
    """Reads ten records of a topic on Spark."""
    login = {"bootstrap.servers": kafka.sasl_bootstrap_servers, **LOGIN, "sasl.password": PASSWORD}
    client = {name.removeprefix("kafka."): value for name, value in spark_options(login).items()}
    source = Source(region=REGION, region_id=RegionId("1"), member=MemberId(GROUP, 0), kafka=client, options={})

    def read(topic: str) -> list[int]:
        collected = Collected()
        SparkEngine(spark, collected, source).run(call(topic, {0: (0, 10)}))
        return collected.offsets()

    return read


@pytest.mark.long
def test_executors_need_read_of_the_topic_and_nothing_else(kafka: KafkaSet, read: Callable[[str], list[int]]) -> None:
    readable: frozenset[Right] = frozenset({(ON_TOPIC, READ)})
    assert {row.right for row in ROWS} > readable
    for row in ROWS:
        topic = kafka.topic(1)
        kafka.fill(topic, {0: 10})
        grant(kafka, readable, topic=topic, group=GROUP)
        assert read(topic) == list(range(10))
        _without(row, kafka, read)


def _without(row: Row, kafka: KafkaSet, read: Callable[[str], list[int]]) -> None:
    """Read a topic that no executor has a consumer of yet."""
    topic = kafka.topic(1)
    kafka.fill(topic, {0: 10})
    grant(kafka, row.others, topic=topic, group=GROUP)
    with pytest.raises(BatchFailed) as failed:
        read(topic)
    assert all(text in str(failed.value) for text in row.without), failed.value
    assert PASSWORD not in str(failed.value)
