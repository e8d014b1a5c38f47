"""What people read has words in it, and no value as Python writes it: no tuple, enum, dataclass or None."""

from __future__ import annotations

import re
from typing import Final

_PYTHON: Final = re.compile(
    r"""[(\[{]['"]\w+[^"]*'[,)\]}:]         # a tuple, list or dict of texts
    | ,\)                                   # a tuple of one
    | \bNone\b | \bTrue\b | \bFalse\b
    | <\w[\w.]*(:|\ object\ at)\ ?['"0]      # an enum, an object
    | \b[a-z_]+=(None|'|\w+\()              # a dataclass
    | \b(datetime\.datetime|timedelta|frozenset|mappingproxy|OffsetMap|GroupPartition|MemberId)\(
    | \b[A-Z]\w+(State|Cause|Purpose|Kind|Phase)\.[A-Z]""",
    re.VERBOSE,
)


def values_in(text: str) -> list[str]:
    """Return the lines of a text that have a value in them as Python writes it."""
    return [line for line in text.splitlines() if _PYTHON.search(line)]
