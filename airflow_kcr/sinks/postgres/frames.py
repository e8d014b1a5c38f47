"""Spark's side of a Postgres sink: a DataFrame as its staging table takes it, and the driver that writes it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from psycopg import sql

from airflow_kcr.errors import ConfigurationError, SinkError
from airflow_kcr.ports import BatchCall
from airflow_kcr.protocol.values import Range, TopicPartition
from airflow_kcr.sinks.contract import require_coordinates
from airflow_kcr.sinks.postgres.addresses import jdbc
from airflow_kcr.sinks.postgres.database import Database
from airflow_kcr.sinks.postgres.staging import Staging, rows_once
from airflow_kcr.sinks.postgres.target import COORDINATES as COORDINATE_NAMES
from airflow_kcr.sinks.postgres.target import OWN_COLUMNS, SOURCE, TargetTable, quoted
from airflow_kcr.sinks.postgres.texts import as_text
from airflow_kcr.spark import jvm
from airflow_kcr.spark.context import COORDINATES
from airflow_kcr.spark.session import POSTGRES_DRIVER

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

DRIVER_CLASS: Final = "org.postgresql.Driver"
_TYPES: Final[Mapping[str, str]] = {
    "boolean": "boolean",
    "tinyint": "smallint",
    "smallint": "smallint",
    "int": "integer",
    "bigint": "bigint",
    "float": "real",
    "double": "double precision",
    "string": "text",
    "binary": "bytea",
    "date": "date",
    "timestamp": "timestamp with time zone",
    "timestamp_ntz": "timestamp without time zone",
}
"""Columns of a table that the sink makes, by Spark's names of types."""

_DECIMAL: Final = "decimal"
_ARRAY: Final = "array"

_WRITER: Final[Mapping[str, str]] = {
    "batchsize": "5000",
    "reWriteBatchedInserts": "true",
    # Texts go as they are, so that the server may take them for json, uuid or an enumeration.
    "stringtype": "unspecified",
}
_CONNECTION: Final[Mapping[str, str]] = {
    "driver": DRIVER_CLASS,
    "tcpKeepAlive": "true",
    # Else its errors, which Spark logs, quote whole rows.
    "logServerErrorDetail": "false",
}


def columns_of(rows: DataFrame) -> dict[str, str]:
    """Return what a DataFrame writes beside the coordinates, with the types of a table that is made for it.

    Raises:
        SinkError: a coordinate is missing, a name is there twice, or a type is none of a table's.
    """
    names, shown = rows.columns, rows.schema.simpleString()
    types = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
    require_coordinates(names, shown)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SinkError(f"column {', '.join(twice)} is there twice (schema: {shown})")
    return {name: sql_type(name, types[name]) for name in names if name not in COORDINATES}


def sql_type(column: str, kind: str) -> str:
    """Return the type of a column in a table that is made for it.

    Args:
        column: its name, for the message.
        kind: what Spark calls its type.

    Raises:
        SinkError: a table has no such type.
    """
    of_each = kind.removeprefix(f"{_ARRAY}<").removesuffix(">")
    array = "[]" if of_each != kind else ""
    if of_each in _TYPES:
        return f"{_TYPES[of_each]}{array}"
    name, _, rest = of_each.partition("(")
    if name == _DECIMAL:
        return f"numeric({rest}{array}"
    raise SinkError(f"column {column} is of type {kind}, which no column of a table is; use to_json, or leave it out")


def staged_columns(rows: DataFrame, names: Iterable[str]) -> DataFrame:
    """Return the rows as a staging table takes them: columns, coordinates, and the row's number."""
    from pyspark.sql import functions

    kinds = {field.name: field.dataType.simpleString() for field in rows.schema.fields}

    def column(name: str) -> Column:
        return functions.col(f"`{name.replace('`', '``')}`")

    return rows.select(
        *(as_text(name, column(name), kinds[name]).alias(name) for name in names),
        *(functions.col(name).alias(f"kcr_{name}") for name in COORDINATES),
        functions.monotonically_increasing_id().alias("kcr_row"),
    )


def jdbc_options(database: Database, staging: Staging) -> dict[str, str]:
    """Return the options of Spark's JDBC writer for a staging table; the password is among them, as Spark hides it.

    Raises:
        ConfigurationError: executors can't reach the database.
    """
    return {**_WRITER, **_connected(database), "dbtable": staging.shown}


def _connected(database: Database) -> dict[str, str]:
    """Return the options of each connection of executors."""
    options = {**_CONNECTION, **reached(database), "ApplicationName": f"kcr {database.who}"}
    if database.is_pooled:
        # A server process may know a statement of that name that another client has prepared.
        options["prepareThreshold"] = "0"
    return options


def reached(database: Database) -> dict[str, str]:
    """Return the driver's options by which executors reach a database, the password among them.

    Raises:
        ConfigurationError: it is named by a socket of this machine, or by words that JDBC has nothing for.
    """
    try:
        return jdbc(database.parameters)
    except ConfigurationError as wrong:
        raise ConfigurationError(f"{database.who}: {wrong}") from None


def require_driver(spark: SparkSession) -> None:
    """Refuse a session that can't write to Postgres.

    Raises:
        ConfigurationError: the driver is not on the class path.
    """
    if not jvm.has_class(spark.sparkContext, DRIVER_CLASS):
        raise ConfigurationError(
            f"the driver of Postgres is not on the class path of {spark.sparkContext.appName!r}; add\n"
            f"  --packages {POSTGRES_DRIVER}\n"
            "to spark-submit, or --jars with its jar"
        )


_READ_AS_THEY_ARE: Final = frozenset(
    {*_TYPES.values(), "character varying", "character", "numeric"} - {"bytea", "real", "double precision"}
)
"""Types of columns whose values Spark has as Postgres has them; of others their texts are read."""


def read(spark: SparkSession, database: Database, query: str) -> DataFrame:
    """Return what a query finds, read by an executor.

    Raises:
        ConfigurationError: executors can't reach the database.
    """
    options = {**_connected(database), "fetchsize": "5000", "query": query}
    return spark.read.format("jdbc").options(**options).load()


def made_of(table: TargetTable, ranges: Iterable[tuple[TopicPartition, Range]]) -> str:
    """Return the query for the rows of a target that its sink has made of records.

    Args:
        table: the target.
        ranges: of the records; offsets [from, to).
    """
    types = {name: its.type for name, its in table.read_columns().items()}
    records = ", ".join(
        f"({sql.Literal(place.topic).as_string()}, {place.partition}, {its.from_}::bigint, {its.to}::bigint)"
        for place, its in ranges
    )
    if SOURCE not in types or not records:
        return _none(table)
    selected = _selected({name: kind for name, kind in types.items() if name not in OWN_COLUMNS})
    return table.text("rows_of_records", {"selected": selected, "records": records, "number": str(table.source)})


def staged_rows(table: TargetTable, held: Collection[tuple[BatchCall, Staging]]) -> str:
    """Return the query for what batches have staged, each row once, of the types that the target has them in.

    Raises:
        SinkError: the attempts of a task have rows of different records.
    """
    written = {name for _, staged in held for name in staged.columns}
    types = {name: its.type for name, its in table.read_columns().items() if name in written}
    parts = [
        table.text("rows_staged", {"selected": _selected(types, staged), "rows": rows_once(table, staged, call.batch)})
        for call, staged in held
    ]
    return " UNION ALL ".join(f"({part})" for part in parts) or _none(table)


def _selected(columns: Mapping[str, str], staged: Staging | None = None) -> str:
    """Return columns as a query for Spark has them.

    Args:
        columns: by name, with the types that the target has them in.
        staged: the staging table, which may lack some of them; None: it is the target.
    """

    def value(name: str, kind: str) -> str:
        is_there = staged is None or name in staged.columns
        read = f"(s.{quoted(name)})::{kind}" if is_there else f"NULL::{kind}"
        return read if kind.partition("(")[0].rstrip() in _READ_AS_THEY_ARE else f"({read})::text"

    named = (f"{value(name, kind)} AS {quoted(name)}" for name, kind in columns.items())
    return ", ".join((*named, *(f"s.{name}" for name in COORDINATE_NAMES)))


def _none(table: TargetTable) -> str:
    """Return a query that finds no row, with the columns that the target has."""
    columns = {name: its.type for name, its in table.read_columns().items() if name not in OWN_COLUMNS}
    if not columns:
        return table.text("coordinates_of_none")
    return table.text("rows_of_none", {"selected": _selected(columns)})
