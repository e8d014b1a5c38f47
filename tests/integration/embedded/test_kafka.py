"""Brokers started for real: what they keep, what they survive, what is left of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from airflow_kcr.embedded.processes import accepts, happened
from airflow_kcr.embedded.servers import Broker
from airflow_kcr.errors import ConfigurationError
from tests.conftest import StartKafka
from tests.support.kafka import QUIESCED, Kafka, KafkaSet
from tests.support.kafka_cluster import start_cluster


def consumed(kafka: Kafka, topic: str, count: int) -> list[tuple[bytes | None, bytes | None]]:
    """What a member of a new group reads, in order of arrival."""
    settings = {
        **kafka.settings,
        **QUIESCED,
        "group.id": kafka.group_id(),
        "auto.offset.reset": "earliest",
        "enable.auto.commit": "false",
    }
    consumer = Consumer(settings)
    found: list[tuple[bytes | None, bytes | None]] = []

    def enough() -> bool:
        message = consumer.poll(0.1)
        if message is not None:
            assert message.error() is None, message.error()
            found.append((message.key(), message.value()))
        return len(found) >= count

    try:
        consumer.subscribe([topic])
        assert happened(enough, within=30), found
    finally:
        consumer.close()
    return found


def client(settings: dict[str, str]) -> AdminClient:
    return AdminClient({**settings, **QUIESCED})


def sasl(kafka: KafkaSet, password: str) -> dict[str, str]:
    return {
        "bootstrap.servers": kafka.sasl_bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": password,
    }


def accepting(broker: Broker) -> bool:
    return accepts(broker.port)


def test_topics_are_not_made_by_asking_for_them(kafka: Kafka) -> None:
    kafka.admin.list_topics("no-such-topic", timeout=10)
    assert kafka.partitions("no-such-topic") == 0


@pytest.mark.long
def test_a_broker_comes_back_with_its_data_after_a_stop_a_kill_and_a_suspension(kafka_set: StartKafka) -> None:
    kafka = kafka_set()
    (broker,) = kafka.brokers
    topic = kafka.topic()
    kafka.fill(topic, {0: 10})
    first = broker.pid
    broker.restart()
    assert broker.pid != first
    broker.kill()
    assert not accepting(broker)
    broker.start()
    assert kafka.ends(topic) == {0: 10}
    assert len(consumed(kafka, topic, 10)) == 10
    # A suspended one answers once it is resumed.
    broker.suspend()
    with pytest.raises(KafkaException):
        client(kafka.settings).list_topics(timeout=0.5)
    broker.resume()
    kafka.produce(topic, [b"x"])
    kafka.cluster.stop()
    assert not accepting(broker)


def test_wrong_credentials_are_refused_and_right_ones_are_not(kafka_set: StartKafka) -> None:
    kafka = kafka_set(sasl_users={"alice": 'quo"te\\d'})
    assert client(sasl(kafka, 'quo"te\\d')).list_topics(timeout=10).brokers
    seen: list[KafkaError] = []
    settings: dict[str, object] = {**sasl(kafka, "another"), **QUIESCED, "error_cb": seen.append}
    wrong = AdminClient(settings)  # type: ignore[arg-type]  # its types leave out the callbacks

    def refused() -> bool:
        wrong.poll(0.1)
        return any(error.code() == KafkaError._AUTHENTICATION for error in seen)

    assert happened(refused, within=10), seen
    written = kafka.brokers[0].folder / "server.properties"
    assert written.stat().st_mode & 0o077 == 0


@pytest.mark.long
def test_a_folder_has_the_set_that_it_was_made_for(tmp_path: Path) -> None:
    cluster = start_cluster(tmp_path)
    cluster.stop()
    with pytest.raises(ConfigurationError, match=r"has a set of 1 broker\(s\), not of 3"):
        start_cluster(tmp_path, brokers=3)
    again = start_cluster(tmp_path)
    again.stop()
    assert again.bootstrap_servers == cluster.bootstrap_servers


def test_a_set_of_four_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="a set has one to 3 brokers, not 4"):
        start_cluster(tmp_path, brokers=4)
