"""The flights that have come since its last run, by one task, which is recomputed when it is cleared.

Trigger it as often as you like: each run takes what is there by then, and leaves nothing running. Clear the task of a
run to process the same flights once more, with the pipeline as it is now. `minimal_intervals.py` has runs by the clock.
"""

from __future__ import annotations

import os

from airflow.sdk import DAG

from airflow_kcr.operators.interval import KcrIntervalOperator
from airflow_kcr.spec import parse

SPEC = parse("""
region: flights_once
kafka: {bootstrap.servers: '${KCR_KAFKA_BOOTSTRAP}'}
groups:
  - group_id: flights-once-etl
    topics: [flights]
    # One row for each flight; the package's own, which needs its extra `demo`.
    pipeline: airflow_kcr.embedded.flights.table:process
    sinks: {flights: {kind: files, path: '${KCR_FLIGHTS_OUTPUT}-once'}}
# A run has all of its records before it, so it takes them in few batches.
batch: {min_records: 50000}
""")

with DAG(
    "flights_once",
    description="Processes the flights that have come since the last run",
    schedule=None,
    max_active_runs=1,
    tags=["kcr", "flights"],
):
    KcrIntervalOperator(
        task_id="process",
        spec=SPEC,
        jars=os.environ.get("KCR_SPARK_JARS", ""),  # empty: Spark fetches its Kafka connector from Maven Central
        retries=3,
    )
