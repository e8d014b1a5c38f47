"""Days and times as the texts that Postgres reads, made by Spark without any zone.

Spark's JDBC writer makes Java's classes of them. Those bring in the zone of the executor's JVM, in which some local
times don't exist and others are there twice, and the Julian calendar before 1582; the driver then writes them out in
that zone. Here an instant becomes its local time in UTC by arithmetic, and a local time or a day is written as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from airflow_kcr.spark.causes import OWN

if TYPE_CHECKING:
    from pyspark.sql import Column

_ZONES: Final[Mapping[str, str]] = {"date": "", "timestamp_ntz": "", "timestamp": "Z"}
"""What follows the text of a value, by Spark's names of its type."""

_BINARY: Final = "binary"
_ARRAY: Final = "array<"
_FIRST, _LAST = -4712, 5874897
"""The years that Postgres has; 0 is 1 BC, as in Spark."""

_USUAL: Final = (-62_135_596_800_000_000, 253_402_300_799_999_999)
"""From the year 1 to 9999, in microseconds: what Spark and Postgres write in one way."""


def as_text(name: str, column: Column, kind: str) -> Column:
    """Return a column as its text, where it is of days or times or an array of them; another as it is.

    So are arrays of binaries, of which the driver can write none.

    Args:
        name: its own, for the message that refuses a value.
        column: of the DataFrame.
        kind: what Spark calls its type.
    """
    from pyspark.sql import functions as F

    if kind in _ZONES:
        return _text(name, column, kind)
    of_each = kind.removeprefix(_ARRAY).removesuffix(">")
    if of_each == kind or (of_each not in _ZONES and of_each != _BINARY):
        return column

    def quoted(one: Column) -> Column:
        text = F.concat(F.lit(r"\\x"), F.hex(one)) if of_each == _BINARY else _text(name, one, of_each)
        return F.concat(F.lit('"'), text, F.lit('"'))

    return F.concat(F.lit("{"), F.array_join(F.transform(column, quoted), ",", "NULL"), F.lit("}"))


def _text(name: str, value: Column, kind: str) -> Column:
    from pyspark.sql import functions as F

    local, usual = value, value.between(F.expr(f"{kind}'0001-01-01'"), F.expr(f"{kind}'9999-12-31'"))
    if kind == "timestamp":
        micros = F.unix_micros(value)
        # Numbers, because a literal would be read in the session's zone, and the local time computed twice.
        local, usual = (
            F.timestamp_add("MICROSECOND", micros, F.expr("timestamp_ntz'1970-01-01'")),
            micros.between(*_USUAL),
        )
    text, zone = local.cast("string"), F.lit(_ZONES[kind])
    return F.when(usual, F.concat(text, zone)).when(value.isNotNull(), _unusual(name, F.year(local), text, zone))


def _unusual(name: str, year: Column, text: Column, zone: Column) -> Column:
    from pyspark.sql import functions as F

    before_christ = F.concat(F.lpad((1 - year).cast("string"), 4, "0"), F.regexp_extract(text, r"^-?\d+(.*)$", 1))
    refused = f"{OWN}column {name} has a day or time that Postgres has not: before {1 - _FIRST} BC, or after {_LAST}"
    return (
        F.when(year.between(1, _LAST), F.concat(F.ltrim(text, F.lit("+")), zone))
        .when(year.between(_FIRST, 0), F.concat(before_christ, zone, F.lit(" BC")))
        .otherwise(F.raise_error(F.lit(refused)))
    )
