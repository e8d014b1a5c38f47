"""Kills, zombies and resets drawn by a seed, while many records are produced and processed.

What comes next is drawn beforehand, and when it comes is told by how much was processed, so a run's order depends on
its seed alone. The producer is a little ahead of the next fault: there is always work in progress when one comes.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Final

from confluent_kafka import Producer

from airflow_kcr.api import Region, ResetRequest
from airflow_kcr.errors import KcrError, StoreError
from airflow_kcr.protocol.region.rows import CheckpointState
from airflow_kcr.protocol.targets import ToCheckpoint
from tests.support.kafka import QUIESCED, Kafka
from tests.support.members import Live, Process

KILLS: Final[Mapping[str, int]] = {"process": 17, "all processes": 2, "store": 3, "target": 4, "broker": 4}
"""How often each is killed in a run: thirty times in all."""

OTHERS: Final[Mapping[str, int]] = {"zombie": 3, "reset to an older checkpoint": 4}
PERIOD: Final = 0.05
WITHIN: Final = timedelta(seconds=120)
SLACK: Final = 0.02
"""The share of all records that may be produced beyond the next fault's moment."""

PATIENCE: Final = 600.0
"""Seconds in which the next fault's moment has to come, on whatever machine."""


@dataclass(slots=True)
class Production:
    """Produces to all partitions, steadily, in a thread; across restarts of the broker too.

    Args:
        kafka: the broker.
        topic: to be filled.
        partitions: of it.
        total: how many records.
        rate: how many a second.
    """

    kafka: Kafka
    topic: str
    partitions: int
    total: int
    rate: int
    produced: int = 0
    limit: int = 0
    """Beyond which nothing is produced yet."""

    failures: list[str] = field(default_factory=list)

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Produce within the context; leaving it waits until everything is stored."""
        over = threading.Event()
        thread = threading.Thread(target=self._produce, args=(over,))
        thread.start()
        try:
            yield
            self.limit = self.total
        except BaseException:
            over.set()
            raise
        finally:
            thread.join()

    def _produce(self, over: threading.Event) -> None:
        settings = {"enable.idempotence": True, "linger.ms": 20, "delivery.timeout.ms": 300_000}
        producer = Producer({**self.kafka.settings, **QUIESCED, **settings})
        share = max(int(self.rate * PERIOD), 1)
        while self.produced < self.total and not over.wait(PERIOD):
            for _ in range(min(share, max(min(self.limit, self.total) - self.produced, 0))):
                value = f"{self.produced}:".ljust(64, "x").encode()
                try:
                    producer.produce(self.topic, value=value, partition=self.produced % self.partitions)
                except BufferError:
                    break
                self.produced += 1
            producer.poll(0)
        if left := producer.flush(120):
            self.failures.append(f"{left} records were not stored")


@dataclass(slots=True, kw_only=True)
class Orchestra:
    """The processes of a region's members, each with one; those that have ended are started again."""

    one: Live
    random: Random
    servers: Mapping[str, Callable[[], None]]
    """Kill a service and start it again."""

    processes: dict[int, Process] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)
    ended: int = 0
    """How often a process had ended by itself."""

    def start(self, index: int) -> None:
        """Start the process of a member, in place of the one before."""
        self.processes[index] = self.one.start(index, takeover=True)

    def processed(self) -> int:
        """How far the region is; who has ended by himself is started again."""
        for index, process in self.processes.items():
            if not process.running:
                self.ended += 1
                self.start(index)
        with suppress(StoreError):
            return sum(int(claim.position or 0) for claim in self.one.region().claims.values())
        return 0

    def strike(self, fault: str) -> None:
        """Let a fault happen."""
        index = self.random.choice(sorted(self.processes))
        match fault:
            case "process":
                self.processes[index].kill()
                self.start(index)
            case "all processes":
                for process in self.processes.values():
                    process.kill()
                for each in self.random.sample(sorted(self.processes), len(self.processes)):
                    self.start(each)
            case "zombie":
                self._sleeps(index)
            case "reset to an older checkpoint":
                self._goes_back()
            case _:
                self.servers[fault]()
        self.done[fault] += 1

    def _sleeps(self, index: int) -> None:
        process = self.processes[index]
        process.freeze()
        self.one.until(lambda: self.one.runs() and index not in self.one.owners().values(), "taken over", 120)
        process.thaw()

    def _goes_back(self) -> None:
        """Have a person reset the region to one of the newest checkpoints but the last, as soon as that can be done."""
        done: list[str] = []

        def asked() -> bool:
            # A lease may end between the plan and its application, or in its drain: then another plan is made.
            with suppress(KcrError), Region(self.one.name, self.one.store) as region:
                found = self.one.region().checkpoints.values()
                usable = sorted(c.sequence for c in found if c.state is CheckpointState.PUBLISHED)[-4:-1]
                if not usable:
                    return False
                plan = region.resets.plan(ResetRequest(target=ToCheckpoint(sequence=self.random.choice(usable))))
                region.resets.apply(plan, "to see")
                region.resets.wait_for(plan.plan, WITHIN)
                done.append(plan.plan)
            return bool(done)

        self.one.until(lambda: self.one.runs() and asked(), "a reset to an older checkpoint", PATIENCE)


def drawn(random: Random, total: int) -> list[tuple[int, str]]:
    """Return every fault of a run, with how many records are processed when it comes, in order."""
    faults = list(Counter({**KILLS, **OTHERS}).elements())
    random.shuffle(faults)
    # None before there are checkpoints to go back to, none when everything is over.
    moments = sorted(random.sample(range(total // 20, total * 19 // 20), len(faults)))
    return list(zip(moments, faults, strict=True))


def perform(orchestra: Orchestra, production: Production, faults: list[tuple[int, str]]) -> None:
    """Produce everything, and let each fault happen in its moment."""
    slack = int(production.total * SLACK)
    with production.going_on():
        for moment, fault in faults:
            production.limit = moment + slack
            orchestra.one.until(lambda least=moment: orchestra.processed() >= least, f"{moment} processed", PATIENCE)  # type: ignore[misc]
            orchestra.strike(fault)
