"""A pipeline on Spark that stops at the gates of `member_process`, in the driver's part and in a Python worker.

What it writes by itself is a file, one JSON line a record, as the engine without Spark does; then its declared tables.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_kcr.spark import BatchContext

GATES, OUTPUT, JARS = "KCR_TEST_GATES", "KCR_TEST_OUTPUT", "KCR_TEST_JARS"
CONF = "KCR_TEST_SPARK_CONF"
"""Spark's settings as JSON, for members elsewhere than in local mode."""

DRIVER = "kcr.test.driver"
"""The Java property of executors with the process id of their driver's Python."""

POLL_PERIOD = 0.01


def process(batch: DataFrame, context: BatchContext) -> None:
    """Process a batch, stopping at gates."""
    from pyspark.sql import functions as F

    gates = os.environ[GATES]
    wait(gates, "processing")
    shout = F.udf(lambda value: _in_a_worker(gates, value))
    rows = batch.select("topic", "partition", "offset", shout(F.col("value").cast("string")).alias("value")).persist()
    try:
        lines = [json.dumps({"batch": context.batch_id, **row.asDict()}) for row in rows.collect()]
        descriptor = os.open(os.environ[OUTPUT], os.O_APPEND | os.O_CREAT | os.O_WRONLY)
        try:
            os.write(descriptor, "".join(f"{line}\n" for line in lines).encode())
        finally:
            os.close(descriptor)
        wait(gates, "written")
        for sink in context.sinks.values():
            sink.write(rows)
    finally:
        rows.unpersist()


def _in_a_worker(gates: str, value: str) -> str:
    """Process one record, behind the gate `worker`, beside which is the id of the process that waits there."""
    if (Path(gates) / "worker").exists():
        (Path(gates) / "worker.pid").write_text(str(os.getpid()))
        wait(gates, "worker")
    return value.upper()


def wait(folder: str, name: str) -> None:
    """Wait at a gate, if it is up."""
    gate = Path(folder) / name
    if gate.exists():
        (Path(folder) / f"{name}.reached").touch()
        while gate.exists():
            threading.Event().wait(POLL_PERIOD)
