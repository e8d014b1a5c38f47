"""Kafka brokers that form one cluster, with a listener that asks for passwords if they have users.

Of two brokers only the first is a controller: two would need each other to agree on anything. Of three all are, so any
one of them may fail.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from airflow_kcr.embedded.jars import KAFKA_BROKER, resolve
from airflow_kcr.embedded.processes import Launch, free_port, remembered, started, together
from airflow_kcr.embedded.servers import Broker, new_cluster_id, write_settings
from airflow_kcr.errors import ConfigurationError
from tests.support.tied import Breakable, start_tied

LARGEST_SET: Final = 3
MORE_SETTINGS: Final = {
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "6000",
    "share.coordinator.state.topic.num.partitions": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "transaction.state.log.num.partitions": "5",
}
"""Beside those of the embedded broker: what several of them, transactions and share groups need to be quick."""


@dataclass(slots=True, kw_only=True)
class ClusterBroker(Breakable, Broker):
    """One of them."""

    sasl_port: int
    controller_port: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaCluster:
    """Brokers that form one cluster."""

    brokers: tuple[ClusterBroker, ...]

    @property
    def bootstrap_servers(self) -> str:
        """Where clients reach the cluster without a password."""
        return ",".join(broker.address for broker in self.brokers)

    @property
    def sasl_bootstrap_servers(self) -> str:
        """Where clients reach it with `sasl.mechanism=PLAIN` over `SASL_PLAINTEXT`, if it was started with users."""
        return ",".join(f"127.0.0.1:{broker.sasl_port}" for broker in self.brokers)

    def broker(self, node_id: int) -> ClusterBroker:
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
        folder: where settings, data and logs go, a folder for each broker.
        brokers: how many, one to three.
        launch: whether the brokers end with this process.
        settings: broker settings beside those of the embedded one, or instead of them.
        sasl_users: names and passwords; with any, each broker has a second listener that asks for them (SASL/PLAIN).
    """
    if not 1 <= brokers <= LARGEST_SET:
        raise ConfigurationError(f"a set has one to {LARGEST_SET} brokers, not {brokers}")
    resolve(KAFKA_BROKER)
    cluster = KafkaCluster(brokers=_planned(folder, brokers, launch))
    controllers = {one.node_id: one.controller_port for one in cluster.brokers if one.controller_port is not None}
    for broker in cluster.brokers:
        own = _listeners(broker, controllers, sasl_users or {}) | _copies(brokers)
        write_settings(broker.folder, {**MORE_SETTINGS, **own, **(settings or {})})
    started(cluster.start, cluster.stop)
    return cluster


def _planned(folder: Path, brokers: int, launch: Launch) -> tuple[ClusterBroker, ...]:
    """The brokers of the folder, as they were when it was new: a node id, its ports and its data belong together."""
    controllers = range(1, brokers + 1) if brokers == LARGEST_SET else range(1, 2)

    def planned(node: int) -> dict[str, int | None]:
        controller_port = free_port() if node in controllers else None
        return {"node_id": node, "port": free_port(), "sasl_port": free_port(), "controller_port": controller_port}

    known = remembered(
        folder / "cluster.json",
        lambda: {"cluster_id": new_cluster_id(), "nodes": [planned(node) for node in range(1, brokers + 1)]},
    )
    found = known["nodes"]
    if len(found) != brokers:
        raise ConfigurationError(f"{folder} has a set of {len(found)} broker(s), not of {brokers}: use another folder")
    own = {"cluster_id": known["cluster_id"], "launch": launch}
    return tuple(ClusterBroker(**node, **own, folder=folder / f"broker-{node['node_id']}") for node in found)


def _listeners(broker: ClusterBroker, controllers: Mapping[int, int], users: Mapping[str, str]) -> dict[str, str]:
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
