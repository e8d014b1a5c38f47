"""A pipeline of runs: it writes the values of records, and kills its own process once where it is told to."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_kcr.spark.context import BatchContext

KILL: str = "KCR_TESTS_KILL"
"""The variable that names a file: while it is there, the next batch takes it away, writes, and dies."""


def process(rows: DataFrame, context: BatchContext) -> None:
    """Write the values."""
    context.sinks["out"].write(rows.selectExpr("topic", "partition", "offset", "CAST(value AS string) AS value"))
    path = Path(os.environ.get(KILL, "/nowhere"))
    if path.exists():
        path.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def count(rows: DataFrame, context: BatchContext) -> None:
    """Only read."""
    rows.write.format("noop").mode("overwrite").save()
