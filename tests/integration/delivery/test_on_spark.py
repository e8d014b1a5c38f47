"""A sample of the table of faults on real Spark: its processes are killed at steps of a batch.

The driver, its JVM, which is the executor too, and a Python worker in local mode; an executor of a standalone cluster.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeAlias

import psutil
import pytest

from airflow_kcr.embedded.servers import StandaloneCluster
from airflow_kcr.protocol.rules import Delivery
from tests.support.delivery_faults import AT_MOST, STEPS, Scene, scene
from tests.support.delivery_servers import Servers, noted
from tests.support.faults import Note
from tests.support.kafka import Kafka
from tests.support.members import TOP
from tests.support.spark_executors import application_settings, executors
from tests.support.spark_gated_pipeline import CONF, DRIVER
from tests.support.tied import standalone

SPEC = """\
batch: {target: 2s, min_records: 50, max_records: 500, timeout: 90s}
timeouts: {lease: 10s, renew: 1s, session: 30s, relaunch: 20s, reset: 120s, drain: 100s, commit: 20s, close: 8s}
"""

PATIENT = """\
batch: {target: 2s, min_records: 50, max_records: 500, timeout: 240s}
timeouts: {lease: 30s, renew: 3s, session: 60s, relaunch: 20s, reset: 400s, drain: 260s, commit: 30s, close: 10s}
"""
"""For members whose batches wait until a new executor has started, a JVM with everything to load."""

TASK_FAILURES = 4
"""How often Spark tries a task on a cluster before its job fails."""

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3_000), pytest.mark.postgres]


def driver(now: Scene) -> None:
    """kill -9 of the driver's Python; its JVM ends with it."""
    now.is_killed()


def jvm(now: Scene) -> None:
    """kill -9 of the JVM; the driver's Python can run no batch any more, and ends."""
    children = psutil.Process(now.victim.process.pid).children(recursive=True)
    (java,) = [child for child in children if child.name() == "java"]
    java.kill()
    for gate in now.victim.gates.glob("*.reached"):
        now.goes_on(gate.stem)
    now.victim.wait(120)
    now.is_killed()


def worker(now: Scene) -> None:
    """kill -9 of a Python worker in the middle of its task, which Spark tries again."""
    pid = int((now.victim.gates / "worker.pid").read_text())
    os.kill(pid, signal.SIGKILL)
    now.goes_on("worker")


def executor(now: Scene, cluster: StandaloneCluster, step: str) -> None:
    """kill -9 of the one executor of member 0; Spark has another started, and tries again what was lost."""
    os.kill(_executor_of(now, cluster), signal.SIGKILL)
    now.goes_on(step)


def executor_each_time(now: Scene, cluster: StandaloneCluster, step: str) -> None:
    """kill -9 of whatever executor runs the task, until Spark gives the job up and the batch has failed."""
    last = 0
    for _ in range(TASK_FAILURES):
        last = _next_at_work(now, last)
        os.kill(_executor_of(now, cluster), signal.SIGKILL)
    now.goes_on(step)


def _executor_of(now: Scene, cluster: StandaloneCluster) -> int:
    """Return the pid of the executor of member 0."""
    mark = f"-D{DRIVER}={now.victim.process.pid}"
    (found,) = [pid for pid in executors(cluster) if mark in psutil.Process(pid).cmdline()]
    return found


def _next_at_work(now: Scene, last: int) -> int:
    """Return the pid of the Python worker that comes to the gate after another one."""
    now.one.until(lambda: _at_work(now) not in (0, last), "another task at work", AT_MOST)
    return _at_work(now)


def _at_work(now: Scene) -> int:
    """Return the pid of the Python worker that has come to the gate last; 0: none."""
    with suppress(FileNotFoundError, ValueError):
        return int((now.victim.gates / "worker.pid").read_text())
    return 0


KILLS: dict[str, tuple[Callable[[Scene], None], tuple[str, ...]]] = {
    "driver": (driver, ("planned", "recorded", "processing", "written", "staged", "published", "ended", "committed")),
    "jvm": (jvm, ("processing", "written", "staged", "published")),
    "worker": (worker, ("worker",)),
}


Play: TypeAlias = Callable[[Scene], None]


class PlayedIn(Protocol):
    """Plays faults in a region of a delivery; see the fixture."""

    def __call__(self, delivery: Delivery, faults: Play, spec: str = SPEC) -> None:
        """Play, and note what has come of it."""


@pytest.fixture
def play(
    kafka: Kafka,
    servers: Servers,
    tmp_path: Path,
    on_spark: dict[str, str],
    record_property: Note,
) -> PlayedIn:
    """Plays faults in a region of a delivery whose members are on Spark, and notes what has come of them."""

    def played(delivery: Delivery, faults: Play, spec: str = SPEC) -> None:
        with scene(
            kafka,
            servers.store.url(),
            servers.target.url(),
            delivery,
            tmp_path / "region",
            spec,
            **on_spark,
        ) as now:
            now.begins()
            try:
                faults(now)
            finally:
                noted(now.rows, record_property)

    return played


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandaloneCluster]:
    """A cluster of two workers, on which each member has one executor."""
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    with standalone(tmp_path / "cluster") as started:
        conf = {**application_settings(started), "spark.cores.max": "1", "spark.executorEnv.PYTHONPATH": str(TOP)}
        monkeypatch.setenv(CONF, json.dumps(conf))
        yield started


@pytest.mark.parametrize("delivery", Delivery)
@pytest.mark.parametrize("kill", KILLS)
def test_a_sample_on_spark(play: PlayedIn, kill: str, delivery: Delivery) -> None:
    how, steps = KILLS[kill]

    def faults(now: Scene) -> None:
        for step in steps:
            now.is_held(step)
            how(now)
            now.is_over(f"{kill} on Spark", step)
        now.goes_back()

    play(delivery, faults)


@pytest.mark.parametrize("delivery", Delivery)
def test_executors_of_a_cluster_are_killed(play: PlayedIn, cluster: StandaloneCluster, delivery: Delivery) -> None:
    def faults(now: Scene) -> None:
        for step in (*STEPS[:3], "worker", *STEPS[3:]):
            now.is_held(step)
            executor(now, cluster, step)
            now.is_over("executor on Spark", step)
        now.is_held("worker")
        executor_each_time(now, cluster, "worker")
        now.is_over("executor on Spark, until the batch fails", "worker")
        now.goes_back()

    play(delivery, faults, PATIENT)


@pytest.mark.timeout(1_200)
def test_an_executor_of_a_cluster_is_killed_in_a_task(play: PlayedIn, cluster: StandaloneCluster) -> None:
    def faults(now: Scene) -> None:
        now.is_held("worker")
        executor(now, cluster, "worker")
        now.is_over("executor on Spark", "worker")
        assert (now.rows[-1].found.twice, now.rows[-1].found.lost_in_table) == (0, 0)

    play(Delivery.EXACTLY_ONCE, faults, PATIENT)
