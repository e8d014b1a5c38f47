"""What a driver in a pod learns of executors that don't run, from an API server's double with the page's roles."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_kcr.spark.pods import executors_waiting
from tests.support.kubernetes_page import SPACE
from tests.support.kubernetes_pods import Pods, kubernetes_pods

APPLICATION = "spark-0123"
LABELS = {"spark-app-selector": APPLICATION, "spark-role": "executor"}


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    with kubernetes_pods(tmp_path) as pods:
        yield pods


def asked(pods: Pods, folder: Path, account: str = "kcr-driver") -> str:
    for name, text in {
        "token": pods.api.token(SPACE, account),
        "ca.crt": pods.api.certificate,
        "namespace": SPACE,
    }.items():
        (folder / name).write_text(text)
    environ = {"KUBERNETES_SERVICE_HOST": pods.api.host, "KUBERNETES_SERVICE_PORT": str(pods.api.port)}
    return executors_waiting(APPLICATION, folder, environ)


def test_each_reason_is_named_once_with_a_pod_that_has_it(pods: Pods, tmp_path: Path) -> None:
    for name in ("x-exec-1", "x-exec-2", "x-exec-3", "x-exec-4"):
        pods.create(name, LABELS)
    pods.create("y-exec-1", {**LABELS, "spark-app-selector": "another"})
    pods.find_no_room("1 Insufficient cpu.", "x-exec-1")
    pods.find_no_room("1 Insufficient cpu.", "x-exec-2")
    pods.wait_for("ImagePullBackOff", "no such image", "x-exec-3")
    pods.run("x-exec-4")
    pods.find_no_room("1 Insufficient memory.", "y-exec-1")
    assert asked(pods, tmp_path) == (
        "pod x-exec-2: Unschedulable: 1 Insufficient cpu.; pod x-exec-3: ImagePullBackOff: no such image"
    )


def test_executors_that_run_or_start_wait_for_nothing(pods: Pods, tmp_path: Path) -> None:
    for name in ("x-exec-1", "x-exec-2", "x-exec-3"):
        pods.create(name, LABELS)
    pods.run("x-exec-1")
    pods.wait_for("ContainerCreating", "", "x-exec-2")
    assert asked(pods, tmp_path) == ""


def test_who_may_not_ask_says_so(pods: Pods, tmp_path: Path) -> None:
    assert asked(pods, tmp_path, "default") == "Kubernetes doesn't say why: HTTP Error 403: Forbidden"


def test_outside_of_a_pod_nothing_is_asked(tmp_path: Path) -> None:
    assert executors_waiting(APPLICATION, tmp_path, {}) == ""
