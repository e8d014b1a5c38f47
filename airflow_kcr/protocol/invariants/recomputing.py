"""R15: what a recomputation has processed, beside what it set out to process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from airflow_kcr.protocol.invariants.moment import Invariant, Moment
from airflow_kcr.protocol.invariants.tiling import add, lacking
from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.values import EventNumber, GroupPartition, Range


@dataclass(slots=True, kw_only=True)
class Recomputed(Invariant):
    """R15 (V) a recomputation processes exactly what its checkpoint has, once.

    It begins, and is done, while its checkpoint is current; it ends once. Its batches together are what it began with:
    no record is missing, none was in two of them, and none lies outside.

    It can't see what the sinks made of it (R1b); what a checkpoint has is for R1a.
    """

    invariant: ClassVar[str] = "R15"
    since: EventNumber | None = None
    """The first event that is kept; what began before it is not known."""

    running: dict[EventNumber, events.RecomputationBegun] = field(default_factory=dict)

    def event(self, moment: Moment, event: events.Event) -> None:
        """See `Invariant`."""
        self.since = event.number if self.since is None else self.since
        match event.body:
            case events.RecomputationBegun(sequence=sequence) as body:
                self.running[event.number] = body
                if not moment.is_current(sequence):
                    self.add(f"checkpoint {sequence} was recomputed, and is not a current one", event.number)
            case events.CheckpointRecomputed(sequence=sequence, number=number, batches=batches):
                begun = self._ended(event, number, sequence)
                if not moment.is_current(sequence):
                    self.add(
                        f"the output of checkpoint {sequence} was replaced, and it is not a current one", event.number
                    )
                if begun is not None:
                    self._judge(f"the recomputation of checkpoint {sequence}", begun.ranges, batches, number, event)
            case events.RecomputationFailed(sequence=sequence, number=number):
                self._ended(event, number, sequence)

    def _ended(self, event: events.Event, number: EventNumber, sequence: int) -> events.RecomputationBegun | None:
        begun = self.running.pop(number, None)
        if begun is None and self.since is not None and number >= self.since:
            self.add(f"a recomputation of checkpoint {sequence} ended, it was not running", number, event.number)
        return begun

    def _judge(
        self,
        what: str,
        wanted: Mapping[GroupPartition, tuple[Range, ...]],
        batches: Iterable[Mapping[GroupPartition, Range]],
        number: EventNumber,
        event: events.Event,
    ) -> None:
        done: dict[GroupPartition, list[Range]] = {}
        for batch in batches:
            for partition, range_ in batch.items():
                for twice in add(done.setdefault(partition, []), range_):
                    self.add(f"{what}: {partition}: {twice} was processed twice", number, event.number)
        for partition in sorted({*wanted, *done}):
            own, had = wanted.get(partition, ()), done.get(partition, [])
            for range_ in lacking(own, had):
                self.add(f"{what}: {partition}: {range_} was not processed", number, event.number)
            for range_ in lacking(had, own):
                self.add(f"{what}: {partition}: {range_} is not of the checkpoint", number, event.number)
