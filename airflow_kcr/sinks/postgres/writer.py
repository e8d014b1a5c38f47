"""The writing side of sinks: what a pipeline finds in `context.sinks` (docs/explanation/delivery.md).

    context.sinks["flights"].write(rows)

`write` has executors fill the staging table of this batch in parallel, through Spark's own JDBC writer, which was
measured faster than COPY from Python. The rows are published after the pipeline has returned and none of its tasks
runs any more, so a pipeline that fails after it has written leaves nothing behind.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from airflow_kcr.errors import ConfigurationError, SinkError
from airflow_kcr.ports import BatchCall
from airflow_kcr.sinks import postgres
from airflow_kcr.sinks.contract import not_written, require_coordinates, written_twice
from airflow_kcr.sinks.postgres import PostgresSink, Published, Staging
from airflow_kcr.sinks.postgres.addresses import jdbc
from airflow_kcr.sinks.postgres.texts import as_text
from airflow_kcr.sinks.postgres.transactions import Database
from airflow_kcr.spark import jvm
from airflow_kcr.spark.causes import WORDS, of_postgres
from airflow_kcr.spark.context import COORDINATES
from airflow_kcr.spark.session import POSTGRES_DRIVER

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

    from airflow_kcr.spark.jvm import JavaObject

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
    "driver": DRIVER_CLASS,
    "batchsize": "5000",
    "reWriteBatchedInserts": "true",
    # Texts go as they are, so that the server may take them for json, uuid or an enumeration.
    "stringtype": "unspecified",
    "tcpKeepAlive": "true",
    # Else its errors, which Spark logs, quote whole rows.
    "logServerErrorDetail": "false",
}

_PARAMETER: Final = re.compile(r"parameter \$(\d+)")
"""Of a statement with one or more rows, whose values are numbered through (Postgres 16)."""


class TableWriter:
    """One sink, as a pipeline has it for one batch.

    Args:
        sink: where to.
        call: the batch.
    """

    def __init__(self, sink: PostgresSink, call: BatchCall) -> None:
        self._sink, self._call = sink, call
        self._staging: Staging | None = None

    def __repr__(self) -> str:
        return f"<{self._sink.target}, batch {self._call.batch}>"

    def write(self, rows: DataFrame) -> None:
        """Write rows, each made of one record of this batch; a pipeline does so once for each of its sinks.

        Args:
            rows: with the columns `topic`, `partition` and `offset` of the batch as they are; the others are written
                under their names. One without any row is fine.

        Raises:
            SinkError: columns are missing or don't fit the table, or it was written to before.
        """
        if self._staging is not None:
            raise written_twice(self)
        columns = columns_of(rows.schema.simpleString(), rows.columns, {f.name: f.dataType for f in rows.schema.fields})
        self._staging = staging = self._sink.stage(self._call, columns)
        named = staged_columns(rows, [column.name for column in columns])
        options = jdbc_options(self._sink.database, staging)
        try:
            named.write.format("jdbc").options(**options).mode("append").save()
        except Exception as error:
            thrown = of_postgres(error)
            if thrown is None:
                raise
            WORDS.error("%s was refused", self, exc_info=error)
            raise self._refusal(thrown, named.columns) from None

    def _refusal(self, thrown: JavaObject, columns: Sequence[str]) -> SinkError:
        said = thrown.getServerErrorMessage()
        column = None if said is None else said.getColumn()
        if said is not None and column is None and (number := _PARAMETER.search(str(said.getWhere() or ""))):
            column = columns[(int(number[1]) - 1) % len(columns)]
        constraint = None if said is None else said.getConstraint()
        return self._sink.database.refusal(str(thrown.getSQLState()), column=column, constraint=constraint)

    def publish(self) -> Published:
        """Publish what was written.

        Raises:
            SinkError: nothing was written, or the sink refuses.
        """
        if self._staging is None:
            raise not_written(self)
        return self._sink.publish(self._call, self._staging)


def columns_of(shown: str, names: list[str], types: Mapping[str, DataType]) -> tuple[postgres.Column, ...]:
    """Return what a DataFrame writes beside the coordinates, with the types of a table that is made for it.

    Args:
        shown: the DataFrame's schema, for messages.
        names: its columns.
        types: of them.

    Raises:
        SinkError: a coordinate is missing, a name is there twice, or a type is none of a table's.
    """
    require_coordinates(names, shown)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SinkError(f"column {', '.join(twice)} is there twice (schema: {shown})")
    return tuple(
        postgres.Column(name=n, type=sql_type(n, types[n].simpleString())) for n in names if n not in COORDINATES
    )


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
    table = ".".join('"' + part.replace('"', '""') + '"' for part in (staging.schema, staging.table))
    options = {**_WRITER, **_reached(database), "dbtable": table, "ApplicationName": f"kcr {database.who}"}
    if database.is_pooled:
        # A server process may know a statement of that name that another client has prepared.
        options["prepareThreshold"] = "0"
    return options


def require_reachable(sinks: Iterable[PostgresSink]) -> None:
    """Refuse sinks that executors can't reach.

    Raises:
        ConfigurationError: a database is named by a socket of this machine, or by words that JDBC has nothing for.
    """
    for sink in sinks:
        _reached(sink.database)


def _reached(database: Database) -> dict[str, str]:
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
