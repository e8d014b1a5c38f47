"""What a how-to has its reader write into files and type, done in a folder; and what it shows, compared."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.support.docs_pages import DOCS

WITHIN = 300.0
"""Seconds for a command, which may start Spark."""

CHANGING = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|\+00:00)|\b[0-9a-f]{12}\b|\d[\d,]*")
"""Times, the ids of plans, numbers."""


def shape(line: str) -> str:
    """Return a line without what differs from run to run."""
    return " ".join(CHANGING.sub("N", line).split())


def is_printed(line: str, printed: set[str]) -> bool:
    """Whether a line of a page was printed; a part of it that is `…` may be anything."""
    wanted = ".*".join(map(re.escape, shape(line).split("…")))
    return any(re.fullmatch(wanted, one) for one in printed)


class Page:
    """A page whose files and commands are used in a folder, with addresses of the test's own."""

    def __init__(self, name: str, folder: Path, environ: Mapping[str, str], addresses: Mapping[str, str]) -> None:
        self._text = (DOCS / "how-to" / name).read_text(encoding="utf-8")
        self._folder, self._environ, self._addresses = folder, environ, addresses

    def _real(self, text: str) -> str:
        for shown, real in self._addresses.items():
            text = text.replace(shown, real)
        return text

    def block(self, language: str) -> str:
        """Return the one block of a language."""
        (found,) = re.findall(rf"^```{language}\n(.*?)^```$", self._text, re.MULTILINE | re.DOTALL)
        return self._real(found)

    def type(self, start: str) -> None:
        """Type the commands that begin so, in their order; what the page shows after each has to be printed."""
        blocks = re.findall(r"^```console\n(.*?)^```$", self._text, re.MULTILINE | re.DOTALL)
        parts = [part for block in blocks for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
        wanted = [part for part in parts if part.startswith(start)]
        assert wanted, start
        for part in wanted:
            command, *shown = self._real(part).splitlines()
            self.run("bash", "-c", command, shown=[line for line in shown if line.strip()])

    def run(self, *command: str, shown: Iterable[str] = ()) -> None:
        """Run a command in the folder."""
        ran = subprocess.run(
            command,
            cwd=self._folder,
            env=self._environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=WITHIN,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        printed = {shape(line) for line in (*ran.stdout.splitlines(), *ran.stderr.splitlines())}
        assert [line for line in shown if not is_printed(line, printed)] == [], ran.stdout + ran.stderr
