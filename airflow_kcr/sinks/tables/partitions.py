"""Files of which each has rows of one partition, which the file's own bounds then tell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from airflow_kcr.sinks.files.tables import write_parquet

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_PREFIX: Final = "kcr_partitioned_by_"
"""Before the number of a field of the partitioning: a column of the folders' names alone."""

_MICROS: Final = "spark.sql.parquet.outputTimestampType"
"""By default Spark writes instants in a form of its own, INT96, which has no bounds and is no type of a table."""

LONG: Final = frozenset({"string", "binary"})
"""Types whose values make no name of a folder: it has their hash."""


def one_value(column: Column, kind: str) -> Column:
    """Return what differs between rows of different values, short enough for the name of a folder.

    Args:
        column: with the values.
        kind: its type, as Spark's `simpleString` has it.
    """
    from pyspark.sql import functions

    return functions.sha1(column.cast("binary")) if kind in LONG else column


def write_apart(rows: DataFrame, uri: str, values: Sequence[Column]) -> None:
    """Write rows into a new folder, with a folder in it for each combination of values.

    Args:
        rows: as the table has them.
        uri: of the folder.
        values: what differs between rows of different partitions.
    """
    rows.sparkSession.conf.set(_MICROS, "TIMESTAMP_MICROS")
    split = {f"{_PREFIX}{place}": value for place, value in enumerate(values)}
    write_parquet(rows.withColumns(split), uri, tuple(split))
