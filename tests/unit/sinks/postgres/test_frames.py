from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from airflow_kcr.errors import SinkError
from airflow_kcr.ports import BatchCall
from airflow_kcr.protocol.rules import Delivery
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import UNDECLARED, GroupId, RegionName
from airflow_kcr.sinks.contract import SinkOfBatch, SinkOwner
from airflow_kcr.sinks.postgres import frames as sinks
from airflow_kcr.sinks.postgres.frames import columns_of, jdbc_options, sql_type
from airflow_kcr.sinks.postgres.sink import PostgresSink
from airflow_kcr.sinks.postgres.staging import Staging
from airflow_kcr.sinks.postgres.target import Target
from airflow_kcr.spark.context import SinkWriter, finish
from tests.support.runtime_fakes import CALL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STAGING = Staging(schema="a.b", table='t"x', columns=())


def sink(url: str = "postgresql://kcr:pass@db:5433/air?sslmode=require", name: str = "x") -> PostgresSink:
    target = Target(
        owner=SinkOwner(region=RegionName("r"), region_id=UNDECLARED, group=GroupId("g"), sink=name),
        table="t",
        delivery=Delivery.AT_LEAST_ONCE,
    )
    return PostgresSink(target, url, Timeouts())


def rows(*names: str) -> DataFrame:
    """A DataFrame of integers, as far as its columns are asked for."""
    kind = SimpleNamespace(simpleString=lambda: "int")
    fields = [SimpleNamespace(name=name, dataType=kind) for name in names]
    schema = SimpleNamespace(fields=fields, simpleString=lambda: "…")
    return cast("DataFrame", SimpleNamespace(columns=list(names), schema=schema))


class TestTypes:
    @pytest.mark.parametrize(
        ("kind", "expected"),
        [
            ("string", "text"),
            ("int", "integer"),
            ("bigint", "bigint"),
            ("decimal(10,2)", "numeric(10,2)"),
            ("timestamp", "timestamp with time zone"),
            ("timestamp_ntz", "timestamp without time zone"),
            ("array<string>", "text[]"),
            ("binary", "bytea"),
        ],
    )
    def test_have_their_columns(self, kind: str, expected: str) -> None:
        assert sql_type("c", kind) == expected

    @pytest.mark.parametrize("kind", ["struct<a:int>", "map<string,int>", "array<array<int>>", "void", "interval day"])
    def test_that_no_column_can_be_are_refused_with_the_column(self, kind: str) -> None:
        with pytest.raises(SinkError, match=r"column c is of type .*; use to_json"):
            sql_type("c", kind)

    def test_are_spark_s_own_names(self) -> None:
        types = pytest.importorskip("pyspark.sql.types")
        made = [
            types.BooleanType(), types.ByteType(), types.ShortType(), types.IntegerType(), types.LongType(),
            types.FloatType(), types.DoubleType(), types.StringType(), types.BinaryType(), types.DateType(),
            types.TimestampType(), types.TimestampNTZType(), types.DecimalType(5, 1), types.ArrayType(types.LongType()),
        ]  # fmt: skip
        assert all(sql_type("c", kind.simpleString()) for kind in made)


class TestColumns:
    def test_are_those_beside_the_coordinates(self) -> None:
        found = columns_of(rows("topic", "partition", "offset", "b", "a"))
        assert list(found.items()) == [("b", "integer"), ("a", "integer")]

    def test_without_coordinates_are_refused(self) -> None:
        with pytest.raises(SinkError, match="no column topic, offset"):
            columns_of(rows("partition"))

    def test_that_are_there_twice_are_refused(self) -> None:
        with pytest.raises(SinkError, match="column a is there twice"):
            columns_of(rows("topic", "partition", "offset", "a", "a"))


class TestWriterOptions:
    def test_lead_to_the_staging_table_with_every_name_quoted(self) -> None:
        options = jdbc_options(sink().database, STAGING)
        assert options["url"] == "jdbc:postgresql://db:5433/air"
        assert options["dbtable"] == '"a.b"."t""x"'
        assert (options["user"], options["password"], options["sslmode"]) == ("kcr", "pass", "require")
        assert options["ApplicationName"] == "kcr sink x of group g"

    def test_name_every_host_of_several(self) -> None:
        assert (
            jdbc_options(sink("postgresql://one:1,two:2/d").database, STAGING)["url"]
            == "jdbc:postgresql://one:1,two:2/d"
        )
        assert jdbc_options(sink("postgresql://[::1]/d").database, STAGING)["url"] == "jdbc:postgresql://[::1]:5432/d"

    def test_behind_a_pooler_nothing_is_prepared(self) -> None:
        made = sink()
        assert "prepareThreshold" not in jdbc_options(made.database, STAGING)
        made.database.is_pooled = True
        assert jdbc_options(made.database, STAGING)["prepareThreshold"] == "0"

    def test_have_the_password_nowhere_else(self) -> None:
        shown = {k: v for k, v in jdbc_options(sink().database, STAGING).items() if k != "password"}
        assert "pass" not in str(shown)


class Recorder(PostgresSink):
    """A sink that only notes."""

    def __init__(self, target: Target, done: list[str]) -> None:
        self.target, self.owner, self.done = target, target.owner, done

    def stage(self, call: BatchCall, columns: object) -> Staging:
        self.done.append(f"stage {self.target.owner.sink}")
        return STAGING

    def insert(self, call: BatchCall, staged: Staging) -> int:
        self.done.append(f"insert {self.target.owner.sink}")
        return 0


class Rows:
    """A DataFrame that writes nothing."""

    columns = ("topic", "partition", "offset")

    class schema:
        fields = ()

        @staticmethod
        def simpleString() -> str:
            return "struct<>"

    @property
    def write(self) -> Rows:
        return self

    def format(self, source: str) -> Rows:
        return self

    def options(self, **options: str) -> Rows:
        return self

    def mode(self, mode: str) -> Rows:
        return self

    def save(self) -> None:
        """Write nothing."""


class TestOutput:
    @pytest.fixture(autouse=True)
    def _no_spark(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def options(database: object, staging: object) -> Mapping[str, str]:
            return {}

        monkeypatch.setattr(sinks, "staged_columns", lambda rows, names: rows)
        monkeypatch.setattr(sinks, "jdbc_options", options)
        monkeypatch.setattr(Recorder, "database", None, raising=False)

    def output(self, *names: str) -> tuple[Mapping[str, SinkWriter], list[str]]:
        done: list[str] = []
        recorders = [Recorder(sink(name=name).target, done) for name in names]
        return {one.target.owner.sink: SinkOfBatch(one, CALL) for one in recorders}, done

    def test_is_inserted_after_all_of_it_is_written(self) -> None:
        output, done = self.output("y", "x")
        for writer in output.values():
            writer.write(Rows())  # type: ignore[arg-type]
        assert done == ["stage y", "stage x"]
        finish(output)
        assert done[2:] == ["insert x", "insert y"]

    def test_that_was_not_written_is_no_output(self) -> None:
        output, done = self.output("x", "y")
        output["y"].write(Rows())  # type: ignore[arg-type]
        with pytest.raises(SinkError, match="sink x of group g, batch b> was not written to"):
            finish(output)
        assert done == ["stage y"]

    def test_that_failed_is_none_though_the_pipeline_goes_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        output, done = self.output("x")
        with monkeypatch.context() as failing:
            failing.setattr(Rows, "save", lambda _: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                output["x"].write(Rows())  # type: ignore[arg-type]
        with pytest.raises(SinkError, match="was written to already"):
            output["x"].write(Rows())  # type: ignore[arg-type]
        with pytest.raises(SinkError, match="the write failed, and the pipeline went on; let its error through"):
            finish(output)
        assert done == ["stage x"]

    def test_shows_no_url(self) -> None:
        assert repr(SinkOfBatch(sink(), CALL)) == "<sink x of group g, batch b>"
