"""Rows before and after, compared by a key in Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.spark.comparison import EXAMPLES, compared

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ITS = {"sequence": 2, "group": "g", "sink": "out"}
COLUMNS = "k string, v double, kcr_topic string, kcr_partition int, kcr_offset bigint"


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
    found = compared(*sides, **ITS, key=("k",))  # type: ignore[arg-type]
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
    by_record = compared(*sides, **ITS, key=("kcr_partition", "kcr_offset"))  # type: ignore[arg-type]
    assert (by_record.same, by_record.only_before, by_record.only_after) == (0, 6, 7)


def test_columns_of_one_side_are_named_and_not_compared(spark: SparkSession) -> None:
    before = spark.sql("SELECT 'a' AS k, 1 AS v, 'x' AS old, 0 AS kcr_offset")
    after = spark.sql("SELECT 'a' AS k, 1 AS v, map('y', 2) AS `ne``w`, 1 AS kcr_offset")
    found = compared(before, after, **ITS, key=("k",))  # type: ignore[arg-type]
    assert (found.same, found.columns_only_before, found.columns_only_after) == (1, ("old",), ("ne`w",))


def test_where_there_is_no_row_every_key_is_on_the_other_side(spark: SparkSession) -> None:
    rows = spark.sql("SELECT id AS k, id AS v, id AS kcr_offset FROM range(100)")
    none = spark.createDataFrame([], "kcr_topic string, kcr_partition int, kcr_offset bigint")
    found = compared(rows, none, **ITS, key=("k",))  # type: ignore[arg-type]
    assert (found.only_before, found.rows_after, len(found.examples["only_before"])) == (100, 0, EXAMPLES)
    assert (found.columns_only_before, found.columns_only_after) == ((), ())
    assert compared(none, rows, **ITS, key=("k",)).only_after == 100  # type: ignore[arg-type]
    assert compared(none, none, **ITS, key=("kcr_offset",)).rows_before == 0  # type: ignore[arg-type]


def test_a_key_that_rows_lack_is_refused(spark: SparkSession) -> None:
    rows = spark.sql("SELECT 1 AS k, 1 AS v, 0 AS kcr_offset")
    with pytest.raises(ConfigurationError, match=r"sink out of group g has no column id; it has k, v, .*kcr_offset"):
        compared(rows, rows, **ITS, key=("k", "id"))  # type: ignore[arg-type]
