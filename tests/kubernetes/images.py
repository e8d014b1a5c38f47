"""The images: the page's, built from its Dockerfile, and that of `pause`. No registry and no container engine.

The page's base image is one of Debian with Debian's Python, made by debootstrap. What changes with the checkout (the
package's code, the pipeline, the entry point) is mounted over what the image has, so that it is built once.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import ssl
from importlib.metadata import version
from pathlib import Path
from typing import Final

from airflow_kcr.embedded.jars import resolve, spark_connector
from tests.kubernetes.programs import cache, program, run
from tests.support.kubernetes_page import block
from tests.support.members import TOP

IMAGE: Final = "registry.example/kcr:1"
PAUSE: Final = "kcr.invalid/pause:1"

PYTHON: Final = "/opt/kcr/lib/python3.11/site-packages"
"""Where the image has the package; the page's base image has a newer Python than Debian."""

_BASE: Final = "docker.io/library/python:3.12-slim-bookworm"


def wanted() -> dict[str, str]:
    """Return the names of the images, with what decides whether one has to be built anew."""
    # Of other packages, whichever version the lock file had will do.
    told = block("dockerfile", "FROM") + version("pyspark")
    return {PAUSE: "", IMAGE: hashlib.sha256(told.encode()).hexdigest()}


def build_image(name: str) -> Path:
    """Build an image, and return its archive."""
    context = cache() / "build" / "context"
    shutil.rmtree(context, ignore_errors=True)
    context.mkdir(parents=True)
    if name == PAUSE:
        _build_pause(context)
    else:
        _build_page(context)
    archive = cache() / "build" / "image.tar"
    archive.unlink(missing_ok=True)
    _buildah("push", name, f"docker-archive:{archive}:{name}")
    return archive


def _build_pause(context: Path) -> None:
    shutil.copy(program("pause"), context / "pause")
    _bud(PAUSE, 'FROM scratch\nCOPY pause /pause\nENTRYPOINT ["/pause"]\n', context)


def _build_page(context: Path) -> None:
    system = cache() / "build" / "system"
    if not (system / "usr" / "bin" / "python").exists():
        shutil.rmtree(system, ignore_errors=True)
        run(
            ["debootstrap", "--variant=minbase", "--include=python3,python3-venv", "bookworm", str(system)],
            folder=context,
        )
        (system / "usr" / "bin" / "python").symlink_to("python3")
    _bud(_BASE, "FROM scratch\nCOPY . /\n", system)
    for folder, files in (("jars", resolve(spark_connector())), ("jobs", ())):
        (context / folder).mkdir()
        for file in files:
            shutil.copy(file, context / folder)
    (context / "entrypoint.sh").write_text(block("bash", "#!"))
    _bud(IMAGE, block("dockerfile", "FROM"), context, *_pip(context.parent / "pip"))


def _pip(folder: Path) -> list[str]:
    """Return the volumes that let the image's pip find the package, and what the lock file has."""
    shutil.rmtree(folder, ignore_errors=True)
    run(["uv", "build", "--wheel", "--out-dir", str(folder)], folder=TOP)
    locked = ["uv", "export", "--quiet", "--no-hashes", "--no-emit-project", "--no-dev", "--extra", "spark"]
    (folder / "constraints.txt").write_text(run(locked, folder=TOP))
    said = ["[global]", "find-links = /pip", "constraint = /pip/constraints.txt"]
    trusted = ssl.get_default_verify_paths().cafile
    if trusted:
        shutil.copy(trusted, folder / "trusted.pem")
        said += ["cert = /pip/trusted.pem"]
    if "PIP_INDEX_URL" in os.environ:
        said += [f"index-url = {os.environ['PIP_INDEX_URL']}"]
    (folder / "pip.conf").write_text("\n".join(said))
    return ["--volume", f"{folder}:/pip:ro", "--volume", f"{folder / 'pip.conf'}:/etc/pip.conf:ro"]


def _bud(name: str, dockerfile: str, context: Path, *options: str) -> None:
    file = cache() / "build" / "Dockerfile"
    file.write_text(dockerfile)
    _buildah("bud", "--isolation", "chroot", "--pull-never", *options, "--tag", name, "--file", str(file), str(context))


def _buildah(*arguments: str) -> None:
    places = ["--root", str(cache() / "build" / "layers"), "--runroot", str(cache() / "build" / "layers-run")]
    run(["buildah", *places, "--storage-driver", "overlay", *arguments], folder=cache())
