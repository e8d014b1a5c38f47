"""What Kafka itself says, asked without the region's store and without this project's clients of the region.

The records of each interval are counted one by one, by the timestamps that the broker gave them; the group's offsets
are those that Kafka's own command-line tool shows.
"""

from __future__ import annotations

import bisect
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from confluent_kafka import Consumer, TopicPartition

from airflow_kcr.embedded.jars import KAFKA_TOOLS, resolve
from airflow_kcr.embedded.kafka import java_command
from airflow_kcr.errors import BrokerUnavailable, ServiceFailed

_GROUPS_TOOL: Final = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
_TOOL_WITHIN: Final = 90.0
_READ_WITHIN: Final = 60.0
_ASKED_WITHIN: Final = 15.0
_AT_ONCE: Final = 5_000
_NOTHING: Final = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """How many records of a topic came in each of some intervals."""

    by_interval: tuple[int, ...]
    """The first interval has everything before it as well."""

    after: int
    """Those that came after the last interval."""


def count_by_interval(kafka: Mapping[str, str], topic: str, ends: Sequence[datetime]) -> Counted:
    """Read a whole topic, and count its records by the intervals in which the broker took them.

    Args:
        kafka: client settings.
        topic: its name.
        ends: of the intervals, ascending; an end is not part of its interval.

    Raises:
        BrokerUnavailable: the broker does not answer, or the topic can't be read to its end in time.
    """
    bounds = [round(end.astimezone(UTC).timestamp() * 1000) for end in ends]
    found: Counter[int] = Counter()
    consumer = Consumer({**kafka, "group.id": "kcr-demo-count", "enable.auto.commit": False})
    try:
        left = _whole_topic(consumer, topic)
        deadline = time.monotonic() + _READ_WITHIN
        while left:
            if time.monotonic() > deadline:
                raise BrokerUnavailable(f"the topic {topic!r} could not be read to its end within {_READ_WITHIN:g} s")
            for message in consumer.consume(_AT_ONCE, timeout=1.0):
                partition, offset = message.partition(), message.offset()
                if message.error() is not None or partition is None or offset is None:
                    continue
                found[bisect.bisect_right(bounds, message.timestamp()[1])] += 1
                if offset + 1 >= left.get(partition, offset + 2):
                    del left[partition]
    finally:
        consumer.close()
    counts = [found[number] for number in range(len(bounds) + 1)]
    return Counted(by_interval=tuple(counts[:-1]), after=counts[-1])


def committed_offsets(bootstrap: str, group: str) -> dict[tuple[str, int], int]:
    """Return the offsets of a group, by topic and partition, as Kafka's own tool `kafka-consumer-groups` shows them.

    Raises:
        ServiceFailed: the tool fails, or shows something that can't be read.
    """
    arguments = ["--bootstrap-server", bootstrap, "--describe", "--offsets", "--group", group]
    try:
        ran = subprocess.run(
            java_command(resolve(KAFKA_TOOLS), "-Xmx128m", _GROUPS_TOOL, *arguments),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_TOOL_WITHIN,
        )
    except subprocess.TimeoutExpired as error:
        raise ServiceFailed(f"kafka-consumer-groups did not answer within {_TOOL_WITHIN:g} s") from error
    if ran.returncode != 0:
        raise ServiceFailed(f"kafka-consumer-groups failed: {ran.stderr.strip() or ran.stdout.strip()}")
    return described_offsets(ran.stdout)


def described_offsets(text: str) -> dict[tuple[str, int], int]:
    """Return the committed offsets of what `kafka-consumer-groups --describe --offsets` has printed.

    Raises:
        ServiceFailed: there is no table with the columns that are needed.
    """
    lines = [line.split() for line in text.splitlines() if line.strip()]
    head = next((place for place, cells in enumerate(lines) if "CURRENT-OFFSET" in cells), None)
    if head is None:
        raise ServiceFailed(f"kafka-consumer-groups shows no offsets: {text.strip()!r}")
    topic, partition, current = (lines[head].index(name) for name in ("TOPIC", "PARTITION", "CURRENT-OFFSET"))
    rows = [cells for cells in lines[head + 1 :] if cells[current] != _NOTHING]
    return {(cells[topic], int(cells[partition])): int(cells[current]) for cells in rows}


def _whole_topic(consumer: Consumer, topic: str) -> dict[int, int]:
    """Have the consumer read a topic from its beginning; return the ends of the partitions that have records."""
    known = consumer.list_topics(topic, timeout=_ASKED_WITHIN).topics[topic].partitions
    ends: dict[int, int] = {}
    begins: list[TopicPartition] = []
    for number in known:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=_ASKED_WITHIN)
        if high > low:
            ends[number] = high
            begins.append(TopicPartition(topic, number, low))
    consumer.assign(begins)
    return ends
