"""Sinks of kind `iceberg` on Spark: the files that executors write, types and partitions, and a member's life.

How commits, resets, kills and others' commits go together is tried without Spark in `tests/unit/sinks/iceberg`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from airflow_kcr.api import Region, ResetRequest
from airflow_kcr.errors import ConfigurationError, SinkError
from airflow_kcr.protocol.targets import ToCheckpoint
from airflow_kcr.sinks.contract import SinkOfBatch, SinkOwner
from airflow_kcr.sinks.files.contents import RegionLedger
from airflow_kcr.sinks.files.folder import Folder
from airflow_kcr.sinks.files.frames import Rewriter
from airflow_kcr.sinks.files.layout import FileTarget
from airflow_kcr.sinks.files.sink import FileSink
from airflow_kcr.sinks.iceberg import partitions
from airflow_kcr.sinks.iceberg.table import IcebergTable, folder_of
from tests.support.driver import GROUP, Driver
from tests.support.faults import checkpoints, finished
from tests.support.iceberg_files import NAME, Warehouse, warehouse
from tests.support.kafka import Kafka
from tests.support.lake import Lake
from tests.support.members import Live, live
from tests.support.spark_gated_pipeline import JARS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)

PARTITIONS = 2
WITHIN = 240.0
LIVE = """\
batch: {target: 2s, min_records: 50, max_records: 500, timeout: 90s}
timeouts: {lease: 10s, renew: 1s, session: 30s, relaunch: 20s, reset: 120s, drain: 100s, commit: 20s, close: 8s}
"""


@dataclass(slots=True)
class IcebergLake(Lake):
    """A scripted region whose batches Spark writes into an Iceberg table."""

    warehouse: Warehouse | None = None

    def target(self, uri: str) -> FileTarget:
        """The sink, as its spec has it."""
        owner = SinkOwner(region=self.driver.name, region_id=self.driver.region.region_id, group=GROUP, sink="out")
        return FileTarget(owner=owner, path=uri, name=NAME, file_size=0)

    def opened(self, uri: str, table: object = None) -> FileSink:
        """The sink, as a process has it."""
        assert self.warehouse is not None
        target = self.target(uri)
        uri = folder_of(self.warehouse.table().location(), target.owner)
        target, folder = self.target(uri), Folder(self.spark, uri)
        shown = IcebergTable(target=target, table=self.warehouse.named(), folder=folder)
        ledger = RegionLedger(self.driver.store, self.driver.name)
        return FileSink(target, folder, ledger, Rewriter(self.spark, folder, shown.write), shown)

    def made(self, **columns: str) -> list[dict[str, Any]]:
        """Process a batch with these columns, publish it, and return what a reader has of it."""
        batch = self.driver.start_batch(self.driver.member(0), 10)
        call = self.call(batch)
        writer = SinkOfBatch(self.sink, call)
        writer.write(
            self.rows(call).selectExpr(
                "topic", "partition", "offset", *(f"{sql} AS `{name}`" for name, sql in columns.items())
            )
        )
        writer.finish()
        self.driver.finish_batch(batch)
        self.checkpoint(f"n{batch}")
        assert self.warehouse is not None
        rows: list[dict[str, Any]] = self.warehouse.table().scan().to_arrow().to_pylist()
        return rows


def lake(spark: SparkSession, root: Path, schema: Schema, spec: PartitionSpec = PartitionSpec()) -> IcebergLake:  # noqa: B008
    """A region whose sink has a table of a schema."""
    made = warehouse(root / "warehouse")
    catalog = made.catalog()
    catalog.drop_table(NAME)
    catalog.create_table(NAME, schema, partition_spec=spec)
    return IcebergLake(spark, root / "out", driver=Driver(), warehouse=made)


TYPES: dict[str, tuple[Any, str, Any]] = {
    "boolean": (BooleanType(), "true", True),
    "int": (IntegerType(), "7", 7),
    "int of a short": (IntegerType(), "CAST(7 AS SMALLINT)", 7),
    "long of an int": (LongType(), "7", 7),
    "float": (FloatType(), "CAST(0.5 AS FLOAT)", 0.5),
    "double of a float": (DoubleType(), "CAST(0.5 AS FLOAT)", 0.5),
    "decimal": (DecimalType(10, 2), "CAST(1.25 AS DECIMAL(5,2))", Decimal("1.25")),
    "date": (DateType(), "DATE'1582-10-10'", date(1582, 10, 10)),
    "instant": (TimestamptzType(), "TIMESTAMP'1880-01-01T00:00:00.000001Z'", datetime(1880, 1, 1, 0, 0, 0, 1, UTC)),
    "local": (TimestampType(), "TIMESTAMP_NTZ'2026-03-29T02:30:00'", datetime(2026, 3, 29, 2, 30)),  # noqa: DTZ001
    "string": (StringType(), "'é, ''quoted'''", "é, 'quoted'"),
    "binary": (BinaryType(), "X'00FF'", b"\x00\xff"),
    "array": (ListType(101, IntegerType(), element_required=False), "array(1, NULL)", [1, None]),
    "map": (MapType(102, StringType(), 103, LongType(), value_required=False), "map('a', 2L)", [("a", 2)]),
    "struct": (StructType(NestedField(104, "street", StringType())), "named_struct('street', 'x')", {"street": "x"}),
}


def test_each_type_comes_back_as_it_was_written_whatever_the_zone(spark: SparkSession, tmp_path: Path) -> None:
    columns = [NestedField(n, name, kind) for n, (name, (kind, _, _)) in enumerate(TYPES.items(), start=1)]
    one = lake(spark, tmp_path, Schema(*columns))
    spark.conf.set("spark.sql.session.timeZone", "Europe/Zurich")
    try:
        rows = one.made(**{name: sql for name, (_, sql, _) in TYPES.items()})
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
    assert len(rows) == 20
    for name, (_, _, value) in TYPES.items():
        assert all((row[name], type(row[name])) == (value, type(value)) for row in rows), name


AT = "timestampadd(MINUTE, CAST(offset AS INT) * 400, TIMESTAMP'2025-12-31T20:00:00Z')"
TRANSFORMS: dict[str, tuple[Any, Any, str]] = {
    "identity": (StringType(), IdentityTransform(), "concat('a/b=', offset % 3, repeat('x', 300))"),
    "identity of NULL": (IntegerType(), IdentityTransform(), "CAST(nullif(offset % 2, 0) AS INT)"),
    "truncate": (StringType(), TruncateTransform(2), "concat('ü', offset)"),
    "truncate of numbers": (LongType(), TruncateTransform(4), "CAST(offset AS BIGINT) - 5 + 9007199254740993"),
    "year": (TimestamptzType(), YearTransform(), AT),
    "month": (DateType(), MonthTransform(), f"CAST({AT} AS DATE)"),
    "day": (TimestamptzType(), DayTransform(), AT),
    "hour": (TimestampType(), HourTransform(), f"CAST({AT} AS TIMESTAMP_NTZ)"),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_files_have_one_value_of_each_partition(spark: SparkSession, tmp_path: Path, name: str) -> None:
    kind, transform, sql = TRANSFORMS[name]
    spec = PartitionSpec(PartitionField(source_id=1, field_id=1000, transform=transform, name="part"))
    one = lake(spark, tmp_path, Schema(NestedField(1, "value", kind)), spec)
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        rows = one.made(value=sql)
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
    assert Counter(row["kcr_offset"] for row in rows) == dict.fromkeys(range(10), 2)
    assert one.warehouse is not None
    parts = {task.file.partition[0] for task in one.warehouse.table().scan().plan_files()}
    value = transform.transform(kind)
    assert len(parts) > 1
    assert parts == {value(_as_stored(row["value"])) for row in rows}


def _as_stored(value: Any) -> Any:  # noqa: ANN401 (a value of any type)
    """Return a value as Iceberg's transforms take it."""
    if isinstance(value, datetime):
        whole = value if value.tzinfo else value.replace(tzinfo=UTC)
        return (whole - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    return (value - date(1970, 1, 1)).days if isinstance(value, date) else value


def test_a_partitioning_that_files_do_not_tell_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    spec = PartitionSpec(PartitionField(source_id=1, field_id=1000, transform=BucketTransform(4), name="part"))
    one = lake(spark, tmp_path, Schema(NestedField(1, "value", LongType())), spec)
    assert one.warehouse is not None
    with pytest.raises(ConfigurationError, match=r"is partitioned by bucket\[4\] of value"):
        partitions.require_writable(one.warehouse.table(), "the table")


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"value": "1L", "more": "1"}, "has no column more; add it to the table"),
        ({"value": "'1'"}, "has column value as bigint, and the pipeline writes string; cast it"),
        ({}, "requires column value, which the pipeline does not write"),
    ],
)
def test_columns_that_do_not_fit_are_refused_before_a_file_is_written(
    spark: SparkSession, tmp_path: Path, columns: dict[str, str], said: str
) -> None:
    one = lake(spark, tmp_path, Schema(NestedField(1, "value", LongType(), required=True)))
    with pytest.raises(SinkError, match=said):
        one.made(**columns)


def test_a_required_column_takes_values_and_no_null(spark: SparkSession, tmp_path: Path) -> None:
    one = lake(spark, tmp_path, Schema(NestedField(1, "value", LongType(), required=True)))
    assert sorted(row["value"] for row in one.made(value="offset")) == sorted([*range(10), *range(10)])
    with pytest.raises(Exception, match="requires column value, which is NULL in a row"):
        one.made(value="nullif(offset, 12)")


def test_a_column_that_was_renamed_since_keeps_its_values(spark: SparkSession, tmp_path: Path) -> None:
    one = lake(spark, tmp_path, Schema(NestedField(1, "value", LongType())))
    one.made(value="offset")
    assert one.warehouse is not None
    with one.warehouse.table().update_schema() as update:
        update.rename_column("value", "amount")
        update.add_column("note", StringType())
    rows = one.made(amount="offset", note="'new'")
    assert sorted(row["amount"] for row in rows) == sorted([*range(20), *range(20)])
    assert Counter(row["note"] for row in rows) == {None: 20, "new": 20}


def test_a_column_that_got_a_wider_type_since_takes_both(spark: SparkSession, tmp_path: Path) -> None:
    one = lake(spark, tmp_path, Schema(NestedField(1, "value", IntegerType())))
    batch = one.driver.start_batch(one.driver.member(0), 10)
    call = one.call(batch)
    writer = SinkOfBatch(one.sink, call)
    writer.write(one.rows(call).selectExpr("topic", "partition", "offset", "CAST(offset AS INT) AS value"))
    writer.finish()
    one.driver.finish_batch(batch)
    assert one.warehouse is not None
    with one.warehouse.table().update_schema() as update:
        update.update_column("value", LongType())
    rows = one.made(value="offset + 5000000000")
    assert Counter(row["value"] for row in rows) == Counter(
        [*range(10), *range(10), *range(5000000010, 5000000020), *range(5000000010, 5000000020)]
    )


def rows_of(made: Warehouse) -> Counter[tuple[int, int]]:
    """How often the table has each record, by PyIceberg's plan and DuckDB's reading of the files."""
    files = [task.file.file_path for task in made.table().scan().plan_files()]
    if not files:
        return Counter()
    with duckdb.connect() as connection:
        found = connection.execute("SELECT kcr_partition, kcr_offset FROM read_parquet(?)", [files]).fetchall()
    return Counter((partition, offset) for partition, offset in found)


def records(one: Live) -> Counter[tuple[int, int]]:
    """Every record of the topic, once."""
    return Counter((number, offset) for number, end in one.kafka.ends(one.topic).items() for offset in range(end))


@pytest.mark.timeout(900)
def test_a_member_fills_a_table_through_a_kill_and_a_reset(
    kafka: Kafka,
    database_url: str,
    tmp_path: Path,
    connector_jars: tuple[Path, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(JARS, ",".join(map(str, connector_jars)))
    made = warehouse(tmp_path / "warehouse")
    catalog = made.catalog()
    catalog.drop_table(NAME)
    kinds = {"name": StringType(), "newest": LongType(), "value": StringType()}
    catalog.create_table(NAME, Schema(*(NestedField(n, name, kind) for n, (name, kind) in enumerate(kinds.items(), 1))))
    options = ", ".join(f"{name}: '{value}'" for name, value in made.options.items())
    sink = f"{{kind: iceberg, catalog: lake, table: {NAME}, options: {{{options}}}}}"
    with live(
        kafka,
        database_url,
        tmp_path / "region",
        members=1,
        partitions=PARTITIONS,
        spec=LIVE,
        group=f", delivery: exactly_once, sinks: {{out: {sink}}}",
        name=kafka.group_id("g"),
        hosting="tests.support.spark_member_process",
        pipeline="tests.support.spark_latest_pipeline:process",
    ) as one:
        member = one.start(0)
        for _ in range(2):
            one.fill(30)
            finished(one, WITHIN)
        one.until(lambda: rows_of(made) == records(one), "each record in the table once", WITHIN)

        member.kill()
        one.start(0, takeover=True)
        one.fill(30)
        finished(one, WITHIN)
        one.until(lambda: rows_of(made) == records(one), "each record in the table once, after a kill", WITHIN)

        with Region(one.name, one.store) as region:
            first = checkpoints(one)[0].sequence
            plan = region.resets.plan(ResetRequest(target=ToCheckpoint(sequence=first)))
            region.resets.apply(plan, "to see")
            region.resets.wait_for(plan.plan, timedelta(seconds=WITHIN))
        one.fill(30)
        finished(one, WITHIN)
        one.until(lambda: rows_of(made) == records(one), "each record in the table once, after a reset", WITHIN)
        tags = {name for name in made.table().refs() if name.startswith("kcr_")}
        with Region(one.name, one.store) as region:
            assert tags >= {f"kcr_{row.timeline}_{row.sequence}" for row in checkpoints(one) if row.undone_by is None}
            assert not region.verify().violations
