"""The ledger: batches with their ranges, what became of them, and what resets have undone of them since.

**Rewinds.** What a reset has undone of a batch is stored nowhere, and found out when the batch is read. Of all resets
after a batch two kinds can hold the lowest place of a partition: the next one, and any that sent it further back than
the reset just before it had. All others went to where it was before or beyond, and are passed over. So resets that a
region does by itself, whose places only move on, cost a reader nothing, however many there were; `seek_offset.rewinds`
says which kind an entry is of. It is true as long as that is not known.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from typing import Any, Final, assert_never

from airflow_kcr.protocol import values
from airflow_kcr.protocol.region import timelines
from airflow_kcr.protocol.region.rows import Batch, Outcome
from airflow_kcr.protocol.region.state import BatchesProven, CheckpointsUndone, Forgotten, LedgerChange
from airflow_kcr.store.answers import Replayed, Span
from airflow_kcr.store.postgres.layouts import BATCH, BATCHES, batches_from, started_columns
from airflow_kcr.store.postgres.row_layout import document, partition_columns
from airflow_kcr.store.postgres.session import Found, Session
from airflow_kcr.store.postgres.statements import load

PAGE: Final = 500
"""Batches per page of the whole ledger: a page's ranges are in memory at once."""

PIECE: Final = 10_000
"""Ranges that a statement reads: some tenths of a second at most."""

UNDO_PIECE: Final = 10_000
"""Checkpoints that one statement takes off the current timeline: some tenths of a second."""

SQL: Final = load("ledger", batch=BATCH)

_OF_CHECKPOINTS: Final = (
    "checkpoint_offset",
    "read_back",
    "contribution_offset",
    "contribution",
    "checkpoint_partition",
)
"""The tables of which nothing is kept for retired checkpoints."""

# Writing it


def apply(session: Session, changes: tuple[LedgerChange, ...]) -> None:
    """Write a decision's ledger changes, in their order; neighbours of one kind in one statement."""
    for kind, group in groupby(changes, key=_kind):
        alike: list[Any] = list(group)
        if kind == "close":
            session.run(SQL["close"], **closed_columns(alike))
        elif kind == "quiesced":
            at = [batch.quiesced_after for batch in alike]
            session.run(SQL["quiesced"], batches=[batch.batch for batch in alike], quiesced_after=at)
        else:
            for change in alike:
                _apply_one(session, change)


def _kind(change: LedgerChange) -> str:
    """Return the statement that writes a batch's row; empty: it is another change."""
    if not isinstance(change, Batch):
        return ""
    if change.outcome is not None:
        return "close"
    return "start" if change.quiesced_after is None else "quiesced"


def _apply_one(session: Session, change: LedgerChange) -> None:
    match change:
        case Batch():
            session.run(SQL["start"], **started_columns(change), **partition_columns(change.ranges))
        case BatchesProven():
            _prove(session, change)
        case Forgotten(sequences=sequences, boundaries=boundaries):
            for table in _OF_CHECKPOINTS if sequences else ():
                session.run(SQL[f"forget_{table}"], gone=list(sequences))
            if boundaries is not None:
                session.rows(SQL["in_order"])
                session.run(SQL["forget_boundaries"], up_to=boundaries, limit=change.limit)
        case CheckpointsUndone(sequences=sequences, by=by):
            for begin in range(0, len(sequences), UNDO_PIECE):
                session.run(SQL["undo_checkpoints"], by=by, sequences=list(sequences[begin : begin + UNDO_PIECE]))
        case _:
            assert_never(change)


def closed_columns(closed: list[Batch]) -> dict[str, object]:
    """Return the parameters of `close`."""
    return {
        "batches": [batch.batch for batch in closed],
        "outcomes": [str(batch.outcome) for batch in closed],
        "finished_at": [batch.finished_at for batch in closed],
        "finished_after": [batch.finished_after for batch in closed],
    }


def _prove(session: Session, change: BatchesProven) -> None:
    """Mark the unaccepted batches of an epoch as done that lie wholly at or below the sinks' progress.

    They are few, as a batch that is not accepted is followed by a reset; in pieces all the same.
    """
    # No topic has a space.
    places = document({f"{p.partition} {p.topic} {p.group}": offset for p, offset in change.progress.items()})
    piece: list[int] = []
    ranges = 0
    for number, width in session.rows(SQL["unaccepted"], epoch=change.epoch):
        if piece and ranges + width > PIECE:
            session.run(SQL["prove"], batches=piece, places=places, proven_in=change.proven_in)
            piece, ranges = [], 0
        piece.append(number)
        ranges += width
    if piece:
        session.run(SQL["prove"], batches=piece, places=places, proven_in=change.proven_in)


def delete(session: Session, batches: list[int]) -> int:
    """Delete batches by their numbers; return how many ranges they had."""
    ranges = session.run(SQL["delete_ranges"], batches=batches)
    session.run(SQL["delete_batches"], batches=batches)
    return ranges


# Reading it


def one(session: Session, batch: values.BatchId) -> Batch | None:
    """Return one row of the ledger."""
    return next(iter(_seen(session, session.rows(SQL["one"], batch=batch))), None)


def page(session: Session, after: int) -> tuple[list[Batch], int | None]:
    """Return the next batches of the ledger beyond a number, and the number to continue after; None: no more."""
    found = session.rows(SQL["page"], after=after, upto=values.MAX_NUMBER, limit=PAGE)
    return _seen(session, found), _number(found[-1]) if len(found) == PAGE else None


def whole(session: Session) -> Iterator[Batch]:
    """Yield the ledger, page by page."""
    after: int | None = 0
    while after is not None:
        found, after = page(session, after)
        yield from found


def since(session: Session, after: values.CheckpointNumber, up_to: values.CheckpointNumber | None) -> list[Batch]:
    """Return the batches of later sequences than one, up to another one, oldest first.

    Sequences only grow, and a batch is numbered under the lock that stamps it, so those wanted lie side by side.
    """
    found: list[Found] = []
    before: int = values.MAX_NUMBER if up_to is None else _near_beyond(session, up_to)
    while rows := session.rows(SQL["page_back"], before=before, limit=PAGE):
        later = [row for row in rows if row[0][_SEQUENCE] > after]
        found += (row for row in later if up_to is None or row[0][_SEQUENCE] <= up_to)
        if len(later) < PAGE:
            break
        before = _number(rows[-1])
    return _seen(session, found[::-1])


def _near_beyond(session: Session, sequence: values.CheckpointNumber) -> int:
    """Return a number that is beyond all batches up to a sequence, by less than a page.

    No index is of sequences, so it is looked for from the newest batch on, in steps that double, then by halving: of a
    sequence that is new, as a publisher asks for, that is one look or two, of one that is old a few dozen.
    """
    low, high, step = 0, values.MAX_NUMBER, PAGE
    place: int = high
    while high - low > PAGE:
        newest_before = session.rows(SQL["stamp_before"], before=place)
        number, stamp = newest_before[0] if newest_before else (0, 0)
        if stamp > sequence:
            high, place = number, number - step
            step *= 2
        else:
            low = place
        place = max(place, (low + high) // 2)
    return high


_SEQUENCE: Final = BATCHES.columns.index("sequence")

_WIDTHS: Final = range(2, 65)
"""Of ranges that can be stored."""


def containing(session: Session, partition: values.GroupPartition, offset: values.Offset) -> list[Batch]:
    """Return the batches whose ranges contain an offset, oldest first."""
    found = session.rows(
        SQL["containing"],
        group=partition.group,
        topic=partition.topic,
        partition=partition.partition,
        offset=offset,
        widths=list(_WIDTHS),
        # One that has the record and is of this width ends at most its length beyond it.
        furthest=[min(offset + 2 ** (65 - width) - 1, values.MAX_NUMBER) for width in _WIDTHS],
    )
    return _seen(session, found)


def readers(session: Session, partition: values.TopicPartition) -> list[values.GroupPartition]:
    """Return the partitions of that topic and number of which a batch was started, of whatever group."""
    found = session.rows(SQL["readers"], topic=partition.topic, partition=partition.partition)
    return sorted(values.GroupPartition(values.GroupId(group), *partition) for (group,) in found)


def _number(found: Found) -> int:
    number: int = found[0][0]
    return number


# What resets have undone


def _seen(session: Session, found: Sequence[Found]) -> list[Batch]:
    """Return batches as the ledger shows them: with what resets have undone of them."""
    batches = batches_from(found)
    done = {b.batch: b.accepted_in for b in batches if b.outcome is Outcome.DONE}
    asked: list[tuple[values.GroupPartition, values.Epoch]] = list(
        dict.fromkeys((p, done[b.batch]) for b in batches if b.batch in done for p in b.ranges)
    )
    if not asked:
        return batches
    session.rows(SQL["in_order"])
    rows = session.rows(
        SQL["lowest"],
        numbers=list(range(len(asked))),
        **partition_columns([partition for partition, _ in asked]),
        epochs=[epoch for _, epoch in asked],
    )
    lowest: dict[values.Epoch, dict[values.GroupPartition, values.Offset]] = {}
    for number, offset in rows:
        partition, epoch = asked[number]
        lowest.setdefault(epoch, {})[partition] = offset
    return [timelines.undone(b, lowest.get(b.accepted_in, {})) for b in batches]


def span_columns(spans: Collection[Span]) -> dict[str, object]:
    """Return resets as the parameters of `replays`."""
    since, firsts, lasts = ([span[n] for span in spans] for n in range(3))
    return {"since": since, "firsts": firsts, "lasts": lasts}


def replays_from(rows: Sequence[Found], spans: Collection[Span]) -> dict[values.Epoch, Replayed]:
    """Return what `replays` has read of resets, by the first epoch of each."""
    counted = {first: Replayed(rewound=rewound, replayed=replayed) for first, rewound, replayed in rows}
    return {span.first: counted.get(span.first, Replayed()) for span in spans}
