"""What a Delta table asks of its writers, and which of it a commit of files that Spark has written does not do."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.sinks.tables.columns import TableColumn

if TYPE_CHECKING:
    from deltalake import DeltaTable

_FEATURES: Final = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "generatedColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
"""Features that a table may have. What some of them are used for is refused below; delta-rs knows no others."""

_NEWEST: Final = 5
"""The newest writer version before features had names that asks for nothing else."""

_OF_COLUMNS: Final = {
    "delta.generationExpression": "a generated column",
    "delta.identity.start": "an identity column",
    "delta.invariants": "an invariant",
}
_OF_TABLES: Final = {
    "delta.appendOnly": ("true", "append-only, so that no reset could take rows out"),
    "delta.columnMapping.mode": ("", "with column mapping, whose files have other names of columns"),
    "delta.enableRowTracking": ("true", "with row tracking, whose ids the sink does not give"),
}
"""Properties: with which value a table is refused (none: with any but `none`), and what it is then."""

_NO_PARTITIONS: Final = ("binary", "array", "map", "struct", "variant")


def require_writable(table: DeltaTable, where: str) -> None:
    """Refuse a table that a commit of the sink would damage.

    Args:
        table: as it is now.
        where: the sink and the table, for messages.

    Raises:
        ConfigurationError: it is such a table; the message names the feature.
    """
    wrong = next(_wrong(table), None)
    if wrong is not None:
        raise ConfigurationError(f"{where} {wrong}")


def _wrong(table: DeltaTable) -> Iterator[str]:
    protocol, metadata = table.protocol(), table.metadata()
    unknown = sorted(set(protocol.writer_features or ()) - _FEATURES)
    if unknown:
        yield f"has the feature {', '.join(unknown)}, which the sink can't write with; name a table without it"
    if protocol.writer_features is None and protocol.min_writer_version > _NEWEST:
        yield f"asks for writer version {protocol.min_writer_version}; up to {_NEWEST} can be written"
    for name, (value, what) in _OF_TABLES.items():
        found = metadata.configuration.get(name, "none").lower()
        if found == value or (not value and found != "none"):
            yield f"is {what} ({name}); name a table without it"
    checks = [name for name in metadata.configuration if name.startswith("delta.constraints.")]
    if checks:
        yield f"has a CHECK constraint ({checks[0]}), which the sink does not check; drop it, or check in the pipeline"
    for column in json.loads(table.schema().to_json())["fields"]:
        yield from _wrong_with(column, is_partition=column["name"] in metadata.partition_columns)


def _wrong_with(column: Mapping[str, Any], *, is_partition: bool) -> Iterator[str]:
    name, kind = column["name"], column["type"]
    for property_, what in _OF_COLUMNS.items():
        if property_ in column["metadata"]:
            yield f"has {what} ({name}), whose values the sink does not make; name a table without it"
    kind = kind if isinstance(kind, str) else kind["type"]
    if is_partition and kind in _NO_PARTITIONS:
        yield f"is partitioned by {name}, a {kind}; partition it by a text, number, day or instant"


def columns_of(table: DeltaTable) -> dict[str, TableColumn]:
    """Return the columns of a table by name, with Spark's types: the ones that Delta has."""
    from pyspark.sql.types import StructType

    fields = StructType.fromJson(json.loads(table.schema().to_json())).fields
    return {f.name: TableColumn(type=f.dataType, required=not f.nullable) for f in fields}
