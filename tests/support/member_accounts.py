"""What became of the records: the invariants over the history, and the output by counting.

Counting alone can't tell a replay that a reset ordered from another one; the history alone can't see what was written.
Each record that was written again is looked up in what R8 accounts for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from airflow_kcr.protocol.invariants.accounting import redeliveries
from airflow_kcr.protocol.invariants.history import History, Violation
from airflow_kcr.protocol.region.rows import Outcome
from airflow_kcr.protocol.values import BatchId, Range
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
    order = {batch.batch: number for number, batch in enumerate(history.batches)}
    again: dict[tuple[BatchId, str, int], list[tuple[Range, str]]] = {}
    for one in redeliveries(history):
        if one.reset is not None:
            again.setdefault((one.batch, one.partition.topic, one.partition.partition), []).append(
                (one.range, str(one.reset.cause))
            )
    accepted = {
        (b.batch, p.topic, p.partition, o)
        for b in history.batches
        if b.outcome is Outcome.DONE
        for p, r in b.ranges.items()
        for o in range(r.from_, min(r.to, b.undone_from.get(p, r.to)))
    }
    writers: dict[Place, list[BatchId]] = {}
    for row in rows:
        writers.setdefault((row.topic, row.partition, row.offset), []).append(BatchId(row.batch))

    explained: Counter[str] = Counter()
    unexplained = set()
    for place, batches in writers.items():
        topic, partition, offset = place
        if not all(batch in order for batch in batches) or len(set(batches)) < len(batches):
            unexplained.add(place)
            continue
        for batch in sorted(batches, key=order.__getitem__)[1:]:
            found = again.get((batch, topic, partition), ())
            cause = next((why for range_, why in found if range_.from_ <= offset < range_.to), None)
            if cause is None:
                unexplained.add(place)
            else:
                explained[cause] += 1
    kept = Counter({place: sum((b, *place) in accepted for b in batches) for place, batches in writers.items()})
    return Account(
        violations=tuple(str(v) for v in violations),
        missing=frozenset(wanted - writers.keys()),
        repeated=sum(len(batches) - 1 for batches in writers.values()),
        explained=dict(explained),
        unexplained=frozenset(unexplained),
        kept_twice=frozenset(place for place, n in kept.items() if n > 1),
        not_kept=frozenset(place for place in wanted if not kept[place]),
    )
