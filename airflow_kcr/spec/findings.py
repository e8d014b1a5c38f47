"""Findings: what is wrong in a spec, each with its place.

A place is written as its reader would point at it in the file: `groups[0].start`, `kafka.bootstrap.servers`. The text
of a finding says what is wrong and what to do; it never holds a value of the Kafka settings.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import NamedTuple

Path = tuple[str | int, ...]
"""Where something is in the file: names of fields, and places in lists from 0."""


class Finding(NamedTuple):
    """One thing that is wrong."""

    path: Path
    text: str


def path_text(path: Path) -> str:
    """Return a path as it is shown, `groups[0].start`; the whole file is `spec`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".") or "spec"


def unknown(name: str, known: Iterable[str]) -> str:
    """Return the sentence for an unknown name, with the nearest known one.

    Args:
        name: what was written.
        known: what would have been accepted here.
    """
    names = list(known)
    near = difflib.get_close_matches(name.lower(), names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"no such field; {hint}known are {', '.join(names)}"


def not_one_of(value: str, accepted: Iterable[str]) -> str:
    """Return the sentence for a word that is not among those accepted."""
    words = list(accepted)
    near = difflib.get_close_matches(value.lower(), words, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"{value!r} is not accepted{hint}: use {', '.join(words)}"
