"""Code in the documentation runs, and prints what the page says it prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.docs_pages import TOP, pages

FENCE = re.compile(r"^```(?P<info>[a-z ]+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
MARK = "-- end of block --"

MARKED_BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>(?:run by|checked by|not run|generated): [^\n]+?) -->\n\n?)?"
    r"^```(?P<info>[^\n]*)\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
"""A block, and the comment before it: the test that runs it or checks its words, why none does, or what makes it."""


def blocks(path: Path) -> list[tuple[str, str]]:
    """Each block that is to be run, with the output that the page shows for it."""
    found: list[tuple[str, str]] = []
    for match in FENCE.finditer(path.read_text(encoding="utf-8")):
        if match["info"] == "python run":
            found.append((match["body"], ""))
        elif match["info"] == "text output":
            found[-1] = (found[-1][0], match["body"])
    return found


RUNNABLE = [path for path in pages() if blocks(path)]
MARKED = [
    pytest.param(path, marks=[pytest.mark.postgres] if "pgserver" in path.read_text("utf-8") else [], id=path.stem)
    for path in RUNNABLE
]


def test_there_are_pages_with_code_to_run() -> None:
    assert {path.name for path in RUNNABLE} >= {"use-the-store-from-python.md", "write-a-region-spec.md"}


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.stem)
def test_every_block_is_run_or_says_why_it_is_not(path: Path) -> None:
    silent = [
        f"{block['info']}: {block['body'][:60]}"
        for block in MARKED_BLOCK.finditer(path.read_text(encoding="utf-8"))
        if block["info"] not in ("python run", "text output") and block["mark"] is None
    ]
    assert silent == []


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.stem)
def test_a_block_that_is_run_elsewhere_names_a_test_that_reads_its_page(path: Path) -> None:
    marks = [block["mark"] or "" for block in MARKED_BLOCK.finditer(path.read_text(encoding="utf-8"))]
    for test in {mark.removeprefix("run by: ") for mark in marks if mark.startswith("run by: ")}:
        assert path.name in (TOP / test).read_text(encoding="utf-8"), test
    # Whatever says who runs something else like it has to be there too.
    named = {name for mark in marks for name in re.findall(r"tests/[\w/.]*\w", mark)}
    assert {name for name in named if not (TOP / name).exists()} == set()


@pytest.mark.long
@pytest.mark.parametrize("path", MARKED)
def test_the_code_of_a_page_prints_what_the_page_says(path: Path, tmp_path: Path) -> None:
    parts = blocks(path)
    program = f"\nprint({MARK!r})\n".join(code for code, _ in parts)
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(TOP)},
        check=False,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert ran.returncode == 0, ran.stderr
    printed = ran.stdout.split(f"{MARK}\n")
    assert printed == [output for _, output in parts]
