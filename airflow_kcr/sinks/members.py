"""The sinks of one member's pipeline, as one (`ports.Sinks`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from airflow_kcr.ports import Sinks
from airflow_kcr.protocol.member.effects import ResetSinks
from airflow_kcr.protocol.values import CheckpointNumber, GroupPartition, Offset


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
