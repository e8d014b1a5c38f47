"""Consumers in deploy mode `cluster` on YARN: real daemons, broker and store; drivers run in YARN's containers.

What stands for Airflow is a supervisor and a task, as in `test_consume_processes`, and the deferred task's trigger.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from airflow_kcr.protocol.commands import StopRegion
from airflow_kcr.protocol.region.rows import Outcome
from airflow_kcr.triggers.payloads import Status, TriggerAnswer
from airflow_kcr.triggers.waits import RegionTrigger
from tests.support.airflow_home import connection_json
from tests.support.consume import Consumers, Task, consumers
from tests.support.consume_pipeline import OUTPUT
from tests.support.members import TOP, live
from tests.support.yarn import APPLICATION_MASTER, YarnCluster, yarn_cluster

if TYPE_CHECKING:
    from tests.support.kafka import Kafka

SPEC = """\
batch: {target: 500ms, min_records: 50, max_records: 200, timeout: 60s}
timeouts: {lease: 6s, renew: 1s, session: 60s, relaunch: 45s, reset: 100s, drain: 90s, commit: 10s, close: 6s}
"""
PIPELINE = "tests.support.consume_pipeline:process"
RECORDS = 750
"""Of each partition, for some seconds of work."""

COMING = 400.0
"""Seconds for a hand-over, and for the driver's start in its container."""


@dataclass(slots=True, kw_only=True)
class OnYarn:
    """A region whose consumers run in a cluster."""

    found: Consumers
    cluster: YarnCluster

    def hand_over(self, try_number: int = 1) -> Task:
        """Start a try, and return when the cluster has taken its application and its member has come."""
        found, before = self.found, len(self.found.incarnations(self.found.live.member(0)))
        environment = {"HADOOP_CONF_DIR": str(self.cluster.configuration), "PYSPARK_PYTHON": sys.executable}
        conf = {
            **self.cluster.settings,
            "spark.yarn.appMasterEnv.PYTHONPATH": str(TOP),
            f"spark.yarn.appMasterEnv.{OUTPUT}": str(found.output),
            "spark.executorEnv.PYTHONPATH": str(TOP),
        }
        task = found.start(
            0, try_number=try_number, master="yarn", deploy_mode="cluster", conf=conf, environment=environment
        )
        found.until(lambda: task.ended is not None, "the application handed over", COMING)
        assert task.ended is not None
        assert task.ended["state"] == "deferred", task.said()
        member = found.live.member(0)
        found.until(lambda: len(found.incarnations(member)) > before, "its member has come", COMING)
        found.live.until_running(within=120)
        return task

    def application(self, task: Task) -> str:
        """The cluster's name for a task's application."""
        return str(task.application["application"])

    def work(self) -> None:
        """Return when an application is in the middle of its work."""
        self.found.live.fill(RECORDS)
        self.found.until_written(200)

    def until_over(self, task: Task) -> None:
        """Wait until the cluster has nothing of an application left."""
        self.found.until(lambda: self.cluster.final_status(self.application(task)) is not None, "the application over")

    def answer(self, task: Task) -> TriggerAnswer:
        """Return what the trigger of a deferred task says, once it does."""
        made = trigger(task)

        async def main() -> TriggerAnswer:
            async for event in made.run():
                return TriggerAnswer.from_json(event.payload)
            raise AssertionError("the trigger ended without an event")

        return asyncio.run(asyncio.wait_for(main(), COMING))

    def finish(self, task: Task) -> None:
        """Let everything be consumed, stop the region, and judge."""
        found = self.found
        found.until(found.live.consumed, "everything consumed", within=180)
        found.live.checkpoint()
        found.live.store.handle(found.live.name, StopRegion())
        assert self.answer(task).status is Status.REACHED
        self.until_over(task)
        assert self.cluster.final_status(self.application(task)) == "SUCCEEDED"
        account = found.account()
        assert account.is_sound, account


def trigger(task: Task) -> RegionTrigger:
    """Return the trigger of a deferred task, as a triggerer makes it."""
    assert task.ended is not None
    return RegionTrigger(**task.ended["values"])


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


def undone(found: Consumers, incarnation: int) -> list[str]:
    """Return the batches of an incarnation that did not count, or count no more."""
    batches = [batch for batch in found.live.store.batches(found.live.name) if batch.incarnation == incarnation]
    assert batches
    return [batch.batch for batch in batches if batch.outcome is not Outcome.DONE or batch.undone_from]


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
        assert here.cluster.final_status(here.application(first)) == "SUCCEEDED"
        assert "everything that was processed is in checkpoint" in here.cluster.said(here.application(first))
        here.work()
        assert undone(here.found, 1) == []
        here.finish(second)
