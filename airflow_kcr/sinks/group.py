"""The sinks of a group: declared by its spec, found to be in order before anything is consumed, then as one."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from airflow_kcr.ports import BatchCall, SinkPlace
from airflow_kcr.protocol.member.messages import ResetSinks
from airflow_kcr.protocol.table_outputs import TableVersion
from airflow_kcr.protocol.values import CheckpointNumber, GroupId, GroupPartition, Offset, RegionId
from airflow_kcr.sinks.contract import DeclaredSink, Sink, SinkOfBatch
from airflow_kcr.spark.context import SinkWriter
from airflow_kcr.spec import RegionSpec, SinkKind
from airflow_kcr.store.regions import RegionStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def kind_of(word: SinkKind) -> type[DeclaredSink]:
    """Return the class of the sinks that a spec declares with this word."""
    kind: type[DeclaredSink] = import_module(f"airflow_kcr.sinks.kinds.{word}").KIND
    return kind


def sinks_of_region(
    spec: RegionSpec,
    environ: Mapping[str, str] = os.environ,
    *,
    region_id: RegionId,
    taken: Collection[SinkPlace] = frozenset(),
) -> Iterator[DeclaredSink]:
    """Yield the sinks of all groups of a region, in the order of its spec; nothing is connected to.

    Args:
        spec: the region's.
        environ: where references of the sinks are looked up.
        region_id: the region's, or `UNDECLARED`: then its sinks are only checked.
        taken: where the region's sinks have written to before.
    """
    for group in spec.groups:
        for sink in group.sinks:
            yield kind_of(sink.kind)(
                region=spec,
                group=GroupId(group.group_id),
                spec=sink,
                region_id=region_id,
                environ=environ,
                taken=taken,
            )


def checked_sinks(
    spec: RegionSpec,
    group: GroupId,
    environ: Mapping[str, str] = os.environ,
    *,
    region_id: RegionId,
    taken: Collection[SinkPlace] = frozenset(),
) -> tuple[DeclaredSink, ...]:
    """Return the sinks that an application of a group opens, found to be in order as far as that needs no Spark.

    These are the group's, and those of other groups that show output with its checkpoint.

    Args:
        spec: the region's.
        group: one of its groups.
        environ: where references of the sinks are looked up.
        region_id: the region's, or `UNDECLARED`: then its sinks are only checked.
        taken: where the region's sinks have written to before.

    Raises:
        ConfigurationError: a variable is not set; executors can't reach a database; a schema, right, column or index is
            missing; code can't be loaded.
        SinkError: a database can't be reached.
    """
    of_region = sinks_of_region(spec, environ, region_id=region_id, taken=taken)
    found = tuple(one for one in of_region if one.group == group or one.spec.shows_checkpoints)
    for sink in found:
        sink.check()
    return found


def show_at_rest(
    store: RegionStore, spec: RegionSpec, region_id: RegionId, sequence: CheckpointNumber
) -> tuple[TableVersion, ...]:
    """Show a checkpoint in the sinks of a region without members, in this process and without Spark.

    Args:
        store: where the region is.
        spec: the region's.
        region_id: which region of that name.
        sequence: of a complete checkpoint.

    Returns:
        What tables that people own have of it.

    Raises:
        ConfigurationError: only Spark reaches a sink, or it is not in order.
        SinkError: one could not; the others may have done it, and do nothing when asked again.
    """
    of_region = sinks_of_region(spec, region_id=region_id)
    opened = [one.at_rest(store) for one in of_region if one.spec.shows_checkpoints]
    return tuple(version for sink in opened for version in sink.publish(sequence))


def spark_packages(spec: RegionSpec, groups: Iterable[GroupId]) -> tuple[str, ...]:
    """Return what Spark needs for the sinks that an application of some groups opens, each thing once.

    Args:
        spec: the region's.
        groups: those whose members the application hosts.

    Returns:
        Maven coordinates.
    """
    hosted = frozenset(groups)
    sinks = [(one.group_id, sink) for one in spec.groups for sink in one.sinks]
    opened = (sink for group, sink in sinks if sink.shows_checkpoints or group in hosted)
    return tuple(dict.fromkeys(package for sink in opened for package in kind_of(sink.kind).packages(sink)))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSinks:
    """The open sinks of an application as one (`ports.Sinks`), and what a batch writes into them."""

    own: Mapping[str, Sink]
    """Of the group whose members are hosted, by name."""

    of_others: tuple[Sink, ...] = ()
    """Of the region's other groups: those that show output with its checkpoint."""

    @property
    def fenced(self) -> bool:
        """Whether each refuses an older epoch by itself; a pipeline without sinks has none that does."""
        return bool(self.own) and all(sink.fenced for sink in self.own.values())

    def reset(self, order: ResetSinks) -> Mapping[GroupPartition, Offset | None]:
        """Carry out a reset on every sink of the group.

        Returns:
            The progress of each open partition. It is asked for only where the delivery is `exactly_once`, and then
            there is one sink.

        Raises:
            SinkError: one of them could not; the others may have done it, and do nothing when asked again.
            SinkAhead: one of them has seen a later epoch or timeline.
        """
        answers: dict[GroupPartition, Offset | None] = {}
        for sink in self.own.values():
            answers.update(sink.reset(order))
        return answers

    def prepare(self, sequence: CheckpointNumber) -> None:
        """Have the group's sinks make durable what they hold.

        Raises:
            SinkError: one could not.
        """
        for sink in self.own.values():
            sink.prepare(sequence)

    def publish(self, sequence: CheckpointNumber) -> tuple[TableVersion, ...]:
        """Show what belongs to a checkpoint, in the sinks of all groups: one member does so for all.

        Returns:
            What tables that people own have of it.

        Raises:
            SinkError: one could not; the others may have done it, and do nothing when asked again.
        """
        return tuple(one for sink in (*self.own.values(), *self.of_others) for one in sink.publish(sequence))

    def end(self) -> None:
        """Try nothing again that failed: the application ends."""
        for sink in (*self.own.values(), *self.of_others):
            sink.end()

    def writers(self, call: BatchCall) -> Mapping[str, SinkWriter]:
        """Return what a batch of the group writes with, by the names of the sinks."""
        return {name: SinkOfBatch(sink, call) for name, sink in self.own.items()}


def opened_sinks(
    declared: Iterable[DeclaredSink], group: GroupId, spark: SparkSession, store: RegionStore
) -> GroupSinks:
    """Return sinks in an application; the places of those of its group are found to be in order, and noted.

    Args:
        declared: as `checked_sinks` returned them.
        group: whose members are hosted.
        spark: the application's session.
        store: where the region is.

    Raises:
        ConfigurationError: a place may not be written to, or is another sink's, or this session can't write there.
        SinkError: a place can't be reached.
    """
    own: dict[str, Sink] = {}
    of_others: list[Sink] = []
    for one in declared:
        sink = one.open(spark, store)
        if one.group == group:
            sink.take(store)
            own[one.spec.name] = sink
        else:
            of_others.append(sink)
    return GroupSinks(own=own, of_others=tuple(of_others))
