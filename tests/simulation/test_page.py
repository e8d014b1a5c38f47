"""The page about the simulation: its commands run, and print lines of the kind that it shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.docs_pages import ANNEX, TOP

PAGE = ANNEX / "run-the-simulation.md"
EVENT = re.compile(r"\s*\d+ \d\d:[\d.]+ e\d+ t\d+ (?P<what>\w+\(\w*)")


def kind(line: str) -> str:
    """Return what stays of a line whatever the seed's run: an event with its first field, the first words of a note."""
    event = EVENT.match(line)
    return event["what"] if event else re.sub(r"\d+(?:\.\d+)?", "N", re.split(r"[:,(=]", line, maxsplit=1)[0])


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_commands_of_the_page_print_such_lines(tmp_path: Path) -> None:
    blocks = re.findall(r"^```console\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    for block in blocks:
        # A command goes on to the end of its here-document.
        found = re.findall(
            r"^\$ ([^\n]*?(?:<<'(\w+)'\n.*?^\2)?)\n((?:(?!\$ )[^\n]*\n)*)", block, re.MULTILINE | re.DOTALL
        )
        assert found
        for command, _, shown in found:
            ran = subprocess.run(
                ["bash", "-c", command.replace("uv run python", sys.executable)],
                cwd=tmp_path,
                env={**os.environ, "PYTHONPATH": str(TOP)},
                capture_output=True,
                text=True,
                check=False,
                timeout=250,
            )
            # `grep -c` that counts nothing says so by its status.
            assert (ran.returncode, ran.stderr) in ((0, ""), (1, "")), ran.stderr
            printed = {kind(line) for line in ran.stdout.splitlines()}
            assert {kind(line) for line in shown.splitlines()} <= printed, command
