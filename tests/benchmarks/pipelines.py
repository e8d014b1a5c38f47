"""Pipelines of the benchmarks, named in their specs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_kcr.spark import BatchContext


def noop(batch: DataFrame, context: BatchContext) -> None:
    """Read every record, keep none."""
    batch.write.format("noop").mode("overwrite").save()
