"""Every command that a text of the package names is one that there is, with the options it is named with."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

import airflow_kcr
from airflow_kcr.cli import app

PACKAGE = Path(airflow_kcr.__file__).parent
COMMAND = re.compile(r"(?<![\w-])kcr((?: [a-z][a-z-]+)+)((?: (?:--[a-z-]+|-[a-z]\b|[^\s`'\";,]+))*)")
OPTION = re.compile(r"(?<= )--[a-z-]+|(?<= )-[a-z]\b")
TOP: Any = typer.main.get_command(app)


def texts() -> Iterator[tuple[str, str]]:
    """Yield each text of the package that is no docstring, what is put into it replaced by a word, with its place."""
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        inner |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                yield f"{path.name}:{node.lineno}", "".join(_part(part) for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
                yield f"{path.name}:{node.lineno}", node.value


def _part(part: ast.expr) -> str:
    return part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else "NAME"


def wrong_with(words: str, options: set[str]) -> str:
    """Return what is wrong with a command that begins with these words; empty: nothing."""
    command = TOP
    for word in words.split():
        children = getattr(command, "commands", None)
        if children is None:
            break
        if word not in children:
            return f"`kcr {words}` is no command"
        command = children[word]
    there = {"--help"} | {name for p in command.params for name in p.opts}
    return "" if options <= there else f"`kcr {words}` has no {', '.join(sorted(options - there))}"


def test_the_commands_that_texts_name_are_there_with_their_options() -> None:
    seen, wrong = set(), []
    for place, text in texts():
        for match in COMMAND.finditer(" ".join(text.split())):
            words, rest = match.groups()
            if words.split()[0] not in TOP.commands:
                continue  # threads and connections have such names too
            seen.add(words)
            found = wrong_with(words, set(OPTION.findall(rest)))
            wrong += [f"{place}: {found}"] if found else []
    assert len(seen) > 15, seen
    assert wrong == []


def test_a_command_that_is_not_there_is_seen() -> None:
    assert wrong_with("region show", {"-o"}) == ""
    assert wrong_with("region end flights", set()) == "`kcr region end flights` is no command"
    assert wrong_with("reset apply", {"--reason", "--hard"}) == "`kcr reset apply` has no --hard"
