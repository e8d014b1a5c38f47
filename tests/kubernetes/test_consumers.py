"""Consumers in deploy mode `cluster` on a real Kubernetes: what is lost, and what becomes of it.

Image, entry point, manifest and settings are those of the page.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_kcr.embedded.jars import resolve, spark_connector
from tests.kubernetes.cluster import SPACE, Cluster, Json
from tests.kubernetes.images import IMAGE, PYTHON, block
from tests.kubernetes.services import Services
from tests.support.airflow_home import connection_json
from tests.support.consume import Task, consumers
from tests.support.consume_in_cluster import ConsumersInCluster, trigger
from tests.support.consume_pipeline import OUTPUT
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


@dataclass(slots=True, kw_only=True)
class OnKubernetes(ConsumersInCluster):
    """A region whose consumers run on Kubernetes."""

    cluster: Cluster
    folder: Path

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
        conf = {**SETTINGS, f"spark.kubernetes.driverEnv.{OUTPUT}": str(self.found.output), **volumes}
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

    def goes_on(self, task: Task) -> None:
        """Let the same incarnation work on, and everything be consumed."""
        self.found.work()
        assert len(self.found.incarnations(self.found.live.member(0))) == 1
        self.finish(task)

    def take_over(self) -> None:
        """Have the next try go on, and everything be consumed."""
        second = self.hand_over(try_number=2)
        self.found.work()
        self.finish(second)


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
