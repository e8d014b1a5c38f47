"""R11: lineages and sequences only ever grow, and a batch carries those of its begin."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from airflow_kcr.protocol.invariants.acceptance import WAS_DONE
from airflow_kcr.protocol.invariants.history import Handled, Index, Violation
from airflow_kcr.protocol.region.events import CutOpened, ResetBegun, StoreRestoredSeen
from airflow_kcr.protocol.values import EventNumber, GroupPartition, Lineage, Sequence


def increasing(index: Index) -> Iterator[Violation]:
    """R11 (V) (lineage, sequence) strictly increases and no two accepted batches of one (lineage, sequence) overlap.

    Over cuts and resets in commit order the sequence grows and the lineage never falls, so that no sequence is used
    twice; a reset that is its own base opens the next lineage, any other keeps it, and what it undoes are the cuts that
    its map lies below. Every batch is stamped with the lineage of its begin and the open cut's sequence, else the
    next one. Done batches, undone later or not, that share a stamp don't overlap.

    It can't see numbers that a restored store had used before: the region is halted then, and its numbers raised above
    all that anybody has seen.
    """
    before: tuple[EventNumber, Lineage, Sequence] = (EventNumber(0), Lineage(0), Sequence(0))
    for event in index.history.events:
        body, number = event.body, event.number
        if isinstance(body, StoreRestoredSeen):
            before = number, Lineage(max(event.lineage, before[1])), before[2]
        if not isinstance(body, CutOpened | ResetBegun):
            continue
        if body.sequence <= before[2] or body.lineage < before[1]:
            detail = f"({body.lineage}, {body.sequence}) comes after ({before[1]}, {before[2]})"
            yield Violation("R11", detail, (before[0], number))
        opens = isinstance(body, ResetBegun) and body.base == body.sequence
        if body.lineage != before[1] + opens:
            expected = f"expected was {before[1] + opens}"
            detail = f"{event.kind} {body.sequence} is of lineage {body.lineage}, {expected}"
            yield Violation("R11", detail, (before[0], number))
        before = number, Lineage(max(body.lineage, before[1])), Sequence(max(body.sequence, before[2]))
    yield from _undoes(index)
    yield from _stamps(index)


def _undoes(index: Index) -> Iterator[Violation]:
    for attempt in index.attempts.values():
        if tuple(attempt.begun.undoes) != attempt.undone:
            said, found = list(attempt.begun.undoes), list(attempt.undone)
            detail = f"reset {attempt.begun.sequence} says that it undoes the cuts {said}, its map lies below {found}"
            yield Violation("R11", detail, (attempt.number,))


def _stamps(index: Index) -> Iterator[Violation]:
    done: dict[tuple[Lineage, Sequence, GroupPartition], list[Handled]] = {}
    for batch in index.history.batches:
        number = batch.begun_after
        if number > index.last:
            continue
        stamp = index.lineages.at(number), index.stamps.at(number)
        if (batch.lineage, batch.sequence) != stamp:
            detail = f"batch {batch.batch} is stamped ({batch.lineage}, {batch.sequence}), at its begin it was {stamp}"
            yield Violation("R11", detail, (number,))
        if batch.outcome in WAS_DONE:
            for partition, range_ in batch.ranges.items():
                key = batch.lineage, batch.sequence, partition
                done.setdefault(key, []).append(Handled(number, range_, batch))
    for (lineage, sequence, partition), handled in sorted(done.items()):
        for a, b in pairwise(sorted(handled, key=lambda h: h.range)):
            if b.range.from_ < a.range.to:
                where = f"{partition}, both done in ({lineage}, {sequence})"
                detail = f"batches {a.batch.batch} and {b.batch.batch} overlap on {where}"
                yield Violation("R11", detail, tuple(sorted((a.number, b.number))))
