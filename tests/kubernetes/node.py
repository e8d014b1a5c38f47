"""A machine within this one: namespaces of its own, whose end ends all that was started there.

It has its own network, processes, mounts, host name and shared memory. A pair of virtual network cards leads to it:
this machine's routes, forwarding and firewall stay as they are, and no packet gets further than this machine.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from airflow_kcr.spark.launch import locked
from tests.kubernetes.images import PAUSE
from tests.kubernetes.programs import cache

ADDRESS: Final = "198.51.100.1"
"""The node's, of a network for documentation."""

HOST: Final = "198.51.100.2"
"""This machine's, as the node and its pods reach it."""

NAME: Final = "kcr-node"
CARD: Final = "kcr-host"
"""This machine's end of the pair."""

CGROUPS: Final = "kcr-pods"
"""Folder of the pods' control groups."""

LOCK: Final = Path("/run/lock/kcr-kubernetes")
"""Of the one node that there may be on this machine: its address, and the cache's images, are one's alone."""

FREE_WITHIN: Final = 1800.0
"""Seconds to wait for another run's node."""

POLL: Final = 0.1

_INIT: Final = f"""\
hostname {NAME}
ip link set lo up
until ip link set kcr-node up 2>/dev/null; do sleep 0.05; done
ip addr add {ADDRESS}/24 dev kcr-node
ip route add default dev kcr-node src {ADDRESS}
sysctl -qw net.ipv4.ip_forward=1
for folder in /run /var/log /var/lib/cni; do mount -t tmpfs tmpfs $folder; done
mkdir -p /run/lock
mount --bind "$1/hosts" /etc/hosts
mount --bind "$1/resolv.conf" /etc/resolv.conf
touch "$1/is-up"
exec sleep infinity
"""


@dataclass(slots=True, kw_only=True)
class Node:
    """The machine.

    Args:
        folder: for the logs and settings of what runs there.
    """

    folder: Path
    first: subprocess.Popen[bytes]
    """Its end ends everything."""

    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    """What was started, by name."""

    @property
    def pid(self) -> int:
        """Process id of the machine's own first process."""
        return int(Path(f"/proc/{self.first.pid}/task/{self.first.pid}/children").read_text().split()[0])

    def inside(self, command: Sequence[str]) -> list[str]:
        """Return a command that runs another one there."""
        return ["nsenter", f"--target={self.pid}", "--mount", "--net", "--pid", "--uts", "--ipc", "--", *command]

    def run(self, *command: str) -> str:
        """Run a command there, and return what it prints."""
        ran = subprocess.run(self.inside(command), stdout=subprocess.PIPE, text=True, timeout=600, check=True)
        return ran.stdout

    def start(self, name: str, *command: str) -> None:
        """Start a program there; its log is in the folder."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                self.inside(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def until(self, condition: Callable[[], bool], what: str, within: float = 60.0) -> None:
        """Wait for a condition; fail where a program has ended, or it takes too long."""
        deadline = time.monotonic() + within
        while not condition():
            over = [name for name, process in self.processes.items() if process.poll() is not None]
            if over or time.monotonic() > deadline:
                said = "\n".join(f"--- {log.name}\n{log.read_text()[-2000:]}" for log in self.folder.glob("*.log"))
                raise AssertionError(f"not within {within} s: {what}; ended: {over}\n{said}")
            time.sleep(POLL)  # a poll of a condition, with a deadline

    def start_containerd(self) -> None:
        """Start what runs containers; the images are in the cache."""
        settings = self.folder / "containerd.toml"
        network = self.folder / "cni"
        network.mkdir()
        (network / "kcr.conflist").write_text(_NETWORK)
        settings.write_text(_CONTAINERD.format(root=cache() / "containerd", pause=PAUSE, network=network))
        self.start("containerd", "containerd", "--config", str(settings))
        self.until(lambda: self._answers("ctr", "version"), "containerd answers")

    def _answers(self, *command: str) -> bool:
        return subprocess.run(self.inside(command), capture_output=True, check=False).returncode == 0


@contextmanager
def node(folder: Path) -> Iterator[Node]:
    """Lend a machine; at the end everything in it is ended, and nothing of it is left."""
    late = AssertionError(f"another run has had the node for {FREE_WITHIN:g} s; end that one")
    with locked(LOCK, within=FREE_WITHIN, late=lambda: late):
        one = _started(folder)
        try:
            _connect(one)
            yield one
        finally:
            _end(one)


def _started(folder: Path) -> Node:
    _remove_cgroups()  # of a run that was killed
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "hosts").write_text(f"127.0.0.1 localhost\n{ADDRESS} {NAME}\n")
    (folder / "resolv.conf").write_text("")
    Path("/var/lib/cni").mkdir(exist_ok=True)
    # It ends with this process too, however that ends.
    own = ("--mount", "--net", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc")
    command = ["setpriv", "--pdeathsig", "KILL", "unshare", *own, "--propagation=private"]
    with (folder / "node.log").open("wb") as log:
        first = subprocess.Popen(
            [*command, "bash", "-ec", _INIT, NAME, str(folder)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    return Node(folder=folder, first=first)


def _connect(one: Node) -> None:
    one.until(lambda: _has_child(one.first.pid), "the node's first process")
    _ip("link", "add", CARD, "type", "veth", "peer", "name", "kcr-node", "netns", str(one.pid))
    _ip("addr", "add", f"{HOST}/24", "dev", CARD)
    _ip("link", "set", CARD, "up")
    one.until((one.folder / "is-up").exists, "the node is up")


def _end(one: Node) -> None:
    if _has_child(one.first.pid):
        os.kill(one.pid, signal.SIGKILL)
    one.first.wait(30)
    for process in one.processes.values():
        process.wait(30)
    _remove_cgroups()
    shutil.rmtree(one.folder / "kubelet", ignore_errors=True)


def make_cgroups() -> None:
    """Make the folder of the pods in each hierarchy of cgroup v1."""
    for hierarchy in Path("/sys/fs/cgroup").iterdir():
        if hierarchy.name != "unified":
            (hierarchy / CGROUPS).mkdir(exist_ok=True)
    for name in ("cpuset.cpus", "cpuset.mems"):
        root = Path("/sys/fs/cgroup/cpuset")
        (root / CGROUPS / name).write_text((root / name).read_text())


def _remove_cgroups() -> None:
    # Those of pods, and containerd's own of what it starts beside them.
    for hierarchy in Path("/sys/fs/cgroup").iterdir():
        for name in (CGROUPS, "k8s.io"):
            for folder, _, _ in os.walk(hierarchy / name, topdown=False):
                os.rmdir(folder)


def _has_child(pid: int) -> bool:
    # `setpriv` becomes `unshare`, and that starts the first process.
    try:
        return bool(Path(f"/proc/{pid}/task/{pid}/children").read_text())
    except FileNotFoundError:
        return False


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


_CONTAINERD: Final = """\
version = 2
root = "{root}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  # Where this machine lacks CAP_SYS_RESOURCE, runc could not lower a score.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{network}"
"""

_NETWORK: Final = """\
{"cniVersion": "0.4.0", "name": "kcr", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "/run/kcr-cni", "ranges": [[{"subnet": "198.18.0.0/24"}]],
            "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
"""
