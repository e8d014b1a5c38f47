"""Values on their way from Spark into a table of Postgres: the same there, whatever zones are in between."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession

from airflow_kcr.protocol.rules import SinkMode
from airflow_kcr.sinks.contract import SinkOfBatch
from airflow_kcr.sinks.postgres.target import OWN_COLUMNS
from tests.support.databases import execute
from tests.support.sink_tables import Table
from tests.support.tied import Postgres, start_postgres

ZONES = ["UTC", "Europe/Zurich", "America/St_Johns", "Pacific/Apia"]
"""Apia left out a whole day, 2011-12-30."""

VALUES: Mapping[str, Mapping[str, str]] = {
    "boolean": {"true": "true", "false": "false"},
    "tinyint": {"-128Y": "-128", "127Y": "127"},
    "smallint": {"-32768S": "-32768"},
    "int": {"-2147483648": "-2147483648"},
    "bigint": {"9223372036854775807L": "9223372036854775807", "-9223372036854775808L": "-9223372036854775808"},
    "float": {"1.1F": "1.1", "float('NaN')": "NaN", "float('-Infinity')": "-Infinity", "1.4e-45F": "1e-45"},
    "double": {"0.1D": "0.1", "double('NaN')": "NaN", "double('Infinity')": "Infinity", "4.9e-324D": "5e-324"},
    "decimal(38,18)": {
        "cast('-12345678901234567890.123456789012345678' as decimal(38,18))": "-12345678901234567890.123456789012345678"
    },
    "string": {"''": "", "'NULL'": "NULL", r"'a\"\\b,{}'": 'a"\\b,{}', "'é😀'": "é😀"},
    "binary": {"X''": "\\x", "X'00FF5C'": "\\x00ff5c"},
    "date": {
        "date'2026-03-29'": "2026-03-29",
        "date'2011-12-30'": "2011-12-30",
        "date'1582-10-10'": "1582-10-10",
        "date'0001-01-01'": "0001-01-01",
        "date'0000-12-31'": "0001-12-31 BC",
        "date'-0043-03-15'": "0044-03-15 BC",
        "date'-4712-01-01'": "4713-01-01 BC",
        "date'+10000-01-01'": "10000-01-01",
        "date'+5874897-12-31'": "5874897-12-31",
    },
    "timestamp": {
        "timestamp'2025-10-26T00:30:00Z'": "2025-10-26 00:30:00+00",
        "timestamp'2025-10-26T01:30:00Z'": "2025-10-26 01:30:00+00",
        "timestamp'2026-03-29T01:30:00.000001Z'": "2026-03-29 01:30:00.000001+00",
        "timestamp'1969-12-31T23:59:59.999999Z'": "1969-12-31 23:59:59.999999+00",
        "timestamp'1880-01-01T00:00:00Z'": "1880-01-01 00:00:00+00",
        "timestamp'1582-10-10T12:00:00Z'": "1582-10-10 12:00:00+00",
        "timestamp'0001-01-01T00:00:00Z'": "0001-01-01 00:00:00+00",
        "timestamp'-0043-03-15T12:00:00Z'": "0044-03-15 12:00:00+00 BC",
        "timestamp'9999-12-31T23:59:59.999999Z'": "9999-12-31 23:59:59.999999+00",
        "timestamp'+294246-12-31T23:59:59Z'": "294246-12-31 23:59:59+00",
    },
    "timestamp_ntz": {
        "timestamp_ntz'2026-03-29T02:30:00'": "2026-03-29 02:30:00",
        "timestamp_ntz'2025-10-26T02:30:00.5'": "2025-10-26 02:30:00.5",
        "timestamp_ntz'2011-12-30T12:00:00'": "2011-12-30 12:00:00",
        "timestamp_ntz'1880-01-01T00:00:00'": "1880-01-01 00:00:00",
        "timestamp_ntz'1582-10-10T00:00:00'": "1582-10-10 00:00:00",
        "timestamp_ntz'-0043-03-15T12:00:00'": "0044-03-15 12:00:00 BC",
        "timestamp_ntz'+10000-01-01T00:00:00'": "10000-01-01 00:00:00",
    },
}
"""Of each type values as Spark's SQL has them, with their texts in Postgres under UTC."""

OTHER: Mapping[str, Mapping[str, str]] = {
    "timestamp without time zone": {"timestamp'2026-03-29T00:30:00Z'": "2026-03-29 00:30:00"},
    "date": {"timestamp'2026-03-28T23:30:00Z'": "2026-03-28"},
    "time without time zone": {"timestamp'2026-03-28T23:30:00Z'": "23:30:00"},
    "timestamp with time zone": {"timestamp_ntz'2026-03-29T02:30:00'": "2026-03-29 02:30:00+00"},
    "timestamp(3) with time zone": {"date'2026-03-29'": "2026-03-29 00:00:00+00"},
    "timestamp(0) with time zone": {
        "'2026-03-29 02:30:00'": "2026-03-29 02:30:00+00",
        "'2026-03-29 02:30:00+02'": "2026-03-29 00:30:00+00",
    },
    "time with time zone": {"'12:00'": "12:00:00+00"},
    "tstzrange": {"'[2026-03-29 02:30,)'": '["2026-03-29 02:30:00+00",)'},
    "timestamptz[]": {"array(timestamp_ntz'2026-03-29T02:30:00', NULL)": '{"2026-03-29 02:30:00+00",NULL}'},
    "text": {"timestamp'2026-03-29T00:30:00Z'": "2026-03-29 00:30:00Z"},
    "varchar(20)": {"date'2026-03-29'": "2026-03-29"},
    "uuid": {"'5b30857f-0bfa-48b5-ac0b-5c64e28078d1'": "5b30857f-0bfa-48b5-ac0b-5c64e28078d1"},
    "jsonb": {"""'{"a": 1}'""": '{"a": 1}'},
}
"""Columns of tables that there are already, with values of other types and what becomes of them."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """One that executors can reach."""
    with start_postgres(tmp_path_factory.mktemp("postgres")) as started:
        yield started


@pytest.fixture
def url(server: Postgres) -> str:
    """A database with nothing in it."""
    execute(server.url(), "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    return server.url()


@pytest.fixture(params=ZONES)
def zone(request: pytest.FixtureRequest, spark: SparkSession, url: str) -> Iterator[str]:
    """One zone for Spark's session, its JVM, which is driver and executor here, and the database."""
    machine = spark._jvm
    assert machine is not None
    zones, before = machine.java.util.TimeZone, spark.conf.get("spark.sql.session.timeZone") or ""
    default = zones.getDefault()
    zones.setDefault(zones.getTimeZone(request.param))
    spark.conf.set("spark.sql.session.timeZone", request.param)
    execute(url, f"ALTER SYSTEM SET timezone = '{request.param}'", "SELECT pg_reload_conf()")
    yield request.param
    zones.setDefault(default)
    spark.conf.set("spark.sql.session.timeZone", before)


def write(table: Table, rows: DataFrame) -> None:
    """Write rows, one for each record, as a pipeline does."""
    writer = SinkOfBatch(table.sink, table.call({0: (0, rows.count())}))
    writer.write(rows)
    writer.finish()


def frame(spark: SparkSession, columns: Mapping[str, Sequence[str]]) -> DataFrame:
    """The columns of these expressions, the shorter ones with NULL at their end."""
    filled = zip_longest(*columns.values(), fillvalue="NULL")
    rows = [
        ", ".join([f"SELECT 't' AS topic, 0 AS partition, {n}L AS offset", *map("{} AS `{}`".format, row, columns)])
        for n, row in enumerate(filled)
    ]
    return spark.sql(" UNION ALL ".join(rows))


def held(url: str, names: Iterable[str], shown: str = "{}::text") -> dict[str, list[object]]:
    """What the columns of the table hold, in the order of its records, asked for under UTC."""
    with psycopg.connect(url, options="-c timezone=UTC") as connection:
        found: dict[str, list[object]] = {}
        for name in names:
            statement = f"SELECT {shown} FROM out ORDER BY kcr_offset".format(f'"{name}"')
            found[name] = [value for (value,) in connection.execute(statement.encode()).fetchall()]
        return found


def begun(url: str, columns: Mapping[str, str] | None = None, **options: Any) -> Table:  # noqa: ANN401 (a target's)
    """A sink in its first epoch; of a table that there is already, if it is to have these columns."""
    if columns is not None:
        named = ", ".join(f'"{name}" {kind}' for name, kind in {**columns, **OWN_COLUMNS}.items())
        execute(url, f"CREATE TABLE out ({named})")
    table = Table(url=url, options=options)
    table.reset({0: 0})
    return table


def test_values_of_every_type_come_as_they_are(zone: str, spark: SparkSession, url: str) -> None:
    write(begun(url), frame(spark, {kind: [*values, "NULL"] for kind, values in VALUES.items()}))
    longest = max(map(len, VALUES.values())) + 1
    expected = {kind: [*texts.values(), *[None] * (longest - len(texts))] for kind, texts in VALUES.items()}
    assert held(url, VALUES) == expected


def test_values_of_every_type_come_as_they_are_in_arrays(zone: str, spark: SparkSession, url: str) -> None:
    arrays = {
        kind: [f"array({', '.join(values)}, NULL)", f"cast(array() AS array<{kind}>)", "NULL"]
        for kind, values in VALUES.items()
    }
    write(begun(url), frame(spark, arrays))
    each = "CASE WHEN {0} IS NOT NULL THEN ARRAY(SELECT one::text FROM unnest({0}) AS one) END"
    assert held(url, VALUES, each) == {kind: [[*texts.values(), None], [], None] for kind, texts in VALUES.items()}


def test_columns_of_other_types_get_what_they_would_in_utc(zone: str, spark: SparkSession, url: str) -> None:
    write(begun(url, {kind: kind for kind in OTHER}), frame(spark, {kind: list(OTHER[kind]) for kind in OTHER}))
    found = {kind: [value for value in values if value is not None] for kind, values in held(url, OTHER).items()}
    assert found == {kind: list(texts.values()) for kind, texts in OTHER.items()}


@pytest.mark.parametrize("value", ["date'-4713-12-31'", "timestamp'-290000-01-01T00:00:00Z'", "date'+5874898-01-01'"])
def test_what_postgres_has_not_is_refused_with_its_column(value: str, spark: SparkSession, url: str) -> None:
    with pytest.raises(Exception, match=r"column day off has a day or time that Postgres has not"):
        write(begun(url), frame(spark, {"day off": [value]}))


def test_one_key_in_two_texts_is_one_row(spark: SparkSession, url: str) -> None:
    table = begun(url, {"key": "timestamptz PRIMARY KEY"}, mode=SinkMode.UPSERT, key=("key",))
    write(table, frame(spark, {"key": ["'2026-03-29 00:30Z'", "'2026-03-29 02:30+02'"]}))
    assert table.held() == [(0, 1)]
