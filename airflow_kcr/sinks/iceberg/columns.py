"""The columns of an Iceberg table, with Spark's types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_kcr.sinks.tables.columns import TableColumn

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType, NestedField

_PLAIN: Final = {
    "boolean": "boolean",
    "int": "integer",
    "long": "long",
    "float": "float",
    "double": "double",
    "date": "date",
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp",
    "string": "string",
    "binary": "binary",
}
"""Types of Iceberg with those of Spark, as its JSON has them; others can't be written."""


def columns_of(schema: Schema) -> dict[str, TableColumn]:
    """Return the columns of a table by name."""
    return {found.name: _column(found) for found in schema.fields}


def _column(found: NestedField) -> TableColumn:
    from pyspark.sql.types import StructType

    kind = _json(found.field_type)
    spark = None if kind is None else StructType.fromJson({"fields": [_field("it", kind)]})["it"].dataType
    return TableColumn(type=spark, shown=str(found.field_type), required=found.required)


def _field(name: str, kind: object) -> dict[str, object]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def _json(kind: IcebergType) -> Any:  # noqa: ANN401 (JSON)
    """Return the type of Spark with a type's values, as its JSON has it; None: there is none."""
    from pyiceberg.types import DecimalType, ListType, MapType, StructType

    match kind:
        case DecimalType():
            return f"decimal({kind.precision},{kind.scale})"
        case ListType():
            inner = _json(kind.element_type)
            return None if inner is None else {"type": "array", "elementType": inner, "containsNull": True}
        case MapType():
            both = _json(kind.key_type), _json(kind.value_type)
            made = {"type": "map", "keyType": both[0], "valueType": both[1], "valueContainsNull": True}
            return None if None in both else made
        case StructType():
            types = {found.name: _json(found.field_type) for found in kind.fields}
            fields = [_field(name, of) for name, of in types.items()]
            return None if None in types.values() else {"type": "struct", "fields": fields}
        case _:
            return _PLAIN.get(str(kind))
