"""The store's statements: SQL under names in `store/sql`, one file a subject, each made ready for the driver once.

Past SQLAlchemy, on purpose and here alone: for each call its Core takes 333 µs of a processor to bind the parameters of
a text that is always the same and to inspect its columns, psycopg's own names take 94 µs, and numbered parameters
62 µs, of the statement that a batch starts with. SQLAlchemy keeps what it is good at: engine, pool, Alembic.

A file has `-- name: …`, lines of comment that say what the statement answers, and the statement; `-- part: …` is what
several statements of the file have in common, in `parts.sql` what those of several subjects have. Parameters are
written `:name`; parts, and what is made from the columns of a row class, `{name}`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, Final

_FOLDER: Final = Path(__file__).parent.parent / "sql"

_PARAMETER: Final = re.compile(r"(?<![:\w]):([a-z]\w*)")
_HEADER: Final = re.compile(r"^-- (name|part): (\w+)$", re.MULTILINE)
_COMMENT: Final = re.compile(r"^\s*--.*\n", re.MULTILINE)


class Statement:
    """One statement, its parameters numbered in the order in which they first come.

    Args:
        sql: with its parameters as `:name`.
    """

    __slots__ = ("names", "numbered", "sql")

    def __init__(self, sql: str) -> None:
        numbers: dict[str, int] = {}
        self.sql = sql
        self.numbered = _PARAMETER.sub(lambda found: f"${numbers.setdefault(found[1], len(numbers) + 1)}", sql).encode()
        self.names = tuple(numbers)

    def bound(self, parameters: Mapping[str, Any]) -> list[object]:
        """Return the values of its parameters, of those that are given by name."""
        given = [parameters[name] for name in self.names]
        return [array(value) if isinstance(value, list) else value for value in given]


@cache
def load(subject: str, folder: Path = _FOLDER, **parts: object) -> dict[str, Statement]:
    """Return the statements of a subject by name.

    Args:
        subject: the name of its file.
        folder: where it is, with what several subjects have in common in `parts.sql`.
        parts: what its statements have as `{name}`; each of them is such a part of those that follow it.
    """
    files = [file for name in ("parts", subject) if (file := folder / f"{name}.sql").exists()]
    _, *found = _HEADER.split("".join(file.read_text("utf-8") for file in files))
    known: dict[str, object] = {**parts}
    made: dict[str, Statement] = {}
    for kind, name, text in zip(found[::3], found[1::3], found[2::3], strict=True):
        sql = _COMMENT.sub("", text).strip().format_map(known)
        known.setdefault(name, sql)
        if kind == "name":
            made[name] = Statement(sql)
    return made


@cache
def by_name(statement: Statement) -> Statement:
    """Return a statement about the region of a `:name` in place of that of an id; without a region, it has no row."""
    sql = re.sub(r":region\b", "here.id", statement.sql)
    return Statement(f"SELECT it.* FROM kcr.region here CROSS JOIN LATERAL ({sql}) it WHERE here.name = :name")


def array(values: list[Any]) -> object:
    """Return a list as the text of an array, where that is simple; else as it is.

    Ten columns of ten thousand values each are written at once, and the driver inspects every one of them.
    """
    kinds = set(map(type, values))
    if kinds == {int}:
        return "{" + ",".join(map(str, values)) + "}"
    kinds.discard(NoneType)
    if kinds <= {int}:
        return "{" + ",".join(["NULL" if value is None else str(value) for value in values]) + "}"
    if kinds == {str}:
        # Thousands of values are of few topics and groups: each is quoted once, and nothing is kept afterwards.
        quoted = {value: "NULL" if value is None else _quoted(value) for value in set(values)}
        return "{" + ",".join([quoted[value] for value in values]) + "}"
    return values


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
