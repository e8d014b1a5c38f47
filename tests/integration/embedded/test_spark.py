"""Spark from the PySpark package: a cluster that does a job, loses an executor, and leaves nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from airflow_kcr.embedded.processes import accepts, happened
from airflow_kcr.embedded.servers import spark_environment
from tests.support.spark_executors import application_settings, executors, kill_executor
from tests.support.tied import start_standalone

# Counts, says so, waits for a line, and counts again, with Python on the executors.
JOB = """
import sys
from pyspark.sql import SparkSession

builder = SparkSession.builder
for setting in sys.argv[1:]:
    name, _, value = setting.partition("=")
    builder = builder.config(name, value)
spark = builder.config("spark.ui.enabled", "false").config("spark.log.level", "OFF").getOrCreate()

def count():
    return spark.sparkContext.parallelize(range(100), 4).map(lambda number: number % 2).sum()

print("counted", count(), flush=True)
sys.stdin.readline()
print("counted", count(), flush=True)
spark.stop()
"""


@pytest.mark.soak  # batches on a cluster that loses an executor are tried in tests/integration/spark
def test_a_cluster_does_a_job_even_after_an_executor_is_killed(tmp_path: Path) -> None:
    cluster = start_standalone(tmp_path)
    pids = [one.pid for one in cluster.children]
    try:
        settings = [f"{name}={value}" for name, value in application_settings(cluster).items()]
        job = subprocess.Popen(
            [sys.executable, "-c", JOB, *settings],
            env=spark_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert job.stdout is not None
            assert job.stdout.readline() == "counted 50\n"
            assert happened(lambda: len(executors(cluster)) == 2, within=30)
            killed = kill_executor(cluster)
            assert happened(lambda: killed not in executors(cluster), within=10)
            told, _ = job.communicate("\n", timeout=500)
        finally:
            job.kill()
            job.communicate()
        assert told == "counted 50\n"
        assert job.returncode == 0
        pids += executors(cluster)
    finally:
        cluster.stop()
    assert not [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]
    assert not accepts(cluster.port)
