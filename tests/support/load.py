"""A producer that goes on producing, beside what a test does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Producer

from tests.support.kafka import QUIESCED, WITHIN, Kafka


@contextmanager
def steadily(kafka: Kafka, topic: str, partitions: int, every: float) -> Iterator[None]:
    """Produce a record to every partition each `every` seconds, in a thread, for as long as the context lasts."""
    over = threading.Event()

    def produce() -> None:
        producer = Producer({**kafka.settings, **QUIESCED, "linger.ms": 0})
        while not over.wait(every):
            for partition in range(partitions):
                producer.produce(topic, value=b"steady", partition=partition)
            producer.poll(0)
        producer.flush(WITHIN)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
