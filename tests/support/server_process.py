"""A server of a test's own that is one process: it has come when it listens, and is gone with its process."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from airflow_kcr.embedded.processes import accepts, happened, last_lines

STARTS_WITHIN: Final = 60.0
ENDS_WITHIN: Final = 10.0


def write_hadoop_settings(file: Path, settings: Mapping[str, str]) -> None:
    """Write settings as the programs of Hadoop read them."""
    root = ElementTree.Element("configuration")
    for name, value in settings.items():
        one = ElementTree.SubElement(root, "property")
        ElementTree.SubElement(one, "name").text = name
        ElementTree.SubElement(one, "value").text = value
    file.write_bytes(ElementTree.tostring(root))


@contextmanager
def listening(
    command: Sequence[str], port: int, log: Path, environ: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Lend the process of a server that listens.

    Args:
        command: starts it.
        port: where it shall listen, on this machine.
        log: the file for what it says.
        environ: of its variables, beside those of this process.
    """
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            env={**os.environ, **(environ or {})},
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
    try:
        happened(lambda: process.poll() is not None or accepts(port), within=STARTS_WITHIN)
        if not accepts(port):
            raise AssertionError(f"{command[0]} does not listen: {last_lines(log.read_text())}")
        yield process
    finally:
        process.kill()
        process.wait(ENDS_WITHIN)
