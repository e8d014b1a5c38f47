"""The sinks of a group, made from its spec and found to be in order before anything is consumed."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from airflow_kcr.api.sink_urls import sink_url
from airflow_kcr.ports import BatchCall, Sinks
from airflow_kcr.protocol.values import GroupId, RegionName
from airflow_kcr.runtime.no_sinks import NoSinks
from airflow_kcr.sinks.files import FileSink, FileTarget
from airflow_kcr.sinks.files.target import FILE_SIZE, MIB
from airflow_kcr.sinks.members import FencedSink, MemberSinks, WithCuts
from airflow_kcr.sinks.postgres import PostgresSink, Target
from airflow_kcr.spark.file_sinks import SparkRewriter
from airflow_kcr.spark.hadoop import HadoopFolder
from airflow_kcr.spark.region_ledger import RegionLedger
from airflow_kcr.spark.sinks import Output, SinkOutput, no_output, require_reachable
from airflow_kcr.spec import RegionSpec, SinkKind, resolve_environment
from airflow_kcr.store.regions import RegionStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = logging.getLogger(__name__)


def checked_sinks(
    spec: RegionSpec, group: GroupId, environ: Mapping[str, str] = os.environ
) -> tuple[PostgresSink, ...]:
    """Return those of a group's sinks that are tables, whose databases were asked whether all is in order.

    Args:
        spec: the region's.
        group: one of its groups.
        environ: where references of the sinks' URLs are looked up.

    Raises:
        ConfigurationError: the delivery needs a sink and there is none; a variable is not set; executors can't reach a
            database; a schema, right, column or index is missing.
        SinkError: a database can't be reached.
    """
    declared = spec.group(group)
    if not declared.sinks:
        NoSinks(spec.rules().groups[group])
    sinks = tuple(
        PostgresSink(
            Target(
                region=RegionName(spec.region),
                group=group,
                sink=sink.name,
                table=sink.table or "",
                delivery=declared.delivery,
                mode=sink.mode,
                key=sink.key,
            ),
            sink_url(sink, environ),
            spec.timeouts,
        )
        for sink in declared.sinks
        if sink.kind is SinkKind.POSTGRES
    )
    require_reachable(sinks)
    for sink in sinks:
        sink.check()
        _LOG.info("%s writes to %s at %s", sink.target, sink.target.table, sink.database.address)
    return sinks


def file_targets(spec: RegionSpec, environ: Mapping[str, str] = os.environ) -> tuple[FileTarget, ...]:
    """Return the file sinks of a region, of all its groups: whichever member publishes a cut writes for all of them.

    Args:
        spec: the region's.
        environ: where references of the paths are looked up.

    Raises:
        ConfigurationError: a variable is not set.
    """
    return tuple(
        FileTarget(
            region=RegionName(spec.region),
            group=GroupId(group.group_id),
            sink=sink.name,
            path=resolve_environment({f"sinks.{sink.name}.path": sink.path or ""}, environ)[f"sinks.{sink.name}.path"],
            file_size=FILE_SIZE if sink.file_size_mib is None else sink.file_size_mib * MIB,
        )
        for group in spec.groups
        for sink in group.sinks
        if sink.kind is SinkKind.FILES
    )


def opened_files(
    targets: Iterable[FileTarget], spark: SparkSession, store: RegionStore, group: GroupId
) -> tuple[FileSink, ...]:
    """Return file sinks, of which those of a group were found to be in order.

    Args:
        targets: of the region.
        spark: the application's session.
        store: where the region is.
        group: the one whose members are hosted here.

    Raises:
        ConfigurationError: a folder may not be written to, or is another sink's.
        SinkError: a folder can't be reached.
    """
    sinks: list[FileSink] = []
    for target in targets:
        folder = HadoopFolder(spark, target.path)
        sink = FileSink(target, folder, RegionLedger(store, target.region), SparkRewriter(spark, folder))
        if target.group == group:
            sink.check()
            _LOG.info("%s writes to %s", target, folder.uri)
        sinks.append(sink)
    return tuple(sinks)


def member_sinks(
    spec: RegionSpec, group: GroupId, sinks: tuple[PostgresSink, ...], files: tuple[FileSink, ...] = ()
) -> Sinks:
    """Return the sinks of a group as one of its members has them.

    Args:
        spec: the region's.
        group: one of its groups.
        sinks: of the group, those that are tables.
        files: of the region, those that are files.
    """
    own: tuple[FencedSink, ...] = (*sinks, *(sink for sink in files if sink.target.group == group))
    inner = MemberSinks(own) if own else NoSinks(spec.rules().groups[group])
    return WithCuts(inner, files) if files else inner


def output_of(sinks: tuple[PostgresSink, ...], files: tuple[FileSink, ...] = ()) -> Callable[[BatchCall], Output]:
    """Return what makes the output of a batch.

    Args:
        sinks: of the group, those that are tables.
        files: of the group, those that are files.
    """
    return (lambda call: SinkOutput(sinks, call, files)) if sinks or files else no_output
