"""Files beside the columns of a table, which others may have changed since the files were written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, ListType, LongType, MapType, NestedField, StringType, StructType, UUIDType
from pyspark.sql import types

from airflow_kcr.errors import SinkError
from airflow_kcr.sinks.iceberg.columns import columns_of
from airflow_kcr.sinks.tables.columns import TableColumn, require_taken


def struct(**fields: Any) -> dict[str, Any]:  # noqa: ANN401 (JSON)
    """A struct as Spark's JSON has it."""
    made = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in fields.items()]
    return {"type": "struct", "fields": made}


def array(of: Any) -> dict[str, Any]:  # noqa: ANN401 (JSON)
    return {"type": "array", "elementType": of, "containsNull": True}


def mapping(key: Any, value: Any) -> dict[str, Any]:  # noqa: ANN401 (JSON)
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}


def taken(there: object, given: object) -> None:
    """Have a table whose column is of one type take a file in which it is of another one."""
    known = types.StructType.fromJson(struct(a=there))["a"].dataType
    require_taken([json.dumps(struct(a=given))], {"a": TableColumn(type=known)}, "the table")


@pytest.mark.parametrize(
    ("there", "given"),
    [
        (struct(x="long", new="string"), struct(x="integer")),
        (array(struct(x="long", y="string")), array(struct(x="long"))),
        (mapping("string", array("double")), mapping("string", array("float"))),
        ("decimal(12,2)", "decimal(10,2)"),
    ],
)
def test_a_nested_column_that_has_more_or_wider_fields_since_takes_files(there: object, given: object) -> None:
    taken(there, given)


@pytest.mark.parametrize(
    ("there", "given", "said"),
    [
        (struct(y="long"), struct(x="long"), r"has column a as struct<y:bigint>, not struct<x:bigint>"),
        (
            array(struct(x="string")),
            array(struct(x="long")),
            r"as array<struct<x:string>>, not array<struct<x:bigint>>",
        ),
        (mapping("long", "long"), mapping("string", "long"), r"as map<bigint,bigint>, not map<string,bigint>"),
        (mapping("string", "integer"), mapping("string", "long"), r"as map<string,int>, not map<string,bigint>"),
        (array("long"), struct(x="long"), r"as array<bigint>, not struct<x:bigint>"),
    ],
)
def test_a_field_that_was_renamed_dropped_or_retyped_inside_a_column_is_refused(
    there: object, given: object, said: str
) -> None:
    with pytest.raises(SinkError, match=rf"{said}, since files were written"):
        taken(there, given)


def test_the_types_of_iceberg_are_those_of_spark() -> None:
    nested = StructType(
        NestedField(2, "x", LongType()), NestedField(3, "l", ListType(element_id=4, element_type=DoubleType()))
    )
    of_map = MapType(key_id=6, key_type=StringType(), value_id=7, value_type=nested)
    found = columns_of(Schema(NestedField(1, "m", of_map), NestedField(8, "u", UUIDType(), required=True)))
    assert found["m"].type is not None
    assert found["m"].type.simpleString() == "map<string,struct<x:bigint,l:array<double>>>"
    assert found["u"] == TableColumn(type=None, shown="uuid", required=True)
