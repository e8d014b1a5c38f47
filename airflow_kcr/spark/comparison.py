"""Rows before and after, compared by a key: what the same records became, by two versions of a pipeline."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from airflow_kcr.api.recomputations import ComparedRows, OutputComparison
from airflow_kcr.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

EXAMPLES: Final = 10
"""How many keys of each kind of difference are shown."""

_OURS: Final = "kcr_"
_STATES: Final = ("same", "different", "only_before", "only_after")


def require_key(key: Sequence[str], rows: DataFrame, what: str) -> None:
    """Refuse a key that rows don't have.

    Args:
        key: its columns.
        rows: in which they are looked up; without any column of the pipeline's, nothing is refused.
        what: whose rows they are, for the message.

    Raises:
        ConfigurationError: a column is missing.
    """
    known = [name for name in rows.columns if not name.startswith(_OURS)]
    missing = [name for name in key if name not in rows.columns]
    if known and missing:
        raise ConfigurationError(
            f"compare: {what} has no column {', '.join(missing)}; it has {', '.join(known)}, and of each row's "
            f"record {', '.join(name for name in rows.columns if name not in known)}"
        )


def compared(
    before: DataFrame, after: DataFrame, *, sequence: int, group: str, sink: str, key: tuple[str, ...]
) -> OutputComparison:
    """Return how rows differ, by their key; rows that share a key are compared together, in no order.

    Columns that only one side has are named, and the others compared. `kcr_` columns count only in the key.

    Args:
        before: the rows that are shown.
        after: those that would take their place.
        sequence: of the checkpoint.
        group: whose output it is.
        sink: the sink's name.
        key: the columns that name a row.

    Raises:
        ConfigurationError: a column of the key is missing.
    """
    from pyspark.sql import functions
    from pyspark.storagelevel import StorageLevel

    what = f"sink {sink} of group {group}"
    require_key(key, before, what)
    require_key(key, after, what)
    columns = [{name for name in side.columns if not name.startswith(_OURS)} for side in (before, after)]
    # A side without rows may have no columns either: then it has those of the other one.
    sides = [
        side if its else other.where("false")
        for side, other, its in ((before, after, columns[0]), (after, before, columns[1]))
    ]
    shared = sorted(name for name in set(sides[0].columns) & set(sides[1].columns) if not name.startswith(_OURS))
    values = [name for name in shared if name not in key]
    named = [functions.to_json(functions.struct(*map(_column, key)), {"ignoreNullFields": "false"}).alias("key")]
    row = functions.to_json(functions.struct(*map(_column, values)), {"ignoreNullFields": "false"})
    collected = [
        side.select(*named, (row if values else functions.lit("{}")).alias("row"))
        .groupBy("key")
        .agg(functions.sort_array(functions.collect_list("row")).alias(name))
        for side, name in zip(sides, ("before", "after"), strict=True)
    ]
    joined = collected[0].join(collected[1], "key", "full_outer")
    state = (
        functions.when(functions.col("after").isNull(), "only_before")
        .when(functions.col("before").isNull(), "only_after")
        .when(functions.col("before") == functions.col("after"), "same")
        .otherwise("different")
    )
    told = joined.withColumn("state", state).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        counts = {
            one["state"]: one
            for one in told.groupBy("state")
            .agg(
                functions.count("*").alias("keys"),
                functions.sum(functions.size(functions.coalesce("before", functions.array()))).alias("before"),
                functions.sum(functions.size(functions.coalesce("after", functions.array()))).alias("after"),
            )
            .collect()
        }
        examples = {
            name: tuple(map(_example, told.where(functions.col("state") == name).orderBy("key").take(EXAMPLES)))
            for name in _STATES[1:]
            if name in counts
        }
    finally:
        told.unpersist()
    keys = {name: counts[name]["keys"] if name in counts else 0 for name in _STATES}
    return OutputComparison(
        sequence=sequence,
        group=group,
        sink=sink,
        key=key,
        rows_before=sum(one["before"] for one in counts.values()),
        rows_after=sum(one["after"] for one in counts.values()),
        same=keys["same"],
        different=keys["different"],
        only_before=keys["only_before"],
        only_after=keys["only_after"],
        columns_only_before=tuple(sorted(columns[0] - columns[1])) if all(columns) else (),
        columns_only_after=tuple(sorted(columns[1] - columns[0])) if all(columns) else (),
        examples=examples,
    )


def _column(name: str) -> Column:
    from pyspark.sql import functions

    return functions.col(f"`{name.replace('`', '``')}`").alias(name)


def _example(row: Row) -> ComparedRows:
    return ComparedRows(
        key=json.loads(row["key"]),
        before=tuple(json.loads(one) for one in row["before"] or ()),
        after=tuple(json.loads(one) for one in row["after"] or ()),
    )
