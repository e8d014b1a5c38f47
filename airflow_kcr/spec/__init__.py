"""The region spec: what a region is, as its owner writes it (docs/reference/spec.md).

A YAML file, or the dataclasses of the same fields, becomes a frozen `RegionSpec`; its `rules()` are what the protocol
decides by, its `to_json()` is what the store holds. Everything that is wrong is said at once, each with its path in the
file.
"""

from __future__ import annotations

from airflow_kcr.settings import KafkaSettings, refusals, resolve_environment
from airflow_kcr.spec.changes import Difference, Split, differences, is_other_address, split
from airflow_kcr.spec.fields import FOREVER, TakesEffect
from airflow_kcr.spec.model import BatchSpec, CheckpointSpec, GroupSpec, HistorySpec, RegionSpec
from airflow_kcr.spec.sinks import SinkKind, SinkSpec
from airflow_kcr.spec.yaml_text import load, parse

__all__ = [
    "FOREVER",
    "BatchSpec",
    "CheckpointSpec",
    "Difference",
    "GroupSpec",
    "HistorySpec",
    "KafkaSettings",
    "RegionSpec",
    "SinkKind",
    "SinkSpec",
    "Split",
    "TakesEffect",
    "differences",
    "is_other_address",
    "load",
    "parse",
    "refusals",
    "resolve_environment",
    "split",
]
