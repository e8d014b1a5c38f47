"""What pages show of messages is made of the texts that the code has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import airflow_kcr
from tests.unit.docs.test_snippets import MARKED_BLOCK

PACKAGE = Path(airflow_kcr.__file__).parent
DOCS = PACKAGE.parent / "docs"
SHORTEST = 8
"""Characters of a text that counts: shorter ones are everywhere."""

WORD = re.compile(r"\S*[A-Za-z]{3}\S*")
LONGEST_VALUE = 5
"""Words that may stand between two texts of the code: a name, a time, a number."""


def shown() -> Iterator[tuple[str, str]]:
    for path in sorted(DOCS.rglob("*.md")):
        for block in MARKED_BLOCK.finditer(path.read_text(encoding="utf-8")):
            if block["mark"] == f"checked by: {Path(__file__).relative_to(PACKAGE.parent)}":
                lines = [line for line in block["body"].splitlines() if not line.startswith("$ ")]
                yield path.stem, "\n".join(" ".join(line.split()) for line in lines)


@cache
def texts() -> tuple[str, ...]:
    """Every text of the code, the parts of formatted ones by themselves; the longest first."""
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py"))
    nodes = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant))
    found = {" ".join(node.value.split()) for node in nodes if isinstance(node.value, str)}
    return tuple(sorted((text for text in found if len(text) >= SHORTEST), key=len, reverse=True))


def unknown(text: str) -> list[str]:
    """Return what of a message no text of the code has, and is longer than a value."""
    for known in texts():
        if known.split()[0] in text:
            # A page may break a line in it.
            text = re.sub(re.escape(known).replace(r"\ ", r"\s"), "\0", text)
    return [part for part in re.split("[\0\n]", text) if len(WORD.findall(part)) > LONGEST_VALUE]


@pytest.mark.parametrize(("page", "text"), list(shown()))
def test_a_message_of_a_page_has_the_words_of_the_code(page: str, text: str) -> None:
    assert unknown(text) == []


def test_a_message_that_no_code_has_is_found() -> None:
    assert unknown("clamped to what the log does not have any more, for 6 partitions") != []
