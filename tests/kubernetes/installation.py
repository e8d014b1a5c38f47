"""What has to be on this machine before a cluster can start: programs, images; built once, kept in a cache."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

from airflow_kcr.spark.launch import locked
from tests.kubernetes.images import build_image, wanted
from tests.kubernetes.node import node
from tests.kubernetes.programs import are_programs_built, build_programs, cache, install, missing

COMMAND = "uv run python -m tests.kubernetes build"


def build() -> None:
    """Build what isn't there. What only the build needs is gone at its end."""
    late = AssertionError("a cluster runs, or another build; end it")
    with locked(cache() / "lock", within=0, late=lambda: late):
        install()
        build_programs()
        for name, decisive in wanted().items():
            if _loaded().get(name) != decisive:
                sys.stderr.write(f"building {name}\n")
                _load(build_image(name))
                _record().write_text(json.dumps({**_loaded(), name: decisive}))
        shutil.rmtree(cache() / "build", ignore_errors=True)


def reason_against() -> str:
    """Return why no cluster can start here; empty: one can."""
    if os.geteuid() != 0:
        return "needs root: the node is a machine in namespaces of its own"
    if missing() or not are_programs_built() or _loaded() != wanted():
        return f"needs a Kubernetes: build it by `{COMMAND}`"
    return ""


def _load(archive: Path) -> None:
    """Hand an image to containerd."""
    with tempfile.TemporaryDirectory(prefix="kcr-kubernetes-") as folder, node(Path(folder) / "node") as machine:
        machine.start_containerd()
        machine.run("ctr", "--namespace=k8s.io", "images", "import", str(archive))


def _loaded() -> dict[str, str]:
    """The images that containerd has, as `wanted` returns them."""
    return dict(json.loads(_record().read_text())) if _record().exists() else {}


def _record() -> Path:
    return cache() / "images.json"
