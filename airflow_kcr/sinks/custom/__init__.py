"""Sinks of users' own (docs/how-to/write-your-own-sink.md): `CustomSink` and its arguments.

`airflow_kcr.sinks.custom.suite` has the tests that each should pass.
"""

from __future__ import annotations

from airflow_kcr.sinks.custom.sink import AcceptedBatch, CheckpointId, CompleteCheckpoint, CustomSink, Factory, Reset

__all__ = ["AcceptedBatch", "CheckpointId", "CompleteCheckpoint", "CustomSink", "Factory", "Reset"]
