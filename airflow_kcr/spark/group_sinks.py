"""The sinks of a group, made from its spec and found to be in order before anything is consumed."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_kcr.api.sink_urls import sink_url
from airflow_kcr.ports import BatchCall, Sinks
from airflow_kcr.protocol.sinks import FileFormat
from airflow_kcr.protocol.values import GroupId, RegionName
from airflow_kcr.runtime.no_sinks import NoSinks
from airflow_kcr.sinks.files import FileSink, FileTarget
from airflow_kcr.sinks.files.target import FILE_SIZE, MIB
from airflow_kcr.sinks.members import CheckpointSink, FencedSink, MemberSinks, WithCheckpoints
from airflow_kcr.sinks.postgres import PostgresSink, Target
from airflow_kcr.spark.custom_adapters import CustomWriter, MemberCustomSink
from airflow_kcr.spark.file_formats import table_of
from airflow_kcr.spark.file_sinks import FilesWriter, SparkRewriter
from airflow_kcr.spark.hadoop import HadoopFolder
from airflow_kcr.spark.region_ledger import RegionLedger
from airflow_kcr.spark.sinks import Output, SinkOutput, TableWriter, no_output, require_reachable
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
    """Return the file sinks of a region, of all its groups.

    Whichever member publishes a checkpoint writes for all of them.

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
            format=sink.format or FileFormat.PARQUET,
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
        ConfigurationError: a folder may not be written to, or is another sink's, or this session can't write a format.
        SinkError: a folder can't be reached.
    """
    sinks: list[FileSink] = []
    for target in targets:
        folder = HadoopFolder(spark, target.path)
        ledger, rewriter = RegionLedger(store, target.region), SparkRewriter(spark, folder)
        sink = FileSink(target, folder, ledger, rewriter, table_of(spark, target))
        if target.group == group:
            sink.check()
            _LOG.info("%s writes to %s", target, folder.uri)
        sinks.append(sink)
    return tuple(sinks)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedSinks:
    """The sinks of an application, each found to be in order."""

    group: GroupId
    """Whose members are hosted."""

    tables: tuple[PostgresSink, ...] = ()
    """Of the group."""

    files: tuple[FileSink, ...] = ()
    """Of the region."""

    custom: tuple[MemberCustomSink, ...] = ()
    """Of the region."""

    def of_member(self, spec: RegionSpec) -> Sinks:
        """Return the sinks as a member of the group has them.

        Args:
            spec: the region's.
        """
        ours: tuple[FencedSink, ...] = (*self.tables, *self._own_files)
        users = self._own_custom
        inner = MemberSinks(ours, users) if ours or users else NoSinks(spec.rules().groups[self.group])
        with_checkpoints: tuple[CheckpointSink, ...] = (*self.files, *self.custom)
        return WithCheckpoints(inner, with_checkpoints) if with_checkpoints else inner

    def output(self) -> Callable[[BatchCall], Output]:
        """Return what makes the output of a batch of the group."""
        if not (self.tables or self._own_files or self._own_custom):
            return no_output
        return lambda call: SinkOutput(
            (
                *((sink.target.sink, TableWriter(sink, call)) for sink in self.tables),
                *((sink.target.sink, FilesWriter(sink, call)) for sink in self._own_files),
                *((sink.target.sink, CustomWriter(sink, call)) for sink in self._own_custom),
            )
        )

    @property
    def _own_files(self) -> tuple[FileSink, ...]:
        return tuple(sink for sink in self.files if sink.target.group == self.group)

    @property
    def _own_custom(self) -> tuple[MemberCustomSink, ...]:
        return tuple(sink for sink in self.custom if sink.target.group == self.group)
