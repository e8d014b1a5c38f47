"""The programs of a Kubernetes: Go builds its own, Debian has those around it.

Debian's etcd (3.4) doesn't know the requests by which Spark's client watches its executors, so etcd is built too.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from airflow_kcr.embedded.jars import home

PACKAGES: Final = (
    *("containerd", "runc", "containernetworking-plugins", "conntrack", "iptables", "iproute2", "util-linux"),
    *("buildah", "debootstrap", "golang-go"),
)
"""Debian's."""

REQUIRED: Final = (
    *("containerd", "ctr", "runc", "/usr/lib/cni/bridge", "conntrack", "iptables", "ip", "nsenter", "unshare"),
    *("setpriv", "buildah", "debootstrap", "go"),
)
"""Programs of the packages."""

KUBERNETES: Final = "1.34.4"

COMPONENTS: Final = (
    *("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl"),
)


class Program(NamedTuple):
    """Something to build from a module of Go.

    Attributes:
        module: its path.
        version: of the module, without its `v`.
        packages: with a `main`; `.`: the given one.
        main: of our own.
    """

    module: str
    version: str
    packages: tuple[str, ...]
    main: str = ""


PROGRAMS: Final = {
    "kubernetes": Program(
        "k8s.io/kubernetes", KUBERNETES, tuple(f"k8s.io/kubernetes/cmd/{name}" for name in COMPONENTS)
    ),
    "etcd": Program("go.etcd.io/etcd/server/v3", "3.6.13", ("go.etcd.io/etcd/server/v3",)),
    "coredns": Program(
        "github.com/coredns/coredns",
        "1.12.4",
        (".",),
        """\
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
)

func main() {
	dnsserver.Directives = []string{"bind", "errors", "kubernetes"}
	coremain.Run()
}
""",
    ),
    "pause": Program(
        "",
        "1",
        (".",),
        """\
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGINT, syscall.SIGTERM)
	<-asked
}
""",
    ),
}
"""By name; `pause` is the process that holds a pod's namespaces."""


def cache() -> Path:
    """Return the folder of what is built once."""
    return home() / "kubernetes"


def program(name: str) -> Path:
    """Return the file of a program that was built."""
    return cache() / "bin" / name


def missing() -> list[str]:
    """Return the programs of Debian's packages that this machine doesn't have."""
    return [name for name in REQUIRED if shutil.which(name) is None]


def install() -> None:
    """Install Debian's packages, if a program is missing."""
    if missing():
        subprocess.run(["apt-get", "install", "--yes", "--no-install-recommends", *PACKAGES], check=True)


def are_programs_built() -> bool:
    """Whether each program is there in its version."""
    return all(_is_built(name) for name in PROGRAMS)


def build_programs() -> None:
    """Build each program that isn't there in its version."""
    for name, one in PROGRAMS.items():
        if not _is_built(name):
            sys.stderr.write(f"building {name} {one.version}\n")
            _build(name, one)
            _record(name).write_text(json.dumps(one))


def _is_built(name: str) -> bool:
    return _record(name).exists() and _record(name).read_text() == json.dumps(PROGRAMS[name])


def _record(name: str) -> Path:
    return cache() / "bin" / f"{name}.json"


def _build(name: str, one: Program) -> None:
    folder, target = cache() / "build" / name, cache() / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    target.mkdir(exist_ok=True)
    required = [f"require {one.module} v{one.version}"] if one.module else []
    (folder / "go.mod").write_text("\n".join([f"module {name}.invalid", "go 1.24.0", *required, *_replaced(one)]))
    flags = ["-s", "-w"]
    if one.main:
        (folder / "main.go").write_text(one.main)
    if one.module == "k8s.io/kubernetes":
        version, (major, minor, _) = "k8s.io/component-base/version", one.version.split(".")
        values = {"gitVersion": f"v{one.version}", "gitMajor": major, "gitMinor": minor}
        flags += [f"-X={version}.{key}={value}" for key, value in values.items()]
    output = target / name if len(one.packages) == 1 else f"{target}/"
    _go("build", "-ldflags", " ".join(flags), "-o", str(output), *one.packages, folder=folder)
    shutil.rmtree(folder)


def _replaced(one: Program) -> list[str]:
    """Kubernetes has its libraries in its own tree; the same are published as modules of version 0."""
    if one.module != "k8s.io/kubernetes":
        return []
    found = json.loads(_go("mod", "download", "-json", f"{one.module}@v{one.version}", folder=cache()))
    libraries = re.findall(r"^\s*(?:replace )?(k8s\.io/\S+) => \./staging", Path(found["GoMod"]).read_text(), re.M)
    minor = one.version.partition(".")[2]
    return [f"replace {library} => {library} v0.{minor}" for library in libraries]


def _go(*arguments: str, folder: Path) -> str:
    # Modules in the user's own cache, as ever; objects in one that goes when everything is built.
    own = {
        "CGO_ENABLED": "0",
        "GOCACHE": str(cache() / "build" / "objects"),
        "GOFLAGS": "-mod=mod -trimpath -buildvcs=false",
    }
    return run(["go", *arguments], folder=folder, environment=own)


def run(command: Sequence[str], *, folder: Path, environment: dict[str, str] | None = None) -> str:
    """Run a command in a folder, and return what it prints; what it says on the way is shown."""
    ran = subprocess.run(
        command, cwd=folder, env={**os.environ, **(environment or {})}, stdout=subprocess.PIPE, text=True, check=True
    )
    return ran.stdout
