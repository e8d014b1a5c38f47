"""Whether COPY from Python workers would fill a sink's staging table with less than Spark's JDBC writer needs."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

import psutil
import psycopg
import pytest

from airflow_kcr.embedded.servers import USER
from tests.benchmarks.contenders import Contender, Race, Reading
from tests.benchmarks.figures import Report, Scale, ratio, spread
from tests.benchmarks.lab import PARTITIONS
from tests.support.tied import Postgres, start_postgres

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(1800)]

BATCHES: Final = (20_000, 60_000)
SIZE: Final = 1_000
DIGITS: Final = 6
"""In which each value differs from the others."""

COLUMNS: Final = (
    "'topic' AS topic",
    f"CAST(id % {PARTITIONS} AS INT) AS partition",
    "id AS offset",
    f"concat(lpad(CAST(id AS STRING), {DIGITS}, '0'), '{'x' * (SIZE - DIGITS)}') AS value",
)


class Spent(NamedTuple):
    """Processor seconds."""

    jvm: float
    workers: float
    postgres: float

    @classmethod
    def until_now(cls, target: Postgres) -> Spent:
        """Return what Spark's JVM, its Python workers and the server have spent since they were started."""
        while True:
            # One that ends in between is in its parent's times at the next look.
            with suppress(psutil.NoSuchProcess):
                return cls._read(target)

    @classmethod
    def _read(cls, target: Postgres) -> Spent:
        jvm = [one for one in psutil.Process().children() if one.name() == "java"]
        workers = [one for java in jvm for one in java.children(recursive=True)]
        postmaster = psutil.Process(int((target.data / "postmaster.pid").read_text(encoding="utf-8").split()[0]))
        server = [postmaster, *postmaster.children(recursive=True)]
        # Whatever a JVM has started is a worker, or the daemon that has.
        return cls(_seconds(jvm, ended=False), _seconds(workers), _seconds(server))

    def since(self, before: Spent) -> Spent:
        """Return what was spent after an earlier reading."""
        return Spent(*(now - then for now, then in zip(self, before, strict=True)))


def _seconds(processes: Iterable[psutil.Process], *, ended: bool = True) -> float:
    times = [one.cpu_times() for one in processes]
    return sum(t.user + t.system + (t.children_user + t.children_system if ended else 0.0) for t in times)


@pytest.fixture
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """A database for the tables, whose every COMMIT waits for the disk."""
    server = start_postgres(tmp_path_factory.mktemp("target"), settings={})
    yield server
    server.stop()


@pytest.mark.parametrize("batch", BATCHES)
def test_copy_against_jdbc(
    batch: int, bench_spark: SparkSession, scale: Scale, report: Callable[[str], Report], target: Postgres
) -> None:
    records = scale.of(batch, PARTITIONS)
    found = report(f"copy-postgres-{batch}")
    numbers = count()
    spent: dict[str, list[Spent]] = defaultdict(list)

    def into_table(name: str, write: Callable[[DataFrame, str, Postgres], None], kind: str, expected: int) -> Reading:
        table = f"written_{next(numbers)}"
        rows = bench_spark.range(0, records, 1, PARTITIONS).selectExpr(*COLUMNS)
        with psycopg.connect(target.url(), autocommit=True) as connection:
            declared = 'topic text, partition integer, "offset" bigint, value text'
            connection.execute(f"CREATE {kind} TABLE {table} ({declared})".encode())
            before, began = Spent.until_now(target), time.perf_counter()
            write(rows, table, target)
            seconds = time.perf_counter() - began
            spent[name].append(Spent.until_now(target).since(before))
            (written,) = connection.execute(f"SELECT count(DISTINCT value) FROM {table}".encode()).fetchone() or (0,)
            assert written == expected
            connection.execute(f"DROP TABLE {table}".encode())
            connection.execute("CHECKPOINT")
        return Reading(records=records, seconds=seconds)

    nothing = "rows made and not written"
    jdbc, copy = "JDBC with our settings, staging table", "binary COPY from Arrow, staging table"
    logged_jdbc, logged_copy = "JDBC with our settings, logged table", "binary COPY from Arrow, logged table"
    driver_copy = "COPY of CSV by the driver alone, logged table"

    def way(name: str, write: Callable[[DataFrame, str, Postgres], None], kind: str, expected: int) -> Contender:
        return Contender(name=name, read=partial(into_table, name, write, kind, expected))

    race = Race(
        (
            way(nothing, not_at_all, "", 0),
            way(jdbc, by_jdbc, "UNLOGGED", records),
            way(copy, by_copy, "UNLOGGED", records),
            way(logged_jdbc, by_jdbc, "", records),
            way(logged_copy, by_copy, "", records),
            way(driver_copy, by_driver, "", records),
        )
    )
    race.run(scale.rounds)

    counted = {name: each[1:] for name, each in spent.items()}  # without the one to warm up
    totals = {name: [sum(one) for one in each] for name, each in counted.items()}
    found.table(
        f"{records:,} records of {SIZE:,} B in {PARTITIONS} tasks: records a second, and processor seconds",
        ("how", "median", "smallest to largest", "Spark's JVM", "Python workers", "Postgres", "all three"),
        [
            (
                name,
                median(race.rates(name)),
                spread(race.rates(name)),
                *(median(part) for part in zip(*counted[name], strict=True)),
                median(totals[name]),
            )
            for name, _ in race.rows()
        ],
    )
    # Above this, COPY is worth a Python worker for each task.
    found.at_most("COPY to JDBC, staging table: records a second", ratio(race.rates(copy), race.rates(jdbc)), 1.5)
    found.at_least("COPY to JDBC, staging table: processor seconds", ratio(totals[copy], totals[jdbc]), 1.0)


def not_at_all(rows: DataFrame, table: str, target: Postgres) -> None:
    """Make the rows."""
    rows.write.format("noop").mode("overwrite").save()


def by_jdbc(rows: DataFrame, table: str, target: Postgres) -> None:
    """Write with Spark's own writer, as the sink tells it to."""
    options = {"driver": "org.postgresql.Driver", "batchsize": "5000", "reWriteBatchedInserts": "true"}
    rows.write.format("jdbc").options(
        **options, url=f"jdbc:postgresql://127.0.0.1:{target.port}/postgres?user={USER}", dbtable=table
    ).mode("append").save()


def by_driver(rows: DataFrame, table: str, target: Postgres) -> None:
    """Collect all rows and copy them over one connection, as a sink could that wrote each row once, under its fence."""
    import pyarrow as pa
    from pyarrow import csv

    text = pa.BufferOutputStream()
    csv.write_csv(rows.toArrow(), text, csv.WriteOptions(include_header=False))
    whole = memoryview(text.getvalue())
    copied = f"COPY {table} FROM STDIN (FORMAT CSV)"
    with psycopg.connect(target.url()) as connection, connection.cursor().copy(copied.encode()) as copy:
        for begin in range(0, len(whole), 1 << 20):
            copy.write(whole[begin : begin + (1 << 20)])


def by_copy(rows: DataFrame, table: str, target: Postgres) -> None:
    """Copy each partition's Arrow batches in one transaction."""
    url, statement = target.url(), f"COPY {table} FROM STDIN (FORMAT BINARY)"

    # Inside, since the workers can't import this module.
    def copied(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import numpy as np
        import psycopg
        import pyarrow as pa
        import pyarrow.compute as pc

        def integers(numbers: object, width: int) -> pa.Array:
            big = np.ascontiguousarray(numbers, dtype=f">i{width}")
            return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(big), [None, pa.py_buffer(big)])

        with psycopg.connect(url) as connection, connection.cursor().copy(statement) as copy:
            copy.write(b"PGCOPY\n\xff\r\n\0" + bytes(8))
            for batch in batches:
                parts: list[object] = [pa.scalar(batch.num_columns.to_bytes(2), pa.binary())]
                for column in batch.columns:
                    if pa.types.is_integer(column.type):
                        width = column.type.bit_width // 8
                        body = integers(column.to_numpy(), width).cast(pa.binary())
                    else:
                        body = column.cast(pa.binary())
                    parts += [integers(pc.binary_length(body).to_numpy(), 4).cast(pa.binary()), body]
                joined = pc.binary_join_element_wise(*parts, b"")
                first, last = joined.offset, joined.offset + len(joined)
                offsets = np.frombuffer(joined.buffers()[1], dtype=np.int32)
                copy.write(memoryview(joined.buffers()[2])[offsets[first] : offsets[last]])
            copy.write(b"\xff\xff")
        yield pa.RecordBatch.from_pydict({"done": pa.array([True])})

    rows.mapInArrow(copied, "done BOOLEAN").collect()
