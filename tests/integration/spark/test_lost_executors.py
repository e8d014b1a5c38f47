"""Every executor of a standalone cluster is killed under a run, and under a recomputation of what that run has made.

While they have the first records of their tasks, the last ones, or none any more, as their rows go into the table.
Spark has others started and tries its tasks again; where it gives up, the run goes back to its restore point, and the
recomputation leaves the old output to its next try.
"""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from airflow_kcr.api import Region
from airflow_kcr.embedded.servers import StandaloneCluster
from airflow_kcr.protocol.region.events import ResetBegun
from airflow_kcr.protocol.region.rows import ResetCause
from tests.support.databases import execute, libpq
from tests.support.interval_pipeline import SUFFIX, WORKER, at
from tests.support.kafka import Kafka
from tests.support.members import TOP
from tests.support.rested_region import WITHIN, RestedRegion, all_of, rested_region, until
from tests.support.spark_executors import application_settings, executors
from tests.support.tied import standalone

pytestmark = [pytest.mark.long, pytest.mark.timeout(900), pytest.mark.postgres]

FIRST, LAST = 0, 9
"""Offsets of each partition."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """A cluster of two workers, each with one executor of an application."""
    with standalone(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture
def runs(kafka: Kafka, database_url: str, tmp_path: Path, connector_jars: tuple[Path, ...]) -> Iterator[RestedRegion]:
    """A declared region that has never run, with twenty records."""
    with rested_region(kafka, database_url, tmp_path / "target", connector_jars) as found:
        found.fill("first", datetime.now(UTC) - timedelta(hours=2))
        yield found


def on(cluster: StandaloneCluster, runs: RestedRegion, **conf: str) -> tuple[str, ...]:
    """Return the options that start Spark on the cluster."""
    settings = {
        **{name: value for name, value in application_settings(cluster).items() if name != "spark.master"},
        "spark.driver.memory": "512m",
        "spark.executorEnv.PYTHONPATH": str(TOP),
        **conf,
    }
    named = (part for name, value in settings.items() for part in ("--conf", f"{name}={value}"))
    return ("--master", cluster.address, "--jars", runs.jars, *named)


@contextmanager
def in_a_task(runs: RestedRegion, folder: Path, offset: int) -> Iterator[Callable[[], bool]]:
    """Have the tasks of each partition wait at an offset; what is yielded says whether one does."""
    gate = folder / "worker"
    at(gate).unlink(missing_ok=True)
    gate.write_text(str(offset))
    runs.environ = {**runs.environ, WORKER: str(gate)}
    try:
        yield at(gate).exists
    finally:
        gate.unlink()


@contextmanager
def in_the_sink(runs: RestedRegion) -> Iterator[Callable[[], bool]]:
    """Have whatever changes the table wait; what is yielded says whether something does."""
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'out'::regclass"

    def reached() -> bool:
        return execute(runs.table.url(), waiting)[0] != (0,)

    with psycopg.connect(libpq(runs.table.url())) as connection:
        connection.execute("LOCK TABLE out IN SHARE MODE")
        yield reached


def without_executors(
    runs: RestedRegion,
    cluster: StandaloneCluster,
    held: AbstractContextManager[Callable[[], bool]],
    before: Counter[str],
    *command: str,
) -> tuple[int, str, str]:
    """Carry a command out whose executors are killed where they are held; return how it ended, as `kcr` does.

    Args:
        runs: the region.
        cluster: with the executors.
        held: where.
        before: what the table has until then.
        command: what is carried out.
    """
    with held as reached:
        process = runs.begun(*command)
        try:
            until(lambda: reached() or process.poll() is not None, "executors at work")
            assert runs.rows() == before
            found = executors(cluster)
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            killed = process.poll() is None and len(found) > 0
        except BaseException:
            process.kill()
            raise
    try:
        out, said = process.communicate(timeout=WITHIN)
    finally:
        process.kill()
    assert killed, said
    return process.returncode, out, said


@pytest.mark.parametrize("where", [FIRST, LAST, None], ids=["first record", "last record", "rows go into the table"])
def test_executors_are_killed_under_a_run_and_its_recomputation(
    where: int | None, runs: RestedRegion, cluster: StandaloneCluster, tmp_path: Path
) -> None:
    def held() -> AbstractContextManager[Callable[[], bool]]:
        return in_the_sink(runs) if where is None else in_a_task(runs, tmp_path, where)

    spark = on(cluster, runs)
    status, out, said = without_executors(runs, cluster, held(), all_of(), "run", runs.name, *spark)
    assert (status, runs.rows()) == (0, all_of("first")), said
    assert runs.at_rest()
    runs.environ = {SUFFIX: "!"}
    again = ("recompute", runs.name, "--checkpoint", str(json.loads(out)["sequence"]), "--group", runs.group)
    status, _, said = without_executors(runs, cluster, held(), all_of("first"), *again, *spark)
    assert (status, runs.rows()) == (0, all_of("first", suffix="!")), said
    assert runs.at_rest()


def test_executors_are_killed_until_the_batch_fails(
    runs: RestedRegion, cluster: StandaloneCluster, tmp_path: Path
) -> None:
    spark = on(cluster, runs, **{"spark.task.maxFailures": "1"})
    held = in_a_task(runs, tmp_path, FIRST)
    status, out, said = without_executors(runs, cluster, held, all_of(), "run", runs.name, *spark)
    assert (status, runs.rows()) == (0, all_of("first")), said
    with Region(runs.name, runs.store) as region:
        causes = [event.body.cause for event in region.events() if isinstance(event.body, ResetBegun)]
    assert ResetCause.BATCH_FAILED in causes
    assert runs.at_rest()

    runs.environ, sequence = {SUFFIX: "!"}, str(json.loads(out)["sequence"])
    its = ("--checkpoint", sequence, "--request-id", "again", "--group", runs.group, *spark)
    held = in_a_task(runs, tmp_path, LAST)
    status, _, said = without_executors(runs, cluster, held, all_of("first"), "recompute", runs.name, *its)
    assert (status, runs.rows()) == (1, all_of("first")), said
    (answer,) = runs.recompute("--checkpoint", sequence, "--request-id", "again", spark=spark)
    assert (answer["state"], answer["revision"]) == ("done", 1)
    assert runs.rows() == all_of("first", suffix="!")
    assert runs.at_rest()
