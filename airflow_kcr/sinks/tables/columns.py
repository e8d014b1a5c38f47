"""The columns of a batch, as a table takes them: under its names, in its types.

A value is only ever given a wider type; what doesn't fit is refused while the batch runs, before a file is written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airflow_kcr.errors import SinkError
from airflow_kcr.spark.causes import OWN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_WIDER: Final = {
    "smallint": {"tinyint"},
    "int": {"tinyint", "smallint"},
    "bigint": {"tinyint", "smallint", "int"},
    "double": {"float"},
}
"""Which types a type holds all values of."""

_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")
_EMPTY: Final = {
    "boolean": "false",
    "string": "''",
    "binary": "X''",
    "date": "DATE'1970-01-01'",
    "timestamp": "TIMESTAMP'1970-01-01 00:00:00Z'",
    "timestamp_ntz": "TIMESTAMP_NTZ'1970-01-01 00:00:00'",
}
"""A value of each type that is no number, as SQL writes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumn:
    """One column of a table."""

    type: str | None
    """Spark's, as its `simpleString` has it; None: Spark has none for its values."""

    shown: str = ""
    """The type as the table's format calls it, where Spark has none."""

    required: bool = False
    """Whether it may not be NULL."""


def fitted(rows: DataFrame, known: Mapping[str, TableColumn], where: str) -> DataFrame:
    """Return rows with the types of a table's columns.

    Args:
        rows: of a batch, with the sink's own columns.
        known: the table's columns by name.
        where: the sink and the table, for messages.

    Raises:
        SinkError: the table lacks a column of theirs, or has it in a type that does not hold all of its values; or they
            lack one that may not be NULL.
    """
    given = {found.name: found.dataType.simpleString() for found in rows.schema.fields}
    unknown = [name for name in given if name not in known]
    if unknown:
        raise SinkError(
            f"{where} has no column {', '.join(unknown)}; add it to the table, or leave it out in the pipeline"
        )
    absent = [name for name, found in known.items() if found.required and name not in given]
    if absent:
        raise SinkError(f"{where} requires column {', '.join(absent)}, which the pipeline does not write; write it")
    return rows.select(*(_value(name, known[name], given[name], where) for name in given))


def _value(name: str, column: TableColumn, given: str, where: str) -> Column:
    from pyspark.sql import functions

    there = column.type
    if there is None:
        raise SinkError(
            f"{where} has column {name} as {column.shown}, which Spark can't write; leave it out in the pipeline"
        )
    if not _holds(there, given):
        raise SinkError(
            f"{where} has column {name} as {there}, and the pipeline writes {given}; cast it in the pipeline"
        )
    found = functions.col(f"`{name.replace('`', '``')}`").cast(there)
    return (_required(found, there, name, where) if column.required else found).alias(name)


def _required(value: Column, kind: str, name: str, where: str) -> Column:
    """Return a value that is not NULL by its type, as files of a required column have it; NULL fails the batch."""
    from pyspark.sql import functions

    empty = _EMPTY.get(kind) or f"CAST(0 AS {kind})"
    if kind.startswith(("struct", "array", "map")):
        raise SinkError(
            f"{where} requires column {name}, a {kind.partition('<')[0]}, of which Spark can't promise that it is "
            "there; make it optional in the table"
        )
    missing = functions.raise_error(functions.lit(f"{OWN}{where} requires column {name}, which is NULL in a row"))
    return functions.coalesce(value, missing.cast(kind), functions.expr(empty))


def _holds(there: str, given: str) -> bool:
    if there == given or given in _WIDER.get(there, ()):
        return True
    wide, narrow = _DECIMAL.fullmatch(there), _DECIMAL.fullmatch(given)
    return bool(wide and narrow and wide[2] == narrow[2] and int(wide[1]) >= int(narrow[1]))
