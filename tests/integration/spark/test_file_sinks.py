"""File sinks on a real Spark: what it writes, what a manifest names, and what `read_checkpoint` gives back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_kcr.errors import CheckpointNotUsable, ConfigurationError, SinkError
from airflow_kcr.protocol.region.rows import Outcome
from airflow_kcr.sinks import read_checkpoint
from airflow_kcr.sinks.contract import SinkOfBatch
from tests.support.lake import Lake
from tests.support.scripts import asking, call_of, recomputation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIB = 1024 * 1024


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    """A region with a sink whose files stay as they are."""
    return Lake(spark, tmp_path / "out")


@pytest.mark.long
def test_a_checkpoint_is_what_its_batches_have_written_and_the_same_when_read_again(lake: Lake) -> None:
    lake.batch(0)
    lake.batch(1)
    first = lake.checkpoint("n1")
    expected = lake.everything()
    lake.batch(0)
    second = lake.checkpoint("n2")
    assert lake.read(first) == expected
    assert lake.read(second) == lake.read()
    assert sorted(lake.read(first) + lake.read(second)) == lake.everything()
    one, again = (read_checkpoint(lake.spark, lake.root.as_uri(), sequence=first) for _ in range(2))
    assert one.columns == ["kcr_topic", "kcr_partition", "kcr_offset", "value"]
    assert sorted(one.inputFiles()) == sorted(again.inputFiles())
    assert sorted(map(tuple, one.collect())) == sorted(map(tuple, again.collect()))


def test_a_path_without_a_scheme_is_the_same_folder(lake: Lake) -> None:
    lake.batch(0)
    sequence = lake.checkpoint("n1")
    assert read_checkpoint(lake.spark, f"{lake.root}/", sequence=sequence).count() == len(lake.everything())


def test_batches_of_several_schemas_are_read_together(lake: Lake) -> None:
    lake.batch(0)
    lake.batch(0, size="offset * 2")
    sequence = lake.checkpoint("n1")
    rows = read_checkpoint(lake.spark, lake.root.as_uri(), sequence=sequence)
    assert rows.where("size IS NULL").count() == rows.where("size = kcr_offset * 2").count() == 20


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("1", "'00060'"),
        ("'00060'", "1"),
        ("named_struct('n', 1)", "named_struct('n', '1')"),
        pytest.param("1", "1L", marks=pytest.mark.long),
        pytest.param("1.5D", "1", marks=pytest.mark.long),
        pytest.param("CAST(1 AS DECIMAL(5, 2))", "CAST(1 AS DECIMAL(9, 2))", marks=pytest.mark.long),
        pytest.param("DATE '2026-01-01'", "TIMESTAMP '2026-01-01 00:00:00'", marks=pytest.mark.long),
        pytest.param("ARRAY(1)", "ARRAY('1')", marks=pytest.mark.long),
        pytest.param("named_struct('n', 1)", "1", marks=pytest.mark.long),
        pytest.param("map('n', named_struct('m', 1))", "map('n', named_struct('m', '1'))", marks=pytest.mark.long),
    ],
)
def test_a_batch_with_a_column_of_another_type_is_refused_when_it_is_written(lake: Lake, first: str, then: str) -> None:
    lake.batch(0, code=first)
    sequence = lake.checkpoint("n1")
    refused = call_of(lake.driver, lake.driver.start_batch(lake.driver.member(0)))
    with pytest.raises(SinkError, match=r"column code(\.n)? is .* has it as .*; write it as before, under another na"):
        SinkOfBatch(lake.sink, refused).write(lake.rows(refused).selectExpr("*", f"{then} AS Code"))
    rows = read_checkpoint(lake.spark, lake.root.as_uri(), sequence=sequence)
    assert [row[0] for row in rows.selectExpr("CAST(code AS STRING)").distinct().collect()] == [
        lake.spark.sql(f"SELECT CAST({first} AS STRING)").head()[0]  # type: ignore[index]
    ]


def test_fields_of_a_struct_may_differ_and_whether_something_may_be_null(lake: Lake) -> None:
    lake.batch(0, place="named_struct('a', 1, 'b', named_struct('c', 'x'))", n="1")
    lake.batch(0, place="named_struct('a', nullif(2, 2), 'b', named_struct('d', 2))", n="nullif(1, 1)")
    sequence = lake.checkpoint("n1")
    rows = read_checkpoint(lake.spark, lake.root.as_uri(), sequence=sequence)
    found = rows.selectExpr("place.a", "place.b.c", "place.b.d", "n").distinct().collect()
    assert {tuple(row) for row in found} == {(1, "x", None, 1), (None, None, 2, None)}


def test_of_two_batches_at_once_that_differ_the_second_is_refused(lake: Lake) -> None:
    other = lake.opened(lake.root.as_uri())
    calls = [call_of(lake.driver, lake.driver.start_batch(lake.driver.member(index))) for index in range(2)]
    one, two = (SinkOfBatch(sink, call) for sink, call in zip((lake.sink, other), calls, strict=True))
    one.write(lake.rows(calls[0]).selectExpr("*", "1 AS code"))
    two.write(lake.rows(calls[1]).selectExpr("*", "'1' AS code"))
    one.finish()
    with pytest.raises(SinkError, match=r"column code is string, and .* has it as integer"):
        two.finish()


def test_a_batch_and_a_checkpoint_without_rows_are_fine(lake: Lake) -> None:
    batch = lake.driver.start_batch(lake.driver.member(0))
    writer = SinkOfBatch(lake.sink, call_of(lake.driver, batch))
    writer.write(lake.rows(call_of(lake.driver, batch)).where("false"))
    writer.finish()
    lake.driver.finish_batch(batch)
    first, second = lake.checkpoint("n1"), lake.checkpoint("n2")
    for sequence in (first, second):
        rows = read_checkpoint(lake.spark, lake.root.as_uri(), sequence=sequence)
        assert (rows.count(), rows.columns) == (0, ["kcr_topic", "kcr_partition", "kcr_offset", "value"])


def test_a_writer_asks_for_one_write_with_coordinates(lake: Lake) -> None:
    call = call_of(lake.driver, lake.driver.start_batch(lake.driver.member(0)))
    writer = SinkOfBatch(lake.sink, call)
    with pytest.raises(SinkError, match="was not written to; write to each sink in every batch"):
        writer.finish()
    with pytest.raises(SinkError, match="have no column offset"):
        SinkOfBatch(lake.sink, call).write(lake.rows(call).drop("offset"))
    with pytest.raises(SinkError, match="column VALUE, value is there twice"):
        SinkOfBatch(lake.sink, call).write(lake.rows(call).selectExpr("*", "1 AS VALUE"))
    writer.write(lake.rows(call))
    with pytest.raises(SinkError, match="was written to already"):
        writer.write(lake.rows(call))


def test_a_recomputation_replaces_what_a_checkpoint_has(lake: Lake) -> None:
    lake.batch(0, code="1")
    sequence = lake.checkpoint("n1")
    rows = read_checkpoint(lake.spark, lake.root.as_uri(), sequence=sequence)
    before, number = lake.read(sequence), recomputation(lake.driver, sequence, "again")
    with pytest.raises(SinkError, match=r"column code is string, and .* has it as integer"):
        lake.revision(sequence, number, "*", "'1' AS code")
    with pytest.raises(SinkError, match="the rows have no column offset"):
        lake.revision(sequence, number, "topic", "partition")
    dropped = lake.revision(sequence, number, "*", "3 AS code")
    dropped.drop()
    number = recomputation(lake.driver, sequence, "again")
    revision = lake.revision(sequence, number, "*", "2 AS code")
    assert lake.read(sequence) == before
    revision.replace(asking(lake.driver, sequence, number))
    assert lake.read(sequence) == before
    again = read_checkpoint(lake.spark, lake.root.as_uri(), sequence=sequence)
    assert [row[0] for row in again.select("code").distinct().collect()] == [2]
    # Who has started to read what was published goes on.
    assert [row[0] for row in rows.select("code").distinct().collect()] == [1]


@pytest.mark.long
def test_small_files_are_put_together(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path / "out", file_size=MIB)
    for _ in range(9):
        lake.batch(0)
        lake.batch(1)
    sequence = lake.checkpoint("n1")
    assert lake.read(sequence) == lake.everything()
    files = read_checkpoint(spark, lake.root.as_uri(), sequence=sequence).inputFiles()
    assert len(files) == 1
    assert list((lake.root / "data").rglob("*.parquet")) == []
    assert list((lake.root / "compacted").rglob("_temporary*")) == []


@pytest.mark.long
@pytest.mark.parametrize("file_size", [0, MIB])
def test_what_is_left_of_a_checkpoint_that_was_undone_is_in_the_next_one(
    spark: SparkSession, tmp_path: Path, file_size: int
) -> None:
    lake = Lake(spark, tmp_path / "out", file_size=file_size)
    for _ in range(9):
        lake.batch(0)
        lake.batch(1)
    first = lake.checkpoint("n1")
    lake.batch(0)
    lake.reset(by=-37)
    assert any(b.undone_from and b.outcome is Outcome.DONE for b in lake.driver.batches)
    lake.batch(0)
    lake.checkpoint("n2")
    assert lake.read() == lake.everything()
    with pytest.raises(CheckpointNotUsable, match=f"checkpoint {first} of sink out .* was superseded by timeline 2"):
        lake.read(first)


def test_a_file_that_is_gone_is_an_error_and_not_fewer_rows(lake: Lake) -> None:
    from pyspark.errors import AnalysisException

    lake.batch(0)
    sequence = lake.checkpoint("n1")
    next(iter((lake.root / "data").rglob("*.parquet"))).unlink()
    with pytest.raises(AnalysisException, match="PATH_NOT_FOUND"):
        lake.read(sequence)


def test_a_folder_that_can_not_be_written_to_is_refused(lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="can't write to"):
        lake.opened(f"{tmp_path}/file/out").check()
    with pytest.raises(ConfigurationError, match="can't write to nowhere://h/out"):
        lake.opened("nowhere://h/out").check()
