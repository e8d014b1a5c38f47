"""Writes the flights to a topic, all at once or at a rate, and says how many and how fast."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from zoneinfo import ZoneInfo

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from airflow_kcr.embedded.flights import data
from airflow_kcr.embedded.flights.data import NOT_AVAILABLE
from airflow_kcr.errors import BrokerUnavailable, ConfigurationError

TOPIC: Final = "flights"
PARTITIONS: Final = 6
TIMESTAMPS: Final = ("message.timestamp.type", "LogAppendTime")
"""By the broker's clock: flights of 2013 would be retention's at once."""

_WITHIN: Final = 30.0
_DELIVERY: Final = 60.0
_QUEUED: Final = 50_000
"""Records that wait for the broker at most; the client's own queue is twice as long."""

_AHEAD: Final = 0.05
"""At a rate, records are sent in small heaps, at most this many seconds before their time."""

_SETTINGS: Final[Mapping[str, str | int | bool]] = {
    "enable.idempotence": True,
    "compression.type": "lz4",
    "linger.ms": 20,
    "partitioner": "murmur2_random",  # as Java's client does, so that a key has the same partition with every client
    "delivery.timeout.ms": round(1000 * _DELIVERY),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Produced:
    """What has been written, and in which time."""

    records: int
    """Those that the broker has confirmed."""

    size: int
    """Bytes of their keys and values, before compression."""

    seconds: float

    def __str__(self) -> str:
        rate = self.records / self.seconds if self.seconds else 0.0
        return f"{self.records:,} flights, {self.size / 1e6:,.1f} MB, in {self.seconds:.1f} s ({rate:,.0f} a second)"


def ensure_topic(kafka: Mapping[str, str], topic: str = TOPIC, partitions: int = PARTITIONS) -> bool:
    """Create the topic if there is none, and return whether it was created.

    Args:
        kafka: client settings.
        topic: its name.
        partitions: how many it has.

    Raises:
        ConfigurationError: there is one that has other partitions, or timestamps that come with the records.
        BrokerUnavailable: the broker does not answer, or refuses.
    """
    admin = AdminClient(dict(kafka))
    new = NewTopic(topic, partitions, config=dict([TIMESTAMPS]))
    try:
        admin.create_topics([new], operation_timeout=_WITHIN, request_timeout=_WITHIN)[topic].result(_WITHIN)
    except (TimeoutError, KafkaException) as error:
        why = error.args[0] if isinstance(error, KafkaException) else KafkaError(KafkaError.REQUEST_TIMED_OUT)
        if why.code() != KafkaError.TOPIC_ALREADY_EXISTS:
            where = _address(kafka)
            raise BrokerUnavailable(f"the topic {topic!r} could not be created at {where}: {why.str()}") from error
        _check_topic(admin, topic, partitions)
        return False
    return True


def produce(
    kafka: Mapping[str, str],
    *,
    topic: str = TOPIC,
    first: int | None = None,
    rate: float | None = None,
    stop: threading.Event | None = None,
) -> Produced:
    """Write flights to a topic that exists, each once, and return when the broker has confirmed them all.

    Args:
        kafka: client settings.
        topic: its name.
        first: only the first N flights, in the order of their scheduled departures; None: all.
        rate: records a second; None: as fast as it goes.
        stop: set from another thread to end early; what was sent until then is still confirmed.

    Raises:
        ToolMissing: the package with the flights is not installed.
        ConfigurationError: nothing can be written so.
        BrokerUnavailable: a record was not confirmed; the message says how many were.
    """
    if rate is not None and rate <= 0:
        raise ConfigurationError(f"a rate of {rate:g} records a second writes nothing; give one above 0")
    flights, stop = data.flights(first), stop or threading.Event()
    producer, begun = Producer({**_SETTINGS, **kafka}), time.monotonic()
    confirmed: list[int] = []
    failures: list[str] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is None:
            confirmed.append(len(message.key() or b"") + len(message.value() or b""))
        else:
            failures.append(error.str())

    for number, row in enumerate(flights):
        turn = begun if rate is None else begun + number / rate
        while turn - time.monotonic() > _AHEAD and not stop.wait(_AHEAD):
            producer.poll(0)
        if stop.is_set() or failures:
            break
        if len(producer) >= _QUEUED:
            producer.flush(_DELIVERY)
        producer.produce(topic, value=value(row), key=key(row), on_delivery=delivered)
        producer.poll(0)
    left = producer.flush(_DELIVERY + _WITHIN)
    if left or failures:
        raise BrokerUnavailable(
            f"{len(confirmed):,} flights were written to {topic!r} at {_address(kafka)}, the next were not: "
            f"{failures[0] if failures else f'{left:,} were not confirmed in time'}"
        )
    return Produced(records=len(confirmed), size=sum(confirmed), seconds=time.monotonic() - begun)


def _check_topic(admin: AdminClient, topic: str, partitions: int) -> None:
    found = len(admin.list_topics(topic, timeout=_WITHIN).topics[topic].partitions)
    if found != partitions:
        raise ConfigurationError(f"there is a topic {topic!r} of {found} partitions, not of {partitions}; name another")
    resource, (name, wanted) = ConfigResource(ResourceType.TOPIC, topic), TIMESTAMPS
    entry = admin.describe_configs([resource], request_timeout=_WITHIN)[resource].result(_WITHIN)[name]
    if entry.value != wanted:
        raise ConfigurationError(
            f"the topic {topic!r} has {name}={entry.value}; the flights need {wanted}, name another one"
        )


def _address(kafka: Mapping[str, str]) -> str:
    return kafka.get("bootstrap.servers", "no address")


# How a flight is written as a Kafka record: the carrier is the key, compact JSON the value.
#
# The times of the flight are in the value. As the record's own timestamp they would be of no use: to a topic that
# keeps a week, records of 2013 are old, and retention takes them at once.

ZONE: Final = ZoneInfo("America/New_York")
"""Of all three airports."""

_NUMBERS: Final = ("flight", "year", "month", "day", "hour", "dep_delay", "arr_delay", "distance")
_encode: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def key(row: Mapping[str, str]) -> bytes:
    """Return the record's key; the flights of a carrier stay in order, and big carriers make big partitions."""
    return row["carrier"].encode()


def value(row: Mapping[str, str]) -> bytes:
    """Return the record's value: UTF-8 JSON, null where the file has no value.

    `scheduled` and `departed` are ISO 8601 in New York's time; a cancelled flight has no `departed` and no delays.
    `year` to `hour` are of the scheduled departure by the airport's clock, as the weather has them.

    Args:
        row: a flight by the names of the file's columns.
    """
    year, month, day, hour, minute = (int(row[name]) for name in ("year", "month", "day", "hour", "minute"))
    scheduled = datetime(year, month, day, hour, minute, tzinfo=ZONE)
    numbers = {name: None if row[name] == NOT_AVAILABLE else int(row[name]) for name in _NUMBERS}
    delay = numbers["dep_delay"]
    # By way of UTC: hours after a change to or from summer time are not hours on the clock.
    departed = None if delay is None else datetime.fromtimestamp(scheduled.timestamp() + 60 * delay, ZONE)
    return _encode(
        {
            **{name: row[name] for name in ("carrier", "origin", "dest")},
            "tailnum": None if row["tailnum"] == NOT_AVAILABLE else row["tailnum"],
            **numbers,
            "scheduled": scheduled.isoformat(),
            "departed": departed and departed.isoformat(),
        }
    ).encode()
