"""Writes the flights to a topic, all at once or at a rate, and says how many and how fast."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
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
_TOLD_EVERY: Final = 0.5
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
class Order:
    """What to write.

    Args:
        topic: its name.
        first: only the first N flights, in the order of their scheduled departures; None: all.
        rate: records a second; None: as fast as it goes.
    """

    topic: str = TOPIC
    first: int | None = None
    rate: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Produced:
    """What has been written, and in which time; told while it runs, and returned at the end."""

    records: int
    """Those that the broker has confirmed."""

    size: int
    """Bytes of their keys and values, before compression."""

    seconds: float

    @property
    def rate(self) -> float:
        """Records a second."""
        return self.records / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        return (
            f"{self.records:,} flights, {self.size / 1e6:,.1f} MB, in {self.seconds:.1f} s ({self.rate:,.0f} a second)"
        )


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
    except (KafkaException, TimeoutError) as error:
        if _code(error) == KafkaError.TOPIC_ALREADY_EXISTS:
            _check_topic(admin, topic, partitions)
            return False
        raise _unavailable(kafka, f"the topic {topic!r} could not be created", error) from error
    return True


def produce(
    kafka: Mapping[str, str],
    order: Order,
    progress: Callable[[Produced], None] = lambda _: None,
    stop: threading.Event | None = None,
) -> Produced:
    """Write flights to a topic that exists, each once, and return when the broker has confirmed them all.

    Args:
        kafka: client settings.
        order: what to write.
        progress: told about twice a second, in this thread, and once at the end.
        stop: set from another thread to end early; what was sent until then is still confirmed.

    Raises:
        ToolMissing: the package with the flights is not installed.
        ConfigurationError: an order that can't be carried out.
        BrokerUnavailable: a record was not confirmed; the message says how many were.
    """
    if order.rate is not None and order.rate <= 0:
        raise ConfigurationError(f"a rate of {order.rate:g} records a second writes nothing; give one above 0")
    rows = data.flights(order.first)
    return _Production(kafka, order, progress, stop or threading.Event()).run(rows)


class _Production:
    """One call of `produce`; the client calls back while this thread polls it, and in no other thread."""

    def __init__(
        self, kafka: Mapping[str, str], order: Order, progress: Callable[[Produced], None], stop: threading.Event
    ) -> None:
        self._address = kafka.get("bootstrap.servers", "no address")
        self._order, self._progress, self._stop = order, progress, stop
        self._producer = Producer({**_SETTINGS, **kafka})
        self._confirmed = self._size = 0
        self._failure: KafkaError | None = None
        self._begun = self._told = time.monotonic()

    def run(self, rows: Iterable[Mapping[str, str]]) -> Produced:
        for number, row in enumerate(rows):
            self._wait_for_turn(number)
            if self._stop.is_set() or self._failure is not None:
                break
            self._send(key(row), value(row))
        deadline = time.monotonic() + _DELIVERY + _WITHIN
        while self._producer.flush(_TOLD_EVERY) and self._failure is None and time.monotonic() < deadline:
            self._tell()
        self._check()
        done = self._so_far()
        self._progress(done)
        return done

    def _wait_for_turn(self, number: int) -> None:
        if self._order.rate is None:
            return
        turn = self._begun + number / self._order.rate
        while turn - time.monotonic() > _AHEAD and not self._stop.wait(_AHEAD):
            self._producer.poll(0)
            self._tell()

    def _send(self, key: bytes, value: bytes) -> None:
        while True:
            try:
                self._producer.produce(self._order.topic, value=value, key=key, on_delivery=self._delivered)
                break
            except BufferError:  # the client's queue is full: it empties while it is polled, or deliveries fail
                self._producer.poll(_TOLD_EVERY)
                self._tell()
        self._producer.poll(0)
        self._tell()

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failure = self._failure or error
            return
        self._confirmed += 1
        self._size += len(message.key() or b"") + len(message.value() or b"")

    def _tell(self) -> None:
        if time.monotonic() - self._told >= _TOLD_EVERY:
            self._told = time.monotonic()
            self._progress(self._so_far())

    def _so_far(self) -> Produced:
        return Produced(records=self._confirmed, size=self._size, seconds=time.monotonic() - self._begun)

    def _check(self) -> None:
        left = len(self._producer)
        if self._failure is None and not left:
            return
        why = self._failure.str() if self._failure is not None else f"{left:,} were not confirmed in time"
        raise BrokerUnavailable(
            f"{self._confirmed:,} flights were written to {self._order.topic!r} at {self._address}, the next were not: "
            f"{why}"
        )


def _check_topic(admin: AdminClient, topic: str, partitions: int) -> None:
    found = admin.list_topics(topic, timeout=_WITHIN).topics[topic]
    if len(found.partitions) != partitions:
        raise ConfigurationError(
            f"there is a topic {topic!r} of {len(found.partitions)} partitions, not of {partitions}; name another one"
        )
    resource = ConfigResource(ResourceType.TOPIC, topic)
    entry = admin.describe_configs([resource], request_timeout=_WITHIN)[resource].result(_WITHIN)[TIMESTAMPS[0]]
    if entry.value != TIMESTAMPS[1]:
        raise ConfigurationError(
            f"the topic {topic!r} has {TIMESTAMPS[0]}={entry.value}; the flights need {TIMESTAMPS[1]}, name another one"
        )


def _code(error: Exception) -> int | None:
    cause = error.args[0] if error.args else None
    return cause.code() if isinstance(cause, KafkaError) else None


def _unavailable(kafka: Mapping[str, str], what: str, error: Exception) -> BrokerUnavailable:
    cause = error.args[0] if error.args else None
    why = cause.str() if isinstance(cause, KafkaError) else f"no answer within {_WITHIN:g} s"
    return BrokerUnavailable(f"{what} at {kafka.get('bootstrap.servers', 'no address')}: {why}")


# How a flight is written as a Kafka record: the carrier is the key, compact JSON the value.
#
# The times of the flight are in the value. As the record's own timestamp they would be of no use: to a topic that
# keeps a week, records of 2013 are old, and retention takes them at once.

ZONE: Final = ZoneInfo("America/New_York")
"""Of all three airports."""

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
    hour = _hour(row["year"], row["month"], row["day"], row["hour"])
    scheduled = hour + timedelta(minutes=int(row["minute"]))
    delay = _number(row["dep_delay"])
    # By way of UTC: hours after a change to or from summer time are not hours on the clock.
    departed = None if delay is None else datetime.fromtimestamp(scheduled.timestamp() + 60 * delay, ZONE)
    return _encode(
        {
            "carrier": row["carrier"],
            "flight": _number(row["flight"]),
            "tailnum": None if row["tailnum"] == NOT_AVAILABLE else row["tailnum"],
            "origin": row["origin"],
            "dest": row["dest"],
            "year": hour.year,
            "month": hour.month,
            "day": hour.day,
            "hour": hour.hour,
            "scheduled": scheduled.isoformat(),
            "departed": departed and departed.isoformat(),
            "dep_delay": delay,
            "arr_delay": _number(row["arr_delay"]),
            "distance": _number(row["distance"]),
        }
    ).encode()


def _number(text: str) -> int | None:
    return None if text == NOT_AVAILABLE else int(text)


@lru_cache(maxsize=64)
def _hour(year: str, month: str, day: str, hour: str) -> datetime:
    return datetime(int(year), int(month), int(day), int(hour), tzinfo=ZONE)
