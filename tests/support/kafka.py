"""One real Kafka broker for a whole pytest run, and what tests do with topics, records and groups.

Like the Postgres server it is started by whichever process needs it first, in the folder of the run, and stopped by the
process that owns the run. Tests share it and keep apart by names: every topic and group has its own.
"""

from __future__ import annotations

import fcntl
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final, Self, TypeVar

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConsumerGroupDescription,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
    TopicDescription,
)

from airflow_kcr.embedded.processes import Program, ServiceProcess, happened, start_detached
from airflow_kcr.kafka import failures
from airflow_kcr.kafka.admin_process import TIMEOUT, AdminProcess
from airflow_kcr.kafka.failures import Kind
from airflow_kcr.kafka.groups import Groups
from airflow_kcr.kafka.logs import BrokerLogs
from airflow_kcr.kafka.settings import admin_settings
from tests.support.kafka_cluster import ClusterBroker, KafkaCluster, start_cluster

T = TypeVar("T")

WITHIN: Final = 30.0
# librdkafka's word for "the key decides".
PARTITION_UNASSIGNED: Final = -1
# What librdkafka says about a broker that a test has stopped is no news.
QUIESCED: Final[dict[str, str | int]] = {"log_level": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record to produce; without a partition its key decides, without a timestamp the clock."""

    value: bytes
    key: bytes | None = None
    partition: int | None = None
    timestamp: datetime | None = None


class Kafka:
    """A Kafka cluster, with what tests do to it. Whatever it answers is true on the brokers already."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.settings: dict[str, str] = {"bootstrap.servers": bootstrap_servers}
        self._admin: AdminClient | None = None

    @property
    def admin(self) -> AdminClient:
        """An admin client of this cluster."""
        if self._admin is None:
            # Who was asked last may have been killed since: the client looks anew, and soon.
            self._admin = AdminClient({**self.settings, **QUIESCED, "topic.metadata.refresh.interval.ms": 1000})
        return self._admin

    def group_id(self, prefix: str = "group") -> str:
        """A group id that no other test has."""
        return f"{prefix}-{uuid.uuid4().hex[:12]}"

    def topic(
        self,
        partitions: int = 1,
        configs: Mapping[str, str] | None = None,
        *,
        prefix: str = "topic",
        name: str | None = None,
    ) -> str:
        """Make a topic of a name that no other test has, or of that name, and return it."""
        name = name or f"{prefix}-{uuid.uuid4().hex[:12]}"
        new = NewTopic(name, num_partitions=partitions, replication_factor=-1, config=dict(configs or {}))
        self.admin.create_topics([new], operation_timeout=WITHIN)[name].result(WITHIN)
        self._wait(lambda: self.partitions(name) == partitions, f"topic {name} with {partitions} partitions")
        return name

    def delete_topic(self, name: str) -> None:
        """Delete a topic and wait until it is gone."""
        self.admin.delete_topics([name], operation_timeout=WITHIN)[name].result(WITHIN)
        self._wait(lambda: self.partitions(name) == 0, f"topic {name} gone")

    def add_partitions(self, name: str, total: int) -> None:
        """Give a topic more partitions, `total` in all, and wait until they are there."""
        self.admin.create_partitions([NewPartitions(name, total)])[name].result(WITHIN)
        self._wait(lambda: self.partitions(name) == total, f"topic {name} with {total} partitions")

    def set_config(self, name: str, setting: str, value: str) -> None:
        """Change one setting of a topic."""
        change = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
        topic = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[change])
        self.admin.incremental_alter_configs([topic])[topic].result(WITHIN)

    def partitions(self, name: str) -> int:
        """How many partitions a topic has that have a leader; 0 where there is no such topic."""
        description = self._described(name)
        if description is None:
            return 0
        leaders = [one.leader for one in description.partitions]
        return sum(leader is not None for leader in leaders)

    def topic_id(self, name: str) -> str:
        """The id of a topic, which another topic of the same name does not have."""
        description = self._described(name)
        return "" if description is None else str(description.topic_id)

    def produce(self, topic: str, records: Iterable[Record | bytes]) -> None:
        """Produce records, plain values or with key, partition and timestamp, and wait until they are stored."""
        producer = Producer({**self.settings, **QUIESCED, "linger.ms": 5, "enable.idempotence": True})
        _send(producer, topic, records)

    def fill(self, topic: str, counts: Mapping[int, int], *, size: int = 16) -> None:
        """Produce N records to each partition; their values begin with `partition:number:`."""
        self.produce(
            topic,
            (
                Record(value=f"{partition}:{number}:".encode().ljust(size, b"x"), partition=partition)
                for partition, count in counts.items()
                for number in range(count)
            ),
        )

    def begin_transaction(self, topic: str, records: Iterable[Record | bytes]) -> OpenTransaction:
        """Produce records in a transaction that stays open until it is committed or aborted."""
        producer = Producer({**self.settings, **QUIESCED, "transactional.id": f"tx-{uuid.uuid4().hex[:12]}"})
        producer.init_transactions(WITHIN)
        producer.begin_transaction()
        _send(producer, topic, records)
        return OpenTransaction(producer)

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        """Move the start of a topic's log, as retention does."""
        wanted = [TopicPartition(topic, partition, offset) for partition, offset in before.items()]
        for done in self.admin.delete_records(wanted).values():
            done.result(WITHIN)

    def ends(self, topic: str) -> dict[int, int]:
        """The last stable offset of every partition."""
        return self._offsets(topic, OffsetSpec.latest())  # type: ignore[no-untyped-call]

    def starts(self, topic: str) -> dict[int, int]:
        """The log start of every partition."""
        return self._offsets(topic, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def group(self, group_id: str) -> ConsumerGroupDescription:
        """What the broker knows of a group."""

        def answer() -> ConsumerGroupDescription:
            described: ConsumerGroupDescription = self.admin.describe_consumer_groups([group_id])[group_id].result(
                WITHIN
            )
            return described

        return self._told(answer, f"group {group_id}")

    def committed(self, group_id: str, topic: str | None = None) -> dict[tuple[str, int], int]:
        """What a group has committed."""
        asked = [ConsumerGroupTopicPartitions(group_id)]
        found = self._told(
            lambda: self.admin.list_consumer_group_offsets(asked)[group_id].result(WITHIN),
            f"what group {group_id} has committed",
        )
        return {
            (one.topic, one.partition): one.offset
            for one in found.topic_partitions
            if one.offset >= 0 and topic in (None, one.topic)
        }

    def _described(self, name: str) -> TopicDescription | None:
        asked = TopicCollection([name])

        def answer() -> TopicDescription | None:
            try:
                found: TopicDescription = self.admin.describe_topics(asked, request_timeout=3)[name].result(WITHIN)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
                return None
            return found

        return self._told(answer, f"an answer about topic {name}")

    def _offsets(self, topic: str, wanted: OffsetSpec) -> dict[int, int]:
        asked = {TopicPartition(topic, number): wanted for number in range(self.partitions(topic))}

        def answer() -> dict[int, int]:
            answers = self.admin.list_offsets(asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=3)
            return {one.partition: future.result(WITHIN).offset for one, future in answers.items()}

        return self._told(answer, f"the offsets of topic {topic}")

    def _told(self, ask: Callable[[], T], what: str) -> T:
        """Ask until there is an answer: brokers refuse for a moment what they have not heard of yet."""
        answers: list[T] = []

        def answered() -> bool:
            try:
                answers.append(ask())
            except KafkaException as error:
                if failures.kind(failures.of(error)) not in {Kind.RETRIABLE, Kind.ABSENT}:
                    raise
                return False
            return True

        self._wait(answered, what)
        return answers[0]

    @staticmethod
    def _wait(condition: Callable[[], bool], what: str) -> None:
        if not happened(condition, within=WITHIN):
            raise TimeoutError(f"{what} was not seen within {WITHIN:g} s")


class KafkaSet(Kafka):
    """A cluster of one test's own, whose brokers it may stop, kill and suspend; it stops with its context."""

    def __init__(self, cluster: KafkaCluster) -> None:
        super().__init__(cluster.bootstrap_servers)
        self.cluster = cluster

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.stop()

    @property
    def sasl_bootstrap_servers(self) -> str:
        """Where clients are asked for a password, if the set was started with users."""
        return self.cluster.sasl_bootstrap_servers

    @property
    def brokers(self) -> tuple[ClusterBroker, ...]:
        """Its brokers, that of node id 1 first."""
        return self.cluster.brokers

    def broker(self, node_id: int) -> ClusterBroker:
        """The broker of that node id."""
        return self.cluster.broker(node_id)

    def coordinator(self, group_id: str) -> ClusterBroker:
        """The broker that coordinates a group."""
        return self.cluster.broker(self.group(group_id).coordinator.id)

    def leader(self, topic: str, partition: int) -> ClusterBroker:
        """The broker that leads a partition, or led it until it was killed."""
        described = self._described(topic)
        if described is None:
            raise LookupError(f"there is no topic {topic}")
        return self.cluster.broker(described.partitions[partition].leader.id)


class OpenTransaction:
    """A transaction whose records are there, but not readable yet for who reads what is committed."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def send(self, topic: str, records: Iterable[Record | bytes]) -> None:
        """Produce more records within the transaction."""
        _send(self._producer, topic, records)

    def commit(self) -> None:
        """Commit the transaction."""
        self._producer.commit_transaction(WITHIN)

    def abort(self) -> None:
        """Abort the transaction."""
        self._producer.abort_transaction(WITHIN)


def _send(producer: Producer, topic: str, records: Iterable[Record | bytes]) -> None:
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error)

    for one in records:
        record = Record(value=one) if isinstance(one, bytes) else one
        partition = PARTITION_UNASSIGNED if record.partition is None else record.partition
        # 0 is the client's word for now.
        timestamp = 0 if record.timestamp is None else round(record.timestamp.timestamp() * 1000)
        while True:
            try:
                producer.produce(
                    topic,
                    value=record.value,
                    key=record.key,
                    partition=partition,
                    timestamp=timestamp,
                    on_delivery=delivered,
                )
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    left = producer.flush(WITHIN)
    if left or failed:
        raise RuntimeError(f"{left} record(s) of {topic} were not stored, {len(failed)} failed: {failed[:3]}")


@contextmanager
def logs_at(settings: Mapping[str, str], timeout: timedelta = TIMEOUT) -> Iterator[BrokerLogs]:
    """Lend the logs of the cluster that a user's client settings lead to."""
    with AdminProcess(admin_settings(settings), timeout) as process:
        yield BrokerLogs(process)


@contextmanager
def groups_at(settings: Mapping[str, str], timeout: timedelta = TIMEOUT) -> Iterator[Groups]:
    """Lend the groups of that cluster."""
    with AdminProcess(admin_settings(settings), timeout) as process:
        yield Groups(process)


def start_server(run_dir: Path) -> Kafka:
    """Start the broker of this run, or find the one that another worker has started."""
    folder = run_dir / "kafka"
    folder.mkdir(exist_ok=True)
    address = folder / "bootstrap_servers"
    with (folder / "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not address.exists():
            cluster = start_cluster(folder, launch=partial(_start_recorded, folder))
            address.write_text(cluster.bootstrap_servers)
    return Kafka(address.read_text())


def stop_server(run_dir: Path) -> None:
    """Stop the broker of a run, if a worker has started it."""
    for path in (run_dir / "kafka").glob("*.process.json"):
        ServiceProcess(**json.loads(path.read_text())).stop(within=5)


def _start_recorded(folder: Path, program: Program) -> ServiceProcess:
    """Start a process that outlives this worker, and write down at once which it is."""
    child = start_detached(program)
    (folder / f"{child.pid}.process.json").write_text(json.dumps(asdict(child), default=str))
    return child
