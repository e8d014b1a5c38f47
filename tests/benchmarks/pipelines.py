"""Pipelines of the benchmarks, named in their specs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_kcr.spark import BatchContext

DATABASE_VARIABLE: Final = "KCR_BENCHMARK_DATABASE"
"""The environment variable with the JDBC URL that `append` writes to."""

FOLDER_VARIABLE: Final = "KCR_BENCHMARK_FOLDER"
"""The environment variable with the folder that `files` writes to."""


def noop(batch: DataFrame, context: BatchContext) -> None:
    """Read every record, keep none."""
    batch.write.format("noop").mode("overwrite").save()


def sink(batch: DataFrame, context: BatchContext) -> None:
    """Write every record into the sink `out`."""
    context.sinks["out"].write(rows_of(batch))


def append(batch: DataFrame, context: BatchContext) -> None:
    """Append every record to a table as Spark does by itself, with its defaults, and no promise."""
    _append(batch, context, {})


def append_with_our_settings(batch: DataFrame, context: BatchContext) -> None:
    """Append every record with what the sink tells Spark's writer, and no promise."""
    _append(batch, context, {"batchsize": "5000", "reWriteBatchedInserts": "true"})


def _append(batch: DataFrame, context: BatchContext, settings: dict[str, str]) -> None:
    options = {"driver": "org.postgresql.Driver", **settings}
    url, table = os.environ[DATABASE_VARIABLE], f"append_{abs(hash(context.region))}"
    rows_of(batch).write.format("jdbc").options(**options, url=url, dbtable=table).mode("append").save()


def files(batch: DataFrame, context: BatchContext) -> None:
    """Write every record into a folder of the batch as Spark does by itself, with no promise."""
    rows_of(batch).write.parquet(f"{os.environ[FOLDER_VARIABLE]}/{context.region}/{context.batch_id}")


def rows_of(batch: DataFrame) -> DataFrame:
    """Return records as every contender writes them."""
    return batch.selectExpr("topic", "partition", "offset", "cast(value AS string) AS value")
