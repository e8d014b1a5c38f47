"""Sinks of users' own, as members and batches have them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow_kcr.errors import ConfigurationError, KcrError, SinkError
from airflow_kcr.ports import BatchCall
from airflow_kcr.protocol.member.messages import ResetSinks
from airflow_kcr.protocol.table_outputs import TableVersion
from airflow_kcr.protocol.values import CheckpointNumber, EventNumber, GroupPartition, Offset, replace
from airflow_kcr.sinks.checkpoints import AcceptedBatch, CompleteCheckpoint
from airflow_kcr.sinks.contract import Revision, Sink, SinkOwner
from airflow_kcr.sinks.custom import CustomSink, Reset
from airflow_kcr.sinks.files.contents import RegionLedger
from airflow_kcr.sinks.files.frames import with_coordinates
from airflow_kcr.spark.causes import WORDS, essential_line
from airflow_kcr.spark.context import BatchContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class MemberCustomSink(Sink):
    """One custom sink, told what a member does.

    Args:
        owner: whose output it writes.
        sink: as its function made it.
        ledger: says what is accepted.
    """

    def __init__(self, owner: SinkOwner, sink: CustomSink, ledger: RegionLedger) -> None:
        self.owner, self.sink, self._ledger = owner, sink, ledger

    @property
    def fenced(self) -> bool:
        """Whether the sink says that it refuses an older epoch by itself."""
        return self.sink.fenced

    def check(self) -> None:
        """Have it check its target, and note there whose output it is.

        Raises:
            ConfigurationError: it says that it can't work.
            SinkError: its target can't be reached.
        """
        with unusable(self.owner):
            self.sink.check(self.owner)

    def reset(self, order: ResetSinks) -> Mapping[GroupPartition, Offset | None]:
        """Have it roll back; it knows of no progress.

        Raises:
            SinkError: it could not.
        """
        resume = {p.topic_partition: offset for p, offset in order.resume.items()}
        with self.refusal("roll back"):
            self.sink.rollback(
                Reset(epoch=order.epoch, timeline=order.timeline, undone=self._ledger.undone(), resume=resume)
            )
        return {}

    def prepare(self, sequence: CheckpointNumber) -> None:
        """Have it make durable what it holds.

        Raises:
            SinkError: it could not.
        """
        with self.refusal(f"prepare checkpoint {sequence}"):
            self.sink.prepare(sequence)

    def publish(self, sequence: CheckpointNumber) -> tuple[TableVersion, ...]:
        """Have it show a checkpoint, if no reset has undone that meanwhile.

        Raises:
            SinkError: it could not.
        """
        contents = self._ledger.contents(sequence, self.owner.group)
        if contents.undone_by is None:
            with self.refusal(f"publish checkpoint {sequence}"):
                self.sink.publish(contents)
        return ()

    def write(self, rows: DataFrame, call: BatchCall) -> Callable[[], None]:
        """Have it write rows; what was written counts with its checkpoint, so nothing is left to do."""
        with_coordinates(rows)
        self.sink.write(rows, BatchContext.of(call, {}))
        return lambda: None

    def revised(self, checkpoint: CompleteCheckpoint, number: EventNumber) -> Revision:
        """Return what has the sink replace the output of a checkpoint, if it knows how to.

        Raises:
            ConfigurationError: it has no method for that.
        """
        if type(self.sink).replace is CustomSink.replace:
            raise ConfigurationError(
                f"{self.owner.name} can't be recomputed: {type(self.sink).__name__} has no method replace(old, new); "
                "write it, as CustomSink.replace says, or recompute other groups alone"
            )
        return CustomRevision(self, replace(checkpoint, recomputation=number))

    def shown(self, checkpoint: CompleteCheckpoint, spark: SparkSession) -> DataFrame:
        """Refuse: only its own code knows what it has written."""
        raise ConfigurationError(
            f"{self.owner.name} can't be compared: {type(self.sink).__name__} is a sink of your own, whose output only "
            "its code can read; compare other groups (--group), or have the pipeline write into a table or a folder "
            "elsewhere (--into) and compare the two there"
        )

    @contextmanager
    def refusal(self, what: str) -> Iterator[None]:
        """Translate what a user's code raises into what the runtime tries again."""
        try:
            yield
        except KcrError:
            raise
        except Exception as error:  # noqa: BLE001 (its kind and place are named)
            WORDS.error("%s could not %s", self.owner.name, what, exc_info=error)
            raise SinkError(f"{self.owner.name} could not {what}: {essential_line(error)}") from None


class CustomRevision(Revision):
    """Output of a custom sink that takes the place of a checkpoint's.

    Args:
        sink: whose.
        checkpoint: the one that is recomputed, with the number of that.
    """

    def __init__(self, sink: MemberCustomSink, checkpoint: CompleteCheckpoint) -> None:
        self._sink, self._checkpoint = sink, checkpoint
        self._batches: list[AcceptedBatch] = []

    def write(self, rows: DataFrame, call: BatchCall) -> Callable[[], object]:
        """Have it write rows where readers don't look, and note the batch."""
        done = AcceptedBatch(
            batch_id=call.batch,
            epoch=call.epoch,
            checkpoint=self._checkpoint.id,
            ranges={p.topic_partition: r for p, r in call.ranges.items()},
            is_whole=True,
        )
        self._sink.write(rows, call)
        return lambda: self._batches.append(done)

    def held(self, spark: SparkSession) -> DataFrame:
        """Refuse; as `MemberCustomSink.shown`."""
        return self._sink.shown(self._checkpoint, spark)

    def replace(self, require_wanted: Callable[[], None]) -> tuple[TableVersion, ...]:
        """Have it show the batches; whether they are still wanted is asked right before."""
        require_wanted()
        new = replace(self._checkpoint, batches=tuple(self._batches))
        with self._sink.refusal(f"replace the output of checkpoint {self._checkpoint.id.sequence}"):
            self._sink.sink.replace(replace(self._checkpoint, recomputation=0), new)
        return ()


@contextmanager
def unusable(owner: SinkOwner) -> Iterator[None]:
    """Translate what a user's code raises before anything is consumed."""
    try:
        yield
    except KcrError:
        raise
    except Exception as error:
        raise ConfigurationError(f"{owner.name} can't be made: {type(error).__name__}: {error}") from error
