"""Consumers in deploy mode `cluster` on Kubernetes: Spark's own client and scheduler, on an API server's double.

The manifest and the entry point are those of the page; what isn't on it isn't there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_kcr.embedded.jars import QUICK_START, java
from airflow_kcr.embedded.servers import spark_home
from airflow_kcr.protocol.region import liveness
from airflow_kcr.protocol.region.waits import Rule
from airflow_kcr.triggers.payloads import Status
from tests.support.airflow_home import connection_json
from tests.support.consume import Task, consumers
from tests.support.consume_in_cluster import ConsumersInCluster
from tests.support.consume_pipeline import OUTPUT
from tests.support.kafka import Kafka
from tests.support.kubelet import Image, KubernetesCluster, blocks, can_run_pods, kubernetes_cluster
from tests.support.kubernetes import Json
from tests.support.members import TOP

PAGE = TOP / "docs" / "how-to" / "run-consumers-on-kubernetes.md"
SPACE = "kcr"
CONF = {
    "spark.kubernetes.namespace": SPACE,
    "spark.kubernetes.container.image": "registry.example/kcr:1",
    "spark.kubernetes.authenticate.driver.serviceAccountName": "kcr-driver",
}

pytestmark = pytest.mark.skipif(not can_run_pods(), reason="needs root: pods are processes in namespaces of their own")


@dataclass(slots=True, kw_only=True)
class OnKubernetes(ConsumersInCluster):
    """A region whose consumers run on Kubernetes."""

    cluster: KubernetesCluster
    folder: Path

    def options(self) -> Mapping[str, Any]:
        """What the page on Kubernetes says, on this machine."""
        conf = {
            **CONF,
            "spark.kubernetes.driver.secretKeyRef.KCR_STORE_URL": "kcr:store-url",
            f"spark.kubernetes.driverEnv.{OUTPUT}": str(self.found.output),
            "spark.executor.instances": "1",
            "spark.executor.cores": "2",
            "spark.executor.memory": "512m",
            "spark.driver.memory": "512m",
            "spark.driver.extraJavaOptions": " ".join(QUICK_START),
            "spark.executor.extraJavaOptions": " ".join(QUICK_START),
        }
        jars = ",".join(f"local://{jar}" for jar in self.found.jars)
        environment = {"KUBECONFIG": str(self.cluster.api.client_configuration(self.folder, SPACE, "kcr-submit"))}
        return {"master": self.cluster.master, "conf": conf, "jars": jars, "environment": environment}

    def ended(self, task: Task) -> bool | None:
        """Whether the driver's pod has succeeded; one that was deleted has not."""
        phase = next((pod["status"]["phase"] for pod in self.pods("driver") if self.is_of(pod, task)), "Failed")
        return None if phase in ("Pending", "Running") else phase == "Succeeded"

    def is_of(self, pod: Json, task: Task) -> bool:
        """Whether a pod is the driver's of a task."""
        return bool(pod["metadata"]["name"] == self.application(task))

    def pods(self, role: str) -> list[Json]:
        """Return the drivers, or the executors."""
        return self.cluster.pods(SPACE, role)

    def driver(self, task: Task) -> Json:
        """Return the pod of a task's driver."""
        (pod,) = (pod for pod in self.pods("driver") if self.is_of(pod, task))
        return pod


@pytest.fixture
def here(
    kafka: Kafka, store_connection: str, tmp_path: Path, connector_jars: tuple[Path, ...]
) -> Iterator[OnKubernetes]:
    """The region, and the cluster."""
    with (
        kubernetes_cluster(tmp_path / "kubernetes", image(tmp_path)) as cluster,
        consumers(kafka, store_connection, tmp_path, connector_jars) as found,
    ):
        cluster.api.apply(manifest())
        cluster.api.secret(SPACE, "kcr", {"store-url": store_connection})
        yield OnKubernetes(found=found, cluster=cluster, folder=tmp_path)


def image(folder: Path) -> Image:
    """Return what stands for the page's image: this machine's files, and the page's entry point."""
    (entry_point,) = (block for block in blocks(PAGE.read_text(), "bash") if block.startswith("#!"))
    file = folder / "entrypoint.sh"
    file.write_text(entry_point + "\n")
    return Image(
        entry_point=("bash", str(file)),
        environment={
            "PATH": f"{java().resolve().parent}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(folder),
            "SPARK_HOME": str(spark_home()),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(TOP),
        },
    )


def manifest() -> str:
    (found,) = (block for block in blocks(PAGE.read_text(), "yaml") if "kind: Role" in block)
    return found


@pytest.mark.long
def test_sparks_client_hands_a_driver_over_with_the_rights_of_the_page(tmp_path: Path) -> None:
    with kubernetes_cluster(tmp_path / "cluster", image(tmp_path)) as cluster:
        cluster.api.apply(manifest())
        configuration = cluster.api.client_configuration(tmp_path, SPACE, "kcr-submit")
        conf = {**CONF, "spark.kubernetes.submission.waitAppCompletion": "true", "spark.driver.memory": "512m"}
        ran = subprocess.run(
            [
                *(str(spark_home() / "bin" / "spark-submit"), "--master", cluster.master, "--deploy-mode", "cluster"),
                *(each for name, value in conf.items() for each in ("--conf", f"{name}={value}")),
                "local:///opt/jobs/nothing.py",
            ],
            env={**os.environ, "KUBECONFIG": str(configuration)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        assert cluster.api.refused() == [], ran.stdout
        (pod,) = cluster.pods(SPACE, "driver")
        # The driver got as far as its program, which isn't there: so its configuration was.
        said = cluster.node.said(pod["metadata"]["uid"])
        assert "can't open file '/opt/jobs/nothing.py'" in said, f"{ran.stdout}\n{said}"
        assert pod["status"]["phase"] == "Failed"


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_task_hands_its_application_over_and_succeeds_when_the_region_stops(here: OnKubernetes) -> None:
    task = here.hand_over()
    here.found.work()

    # The store's address comes from the cluster's secret alone.
    api, uid = here.cluster.api, here.driver(task)["metadata"]["uid"]
    lines = here.cluster.node.command_lines(uid)
    assert any("org.apache.spark.deploy.SparkSubmit" in line for line in lines)
    stored = [one for (plural, _, _), one in api.objects.items() if plural != "secrets"]
    shown = [*lines, json.dumps(stored), task.said(), json.dumps(task.xcoms), json.dumps(task.ended)]
    assert "postgresql" not in "\n".join([*shown, here.cluster.node.said(uid)])

    here.finish(task)
    here.found.until(lambda: here.pods("executor") == [], "its executors gone")
    assert api.refused() == []


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_driver_whose_pod_is_deleted_in_good_order_drains_and_the_next_try_goes_on(
    here: OnKubernetes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", here.options()["environment"]["KUBECONFIG"])
    monkeypatch.setenv("AIRFLOW_CONN_KCR_DEFAULT", connection_json(here.found.live.url))
    first = here.hand_over()
    here.found.work()
    here.cluster.api.delete(("pods", SPACE, here.application(first)), {})
    answer = here.answer(first)
    assert answer.status is Status.TIMED_OUT
    assert "is gone: it was deleted" in answer.detail
    assert here.found.undone(1) == []
    second = here.hand_over(try_number=2)
    here.finish(second)
    assert here.found.undone(1) == []


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_an_executor_that_finds_no_room_is_named_and_batches_wait_for_it(here: OnKubernetes) -> None:
    here.cluster.node.cpus = 1.5  # the driver asks for one, the executor for two
    here.hand_over()
    here.found.live.fill(50)
    live = here.found.live

    def named() -> bool:
        waits = liveness.judge(*live.store.read(live.name)).waits
        return any(wait.rule is Rule.ENGINE and "1 Insufficient cpu" in wait.what for wait in waits)

    here.found.until(named, "the reason among the region's waits")
    assert list(live.store.batches(live.name)) == []
    here.cluster.node.cpus = 10.0
    here.found.until(live.consumed, "everything consumed")
