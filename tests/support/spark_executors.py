"""The executors of a standalone cluster, and the end of one."""

from __future__ import annotations

import os
import signal

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
    return tuple(
        process.pid
        for worker in cluster.children[1:]
        for process in _descendants(worker.pid)
        if EXECUTOR_CLASS in _command_line(process)
    )


def kill_executor(cluster: StandaloneCluster) -> int:
    """End one executor as a crash would (SIGKILL); the master has another started. Return its pid."""
    pid = executors(cluster)[0]
    os.kill(pid, signal.SIGKILL)
    return pid


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return []
