"""The executors of a standalone cluster, and the end of one."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import psutil

from airflow_kcr.embedded.servers import StandaloneCluster
from tests.support import quick_spark

EXECUTOR_CLASS = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


def application_settings(cluster: StandaloneCluster) -> dict[str, str]:
    """Return what an application sets, so that its driver and its executors fit on this machine."""
    return {
        "spark.master": cluster.address,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.cores": "1",
        "spark.executor.memory": cluster.memory,
        "spark.executor.extraJavaOptions": quick_spark.options(),
    }


def executors(cluster: StandaloneCluster) -> tuple[int, ...]:
    """Return the pids of the executors that run now."""
    return tuple(pid for worker in cluster.children[1:] for pid in java_below(worker.pid, EXECUTOR_CLASS))


def kill_executor(cluster: StandaloneCluster) -> int:
    """End one executor as a crash would (SIGKILL); the master has another started. Return its pid."""
    pid = executors(cluster)[0]
    os.kill(pid, signal.SIGKILL)
    return pid


def java_below(pid: int, main: str) -> list[int]:
    """Return the Java processes below a process that run a class; not the shells around them."""
    found: list[int] = []
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                line = child.cmdline()
                if main in line and Path(line[0]).name == "java":
                    found.append(child.pid)
    return found
