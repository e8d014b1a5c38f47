"""The sinks of one member's pipeline, as one (`ports.Sinks`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from airflow_kcr.protocol.member.effects import ResetSinks
from airflow_kcr.protocol.values import GroupPartition, Offset, Sequence


class FencedSink(Protocol):
    """A sink that refuses an older epoch by itself, and shows output with its batch rather than with a cut."""

    def reset(self, order: ResetSinks) -> Mapping[GroupPartition, Offset | None]:
        """Raise the fence, then roll back or skip, and answer the open entries; see `ports.Sinks`."""
        ...


class MemberSinks:
    """Carries a reset out on every sink; cuts need nothing of them, since each batch was published when it ended.

    Args:
        sinks: at least one.
    """

    def __init__(self, sinks: Iterable[FencedSink]) -> None:
        self._sinks = tuple(sinks)

    @property
    def fenced(self) -> bool:
        """Always: what a zombie writes, the sinks' databases refuse."""
        return True

    def reset(self, order: ResetSinks) -> Mapping[GroupPartition, Offset | None]:
        """Carry out a reset on every sink.

        Returns:
            The progress of each open partition. It is asked for only where the delivery is `exactly_once`, and then
            there is one sink.

        Raises:
            SinkError: one of them could not; the others may have done it, and do nothing when asked again.
            SinkAhead: one of them has seen a later epoch or lineage.
        """
        answers: dict[GroupPartition, Offset | None] = {}
        for sink in self._sinks:
            answers.update(sink.reset(order))
        return answers

    def prepare(self, sequence: Sequence) -> None:
        """Nothing is held back: every batch that ended is in its table."""

    def publish(self, sequence: Sequence) -> None:
        """Everything is there already."""
