"""Pods without a node: an API server's double with the page's roles, and a kubelet that a test plays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from airflow_kcr.hooks.pods import LABEL, DriverPod, label_of
from tests.support.kubernetes import ApiServer, Json
from tests.support.kubernetes_page import SPACE, block

NAME = "kcr flights g 0"
"""Of the application."""


@dataclass(slots=True)
class Pods:
    """The pods of a namespace."""

    api: ApiServer
    logs: dict[str, str] = field(default_factory=dict)
    """By the name of the pod."""

    def driver(self, name: str = "kcr-driver", application: str = NAME) -> DriverPod:
        """Create a driver's pod, which is pending, as spark-submit does."""
        labels = {"spark-role": "driver", LABEL: label_of(application)}
        self.create(name, labels)
        return DriverPod.of(f"k8s://{self.api.address}", SPACE, name, application)

    def create(self, name: str, labels: dict[str, str]) -> None:
        """Create a pod, which is pending."""
        self.api.create("pods", SPACE, {"metadata": {"name": name, "labels": labels}, "spec": {"containers": []}})

    def status(self, name: str = "kcr-driver", **status: object) -> None:
        """Report a pod's status."""
        self.api.merge(("pods", SPACE, name), {"status": status})

    def run(self, name: str = "kcr-driver") -> None:
        """Report that its container runs."""
        self.status(name, phase="Running", containerStatuses=[{"state": {"running": {}}}])

    def wait_for(self, reason: str, message: str, name: str = "kcr-driver") -> None:
        """Report what its container waits for."""
        waiting = {"reason": reason, "message": message}
        self.status(name, phase="Pending", containerStatuses=[{"state": {"waiting": waiting}}])

    def find_no_room(self, message: str, name: str = "kcr-driver") -> None:
        """Report that no node has room for it."""
        why = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        self.status(name, conditions=[why])

    def end(self, code: int, reason: str = "Error", name: str = "kcr-driver", said: str = "") -> None:
        """Report that its container has ended."""
        self.logs[name] = said
        ended = {"terminated": {"exitCode": code, "reason": reason}}
        self.status(name, phase="Failed" if code else "Succeeded", containerStatuses=[{"state": ended}])

    def remove(self, name: str = "kcr-driver") -> None:
        """Have a pod be gone."""
        self.api.remove(("pods", SPACE, name))

    def left(self) -> set[str]:
        """Names of the pods that no request has deleted."""
        return {one["metadata"]["name"] for one in self.api.select("pods", SPACE) if not _is_deleted(one)}

    def log_of(self, uid: str) -> str:
        """Return what a pod has written."""
        (name,) = (one["metadata"]["name"] for one in self.api.select("pods", SPACE) if one["metadata"]["uid"] == uid)
        return self.logs.get(name, "")


@contextmanager
def kubernetes_pods(folder: Path, *, without: str = "") -> Iterator[Pods]:
    """Lend an API server.

    Args:
        folder: for its files.
        without: a line of the page's roles that is left out.
    """
    api = ApiServer()
    pods = Pods(api)
    api.logs = pods.log_of
    manifest = block("yaml", "kind: Role")
    assert without in manifest
    api.apply("\n".join(line for line in manifest.splitlines() if not without or without not in line))
    api.start(folder)
    try:
        yield pods
    finally:
        api.stop()


def _is_deleted(pod: Json) -> bool:
    return "deletionTimestamp" in pod["metadata"]
