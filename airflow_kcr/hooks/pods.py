"""Pods of drivers, as Kubernetes' API server tells of them: they say at once how a driver has ended, or why none runs.

It is reached as `spark-submit` reaches it: by the kubeconfig file of `KUBECONFIG`, else by a pod's service account. The
client is the one that the provider for Kubernetes brings.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Self

from airflow_kcr.errors import KcrError, ServiceFailed, ToolMissing
from airflow_kcr.hooks.shared_answers import SharedAnswer
from airflow_kcr.spark.pods import Pod, Waiting, waiting

if TYPE_CHECKING:
    from kubernetes.client import CoreV1Api

LABEL: Final = "kcr-application"
"""The label of drivers' pods by which a try finds those of earlier ones."""

MASTER: Final = "k8s://"
LAST_LINES: Final = 20
"""How many lines of a driver's log are shown where it failed."""

_ANSWER_WITHIN: Final = (3.0, 10.0)
"""Seconds to connect with the API server, and for its answer."""

_GONE: Final = 404
_OVER: Final = frozenset({"Succeeded", "Failed"})


def label_of(name: str) -> str:
    """Return the label's value for the name of an application, which may have characters that no label has."""
    return sha256(name.encode()).hexdigest()[:40]


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverPod:
    """Where the pod of a driver is."""

    server: str
    """Address of the API server."""

    namespace: str
    pod: str
    application: str
    """The value of its label."""

    def __str__(self) -> str:
        return f"the driver's pod {self.pod} (namespace {self.namespace})"

    @classmethod
    def of(cls, master: str, namespace: str | None, pod: str, name: str) -> Self:
        """Return where a driver's pod is.

        Args:
            master: as Spark has it, `k8s://https://HOST:PORT`.
            namespace: the pod's; None: Spark's default.
            pod: its name; empty: not known yet.
            name: the application's.
        """
        server = master.removeprefix(MASTER)
        server = server if "://" in server else f"https://{server}"
        return cls(server=server, namespace=namespace or "default", pod=pod, application=label_of(name))


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverState:
    """How a driver's pod is."""

    is_there: bool = True
    waiting: Waiting | None = None
    status: int | None = None
    """With which its container has ended; None: it has not."""

    reason: str = ""
    """Kubernetes' word for the end, as `OOMKilled` or `Evicted`."""


class DriverPods:
    """Asks the API server about the pods of a namespace's drivers; from any thread.

    Triggers ask for hundreds of drivers every few seconds, and share one answer of the server.

    Every call raises ServiceFailed where the server can't be asked, and ToolMissing without its client.

    Args:
        server: address of the API server.
        namespace: the pods'.
    """

    def __init__(self, server: str, namespace: str) -> None:
        self._server, self._namespace = server, namespace
        self._client: CoreV1Api | None = None
        self._listed = SharedAnswer(lambda: self._list(LABEL))

    @classmethod
    def of(cls, driver: DriverPod) -> DriverPods:
        """Return the one of this process that asks about the namespace of a driver."""
        return _shared(driver.server, driver.namespace)

    def state(self, name: str) -> DriverState:
        """Return how a driver's pod is, or was a second ago."""
        pod = self._listed.get().get(name)
        if pod is None:
            pod = self._asked(lambda core: core.read_namespaced_pod(name, **self._options))
        return DriverState(is_there=False) if pod is None else _state(pod)

    def log(self, name: str) -> list[str]:
        """Return the last lines of a driver's log."""
        options = self._options
        said = self._asked(lambda core: core.read_namespaced_pod_log(name, tail_lines=LAST_LINES, **options), str)
        return (said or "").splitlines()

    def delete(self, name: str) -> None:
        """Delete a driver's pod.

        Executors, config maps, services and network policies of the driver belong to its pod, and go with it.
        """
        self._asked(lambda core: core.delete_namespaced_pod(name, **self._options))

    def lost(self, application: str) -> list[str]:
        """Return the names of pods of an application's drivers that have failed, or can't start.

        Args:
            application: the value of their label.
        """
        return [name for name, pod in self._list(f"{LABEL}={application}").items() if _is_lost(pod)]

    def _list(self, label: str) -> dict[str, Pod]:
        """Return the pods of drivers with a label, but for those that succeeded: they stay, and are ever more."""
        selectors = {"label_selector": f"{label},spark-role=driver", "field_selector": "status.phase!=Succeeded"}
        found = self._asked(lambda core: core.list_namespaced_pod(**selectors, **self._options))
        return {pod["metadata"]["name"]: pod for pod in (found or {}).get("items", ())}

    @property
    def _options(self) -> dict[str, Any]:
        return {"namespace": self._namespace, "_preload_content": False, "_request_timeout": _ANSWER_WITHIN}

    def _asked(self, ask: Callable[[CoreV1Api], Any], read: Callable[[str], Any] = json.loads) -> Any:  # noqa: ANN401
        """Return the server's answer, as JSON or as text; None: there is no such pod."""
        try:
            from kubernetes.client import ApiException
            from kubernetes.config import ConfigException
            from urllib3.exceptions import HTTPError
        except ImportError as error:
            raise ToolMissing(f"install apache-airflow-providers-cncf-kubernetes: {error}") from error
        try:
            self._client = self._client or _client(self._server)
            return read(ask(self._client).data.decode())
        except ApiException as error:
            if error.status == _GONE:
                return None
            self._client = None  # the next call reads a token anew
            raise ServiceFailed(f"{self._server} answered {error.status} {error.reason}: {_told(error)}") from error
        except (HTTPError, ConfigException, OSError, ValueError) as error:
            self._client = None
            raise ServiceFailed(f"{self._server} can't be asked: {error}") from error


@cache
def _shared(server: str, namespace: str) -> DriverPods:
    return DriverPods(server, namespace)


def clean(driver: DriverPod, warn: Callable[[str], object]) -> None:
    """Delete the pods of an application's lost drivers, with all that belongs to them.

    What has succeeded stays, for its log.

    Args:
        driver: one of the application's.
        warn: called with what was deleted, and what can't be.
    """
    pods = DriverPods.of(driver)
    try:
        for name in pods.lost(driver.application):
            pods.delete(name)
            warn(f"pod {name} of a lost driver was deleted, with all that belonged to it")
    except KcrError as error:
        warn(f"pods of lost drivers may be left in namespace {driver.namespace}: {error.message}")


def _is_lost(pod: Pod) -> bool:
    why = waiting(pod)
    return bool(pod["status"].get("phase") == "Failed" or (why is not None and why.has_node))


def _client(server: str) -> CoreV1Api:
    from kubernetes import client, config

    settings = client.Configuration()
    files = os.environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config")
    if any(map(os.path.exists, files.split(os.pathsep))):
        config.load_kube_config(files, client_configuration=settings)
    else:
        config.load_incluster_config(client_configuration=settings)
    settings.host, settings.retries = server, False
    return client.CoreV1Api(client.ApiClient(settings))


def _told(error: Any) -> str:  # noqa: ANN401 (the client's own)
    """Return the server's message."""
    try:
        return str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        return ""


def _state(pod: Pod) -> DriverState:
    status = pod.get("status") or {}
    if status.get("phase") not in _OVER:
        return DriverState(waiting=waiting(pod))
    ends = ((one.get("state") or {}).get("terminated") for one in status.get("containerStatuses") or ())
    end: Pod = next((one for one in ends if one), {})
    code = end.get("exitCode", 0 if status["phase"] == "Succeeded" else 1)
    return DriverState(status=code, reason=status.get("reason") or end.get("reason") or status["phase"])
