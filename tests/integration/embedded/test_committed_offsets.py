"""The offsets of a group, as the demo's judgement reads them."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from airflow_kcr.embedded.demo.judgement import committed_offsets
from airflow_kcr.embedded.processes import free_port, happened
from airflow_kcr.errors import ServiceFailed
from tests.support.kafka import Kafka


def test_what_a_group_has_committed_is_read_and_a_partition_without_an_offset_is_left_out(kafka: Kafka) -> None:
    topic, group = kafka.topic(partitions=3), kafka.group_id()
    consumer = Consumer({**kafka.settings, "group.id": group})

    def is_committed() -> bool:
        try:
            consumer.commit(offsets=[TopicPartition(topic, 0, 0), TopicPartition(topic, 2, 17)], asynchronous=False)
        except KafkaException:  # the group's coordinator is not known, or not ready, at once
            return False
        return True

    assert happened(is_committed, within=60)
    consumer.close()
    assert committed_offsets(kafka.bootstrap_servers, group) == {(topic, 0): 0, (topic, 2): 17}


def test_a_broker_that_is_away_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_kcr.embedded.demo.judgement._HELD_WITHIN", 0.5)
    with pytest.raises(ServiceFailed, match="does not tell the offsets of group etl"):
        committed_offsets(f"127.0.0.1:{free_port()}", "etl")
