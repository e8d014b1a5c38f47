"""A cluster without room for an executor: no batch starts, none times out, and the reason stands where one looks."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_kcr.embedded.servers import StandaloneCluster
from airflow_kcr.protocol.region import liveness
from airflow_kcr.protocol.region.waits import Rule
from tests.support.faults import finished, passed, resets
from tests.support.members import TOP, Lend, Live
from tests.support.spark_executors import application_settings, executors
from tests.support.spark_gated_pipeline import CONF
from tests.support.tied import standalone

BATCH = 90.0
"""Seconds that a batch may take."""

SPEC = f"""\
batch: {{target: 2s, min_records: 50, max_records: 500, timeout: {BATCH:g}s}}
timeouts: {{lease: 6s, renew: 1s, session: 20s, relaunch: 10s, reset: 150s, drain: 120s, commit: 20s, close: 5s}}
"""
WITHIN = 400.0

NAMED_WITHIN = 60.0

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandaloneCluster]:
    """A cluster that has no worker yet."""
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    with standalone(tmp_path / "cluster", workers=0) as started:
        yield started


@pytest.fixture
def one(
    request: pytest.FixtureRequest, cluster: StandaloneCluster, lend_on_spark: Lend, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Live]:
    """A region whose one member runs on the cluster, with further settings of Spark."""
    conf = {**application_settings(cluster), "spark.executorEnv.PYTHONPATH": str(TOP), **getattr(request, "param", {})}
    monkeypatch.setenv(CONF, json.dumps(conf))
    with lend_on_spark(spec=SPEC) as found:
        yield found


def lacks(one: Live) -> str:
    """What the member lacks, as the region names it."""
    region, now = one.store.read(one.name)
    waits = [wait.what for wait in liveness.judge(region, now).waits if wait.rule is Rule.ENGINE]
    return "; ".join(waits)


def test_without_an_executor_no_batch_starts_and_it_is_named(one: Live, cluster: StandaloneCluster) -> None:
    member = one.start(0)
    one.fill(60)
    one.until(lambda: "hosting" in member.said(), "hosting", WITHIN)
    one.until(lambda: "Spark has no executor: Initial job has not accepted" in lacks(one), "named", NAMED_WITHIN)
    assert "no batch can run: Spark has no executor: Initial job has not accepted" in member.said()
    # Longer than getting Spark ready may hold up the first batch, and then than a batch may take.
    one.until(passed(1.2 * BATCH), "some time", WITHIN)
    assert list(one.store.batches(one.name)) == []
    assert "(Spark has no executor" in member.said()

    cluster.start_workers(1)
    finished(one, WITHIN)
    assert lacks(one) == ""
    assert resets(one) == []
    assert "Spark has an executor" in member.said()
    assert "did not do its work" not in member.said()


def test_a_batch_whose_executor_goes_waits_for_another(one: Live, cluster: StandaloneCluster) -> None:
    cluster.start_workers(1)
    member = one.start(0, gates=("worker",))
    one.fill(60)
    one.until(lambda: member.reached("worker"), "at work", WITHIN)
    cluster.children.pop().stop()
    member.open("worker")
    one.until(lambda: "Spark has no executor: " in lacks(one), "named", NAMED_WITHIN)
    one.until(passed(1.2 * BATCH), "longer than a batch may take", WITHIN)
    assert resets(one) == []
    assert "Initial job" not in lacks(one), "not with the reason why the executor has gone"

    cluster.start_workers(1)
    finished(one, WITHIN)
    assert lacks(one) == ""


@pytest.mark.parametrize(
    "one",
    [
        {
            "spark.dynamicAllocation.enabled": "true",
            "spark.dynamicAllocation.shuffleTracking.enabled": "true",
            "spark.dynamicAllocation.shuffleTracking.timeout": "5s",
            "spark.dynamicAllocation.executorIdleTimeout": "5s",
            "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
        }
    ],
    indirect=True,
    ids=["dynamic allocation"],
)
def test_executors_that_were_let_go_are_asked_for_again(one: Live, cluster: StandaloneCluster) -> None:
    cluster.start_workers(1)
    member = one.start(0)
    one.fill(60)
    finished(one, WITHIN)
    one.until(lambda: executors(cluster) == (), "no executor while there is nothing to do", WITHIN)
    one.until(passed(20), "longer than an executor may be away before that is named")
    assert lacks(one) == ""

    one.fill(60)
    finished(one, WITHIN)
    assert resets(one) == []
    assert member.running
