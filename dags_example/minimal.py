"""A region in ten lines: its consumers, a checkpoint every five minutes, and resets from the browser."""

from __future__ import annotations

from airflow_kcr.dags import region_dags
from airflow_kcr.embedded.flights.spec import live_since
from airflow_kcr.spec import parse

spec = parse("""
region: minimal
kafka: {bootstrap.servers: '${KCR_KAFKA_BOOTSTRAP}'}
groups:
  - {group_id: minimal-etl, topics: [flights], pipeline: 'airflow_kcr.embedded.flights.pipeline:process'}
checkpoint: {every: 5m}
""")
consumers, checkpoint, reset = region_dags(spec, start_date=live_since())
