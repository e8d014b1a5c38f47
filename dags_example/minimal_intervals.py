"""A region that rests between its runs: every five minutes, one task processes the records of its interval.

Copy this file and `minimal_pipeline.py` to your DAGs, and change the address, the topic and the date. `minimal.py` is
the same with consumers that stay.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

from airflow_kcr.dags import region_dags
from airflow_kcr.spec import parse

# When the region goes live: its first data interval begins here, and each one since then gets a run.
LIVE_SINCE = datetime(2026, 11, 1, tzinfo=UTC)

spec = parse("""
region: minimal_intervals
kafka: {bootstrap.servers: '${KCR_KAFKA_BOOTSTRAP}'}
groups:
  - {group_id: minimal-intervals-etl, topics: [flights], pipeline: 'minimal_pipeline:process'}
checkpoint: {every: 5m}
""")
interval, reset = region_dags(
    spec,
    mode="interval",
    start_date=LIVE_SINCE,
    consume={
        "py_files": str(Path(__file__).with_name("minimal_pipeline.py")),
        "jars": os.environ.get("KCR_SPARK_JARS", ""),  # empty: Spark fetches its Kafka connector from Maven Central
    },
)
