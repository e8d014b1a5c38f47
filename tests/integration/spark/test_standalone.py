"""Batches on a standalone cluster: an application submitted as a user would, in client mode."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from airflow_kcr.embedded.servers import spark_environment, spark_home
from tests.integration.spark.batches import WITHIN, wait_until
from tests.support.kafka import Kafka
from tests.support.spark_executors import application_settings, kill_executor
from tests.support.tied import standalone

RECORDS = 3000
TOP = Path(__file__).parents[3]


@pytest.mark.long
@pytest.mark.timeout(360)
def test_batches_are_exact_cancelled_and_quiet_on_a_cluster_and_survive_an_executor(
    kafka: Kafka, connector_jars: tuple[Path, ...], tmp_path: Path
) -> None:
    topic = kafka.topic(2)
    kafka.fill(topic, {0: RECORDS, 1: RECORDS})
    with standalone(tmp_path / "cluster") as cluster:
        conf = {**application_settings(cluster), "spark.driver.memory": "600m", "spark.ui.enabled": "false"}
        application = str(Path(__file__).with_name("standalone_driver.py"))
        log = (tmp_path / "driver.log").open("wb")
        driver = subprocess.Popen(
            [
                *(str(spark_home() / "bin" / "spark-submit"), "--master", cluster.address),
                *("--jars", ",".join(map(str, connector_jars))),
                *(part for name, value in conf.items() for part in ("--conf", f"{name}={value}")),
                *(application, kafka.bootstrap_servers, topic, str(RECORDS), str(tmp_path)),
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**spark_environment(), "PYTHONPATH": os.pathsep.join([str(TOP), os.environ.get("PYTHONPATH", "")])},
            # Elsewhere, as on another machine: nothing may be found in the working folder by chance.
            cwd=tmp_path,
        )
        try:
            at_work = tmp_path / "kill-an-executor"
            wait_until(lambda: at_work.exists() or driver.poll() is not None, "batch at work", within=200)
            if driver.poll() is None:
                kill_executor(cluster)
            status = driver.wait(WITHIN)
        finally:
            driver.kill()
            driver.wait()
            log.close()
    assert status == 0, (tmp_path / "driver.log").read_text()[-4000:]
    assert json.loads((tmp_path / "seen.json").read_text()) == {
        "daemon": "kcr_python_daemon",
        "whole": True,
        "scans": 1,
        "cancelled": True,
        "tasks_after": 0,
        "marks_after": 0,
        "after_loss": True,
    }


@pytest.mark.long
def test_spark_refuses_a_python_driver_on_a_standalone_cluster() -> None:
    master = ("--master", "spark://127.0.0.1:7077", "--deploy-mode", "cluster")
    command = [
        str(spark_home() / "bin" / "spark-submit"),
        *master,
        str(Path(__file__).with_name("standalone_driver.py")),
    ]
    done = subprocess.run(command, env=spark_environment(), capture_output=True, text=True, timeout=60, check=False)
    assert "not supported for python applications on standalone clusters" in done.stderr
