"""What sinks have in common: how a kind is declared, and what members do with an open sink."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, NamedTuple
from urllib.parse import urlsplit

from airflow_kcr.errors import ConfigurationError, SinkError
from airflow_kcr.ports import BatchCall, SinkPlace
from airflow_kcr.protocol import values
from airflow_kcr.protocol.member.messages import ResetSinks
from airflow_kcr.protocol.region.rows import Checkpoint
from airflow_kcr.protocol.table_outputs import TableVersion
from airflow_kcr.settings import resolve_environment
from airflow_kcr.sinks.checkpoints import CompleteCheckpoint
from airflow_kcr.spark.context import COORDINATES
from airflow_kcr.spec import RegionSpec, SinkKind, SinkSpec
from airflow_kcr.spec.fields import path_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_kcr.store.regions import RegionStore


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOwner:
    """Whose output a sink writes. Note it where the output is: names may be used again, `region_id` never is."""

    region: values.RegionName
    region_id: values.RegionId
    """Which region of that name: made when it was declared."""

    group: values.GroupId
    sink: str
    """The sink's name in the spec."""

    @property
    def name(self) -> str:
        """What it is called in messages about its own region."""
        return f"sink {self.sink} of group {self.group}"

    @property
    def briefly(self) -> str:
        """What it is called where its region's name is known, and which region of that name is not."""
        return f"{self.group}/{self.sink} of region id {self.region_id}"

    def __str__(self) -> str:
        return f"{self.name}, region {self.region} (id {self.region_id})"


class Sink(ABC):
    """One open sink; see `ports.Sinks` for what members ask of all of theirs."""

    owner: SinkOwner

    @property
    def fenced(self) -> bool:
        """Whether it refuses an older epoch by itself."""
        return True

    def __str__(self) -> str:
        return self.owner.name

    @abstractmethod
    def check(self) -> None:
        """Find the place in order now that Spark runs, and note whose output is there; may be repeated.

        Raises:
            ConfigurationError: it can't be written to, or is another sink's.
            SinkError: it can't be reached.
        """

    def take(self, store: RegionStore) -> None:
        """Find the place in order as a sink of members of this process; as `check`."""
        self.check()

    @abstractmethod
    def reset(self, order: ResetSinks) -> Mapping[values.GroupPartition, values.Offset | None]:
        """Refuse older epochs, then roll back or skip, and answer the open entries.

        Raises:
            SinkError: it could not; it may be tried again.
            SinkAhead: the place has seen a later epoch or timeline.
        """

    def claim(self) -> None:
        """Find the place in order for recomputations that write elsewhere, and mark it as theirs; as `check`."""
        self.check()

    def prepare(self, sequence: values.CheckpointNumber) -> None:  # noqa: B027 (nothing is what most do)
        """Make durable what it holds; of a sink whose batches are durable as they end, nothing."""

    def publish(self, sequence: values.CheckpointNumber) -> tuple[TableVersion, ...]:
        """Show what belongs to a checkpoint, and return what tables that people own have of it.

        A sink that shows output with its batch has nothing to do.
        """
        return ()

    def end(self) -> None:  # noqa: B027 (as above)
        """Try nothing again that failed: the process ends."""

    @abstractmethod
    def write(self, rows: DataFrame, call: BatchCall) -> Callable[[], object]:
        """Write rows of a batch, each made of one record, and return what is left to do once nothing of it runs.

        Args:
            rows: with the columns `topic`, `partition` and `offset` of the batch as they are.
            call: the batch.

        Raises:
            SinkError: a coordinate is missing, a name is there twice, or the columns don't fit what is there.
        """

    @abstractmethod
    def revised(self, checkpoint: CompleteCheckpoint, number: values.EventNumber) -> Revision:
        """Return what holds back the output that shall take the place of a checkpoint's.

        Args:
            checkpoint: a published one, with what counts of it.
            number: of the recomputation; what a later one shows takes the place of an earlier one's.

        Raises:
            ConfigurationError: this sink can't replace what it has shown; the message says what it lacks.
            SinkError: the place can't be reached.
        """

    @abstractmethod
    def shown(self, checkpoint: CompleteCheckpoint, spark: SparkSession) -> DataFrame:
        """Return the rows that readers see of a checkpoint: the pipeline's columns, and `kcr_` columns beside them.

        Raises:
            ConfigurationError: this sink can't be read; the message says so.
            SinkError: the place can't be reached, or lacks the checkpoint.
        """


class Revision(ABC):
    """What takes the place of a checkpoint's output in one sink: held back where readers don't look, until it is whole.

    Another process may recompute the same checkpoint at the same time, as this one was frozen, and members write to
    the sink as always.
    """

    @abstractmethod
    def write(self, rows: DataFrame, call: BatchCall) -> Callable[[], object]:
        """Hold rows of a batch back; otherwise as `Sink.write`, from which it differs in nothing that a pipeline sees.

        Raises:
            SinkError: as `Sink.write`.
        """

    @abstractmethod
    def replace(self, require_wanted: Callable[[], None]) -> tuple[TableVersion, ...]:
        """Show what is held back instead of what the checkpoint had, in one step: readers see the one or the other.

        Returns:
            What tables that people own have of it.

        Args:
            require_wanted: raises where a reset has undone the checkpoint, or another process has taken this one's
                place; asked so that what begins afterwards finds what is shown now, and can undo it.

        Raises:
            SinkError: it could not; the output is what it was, unless the message says that this is unknown.
        """

    @abstractmethod
    def held(self, spark: SparkSession) -> DataFrame:
        """Return the rows that are held back; otherwise as `Sink.shown`."""

    def drop(self) -> None:  # noqa: B027 (nothing is what some do)
        """Drop what is held back and was not shown; readers see none of it either way."""


class SinkOfBatch:
    """One sink, as a pipeline has it for one batch: `context.sinks["flights"].write(rows)`.

    Args:
        sink: where to; of a batch that recomputes records, what is held back of it.
        call: the batch.
    """

    def __init__(self, sink: Sink | Revision, call: BatchCall) -> None:
        self._sink, self._call = sink, call
        self._is_tried = False
        self._rest: Callable[[], object] | None = None
        """Does what is left of a write that has succeeded."""

    def __repr__(self) -> str:
        return f"<{self._sink}, batch {self._call.batch}>"

    def write(self, rows: DataFrame) -> None:
        """Write rows, each made of one record of this batch; a pipeline does so once for each of its sinks.

        Args:
            rows: with the columns `topic`, `partition` and `offset` of the batch as they are; the others are written
                under their names. One without any row is fine.

        Raises:
            SinkError: columns are missing or don't fit, or it was written to before.
        """
        if self._is_tried:
            raise SinkError(f"{self!r} was written to already; a batch writes once to each sink: union the rows")
        self._is_tried = True
        self._rest = self._sink.write(rows, self._call)

    def finish(self) -> object:
        """Do what is left, now that nothing of the batch runs any more.

        Raises:
            SinkError: nothing was written, the write failed, or the sink refuses.
        """
        if self._is_tried and self._rest is None:
            raise SinkError(f"{self!r}: the write failed, and the pipeline went on; let its error through")
        if self._rest is None:
            raise SinkError(
                f"{self!r} was not written to; write to each sink in every batch, a DataFrame without rows where there "
                "is nothing: else it is unknown whether the records were read"
            )
        return self._rest()


class DatasetName(NamedTuple):
    """Where output is, as OpenLineage's naming convention has it."""

    namespace: str
    name: str

    @classmethod
    def at(cls, location: str) -> DatasetName:
        """Return the name of what is at a path or URI."""
        parts = urlsplit(location)
        place = parts.netloc if parts.password is None else parts.netloc.rpartition("@")[2]
        if parts.scheme in {"", "file"}:
            return cls("file", parts.path)
        if parts.scheme in {"s3", "s3a", "s3n", "gs"}:
            return cls(f"{parts.scheme.rstrip('an')}://{place}", parts.path.strip("/"))
        return cls(f"{parts.scheme}://{place}", parts.path)


@dataclass(frozen=True, kw_only=True)
class DeclaredSink(ABC):
    """A sink of a region's spec with nothing open yet; each kind is a subclass, registered in `sinks.kinds`.

    References of the spec are filled in where they are needed, which may raise ConfigurationError.
    """

    region: RegionSpec
    group: values.GroupId
    spec: SinkSpec
    region_id: values.RegionId
    """`UNDECLARED`: the sink is only checked."""

    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)
    taken: Collection[SinkPlace] = frozenset()
    """Where the region's sinks have written to before."""

    is_deletable: ClassVar[bool] = True
    """Whether `delete` can delete what it has written."""

    @staticmethod
    def packages(spec: SinkSpec) -> tuple[str, ...]:
        """Return the Maven coordinates of what Spark writes to a sink of this kind with."""
        return ()

    @abstractmethod
    def check(self) -> None:
        """Refuse what can't work, as far as that can be told without Spark.

        Raises:
            ConfigurationError: a variable is not set, code can't be loaded, or the place does not fit.
            SinkError: the place can't be reached.
        """

    def require_apart(self, live: Iterable[DeclaredSink]) -> None:  # noqa: B027 (a folder says itself whose it is)
        """Refuse a place that a region writes to, for a sink that is to get the output of recomputations alone.

        Args:
            live: the sinks of the region's spec.

        Raises:
            ConfigurationError: it is such a place.
            SinkError: the place can't be reached.
        """

    @abstractmethod
    def open(self, spark: SparkSession, store: RegionStore) -> Sink:
        """Open it in an application.

        Raises:
            ConfigurationError: this session can't write to it.
        """

    def at_rest(self, store: RegionStore) -> Sink:
        """Open it without Spark, to publish a checkpoint of which no file has to be made of others.

        Raises:
            ConfigurationError: only Spark reaches it, or it is not in order.
            SinkError: it is away, or knows more than the store.
        """
        raise ConfigurationError(f"{self.owner.name}: only Spark reaches it")

    @abstractmethod
    def output(self, spark: Callable[[], SparkSession]) -> FoundOutput:
        """Return what is where it writes to.

        Args:
            spark: starts a session, for a kind that reaches its place by one.
        """

    @abstractmethod
    def settle(self, choice: Choice, store: RegionStore, spark: Callable[[], SparkSession]) -> FoundOutput | None:
        """Do what a person chose with what others have left there; None: this kind has nothing to choose.

        Args:
            choice: of the person.
            store: where the region is.
            spark: as of `output`.
        """

    @abstractmethod
    def delete(self, store: RegionStore, spark: Callable[[], SparkSession]) -> FoundOutput:
        """Delete what it has written, and forget that it has.

        Args:
            store: where the region is.
            spark: as of `output`.
        """

    def dataset(self) -> DatasetName | None:
        """Return where it writes to, as OpenLineage names it, without secrets; None: only its own code knows.

        Raises:
            ConfigurationError: a variable is not set, or there is no such place.
            SinkError: the place can't be asked.
        """
        return None

    def version(self, checkpoint: Checkpoint) -> str:
        """Return by which name readers find the output of a published checkpoint; empty: it has none."""
        return ""

    @property
    def region_name(self) -> values.RegionName:
        """The region's name."""
        return values.RegionName(self.region.region)

    @property
    def owner(self) -> SinkOwner:
        """Whose output it is."""
        return SinkOwner(region=self.region_name, region_id=self.region_id, group=self.group, sink=self.spec.name)

    def path(self, field: str) -> str:
        """Return where one of its fields is in the spec, as findings have it: `groups[0].sinks.out.table`."""
        place = next(place for place, group in enumerate(self.region.groups) if group.group_id == self.group)
        return path_text(("groups", place, "sinks", self.spec.name, field))

    def resolved(self, field: str, value: str) -> str:
        """Return a field's value with its references filled in.

        Raises:
            ConfigurationError: a variable is not set.
        """
        place = self.path(field)
        return resolve_environment({place: value}, self.environ)[place]

    def resolved_options(self) -> dict[str, str]:
        """Return the options with their references filled in.

        Raises:
            ConfigurationError: a variable is not set; the message has the place in the spec.
        """
        before = f"{self.path('options')}."
        given = {before + name: value for name, value in (self.spec.options or {}).items()}
        found = resolve_environment(given, self.environ)
        return {name.removeprefix(before): value for name, value in found.items()}

    def found(
        self, place: str, *, rows: int | None = None, earlier: tuple[str, ...] = (), note: str = ""
    ) -> FoundOutput:
        """Return what was found or done at a place, in this sink's name."""
        return FoundOutput(
            group=self.group,
            sink=self.spec.name,
            kind=self.spec.kind,
            place=place,
            rows=rows,
            earlier=earlier,
            note=note,
        )


class Choice(StrEnum):
    """What becomes of what an earlier region, or a sink that was renamed, has left in a place."""

    KEEP = "keep"
    """It stays where it is, beside what is written now."""

    DELETE = "delete"
    TAKE_OVER = "take_over"
    """It is this region's; the first reset deletes what the region processes again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundOutput:
    """One sink, and what is where it writes to."""

    group: values.GroupId
    sink: str
    kind: SinkKind
    place: str
    """A table and its database, or a folder, or the function of a custom sink."""

    rows: int | None = None
    """How many rows of this sink a table has; None: it is no table."""

    earlier: tuple[str, ...] = ()
    """Whose rows are there beside: sinks of an earlier region of the name, or that were renamed."""

    note: str = ""
    """What is wrong with the place, or was done."""


def require_coordinates(names: Collection[str], shown: str) -> None:
    """Refuse rows that don't say which records they are made of.

    Args:
        names: their columns.
        shown: their schema, for the message.

    Raises:
        SinkError: a coordinate is missing.
    """
    missing = [name for name in COORDINATES if name not in names]
    if missing:
        raise SinkError(
            f"the rows have no column {', '.join(missing)}; keep topic, partition and offset of the batch, which say "
            f"of which record a row is made (schema: {shown})"
        )
