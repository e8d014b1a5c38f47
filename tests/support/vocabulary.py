"""The words of the glossary: which ones a text avoids, and where prose is in the package."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

RETIRED: Final = {
    "the cut": "checkpoint",
    "a cut": "checkpoint",
    "nonce": "request id",
    "roster": "participants",
    "outsider": "foreign consumer",
    "tie of life": "process lifetime",
    "on the path": "current",
    "begun": "started",
    "the begin": "the start",
    "its begin": "its start",
    "somebody": "who is meant",
    "nobody": "no member, no client, ...",
    "whoever": "who is meant",
}
"""Words that nothing uses any more, and what to say instead."""

AVOIDED: Final = {
    **RETIRED,
    "cursor": "position",
    "last_offset": "offset: always the next one",
    "last offset": "offset: always the next one",
    "savepoint": "checkpoint",
    "snapshot": "checkpoint",
    "flush": "drain",
    "purge": "retire",
    "auto_reset": "start position",
    "region version": "epoch",
}
"""These, and words of others for which there is one here: a page uses ours. Code may take a database's snapshot."""


def words_in(text: str, words: Mapping[str, str] = RETIRED, *, but: Collection[str] = ()) -> list[str]:
    """Return the words that a text should not use, each with what to say; what is in `backquotes` is a name."""
    plain = re.sub(r"`[^`]*`", "", " ".join(text.lower().split()))
    return [
        f"{word} (use {better})"
        for word, better in words.items()
        if word not in but and re.search(rf"\b{word}s?\b", plain)
    ]


def may_have(source: str, words: Collection[str]) -> bool:
    """Tell whether one of the words is in a module, be it prose or not, or broken into lines."""
    return re.search("|".join(r"[\s#]+".join(word.split()) for word in words), source.lower()) is not None


def prose_of(source: str) -> Iterator[tuple[int, str]]:
    """Yield the comments and docstrings of a module, each with its line."""
    docstrings = {
        node.value.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and token.start[0] in docstrings):
            yield token.start[0], token.string


def modules(package: Path) -> Iterator[Path]:
    """Yield the modules of a package; not migrations, which name what an earlier schema had."""
    yield from (path for path in sorted(package.rglob("*.py")) if "versions" not in path.parts)
