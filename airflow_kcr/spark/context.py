"""The context of a pipeline: its batch, its sinks (docs/how-to/write-a-pipeline.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol, Self

from airflow_kcr.ports import BatchCall
from airflow_kcr.protocol import values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COORDINATES: Final = ("topic", "partition", "offset")
"""Columns of a batch, which its pipeline keeps: they name the record that a row was made of."""


class SinkWriter(Protocol):
    """A sink of the spec, as a pipeline has it for one batch."""

    def write(self, rows: DataFrame) -> None:
        """Write rows, each made of one record of this batch; once in each batch, also if there is none.

        Args:
            rows: with the columns `topic`, `partition` and `offset` of the batch as they are.

        Raises:
            SinkError: the rows don't fit, or the sink was written to before.
        """
        ...

    def finish(self) -> object:
        """Do what is left once nothing of the batch runs any more; called by the engine."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchContext:
    """One batch, as its pipeline sees it; immutable. Functions for executors take from it the plain values they need.

    What to be idempotent with, for output that no sink of this project writes:

    - `batch_id` is never used twice. The same records can come again, after a reset, in a batch of another id and with
      other ranges; so it names a piece of output, and does not recognise a repetition.
    - `topic`, `partition` and `offset`, columns of the batch, are one record's name for ever: a target keyed by
      them holds each record once, however often it is written.
    - (`timeline`, `sequence`) only ever grows and says to which checkpoint the batch belongs: of two writers of one
      record the higher one is right.
    - `epoch` is the fencing token: a target that remembers the highest one can refuse a writer that is out of date.
    """

    region: values.RegionName
    member: values.MemberId
    """Group and index of the member that runs the batch."""

    batch_id: values.BatchId
    epoch: values.Epoch
    timeline: values.Timeline
    sequence: values.CheckpointNumber
    """Of the checkpoint that the batch belongs to: the open one, else the next one."""

    ranges: Mapping[values.TopicPartition, values.Range]
    """Offsets [from, to) of every partition in the batch; none of them empty."""

    boundary: datetime | None = None
    """The instant that the next checkpoint is aligned to, if it has one."""

    sinks: Mapping[str, SinkWriter] = field(default_factory=lambda: MappingProxyType({}))
    """The sinks of the spec by name."""

    @classmethod
    def of(cls, call: BatchCall, sinks: Mapping[str, SinkWriter]) -> Self:
        """Return the context of a call.

        Args:
            call: what the store let begin.
            sinks: what the pipeline may write to, by name.
        """
        return cls(
            region=call.region,
            member=call.member,
            batch_id=call.batch,
            epoch=call.epoch,
            timeline=call.timeline,
            sequence=call.sequence,
            ranges={p.topic_partition: call.ranges[p] for p in sorted(call.ranges)},
            boundary=call.boundary,
            sinks=sinks,
        )

    @property
    def group(self) -> values.GroupId:
        """The consumer group."""
        return self.member.group

    @property
    def index(self) -> int:
        """The member's index in its group."""
        return self.member.index

    @property
    def is_empty(self) -> bool:
        """Whether there is no offset in any range; a batch of few offsets can be without records all the same."""
        return not any(range_.width for range_ in self.ranges.values())

    @property
    def offsets(self) -> int:
        """How many offsets the ranges span: at least as many as there are records (markers, compaction)."""
        return sum(range_.width for range_ in self.ranges.values())

    def __str__(self) -> str:
        return f"{self.region} {self.member} batch {self.batch_id}"


def finish(writers: Mapping[str, SinkWriter]) -> None:
    """Finish what a batch wrote to each sink of its group, in the order of their names; nothing of it runs any more.

    Args:
        writers: by the names of the sinks.

    Raises:
        SinkError: a sink was not written to, or refuses.
    """
    for name in sorted(writers):
        writers[name].finish()
