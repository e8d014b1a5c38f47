"""A pipeline of runs: it writes the values of records; it waits, or kills its own process, where it is told to."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_kcr.spark.context import BatchContext

KILL: Final = "KCR_TESTS_KILL"
"""The variable that names a file: while it is there, the next batch takes it away, writes, and dies."""

GATE: Final = "KCR_TESTS_GATE"
"""The variable that names a file: while it is there, a batch that has written waits, and says so (`at`) beside it."""

SUFFIX: Final = "KCR_TESTS_SUFFIX"
"""The variable whose value is appended to each value."""

WORKER: Final = "KCR_TESTS_WORKER"
"""The variable that names a file with an offset: while it is there, a Python worker with such a record waits, and says
so (`at`) beside it."""

_WITHIN: Final = 250.0


def process(rows: DataFrame, context: BatchContext) -> None:
    """Write the values."""
    from pyspark.sql import functions

    values = rows.selectExpr("topic", "partition", "offset", "CAST(value AS string) AS value")
    if worker := os.environ.get(WORKER):
        value = functions.udf(lambda offset, value: _in_a_worker(Path(worker), offset, value))
        values = values.withColumn("value", value("offset", "value"))
    suffix = functions.lit(os.environ.get(SUFFIX, ""))
    context.sinks["out"].write(values.withColumn("value", functions.concat("value", suffix)))
    path = Path(os.environ.get(KILL, "/nowhere"))
    if path.exists():
        path.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    _wait(Path(os.environ.get(GATE, "/nowhere")))


def _in_a_worker(gate: Path, offset: int, value: str) -> str:
    """Return the value of a record; where the gate has its offset, behind the gate."""
    if gate.exists() and int(gate.read_text()) == offset:
        _wait(gate)
    return value


def _wait(gate: Path) -> None:
    never, waited = threading.Event(), 0.0
    while gate.exists() and waited < _WITHIN:
        at(gate).touch()
        never.wait(0.2)
        waited += 0.2


def at(gate: Path) -> Path:
    """Return the file that says that a batch waits."""
    return gate.with_suffix(".reached")


def count(rows: DataFrame, context: BatchContext) -> None:
    """Only read."""
    rows.write.format("noop").mode("overwrite").save()
