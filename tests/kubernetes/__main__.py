"""Build the project's own Kubernetes of one node, or start it.

    python -m tests.kubernetes build    once, as root on Debian: ten minutes or more, 4 GB in the cache
    python -m tests.kubernetes up       until Ctrl-C

The tests start one of their own: `pytest -m kubernetes -n 0`.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from tests.kubernetes.cluster import cluster
from tests.kubernetes.installation import build, reason_against


def main() -> None:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.kubernetes", description=__doc__)
    parser.add_argument("what", choices=["build", "up"])
    if parser.parse_args().what == "build":
        build()
        return
    if reason := reason_against():
        raise SystemExit(reason)
    with tempfile.TemporaryDirectory(prefix="kcr-kubernetes-") as folder, cluster(Path(folder) / "node") as one:
        sys.stdout.write(f"export KUBECONFIG={one.folder}/kubeconfig-admin\n")
        sys.stdout.flush()
        with suppress(KeyboardInterrupt):
            signal.pause()


main()
