"""The columns of a batch, as a table takes them: under its names, in its types.

A value is only ever given a wider type. What no batch can fill is refused before anything is consumed; what a pipeline
writes is known once it is called, so what doesn't fit of that is refused before a record of the batch is read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airflow_kcr.errors import ConfigurationError, SinkError
from airflow_kcr.sinks.tables.labels import COLUMNS
from airflow_kcr.spark.causes import OWN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructField

_WIDER: Final = {
    "smallint": {"tinyint"},
    "int": {"tinyint", "smallint"},
    "bigint": {"tinyint", "smallint", "int"},
    "double": {"float"},
}
"""Which types a type holds all values of."""

_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")
_NESTED: Final = ("struct", "array", "map")
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

    type: DataType | None
    """Spark's; None: Spark has none for its values."""

    shown: str = ""
    """The type as the table's format calls it, where Spark has none."""

    required: bool = False
    """Whether it may not be NULL."""


def require_fillable(known: Mapping[str, TableColumn], where: str) -> None:
    """Refuse a table that takes no batch, whatever its pipeline writes.

    Args:
        known: the table's columns by name.
        where: the sink and the table, for messages.

    Raises:
        ConfigurationError: it has a column of the sink's own in a type that does not hold its values, or requires one
            of which Spark can't promise that it is there.
    """
    for name, kind in COLUMNS.items():
        column = known.get(name)
        if column is not None and not _holds(_shown(column), kind):
            raise ConfigurationError(
                f"{where} has column {name} as {_shown(column)}, where the sink writes {kind}; rename it"
            )
    for name, column in known.items():
        if column.required and (column.type is None or _shown(column).startswith(_NESTED)):
            kind = _shown(column).partition("<")[0]
            raise ConfigurationError(
                f"{where} requires column {name}, of type {kind}, of which Spark can't promise that it is there; make "
                "it optional in the table"
            )


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
    given = {found.name: found.dataType for found in rows.schema.fields}
    unknown = [name for name in given if name not in known]
    if unknown:
        raise SinkError(
            f"{where} has no column {', '.join(unknown)}; add it to the table, or leave it out in the pipeline"
        )
    absent = [name for name, found in known.items() if found.required and name not in given]
    if absent:
        raise SinkError(f"{where} requires column {', '.join(absent)}, which the pipeline does not write; write it")
    return rows.select(*(_value(name, known[name], given[name], where) for name in given))


def require_taken(schemas: Iterable[str], known: Mapping[str, TableColumn], where: str) -> None:
    """Refuse files that a table no longer takes, because others have changed its columns since they were written.

    Readers would have NULL for a column that was renamed, or could not read one of another type at all.

    Args:
        schemas: of the files, as Spark writes them in JSON.
        known: the table's columns by name, as they are now.
        where: the sink and the table, for messages.

    Raises:
        SinkError: the table lacks a column of theirs, has it in a type that does not hold all of its values, or
            requires one that they may lack.
    """
    for found in map(_fields, schemas):
        for name, column in known.items():
            if column.required and (name not in found or found[name].nullable):
                raise _changed(where, f"requires column {name}", "make it optional")
        for name, field in found.items():
            if name not in known:
                raise _changed(where, f"has no column {name}", "give the column its name again, or add it again")
            there, kind = known[name].type, field.dataType
            if there is None or not _reads(there, kind):
                said = f"has column {name} as {_shown(known[name])}, not {kind.simpleString()}"
                raise _changed(where, said, "give it its type again")


def _fields(schema: str) -> dict[str, StructField]:
    from pyspark.sql.types import StructType

    return {field.name: field for field in StructType.fromJson(json.loads(schema)).fields}


def _reads(there: DataType, given: DataType) -> bool:
    """Whether a column of a type has all that is in files of another one; a struct may have more fields than they."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    match there, given:
        case StructType(), StructType():
            fields = {field.name: field.dataType for field in there.fields}
            return all(f.name in fields and _reads(fields[f.name], f.dataType) for f in given.fields)
        case ArrayType(), ArrayType():
            return _reads(there.elementType, given.elementType)
        case MapType(), MapType():
            return _reads(there.keyType, given.keyType) and _reads(there.valueType, given.valueType)
        case _:
            return _holds(there.simpleString(), given.simpleString())


def _shown(column: TableColumn) -> str:
    """Return a column's type as messages name it."""
    return column.shown if column.type is None else column.type.simpleString()


def _changed(where: str, what: str, how: str) -> SinkError:
    return SinkError(
        f"{where} {what}, since files were written that are to be published: others have changed it; {how}, "
        "until they are published, or reset the region to before them"
    )


def _value(name: str, column: TableColumn, given: DataType, where: str) -> Column:
    from pyspark.sql import functions

    if column.type is None:
        raise SinkError(
            f"{where} has column {name} as {column.shown}, which Spark can't write; leave it out in the pipeline"
        )
    there, kind = column.type.simpleString(), given.simpleString()
    if not _holds(there, kind):
        raise SinkError(
            f"{where} has column {name} as {there}, and the pipeline writes {kind}; cast it in the pipeline"
        )
    found = functions.col(f"`{name.replace('`', '``')}`").cast(column.type)
    return (_required(found, there, name, where) if column.required else found).alias(name)


def _required(value: Column, kind: str, name: str, where: str) -> Column:
    """Return a value that is not NULL by its type, as files of a required column have it; NULL fails the batch."""
    from pyspark.sql import functions

    empty = _EMPTY.get(kind) or f"CAST(0 AS {kind})"
    missing = functions.raise_error(functions.lit(f"{OWN}{where} requires column {name}, which is NULL in a row"))
    return functions.coalesce(value, missing.cast(kind), functions.expr(empty))


def _holds(there: str, given: str) -> bool:
    if there == given or given in _WIDER.get(there, ()):
        return True
    wide, narrow = _DECIMAL.fullmatch(there), _DECIMAL.fullmatch(given)
    return bool(wide and narrow and wide[2] == narrow[2] and int(wide[1]) >= int(narrow[1]))
