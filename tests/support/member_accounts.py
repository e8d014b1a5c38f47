"""What became of the records: the invariants over the history, and the output by counting.

Counting alone can't tell a replay that a reset ordered from another one; the history alone can't see what was written.
Each record that was written again is looked up in what R8 accounts for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import pairwise

from airflow_kcr.protocol.invariants.accounting import redeliveries
from airflow_kcr.protocol.invariants.history import History, Violation
from airflow_kcr.protocol.region.rows import Batch, Outcome, ResetCause
from airflow_kcr.protocol.values import BatchId
from tests.support.plain_engine import Written

Place = tuple[str, int, int]
"""Topic, partition and offset of one record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What became of the records."""

    violations: tuple[str, ...]
    missing: frozenset[Place]
    """Records that were never written."""

    repeated: int
    """How often a record was written once more than once."""

    explained: Mapping[str, int]
    """How many of them each cause accounts for: resets that went back, between the two batches (R8)."""

    unexplained: frozenset[Place]
    """Records written again with no reset between the batches, twice by one batch, or by one that never began."""

    kept_twice: frozenset[Place]
    """Records in more than one accepted batch: never."""

    not_kept: frozenset[Place]
    """Records in no accepted batch."""

    @property
    def is_sound(self) -> bool:
        """Whether nothing is missing, nothing was accepted twice, what was repeated had to be, and R1 to R13 hold."""
        return not (self.violations or self.missing or self.unexplained or self.kept_twice or self.not_kept)


def judged(
    history: History, violations: Iterable[Violation], rows: Iterable[Written], wanted: AbstractSet[Place]
) -> Account:
    """Judge a history and what was written.

    Args:
        history: events and ledger, read at one moment.
        violations: what the invariants say of it.
        rows: the output.
        wanted: the records that there are.
    """
    seen = Witnesses.of(history, rows)
    accepted = {
        (b.batch, p.topic, p.partition, o)
        for b in history.batches
        if b.outcome is Outcome.DONE
        for p, r in b.ranges.items()
        for o in range(r.from_, min(r.to, b.undone_from.get(p, r.to)))
    }
    strange = {place for place, _ in seen.strange()}
    causes = [one for one in seen.causes() if one[0] not in strange]
    kept = Counter({place: sum((b, *place) in accepted for b in batches) for place, batches in seen.writers.items()})
    return Account(
        violations=tuple(str(v) for v in violations),
        missing=frozenset(wanted - seen.writers.keys()),
        repeated=sum(len(batches) - 1 for batches in seen.writers.values()),
        explained=dict(Counter(str(cause) for _, _, cause in causes if cause is not None)),
        unexplained=frozenset(strange | {place for place, _, cause in causes if cause is None}),
        kept_twice=frozenset(place for place, n in kept.items() if n > 1),
        not_kept=frozenset(place for place in wanted if not kept[place]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Witnesses:
    """Who began a record, who wrote it, and what the ledger says of its repetitions."""

    batches: Mapping[BatchId, Batch]
    order: Mapping[BatchId, int]
    begun: Mapping[Place, tuple[BatchId, ...]]
    writers: Mapping[Place, tuple[BatchId, ...]]
    again: Mapping[Place, Mapping[BatchId, ResetCause | None]]
    ledger: int

    @classmethod
    def of(cls, history: History, rows: Iterable[Written]) -> Witnesses:
        order = {batch.batch: number for number, batch in enumerate(history.batches)}
        begun: dict[Place, list[BatchId]] = {}
        for batch in history.batches:
            for p, r in batch.ranges.items():
                for offset in range(r.from_, r.to):
                    begun.setdefault((p.topic, p.partition, offset), []).append(batch.batch)
        writers: dict[Place, list[BatchId]] = {}
        for row in rows:
            writers.setdefault((row.topic, row.partition, row.offset), []).append(BatchId(row.batch))
        again: dict[Place, dict[BatchId, ResetCause | None]] = {}
        ledger = 0
        for one in redeliveries(history):
            ledger += one.range.width
            for offset in range(one.range.from_, one.range.to):
                place = (one.partition.topic, one.partition.partition, offset)
                again.setdefault(place, {})[one.batch] = None if one.reset is None else one.reset.cause
        return cls(
            batches={batch.batch: batch for batch in history.batches},
            order=order,
            begun={place: tuple(ids) for place, ids in begun.items()},
            writers={p: tuple(sorted(ids, key=lambda b: order.get(b, -1))) for p, ids in writers.items()},
            again=again,
            ledger=ledger,
        )

    @property
    def replays(self) -> bool:
        """Whether a person has had anything processed again."""
        return any(ResetCause.PERSON in by.values() for by in self.again.values())

    def strange(self) -> list[tuple[Place, BatchId]]:
        """What was written by a batch that had not started it, or twice by one."""
        return [
            (place, batch)
            for place, ids in self.writers.items()
            for batch, n in Counter(ids).items()
            if n > 1 or batch not in self.begun.get(place, ())
        ]

    def silent(self) -> list[tuple[Place, BatchId]]:
        """What a batch that is done has not written."""
        return [
            (place, batch)
            for place, ids in self.begun.items()
            for batch in ids
            if self._was_done(batch) and batch not in self.writers.get(place, ())
        ]

    def has_died_with(self, place: Place) -> bool:
        """Whether the newest batch that began a record has never ended."""
        ids = self.begun.get(place, ())
        return bool(ids) and not self._was_done(ids[-1])

    def causes(self) -> Iterator[tuple[Place, BatchId, ResetCause | None]]:
        """Yield each time that a record was written again, and why by the ledger; None: no reset accounts for it."""
        for place, _, batch in self._repeated():
            yield place, batch, self.again.get(place, {}).get(batch)

    def in_flight(self) -> set[BatchId]:
        """The batches without an accepted end of which something was written again after a failure."""
        return {
            earlier
            for place, earlier, batch in self._repeated()
            if self.again[place][batch] is not ResetCause.PERSON and not self._was_done(earlier)
        }

    def repeated_though_done(self) -> list[tuple[Place, BatchId]]:
        """What was written again after a failure though its batch was done."""
        return [
            (place, earlier)
            for place, earlier, batch in self._repeated()
            if self.again[place][batch] is not ResetCause.PERSON and self._was_done(earlier)
        ]

    def _repeated(self) -> Iterable[tuple[Place, BatchId, BatchId]]:
        """Each time that a record was written again: by whom before, and by whom."""
        for place, ids in self.writers.items():
            for earlier, batch in pairwise(ids):
                yield place, earlier, batch

    def _was_done(self, batch: BatchId) -> bool:
        return self.batches[batch].outcome in {Outcome.DONE, Outcome.UNDONE}
