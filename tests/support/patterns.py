"""Patterns of topics that are read alike by everyone, and such that are not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TOPICS: Final = ("f1", "f12", "fa", "fb", "f.a", "f-x", "fa_old", "F1", "g1", "faax", "fab")

ACCEPTED: Final = (
    r"^fa",
    r"^fa$",
    r"^fa.*",
    r"^f\w",
    r"^f(a|b)$",
    r"^f[0-9]{2}",
    r"^f[0-9]{1,2}$",
    r"^f.*?x",
    r"^f\.a",
    r"^f[.]a$",
    r"^f[\.]a$",
    r"^f[^a-z.-]",
    r"^f[a-z.-]",
    r"^fa\b",
    r"^fa|^f1",
    r"^f(1|2)?2",
    r"^(f|F)1",
    r"^[fF]1$",
    r"^fa+",
)

REFUSED: Final[Mapping[str, str]] = {
    r"^f\d+": r"\d",
    r"^f(?:a|b)": r"(?:a",
    r"^(?!g)f": r"(?!g",
    r"^(?i:f1)": r"(?i",
    r"^f(?P<n>a)": r"(?P",
    r"^f[[:digit:]]+": r"[:",
    r"^f[\d]": r"\d",
    r"^f[\w.]+$": r"\w",
    r"^f(a)\1": r"\1",
    r"^fa\Z": r"\Z",
    r"^f\x61": r"\x",
    r"^fa+?": r"+?",
    r"^fa{1,2}?": r"{1,2}?",
    r"^fa*+": r"*+",
    r"^fa{,2}": r"{,2}",
}
"""Each with what is named."""
