"""What sinks have in common: as one for a member (`ports.Sinks`), as a batch writes to them, and none at all."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from airflow_kcr.errors import ConfigurationError, SinkError
from airflow_kcr.ports import Sinks
from airflow_kcr.protocol.member.messages import ResetSinks
from airflow_kcr.protocol.rules import Delivery, GroupRules
from airflow_kcr.protocol.values import CheckpointNumber, GroupPartition, Offset
from airflow_kcr.spark.context import COORDINATES, SinkWriter


class FencedSink(Protocol):
    """A sink that refuses an older epoch by itself, and shows output with its batch rather than with a checkpoint."""

    def reset(self, order: ResetSinks) -> Mapping[GroupPartition, Offset | None]:
        """Raise the fence, then roll back or skip, and answer the open entries; see `ports.Sinks`."""
        ...


class UserSink(FencedSink, Protocol):
    """A sink that may neither refuse an older epoch nor have everything durable when a batch ends."""

    @property
    def fenced(self) -> bool:
        """Whether it refuses an older epoch by itself."""
        ...

    def prepare(self, sequence: CheckpointNumber) -> None:
        """Make durable what it holds; see `ports.Sinks`."""
        ...


class CheckpointSink(Protocol):
    """A sink that shows output with its checkpoint."""

    def publish(self, sequence: CheckpointNumber) -> None:
        """Show what belongs to a checkpoint; see `ports.Sinks`."""
        ...


class MemberSinks:
    """Carries a reset out on every sink; of ours, checkpoints need nothing.

    Args:
        ours: tables and files: what a zombie writes, a database refuses, and no manifest names.
        users: sinks of users' own.
    """

    def __init__(self, ours: Iterable[FencedSink], users: Iterable[UserSink] = ()) -> None:
        self._users = tuple(users)
        self._sinks: tuple[FencedSink, ...] = (*ours, *self._users)

    @property
    def fenced(self) -> bool:
        """Whether each refuses an older epoch by itself: ours do."""
        return all(sink.fenced for sink in self._users)

    def reset(self, order: ResetSinks) -> Mapping[GroupPartition, Offset | None]:
        """Carry out a reset on every sink.

        Returns:
            The progress of each open partition. It is asked for only where the delivery is `exactly_once`, and then
            there is one sink.

        Raises:
            SinkError: one of them could not; the others may have done it, and do nothing when asked again.
            SinkAhead: one of them has seen a later epoch or timeline.
        """
        answers: dict[GroupPartition, Offset | None] = {}
        for sink in self._sinks:
            answers.update(sink.reset(order))
        return answers

    def prepare(self, sequence: CheckpointNumber) -> None:
        """Have users' sinks make durable what they hold; ours have every batch that ended.

        Raises:
            SinkError: one could not.
        """
        for sink in self._users:
            sink.prepare(sequence)

    def publish(self, sequence: CheckpointNumber) -> None:
        """Tables have it already; what is shown with its checkpoint is `WithCheckpoints`' to show."""


class WithCheckpoints:
    """The sinks of one member's pipeline, and those of the whole region that show output with its checkpoint.

    One member publishes a checkpoint for all groups.

    Args:
        inner: the member's.
        of_region: every sink that shows output with its checkpoint, of whatever group.
    """

    def __init__(self, inner: Sinks, of_region: Iterable[CheckpointSink]) -> None:
        self._inner, self._of_region = inner, tuple(of_region)

    @property
    def fenced(self) -> bool:
        """Whether the member's own sinks refuse an older epoch by themselves."""
        return self._inner.fenced

    def reset(self, order: ResetSinks) -> Mapping[GroupPartition, Offset | None]:
        """Carry out a reset on the member's sinks; see `ports.Sinks`."""
        return self._inner.reset(order)

    def prepare(self, sequence: CheckpointNumber) -> None:
        """Make durable what the member's sinks hold; see `ports.Sinks`."""
        self._inner.prepare(sequence)

    def publish(self, sequence: CheckpointNumber) -> None:
        """Show what belongs to a checkpoint, in all of the region's sinks.

        Raises:
            SinkError: one could not; the others may have done it, and do nothing when asked again.
        """
        self._inner.publish(sequence)
        for sink in self._of_region:
            sink.publish(sequence)


class BatchWriter(SinkWriter, Protocol):
    """One sink for one batch: what the pipeline writes to, and what is done once nothing of the batch runs any more."""

    def publish(self) -> object:
        """Do what is left; see `Output.publish`."""
        ...


class SinkOutput:
    """What one batch writes into its group's sinks.

    Args:
        writers: one for each sink of the group, with its name.
    """

    def __init__(self, writers: Iterable[tuple[str, BatchWriter]]) -> None:
        self._writers = dict(writers)

    @property
    def writers(self) -> Mapping[str, SinkWriter]:
        """One for each sink, by its name."""
        return self._writers

    def publish(self) -> None:
        """Publish to every sink, in the order of their names.

        Raises:
            SinkError: one was not written to, or refuses.
        """
        for name in sorted(self._writers):
            self._writers[name].publish()


# The sinks of a pipeline that has none of ours: it writes where it likes, and the ledger counts what was discarded.


class NoSinks:
    """Nothing to fence, to roll back or to publish.

    Args:
        group: whose pipeline it is.

    Raises:
        ConfigurationError: its delivery needs a sink that stores progress together with the output.
    """

    def __init__(self, group: GroupRules) -> None:
        if group.delivery is Delivery.EXACTLY_ONCE:
            raise ConfigurationError(
                f"group {group.group_id}: delivery exactly_once needs one transactional sink, which stores progress "
                "with the output, and its pipeline has none; choose at_least_once, almost_once or at_most_once"
            )

    @property
    def fenced(self) -> bool:
        """Never: what a zombie writes is for the pipeline's own target to refuse."""
        return False

    def reset(self, order: ResetSinks) -> Mapping[GroupPartition, Offset | None]:
        """Nothing is known, so nothing is answered."""
        return {}

    def prepare(self, sequence: CheckpointNumber) -> None:
        """Nothing is held back."""

    def publish(self, sequence: CheckpointNumber) -> None:
        """Everything is there already."""


# What every sink's rows have to have, and what is said to a pipeline that writes twice or not at all.


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


def written_twice(writer: object) -> SinkError:
    """Return the error of a sink that a batch has written to before."""
    return SinkError(f"{writer!r} was written to already; a batch writes once to each sink: union the rows")


def not_written(writer: object) -> SinkError:
    """Return the error of a sink that a batch has not written to."""
    return SinkError(
        f"{writer!r} was not written to; write to each sink in every batch, a DataFrame without rows where there "
        "is nothing: else it is unknown whether the records were read"
    )
