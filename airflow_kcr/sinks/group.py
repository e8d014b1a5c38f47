"""The sinks of a group, made from its spec and found to be in order before anything is consumed."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_kcr.api.regions import postgres_variable
from airflow_kcr.errors import ConfigurationError
from airflow_kcr.ports import BatchCall, SinkPlace, Sinks
from airflow_kcr.protocol.values import GroupId, RegionId, RegionName
from airflow_kcr.settings import resolve_environment
from airflow_kcr.sinks.contract import CheckpointSink, FencedSink, MemberSinks, NoSinks, SinkOutput, WithCheckpoints
from airflow_kcr.sinks.custom.adapters import CustomWriter, MemberCustomSink
from airflow_kcr.sinks.files import FileSink, FileTarget
from airflow_kcr.sinks.files.contents import RegionLedger
from airflow_kcr.sinks.files.delta import table_of
from airflow_kcr.sinks.files.folder import HadoopFolder
from airflow_kcr.sinks.files.frames import FilesWriter, SparkRewriter
from airflow_kcr.sinks.postgres import PostgresSink, Target
from airflow_kcr.sinks.postgres.writer import TableWriter, require_reachable
from airflow_kcr.spark.context import Output, no_output
from airflow_kcr.spec import RegionSpec, SinkKind, SinkSpec
from airflow_kcr.store.regions import RegionStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = logging.getLogger(__name__)


def postgres_sinks(
    spec: RegionSpec,
    group: GroupId,
    environ: Mapping[str, str] = os.environ,
    *,
    region_id: RegionId,
    taken: Collection[SinkPlace] = frozenset(),
) -> tuple[PostgresSink, ...]:
    """Return those of a group's sinks that are tables; nothing is connected to.

    Args:
        spec: the region's.
        group: one of its groups.
        environ: where references of the sinks' URLs are looked up.
        region_id: the region's, or `UNDECLARED`: then its sinks are only checked.
        taken: where the region's sinks have written to before.

    Raises:
        ConfigurationError: a variable is not set.
    """
    declared = spec.group(group)
    beside = frozenset((GroupId(one.group_id), sink.name) for one in spec.groups for sink in one.sinks)
    return tuple(
        PostgresSink(
            Target(
                region=RegionName(spec.region),
                region_id=region_id,
                group=group,
                sink=sink.name,
                beside=beside,
                table=sink.table or "",
                delivery=declared.delivery,
                mode=sink.mode,
                key=sink.key,
            ),
            sink_url(sink, environ),
            spec.timeouts,
            taken,
        )
        for sink in declared.sinks
        if sink.kind is SinkKind.POSTGRES
    )


def checked_sinks(
    spec: RegionSpec,
    group: GroupId,
    environ: Mapping[str, str] = os.environ,
    *,
    region_id: RegionId,
    taken: Collection[SinkPlace] = frozenset(),
) -> tuple[PostgresSink, ...]:
    """Return those of a group's sinks that are tables, whose databases were asked whether all is in order.

    Args:
        spec: the region's.
        group: one of its groups.
        environ: where references of the sinks' URLs are looked up.
        region_id: the region's, or `UNDECLARED`: then its sinks are only checked.
        taken: where the region's sinks have written to before.

    Raises:
        ConfigurationError: the delivery needs a sink and there is none; a variable is not set; executors can't reach a
            database; a schema, right, column or index is missing.
        SinkError: a database can't be reached.
    """
    declared = spec.group(group)
    if not declared.sinks:
        NoSinks(spec.rules().groups[group])
    sinks = postgres_sinks(spec, group, environ, region_id=region_id, taken=taken)
    require_reachable(sinks)
    for sink in sinks:
        sink.check()
        _LOG.info("%s writes to %s at %s", sink.target, sink.target.table, sink.database.address)
    return sinks


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


# How the database of a sink is reached: the spec's URL with its references filled in, or an Airflow connection.


def sink_url(sink: SinkSpec, environ: Mapping[str, str] = os.environ) -> str:
    """Return the URL of a sink's database, its password in it: for the sink only, never to be stored or shown.

    Args:
        sink: of the spec.
        environ: where references are looked up, and the URLs of Airflow connections.

    Raises:
        ConfigurationError: a variable is not set.
    """
    if sink.url is not None:
        return resolve_environment({f"sinks.{sink.name}.url": sink.url}, environ)[f"sinks.{sink.name}.url"]
    variable = postgres_variable(sink.conn_id or "")
    url = environ.get(variable)
    if url is None:
        raise ConfigurationError(
            f"sink {sink.name} is reached by the Airflow connection {sink.conn_id}, which can only be read inside "
            f"Airflow; elsewhere set {variable} to its URL, or write url: ${{NAME}} into the spec"
        )
    return url
