"""Sinks of users' own, as members and batches have them."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from airflow_kcr.errors import ConfigurationError, KcrError, PipelineUnusable, SinkError
from airflow_kcr.ports import BatchCall
from airflow_kcr.protocol.member.messages import ResetSinks
from airflow_kcr.protocol.values import (
    CheckpointNumber,
    GroupId,
    GroupPartition,
    Offset,
    RegionId,
    RegionName,
    Timeline,
)
from airflow_kcr.sinks.contract import not_written, written_twice
from airflow_kcr.sinks.custom import (
    WANTED,
    AcceptedBatch,
    CheckpointId,
    CompleteCheckpoint,
    CustomSink,
    Factory,
    Reset,
    SinkOwner,
)
from airflow_kcr.sinks.files.contents import CheckpointContents
from airflow_kcr.sinks.files.frames import with_coordinates
from airflow_kcr.sinks.files.layout import CheckpointName
from airflow_kcr.spark.causes import WORDS, essential_line
from airflow_kcr.spark.context import BatchContext
from airflow_kcr.spark.pipelines import NamedFunction, load_function
from airflow_kcr.spec import RegionSpec, SinkKind, resolve_environment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomTarget:
    """A sink of a user's own that a region declares, its function loaded."""

    owner: SinkOwner
    factory: Factory
    options: Mapping[str, str] = field(repr=False)

    @property
    def group(self) -> GroupId:
        """Whose pipeline writes to it."""
        return self.owner.group

    @property
    def sink(self) -> str:
        """Its name in the spec."""
        return self.owner.sink

    def __str__(self) -> str:
        return f"sink {self.sink} of group {self.group}"


def custom_targets(
    spec: RegionSpec, environ: Mapping[str, str] = os.environ, *, region_id: RegionId
) -> tuple[CustomTarget, ...]:
    """Return the custom sinks of a region, of all its groups: whichever member publishes a checkpoint does so for all.

    Args:
        spec: the region's.
        environ: where references of the options are looked up.
        region_id: the region's, or `UNDECLARED`: then its sinks are only loaded.

    Raises:
        ConfigurationError: a variable is not set, or a function can't be loaded.
    """
    return tuple(
        CustomTarget(
            owner=SinkOwner(
                region=RegionName(spec.region),
                region_id=region_id,
                group=GroupId(group.group_id),
                sink=sink.name,
            ),
            factory=_factory(sink.factory or ""),
            options=_resolved(sink.name, sink.options or {}, environ),
        )
        for group in spec.groups
        for sink in group.sinks
        if sink.kind is SinkKind.CUSTOM
    )


def _resolved(sink: str, options: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """The options by their own names; a message about a variable has the place in the spec."""
    before = f"sinks.{sink}.options."
    found = resolve_environment({before + name: value for name, value in options.items()}, environ)
    return {name.removeprefix(before): value for name, value in found.items()}


def factory_named(name: str) -> NamedFunction:
    """Return the function of that name that makes a sink, as messages call it; nothing is imported."""
    return NamedFunction(what="factory of a sink", name=name, wanted=WANTED, called_with="options and a Spark session")


def _factory(name: str) -> Factory:
    found = load_function(factory_named(name))

    def make(options: Mapping[str, str], spark: SparkSession) -> CustomSink:
        made = found(options, spark)
        if not isinstance(made, CustomSink):
            raise PipelineUnusable(f"the factory of a sink {name!r} made a {type(made).__name__}, no CustomSink")
        return made

    return make


class Accepted(Protocol):
    """What a custom sink asks of the ledger. Every call may raise SinkError: the store is away."""

    def contents(self, sequence: CheckpointNumber, group: GroupId) -> CheckpointContents:
        """Return what one group has in a complete checkpoint."""
        ...

    def undone(self) -> Mapping[CheckpointName, Timeline]:
        """Return the checkpoints that resets have undone, with the timelines that were opened by them."""
        ...


class MemberCustomSink:
    """One custom sink, told what a member does.

    Args:
        target: which one.
        sink: as its function made it.
        ledger: says what is accepted.
    """

    def __init__(self, target: CustomTarget, sink: CustomSink, ledger: Accepted) -> None:
        self.target, self.sink, self._ledger = target, sink, ledger

    @property
    def fenced(self) -> bool:
        """Whether the sink says that it refuses an older epoch by itself."""
        return self.sink.fenced

    def reset(self, order: ResetSinks) -> Mapping[GroupPartition, Offset | None]:
        """Have it roll back; it knows of no progress.

        Raises:
            SinkError: it could not.
        """
        undone = {_id(checkpoint): timeline for checkpoint, timeline in self._ledger.undone().items()}
        resume = {p.topic_partition: offset for p, offset in order.resume.items()}
        with _told(self.target, "roll back"):
            self.sink.rollback(Reset(epoch=order.epoch, timeline=order.timeline, undone=undone, resume=resume))
        return {}

    def prepare(self, sequence: CheckpointNumber) -> None:
        """Have it make durable what it holds.

        Raises:
            SinkError: it could not.
        """
        with _told(self.target, f"prepare checkpoint {sequence}"):
            self.sink.prepare(sequence)

    def publish(self, sequence: CheckpointNumber) -> None:
        """Have it show a checkpoint, if no reset has undone that meanwhile.

        Raises:
            SinkError: it could not.
        """
        contents = self._ledger.contents(sequence, self.target.group)
        if contents.undone_by is None:
            with _told(self.target, f"publish checkpoint {sequence}"):
                self.sink.publish(_checkpoint(contents))


@contextmanager
def _told(target: CustomTarget, what: str) -> Iterator[None]:
    """Translate what a user's code raises into what the runtime tries again."""
    try:
        yield
    except KcrError:
        raise
    except Exception as error:  # noqa: BLE001 (its kind and place are told)
        WORDS.error("%s could not %s", target, what, exc_info=error)
        raise SinkError(f"{target} could not {what}: {essential_line(error)}") from None


def _checkpoint(contents: CheckpointContents) -> CompleteCheckpoint:
    return CompleteCheckpoint(
        id=_id(contents.checkpoint),
        previous=None if contents.previous is None else _id(contents.previous),
        boundary=contents.boundary,
        batches=tuple(
            AcceptedBatch(
                batch_id=piece.batch.batch,
                epoch=piece.batch.epoch,
                checkpoint=_id(piece.stamp),
                ranges={p.topic_partition: range_ for p, range_ in sorted(piece.kept.items())},
                is_whole=piece.is_whole,
            )
            for piece in contents.pieces
        ),
    )


def _id(checkpoint: CheckpointName) -> CheckpointId:
    return CheckpointId(timeline=checkpoint.timeline, sequence=checkpoint.sequence)


class CustomWriter:
    """One custom sink, as a pipeline has it for one batch.

    Args:
        sink: where to.
        call: the batch.
    """

    def __init__(self, sink: MemberCustomSink, call: BatchCall) -> None:
        self._sink, self._call, self._written = sink, call, False

    def __repr__(self) -> str:
        return f"<{self._sink.target}, batch {self._call.batch}>"

    def write(self, rows: DataFrame) -> None:
        """Have the sink write rows, each made of one record of this batch; once in each batch.

        Raises:
            SinkError: a coordinate is missing, a name is there twice, or it was written to before.
        """
        if self._written:
            raise written_twice(self)
        with_coordinates(rows)
        self._written = True
        self._sink.sink.write(rows, BatchContext.of(self._call, {}))

    def publish(self) -> None:
        """Nothing is left to do; what was written counts with its checkpoint.

        Raises:
            SinkError: nothing was written.
        """
        if not self._written:
            raise not_written(self)


def opened_custom(
    targets: Iterable[CustomTarget], spark: SparkSession, ledger: Accepted, group: GroupId
) -> tuple[MemberCustomSink, ...]:
    """Return custom sinks, of which those of a group were found to be in order.

    Args:
        targets: of the region.
        spark: the application's session.
        ledger: of the region.
        group: the one whose members are hosted here.

    Raises:
        ConfigurationError: one can't be made, or says that it can't work.
        SinkError: its target can't be reached.
    """
    made: list[MemberCustomSink] = []
    for target in targets:
        try:
            sink = target.factory(target.options, spark)
            if target.group == group:
                sink.check(target.owner)
        except KcrError:
            raise
        except Exception as error:
            raise ConfigurationError(f"{target} can't be made: {type(error).__name__}: {error}") from error
        _LOG.info("%s is %s", target, type(sink).__name__)
        made.append(MemberCustomSink(target, sink, ledger))
    return tuple(made)
