"""R8: what was begun more than once, and which reset accounts for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from airflow_kcr.protocol.invariants.check import Check
from airflow_kcr.protocol.invariants.findings import Findings
from airflow_kcr.protocol.invariants.history import Handled, Index, Place
from airflow_kcr.protocol.invariants.intervals import add, below, common, joined, lacking, width
from airflow_kcr.protocol.invariants.moment import Moment
from airflow_kcr.protocol.region.events import Event, ResetBegun, SeekWritten
from airflow_kcr.protocol.region.rows import Batch, ResetCause
from airflow_kcr.protocol.values import Epoch, EventNumber, GroupPartition, Offset, Range, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What one reset made to be processed again."""

    epoch: Epoch
    sequence: Sequence
    cause: ResetCause
    rewound: Mapping[GroupPartition, int]
    """How many offsets had been begun at or beyond its seek entries, and not been rewound by an earlier reset."""

    replayed: Mapping[GroupPartition, int]
    """How many of them have been begun again since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """A range that was begun again, in one piece, because of one reset."""

    partition: GroupPartition
    range: Range
    batch: Batch
    """The batch that began it again."""

    reset: EventNumber | None
    """The event that rewound it; None: nothing accounts for it."""


@dataclass(slots=True, kw_only=True)
class Accounted(Check):
    """R8 (V) ranges begun more than once are exactly those that the resets between them account for.

    A range that overlaps one begun before needs a seek entry at or below the overlap, written between the two begins.
    What each reset rewound, and how much of it was begun again, is `replayed`.

    It can't see how many *records* those offsets hold, nor repetitions inside Spark (a task's second attempt).
    """

    invariant: ClassVar[str] = "R8"
    sees_batches: ClassVar[bool] = True
    standing: dict[GroupPartition, list[Range]] = field(default_factory=dict)
    """What was begun, joined, and not rewound since."""

    def event(self, moment: Moment, event: Event, findings: Findings) -> None:
        """See `Check`."""
        if isinstance(event.body, ResetBegun | SeekWritten):
            for partition, entry in event.body.seek.items():
                standing = self.standing.get(partition)
                if standing and entry.offset is not None and entry.offset < standing[-1].to:
                    self.standing[partition] = list(below(standing, entry.offset))

    def begin(self, moment: Moment, batch: Batch, findings: Findings) -> None:
        """See `Check`."""
        for partition, range_ in batch.ranges.items():
            standing = self.standing.get(partition)
            if standing is None:
                self.standing[partition] = [range_]
                continue
            for piece in add(standing, range_):
                detail = f"{partition}: batch {batch.batch} begins {piece} again, no reset went back there"
                findings.add(detail, batch.begun_after)


def begun_again(index: Index) -> Iterator[Again]:
    """Yield every range that was begun again, partition by partition, in the order of the begins."""
    for partition in sorted(index.begun):
        yield from _Track(index=index, partition=partition).walk()


def replayed(index: Index) -> tuple[Replay, ...]:
    """Return what each reset rewound, and how much of it was begun again; those that rewound nothing are left out."""
    rewound: dict[EventNumber, dict[GroupPartition, int]] = {}
    again: dict[EventNumber, dict[GroupPartition, int]] = {}
    for partition in sorted(index.begun):
        track = _Track(index=index, partition=partition)
        for piece in track.walk():
            if piece.reset is not None:
                counts = again.setdefault(piece.reset, {})
                counts[partition] = counts.get(partition, 0) + piece.range.width
        for number, offsets in track.rewound.items():
            rewound.setdefault(number, {})[partition] = offsets
    found: list[Replay] = []
    for epoch, attempt in sorted(index.attempts.items()):
        numbers = [n for n in rewound if index.epochs.at(n) == epoch]
        if numbers:
            begun = attempt.begun
            found.append(
                Replay(
                    epoch=epoch,
                    sequence=begun.sequence,
                    cause=begun.cause,
                    rewound=_total([rewound[n] for n in numbers]),
                    replayed=_total([again.get(n, {}) for n in numbers]),
                )
            )
    return tuple(found)


def _total(counts: list[dict[GroupPartition, int]]) -> dict[GroupPartition, int]:
    total: dict[GroupPartition, int] = {}
    for count in counts:
        for partition, offsets in count.items():
            total[partition] = total.get(partition, 0) + offsets
    return total


@dataclass(slots=True, kw_only=True)
class _Track:
    """One partition: what was begun, and what of it a reset has rewound since."""

    index: Index
    partition: GroupPartition
    standing: tuple[Range, ...] = ()
    """Begun, and not rewound since."""

    pending: list[tuple[Range, EventNumber]] = field(default_factory=list)
    """Begun, rewound by the reset of that event, and not begun again since."""

    rewound: dict[EventNumber, int] = field(default_factory=dict)

    def walk(self) -> Iterator[Again]:
        """Yield what is begun again."""
        steps: list[tuple[EventNumber, int, Offset, Handled | Place]] = []
        steps += [(p.number, 0, Offset(0), p) for p in self.index.seeks.get(self.partition, ())]
        steps += [(h.number, 1, h.range.from_, h) for h in self.index.begun.get(self.partition, ())]
        for _, _, _, step in sorted(steps, key=lambda s: s[:3]):
            if isinstance(step, Handled):
                yield from self._begin(step)
            elif step.offset is not None:
                self._rewind(step.number, step.offset)

    def _rewind(self, number: EventNumber, offset: Offset) -> None:
        if not self.standing or offset >= self.standing[-1].to:
            return
        back = common(self.standing, [Range(offset, self.standing[-1].to)])
        self.standing = lacking(self.standing, back)
        self.pending += [(r, number) for r in back]
        self.rewound[number] = width(back)

    def _begin(self, handled: Handled) -> Iterator[Again]:
        range_, batch = handled.range, handled.batch
        if self.standing and range_.from_ < self.standing[-1].to:
            for piece in common(self.standing, [range_]):
                yield Again(partition=self.partition, range=piece, batch=batch, reset=None)
        left: list[tuple[Range, EventNumber]] = []
        for back, number in self.pending:
            for piece in common([back], [range_]):
                yield Again(partition=self.partition, range=piece, batch=batch, reset=number)
            left += [(r, number) for r in lacking([back], [range_])]
        self.pending = left
        if self.standing and self.standing[-1].to == range_.from_:
            # By far the most frequent case: the range goes on where the last one ended.
            self.standing = (*self.standing[:-1], Range(self.standing[-1].from_, range_.to))
        else:
            self.standing = joined([*self.standing, range_])
