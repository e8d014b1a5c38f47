"""Who reads a topic from its beginning to its end, and how long that takes: a member, and what it is measured against.

Every time leaves out what comes before the first record is asked for and after the last one is there: a member's
joining, a query's start, a JVM's. For a member it runs from the start of its first batch to the end of its last as the
store has them, for Structured Streaming from the start of the first trigger to the end of the last as it reports them.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Final, TypeAlias

from confluent_kafka import Consumer, TopicPartition

from airflow_kcr.embedded.jars import KAFKA_BROKER, java, resolve
from airflow_kcr.protocol.region.rows import Batch, Outcome
from airflow_kcr.spark.reads import DEFAULTS
from tests.benchmarks.figures import spread
from tests.benchmarks.lab import Filled, Lab, fixed
from tests.benchmarks.pipelines import rows_of
from tests.support.jar_sets import KAFKA_TOOLS

CONSUME: Final = 10_000
PATIENCE: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One reading of a topic."""

    records: int
    seconds: float
    batches: int = 1

    @property
    def rate(self) -> float:
        """Records per second."""
        return self.records / self.seconds

    @property
    def millis(self) -> float:
        """Milliseconds per batch."""
        return self.seconds / self.batches * 1000


Figures: TypeAlias = Callable[[Iterable[Reading]], list[float]]


def rates(readings: Iterable[Reading]) -> list[float]:
    """Return the records per second of each."""
    return [one.rate for one in readings]


def millis(readings: Iterable[Reading]) -> list[float]:
    """Return the milliseconds per batch of each."""
    return [one.millis for one in readings]


def shown(
    race: Mapping[str, Sequence[Reading]], of: Callable[[Iterable[Reading]], list[float]]
) -> Iterator[tuple[object, ...]]:
    """Yield a row for each that took part: who, the batches of a reading, the median, the smallest to the largest."""
    for name, readings in race.items():
        yield name, readings[0].batches, median(of(readings)), spread(of(readings))


def member(lab: Lab, topic: Filled, batch: int, pipeline: str = "noop", group_more: str = "") -> Reading:
    """Let a real member, in its group and with its store, read a topic in batches of one size."""
    with lab.hosted(topic, batch=fixed(batch), pipeline=pipeline, group_more=group_more) as hosted:
        hosted.until_consumed()
        return ledger(hosted.store.batches(hosted.name))


def ledger(rows: Iterator[Batch]) -> Reading:
    """Return what a ledger says of the batches that were done."""
    done = [row for row in rows if row.outcome is Outcome.DONE]
    ends = [row.finished_at for row in done if row.finished_at is not None]
    return Reading(
        records=sum(range_.width for row in done for range_ in row.ranges.values()),
        seconds=(max(ends) - min(row.started_at for row in done)).total_seconds(),
        batches=len(done),
    )


def streaming(
    lab: Lab,
    topic: Filled,
    *,
    most: int | None = None,
    options: Mapping[str, str] | None = None,
    delta: Path | None = None,
) -> Reading:
    """Let Structured Streaming read a topic (`Trigger.AvailableNow`).

    Args:
        lab: where.
        topic: what.
        most: records of one trigger; None: all in one, as by default.
        options: of the connector, beside those that it can't do without.
        delta: the folder of a Delta table that gets the records; None: nothing does.
    """
    needed = {
        "kafka.bootstrap.servers": lab.kafka.bootstrap_servers,
        "subscribe": topic.name,
        "startingOffsets": "earliest",
        **({} if most is None else {"maxOffsetsPerTrigger": str(most)}),
    }
    frame = lab.spark.readStream.format("kafka").options(**needed, **(options or {})).load()
    with tempfile.TemporaryDirectory(dir=lab.folder) as checkpoint:
        if delta is None:
            writer = frame.writeStream.format("noop")
        else:
            writer = rows_of(frame).writeStream.format("delta").option("path", str(delta))
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        triggers = [one for one in query.recentProgress if one["numInputRows"]]
    first = _instant(triggers[0]["timestamp"])
    last = _instant(triggers[-1]["timestamp"]) + timedelta(milliseconds=triggers[-1]["durationMs"]["triggerExecution"])
    records = sum(one["numInputRows"] for one in triggers)
    assert records == topic.records
    return Reading(records=records, seconds=(last - first).total_seconds(), batches=len(triggers))


def our_options() -> dict[str, str]:
    """Return what a member tells the connector, so that Structured Streaming can be told the same."""
    return {**DEFAULTS, "kafka.isolation.level": "read_committed"}


def bare_loop(lab: Lab, topic: Filled) -> Reading:
    """Read a topic with the Python client alone, `consume(10000)` at a time, looking at nothing."""
    consumer = Consumer(
        {**lab.kafka.settings, "group.id": "bench-bare", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    )
    try:
        began, seen = time.perf_counter(), 0
        consumer.assign([TopicPartition(topic.name, number, 0) for number in range(topic.partitions)])
        while seen < topic.records:
            messages = consumer.consume(CONSUME, PATIENCE)
            assert messages
            seen += len(messages)
        return Reading(records=seen, seconds=time.perf_counter() - began)
    finally:
        consumer.close()


def java_tool(lab: Lab, topic: Filled, settings: Mapping[str, str] | None = None) -> Reading:
    """Read a topic with Kafka's own performance tool, in a JVM of its own; the time is the one it tells for fetching.

    Args:
        lab: where.
        topic: what.
        settings: of its consumer; absent: the tool's own.
    """
    classes = os.pathsep.join(str(jar) for jar in (*resolve(KAFKA_TOOLS), *resolve(KAFKA_BROKER)))
    with tempfile.TemporaryDirectory(dir=lab.folder) as folder:
        config = Path(folder) / "consumer.properties"
        config.write_text("".join(f"{name}={value}\n" for name, value in (settings or {}).items()), encoding="utf-8")
        command = [str(java()), "-cp", classes, "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
        command += ["org.apache.kafka.tools.ConsumerPerformance", "--bootstrap-server", lab.kafka.bootstrap_servers]
        command += ["--topic", topic.name, "--messages", str(topic.records), "--hide-header"]
        command += ["--timeout", "60000", "--consumer.config", str(config)]
        told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE * 2)
    # start, end, MB, MB/s, records, records/s, ms of the rebalance, ms of fetching, MB/s and records/s of fetching
    fields = [part.strip() for part in told.stdout.strip().splitlines()[-1].split(",")]
    return Reading(records=int(fields[4]), seconds=int(fields[7]) / 1000)


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))
