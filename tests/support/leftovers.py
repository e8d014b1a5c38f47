"""What a demo or services have left running."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

from airflow_kcr.embedded.airflow import MARKER


def left(folder: Path) -> list[str]:
    """Return the command lines of the processes that were started from a folder and still run."""
    found = []
    for process in psutil.process_iter():
        try:
            command = " ".join(process.cmdline())
            mine = str(folder) in command or process.environ().get(MARKER, "").startswith(str(folder))
            gone = process.status() == psutil.STATUS_ZOMBIE
        except psutil.Error:
            continue
        if mine and not gone and process.pid != os.getpid():
            found.append(command)
    return found
