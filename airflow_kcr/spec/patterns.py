"""Patterns of topics, which three programs read: this one, the Kafka client and, in the consumer protocol, the broker.

Each has its own regular expressions (Python's, POSIX extended, RE2/J). Only what all three read alike may be written:
a region whose rules expect a topic that its members don't subscribe to would wait for an owner of it for ever.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_TOKEN: Final = re.compile(
    r"""
    (?P<escape>\\.?)
  | (?P<brackets>\[\^?\]?(?:\\.|[^\]\\])*\]?)
  | (?P<extension>\(\?[^)\w]*\w?)
  | (?P<quantifier>(?:[*+?]|\{[^}]*\})[*+?]*)
  | .
    """,
    re.VERBOSE | re.DOTALL,
)
_READ_ALIKE: Final = re.compile(r"\\[][\\^$.|?*+(){}wWbB-]")
_QUANTIFIERS: Final = re.compile(r"[*?]\??|\+|\{\d+(?:,\d*)?\}")
"""A lazy `*?` or `??` matches the same names; a lazy `+?` may match nothing to the client."""

_IN_BRACKETS: Final = re.compile(r"\\[^.]|\[[:.=]")


def unlike(pattern: str) -> Iterator[str]:
    """Yield what the client or the broker reads otherwise than the region does, each with what to write instead."""
    for token in _TOKEN.finditer(pattern):
        text = token.group()
        match token.lastgroup:
            case "escape" if not _READ_ALIKE.fullmatch(text):
                yield f"{text!r} isn't known to the Kafka client; write the characters, such as [0-9]"
            case "brackets" if found := _IN_BRACKETS.search(text, 1):
                yield (
                    f"{found.group()!r} in {text!r} means other characters to the Kafka client; write the characters "
                    "themselves, '-' as the last one"
                )
            case "extension":
                yield f"{text!r} isn't known to the Kafka client; write a plain group, or [Aa] for either case"
            case "quantifier" if not _QUANTIFIERS.fullmatch(text):
                yield f"{text!r} repeats otherwise in the Kafka client; write one of *, +, ?, {{n}}, {{n,}} or {{n,m}}"
