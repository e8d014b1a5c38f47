"""The page on Kubernetes, whose blocks are tried as they stand there."""

from __future__ import annotations

from typing import Final

from tests.support.members import TOP

PAGE: Final = TOP / "docs" / "how-to" / "run-consumers-on-kubernetes.md"
SPACE: Final = "kcr"
"""Its namespace."""


def block(language: str, words: str) -> str:
    """Return the only block of the page in a language that holds these words."""
    parts = [part.partition("\n```")[0] for part in PAGE.read_text().split(f"\n```{language}\n")[1:]]
    (found,) = (part for part in parts if words in part)
    return found + "\n"
