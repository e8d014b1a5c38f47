"""A pattern that a spec accepts means the same topics to the region, to the Kafka client and to the broker."""

from __future__ import annotations

import re
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Consumer

from airflow_kcr.embedded.processes import happened
from airflow_kcr.protocol.rules import GroupRules
from airflow_kcr.protocol.values import GroupId, TopicName
from tests.conftest import StartKafka
from tests.contract.kafka.members import WITHIN
from tests.support.kafka import QUIESCED, Kafka
from tests.support.patterns import ACCEPTED, TOPICS


def assigned(kafka: Kafka, pattern: str, protocol: str, expected: Collection[str]) -> set[str]:
    """Return the topics that a consumer gets: those expected, or what it has at the end of the wait."""
    settings = {"group.id": kafka.group_id(), "group.protocol": protocol, "topic.metadata.refresh.interval.ms": 1000}
    consumer = Consumer({**kafka.settings, **QUIESCED, **settings})
    try:
        consumer.subscribe([pattern])

        def got() -> set[str]:
            consumer.poll(0.1)
            return {p.topic for p in consumer.assignment()}

        happened(lambda: got() == set(expected), within=WITHIN)
        return got()
    finally:
        consumer.close()


@pytest.mark.long
def test_a_pattern_means_the_same_topics_to_everyone(kafka_set: StartKafka) -> None:
    kafka = kafka_set()
    for topic in TOPICS:
        kafka.topic(1, name=topic)
    by_rules = {
        pattern: {t for t in TOPICS if GroupRules(group_id=GroupId("g"), pattern=pattern).subscribes(TopicName(t))}
        for pattern in ACCEPTED
    }
    whole_names = {pattern: {t for t in TOPICS if re.fullmatch(pattern, t)} for pattern in ACCEPTED}
    with ThreadPoolExecutor(len(ACCEPTED)) as pool:
        for protocol, expected in (("classic", by_rules), ("consumer", whole_names)):
            asked = {
                pattern: pool.submit(assigned, kafka, pattern, protocol, expected[pattern]) for pattern in ACCEPTED
            }
            assert {pattern: got.result() for pattern, got in asked.items()} == expected
