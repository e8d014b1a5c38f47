"""A pipeline on Spark whose output is a file, one JSON line a record, so that a test can count what was processed."""

from __future__ import annotations

import json
import logging
import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_kcr.spark import BatchContext

OUTPUT = "KCR_TEST_OUTPUT"
PAUSE = 0.3
"""Seconds that a batch takes at least, so that a kill finds one at work."""

_LOG = logging.getLogger(__name__)


def process(batch: DataFrame, context: BatchContext) -> None:
    """Append the batch to the file, and to the sink, if there is one."""
    rows = batch.select("topic", "partition", "offset").collect()
    threading.Event().wait(PAUSE)
    lines = [json.dumps({"batch": context.batch_id, **row.asDict(), "value": ""}) for row in rows]
    descriptor = os.open(os.environ[OUTPUT], os.O_APPEND | os.O_CREAT | os.O_WRONLY)
    try:
        os.write(descriptor, "".join(f"{line}\n" for line in lines).encode())
    finally:
        os.close(descriptor)
    if context.sinks:
        context.sinks["out"].write(batch.select("topic", "partition", "offset"))
    _LOG.info("wrote %d records", len(rows))
