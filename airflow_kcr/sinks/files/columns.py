"""Which type each column of a sink has: one for all that is written, so that what is published can be read together.

A column is noted in the sink's folder with the first batch that has it, under its own name: of two batches at once, the
second finds what the first has noted. A field of a nested struct is a column of its own, `address.street`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from airflow_kcr.errors import SinkError
from airflow_kcr.sinks.files import layout
from airflow_kcr.sinks.files.folder import Folder
from airflow_kcr.sinks.files.layout import ColumnType

Types = Mapping[str, str]
"""The type of each column, as Spark writes it in JSON, by the column's path in lower case: Spark ignores case."""


def types_in(schema: str) -> Types:
    """Return the columns of a schema; whether one may be NULL is no part of its type.

    Args:
        schema: as Spark writes it in JSON.
    """
    return dict(_columns("", json.loads(schema)))


def _columns(path: str, struct: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for column in struct["fields"]:
        name, kind = f"{path}{column['name'].lower()}", column["type"]
        if isinstance(kind, dict) and kind["type"] == "struct":
            yield name, "struct"
            yield from _columns(f"{name}.", kind)
        else:
            bare = _bare(kind)
            yield name, bare if isinstance(bare, str) else json.dumps(bare, sort_keys=True)


def _bare(kind: Any) -> Any:  # noqa: ANN401 (JSON)
    """Return a type without what may differ between batches: whether something may be NULL, and comments."""
    if isinstance(kind, list):
        return [_bare(one) for one in kind]
    if isinstance(kind, dict):
        dropped = {"nullable", "containsNull", "valueContainsNull", "metadata"}
        return {name: _bare(value) for name, value in kind.items() if name not in dropped}
    return kind


def require_one_type(what: str, schemas: Iterable[str]) -> None:
    """Refuse schemas in which a column has two types.

    Args:
        what: for the message: whose schemas they are.
        schemas: as Spark writes them in JSON.

    Raises:
        SinkError: one has; nothing was changed.
    """
    known: dict[str, str] = {}
    for schema in schemas:
        for column, kind in types_in(schema).items():
            if known.setdefault(column, kind) != kind:
                raise SinkError(
                    f"{what} has column {column} as {known[column]} and as {kind}, which can't be read as one"
                )


class Columns:
    """The columns of one sink, as its folder has them.

    Args:
        folder: the sink's.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._known: dict[str, str] = {}

    def require_one(self, what: str, schemas: Iterable[str]) -> None:
        """Refuse to show files together that could not be read together; see `require_one_type`."""
        require_one_type(what, schemas)

    def require_fit(self, schema: str) -> None:
        """Refuse rows that can't stand beside what was written before.

        Raises:
            SinkError: a column has another type.
        """
        self._read(types_in(schema))

    def note(self, schema: str) -> None:
        """Note the types of a batch's columns.

        Raises:
            SinkError: another batch has noted another type, or the folder is away.
        """
        types = types_in(schema)
        for column in self._read(types):
            self._folder.noted(layout.column(column), ColumnType(column=column, type=types[column]))
        self._read(types)

    def _read(self, types: Types) -> list[str]:
        """Compare types with those that are noted, and return the columns that are not."""
        unknown = sorted(types.keys() - self._known.keys())
        for noted in map(ColumnType.of, self._folder.read_all(map(layout.column, unknown))):
            if noted is not None:
                self._known[noted.column] = noted.type
        for column, kind in types.items():
            known = self._known.get(column, kind)
            if known != kind:
                raise SinkError(
                    f"column {column} is {kind}, and {self._folder.uri} has it as {known}: both could not be read as "
                    "one column; write it as before, under another name, or into another folder"
                )
        return [column for column in unknown if column not in self._known]


class ColumnsOfTable(Columns):
    """The columns of a sink whose table says which type each has: a table may give a column a wider one, or drop it."""

    def require_one(self, what: str, schemas: Iterable[str]) -> None:
        """Refuse nothing: who reads the table reads each file by the table's types."""

    def require_fit(self, schema: str) -> None:
        """Refuse nothing: the table does."""

    def note(self, schema: str) -> None:
        """Note nothing: the table has it."""
