"""Batches on Spark: exact ranges read by Spark's own connector, handed to a pipeline, cancelled, and quiet afterwards.

A pipeline is a function of two arguments, and only the second is of this package::

    from __future__ import annotations

    from pyspark.sql import DataFrame

    from airflow_kcr.spark import BatchContext


    def process(batch: DataFrame, context: BatchContext) -> None: ...

Importing this package costs nothing: `pyspark` is imported by the modules that need it, and the context's own imports
wait until they are used. DAG files import the package with the operator that starts applications.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_kcr.spark.context import BatchContext

__all__ = ["BatchContext"]


def __getattr__(name: str) -> object:
    """Import what is named."""
    if name == "BatchContext":
        from airflow_kcr.spark.context import BatchContext

        return BatchContext
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
