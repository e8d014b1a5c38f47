"""Real Kafka brokers on the loopback address: one, or a set of two or three for what needs a failover.

Brokers are their own controllers (KRaft, combined mode). Of two brokers only the first is a controller: two would need
each other to agree on anything. Of three all are, so any one of them may fail.
"""

from __future__ import annotations

import json
import os
import subprocess
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

from airflow_kcr.embedded.jars import KAFKA_BROKER, QUICK_START, java, resolve
from airflow_kcr.embedded.processes import EmbeddedServer, Launch, Recorded, accepts, free_port, start_tied, together
from airflow_kcr.errors import ConfigurationError, ServiceFailed

READY_WITHIN: Final = 90.0
FORMAT_WITHIN: Final = 60.0
LARGEST_SET: Final = 3
HEAP: Final = "-Xmx384m"
STARTED: Final = "Kafka Server started"
LOGGING: Final = (
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSXXX",
    "-Dorg.slf4j.simpleLogger.log.org.apache.kafka=warn",
    "-Dorg.slf4j.simpleLogger.log.state.change.logger=warn",
)

# What makes a small cluster quick to start, to rebalance and to notice a failure; the rest is as Kafka has it.
SETTINGS: Final[Mapping[str, str]] = {
    "auto.create.topics.enable": "false",
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "6000",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "6000",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "num.io.threads": "4",
    "num.network.threads": "2",
    "offsets.topic.num.partitions": "5",
    "share.coordinator.state.topic.num.partitions": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "transaction.state.log.num.partitions": "5",
}


@dataclass(slots=True, kw_only=True)
class Broker(EmbeddedServer):
    """One broker; stopped in good order, it hands over what it leads first."""

    node_id: int
    sasl_port: int
    controller_port: int | None
    cluster_id: str

    @property
    def address(self) -> str:
        """Where clients reach it without a password."""
        return f"127.0.0.1:{self.port}"

    def _start(self) -> None:
        self._format()
        child = self.launch(
            _command(HEAP, *LOGGING, "kafka.Kafka", str(self.folder / "server.properties")),
            name=f"Kafka broker {self.node_id}",
            log=self.folder / "broker.log",
            env=dict(os.environ),
        )
        self.child = child
        child.wait_until(lambda: child.has_logged(STARTED) and accepts(self.port), within=READY_WITHIN)

    def _format(self) -> None:
        if (self.folder / "data" / "meta.properties").exists():
            return
        # By Kafka's own tool: it also writes which of the cluster's features are on, among them the newer groups.
        options = ["format", "--cluster-id", self.cluster_id, "--config", str(self.folder / "server.properties")]
        ran = subprocess.run(
            _command("-Xmx128m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "kafka.tools.StorageTool", *options),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=FORMAT_WITHIN,
        )
        if ran.returncode != 0:
            raise ServiceFailed(f"Kafka broker {self.node_id}: its storage could not be formatted:\n{ran.stdout}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaCluster:
    """Brokers that form one cluster."""

    brokers: tuple[Broker, ...]

    @property
    def bootstrap_servers(self) -> str:
        """Where clients reach the cluster without a password."""
        return ",".join(broker.address for broker in self.brokers)

    @property
    def sasl_bootstrap_servers(self) -> str:
        """Where clients reach it with `sasl.mechanism=PLAIN` over `SASL_PLAINTEXT`, if it was started with users."""
        return ",".join(f"127.0.0.1:{broker.sasl_port}" for broker in self.brokers)

    @property
    def recorded(self) -> tuple[Recorded, ...]:
        """The processes of the brokers, to stop them from elsewhere."""
        return tuple(broker.child.recorded for broker in self.brokers if broker.child is not None)

    def broker(self, node_id: int) -> Broker:
        """Return the broker of that node id; they are numbered from 1."""
        return self.brokers[node_id - 1]

    def start(self) -> None:
        """Start every broker that does not run, and wait until all serve."""
        together([broker.start for broker in self.brokers])

    def stop(self) -> None:
        """Stop every broker."""
        together([broker.stop for broker in self.brokers])


def start_cluster(
    folder: Path,
    *,
    brokers: int = 1,
    launch: Launch = start_tied,
    settings: Mapping[str, str] | None = None,
    sasl_users: Mapping[str, str] | None = None,
) -> KafkaCluster:
    """Start a new cluster, or that of the folder again, with the data it had.

    Args:
        folder: Where settings, data and logs go, a folder for each broker.
        brokers: How many, one to three.
        launch: Whether the brokers end with this process.
        settings: Broker settings beside `SETTINGS`, or instead of them.
        sasl_users: Names and passwords; with any, each broker has a second listener that asks for them (SASL/PLAIN).

    Raises:
        ServiceFailed: if a broker does not start; none is left running then.
        ToolMissing: if Java is missing.
    """
    if not 1 <= brokers <= LARGEST_SET:
        raise ConfigurationError(f"a set has one to {LARGEST_SET} brokers, not {brokers}")
    resolve(KAFKA_BROKER)
    cluster = KafkaCluster(brokers=_planned(folder, brokers, launch))
    controllers = {one.node_id: one.controller_port for one in cluster.brokers if one.controller_port is not None}
    for broker in cluster.brokers:
        own = _listeners(broker, controllers, sasl_users or {}) | _copies(brokers)
        _write_settings(broker.folder, {**own, **SETTINGS, **(settings or {})})
    try:
        cluster.start()
    except BaseException:
        cluster.stop()
        raise
    return cluster


def new_cluster_id() -> str:
    """Return a new id of a cluster, in Kafka's form; never one that its tools would take for an option."""
    while True:
        text = urlsafe_b64encode(uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def _planned(folder: Path, brokers: int, launch: Launch) -> tuple[Broker, ...]:
    """The brokers of the folder, as they were when it was new: a node id, its ports and its data belong together."""
    plan = folder / "cluster.json"
    if not plan.exists():
        controllers = range(1, brokers + 1) if brokers == LARGEST_SET else range(1, 2)
        cluster_id = new_cluster_id()
        nodes = [
            {
                "node_id": node,
                "port": free_port(),
                "sasl_port": free_port(),
                "controller_port": free_port() if node in controllers else None,
                "cluster_id": cluster_id,
            }
            for node in range(1, brokers + 1)
        ]
        folder.mkdir(parents=True, exist_ok=True)
        plan.write_text(json.dumps(nodes))
    found = json.loads(plan.read_text())
    if len(found) != brokers:
        raise ConfigurationError(f"{folder} has a set of {len(found)} broker(s), not of {brokers}: use another folder")
    return tuple(Broker(**node, folder=folder / f"broker-{node['node_id']}", launch=launch) for node in found)


def _listeners(broker: Broker, controllers: Mapping[int, int], users: Mapping[str, str]) -> dict[str, str]:
    advertised = {"BROKER": broker.port} | ({"SASL": broker.sasl_port} if users else {})
    bound = advertised | ({"CONTROLLER": broker.controller_port} if broker.controller_port is not None else {})
    return {
        "process.roles": "broker" if broker.controller_port is None else "broker,controller",
        "node.id": str(broker.node_id),
        "controller.quorum.voters": ",".join(f"{node}@127.0.0.1:{port}" for node, port in controllers.items()),
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "BROKER",
        "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in bound.items()),
        "advertised.listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in advertised.items()),
        "listener.security.protocol.map": "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT",
        "log.dirs": str(broker.folder / "data"),
    } | (_login(users) if users else {})


def _login(users: Mapping[str, str]) -> dict[str, str]:
    accepted = " ".join(f"user_{name}={_quoted(password)}" for name, password in users.items())
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return {
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl.plain.sasl.jaas.config": f"{module} required {accepted};",
    }


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _copies(brokers: int) -> dict[str, str]:
    """On how many brokers a partition is, so that one of three may fail and nothing committed is lost."""
    copies, enough = str(brokers), str(max(1, brokers - 1))
    return {
        "default.replication.factor": copies,
        "min.insync.replicas": enough,
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": enough,
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": enough,
    }


def _write_settings(folder: Path, settings: Mapping[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    # In a Java properties file a backslash escapes what follows.
    lines = [f"{name}={value.replace(chr(92), chr(92) * 2)}\n" for name, value in sorted(settings.items())]
    path = folder / "server.properties"
    path.touch(mode=0o600)  # it may hold passwords
    path.write_text("".join(lines), encoding="utf-8")


def java_command(classes: Sequence[Path], *arguments: str) -> list[str]:
    """Return the command that runs a Java program of Kafka: its jars, then Java's own options, the class, and its."""
    return [str(java()), *QUICK_START, "-cp", os.pathsep.join(str(jar) for jar in classes), *arguments]


def _command(*arguments: str) -> list[str]:
    return java_command(resolve(KAFKA_BROKER), *arguments)
