"""What Kubernetes says of a pod whose containers don't run; and asking it that from within a driver's pod.

A driver in a pod has a service account, which may list pods: Spark itself needs it. Spark's own client is not used: it
doesn't tell why a pod is pending.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

Pod: TypeAlias = Mapping[str, Any]
"""A pod as JSON, as the API server sends it."""

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where Kubernetes mounts a pod's service account."""

ASK_WITHIN: Final = 5.0

_STARTING: Final = frozenset({"ContainerCreating", "PodInitializing", "ErrImagePull"})
"""What a container waits for on its way; of an image, a second pull may find it, and then it is `ImagePullBackOff`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Why a pod's containers don't run."""

    reason: str
    """Kubernetes' word, as `Unschedulable` or `ImagePullBackOff`."""

    message: str
    has_node: bool
    """Whether the pod has found room, and what it waits for is something else."""

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}" if self.message else self.reason


def waiting(pod: Pod) -> Waiting | None:
    """Return why a pod's containers don't run; None: they do, have, or are about to."""
    status = pod.get("status") or {}
    for one in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        why = (one.get("state") or {}).get("waiting") or {}
        if why.get("reason", "ContainerCreating") not in _STARTING:
            return Waiting(reason=why["reason"], message=why.get("message") or "", has_node=True)
    for one in status.get("conditions") or ():
        if one["type"] == "PodScheduled" and one["status"] == "False":
            return Waiting(reason=one.get("reason") or "Pending", message=one.get("message") or "", has_node=False)
    return None


def executors_waiting(application: str, account: Path = ACCOUNT, environ: Mapping[str, str] = os.environ) -> str:
    """Return why the executors of an application don't run, each reason once; empty: Kubernetes doesn't say.

    Args:
        application: Spark's id.
        account: where this pod's service account is.
        environ: says where the API server is; without it, this is no pod.
    """
    if "KUBERNETES_SERVICE_HOST" not in environ:
        return ""
    # Here, because each file of DAGs that is parsed reads this module.
    import ssl
    from urllib.parse import urlencode
    from urllib.request import Request, urlopen

    selector = urlencode({"labelSelector": f"spark-app-selector={application},spark-role=executor"})
    try:
        address = f"https://{environ['KUBERNETES_SERVICE_HOST']}:{environ['KUBERNETES_SERVICE_PORT']}"
        path = f"{address}/api/v1/namespaces/{(account / 'namespace').read_text()}/pods?{selector}"
        headers = {"Authorization": f"Bearer {(account / 'token').read_text()}"}
        context = ssl.create_default_context(cafile=str(account / "ca.crt"))
        with urlopen(Request(path, headers=headers), timeout=ASK_WITHIN, context=context) as answer:  # noqa: S310
            pods = json.load(answer)["items"]
    except (OSError, ValueError, KeyError) as error:
        return f"Kubernetes doesn't say why: {error}"
    found = ((pod["metadata"]["name"], waiting(pod)) for pod in pods)
    named = {str(why): f"pod {name}: {why}" for name, why in found if why is not None}
    return "; ".join(named.values())
