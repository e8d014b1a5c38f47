"""A Kubernetes node on this machine: each pod's container is a process, in namespaces of its own for files and ids.

What a pod mounts is at the path that it names, for this process alone; a container whose first process is over has no
other left. Every pod has an address of the loopback network and finds services by their names, so the fixed ports of
Spark's drivers and executors don't meet. There are no images: `Node.image` is the environment that an image would have,
with its entry point, and all files of this machine are in it. Nothing of this process's own environment is.

It needs root, for the namespaces.
"""

from __future__ import annotations

import base64
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from tests.support.kubernetes import ApiServer, Json, Place, Refusal, now

ACCOUNT_FOLDER: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
POLL: Final = 0.05
STOP_WITHIN: Final = 20.0

_MOUNTS: Final = """
set -e
work=$1 hosts=$2; hostname "$3"; shift 3
mount --bind "$hosts" /etc/hosts
covered=
while [ "$1" != -- ]; do
  source=$1 target=$2; shift 2
  top=/$(echo "$target" | cut -d/ -f2)
  [ "$(readlink -m "$target")" = "$target" ] || top=/$(readlink -m "$target" | cut -d/ -f2)
  case " $covered " in *" $top "*) ;; *)
    mkdir -p "$work$top/upper" "$work$top/work"
    mount -t overlay overlay -o "lowerdir=$top,upperdir=$work$top/upper,workdir=$work$top/work" "$top"
    covered="$covered $top" ;;
  esac
  mkdir -p "$target"
  mount --bind "$source" "$target"
done
shift
exec "$@"
"""
"""Makes a pod's mounts in its own mount namespace; over a folder of the machine it lays one that forgets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """What an image has."""

    entry_point: tuple[str, ...]
    environment: Mapping[str, str]
    name: str = "registry.example/kcr:1"
    """No other can be pulled."""


@dataclass(slots=True, kw_only=True)
class Node:
    """The node, with the containers that run on it.

    Args:
        api: the server that it works for.
        folder: for the pods' files and logs.
        image: of all pods.
        cpus: what the pods ask for together has room in that; others stay pending.
    """

    api: ApiServer
    folder: Path
    image: Image
    cpus: float = 1000.0
    _taken: dict[str, float] = field(default_factory=dict)
    """How many CPUs each pod has asked for, by its uid, until its container is over."""

    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _threads: list[threading.Thread] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)
    _addresses: int = 1

    @property
    def hosts(self) -> Path:
        """What pods have as /etc/hosts, for the cluster's DNS; it only grows."""
        return self.folder / "hosts"

    def start(self) -> None:
        """Start containers from now on."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.api.logs = self.said
        self.hosts.write_text(f"127.0.0.1 localhost\n{self.api.host} kubernetes.default.svc\n")
        self._spawn("kubelet", self._watch)

    def stop(self) -> None:
        """Kill all containers."""
        self._over.set()
        for process in tuple(self._processes.values()):
            process.kill()
        for thread in self._threads:
            thread.join(STOP_WITHIN)

    def said(self, uid: str) -> str:
        """What the container of a pod has written."""
        log = self.folder / uid / "log"
        return log.read_text(errors="replace") if log.exists() else ""

    def command_lines(self, uid: str) -> list[str]:
        """Return the commands of a container's processes."""
        lines = []
        with suppress(psutil.NoSuchProcess):
            for one in psutil.Process(self._processes[uid].pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    lines.append(" ".join(one.cmdline()))
        return lines

    # -- pods ----------------------------------------------------------------------------------------------------

    def _spawn(self, name: str, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, name=name, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _watch(self) -> None:
        seen = set[str]()
        while not self._over.is_set():
            for one in self.api.select("services") + self.api.select("pods"):
                metadata = one["metadata"]
                if metadata["uid"] in seen:
                    continue
                seen.add(metadata["uid"])
                if one["kind"] == "Service":
                    self._spawn(f"service {metadata['name']}", self._name, one)
                else:
                    self._addresses += 1
                    address = f"{self.api.host.rsplit('.', 1)[0]}.{self._addresses}"
                    self._resolve(_host(one), address)
                    self._spawn(f"pod {metadata['name']}", self._run, one, address)
            self._over.wait(POLL)

    def _run(self, pod: Json, address: str) -> None:
        """Take a pod from its beginning to its end."""
        place, uid = _place(pod), pod["metadata"]["uid"]
        with suppress(Refusal):  # it was removed from elsewhere
            container = self._prepared(pod, address)
            if container is not None:
                self._report(pod, "Running", {"running": {"startedAt": now()}}, ready=True, address=address)
                code = self._until_over(pod, container)
                self._taken.pop(uid, None)
                phase = "Failed" if code else "Succeeded"
                ended = {"exitCode": code, "reason": "Completed" if code == 0 else "Error", "finishedAt": now()}
                self._report(pod, phase, {"terminated": ended}, ready=False, address=address)
            while not self._over.is_set():
                if self._is_to_end(pod):
                    self.api.remove(place)
                    return
                self._over.wait(POLL)
        self._processes.pop(uid, None)

    def _prepared(self, pod: Json, address: str) -> subprocess.Popen[bytes] | None:
        """Start a pod's container as soon as all is there that it mounts; None: it was deleted before."""
        while not self._over.is_set():
            if self._is_to_end(pod):
                self._taken.pop(pod["metadata"]["uid"], None)
                return None
            if not self._has_room(pod) or not self._is_pulled(pod, address):
                self._over.wait(1.0)
                continue
            try:
                return self._start(pod, address)
            except Refusal as missing:
                reason = {"reason": "CreateContainerConfigError", "message": missing.message}
                self._report(pod, "Pending", {"waiting": reason}, ready=False, address=address)
                self._over.wait(1.0)
        return None

    def _has_room(self, pod: Json) -> bool:
        """Whether the node has the CPUs that a pod asks for, as the scheduler counts them."""
        uid = pod["metadata"]["uid"]
        with self.api.changed:
            (container,) = pod["spec"]["containers"]
            asked = _cpus(((container.get("resources") or {}).get("requests") or {}).get("cpu", "0"))
            if uid in self._taken or sum(self._taken.values()) + asked <= self.cpus:
                self._taken[uid] = asked
                return True
        why = {"reason": "Unschedulable", "message": "0/1 nodes are available: 1 Insufficient cpu."}
        self.api.merge(_place(pod), {"status": {"conditions": [{"type": "PodScheduled", "status": "False", **why}]}})
        return False

    def _is_pulled(self, pod: Json, address: str) -> bool:
        (container,) = pod["spec"]["containers"]
        if container["image"] == self.image.name:
            return True
        message = f'Back-off pulling image "{container["image"]}": not found'
        waiting = {"waiting": {"reason": "ImagePullBackOff", "message": message}}
        self._report(pod, "Pending", waiting, ready=False, address=address)
        return False

    def _start(self, pod: Json, address: str) -> subprocess.Popen[bytes]:
        (container,) = pod["spec"]["containers"]
        folder = self.folder / pod["metadata"]["uid"]
        folder.mkdir(exist_ok=True)
        environment = self._environment(pod, container, address)
        mounts = self._mounts(pod, container, folder)
        command, host = container.get("command") or self.image.entry_point, _host(pod)
        with (folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [
                    *("unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"),
                    *("sh", "-c", _MOUNTS, "pod", str(folder / "overlays"), str(self.hosts), host),
                    *(str(each) for mount in mounts for each in mount),
                    *("--", *command, *container.get("args", ())),
                ],
                env=environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._processes[pod["metadata"]["uid"]] = process
        return process

    def _until_over(self, pod: Json, process: subprocess.Popen[bytes]) -> int:
        """Wait for the end of a container, and make it come when its pod is deleted; return its exit code."""
        killed_at: float | None = None
        while process.poll() is None:
            metadata = self.api.get(_place(pod))["metadata"]
            if metadata.get("deletionTimestamp") and killed_at is None:
                killed_at = time.monotonic() + metadata["deletionGracePeriodSeconds"]
                for first in psutil.Process(process.pid).children():
                    with suppress(psutil.NoSuchProcess):
                        first.send_signal(signal.SIGTERM)
            if killed_at is not None and time.monotonic() > killed_at:
                process.kill()
            self._over.wait(POLL)
        return process.returncode

    def _is_to_end(self, pod: Json) -> bool:
        return "deletionTimestamp" in self.api.get(_place(pod))["metadata"]

    def _report(self, pod: Json, phase: str, state: Json, *, ready: bool, address: str) -> None:
        """Write a pod's status."""
        (container,) = pod["spec"]["containers"]
        told = "True" if ready else "False"
        conditions = [{"type": kind, "status": told} for kind in ("ContainersReady", "Ready")]
        status = {"name": container["name"], "ready": ready, "restartCount": 0, "image": container["image"]}
        found = {
            "phase": phase,
            "podIP": address,
            "conditions": [{"type": "PodScheduled", "status": "True"}, *conditions],
            "containerStatuses": [{**status, "imageID": "", "state": state}],
        }
        self.api.merge(_place(pod), {"status": found})

    # -- what a pod has ------------------------------------------------------------------------------------------

    def _environment(self, pod: Json, container: Json, address: str) -> dict[str, str]:
        found = {**self.image.environment, "KUBERNETES_SERVICE_HOST": self.api.host, "KUBERNETES_SERVICE_PORT": "443"}
        fields = {"status.podIP": address, "metadata.name": pod["metadata"]["name"]}
        for one in container.get("env", ()):
            source = one.get("valueFrom") or {}
            if "secretKeyRef" in source:
                reference = source["secretKeyRef"]
                data = self.api.get(("secrets", pod["metadata"]["namespace"], reference["name"]))["data"]
                if reference["key"] not in data:
                    raise Refusal(404, "NotFound", f"couldn't find key {reference['key']} in {reference['name']}")
                found[one["name"]] = base64.b64decode(data[reference["key"]]).decode()
            elif "fieldRef" in source:
                found[one["name"]] = fields[source["fieldRef"]["fieldPath"]]
            else:
                found[one["name"]] = one.get("value") or ""
        return found

    def _mounts(self, pod: Json, container: Json, folder: Path) -> list[tuple[Path, str]]:
        namespace = pod["metadata"]["namespace"]
        sources = {"account token": self._account(pod, folder / "account")}
        for volume in pod["spec"].get("volumes", ()):
            target = folder / "volumes" / volume["name"]
            if "configMap" in volume:
                data = self.api.get(("configmaps", namespace, volume["configMap"]["name"])).get("data") or {}
                items = volume["configMap"].get("items") or [{"key": key, "path": key} for key in data]
                _write(target, {item["path"]: data[item["key"]].encode() for item in items})
            elif "secret" in volume:
                data = self.api.get(("secrets", namespace, volume["secret"]["secretName"]))["data"]
                _write(target, {key: base64.b64decode(value) for key, value in data.items()})
            else:
                _write(target, {})
            sources[volume["name"]] = target
        mounts = [(sources[one["name"]], one["mountPath"]) for one in container.get("volumeMounts", ())]
        return [(sources["account token"], ACCOUNT_FOLDER), *mounts]

    def _account(self, pod: Json, folder: Path) -> Path:
        namespace, account = pod["metadata"]["namespace"], pod["spec"]["serviceAccountName"]
        files = {"token": self.api.token(namespace, account), "ca.crt": self.api.certificate, "namespace": namespace}
        _write(folder, {name: text.encode() for name, text in files.items()})
        return folder

    def _name(self, service: Json) -> None:
        """Have pods find a service's only pod by its name, as a headless service's."""
        namespace, selector = service["metadata"]["namespace"], service["spec"].get("selector") or {}
        labels = ",".join(f"{key}={value}" for key, value in selector.items())
        while not self._over.wait(POLL):
            pods = self.api.select("pods", namespace, labels)
            address = next((pod["status"]["podIP"] for pod in pods if pod["status"].get("podIP")), None)
            if address is not None:
                self._resolve(f"{service['metadata']['name']}.{namespace}.svc", address)
                return

    def _resolve(self, name: str, address: str) -> None:
        with self.hosts.open("a") as file:
            file.write(f"{address} {name}\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesCluster:
    """A server and a node."""

    api: ApiServer
    node: Node

    @property
    def master(self) -> str:
        """For spark-submit."""
        return f"k8s://{self.api.address}"

    def pods(self, namespace: str, role: str) -> list[Json]:
        """Return the drivers or the executors of Spark."""
        return self.api.select("pods", namespace, f"spark-role={role}")


@contextmanager
def kubernetes_cluster(folder: Path, image: Image) -> Iterator[KubernetesCluster]:
    """Lend a cluster.

    Args:
        folder: for its files.
        image: of all pods.
    """
    folder.mkdir(parents=True)
    # Another cluster of another run has another one; port 443 is fixed.
    api = ApiServer(host=f"127.{random.randint(64, 250)}.{random.randint(1, 250)}.1")
    node = Node(api=api, folder=folder / "pods", image=image)
    api.start(folder)
    try:
        node.start()
        yield KubernetesCluster(api=api, node=node)
    finally:
        node.stop()
        api.stop()


def can_run_pods() -> bool:
    """Whether this process may make namespaces, and listen on port 443."""
    return os.geteuid() == 0 and subprocess.run(["unshare", "--mount", "true"], check=False).returncode == 0


def _place(pod: Json) -> Place:
    return "pods", pod["metadata"]["namespace"], pod["metadata"]["name"]


def _host(pod: Json) -> str:
    """Return what a container takes for the name of its machine."""
    return str(pod["spec"].get("hostname") or pod["metadata"]["name"])[:63].rstrip("-.")


def _cpus(quantity: object) -> float:
    """Return how many CPUs a quantity is: `1`, `0.5` or `500m`."""
    text = str(quantity)
    return float(text.removesuffix("m")) / (1000 if text.endswith("m") else 1)


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def blocks(page: str, language: str) -> Sequence[str]:
    """Return a page's blocks of code in a language."""
    return [part.partition("\n```")[0] for part in page.split(f"\n```{language}\n")[1:]]
