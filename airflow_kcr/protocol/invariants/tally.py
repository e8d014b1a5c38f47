"""What a history adds up to: for each partition where it began and what is accepted, and the batches by outcome."""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_kcr.protocol.invariants.intervals import add, below, width
from airflow_kcr.protocol.region.events import Event, InitialOffsetsStored, ResetBegun, SeekWritten
from airflow_kcr.protocol.region.rows import Batch, Outcome
from airflow_kcr.protocol.values import GroupPartition, Offset, Range


@dataclass(slots=True, kw_only=True)
class Total:
    """One partition."""

    initial: Offset | None = None
    """Its first initial offset."""

    begun: int = 0
    """Offsets that were started, each as often as it was."""

    accepted: int = 0
    """Offsets that were accepted, each as often as it was."""

    undone: int = 0
    """Offsets that were accepted and that a reset has undone."""

    standing: list[Range] = field(default_factory=list)
    """What is accepted and not undone, joined; its width is `accepted` less `undone`, if nothing was doubled."""


@dataclass(slots=True, kw_only=True)
class Tally:
    """All of them."""

    partitions: dict[GroupPartition, Total] = field(default_factory=dict)
    batches: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    """Batches by what became of them, undone later or not; those whose outcome is open are in none."""

    def begin(self, batch: Batch) -> None:
        """Count a batch that begins."""
        self.batches += 1
        partitions = self.partitions
        for partition, range_ in batch.ranges.items():
            total = partitions.get(partition)
            if total is None:
                total = partitions[partition] = Total()
            total.begun += range_.to - range_.from_

    def accept(self, batch: Batch) -> None:
        """Count a batch that is accepted."""
        self.end(Outcome.DONE)
        for partition, range_ in batch.ranges.items():
            total = self.partitions[partition]
            total.accepted += range_.to - range_.from_
            add(total.standing, range_)

    def end(self, outcome: Outcome) -> None:
        """Count what became of a batch."""
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1

    def event(self, event: Event) -> None:
        """Take an event."""
        match event.body:
            case InitialOffsetsStored(offsets=offsets):
                for partition, offset in offsets.items():
                    total = self.partitions.setdefault(partition, Total())
                    if total.initial is None:
                        total.initial = offset
            case ResetBegun(seek=seek) | SeekWritten(seek=seek):
                for partition, entry in seek.items():
                    found = self.partitions.get(partition)
                    if found is not None and entry.offset is not None:
                        before = width(found.standing)
                        found.standing = list(below(found.standing, entry.offset))
                        found.undone += before - width(found.standing)
            case _:
                pass
