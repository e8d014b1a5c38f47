"""What is delivered, and when: outputs that are read as they grow, and plain consumers to compare with."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from confluent_kafka import ConsumerGroupState

from airflow_kcr.embedded.processes import happened
from tests.support.kafka import WITHIN, Kafka

TOP: Final = Path(__file__).parents[2]
POLL_PERIOD: Final = 0.005
PATIENCE: Final = 120.0


@dataclass(slots=True, kw_only=True)
class Deliveries:
    """The records that consumers have written down: one JSON line each, with `partition` and `offset`.

    Args:
        files: where, asked anew at each look, as processes come and go.
    """

    files: Callable[[], Iterable[Path]]
    first: dict[int, int] = field(default_factory=dict)
    """The first offset of each partition since `forget`."""

    furthest: dict[int, int] = field(default_factory=dict)
    """The highest offset of each partition since `forget`."""

    _read: dict[Path, int] = field(default_factory=dict)

    def forget(self) -> None:
        """Forget what was delivered until now."""
        self._look()
        self.first.clear()
        self.furthest.clear()

    def until(self, wanted: Mapping[int, int]) -> None:
        """Wait until each of these partitions has delivered a record at or beyond its offset."""

        def delivered() -> bool:
            self._look()
            return all(self.furthest.get(partition, -1) >= offset for partition, offset in wanted.items())

        if not happened(delivered, within=PATIENCE, pause=POLL_PERIOD):
            raise AssertionError(f"not within {PATIENCE:g} s: {wanted}; delivered until {self.furthest}")

    def _look(self) -> None:
        for path in self.files():
            if not path.exists():
                continue
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                whole = file.read().rpartition(b"\n")
            self._read[path] = self._read.get(path, 0) + len(whole[0]) + len(whole[1])
            for line in whole[0].splitlines():
                row = json.loads(line)
                partition, offset = int(row["partition"]), int(row["offset"])
                self.first.setdefault(partition, offset)
                self.furthest[partition] = max(offset, self.furthest.get(partition, -1))


@dataclass(slots=True, kw_only=True)
class Bare:
    """A group of plain consumers, each in a process of its own, with the settings of a region's members.

    Args:
        kafka: the broker.
        topic: what they read.
        folder: for what they write.
        session: their session timeout, in ms.
        static: whether they have static ids.
        size: how many.
    """

    kafka: Kafka
    topic: str
    folder: Path
    session: int
    static: bool
    size: int = 3
    group: str = ""
    deliveries: Deliveries = field(init=False)
    _processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.group = self.group or self.kafka.group_id("bare")
        self.deliveries = Deliveries(files=lambda: [self._output(index) for index in range(self.size)])

    def start(self, *indexes: int) -> None:
        """Start these consumers; absent: all."""
        for index in indexes or range(self.size):
            settings = {
                **self.kafka.settings,
                "group.id": self.group,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": self.session,
                "topic.metadata.refresh.interval.ms": 1000,
                **({"group.instance.id": f"{self.group}-{index}"} if self.static else {}),
            }
            self._processes[index] = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.benchmarks.bare_consumer"),
                    *(str(self._output(index)), self.topic, json.dumps(settings)),
                ],
                cwd=TOP,
                stdin=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def stop(self) -> None:
        """Stop all of them as one stops a consumer, and wait until they have ended."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.wait(PATIENCE)

    def kill(self, *indexes: int) -> None:
        """kill -9; absent: all."""
        for index in indexes or self._processes:
            self._processes[index].kill()
            self._processes[index].wait(PATIENCE)

    def until_empty(self) -> None:
        """Wait until Kafka's tool may touch the group: of static members that is at the end of their sessions."""

        def state() -> ConsumerGroupState:
            described = self.kafka.admin.describe_consumer_groups([self.group])
            found: ConsumerGroupState = described[self.group].result(WITHIN).state
            return found

        if not happened(lambda: state() == ConsumerGroupState.EMPTY, within=PATIENCE, pause=POLL_PERIOD):
            raise AssertionError(f"group {self.group} is {state()} after {PATIENCE:g} s")

    def _output(self, index: int) -> Path:
        return self.folder / f"{self.group}-{index}.jsonl"
