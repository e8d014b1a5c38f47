"""Code in the documentation runs, and prints what the page says it prints."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import pytest
import typer
import yaml
from click.testing import CliRunner

from airflow_kcr.cli import app
from airflow_kcr.spec import parse
from tests.support.docs_pages import TOP, pages

FENCE = re.compile(r"^```(?P<info>[a-z ]+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
MARK = "-- end of block --"

MARKED_BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>(?:run by|checked by|parsed|not run|generated): [^\n]+?) -->\n\n?)?"
    r"^```(?P<info>[^\n]*)\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
"""A block, and the comment before it: the test that runs it or checks its words; why it is only parsed, or not even
that; or what makes it.
"""


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


def parsed(block: re.Match[str]) -> None:
    """Check what can be checked of a block that does not run: its language, and each name of ours in it."""
    match block["info"]:
        case "yaml":
            within_a_spec(yaml.safe_load(block["body"]))
        case "json":
            json.loads(block["body"])
        case "xml":
            Xml.fromstring(block["body"])
        case "python":
            python(block["body"])
        case _:
            shell = re.sub(r"^\$ ", "", block["body"], flags=re.MULTILINE)
            ran = subprocess.run(["bash", "-n"], input=shell, capture_output=True, text=True, check=False, timeout=60)
            assert ran.returncode == 0, ran.stderr
            for connection in re.findall(r"AIRFLOW_CONN_\w+='([^']+)'", shell):
                json.loads(connection)


def within_a_spec(fragment: dict[str, Any]) -> None:
    """Read a part of a spec, which may be a part of its group, within a whole one."""
    group = {"group_id": "etl", "topics": ["flights"], "pipeline": "jobs:process"}
    group |= {name: fragment.pop(name) for name in fragment.keys() & {"sinks"}}
    whole = {"region": "flights", "kafka": {"bootstrap.servers": "broker:9092"}, "groups": [group]}
    parse(yaml.safe_dump(whole | fragment))


def python(code: str) -> None:
    """Import what a fragment imports of us, and make the operators that it makes, with the arguments that it gives."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("airflow_kcr"):
            module = importlib.import_module(node.module or "")
            assert [name.name for name in node.names if not hasattr(module, name.name)] == []
    if "Operator" in code:
        from airflow.sdk import DAG

        with DAG("page"):
            exec(code, {})


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.stem)
def test_a_block_that_is_parsed_can_be(path: Path) -> None:
    for block in MARKED_BLOCK.finditer(path.read_text(encoding="utf-8")):
        if (block["mark"] or "").startswith("parsed:"):
            parsed(block)


def command_lines(path: Path) -> Iterator[list[str]]:
    """Yield the words after `kcr` of each command in a block that isn't run, up to what the shell does with it."""
    for block in MARKED_BLOCK.finditer(path.read_text(encoding="utf-8")):
        if not (block["mark"] or "").startswith(("parsed:", "not run:")):
            continue
        for line in block["body"].replace("\\\n", " ").splitlines():
            shown = re.match(
                r"(?:\$ )?(?:.*&& )?(?:uv run )?(?:kcr|spark-submit .*__main__\.py\") (?P<words>[a-z-].*)", line
            )
            if shown:
                lexer = shlex.shlex(shown["words"], posix=True, punctuation_chars=True)
                lexer.whitespace_split = True
                yield list(takewhile(lambda word: word not in ("|", ">", "&&", ";", "2>", "&"), lexer))


ANYWHERE = {"KCR_STORE_URL": "postgresql://kcr@localhost/kcr"}
"""What the pages have said before."""


@pytest.mark.parametrize("path", [path for path in pages() if any(command_lines(path))], ids=lambda path: path.stem)
def test_every_command_line_of_a_page_is_one_that_kcr_takes(path: Path) -> None:
    command: Any = typer.main.get_command(app)
    _without_effect(command)
    refused = {
        " ".join(words): result.output
        for words in command_lines(path)
        if (result := CliRunner(env=ANYWHERE).invoke(command, words)).exit_code
    }
    assert refused == {}


def _without_effect(command: Any) -> None:  # noqa: ANN401 (click has no types here)
    command.callback = None
    for option in command.params:
        if (
            option.name == "install_completion"
        ):  # it would write into the shell's files, and needs a shell to be run from
            option.callback = _ends
    for child in getattr(command, "commands", {}).values():
        _without_effect(child)


def _ends(*_: object) -> None:
    raise typer.Exit
