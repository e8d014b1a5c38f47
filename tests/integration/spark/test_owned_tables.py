"""Tables of people on Spark: the files that executors write, types and partitions, and a member's life.

How commits, resets, kills and others' commits go together is tried without Spark in `tests/unit/sinks/tables`.
"""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import duckdb
import pyarrow as pa
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
from airflow_kcr.errors import ConfigurationError, SinkError, UnknownCheckpoint
from airflow_kcr.protocol.region.commands import RequestCheckpoint
from airflow_kcr.protocol.targets import ToCheckpoint
from airflow_kcr.protocol.values import RequestId
from airflow_kcr.sinks import read_checkpoint
from airflow_kcr.sinks.contract import SinkOfBatch
from airflow_kcr.sinks.files.folder import Folder
from airflow_kcr.sinks.files.hadoop import HadoopFolder
from airflow_kcr.sinks.files.layout import FileTarget
from airflow_kcr.sinks.files.sink import FileSink
from airflow_kcr.sinks.files.tables import Table
from airflow_kcr.sinks.iceberg import partitions
from airflow_kcr.sinks.tables.owned import folder_of
from airflow_kcr.spec import SinkKind
from tests.support.driver import Driver
from tests.support.faults import checkpoints, finished
from tests.support.kafka import Kafka
from tests.support.lake import Lake
from tests.support.members import Lend, Live, Process
from tests.support.scripts import call_of
from tests.support.sink_files import owner_of
from tests.support.spark_executors import application_settings, executors
from tests.support.spark_gated_pipeline import CONF
from tests.support.table_files import NAME, DeltaFolder, Owned, Warehouse, declared, warehouse
from tests.support.tied import standalone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)

WITHIN = 240.0


@dataclass(slots=True)
class TableLake(Lake):
    """A scripted region whose batches Spark writes into a person's table."""

    owned: Owned = field(kw_only=True)

    def target(self, uri: str) -> FileTarget:
        """The sink, as its spec has it."""
        owner = owner_of(self.driver)
        return FileTarget(owner=owner, path=folder_of(self.owned.location(), owner), name=NAME, file_size=0)

    def opened(self, uri: str) -> FileSink:
        """The sink, as a process has it."""
        return Lake.opened(self, self.target(uri).path)

    def table(self, target: FileTarget, folder: Folder) -> Table:
        """The table."""
        return self.owned.opened(target, folder)

    def made(self, **columns: str) -> list[dict[str, Any]]:
        """Process a batch with these columns, publish it, and return what a reader has of it."""
        batch = self.driver.start_batch(self.driver.member(0), 10)
        call = call_of(self.driver, batch)
        writer = SinkOfBatch(self.sink, call)
        writer.write(
            self.rows(call).selectExpr(
                "topic", "partition", "offset", *(f"{sql} AS `{name}`" for name, sql in columns.items())
            )
        )
        writer.finish()
        self.driver.finish_batch(batch)
        self.checkpoint(f"n{batch}")
        rows: list[dict[str, Any]] = self.owned.rows().to_pylist()
        return rows


def lake(spark: SparkSession, root: Path, schema: Schema, spec: PartitionSpec = PartitionSpec()) -> TableLake:  # noqa: B008
    """A region whose sink has an Iceberg table of a schema."""
    made = warehouse(root / "warehouse")
    catalog = made.catalog()
    catalog.drop_table(NAME)
    catalog.create_table(NAME, schema, partition_spec=spec)
    return TableLake(spark, root / "out", driver=Driver(), owned=made)


def delta_lake(
    spark: SparkSession, root: Path, split: Sequence[str] = (), **columns: pa.Field | pa.DataType
) -> TableLake:
    """A region whose sink has a Delta table with columns, partitioned by some of them."""
    fields = [
        kind.with_name(name) if isinstance(kind, pa.Field) else pa.field(name, kind) for name, kind in columns.items()
    ]
    deltalake.DeltaTable.create((root / "warehouse").as_uri(), pa.schema(fields), partition_by=list(split))
    return TableLake(spark, root / "out", driver=Driver(), owned=DeltaFolder(root=root / "warehouse"))


@pytest.fixture(params=["iceberg", "delta"])
def with_value(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Callable[[bool], TableLake]:
    """What makes a region whose sink has a table with one column, `value`, which may be required."""

    def made(is_required: bool) -> TableLake:
        if request.param == "iceberg":
            return lake(spark, tmp_path, Schema(NestedField(1, "value", LongType(), required=is_required)))
        return delta_lake(spark, tmp_path, value=pa.field("value", pa.int64(), nullable=not is_required))

    return made


def test_a_checkpoint_is_read_by_the_name_of_its_table_whatever_others_did_since(
    with_value: Callable[[bool], TableLake], spark: SparkSession
) -> None:
    one = with_value(False)
    one.made(value="offset")
    one.made(value="offset")
    first, second = (row.sequence for row in one.driver.region.checkpoints.values() if row.published_at)
    one.owned.append({"value": [-1]})
    one.owned.compact()
    spec = one.owned.spec()
    table = {name: value for name, value in spec.items() if name != "table"}
    for sequence, offsets in ((first, range(10)), (second, range(10, 20)), (None, range(10, 20))):
        rows = read_checkpoint(spark, spec["table"], sequence=sequence, **table).collect()
        assert Counter(row["value"] for row in rows) == dict.fromkeys(offsets, 2)
    with pytest.raises(UnknownCheckpoint, match=f"published are {first}, {second}"):
        read_checkpoint(spark, spec["table"], sequence=99, **table)


def test_a_table_that_no_sink_writes_to_has_no_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    made = warehouse(tmp_path)
    with pytest.raises(ConfigurationError, match=r"no sink writes to table db\.delays"):
        read_checkpoint(spark, NAME, catalog="lake", options=made.options)


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


EVENING = "timestampadd(MINUTE, CAST(offset AS INT), TIMESTAMP'2025-12-31T20:00:00Z')"
NIGHT = "TIMESTAMP'2026-01-01T02:40:00Z'"
"""In New York of the same day, month and year."""

TRANSFORMS: dict[str, tuple[Any, Any, str, str]] = {
    "identity": (StringType(), IdentityTransform(), "concat('a/b=0', repeat('x', 300))", "'a/b=1'"),
    "identity of NULL": (IntegerType(), IdentityTransform(), "1", "CAST(NULL AS INT)"),
    "truncate": (StringType(), TruncateTransform(2), "concat('ü0', offset)", "'ü1'"),
    "truncate of numbers": (LongType(), TruncateTransform(4), "offset % 4 + 9007199254740992", "9007199254740991"),
    "year": (TimestamptzType(), YearTransform(), EVENING, NIGHT),
    "month": (DateType(), MonthTransform(), "DATE'2025-12-31'", "DATE'2026-01-01'"),
    "day": (TimestamptzType(), DayTransform(), EVENING, NIGHT),
    "hour": (
        TimestampType(),
        HourTransform(),
        f"CAST({EVENING} AS TIMESTAMP_NTZ)",
        f"CAST({EVENING} + INTERVAL 1 HOUR AS TIMESTAMP_NTZ)",
    ),
}


def apart(columns: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """Return columns of ten records of which each but the first and the last is of another partition by one alone."""
    return {
        n: f"IF(offset = {at}, {other}, {usual})" for at, (n, (usual, other)) in enumerate(columns.items(), start=1)
    }


def test_files_have_one_value_of_each_partition(spark: SparkSession, tmp_path: Path) -> None:
    columns = [NestedField(n, name, kind) for n, (name, (kind, *_)) in enumerate(TRANSFORMS.items(), start=1)]
    parts = [
        PartitionField(source_id=n, field_id=1000 + n, transform=transform, name=f"part {n}")
        for n, (_, transform, *_) in enumerate(TRANSFORMS.values(), start=1)
    ]
    one = lake(spark, tmp_path, Schema(*columns), PartitionSpec(*parts))
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        rows = one.made(**apart({name: (usual, other) for name, (*_, usual, other) in TRANSFORMS.items()}))
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
    assert Counter(row["kcr_offset"] for row in rows) == dict.fromkeys(range(10), 2)
    assert isinstance(one.owned, Warehouse)
    partitions_of = [task.file.partition for task in one.owned.table().scan().plan_files()]
    found = {tuple(partition[n] for n in range(len(TRANSFORMS))) for partition in partitions_of}
    values = {name: transform.transform(kind) for name, (kind, transform, *_) in TRANSFORMS.items()}
    assert found == {tuple(value(_as_stored(row[name])) for name, value in values.items()) for row in rows}
    assert len(found) == 1 + len(TRANSFORMS)


def _as_stored(value: Any) -> Any:  # noqa: ANN401 (a value of any type)
    """Return a value as Iceberg's transforms take it."""
    if isinstance(value, datetime):
        whole = value if value.tzinfo else value.replace(tzinfo=UTC)
        return (whole - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    return (value - date(1970, 1, 1)).days if isinstance(value, date) else value


def test_a_partitioning_that_files_do_not_tell_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    spec = PartitionSpec(PartitionField(source_id=1, field_id=1000, transform=BucketTransform(4), name="part"))
    one = lake(spark, tmp_path, Schema(NestedField(1, "value", LongType())), spec)
    assert isinstance(one.owned, Warehouse)
    with pytest.raises(ConfigurationError, match=r"is partitioned by bucket\[4\] of value"):
        partitions.require_writable(one.owned.table(), "the table")


DELTA_TYPES: dict[str, tuple[Any, str, Any]] = {
    "boolean": (pa.bool_(), "true", True),
    "byte": (pa.int8(), "CAST(7 AS TINYINT)", 7),
    "short of a byte": (pa.int16(), "CAST(7 AS TINYINT)", 7),
    "int of a short": (pa.int32(), "CAST(7 AS SMALLINT)", 7),
    "long of an int": (pa.int64(), "7", 7),
    "float": (pa.float32(), "CAST(0.5 AS FLOAT)", 0.5),
    "double of a float": (pa.float64(), "CAST(0.5 AS FLOAT)", 0.5),
    "decimal": (pa.decimal128(10, 2), "CAST(1.25 AS DECIMAL(5,2))", Decimal("1.25")),
    "date": (pa.date32(), "DATE'1582-10-10'", date(1582, 10, 10)),
    "instant": (
        pa.timestamp("us", "UTC"),
        "TIMESTAMP'1880-01-01T00:00:00.000001Z'",
        datetime(1880, 1, 1, 0, 0, 0, 1, UTC),
    ),
    "local": (pa.timestamp("us"), "TIMESTAMP_NTZ'2026-03-29T02:30:00'", datetime(2026, 3, 29, 2, 30)),  # noqa: DTZ001
    "string": (pa.string(), "'é, ''quoted'''", "é, 'quoted'"),
    "binary": (pa.binary(), "X'00FF'", b"\x00\xff"),
    "array": (pa.list_(pa.int32()), "array(1, NULL)", [1, None]),
    "map": (pa.map_(pa.string(), pa.int64()), "map('a', 2L)", [("a", 2)]),
    "struct": (pa.struct([("street", pa.string())]), "named_struct('street', 'x')", {"street": "x"}),
}


def test_each_type_of_delta_comes_back_as_it_was_written_whatever_the_zone(spark: SparkSession, tmp_path: Path) -> None:
    columns = {name.replace(" ", "_"): value for name, value in DELTA_TYPES.items()}
    one = delta_lake(spark, tmp_path, **{name: kind for name, (kind, _, _) in columns.items()})
    spark.conf.set("spark.sql.session.timeZone", "Europe/Zurich")
    try:
        rows = one.made(**{name: sql for name, (_, sql, _) in columns.items()})
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
    assert len(rows) == 20
    for name, (_, _, value) in columns.items():
        assert all((row[name], type(row[name])) == (value, type(value)) for row in rows), name


SPLITS: dict[str, tuple[Any, str, str]] = {
    "text": (pa.string(), "concat('a/b=0', repeat('x', 300))", "concat('a/b=1', repeat('x', 300))"),
    "number or NULL": (pa.int32(), "1", "CAST(NULL AS INT)"),
    "number": (pa.int64(), "9007199254740993", "9007199254740992"),
    "decimal": (pa.decimal128(10, 2), "CAST(0.5 AS DECIMAL(10,2))", "CAST(1.5 AS DECIMAL(10,2))"),
    "boolean": (pa.bool_(), "true", "false"),
    "day": (pa.date32(), "DATE'2025-12-31'", "DATE'2026-01-01'"),
    "instant": (pa.timestamp("us", "UTC"), "TIMESTAMP'2025-12-31T20:00:00.000001Z'", NIGHT),
}


@pytest.mark.long
def test_files_of_delta_have_one_value_of_each_partition(spark: SparkSession, tmp_path: Path) -> None:
    kinds = {f"by {name}": kind for name, (kind, *_) in SPLITS.items()}
    sql = apart({f"by {name}": (usual, other) for name, (_, usual, other) in SPLITS.items()})
    one = delta_lake(spark, tmp_path, tuple(kinds), value=pa.int64(), **kinds)
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        rows = one.made(value="offset", **sql)
        texts = ", ".join(f"min(CAST(`{name}` AS STRING))" for name in kinds)
        query = f"SELECT kcr_offset, count(*), {texts} FROM delta.`{one.owned.location()}` GROUP BY 1"
        by_spark = spark.sql(query).collect()
        wanted = ", ".join(f"CAST({text} AS STRING)" for text in sql.values())
        computed = spark.sql(f"SELECT offset, 2, {wanted} FROM (SELECT explode(sequence(0L, 9L)) AS offset)").collect()
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
    assert Counter(row["kcr_offset"] for row in rows) == dict.fromkeys(range(10), 2)
    assert {tuple(row) for row in by_spark} == {tuple(row) for row in computed}
    assert len({tuple(row[name] for name in kinds) for row in rows}) == 1 + len(kinds)


@pytest.mark.long
def test_spark_maintains_and_restores_a_table_of_delta(spark: SparkSession, tmp_path: Path) -> None:
    one = delta_lake(spark, tmp_path, value=pa.int64())
    where = f"delta.`{one.owned.location()}`"
    one.made(value="offset")
    kept = spark.sql(f"DESCRIBE HISTORY {where} LIMIT 1").collect()[0]["version"]
    one.made(value="offset")
    spark.sql(f"OPTIMIZE {where}")
    one.made(value="offset")
    spark.sql(f"INSERT INTO {where} (value) VALUES (-1)")
    found = Counter(row["kcr_offset"] for row in one.owned.rows().to_pylist())
    assert found.pop(None) == 1
    assert found == dict.fromkeys(range(30), 2)
    spark.sql(f"RESTORE TABLE {where} TO VERSION AS OF {kept}")
    with pytest.raises(SinkError, match="was rolled back to before"):
        one.made(value="offset")


@pytest.mark.long
def test_rows_that_spark_marks_as_deleted_in_place_are_taken_out_with_the_others(
    spark: SparkSession, tmp_path: Path
) -> None:
    one = delta_lake(spark, tmp_path, value=pa.int64())
    where = f"delta.`{one.owned.location()}`"
    spark.sql(f"ALTER TABLE {where} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    one.made(value="offset")
    one.made(value="offset")
    spark.sql(f"DELETE FROM {where} WHERE kcr_offset = 15 AND kcr_partition = 0")
    assert len(one.owned.rows()) == 39
    one.reset(by=-7)
    found = Counter((row["kcr_partition"], row["kcr_offset"]) for row in one.owned.rows().to_pylist())
    assert found == Counter((p, o) for p in range(2) for o in range(10))


READS = "raise_error('a row was asked for')"


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"value": f"CAST({READS} AS LONG)", "more": "1"}, "has no column more; add it to the table"),
        ({"value": f"CAST({READS} AS STRING)"}, "has column value as bigint, and the pipeline writes string; cast it"),
        ({"other": READS}, "has no column other; add it to the table"),
        ({}, "requires column value, which the pipeline does not write"),
    ],
)
def test_columns_that_do_not_fit_are_refused_before_a_record_is_read(
    with_value: Callable[[bool], TableLake], columns: dict[str, str], said: str
) -> None:
    one = with_value(True)
    with pytest.raises(SinkError, match=said):
        one.made(**columns)
    kind = SinkKind.DELTA if isinstance(one.owned, DeltaFolder) else SinkKind.ICEBERG
    sink = declared(one.owned, kind, one.driver.region.region_id)
    table = sink.table(HadoopFolder(one.spark, sink.target.path))
    table.check()
    rows = one.spark.sql(f"SELECT {', '.join(['1 AS kcr_partition', *(f'{v} AS {k}' for k, v in columns.items())])}")
    with pytest.raises(SinkError, match=rf"^sink out of group g \(groups\[0\]\.sinks\.out\.table\): .*{said}"):
        table.as_stored(rows, "batch")


def test_a_required_column_takes_values_and_no_null(with_value: Callable[[bool], TableLake]) -> None:
    one = with_value(True)
    assert sorted(row["value"] for row in one.made(value="offset")) == sorted([*range(10), *range(10)])
    with pytest.raises(Exception, match="requires column value, which is NULL in a row"):
        one.made(value="nullif(offset, 12)")


def test_several_rows_of_a_record_come_and_go_together(with_value: Callable[[bool], TableLake]) -> None:
    one = with_value(False)
    lines = "explode(array_repeat(offset, CAST(offset % 3 AS INT)))"
    rows = [one.made(value=lines) for _ in range(2)][-1]
    assert Counter(row["kcr_offset"] for row in rows) == Counter({offset: 2 * (offset % 3) for offset in range(20)})
    one.reset(by=-7)
    left = Counter(row["kcr_offset"] for row in one.owned.rows().to_pylist())
    assert left == Counter({offset: 2 * (offset % 3) for offset in range(10)})


def test_a_column_that_was_renamed_since_keeps_its_values(spark: SparkSession, tmp_path: Path) -> None:
    one = lake(spark, tmp_path, Schema(NestedField(1, "value", LongType())))
    one.made(value="offset")
    assert isinstance(one.owned, Warehouse)
    with one.owned.table().update_schema() as update:
        update.rename_column("value", "amount")
        update.add_column("note", StringType())
    rows = one.made(amount="offset", note="'new'")
    assert sorted(row["amount"] for row in rows) == sorted([*range(20), *range(20)])
    assert Counter(row["note"] for row in rows) == {None: 20, "new": 20}


def test_a_column_that_got_a_wider_type_since_takes_both(spark: SparkSession, tmp_path: Path) -> None:
    one = lake(spark, tmp_path, Schema(NestedField(1, "value", IntegerType())))
    batch = one.driver.start_batch(one.driver.member(0), 10)
    call = call_of(one.driver, batch)
    writer = SinkOfBatch(one.sink, call)
    writer.write(one.rows(call).selectExpr("topic", "partition", "offset", "CAST(offset AS INT) AS value"))
    writer.finish()
    one.driver.finish_batch(batch)
    assert isinstance(one.owned, Warehouse)
    with one.owned.table().update_schema() as update:
        update.update_column("value", LongType())
    rows = one.made(value="offset + 5000000000")
    assert Counter(row["value"] for row in rows) == Counter(
        [*range(10), *range(10), *range(5000000010, 5000000020), *range(5000000010, 5000000020)]
    )


def rows_of(made: Owned) -> Counter[tuple[int, int]]:
    """How often the table has each record, by its own files and DuckDB's reading of them."""
    files = sorted(path.removeprefix("file://") for path in made.paths())
    if not files:
        return Counter()
    with duckdb.connect() as connection:
        found = connection.execute("SELECT kcr_partition, kcr_offset FROM read_parquet(?)", [files]).fetchall()
    return Counter((partition, offset) for partition, offset in found)


def owned_table(kind: str, root: Path) -> Owned:
    """A table as the pipeline of the members writes it."""
    kinds = {"name": pa.string(), "newest": pa.int64(), "value": pa.string()}
    if kind == "delta":
        deltalake.DeltaTable.create(root.as_uri(), pa.schema(list(kinds.items())))
        return DeltaFolder(root=root)
    made = warehouse(root)
    made.drop()
    made.catalog().create_table(NAME, pa.schema(list(kinds.items())))
    return made


def records(one: Live) -> Counter[tuple[int, int]]:
    """Every record of the topic, once."""
    return Counter((number, offset) for number, end in one.kafka.ends(one.topic).items() for offset in range(end))


@contextmanager
def filled_by_members(lend: Lend, kafka: Kafka, made: Owned, kind: str) -> Iterator[Live]:
    """Lend a region whose members write each record of a topic into a table."""
    sink = json.dumps({"kind": kind, **made.spec()})
    with lend(
        group=f", delivery: exactly_once, sinks: {{out: {sink}}}",
        name=kafka.group_id("g"),
        pipeline="tests.support.spark_latest_pipeline:process",
    ) as one:
        yield one


def held(one: Live, member: Process, gate: str) -> None:
    """Have a member process records, and publish their checkpoint up to a gate."""
    member.gate(gate)
    one.fill(30)
    one.until(one.consumed, "everything consumed", WITHIN)
    one.handle(RequestCheckpoint(request_id=RequestId(f"held-{member.process.pid}")))
    one.until(lambda: member.reached(gate), f"a publication at {gate}", WITHIN)


def whole(one: Live, made: Owned, when: str) -> None:
    """Wait until each record is in a checkpoint, and count the table's."""
    finished(one, WITHIN)
    one.until(lambda: rows_of(made) == records(one), f"each record in the table once, {when}", WITHIN)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_a_member_fills_a_table_through_a_kill_and_a_reset(
    kafka: Kafka, lend_on_spark: Lend, tmp_path: Path, kind: str
) -> None:
    made = owned_table(kind, tmp_path / "warehouse")
    with filled_by_members(lend_on_spark, kafka, made, kind) as one:
        member = one.start(0)
        for _ in range(2):
            one.fill(30)
            whole(one, made, "as it runs")

        member.kill()
        one.start(0, takeover=True)
        one.fill(30)
        whole(one, made, "after a kill")

        with Region(one.name, one.store) as region:
            first = checkpoints(one)[0].sequence
            plan = region.resets.plan(ResetRequest(target=ToCheckpoint(sequence=first)))
            region.resets.apply(plan, "to see")
            region.resets.wait_for(plan.plan, timedelta(seconds=WITHIN))
        one.fill(30)
        whole(one, made, "after a reset")
        told = {(one["kcr.timeline"], one["kcr.sequence"]) for one in made.commits() if "kcr.sequence" in one}
        with Region(one.name, one.store) as region:
            assert told >= {(str(row.timeline), str(row.sequence)) for row in checkpoints(one) if row.undone_by is None}
            assert not region.verify().violations


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("moment", ["committing", "writing", "shown"])
@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_a_driver_that_freezes_or_is_killed_while_it_publishes_loses_and_doubles_no_row(
    kafka: Kafka, lend_on_spark: Lend, tmp_path: Path, kind: str, moment: str
) -> None:
    made = owned_table(kind, tmp_path / "warehouse")
    with filled_by_members(lend_on_spark, kafka, made, kind) as one:
        frozen = one.start(0)
        held(one, frozen, moment)
        frozen.freeze()
        killed = one.start(0, takeover=True)
        whole(one, made, "while its writer is frozen")
        frozen.open(moment)
        frozen.thaw()
        one.until(lambda: not frozen.running, "the end of who was frozen", WITHIN)
        assert rows_of(made) == records(one)

        held(one, killed, moment)
        killed.kill()
        one.start(0, takeover=True)
        whole(one, made, "after a kill")
        with Region(one.name, one.store) as region:
            assert not region.verify().violations


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_executors_that_freeze_or_are_killed_under_a_publication_and_after_it_lose_and_double_no_row(
    kafka: Kafka, lend_on_spark: Lend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    made = owned_table(kind, tmp_path / "warehouse")
    with standalone(tmp_path / "cluster", workers=1) as cluster:
        monkeypatch.setenv(CONF, json.dumps(application_settings(cluster)))
        with filled_by_members(lend_on_spark, kafka, made, kind) as one:
            member = one.start(0)
            held(one, member, "committing")
            [executor] = executors(cluster)
            os.kill(executor, signal.SIGSTOP)
            member.open("committing")
            one.until(lambda: bool(rows_of(made)), "a checkpoint in the table without executors", WITHIN)
            one.fill(30)
            began = len(list(one.store.batches(one.name)))
            one.until(lambda: len(list(one.store.batches(one.name))) > began, "a batch under way", WITHIN)
            os.kill(executor, signal.SIGKILL)
            whole(one, made, "after an executor's end")
            with Region(one.name, one.store) as region:
                assert not region.verify().violations
