"""Batches on Spark: exact ranges read by Spark's own connector, handed to a pipeline, cancelled, and quiet afterwards.

A pipeline is a function of two arguments, and only the second is of this package::

    from __future__ import annotations

    from pyspark.sql import DataFrame

    from airflow_kcr.spark import BatchContext


    def process(batch: DataFrame, context: BatchContext) -> None: ...

Importing this package costs nothing: `pyspark` is imported by the modules that need it.
"""

from __future__ import annotations

from airflow_kcr.spark.context import BatchContext

__all__ = ["BatchContext"]
