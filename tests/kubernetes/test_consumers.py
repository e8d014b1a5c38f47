"""Consumers in deploy mode `cluster` on a real Kubernetes: what is lost, and what becomes of it.

Image, entry point, manifest and settings are those of run-consumers-on-kubernetes.md.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from airflow_kcr.embedded.jars import resolve, spark_connector
from airflow_kcr.protocol.region import liveness
from airflow_kcr.protocol.region.rows import Committed
from airflow_kcr.protocol.region.waits import Rule
from airflow_kcr.triggers.payloads import Status
from tests.kubernetes.cluster import Cluster, Json
from tests.kubernetes.images import IMAGE, PAUSE, PYTHON
from tests.kubernetes.services import Services
from tests.support.airflow_home import connection_json
from tests.support.consume import Task, consumers
from tests.support.consume_in_cluster import TOLD_WITHIN, ConsumersInCluster, trigger
from tests.support.consume_pipeline import OUTPUT
from tests.support.kubernetes_page import SPACE, block
from tests.support.members import TOP

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(900)]

SETTINGS = {
    "spark.kubernetes.namespace": SPACE,
    "spark.kubernetes.container.image": IMAGE,
    "spark.kubernetes.authenticate.driver.serviceAccountName": "kcr-driver",
    "spark.kubernetes.driver.secretKeyRef.KCR_STORE_URL": "kcr:store-url",
    "spark.executor.instances": "1",
    "spark.executor.cores": "2",
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
    # The machine has two cores, and they are busy.
    "spark.kubernetes.driver.request.cores": "0.2",
    "spark.kubernetes.executor.request.cores": "0.2",
}

LEFT = "pods,configmaps,services,networkpolicies"
"""What an application has in its namespace."""

FAILED_WITHIN = 60.0
"""Seconds from a hand-over; the kubelet tries to pull an image twice before it says that it backs off."""


@dataclass(slots=True, kw_only=True)
class OnKubernetes(ConsumersInCluster):
    """A region whose consumers run on Kubernetes."""

    cluster: Cluster
    folder: Path
    more: dict[str, str] = field(default_factory=dict)
    """Settings of a test's own."""

    def options(self) -> Mapping[str, Any]:
        """What the page says; what the checkout has is mounted over what the image has."""
        mounts = {
            "output": (self.folder, str(self.folder)),
            "package": (TOP / "airflow_kcr", f"{PYTHON}/airflow_kcr"),
            "jobs": (TOP / "tests", "/opt/jobs/tests"),
            "entrypoint": (self.folder / "entrypoint.sh", "/opt/kcr/entrypoint.sh"),
        }
        volumes = {
            f"spark.kubernetes.{role}.volumes.hostPath.{name}.{key}": value
            for role in ("driver", "executor")
            for name, (source, target) in mounts.items()
            for key, value in (
                ("options.path", str(source)),
                ("mount.path", target),
                ("mount.readOnly", str(source != self.folder).lower()),
            )
        }
        conf = {**SETTINGS, f"spark.kubernetes.driverEnv.{OUTPUT}": str(self.found.output), **volumes, **self.more}
        return {
            "master": self.cluster.master,
            "program": f"local://{PYTHON}/airflow_kcr/__main__.py",
            "jars": ",".join(f"local:///opt/kcr/jars/{jar.name}" for jar in self.found.jars),
            "conf": conf,
            "environment": {"KUBECONFIG": str(self.cluster.client_configuration("kcr-submit"))},
        }

    def ended(self, task: Task) -> bool | None:
        """Whether the driver's pod has succeeded; one that was deleted has not."""
        phase = next((pod["status"]["phase"] for pod in self.pods("driver") if self.is_of(pod, task)), "Failed")
        return None if phase in ("Pending", "Running") else phase == "Succeeded"

    def kill(self, task: Task) -> None:
        """Kill the container of a driver."""
        self.cluster.kill_container(self.application(task))

    def is_empty(self) -> bool:
        """Whether no pod of Spark runs, or waits to."""
        pods = self.pods("driver") + self.pods("executor")
        return all(pod["status"]["phase"] not in ("Pending", "Running") for pod in pods)

    def is_of(self, pod: Json, task: Task) -> bool:
        """Whether a pod is the driver's of a task."""
        return bool(pod["metadata"]["name"] == self.application(task))

    def pods(self, role: str) -> list[Json]:
        """Return the drivers, or the executors."""
        return self.cluster.select("pods", f"spark-role={role}")

    def executors(self) -> set[str]:
        """Return the names of the executors' pods that run."""
        return {
            pod["metadata"]["name"]
            for pod in self.pods("executor")
            if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
        }

    def driver(self, task: Task) -> Json:
        """Return the pod of a task's driver."""
        (pod,) = (pod for pod in self.pods("driver") if self.is_of(pod, task))
        return pod

    def left(self) -> list[str]:
        """Return what is in the namespace of any application of Spark."""
        return [
            f"{one['kind']} {one['metadata']['name']}"
            for one in self.cluster.select(LEFT)
            if one["metadata"]["name"] != "kube-root-ca.crt"
        ]

    def goes_on(self, task: Task) -> None:
        """Let the same incarnation work on, and everything be consumed."""
        self.found.work()
        assert len(self.found.incarnations(self.found.live.member(0))) == 1
        self.finish(task)


@pytest.fixture
def here(
    kubernetes: Cluster, beside: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[OnKubernetes]:
    """The region, and the cluster."""
    monkeypatch.setenv("AIRFLOW_CONN_KCR_DEFAULT", connection_json(beside.store))
    entry_point = tmp_path / "entrypoint.sh"
    entry_point.write_text(block("bash", "#!"))
    entry_point.chmod(0o755)
    with consumers(beside.kafka, beside.store, tmp_path, resolve(spark_connector())) as found:
        one = OnKubernetes(found=found, cluster=kubernetes, folder=tmp_path)
        monkeypatch.setenv("KUBECONFIG", str(kubernetes.client_configuration("kcr-submit")))
        yield one
        kubernetes.clear()


def test_a_task_hands_its_application_over_and_succeeds_when_the_region_stops(here: OnKubernetes) -> None:
    task = here.hand_over()
    here.found.work()

    # The store's address comes from the cluster's secret alone.
    stored = here.cluster.kubectl("get", LEFT, "--output=json")
    pod = here.application(task)
    shown = [stored, here.cluster.kubectl("logs", pod), task.said(), json.dumps(task.xcoms), json.dumps(task.ended)]
    assert "postgresql" not in "\n".join(shown)

    here.finish(task)
    here.found.until(lambda: here.pods("executor") == [], "its executors gone")


@pytest.mark.parametrize("how", ["killed", "deleted"])
def test_spark_replaces_an_executor_and_the_application_goes_on(here: OnKubernetes, how: str) -> None:
    task = here.hand_over()
    here.found.work()
    (lost,) = here.executors()
    if how == "killed":
        here.cluster.kill_container(lost)
    else:
        here.cluster.kubectl("delete", "pod", lost, "--wait=false")
    here.found.until(lambda: bool(here.executors() - {lost}), "another executor")
    here.goes_on(task)


def test_a_cleared_task_ends_its_application_and_the_next_try_goes_on_without_a_reset(here: OnKubernetes) -> None:
    first = here.hand_over()
    here.found.work()
    asyncio.run(trigger(first).on_kill())
    here.until_over(first)
    assert here.ended(first)
    assert "everything that was processed is in checkpoint" in here.cluster.kubectl("logs", here.application(first))
    here.take_over()
    assert here.found.undone(1) == []


def test_a_driver_that_was_killed_is_told_by_its_pod_and_nothing_of_it_is_left(here: OnKubernetes) -> None:
    first = here.hand_over()
    here.found.work()
    said = here.watched(first)
    here.kill(first)
    here.until_over(first)
    assert said.result(TOLD_WITHIN).status is not Status.REACHED
    here.take_over()
    lost = here.application(first)
    assert [one for one in here.left() if lost.removesuffix("-driver") in one] == []


def test_a_driver_whose_pod_is_deleted_drains_and_others_take_over_at_once(here: OnKubernetes) -> None:
    first = here.hand_over()
    here.found.work()
    said = here.watched(first)
    pod, begin = here.application(first), time.monotonic()
    here.cluster.kubectl("delete", "pod", pod, "--wait=false")
    here.found.until(lambda: all(not here.is_of(one, first) for one in here.pods("driver")), "its pod gone")
    assert time.monotonic() - begin < 30.0  # its grace
    assert here.found.undone(1) == []
    checkpoints = here.found.live.region().checkpoints
    assert checkpoints[max(checkpoints)].committed is Committed.YES
    assert said.result(TOLD_WITHIN).status is not Status.REACHED
    here.take_over()


JOBS = "spark.kubernetes.driver.volumes.hostPath.jobs.mount.path"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"spark.kubernetes.container.image": "registry.example/nothing:1"}, "ImagePullBackOff"),
        ({"spark.kubernetes.driver.secretKeyRef.KCR_STORE_URL": "nothing:store-url"}, 'secret "nothing" not found'),
        ({JOBS: "/opt/elsewhere"}, "tests.support.consume_pipeline"),
    ],
    ids=["no image", "no secret", "no pipeline"],
)
def test_a_driver_that_fails_at_once_is_told_at_once(here: OnKubernetes, more: dict[str, str], words: str) -> None:
    here.more = more
    task = here.found.start(0, try_number=1, deploy_mode="cluster", **here.options())
    here.found.until(lambda: task.ended is not None, "the application handed over", 120)
    answer = here.watched(task).result(FAILED_WITHIN)
    assert answer.status is not Status.REACHED
    assert words in answer.detail


def test_an_executor_that_finds_no_room_is_named_and_batches_wait_for_it(here: OnKubernetes) -> None:
    container = {"name": "hog", "image": PAUSE, "resources": {"requests": {"cpu": "1700m"}}}
    hog = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "hog"}, "spec": {"containers": [container]}}
    here.cluster.kubectl("create", "--filename=-", given=json.dumps(hog))
    here.hand_over()
    live = here.found.live
    live.fill(50)

    def named() -> bool:
        waits = liveness.judge(*live.store.read(live.name)).waits
        return any(wait.rule is Rule.ENGINE and "Insufficient cpu" in wait.what for wait in waits)

    here.found.until(named, "the reason among the region's waits")
    assert list(live.store.batches(live.name)) == []
    here.cluster.kubectl("delete", "pod", "hog", "--grace-period=1")
    here.found.until(live.consumed, "everything consumed")


def test_intervals_run_one_after_the_other_and_leave_nothing_running(here: OnKubernetes) -> None:
    here.require_intervals()
