"""A real Kubernetes of one node: etcd, Kubernetes' own programs, containerd, CoreDNS."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from tests.kubernetes.node import ADDRESS, CGROUPS, NAME, Node, make_cgroups, node
from tests.kubernetes.programs import program
from tests.support.certificates import Authority, Certificate, authority
from tests.support.kubernetes_page import SPACE, block

Json: TypeAlias = dict[str, Any]

SERVER: Final = f"https://{ADDRESS}:6443"
PODS: Final = "198.18.0.0/24"
SERVICES: Final = "198.19.0.0/24"

CLIENTS: Final = {
    "admin": ("admin", "system:masters"),
    "controller-manager": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
    "proxy": ("system:kube-proxy", ""),
    "dns": ("dns", "system:masters"),
    "kubelet": (f"system:node:{NAME}", "system:nodes"),
}
"""Name and organization of each client's certificate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The cluster, with the manifest of the page."""

    node: Node
    certificate: str
    """The authority to trust, as PEM."""

    @property
    def folder(self) -> Path:
        """Of its logs and settings."""
        return self.node.folder

    @property
    def master(self) -> str:
        """For spark-submit."""
        return f"k8s://{SERVER}"

    def kubectl(self, *arguments: str, given: str = "") -> str:
        """Run kubectl as an administrator, and return what it prints."""
        command = [str(program("kubectl")), f"--kubeconfig={self._configuration('admin')}", f"--namespace={SPACE}"]
        ran = subprocess.run(
            [*command, f"--cache-dir={self.folder / 'kubectl'}", *arguments],
            input=given,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if ran.returncode != 0:
            raise AssertionError(f"kubectl {' '.join(arguments)}: {ran.stderr}")
        return ran.stdout

    def select(self, kind: str, labels: str = "") -> list[Json]:
        """Return the objects of a kind that have these labels."""
        found: list[Json] = json.loads(self.kubectl("get", kind, f"--selector={labels}", "--output=json"))["items"]
        return found

    def client_configuration(self, account: str) -> Path:
        """Write a kubeconfig file for a service account."""
        token = self.kubectl("create", "token", account, "--duration=24h").strip()
        return self._configured(account, {"token": token})

    def kill_container(self, pod: str) -> None:
        """SIGKILL of the processes in a pod's container, as the kernel sends it where memory is short."""
        (status,) = json.loads(self.kubectl("get", "pod", pod, "--output=json"))["status"]["containerStatuses"]
        name = status["containerID"].removeprefix("containerd://")
        self.node.run("ctr", "--namespace=k8s.io", "task", "kill", "--signal=SIGKILL", name)

    def clear(self) -> None:
        """Delete what applications have left, so that the next test finds nothing of them."""
        kinds = "pods,services,networkpolicies"
        self.kubectl("delete", kinds, "--all", "--force", "--grace-period=0", "--wait=false")
        self.kubectl("delete", "configmaps", "--selector=spark-app-selector", "--wait=false")
        self.node.until(lambda: self.select("pods") == [], "the pods gone")

    # -- its start -----------------------------------------------------------------------------------------------

    def _start(self, trusted: Authority) -> None:
        for client, (name, organization) in CLIENTS.items():
            own = trusted.sign(name, ADDRESS, NAME, organization=organization)
            self._write(client, own)
            found = {"client-certificate-data": own.certificate, "client-key-data": own.key}
            self._configured(client, {key: _in_base64(value) for key, value in found.items()})
        names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
        self._write("server", trusted.sign("kube-apiserver", ADDRESS, "127.0.0.1", "198.19.0.1", *names))
        self._write("accounts", trusted.sign("service-accounts"))
        (self.folder / "ca.pem").write_text(trusted.pem)
        self.node.start_containerd()
        self._start_server()
        # A controller manager that is there before the server's roles ends.
        self.node.until(lambda: self._says("ok", "get", "--raw=/readyz"), "the API server ready")
        self._start_controllers()
        self._start_kubelet()
        self._start_network()
        self.node.until(lambda: self._says(" Ready ", "get", "nodes"), "the node ready")
        self.kubectl("create", "namespace", SPACE)
        self.kubectl("apply", "--filename=-", given=block("yaml", "kind: Role"))
        self.node.until(lambda: self._says("default", "get", "serviceaccounts"), "service accounts")

    def _start_server(self) -> None:
        data = f"--data-dir={self.folder / 'etcd'}"
        self.node.start("etcd", str(program("etcd")), data, "--unsafe-no-fsync", "--log-level=warn")
        trusted, admin, server, accounts = (self.folder / name for name in ("ca.pem", "admin", "server", "accounts"))
        self._component(
            "kube-apiserver",
            "--etcd-servers=http://127.0.0.1:2379",
            f"--advertise-address={ADDRESS}",
            f"--tls-cert-file={server}.crt",
            f"--tls-private-key-file={server}.key",
            f"--client-ca-file={trusted}",
            f"--kubelet-client-certificate={admin}.crt",
            f"--kubelet-client-key={admin}.key",
            f"--kubelet-certificate-authority={trusted}",
            "--kubelet-preferred-address-types=InternalIP",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={accounts}.crt",
            f"--service-account-signing-key-file={accounts}.key",
            f"--service-cluster-ip-range={SERVICES}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
        )

    def _start_controllers(self) -> None:
        for name in ("controller-manager", "scheduler"):
            own = self._configuration(name)
            configured = [f"--{use}kubeconfig={own}" for use in ("", "authentication-", "authorization-")]
            more = (
                f"--service-account-private-key-file={self.folder / 'accounts.key'}",
                f"--root-ca-file={self.folder / 'ca.pem'}",
                "--use-service-account-credentials=true",
                f"--cluster-cidr={PODS}",
                f"--service-cluster-ip-range={SERVICES}",
            )
            self._component(
                f"kube-{name}", *configured, "--leader-elect=false", *(more if name == "controller-manager" else ())
            )

    def _start_kubelet(self) -> None:
        make_cgroups()
        settings = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "x509": {"clientCAFile": str(self.folder / "ca.pem")},
                "webhook": {"enabled": True},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(self.folder / "kubelet.crt"),
            "tlsPrivateKeyFile": str(self.folder / "kubelet.key"),
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{CGROUPS}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "clusterDNS": [ADDRESS],
            "clusterDomain": "cluster.local",
            "resolvConf": str(self.folder / "resolv.conf"),
            "volumePluginDir": str(self.folder / "kubelet" / "plugins"),
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        }
        self._component(
            "kubelet",
            f"--config={self._settings('kubelet', settings)}",
            f"--kubeconfig={self._configuration('kubelet')}",
            f"--root-dir={self.folder / 'kubelet'}",
            f"--cert-dir={self.folder / 'kubelet'}",
            f"--hostname-override={NAME}",
            f"--node-ip={ADDRESS}",
        )

    def _start_network(self) -> None:
        settings = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": str(self._configuration("proxy"))},
            "mode": "iptables",
            "clusterCIDR": PODS,
            "hostnameOverride": NAME,
            "conntrack": {"maxPerCore": 0},
        }
        self._component("kube-proxy", f"--config={self._settings('proxy', settings)}")
        corefile = self.folder / "Corefile"
        corefile.write_text(
            f"cluster.local:53 {{\n  bind {ADDRESS}\n  errors\n  kubernetes cluster.local {{\n"
            f"    kubeconfig {self._configuration('dns')}\n    pods insecure\n    ttl 5\n  }}\n}}\n"
        )
        self.node.start("coredns", str(program("coredns")), "-conf", str(corefile))

    def _component(self, name: str, *arguments: str) -> None:
        self.node.start(name, str(program(name)), *arguments)

    def _says(self, words: str, *arguments: str) -> bool:
        try:
            return words in self.kubectl(*arguments)
        except AssertionError:
            return False

    # -- its files -----------------------------------------------------------------------------------------------

    def _write(self, name: str, own: Certificate) -> None:
        (self.folder / f"{name}.crt").write_text(own.certificate)
        (self.folder / f"{name}.key").write_text(own.key)

    def _settings(self, name: str, found: Json) -> Path:
        file = self.folder / f"{name}.yaml"
        file.write_text(json.dumps(found))  # every JSON is YAML
        return file

    def _configuration(self, client: str) -> Path:
        return self.folder / f"kubeconfig-{client}"

    def _configured(self, client: str, user: Json) -> Path:
        """Write a kubeconfig file."""
        trusted = {"server": SERVER, "certificate-authority-data": _in_base64(self.certificate)}
        found = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "kcr",
            "clusters": [{"name": "kcr", "cluster": trusted}],
            "users": [{"name": client, "user": user}],
            "contexts": [{"name": "kcr", "context": {"cluster": "kcr", "user": client, "namespace": SPACE}}],
        }
        self._configuration(client).write_text(json.dumps(found))
        return self._configuration(client)


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Lend a cluster, with the manifest of the page.

    Args:
        folder: for its files.
    """
    with node(folder) as machine:
        trusted = authority("kubernetes")
        one = Cluster(node=machine, certificate=trusted.pem)
        one._start(trusted)
        yield one


def _in_base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
