"""Consumers in deploy mode `cluster` on YARN: real daemons, broker and store; drivers run in YARN's containers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.airflow_home import connection_json
from tests.support.consume import Task, consumers
from tests.support.consume_in_cluster import PIPELINE, SPEC, ConsumersInCluster, trigger, undone
from tests.support.consume_pipeline import OUTPUT
from tests.support.kafka import Kafka
from tests.support.members import TOP, live
from tests.support.yarn import APPLICATION_MASTER, EXECUTOR, YarnCluster, yarn_cluster


@dataclass(slots=True, kw_only=True)
class OnYarn(ConsumersInCluster):
    """A region whose consumers run on YARN."""

    cluster: YarnCluster

    def options(self) -> Mapping[str, Any]:
        """What the page on YARN says, on this machine."""
        conf = {
            **self.cluster.settings,
            "spark.yarn.appMasterEnv.PYTHONPATH": str(TOP),
            f"spark.yarn.appMasterEnv.{OUTPUT}": str(self.found.output),
            "spark.executorEnv.PYTHONPATH": str(TOP),
        }
        environment = {"HADOOP_CONF_DIR": str(self.cluster.configuration), "PYSPARK_PYTHON": sys.executable}
        return {"master": "yarn", "conf": conf, "environment": environment}

    def executors(self) -> set[str]:
        """Return the process ids of the executors."""
        return {str(pid) for pid in self.cluster.processes(EXECUTOR)}

    def ended(self, task: Task) -> bool | None:
        """Whether the resource manager says SUCCEEDED."""
        status = self.cluster.final_status(self.application(task))
        return None if status is None else status == "SUCCEEDED"


@contextmanager
def on_yarn(
    kafka: Kafka, url: str, folder: Path, jars: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch
) -> Iterator[OnYarn]:
    monkeypatch.setenv("AIRFLOW_CONN_KCR_DEFAULT", connection_json(url))
    with (
        yarn_cluster(folder / "yarn", {"KCR_STORE_URL": url}) as cluster,
        live(kafka, url, folder, members=1, partitions=2, spec=SPEC, pipeline=PIPELINE) as region,
        consumers(region, jars, folder) as found,
    ):
        yield OnYarn(found=found, cluster=cluster)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_cleared_task_ends_its_application_and_the_next_try_goes_on_without_a_reset(
    kafka: Kafka, database_url: str, tmp_path: Path, connector_jars: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    with on_yarn(kafka, database_url, tmp_path, connector_jars, monkeypatch) as here:
        first = here.hand_over()
        here.work()

        # The store's address comes from the cluster alone: no process's arguments, no log and no XCom have it.
        lines = [" ".join(psutil.Process(pid).cmdline()) for pid in here.cluster.processes(APPLICATION_MASTER)]
        assert lines
        shown = "\n".join([*lines, first.said(), json.dumps(first.xcoms), json.dumps(first.ended)])
        assert "postgresql" not in shown

        asyncio.run(trigger(first).on_kill())
        second = here.hand_over(try_number=2)
        here.until_over(first)
        assert here.ended(first)
        assert "everything that was processed is in checkpoint" in here.cluster.said(here.application(first))
        here.work()
        assert undone(here.found, 1) == []
        here.finish(second)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_spark_replaces_an_executor_that_yarn_has_lost_and_the_application_goes_on(
    kafka: Kafka, database_url: str, tmp_path: Path, connector_jars: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    with on_yarn(kafka, database_url, tmp_path, connector_jars, monkeypatch) as here:
        here.goes_on(here.replaces(lambda executor: os.kill(int(executor), signal.SIGKILL)))


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("fault", ["driver lost", "application killed"])
def test_an_application_that_yarn_has_lost_fails_its_task_and_the_next_try_takes_over(
    kafka: Kafka,
    database_url: str,
    tmp_path: Path,
    connector_jars: tuple[Path, ...],
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
) -> None:
    with on_yarn(kafka, database_url, tmp_path, connector_jars, monkeypatch) as here:

        def lose(task: Task) -> None:
            if fault == "driver lost":
                (driver,) = here.cluster.processes(APPLICATION_MASTER)
                os.kill(driver, signal.SIGKILL)
            else:
                here.cluster.kill(here.application(task))

        here.is_taken_over_after(lose)
