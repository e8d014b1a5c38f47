"""A sample of the table of faults on real Spark: driver, JVM and Python worker are killed at steps of a batch.

In Spark's local mode the driver's JVM is the executor too.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from airflow_kcr.embedded.jars import POSTGRES_DRIVER, resolve
from airflow_kcr.protocol.delivery import Delivery
from tests.support.delivery_faults import Scene, scene
from tests.support.delivery_servers import Servers, noted
from tests.support.faults import Note
from tests.support.kafka import Kafka
from tests.support.spark_gated_pipeline import JARS

SPEC = """\
batch: {target: 2s, min_records: 50, max_records: 500, timeout: 90s}
timeouts: {lease: 10s, renew: 1s, session: 30s, relaunch: 20s, reset: 120s, drain: 100s, commit: 20s, close: 8s}
"""

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


KILLS: dict[str, tuple[Callable[[Scene], None], tuple[str, ...]]] = {
    "driver": (driver, ("planned", "recorded", "processing", "written", "staged", "published", "ended", "committed")),
    "jvm": (jvm, ("processing", "written", "staged", "published")),
    "worker": (worker, ("worker",)),
}


@pytest.mark.parametrize("delivery", Delivery)
@pytest.mark.parametrize("kill", KILLS)
def test_a_sample_on_spark(
    kafka: Kafka,
    servers: Servers,
    tmp_path: Path,
    connector_jars: tuple[Path, ...],
    record_property: Note,
    monkeypatch: pytest.MonkeyPatch,
    kill: str,
    delivery: Delivery,
) -> None:
    monkeypatch.setenv(JARS, ",".join(map(str, (*connector_jars, *resolve(POSTGRES_DRIVER)))))
    how, steps = KILLS[kill]
    with scene(
        kafka,
        servers.store.url(),
        servers.target.url(),
        delivery,
        tmp_path / "region",
        SPEC,
        hosting="tests.support.spark_member_process",
        pipeline="tests.support.spark_gated_pipeline:process",
    ) as now:
        try:
            for step in steps:
                now.is_held(step)
                how(now)
                now.is_over(f"{kill} on Spark", step)
            now.goes_back()
        finally:
            noted(now.rows, record_property)
