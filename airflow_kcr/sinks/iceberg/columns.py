"""The columns of an Iceberg table, with Spark's types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_kcr.sinks.tables.columns import TableColumn

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType

_PLAIN: Final = {
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "date": "date",
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp",
    "string": "string",
    "binary": "binary",
}
"""Types of Iceberg with those of Spark; others can't be written."""


def columns_of(schema: Schema) -> dict[str, TableColumn]:
    """Return the columns of a table by name."""
    return {
        found.name: TableColumn(
            type=_spark_type(found.field_type), shown=str(found.field_type), required=found.required
        )
        for found in schema.fields
    }


def _spark_type(kind: IcebergType) -> str | None:
    """Return the type of Spark with a type's values, as its `simpleString` has it; None: there is none."""
    from pyiceberg.types import DecimalType, ListType, MapType, StructType

    match kind:
        case DecimalType():
            return f"decimal({kind.precision},{kind.scale})"
        case ListType():
            inner = _spark_type(kind.element_type)
            return None if inner is None else f"array<{inner}>"
        case MapType():
            both = _spark_type(kind.key_type), _spark_type(kind.value_type)
            return None if None in both else f"map<{both[0]},{both[1]}>"
        case StructType():
            types = {found.name: _spark_type(found.field_type) for found in kind.fields}
            named = ",".join(f"{name}:{of}" for name, of in types.items())
            return None if None in types.values() else f"struct<{named}>"
        case _:
            return _PLAIN.get(str(kind))
