"""R4: what Kafka holds, and what the checkpoints say about it."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_kcr.protocol.invariants.history import Index, Violation, offsets_of
from airflow_kcr.protocol.region.events import CommitResolved, Echoed
from airflow_kcr.protocol.region.rows import Committed
from airflow_kcr.protocol.values import EventNumber, GroupPartition, Offset, Sequence


def echoed(index: Index) -> Iterator[Violation]:
    """R4 (V) Kafka's echo equals the checkpoint, or the checkpoint says failed or superseded.

    `CommitResolved` says yes only when the newest echoes of all the checkpoint's partitions equal its offsets; an echo
    that differs while it says yes is followed at once by another resolution; only the base is ever echoed.

    It can't see what somebody else commits to Kafka after the echo was read back.
    """
    known: dict[Sequence, dict[GroupPartition, Offset]] = {}
    says: dict[Sequence, Committed] = {}
    wrong: tuple[Sequence, EventNumber, str] | None = None
    for event in index.history.events:
        body, number = event.body, event.number
        if wrong is not None and not (isinstance(body, CommitResolved) and body.sequence == wrong[0]):
            yield Violation("R4", wrong[2], (wrong[1],))
        wrong = None
        if isinstance(body, Echoed):
            base = index.bases.at(number)
            if base != body.sequence or body.sequence not in index.cuts:
                detail = f"cut {body.sequence} was committed to Kafka, the base is {base}"
                yield Violation("R4", detail, (number,))
                continue
            told = known.setdefault(body.sequence, {})
            told.update(body.offsets)
            differs = _differing(index, body.sequence, told)
            if differs and says.get(body.sequence) is Committed.YES:
                wrong = body.sequence, number, f"cut {body.sequence} is called committed, {differs}"
        elif isinstance(body, CommitResolved):
            says[body.sequence] = body.committed
            told = known.get(body.sequence, {})
            lacks = _differing(index, body.sequence, told) or _unheard(index, body.sequence, told)
            if body.committed is Committed.YES and lacks:
                yield Violation("R4", f"cut {body.sequence} is called committed, {lacks}", (number,))
    if wrong is not None:
        yield Violation("R4", wrong[2], (wrong[1],))


def _differing(index: Index, sequence: Sequence, told: dict[GroupPartition, Offset]) -> str:
    wanted = offsets_of(index.cuts[sequence]) if sequence in index.cuts else {}
    differs = [p for p, o in sorted(told.items()) if p in wanted and wanted[p] != o]
    return f"Kafka holds {told[differs[0]]} for {differs[0]}, not {wanted[differs[0]]}" if differs else ""


def _unheard(index: Index, sequence: Sequence, told: dict[GroupPartition, Offset]) -> str:
    wanted = offsets_of(index.cuts[sequence]) if sequence in index.cuts else {}
    lacks = [p for p in wanted if p not in told]
    if lacks:
        return f"nobody heard of {lacks[0]}"
    return "" if sequence in index.cuts else "nobody opened it"
