"""Sinks of users' own (docs/how-to/write-your-own-sink.md): `CustomSink` and its arguments.

A sink is a class, with a factory that the spec names as `factory: jobs.lake:make` of `kind: custom`::

    class Lake(CustomSink):
        def write(self, rows, batch): ...  # in each batch: store the rows where readers don't look yet

        def publish(self, checkpoint): ...  # the checkpoint is complete: show what it names, and nothing else

        def rollback(self, reset): ...  # what `reset.undone` names is void


    def make(options, spark):
        return Lake(options["path"], spark)

`airflow_kcr.sinks.custom.suite` has the tests that each should pass.

Two kinds are easy to get right. One *keeps back*: `write` puts output where readers don't look, under the batch's id,
and `publish` shows that of the accepted batches which the checkpoint names. It shows each record once, whatever
happens. The other *overwrites*: `write` keys rows by their records' coordinates and shows them at once; a repeated
record replaces itself, and what a dead batch wrote stays until its records come again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from airflow_kcr.protocol.values import CheckpointNumber, Epoch, Offset, Timeline
from airflow_kcr.protocol.values import TopicPartition as Place
from airflow_kcr.sinks.checkpoints import AcceptedBatch, CheckpointId, CompleteCheckpoint
from airflow_kcr.sinks.contract import SinkOwner

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_kcr.spark.context import BatchContext


__all__ = ["AcceptedBatch", "CheckpointId", "CompleteCheckpoint", "CustomSink", "Factory", "Reset", "SinkOwner"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """A reset, as one member carries it out."""

    epoch: Epoch
    """From now on; who writes under a lower one is a zombie."""

    timeline: Timeline
    undone: Mapping[CheckpointId, Timeline]
    """Every checkpoint of the region that a reset has undone, this one's or an older one's, and the timeline that took
    its place."""

    resume: Mapping[Place, Offset]
    """Where this member's partitions resume, as far as that is known already."""


class CustomSink(ABC):
    """A sink of a user's. One object for each application and sink; its calls come from several threads.

    Every call may come again: after an answer that got lost, from another member that does not know of the first one,
    or from a process that was dead for a while. Said again, it changes nothing. A call that raises is made again later;
    raise `SinkError` for what is expected to fail, with a message for people.
    """

    fenced: bool = False
    """Whether the target itself refuses what is written under an epoch lower than the highest that `rollback` got.
    Without that, a reset waits until a process that has lost its lease is known to be over."""

    @abstractmethod
    def check(self, owner: SinkOwner) -> None:
        """Refuse what can't work, before anything is consumed, and note in the target whose output it is.

        Args:
            owner: this sink. A target that holds output of another one, as of an earlier region of the name, is
                refused: its checkpoints have the same numbers, and its records would count as this region's.

        Raises:
            ConfigurationError: the target is not there, may not be written to, or is another sink's.
        """

    @abstractmethod
    def write(self, rows: DataFrame, batch: BatchContext) -> None:
        """Write rows of one batch, by the pipeline's `context.sinks["name"].write(rows)`; once in each batch.

        The batch may still fail, be cancelled, or be discarded: output of it counts only once a checkpoint names it.
        Its records may come again in a batch of another id, with other ranges. Only jobs that it waits for belong to
        it.

        Args:
            rows: with the columns `topic`, `partition` and `offset`: the record that each row was made of.
            batch: whose rows they are, with what to be idempotent with.
        """

    @abstractmethod
    def prepare(self, sequence: CheckpointNumber) -> None:
        """Make durable what this member's accepted batches have written: from then on it may die and nothing is lost.

        It is asked in a drain, by each member of the group, before its part of the checkpoint is stored. No batch of it
        runs.

        Args:
            sequence: the checkpoint's.
        """

    @abstractmethod
    def publish(self, checkpoint: CompleteCheckpoint) -> None:
        """Show what belongs to a complete checkpoint, and nothing else.

        One member of the region does so, of whatever group; where it is too slow, another one as well, at the same
        time. Checkpoints come in their order, each after the one before it was published.

        Args:
            checkpoint: what counts.
        """

    @abstractmethod
    def rollback(self, reset: Reset) -> None:
        """Hide what a reset has undone, and refuse older epochs, if that is this sink's to do.

        Each member of the group is asked, with none of its batches running; others may still write under the older
        epoch. The region continues only after all of them have answered. Output of current checkpoints is not
        touched.

        Args:
            reset: what is void, and from when.
        """

    def replace(self, old: CompleteCheckpoint, new: CompleteCheckpoint) -> None:
        """Show the output of other batches in place of what a published checkpoint has: its records were recomputed.

        In one step, so that readers see the one or the other as a whole. A sink without this method can't take part in
        a recomputation, which is then refused before anything runs. The batches have written by `write`, and a later
        recomputation may replace them in turn; nothing else of the sink may change, and members go on meanwhile.

        Members go on naming the batches that were replaced: a late `publish` of the checkpoint, and after a reset that
        leaves a part of it, the `publish` of a later one. What the new batches have of their records counts instead.

        Args:
            old: what was published, with the batches that it had then, however often they were replaced since. Not here
                if the sink was added to the spec later, or the output goes into another sink than the region's: then
                there is nothing of `old`, and `new` is shown.
            new: the same checkpoint, with the batches that recompute it. A process that was frozen may come late: then
                `new.recomputation` is lower than the one that is shown, and the sink leaves that as it is.
        """
        raise NotImplementedError


Factory: TypeAlias = "Callable[[Mapping[str, str], SparkSession], CustomSink]"
"""Makes a sink of its options, references filled in, and of the application's session. Every application of the region
calls it, those of other groups too: whichever member publishes a checkpoint does so for all groups."""
