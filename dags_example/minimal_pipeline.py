"""The pipeline of the region `minimal`: it says how many records each batch has.

Replace the body with your own work on the batch, which is a Spark DataFrame with the columns of Spark's Kafka connector
(key, value, topic, partition, offset, timestamp, timestampType).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_kcr.spark import BatchContext

LOG = logging.getLogger(__name__)


def process(batch: DataFrame, context: BatchContext) -> None:
    """Log the number of records of a batch, which belongs to the checkpoint `context.sequence`."""
    LOG.info("%s: %d records for checkpoint %d", context.member, batch.count(), context.sequence)
