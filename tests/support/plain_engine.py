"""An engine without Spark: it reads the ranges with a client of its own and appends what it read to a file.

For faults that are about membership, the store and Kafka, where a JVM for each member would only cost time. It keeps
the port's promise: `run` returns or raises only when nothing of the batch runs any more.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

from confluent_kafka import Consumer, TopicPartition

from airflow_kcr.errors import BatchCancelled, BatchFailed
from airflow_kcr.ports import BatchCall, BatchReport
from airflow_kcr.protocol.values import BatchId

READ_WITHIN = 30.0
LOOK = 0.1
"""Seconds between two looks whether the batch is cancelled: with a broker away, nothing else ends a read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """One record in the output."""

    batch: str
    topic: str
    partition: int
    offset: int
    value: str


Rows: TypeAlias = Sequence[Written]
"""What a batch has written."""


def nothing(call: BatchCall) -> None:
    """Do nothing before a batch."""


def nowhere_else(call: BatchCall, rows: Rows) -> None:
    """Write nothing but the output."""


class PlainEngine:
    """Appends every record of a batch, one JSON line each, in one write at the end.

    Args:
        kafka: settings that lead to the cluster, secrets filled in.
        output: the file; several engines may share it, as a line is written as a whole.
        before: called at the start of each batch; may block until it is cancelled, or raise BatchFailed.
        then: called with what a batch has written; may raise BatchFailed.
    """

    def __init__(
        self,
        kafka: Mapping[str, str],
        output: Path,
        before: Callable[[BatchCall], None] = nothing,
        then: Callable[[BatchCall, Rows], None] = nowhere_else,
    ) -> None:
        self._settings = {
            **kafka,
            "group.id": "nobody",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "log_level": 0,
        }
        self._output, self._before, self._then = output, before, then
        self.cancelled = threading.Event()
        """Set while the present batch is to end."""

    def run(self, call: BatchCall) -> BatchReport:
        """Read, and write."""
        self.cancelled.clear()
        self._before(call)
        rows = list(self._read(call))
        if self.cancelled.is_set():
            raise BatchCancelled(f"batch {call.batch} was cancelled")
        text = "".join(f"{json.dumps(asdict(row))}\n" for row in rows).encode()
        descriptor = os.open(self._output, os.O_APPEND | os.O_CREAT | os.O_WRONLY)
        try:
            os.write(descriptor, text)
        finally:
            os.close(descriptor)
        self._then(call, rows)
        return BatchReport(scans=1)

    def cancel(self, batch: BatchId) -> None:
        """Cancel the present batch."""
        self.cancelled.set()

    def _read(self, call: BatchCall) -> Iterator[Written]:
        consumer = Consumer(self._settings)
        try:
            left = dict(call.ranges)
            consumer.assign([TopicPartition(p.topic, p.partition, r.from_) for p, r in left.items()])
            silent_since = time.monotonic()
            while left and not self.cancelled.is_set():
                message = consumer.poll(LOOK)
                if message is None:
                    if time.monotonic() - silent_since > READ_WITHIN:
                        raise BatchFailed(f"batch {call.batch}: nothing came of {sorted(map(str, left))}")
                    continue
                silent_since = time.monotonic()
                place = next(
                    (p for p in left if (p.topic, p.partition) == (message.topic(), message.partition())), None
                )
                if place is None:
                    continue
                error = message.error()
                if error is not None and error.name() != "_PARTITION_EOF":
                    raise BatchFailed(f"batch {call.batch}: {error}")
                offset = message.offset() or 0
                if error is None and offset < left[place].to:
                    yield Written(
                        batch=call.batch,
                        topic=place.topic,
                        partition=place.partition,
                        offset=offset,
                        value=(message.value() or b"").decode(errors="replace"),
                    )
                if offset >= left[place].to - (error is None):
                    del left[place]
        finally:
            consumer.close()


def read_output(files: Iterable[Path]) -> list[Written]:
    """Return what engines have written; a line that was cut off by a crash counts as not written."""
    rows = []
    for file in files:
        if file.exists():
            for line in file.read_text().splitlines():
                try:
                    rows.append(Written(**json.loads(line)))
                except json.JSONDecodeError:
                    continue
    return rows
