"""The code's prose, the help of `kcr` among it, uses the words of the glossary."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from airflow_kcr.cli import app
from tests.support.vocabulary import AVOIDED, RETIRED, may_have, modules, prose_of, words_in

TOP = Path(__file__).parents[2]
CODE = ("airflow_kcr", "dags_example", "tests")
OF_POSTGRES = {"snapshot", "cursor", "flush"}
"""Words of Postgres and of files, which a help text may need."""


def helps(command: Any, name: str) -> Iterator[tuple[str, str]]:  # noqa: ANN401 (click has no types here)
    """Yield what `--help` shows of a command, its parameters and its subcommands, each with its place."""
    yield name, command.help or ""
    yield from ((f"{name} {part.name}", getattr(part, "help", None) or "") for part in command.params)
    for word, child in getattr(command, "commands", {}).items():
        yield from helps(child, f"{name} {word}")


def test_the_help_of_every_command_uses_the_words_of_the_glossary() -> None:
    texts = list(helps(typer.main.get_command(app), "kcr"))
    assert len(texts) > 100
    assert {place: used for place, text in texts if (used := words_in(text, AVOIDED, but=OF_POSTGRES))} == {}


@pytest.mark.parametrize("folder", CODE)
def test_comments_and_docstrings_use_no_retired_word(folder: str) -> None:
    sources = ((path, path.read_text(encoding="utf-8")) for path in modules(TOP / folder))
    assert {
        f"{path.relative_to(TOP)}:{line}": used
        for path, source in sources
        if may_have(source, RETIRED)  # what is prose takes long to find
        for line, text in prose_of(source)
        if (used := words_in(text))
    } == {}


def test_a_retired_word_is_seen_and_a_name_is_none() -> None:
    source = '"""What nobody\n    reads."""\nbegun = 1  # the begin of a batch\n'
    assert [words_in(text) for _, text in prose_of(source)] == [
        ["nobody (use no member, no client, ...)"],
        ["the begin (use the start)"],
    ]
    assert words_in("counts as `begun`, and on the pathway") == []
    assert may_have(source, RETIRED)
    assert may_have("# on\n# The\n#    Path", RETIRED)
    assert not may_have("on a path", RETIRED)
