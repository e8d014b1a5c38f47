"""The services of the demo in one folder, its topic, and its audience: a Kafka, a Postgres and an Airflow."""

from __future__ import annotations

import bisect
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from confluent_kafka import Consumer, TopicPartition

from airflow_kcr.embedded.airflow import Airflow, AirflowPlan, Component, airflow_of, copy_examples
from airflow_kcr.embedded.flights import data as flights
from airflow_kcr.embedded.flights import pipeline
from airflow_kcr.embedded.jars import KAFKA_TOOLS, resolve
from airflow_kcr.embedded.processes import Launch, start_tied
from airflow_kcr.embedded.servers import KafkaCluster, Postgres, java_command, start_cluster, start_postgres
from airflow_kcr.errors import BrokerUnavailable, ServiceFailed
from airflow_kcr.store.schema_upgrade import upgrade

STORE: Final = "kcr"
METADATA: Final = "airflow"

_TOGETHER: Final = {"group.initial.rebalance.delay.ms": "5000"}
"""The three applications start at once but are ready one after the other; so the first one does not begin alone."""


_RARELY_PARSED: Final = {"DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "60"}
"""The examples don't change while they run; parsed every few seconds, they would take a third of a core."""

Launches: TypeAlias = Callable[[str], Launch]
"""How the processes of a service are launched, by its name: kafka, postgres, airflow."""


@dataclass(slots=True)
class Curtain:
    """Whether the services stop when the demo is over."""

    stays_open: bool = False

    def falls_on(self, stop: Callable[[], None]) -> None:
        """Stop a service, unless the curtain stays open."""
        if not self.stays_open:
            stop()


def tied(service: str) -> Launch:
    """Return the way in which a service ends with this process, however this process ends."""
    return start_tied


@dataclass(frozen=True, slots=True, kw_only=True)
class Backstage:
    """What needs nothing that has to be downloaded first."""

    postgres: Postgres
    """Runs, with an empty region store and Airflow's metadata."""

    airflow: Airflow
    """Its API server is starting; it takes longest of all components and knows nothing of Kafka."""

    def stop(self) -> None:
        """Stop both, whatever of Airflow runs."""
        try:
            self.airflow.stop()
        finally:
            self.postgres.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Kafka and Postgres, running, with an empty region store."""

    folder: Path
    kafka: KafkaCluster
    backstage: Backstage
    launches: Launches
    curtain: Curtain

    @property
    def settings(self) -> Mapping[str, str]:
        """Client settings of Kafka."""
        return {"bootstrap.servers": self.kafka.bootstrap_servers}

    @property
    def store_url(self) -> str:
        """The address of the region store."""
        return self.backstage.postgres.url(STORE)

    @property
    def output(self) -> Path:
        """Where the pipeline writes to."""
        return self.folder / "output"

    @contextmanager
    def airflow(self, *, since: datetime, every: timedelta) -> Iterator[Airflow]:
        """Lend an Airflow with the example DAGs; it stops at the end, with all that its tasks have started.

        Args:
            since: when the region went live.
            every: the time between two checkpoints.
        """
        environment = {
            flights.BOOTSTRAP_VARIABLE: self.kafka.bootstrap_servers,
            pipeline.OUTPUT_VARIABLE: str(self.output),
        }
        airflow = self.backstage.airflow
        copy_examples(self.folder / "dags", every=every, since=since)
        try:
            airflow.follow(_plan(self.folder, self.backstage.postgres, environment))
            airflow.start_components()
            yield airflow
        finally:
            self.curtain.falls_on(airflow.stop)


@contextmanager
def prepared(folder: Path, curtain: Curtain, launches: Launches = tied) -> Iterator[Future[Backstage]]:
    """Lend a Postgres with the databases, and an Airflow that begins to start; both stop at the end.

    They come in the background: that takes the processor's time, and what is downloaded meanwhile the network's.

    Args:
        folder: where everything is kept.
        curtain: whether they do stop.
        launches: how their processes are launched.
    """
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="backstage") as pool:
        making = pool.submit(_made, folder, launches)
        try:
            yield making
        finally:
            # The waiting caller gets the error; here there is only something to stop, or nothing.
            if making.exception() is None:
                curtain.falls_on(making.result().stop)


def _made(folder: Path, launches: Launches) -> Backstage:
    postgres = start_postgres(folder / "postgres", launch=launches("postgres"))
    try:
        upgrade(postgres.ensure_database(STORE))
        postgres.ensure_database(METADATA)
        airflow = airflow_of(_plan(folder, postgres, {}), launch=launches("airflow"))
        airflow.migrate()
        airflow.begin(Component.API_SERVER)
    except BaseException:
        postgres.stop()
        raise
    return Backstage(postgres=postgres, airflow=airflow)


def _plan(folder: Path, postgres: Postgres, environment: Mapping[str, str]) -> AirflowPlan:
    return AirflowPlan(
        folder=folder / "airflow",
        database_url=postgres.url(METADATA),
        store_url=postgres.url(STORE),
        dags=folder / "dags",
        environment=environment,
        settings=_RARELY_PARSED,
    )


@contextmanager
def staged(folder: Path, making: Future[Backstage], curtain: Curtain, launches: Launches = tied) -> Iterator[Stage]:
    """Lend Kafka, and what is made in the background once it is there; Kafka stops at the end.

    Args:
        folder: where everything is kept.
        making: what is made in the background.
        curtain: whether Kafka does stop.
        launches: how its processes are launched.

    Raises:
        ServiceFailed: one does not start, or a download fails.
        ToolMissing: Java or a Python package is missing.
    """
    kafka = start_cluster(folder / "kafka", launch=launches("kafka"), settings=_TOGETHER)
    try:
        yield Stage(folder=folder, kafka=kafka, backstage=making.result(), launches=launches, curtain=curtain)
    finally:
        curtain.falls_on(kafka.stop)


# What Kafka itself says, asked without the region's store and without this project's clients of the region.
#
# The records of each interval are counted one by one, by the timestamps that the broker gave them; the group's offsets
# are those that Kafka's own command-line tool shows.

_GROUPS_TOOL: Final = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
_TOOL_WITHIN: Final = 90.0
_READ_WITHIN: Final = 60.0
_ASKED_WITHIN: Final = 15.0
_AT_ONCE: Final = 5_000
_NOTHING: Final = "-"


def count_by_interval(kafka: Mapping[str, str], topic: str, ends: Sequence[datetime]) -> tuple[int, ...]:
    """Read a whole topic, and return how many of its records the broker took in each interval, and before the first.

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
    return tuple(found[number] for number in range(len(bounds)))


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


# Whom the demo tells what it does: phases that begin, continue and end, and what they took.


class DemoPhase(Protocol):
    """One part of the demo, while it runs."""

    def tell(self, done: float, total: float | None = None, text: str = "") -> None:
        """Say how much of it is done, out of how much where that is known."""
        ...


class Audience(Protocol):
    """Shows phases."""

    def phase(self, name: str) -> AbstractContextManager[DemoPhase]:
        """Begin a phase; it ends with the block."""
        ...


@dataclass(slots=True)
class Timed:
    """An audience that hands everything on, and writes down how many seconds each phase took."""

    audience: Audience
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[DemoPhase]:
        """Begin a phase; it ends with the block."""
        begun = time.monotonic()
        try:
            with self.audience.phase(name) as phase:
                yield phase
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - begun
