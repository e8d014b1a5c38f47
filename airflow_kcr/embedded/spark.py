"""Spark from the PySpark package: the address of a local master, and a standalone cluster of a master and workers."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from airflow_kcr.embedded.jars import QUICK_START, java, pyspark_jars
from airflow_kcr.embedded.processes import Launch, Recorded, ServiceProcess, free_port, start_tied

READY_WITHIN: Final = 90.0
DAEMON_MEMORY: Final = "192m"
MASTER_CLASS: Final = "org.apache.spark.deploy.master.Master"
WORKER_CLASS: Final = "org.apache.spark.deploy.worker.Worker"


def spark_home() -> Path:
    """Return the folder of the installed PySpark, with `bin/spark-submit` in it.

    Raises:
        ToolMissing: if PySpark is not installed.
    """
    return pyspark_jars().parent


def environment() -> dict[str, str]:
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
        master.wait_until(lambda: master.has_logged("New state: ALIVE"), within=READY_WITHIN)
        self.workers = [
            self._spawn(
                f"Spark worker {number}",
                WORKER_CLASS,
                *("--port", str(free_port()), "--webui-port", str(free_port())),
                *("--cores", str(self.cores), "--memory", self.memory),
                *("--work-dir", str(self.folder / f"worker-{number}"), self.address),
            )
            for number in range(1, workers + 1)
        ]
        for worker in self.workers:
            self._wait_for(worker)

    @staticmethod
    def _wait_for(worker: ServiceProcess) -> None:
        worker.wait_until(lambda: worker.has_logged("Successfully registered with master"), within=READY_WITHIN)

    def _spawn(self, name: str, main: str, *arguments: str) -> ServiceProcess:
        return self.launch(
            [str(spark_home() / "bin" / "spark-class"), main, "--host", "127.0.0.1", *arguments],
            name=name,
            log=self.folder / f"{name.replace(' ', '-').lower()}.log",
            env={
                **environment(),
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
