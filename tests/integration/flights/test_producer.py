"""Flights written to a real broker."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, TopicPartition

from airflow_kcr.embedded.flights import data, producer
from airflow_kcr.embedded.processes import free_port, happened
from airflow_kcr.errors import BrokerUnavailable, ConfigurationError
from tests.support.kafka import Kafka


def new_topic(kafka: Kafka, partitions: int = producer.PARTITIONS) -> str:
    name = kafka.group_id("flights")
    assert producer.ensure_topic(kafka.settings, name, partitions)
    return name


def test_five_thousand_flights_come_back_as_they_are_each_carrier_in_order(kafka: Kafka) -> None:
    topic = new_topic(kafka)
    produced = producer.produce(kafka.settings, topic=topic, first=5_000)
    assert produced.records == 5_000

    wanted: dict[bytes, list[bytes]] = defaultdict(list)
    for row in data.flights(5_000):
        wanted[producer.key(row)].append(producer.value(row))
    assert sum(len(key) + len(value) for key, values in wanted.items() for value in values) == produced.size

    ends = kafka.ends(topic)
    consumer = Consumer({**kafka.settings, "group.id": kafka.group_id(), "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, number, 0) for number in ends])
    found: dict[bytes, list[bytes]] = defaultdict(list)
    places: dict[bytes, set[int | None]] = defaultdict(set)
    clocks: Counter[int] = Counter()
    while sum(clocks.values()) < 5_000:
        messages = consumer.consume(1_000, timeout=30)
        assert messages, "nothing came for 30 s"
        for message in messages:
            key, value = message.key(), message.value()
            assert isinstance(key, bytes)
            assert isinstance(value, bytes)
            found[key].append(value)
            places[key].add(message.partition())
            clocks[message.timestamp()[0]] += 1
    consumer.close()

    assert sum(ends.values()) == 5_000
    assert found == wanted
    assert all(len(partitions) == 1 for partitions in places.values())
    assert clocks == {TIMESTAMP_LOG_APPEND_TIME: 5_000}


def test_carriers_make_partitions_of_different_sizes(kafka: Kafka) -> None:
    topic = new_topic(kafka)
    producer.produce(kafka.settings, topic=topic, first=2_000)
    sizes = [size for size in kafka.ends(topic).values() if size]
    assert len(sizes) >= 3
    assert max(sizes) > 2 * min(sizes)


def test_a_topic_that_fits_is_used_again(kafka: Kafka) -> None:
    topic = new_topic(kafka, 3)
    assert not producer.ensure_topic(kafka.settings, topic, 3)


def test_a_topic_that_does_not_fit_is_refused(kafka: Kafka) -> None:
    topic = new_topic(kafka, 3)
    with pytest.raises(ConfigurationError, match="of 3 partitions, not of 4"):
        producer.ensure_topic(kafka.settings, topic, 4)
    with pytest.raises(ConfigurationError, match=r"message\.timestamp\.type=CreateTime"):
        producer.ensure_topic(kafka.settings, kafka.topic(2), 2)


def test_at_a_rate_records_come_no_faster_and_it_can_be_stopped(kafka: Kafka) -> None:
    topic = new_topic(kafka)
    stop = threading.Event()
    with ThreadPoolExecutor(max_workers=1) as pool:
        producing = pool.submit(producer.produce, kafka.settings, topic=topic, rate=100, stop=stop)
        assert happened(lambda: sum(kafka.ends(topic).values()) > 0, within=30)
        stop.set()
        produced = producing.result()
    # In heaps, each at most a twentieth of a second before its time.
    assert 0 < produced.records <= 100 * (produced.seconds + 0.05) + 1
    assert sum(kafka.ends(topic).values()) == produced.records


def test_a_rate_of_nothing_is_refused(kafka: Kafka) -> None:
    with pytest.raises(ConfigurationError, match="a rate of 0 records"):
        producer.produce(kafka.settings, rate=0)


def test_brokers_out_of_reach_are_named() -> None:
    address = f"127.0.0.1:{free_port()}"
    quick = {"bootstrap.servers": address, "delivery.timeout.ms": "1000", "log_level": "0"}
    with pytest.raises(BrokerUnavailable, match=rf"0 flights were written to 'flights' at {address}"):
        producer.produce(quick, first=10)


def test_a_topic_that_can_not_be_created_is_told_with_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer, "_WITHIN", 1.0)
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(BrokerUnavailable, match=rf"'flights' could not be created at {address}"):
        producer.ensure_topic({"bootstrap.servers": address, "log_level": "0"})
