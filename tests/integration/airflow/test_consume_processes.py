"""Every way in which a task, its application or what is around them can end: real spark-submit, broker and store.

What stands for Airflow is a supervisor and a task in a process group of its own, with the signals and the five seconds
of the real ones.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_kcr.protocol.region.rows import RegionState
from tests.support.consume import CONF, RECORDS, Consumers, Task, consumers
from tests.support.driver import STOP
from tests.support.kafka import Kafka
from tests.support.spark_executors import application_settings
from tests.support.tied import standalone


def command_lines(pids: set[int]) -> str:
    found = []
    for pid in pids:
        with suppress(psutil.Error):  # gone, or not yet buried
            found += psutil.Process(pid).cmdline()
    return "\n".join(found)


def finish(found: Consumers, task: Task) -> None:
    """Let everything be consumed, stop the region, and judge."""
    found.until(found.live.consumed, "everything consumed", within=120)
    found.live.checkpoint()
    found.live.store.handle(found.live.name, STOP)
    found.until(lambda: task.ended is not None, "the task ended")
    assert task.ended == {"state": "success"}, task.said()
    found.until_gone(task)
    account = found.account()
    assert account.is_sound, account
    found.until(lambda: not found.left(), "nothing left running")


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_task_is_cleared_at_work_then_its_jvm_dies_and_each_new_try_goes_on(
    kafka: Kafka, database_url: str, tmp_path: Path, connector_jars: tuple[Path, ...]
) -> None:
    with consumers(kafka, database_url, tmp_path, connector_jars) as found:
        first = found.start(0)
        found.until_hosting(first, 0)
        found.work()

        # Who it is, is in the store and in the task's XComs; the store's address is in no command line and in no log.
        label = found.live.region().members[found.live.member(0)].label
        assert first.application["application"] in label
        assert f"process {first.driver}" in label
        assert first.xcoms["kcr_spark_ui"] == first.application["ui"] != ""
        assert first.application["members"] == {str(found.live.member(0)): 1}
        assert database_url not in command_lines(found.belonging(first)) + first.said()
        assert "postgresql" not in command_lines(found.belonging(first)) + first.said()
        assert "wrote " in first.said()
        assert "SparkContext" not in first.said()

        # Another task that claims the same index is refused, and Airflow does not try it again.
        other = found.start(0, task_id="other")

        # Cleared: SIGTERM to the group, a new try at once, SIGKILL after five seconds. The driver hears of it at once.
        found.until(lambda: other.ended is not None, "the other task refused")
        assert other.ended is not None
        assert (other.ended["state"], "is held by" in other.ended["message"]) == ("AirflowFailException", True)
        found.work()
        first.kill_from_the_page()
        second = found.start(0, try_number=2)
        found.until_gone(first)
        assert "everything that was processed is in checkpoint" in first.said()
        found.until_hosting(second, 0)
        found.work()
        # It drained: nothing had to be processed again.
        assert found.undone(1) == []

        # The JVM dies: the driver ends at once, and the task says that a retry can help.
        os.kill(second.jvm, signal.SIGKILL)
        found.until(lambda: second.ended is not None, "the second try over")
        assert second.ended is not None
        assert (second.ended["state"], "SIGKILL" in second.ended["message"]) == ("AirflowException", True)
        found.until_gone(second)

        third = found.start(0, try_number=3)
        found.until_hosting(third, 0)
        assert third.application["members"] == {str(found.live.member(0)): 3}
        finish(found, third)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_task_its_supervisor_and_its_driver_are_killed_and_nothing_is_lost(
    kafka: Kafka, database_url: str, tmp_path: Path, connector_jars: tuple[Path, ...]
) -> None:
    with consumers(kafka, database_url, tmp_path, connector_jars, members=2) as found:
        first = found.start(0, 1)
        found.until_hosting(first, 0, 1)
        found.live.shared(0, 1)
        found.work()

        # The task's process is gone without a word; the next try begins while the driver drains.
        first.kill()
        second = found.start(0, 1, try_number=2)
        found.until_gone(first)
        found.until_hosting(second, 0, 1)
        found.live.shared(0, 1)
        found.work()
        assert found.undone(1) == []

        # Its supervisor is killed: the task has no owner, though its process has not noticed.
        second.supervisor.kill()
        found.until_gone(second)

        third = found.start(0, 1, try_number=3)
        found.until_hosting(third, 0, 1)
        found.work()
        assert found.undone(2) == []
        os.kill(third.driver, signal.SIGKILL)
        found.until(lambda: third.ended is not None, "the third try over")
        assert third.ended is not None
        assert third.ended["state"] == "AirflowException"
        found.until_gone(third)

        fourth = found.start(0, 1, try_number=4)
        found.until_hosting(fourth, 0, 1)
        finish(found, fourth)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_on_a_standalone_cluster_a_driver_beside_the_task_is_taken_over(
    kafka: Kafka, database_url: str, tmp_path: Path, connector_jars: tuple[Path, ...]
) -> None:
    with standalone(tmp_path / "cluster", workers=1) as cluster:
        settings = {name: value for name, value in application_settings(cluster).items() if name != "spark.master"}
        options: dict[str, Any] = {"master": cluster.address, "conf": {**CONF, **settings}, "deploy_mode": "client"}
        with consumers(kafka, database_url, tmp_path, connector_jars) as found:
            first = found.start(0, **options)
            found.until_hosting(first, 0)
            found.work()
            first.kill()
            second = found.start(0, try_number=2, **options)
            found.until_gone(first)
            found.until_hosting(second, 0)
            assert found.undone(1) == []
            finish(found, second)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_all_applications_are_killed_at_once_and_drain_together(
    kafka: Kafka, database_url: str, tmp_path: Path, connector_jars: tuple[Path, ...]
) -> None:
    with consumers(kafka, database_url, tmp_path, connector_jars, members=2) as found:
        first = [found.start(index) for index in (0, 1)]
        for index, task in enumerate(first):
            found.until_hosting(task, index)
        found.live.shared(0, 1)
        found.work()
        for task in first:
            task.kill_from_the_page()
        for task in first:
            found.until_gone(task)
        assert all("everything that was processed is in checkpoint" in task.said() for task in first)
        second = [found.start(index, try_number=2) for index in (0, 1)]
        for index, task in enumerate(second):
            found.until_hosting(task, index)
        assert found.undone(1) == []
        finish(found, second[0])
        found.until(lambda: second[1].ended == {"state": "success"}, "the other task ended too")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_task_of_a_run_is_marked_and_then_killed_and_the_next_try_goes_on(
    kafka: Kafka, database_url: str, tmp_path: Path, connector_jars: tuple[Path, ...]
) -> None:
    with consumers(kafka, database_url, tmp_path, connector_jars) as found:
        found.live.handle(STOP)
        found.live.fill(RECORDS)
        ends: list[Callable[[Task], None]] = [Task.kill_from_the_page, Task.kill]
        for number, end in enumerate(ends, 1):
            task = found.start(0, kind="run", task_id="run", try_number=number)
            found.until_written(200)
            end(task)
            found.until_gone(task)
        last = found.start(0, kind="run", task_id="run", try_number=3)
        found.until(lambda: last.ended is not None, "the last try over")
        assert last.ended == {"state": "success"}, last.said()
        found.until(lambda: not found.left(), "nothing left running")
        region = found.live.region()
        assert region.state is RegionState.STOPPED
        assert list(region.restore_point_offsets().values()) == [RECORDS] * 2
        account = found.account()
        assert account.is_sound, account
