"""The partitions of an Iceberg table: each file has rows of one, which PyIceberg reads from the file's own bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.sinks.tables.partitions import LONG, one_value, write_apart

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionField
    from pyiceberg.table import Table
    from pyspark.sql import Column, DataFrame

_DAY: Final = 86_400_000_000
_HOUR: Final = 3_600_000_000


def require_writable(table: Table, where: str) -> None:
    """Refuse a table whose files can't be told from each other, and a partitioning that the bounds of a file don't say.

    Args:
        table: as it is now.
        where: the sink and the table, for messages.

    Raises:
        ConfigurationError: it is of format version 1, or has a field of such a transform.
    """
    from pyiceberg.transforms import BucketTransform, UnknownTransform

    if table.format_version < 2:
        raise ConfigurationError(
            f"{where} is of format version 1, in which nothing says when a file was added; upgrade it: "
            "ALTER TABLE … SET TBLPROPERTIES ('format-version' = '2')"
        )
    odd = [one for one in table.spec().fields if isinstance(one.transform, BucketTransform | UnknownTransform)]
    if odd:
        raise ConfigurationError(
            f"{where} is partitioned by {odd[0].transform} of {table.schema().find_column_name(odd[0].source_id)}, "
            "which the bounds of a file don't tell; partition it by identity, truncate, year, month, day or hour"
        )


def write(rows: DataFrame, uri: str, table: Table) -> None:
    """Write rows into a new folder, with a folder in it for each partition of the table.

    Args:
        rows: as the table has them.
        uri: of the folder.
        table: as it is now.
    """
    kinds = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
    sources = [(field, table.schema().find_column_name(field.source_id)) for field in table.spec().fields]
    values = [_grouped(field, source, kinds.get(source, "")) for field, source in sources if source is not None]
    write_apart(rows, uri, [value for value in values if value is not None])


def _grouped(field: PartitionField, source: str, kind: str) -> Column | None:
    """Return what differs between rows of different partitions; None: nothing does."""
    from pyiceberg.transforms import (
        DayTransform,
        HourTransform,
        IdentityTransform,
        MonthTransform,
        TruncateTransform,
        YearTransform,
    )
    from pyspark.sql import functions

    column = functions.col(source)
    match field.transform:
        case IdentityTransform():
            return one_value(column, kind)
        case TruncateTransform() if kind in LONG:
            return one_value(functions.substring(column, 1, field.transform.width), kind)
        case TruncateTransform():
            return column - functions.pmod(column, functions.lit(field.transform.width))
        case HourTransform():
            return _hour(column, kind)
        case DayTransform():
            return _day(column, kind)
        case MonthTransform():
            return functions.date_format(_day(column, kind), "yyyy-MM")
        case YearTransform():
            return functions.year(_day(column, kind))
        case _:
            return None


def _hour(column: Column, kind: str) -> Column:
    from pyspark.sql import functions

    if kind == "timestamp_ntz":
        return functions.concat_ws("-", column.cast("date"), functions.hour(column))
    micros = functions.unix_micros(column)
    return micros - functions.pmod(micros, functions.lit(_HOUR))


def _day(column: Column, kind: str) -> Column:
    """Return the day of UTC, whatever zone the session is in; of a local time its own."""
    from pyspark.sql import functions

    if kind in ("date", "timestamp_ntz"):
        return column.cast("date")
    micros = functions.unix_micros(column)
    days = (micros - functions.pmod(micros, functions.lit(_DAY))) / functions.lit(_DAY)
    return functions.date_from_unix_date(days.cast("int"))
