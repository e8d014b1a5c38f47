"""SIGTERM to the JVM that `spark-submit` has started, as a cluster ends the first process of a driver's container."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from airflow_kcr.embedded.servers import spark_environment, spark_home
from tests.support.members import TOP

DRIVER = """
import os, signal, threading
from pyspark.sql import SparkSession
from airflow_kcr.spark import jvm

spark, asked = SparkSession.builder.master("local[1]").getOrCreate(), threading.Event()
jvm.take_sigterm(asked.set)
os.kill(os.getppid(), signal.SIGTERM)
assert asked.wait(60), "the signal did not come here"
assert spark.range(3).count() == 3, "Spark has ended"
print("went on")
spark.stop()
"""


@pytest.mark.long
def test_it_is_this_processs_to_answer_and_spark_goes_on(tmp_path: Path) -> None:
    program = tmp_path / "driver.py"
    program.write_text(DRIVER)
    ran = subprocess.run(
        [str(spark_home() / "bin" / "spark-submit"), "--conf", "spark.ui.enabled=false", str(program)],
        env={**spark_environment(), "PYTHONPATH": str(TOP)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    assert "went on" in ran.stdout
