"""What the documentation says of the command line is what the command line has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from airflow_kcr.cli import app

DOCS = Path(__file__).parents[3] / "docs"
REFERENCE = (DOCS / "reference" / "cli.md").read_text(encoding="utf-8")
ELSEWHERE = {"member", "demo"}
"""Commands with pages of their own."""

COMMON = {"--store", "--output", "--wait", "--timeout"}
"""Options that the page explains once, for all commands."""


def commands() -> dict[str, set[str]]:
    """Every command, by its words after `kcr`, with its options."""
    return dict(_walk(typer.main.get_command(app), ()))


def _walk(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, set[str]]]:  # noqa: ANN401 (click has no types here)
    children = getattr(command, "commands", None)
    if children is None:
        yield " ".join(words), {o for p in command.params for o in p.opts if o.startswith("-") and o != "--help"}
        return
    for name, child in children.items():
        if words or name not in ELSEWHERE:
            yield from _walk(child, (*words, name))


def sections() -> dict[str, str]:
    parts = re.split(r"^##+ (.+)$", REFERENCE, flags=re.MULTILINE)
    found = dict(zip(parts[1::2], parts[2::2], strict=True))
    return {name.removeprefix("kcr "): text for name, text in found.items() if name.startswith("kcr ")}


def test_the_reference_has_every_command_and_no_other() -> None:
    groups = {name.split()[0] for name in commands() if " " in name}
    assert sections().keys() - groups == commands().keys()


@pytest.mark.parametrize("name", sorted(commands()))
def test_the_reference_has_every_option_of_a_command(name: str) -> None:
    named = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", sections()[name]))
    known = commands()[name]
    lacking = {option for option in known if option.startswith("--")} - named - COMMON
    assert lacking == set()
    assert {option for option in named if option.startswith("--")} <= known


@pytest.mark.parametrize("name", sorted(commands()))
def test_every_command_explains_itself_with_an_example(name: str) -> None:
    command: Any = typer.main.get_command(app)
    for word in name.split():
        command = command.commands[word]
    assert "Example" in (command.help or ""), name
    assert f"kcr {name}" in command.help
