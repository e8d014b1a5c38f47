"""What became of one record, and which records were delivered more than once and why: answers from the ledger."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate

from airflow_kcr.protocol.invariants.history import Handled, Index
from airflow_kcr.protocol.invariants.replays import started_again
from airflow_kcr.protocol.region.events import ResetBegun
from airflow_kcr.protocol.region.rows import Batch, Outcome, ResetCause
from airflow_kcr.protocol.values import (
    BatchId,
    CheckpointNumber,
    Epoch,
    EventNumber,
    GroupPartition,
    Incarnation,
    MemberId,
    Offset,
    Range,
    Timeline,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDelivery:
    """One time that an offset was started."""

    batch: BatchId
    member: MemberId
    incarnation: Incarnation
    epoch: Epoch
    timeline: Timeline
    sequence: CheckpointNumber
    started_after: EventNumber
    outcome: Outcome | None
    """Of the batch at this offset: UNDONE where a reset went back to it or before; None: it still runs."""

    @property
    def is_accepted(self) -> bool:
        """Whether it counts: done and not undone."""
        return self.outcome is Outcome.DONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Redelivery:
    """Offsets that were started again."""

    partition: GroupPartition
    range: Range
    batch: BatchId
    """The batch that began them again."""

    earlier: tuple[BatchId, ...]
    """Who had started them before, oldest first."""

    epoch: Epoch | None
    """The reset that went back; None: nothing accounts for it (a violation of R8)."""

    cause: ResetCause | None


def delivery_of(batch: Batch, partition: GroupPartition, offset: Offset) -> OffsetDelivery:
    """Return the time that an offset was started in a batch that has it."""
    mark = batch.undone_from.get(partition)
    is_undone = batch.outcome is Outcome.DONE and mark is not None and mark <= offset
    return OffsetDelivery(
        batch=batch.batch,
        member=batch.member,
        incarnation=batch.incarnation,
        epoch=batch.epoch,
        timeline=batch.timeline,
        sequence=batch.sequence,
        started_after=batch.started_after,
        outcome=Outcome.UNDONE if is_undone else batch.outcome,
    )


def redeliveries(index: Index) -> Iterator[Redelivery]:
    """Yield the offsets that were started more than once, each with the reset that made it so."""
    begins: dict[GroupPartition, _Begins] = {}
    for again in started_again(index):
        if again.partition not in begins:
            begins[again.partition] = _Begins(index.begun[again.partition])
        epoch = None if again.reset is None else index.epochs.at(again.reset)
        attempt = None if epoch is None else index.attempts.get(epoch)
        begun: ResetBegun | None = None if attempt is None else attempt.begun
        earlier = [
            (h.number, h.batch.batch)
            for h in begins[again.partition].within(again.range)
            if h.number <= again.batch.started_after and h.batch.batch != again.batch.batch
        ]
        yield Redelivery(
            partition=again.partition,
            range=again.range,
            batch=again.batch.batch,
            earlier=tuple(batch for _, batch in sorted(earlier)),
            epoch=epoch,
            cause=None if begun is None else begun.cause,
        )


class _Begins:
    """What was started of one partition, by offset; found without reading all, as a replay repeats thousands."""

    def __init__(self, begun: Iterable[Handled]) -> None:
        self._begun = sorted(begun, key=lambda h: h.range.from_)
        self._reach = list(accumulate((h.range.to for h in self._begun), max))
        """How far any of them reaches, up to each."""

    def within(self, range_: Range) -> Iterator[Handled]:
        """Yield what was started of a range, in no order."""
        beyond = bisect_left(self._begun, range_.to, key=lambda h: h.range.from_)
        for i in reversed(range(beyond)):
            if self._reach[i] <= range_.from_:
                return
            if self._begun[i].range.to > range_.from_:
                yield self._begun[i]
