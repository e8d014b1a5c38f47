"""Rows before and after, compared by a key in Spark."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession

from airflow_kcr.api import OutputComparison
from airflow_kcr.errors import ConfigurationError
from airflow_kcr.spark.comparison import EXAMPLES, compared

COLUMNS = "k string, v double, kcr_topic string, kcr_partition int, kcr_offset bigint"


def compare(before: DataFrame, after: DataFrame, key: tuple[str, ...]) -> OutputComparison:
    return compared(before, after, sequence=2, group="g", sink="out", key=key)


def test_keys_are_counted_and_shown_by_what_differs(spark: SparkSession) -> None:
    before: list[tuple[str | None, float | None]]
    after: list[tuple[str | None, float | None]]
    before = [("same", 1.0), ("nan", float("nan")), ("null", None), ("gone", 3.0), ("more", 4.0), ("new value", 5.0)]
    after = [
        ("same", 1.0),
        ("nan", float("nan")),
        ("null", None),
        ("more", 4.0),
        ("more", 4.5),
        ("new value", 6.0),
        (None, 7.0),
    ]
    sides = [
        spark.createDataFrame([(k, v, "t", side, offset) for offset, (k, v) in enumerate(rows)], COLUMNS)
        for side, rows in enumerate((before, after))
    ]
    found = compare(sides[0], sides[1], key=("k",))
    assert (found.rows_before, found.rows_after) == (6, 7)
    assert (found.same, found.different, found.only_before, found.only_after) == (3, 2, 1, 1)
    answer = found.to_json()
    assert answer["examples"] == {
        "different": [
            {"key": {"k": "more"}, "before": [{"v": 4.0}], "after": [{"v": 4.0}, {"v": 4.5}]},
            {"key": {"k": "new value"}, "before": [{"v": 5.0}], "after": [{"v": 6.0}]},
        ],
        "only_before": [{"key": {"k": "gone"}, "before": [{"v": 3.0}], "after": []}],
        "only_after": [{"key": {"k": None}, "before": [], "after": [{"v": 7.0}]}],
    }
    # By the records that the rows were made of: what was another record's is neither the same nor different.
    by_record = compare(sides[0], sides[1], key=("kcr_partition", "kcr_offset"))
    assert (by_record.same, by_record.only_before, by_record.only_after) == (0, 6, 7)


def test_columns_of_one_side_are_named_and_not_compared(spark: SparkSession) -> None:
    before = spark.sql("SELECT 'a' AS k, 1 AS v, 'x' AS old, 0 AS kcr_offset")
    after = spark.sql("SELECT 'a' AS k, 1 AS v, map('y', 2) AS `ne``w`, 1 AS kcr_offset")
    found = compare(before, after, key=("k",))
    assert (found.same, found.columns_only_before, found.columns_only_after) == (1, ("old",), ("ne`w",))


def test_where_there_is_no_row_every_key_is_on_the_other_side(spark: SparkSession) -> None:
    rows = spark.sql("SELECT id AS k, id AS v, id AS kcr_offset FROM range(100)")
    none = spark.createDataFrame([], "kcr_topic string, kcr_partition int, kcr_offset bigint")
    found = compare(rows, none, key=("k",))
    assert (found.only_before, found.rows_after, len(found.examples["only_before"])) == (100, 0, EXAMPLES)
    assert (found.columns_only_before, found.columns_only_after) == ((), ())
    assert compare(none, rows, key=("k",)).only_after == 100
    assert compare(none, none, key=("kcr_offset",)).rows_before == 0


def test_a_key_that_rows_lack_is_refused(spark: SparkSession) -> None:
    rows = spark.sql("SELECT 1 AS k, 1 AS v, 0 AS kcr_offset")
    with pytest.raises(ConfigurationError, match=r"sink out of group g has no column id; it has k, v, .*kcr_offset"):
        compare(rows, rows, key=("k", "id"))
