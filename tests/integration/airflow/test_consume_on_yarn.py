"""Consumers in deploy mode `cluster` on YARN: real daemons, broker and store; drivers run in YARN's containers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_kcr.protocol.region.rows import Committed
from airflow_kcr.triggers.payloads import Status
from tests.support.consume import Task, consumers
from tests.support.consume_in_cluster import TOLD_WITHIN, ConsumersInCluster, trigger
from tests.support.consume_pipeline import OUTPUT
from tests.support.kafka import Kafka
from tests.support.members import TOP
from tests.support.yarn import APPLICATION_MASTER, EXECUTOR, YarnCluster, yarn_cluster

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]


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

    def ended(self, task: Task) -> bool | None:
        """Whether the resource manager says SUCCEEDED."""
        status = self.cluster.final_status(self.application(task))
        return None if status is None else status == "SUCCEEDED"

    def kill(self, task: Task) -> None:
        """Kill the one driver that there is."""
        (driver,) = self.cluster.processes(APPLICATION_MASTER)
        os.kill(driver, signal.SIGKILL)

    def is_empty(self) -> bool:
        """Whether no container runs."""
        return not self.cluster.processes(APPLICATION_MASTER) + self.cluster.processes(EXECUTOR)


@pytest.fixture
def here(kafka: Kafka, store_connection: str, tmp_path: Path, connector_jars: tuple[Path, ...]) -> Iterator[OnYarn]:
    """The region, and the cluster."""
    with (
        yarn_cluster(tmp_path / "yarn", {"KCR_STORE_URL": store_connection}) as cluster,
        consumers(kafka, store_connection, tmp_path, connector_jars) as found,
    ):
        yield OnYarn(found=found, cluster=cluster)


def test_a_cleared_task_ends_its_application_and_the_next_try_goes_on_without_a_reset(here: OnYarn) -> None:
    first = here.hand_over()
    here.found.work()

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
    here.found.work()
    assert here.found.undone(1) == []
    here.finish(second)


def test_spark_replaces_an_executor_that_yarn_has_lost_and_the_application_goes_on(here: OnYarn) -> None:
    task = here.hand_over()
    here.found.work()
    (lost,) = here.cluster.processes(EXECUTOR)
    os.kill(lost, signal.SIGKILL)
    here.found.until(lambda: bool({*here.cluster.processes(EXECUTOR)} - {lost}), "another executor")
    here.found.work()
    assert len(here.found.incarnations(here.found.live.member(0))) == 1
    here.finish(task)


@pytest.mark.parametrize("fault", ["driver lost", "application killed"])
def test_an_application_that_yarn_has_lost_is_told_by_its_state_and_the_next_try_takes_over(
    here: OnYarn, fault: str
) -> None:
    first = here.hand_over()
    here.found.work()
    said = here.watched(first)
    if fault == "driver lost":
        here.kill(first)
    else:
        here.cluster.kill(here.application(first))
    here.until_over(first)
    assert not here.ended(first)
    assert said.result(TOLD_WITHIN).status is not Status.REACHED
    here.found.until(lambda: here.cluster.processes(EXECUTOR) == [], "its executors over")
    here.take_over()


def test_a_driver_whose_container_is_shut_down_drains_and_others_take_over_at_once(here: OnYarn) -> None:
    first = here.hand_over()
    here.found.work()
    said = here.watched(first)
    here.cluster.shut_down(here.application(first))
    here.until_over(first)
    assert here.ended(first)
    assert here.found.undone(1) == []
    checkpoints = here.found.live.region().checkpoints
    assert checkpoints[max(checkpoints)].committed is Committed.YES
    assert said.result(TOLD_WITHIN).status is not Status.REACHED
    here.take_over()


def test_intervals_run_one_after_the_other_and_leave_nothing_running(here: OnYarn) -> None:
    here.require_intervals()
