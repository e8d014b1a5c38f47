"""Whether Kafka throttles what executors read, asked from the driver: their own clients' metrics stay with them.

A broker that a quota has told to slow a client down answers its fetches at once, with nothing, and says for how long it
will not listen to it. Nothing of that reaches Spark: a task just waits for its records.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from airflow_kcr.spark import jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_kcr.protocol.values import GroupPartition, Offset

_POLL_MILLIS: Final = 500
_ANSWERED_WITHIN: Final = 10.0
_BYTES: Final = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
_METRIC: Final = "fetch-throttle-time-max"


def throttle_time(spark: SparkSession, options: Mapping[str, str], place: GroupPartition, offset: Offset) -> float:
    """Return for how many seconds the broker has put off a fetch of the same user and client; 0.0: it has not.

    It fetches as much as they do: of less, the broker would let through what it refuses them. What it gets counts
    against the quota as any other fetch.

    Args:
        spark: any session of the application.
        options: those of the connector that the executors' clients have.
        place: a partition that is read.
        offset: of a record in it.

    Raises:
        Py4JError: Kafka doesn't answer, or Spark doesn't.
    """
    java = jvm.virtual_machine(spark.sparkContext)
    settings = java.java.util.HashMap()
    client = {name.removeprefix("kafka."): value for name, value in options.items() if name.startswith("kafka.")}
    kinds = {"key.deserializer": _BYTES, "value.deserializer": _BYTES, "enable.auto.commit": "false"}
    for name, value in {**client, **kinds}.items():
        settings.put(name, value)
    consumer = java.org.apache.kafka.clients.consumer.KafkaConsumer(settings)
    try:
        partition = java.org.apache.kafka.common.TopicPartition(str(place.topic), int(place.partition))
        consumer.assign(java.java.util.Collections.singletonList(partition))
        consumer.seek(partition, int(offset))
        (metric,) = [one for name, one in consumer.metrics().items() if name.name() == _METRIC]
        # Of a client that has had no answer it is not a number.
        deadline, millis = time.monotonic() + _ANSWERED_WITHIN, math.nan
        while math.isnan(millis) and time.monotonic() < deadline:
            consumer.poll(java.java.time.Duration.ofMillis(_POLL_MILLIS))
            millis = float(metric.metricValue())
    finally:
        consumer.close(java.java.time.Duration.ofMillis(0))
    return 0.0 if math.isnan(millis) else millis / 1_000


ASKED_AFTER: Final = 5.0
"""Seconds that a batch may take before Kafka is asked; each next question comes after twice as many."""

_ASKED_AGAIN: Final = 30.0
"""Seconds until Kafka is asked again once it throttles, and at most: a question that it answers costs a fetch."""

_TOLD_EVERY: Final = 60.0
_SLOWED: Final = "Kafka throttles what it reads: a quota of its user or client (consumer_byte_rate)"

_LOG = logging.getLogger(__name__)


class ThrottlingWatch:
    """Notices and logs that Kafka throttles a member's reads, while a batch takes long: nothing else would name it.

    Args:
        asked_after: seconds that a batch may take before it asks.
    """

    def __init__(self, asked_after: float = ASKED_AFTER) -> None:
        self._asked_after, self._told_at, self._seen_at = asked_after, -math.inf, -math.inf

    def slowed(self) -> str:
        """Return that Kafka throttles, for a while after that was seen; empty: it does not."""
        return _SLOWED if time.monotonic() - self._seen_at < _TOLD_EVERY else ""

    @contextmanager
    def over(self, batch: str, ask: Callable[[], float]) -> Iterator[None]:
        """Watch a batch as long as the block lasts.

        Args:
            batch: as messages name it.
            ask: for how many seconds Kafka has put off a fetch; what it raises says nothing.
        """
        over = threading.Event()
        threading.Thread(target=self._watch, args=(batch, ask, over), name=f"watches {batch}", daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def _watch(self, batch: str, ask: Callable[[], float], over: threading.Event) -> None:
        pause = self._asked_after
        while not over.wait(pause):
            pause = min(2 * pause, _ASKED_AGAIN)
            try:
                seconds = ask()
            except Exception as error:  # noqa: BLE001 (the batch meets it too, and says what it means)
                _LOG.debug("whether Kafka throttles can't be told: %s: %s", type(error).__name__, error)
                continue
            if seconds:
                self._seen_at, pause = time.monotonic(), _ASKED_AGAIN
            if seconds and time.monotonic() - self._told_at >= _TOLD_EVERY:
                self._told_at = time.monotonic()
                _LOG.warning(
                    "%s: %s. A fetch was put off for %.0f ms; it goes on as fast as the quota allows, raise that with "
                    "kafka-configs if need be",
                    batch,
                    _SLOWED,
                    1_000 * seconds,
                )
