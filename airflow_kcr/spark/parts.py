"""What members are built from by a spec: the user's code, the sinks and the settings of Kafka, found to be in order."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_kcr.api.clusters import client_settings
from airflow_kcr.protocol.values import GroupId
from airflow_kcr.sinks.files import FileTarget
from airflow_kcr.sinks.postgres import PostgresSink
from airflow_kcr.spark.custom_adapters import CustomTarget, custom_targets
from airflow_kcr.spark.group_sinks import checked_sinks, file_targets
from airflow_kcr.spark.pipelines import Pipeline, load_pipeline
from airflow_kcr.spec import RegionSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the members of one group are built from."""

    kafka: Mapping[str, str] = field(repr=False)
    """The client settings of the group's cluster, references filled in."""

    pipeline: Pipeline
    sinks: tuple[PostgresSink, ...] = ()
    """Of the group, those that are tables, each found to be in order."""

    files: tuple[FileTarget, ...] = ()
    """Of the region: those sinks that are files."""

    custom: tuple[CustomTarget, ...] = ()
    """Of the region: those that are a user's own."""


def load(spec: RegionSpec, group: GroupId, environ: Mapping[str, str] = os.environ) -> Parts:
    """Return what the members of a group are built from: code is imported, databases are asked.

    Args:
        spec: the region's.
        group: one of its groups.
        environ: where references are looked up.

    Raises:
        ConfigurationError: a setting is refused, the pipeline or a sink's function is unusable, a table can't be
            written as the spec wants.
        SinkError: a sink's database can't be reached.
    """
    return Parts(
        sinks=checked_sinks(spec, group, environ),
        files=file_targets(spec, environ),
        custom=custom_targets(spec, environ),
        pipeline=load_pipeline(spec.group(group).pipeline),
        kafka=client_settings(spec, group, environ),
    )
