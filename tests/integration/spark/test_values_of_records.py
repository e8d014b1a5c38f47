"""No value of a record leaves a batch that fails: whichever part quotes it, messages, causes and logs don't."""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NoReturn
from unittest.mock import patch

import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession

from airflow_kcr.api import Region
from airflow_kcr.api.regions import connect, store_url
from airflow_kcr.driver import application
from airflow_kcr.driver.application import MemberRun, hosting, preparing
from airflow_kcr.driver.parts import StartFailures
from airflow_kcr.errors import BatchFailed
from airflow_kcr.ports import BatchCall
from airflow_kcr.protocol.region.commands import DeclareRegion, KillRegion
from airflow_kcr.protocol.region.state import Spec
from airflow_kcr.protocol.values import GroupId, MemberId, RegionName
from airflow_kcr.sinks.contract import SinkOfBatch
from airflow_kcr.sinks.postgres.target import OWN_COLUMNS
from airflow_kcr.spark.causes import WORDS
from airflow_kcr.spark.context import BatchContext, SinkWriter
from airflow_kcr.spark.engine import SparkEngine
from airflow_kcr.spark.pipelines import Pipeline
from airflow_kcr.spark.pulse import Pulse
from airflow_kcr.spark.session import SparkSettings
from airflow_kcr.spec import parse
from tests.integration.spark.batches import GROUP, REGION, call, source_of, wait_until
from tests.support.databases import execute, libpq
from tests.support.kafka import Kafka
from tests.support.sink_tables import Table
from tests.support.tied import Postgres, start_postgres

SECRET: Final = "hunter2-of-a-record"
"""The value of the one record that each of these batches has."""

HERE: Final = re.escape(Path(__file__).name)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """One that executors can reach."""
    with start_postgres(tmp_path_factory.mktemp("postgres")) as started:
        yield started


@pytest.fixture(scope="module")
def topic(kafka: Kafka) -> str:
    """A topic with the one record."""
    name = kafka.topic(1)
    kafka.produce(name, [SECRET.encode()])
    return name


class Failing:
    """Runs a pipeline on the record, into a table of these columns, and returns what its failure says."""

    def __init__(self, spark: SparkSession, kafka: Kafka, topic: str, server: Postgres) -> None:
        self._spark, self._kafka, self._topic, self._server = spark, kafka, topic, server
        self.error: BatchFailed | None = None

    def __call__(self, pipeline: Pipeline, columns: str = "value text", more: str = "") -> str:
        own = ", ".join(f"{name} {kind}" for name, kind in OWN_COLUMNS.items())
        execute(
            self._server.url(),
            "DROP SCHEMA public CASCADE; CREATE SCHEMA public",
            f"CREATE TABLE out ({columns}, {own}); {more}",
        )
        beside = frozenset({(GROUP, "x")})
        table = Table(url=self._server.url(), options={"group": GROUP, "region": REGION, "beside": beside})
        table.reset()

        def output(batch: BatchCall) -> Mapping[str, SinkWriter]:
            return {"out": SinkOfBatch(table.sink, batch)}

        engine = SparkEngine(self._spark, pipeline, source_of(self._kafka.settings), output)
        with pytest.raises(BatchFailed) as raised:
            engine.run(call(self._topic, {0: (0, 1)}))
        self.error = raised.value
        return raised.value.message


@pytest.fixture
def failing(
    spark: SparkSession, kafka: Kafka, topic: str, server: Postgres, caplog: pytest.LogCaptureFixture
) -> Iterator[Failing]:
    """Makes batches fail, and looks into everything that they leave."""
    caplog.set_level(logging.DEBUG, "airflow_kcr")
    run = Failing(spark, kafka, topic, server)
    yield run
    assert run.error is not None
    assert SECRET not in "".join(traceback.format_exception(run.error))
    assert SECRET not in caplog.text
    assert SECRET not in "".join(str(one.__dict__) for one in caplog.records)


def text_of(batch: DataFrame) -> DataFrame:
    return batch.selectExpr("topic", "partition", "offset", "cast(value as string) as value")


def into_table(batch: DataFrame, context: BatchContext) -> None:
    context.sinks["out"].write(text_of(batch))


def raised_by(words: str) -> str:
    """A trigger that quotes the row."""
    return (
        "CREATE FUNCTION said() RETURNS trigger LANGUAGE plpgsql AS $$ "
        f"BEGIN RAISE EXCEPTION '{words}', NEW.value; END $$; "
        "CREATE TRIGGER said BEFORE INSERT ON out FOR EACH ROW EXECUTE FUNCTION said()"
    )


COLUMNS: Final = {
    "uuid": ("value uuid", "", r"a text is no value of its column's type \(column value\)"),
    "json": ("value json", "", r"type \(column value\)"),
    "day": ("value date", "", r"a text is no day or time \(column value\)"),
    "instant": ("value timestamptz", "", "a text is no day or time"),
    "too long": ("value varchar(3)", "", "a text is too long for its column"),
    "unique": (
        "value text UNIQUE",
        f"INSERT INTO out (value) VALUES ('{SECRET}')",
        r"a row with these unique values exists already \(table out, constraint out_value_key\)",
    ),
    "check": ("value text CHECK (value <> 'hunter2-of-a-record')", "", r"pass a check \(table out, constraint out_v"),
    "trigger": ("value text", raised_by("no %"), "SQLSTATE P0001"),
    "expression": ("value text, n int GENERATED ALWAYS AS (value::int) STORED", "", "no value of its column's type"),
}
"""Tables that refuse the record, with what is said of it."""


@pytest.mark.parametrize("case", COLUMNS)
def test_what_postgres_quotes_stays_there(case: str, failing: Failing) -> None:
    columns, more, told = COLUMNS[case]
    assert re.search(told, failing(into_table, columns, more))


def values(batch: DataFrame) -> list[str]:
    return [row.value for row in text_of(batch).collect()]


def raise_a_value(batch: DataFrame, context: BatchContext) -> None:
    raise ValueError(values(batch)[0])


def raise_a_chain(batch: DataFrame, context: BatchContext) -> None:
    try:
        {"": 0}[values(batch)[0]]
    except KeyError as error:
        raise RuntimeError(f"there is none of {error}") from error


def end_with_a_value(batch: DataFrame, context: BatchContext) -> None:
    raise SystemExit(values(batch)[0])


def open_a_file(batch: DataFrame, context: BatchContext) -> None:
    Path("/nowhere", values(batch)[0]).read_text()


def each_row(rows: Iterator[Any]) -> None:
    for row in rows:
        raise LookupError(f'two lines:\n  File "{row.value}", line 1, in x\n{row.value}: {row.value}')


def in_a_worker(batch: DataFrame, context: BatchContext) -> None:
    text_of(batch).foreachPartition(each_row)


def in_a_function(batch: DataFrame, context: BatchContext) -> None:
    from pyspark.sql.functions import udf

    def fail(value: str) -> str:
        raise ValueError(value)

    context.sinks["out"].write(text_of(batch).withColumn("value", udf(fail, "string")("value")))


def in_a_cast(batch: DataFrame, context: BatchContext) -> None:
    context.sinks["out"].write(text_of(batch).selectExpr("topic", "partition", "offset", "cast(value as int) as value"))


def with_a_nul(batch: DataFrame, context: BatchContext) -> None:
    ended = text_of(batch).selectExpr("topic", "partition", "offset", "concat(value, decode(X'00', 'utf-8')) as value")
    context.sinks["out"].write(ended)


def in_spark(batch: DataFrame, context: BatchContext) -> None:
    text_of(batch).selectExpr("raise_error(value)").collect()


def wrapped(batch: DataFrame, context: BatchContext) -> None:
    try:
        in_spark(batch, context)
    except Exception as error:
        raise RuntimeError(f"could not: {error}") from error


def of_kinds(batch: DataFrame, context: BatchContext) -> None:
    text_of(batch).groupBy("topic").pivot("value").count().select("none_of_these").collect()


def twice(batch: DataFrame, context: BatchContext) -> None:
    into_table(batch, context)
    raise_a_value(batch, context)


PIPELINES: Final[Mapping[Pipeline, str]] = {
    raise_a_value: rf"failed: ValueError \(.*{HERE}, line \d+\)$",
    raise_a_chain: rf"failed: RuntimeError \(.*{HERE}, line \d+\)$",
    end_with_a_value: rf"ended its process \(SystemExit \(.*{HERE}, line \d+\)\); it must return",
    open_a_file: "failed: FileNotFoundError: No such file or directory \\(",
    in_a_worker: rf"failed: LookupError \(.*{HERE}, line \d+\)$",
    in_a_function: rf"failed: ValueError \(.*{HERE}, line \d+\)$",
    in_a_cast: rf"failed: SparkNumberFormatException: CAST_INVALID_INPUT \(.*{HERE}, line \d+\)$",
    with_a_nul: "a text holds what this database's encoding can't, or a NUL, which no text of Postgres can",
    in_spark: rf"failed: SparkRuntimeException: USER_RAISED_EXCEPTION \(.*{HERE}, line \d+\)$",
    wrapped: rf"failed: SparkRuntimeException: USER_RAISED_EXCEPTION \(.*{HERE}, line \d+\)$",
    of_kinds: "UNRESOLVED_COLUMN.WITH_SUGGESTION `none_of_these` ",
    twice: "failed: ValueError ",
}
"""What fails with the record in its words, with what is said of it: kind and place."""


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_what_a_pipeline_or_spark_quotes_stays_there(pipeline: Pipeline, failing: Failing) -> None:
    assert re.search(PIPELINES[pipeline], failing(pipeline))


def test_who_asks_for_the_words_by_name_gets_them(failing: Failing, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, WORDS.name)
    failing(raise_a_value)
    assert SECRET in caplog.text
    caplog.clear()


def test_what_a_member_leaves_in_its_store_quotes_nothing(
    spark: SparkSession, kafka: Kafka, topic: str, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "airflow_kcr")
    name = kafka.group_id("quoting")
    spec = parse(
        f"region: {name}\n"
        f"kafka: {{bootstrap.servers: '{kafka.bootstrap_servers}'}}\n"
        f"groups: [{{group_id: {name}, topics: [{topic}], members: 1, "
        "pipeline: 'tests.integration.spark.test_values_of_records:wrapped'}]\n"
    )
    with connect(store_url(database_url)) as store, ExitStack() as stack:
        store.handle(RegionName(name), DeclareRegion(spec=Spec(text=spec.to_json_text(), rules=spec.rules())))
        run = MemberRun(
            region=RegionName(name), members=(MemberId(GroupId(name), 0),), spark=SparkSettings(app_name="quoting")
        )
        stack.enter_context(patch.object(application, "session_for", lambda settings, clusters: spark))
        stack.enter_context(patch.object(spark, "stop", lambda: None))
        failures = StartFailures(store, run.region, run.members)
        prepared = stack.enter_context(preparing(store, run, failures))
        _, pool = stack.enter_context(hosting(store, prepared, failures, Pulse(), _fail))
        with Region(name, store) as region:
            wait_until(lambda: "failed: SparkRuntimeException" in str(region.newest_events(100)), "a failed batch")
            shown = f"{region.show().to_json()} {region.newest_events(1000)}"
        stored = stored_texts(database_url)
        store.handle(RegionName(name), KillRegion())
        pool.wait(30)
    assert "failed: SparkRuntimeException: USER_RAISED_EXCEPTION" in shown
    assert "failed: SparkRuntimeException: USER_RAISED_EXCEPTION" in stored
    assert SECRET not in shown + stored
    assert SECRET not in caplog.text


def _fail(why: str) -> NoReturn:
    raise AssertionError(f"a member wanted to end the process: {why}")


def stored_texts(url: str) -> str:
    """Every row of a database, as text."""
    with psycopg.connect(libpq(url)) as connection:
        tables = connection.execute(
            "SELECT schemaname, tablename FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
        ).fetchall()
        rows = [
            connection.execute(f'SELECT one::text FROM "{schema}"."{table}" AS one'.encode()).fetchall()
            for schema, table in tables
        ]
    return str(rows)
