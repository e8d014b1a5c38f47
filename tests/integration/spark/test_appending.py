"""Many very small files are appended to each other before Spark puts them together; none of their rows changes."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_kcr.errors import SinkError
from airflow_kcr.spark.appending import FEWEST, MOST_BYTES, appended
from airflow_kcr.spark.file_sinks import SparkRewriter, read_files
from airflow_kcr.spark.hadoop import HadoopFolder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MANY = 2 * FEWEST + 1
COLUMNS = (
    "id",
    "IF(id = 1, NULL, 'x') AS text",
    "DATE '1500-01-01' AS day",
    "TIMESTAMP '1500-01-01 12:00:00' AS time",
    "ARRAY(STRUCT(id AS a, 1.5BD AS b)) AS nested",
)
CALENDAR = "spark.sql.parquet.datetimeRebaseModeInWrite"


def written(spark: SparkSession, folder: Path, name: str, copies: int) -> tuple[dict[str, int], str]:
    """Have files of the same two rows, and return them with their bytes, and their schema."""
    rows = spark.range(2).coalesce(1).selectExpr(*COLUMNS)
    rows.write.parquet(str(folder / "made"))
    (made,) = (folder / "made").glob("*.parquet")
    paths = [f"{name}-{number}.parquet" for number in range(copies)]
    for path in paths:
        shutil.copyfile(made, folder / path)
    shutil.rmtree(folder / "made")
    size = (folder / paths[0]).stat().st_size
    return dict.fromkeys(paths, size), spark.read.parquet(str(folder / paths[0])).schema.json()


def rows_in(spark: SparkSession, folder: Path, paths: tuple[str, ...], schema: str) -> Counter[str]:
    """Each row as text, and how often it is there."""
    return Counter(str(row) for row in read_files(spark, [f"{folder}/{path}" for path in paths], schema).collect())


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A folder."""
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def test_many_small_files_are_a_few_with_the_same_rows(spark: SparkSession, out: Path) -> None:
    files, schema = written(spark, out, "a", MANY)
    fewer = appended(HadoopFolder(spark, str(out)), files, "_new")
    assert fewer == ("_new/00000.parquet", "_new/00064.parquet", "_new/00128.parquet")
    assert rows_in(spark, out, fewer, schema) == rows_in(spark, out, tuple(files), schema)


def test_a_few_files_and_large_ones_are_left_to_spark(spark: SparkSession, out: Path) -> None:
    folder = HadoopFolder(spark, str(out))
    few = dict.fromkeys((f"{n}.parquet" for n in range(2 * FEWEST - 1)), 1)
    large = dict.fromkeys((f"{n}.parquet" for n in range(MANY)), MOST_BYTES // MANY + 1)
    assert appended(folder, few, "_new") == tuple(few)
    assert appended(folder, large, "_new") == tuple(large)
    assert list(out.iterdir()) == []


def test_files_with_dates_of_two_calendars_keep_their_dates(spark: SparkSession, out: Path) -> None:
    files, schema = written(spark, out, "a", MANY)
    spark.conf.set(CALENDAR, "LEGACY")
    try:
        files |= written(spark, out, "b", 2)[0]
    finally:
        spark.conf.unset(CALENDAR)
    made = SparkRewriter(spark, HadoopFolder(spark, str(out))).rewrite(files, schema, "small", files=1)
    assert rows_in(spark, out, tuple(made), schema) == rows_in(spark, out, tuple(files), schema)
    assert sorted(path.name for path in out.iterdir() if not path.name.startswith(".")) == sorted([*files, *made])


def test_a_file_that_is_gone_is_named(spark: SparkSession, out: Path) -> None:
    files, schema = written(spark, out, "a", MANY)
    (out / "a-7.parquet").unlink()
    with pytest.raises(SinkError, match=r"a-7\.parquet"):
        SparkRewriter(spark, HadoopFolder(spark, str(out))).rewrite(files, schema, "small", files=1)
