"""What a reset makes of the ledger: ranges undone back to a place, batches proven by a sink's progress.

Both may concern every batch since a region was made. So the work grows with the ranges beyond the places and with
nothing else, and it is done in pieces: no statement reads more than a piece, however long the ledger and whatever the
planner believes of it. For that no two tables are joined here, as it is the planner's choice how. An index leads from a
place to its ranges and from a batch to its own, and a place is looked up in a JSON value.

A batch that is undone as a whole is one row: its ranges are undone from where they begin, and need not say so.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import text

from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.values import Epoch, GroupPartition, Offset
from airflow_kcr.store.postgres.row_layout import document, partition_columns
from airflow_kcr.store.postgres.session import Session

PIECE: Final = 10_000
"""Ranges that a statement looks at: some tenths of a second at most."""

_WIDTH: Final = 100
"""Ranges that a batch is thought to have, until some were seen."""

# name: by_index — for what is left of the transaction. A table that was small when it was last looked at, or never was,
# is taken for small; walked through as a whole, or sorted, once for each piece, it would make the work quadratic.
_BY_INDEX: Final = text("SELECT set_config('enable_seqscan', 'off', true), set_config('enable_sort', 'off', true)")

# name: batches_beyond — of each place the next ranges that end beyond it, by their end; equal ends come together.
BEYOND: Final = text("""
    SELECT place.number, next.batches, next.last, next.found
    FROM unnest(CAST(:numbers AS bigint[]), CAST(:groups AS text[]), CAST(:topics AS text[]),
                CAST(:partitions AS bigint[]), CAST(:offsets AS bigint[]))
        AS place (number, group_id, topic, partition, place)
    CROSS JOIN LATERAL (
        SELECT array_agg(o.batch_number) AS batches, max(o.to_offset) AS last, count(*) AS found
        FROM (
            SELECT r.batch_number, r.to_offset FROM kcr.batch_range r
            WHERE r.region_id = :region AND r.group_id = place.group_id AND r.topic = place.topic
              AND r.partition = place.partition AND r.to_offset > place.place
            ORDER BY r.to_offset FETCH FIRST :width ROWS WITH TIES
        ) o
    ) next
    WHERE next.found > 0
""")

_NAME: Final = "(CAST(r.partition AS text) || ' ' || r.topic || ' ' || r.group_id)"

# In a query of its own, or the text would be read anew for every row once the statement is prepared.
_PLACE: Final = f"CAST((SELECT CAST(:places AS jsonb)) ->> {_NAME} AS bigint)"

# name: judge_batches — which of these batches are still done, and whether all of each is undone now.
JUDGE: Final = text(f"""
    SELECT b.number, own.is_whole, own.ranges
    FROM kcr.batch b CROSS JOIN LATERAL (
        SELECT bool_and(coalesce(least({_PLACE}, r.undone_from) <= r.from_offset, false)) AS is_whole,
               count(*) AS ranges
        FROM kcr.batch_range r WHERE r.batch_number = b.number
    ) own
    WHERE b.number = ANY (CAST(:batches AS bigint[])) AND b.outcome = 'done'
""")  # noqa: S608 (a constant of this module)

# name: undo_batches — as a whole.
_UNDO_BATCHES: Final = text(
    "UPDATE kcr.batch b SET outcome = 'undone' WHERE b.number = ANY (CAST(:batches AS bigint[]))"
)

# name: undo_ranges — of batches that are undone in part.
UNDO_RANGES: Final = text(f"""
    UPDATE kcr.batch_range r SET undone_from = greatest({_PLACE}, r.from_offset)
    WHERE r.batch_number = ANY (CAST(:batches AS bigint[])) AND {_PLACE} < coalesce(r.undone_from, r.to_offset)
""")  # noqa: S608 (a constant of this module)

# name: unaccepted_batches — those of an epoch that ended without being accepted.
_UNACCEPTED: Final = text("""
    SELECT b.number FROM kcr.batch b
    WHERE b.region_id = :region AND b.epoch = :epoch AND b.outcome IN ('unknown', 'discarded')
""")

# name: prove_batches — a sink's progress says that they were done, whatever was heard of them.
PROVE: Final = text(f"""
    UPDATE kcr.batch b SET outcome = 'done'
    WHERE b.number = ANY (CAST(:batches AS bigint[])) AND coalesce((
        SELECT bool_and(coalesce({_PLACE} >= r.to_offset, false))
        FROM kcr.batch_range r WHERE r.batch_number = b.number
    ), true)
""")  # noqa: S608 (a constant of this module)


def undo(session: Session, offsets: OffsetMap) -> None:
    """Undo what was done at or beyond these offsets; a batch is undone once every range is from its begin.

    Args:
        session: the transaction.
        offsets: where each partition goes back to; what is done on the others stays.
    """
    session.rows(_BY_INDEX)
    places, left = _document(offsets), dict(offsets)
    judged: set[int] = set()
    widest = 0
    while left:
        batches, left = _beyond(session, left)
        # Newest first: batches rather grow wider than narrower.
        fresh = sorted(batches - judged, reverse=True)
        judged.update(fresh)
        while fresh:
            size = max(PIECE // (widest or _WIDTH), 1)
            piece, fresh = fresh[:size], fresh[size:]
            widest = max(_undo(session, piece, places), widest)


def _beyond(session: Session, places: dict[GroupPartition, Offset]) -> tuple[set[int], dict[GroupPartition, Offset]]:
    """Return the batches of the next ranges beyond these places, and from where on there may be more."""
    width = max(PIECE // len(places), 1)
    partitions = list(places)
    rows = session.rows(
        BEYOND,
        **partition_columns(partitions),
        numbers=list(range(len(partitions))),
        offsets=list(places.values()),
        width=width,
    )
    batches = {number for _, found, *_ in rows for number in found}
    return batches, {partitions[number]: last for number, _, last, found in rows if found >= width}


def _undo(session: Session, batches: list[int], places: str) -> int:
    """Undo what these batches did beyond the places, and return how many ranges the widest of them has."""
    judged = session.rows(JUDGE, batches=batches, places=places)
    whole = [number for number, is_whole, _ in judged if is_whole]
    partly = [number for number, is_whole, _ in judged if not is_whole]
    if whole:
        session.run(_UNDO_BATCHES, batches=whole)
    if partly:
        session.run(UNDO_RANGES, batches=partly, places=places)
    return max((ranges for *_, ranges in judged), default=0)


def prove(session: Session, epoch: Epoch, progress: OffsetMap) -> None:
    """Mark the unaccepted batches of an epoch as done that lie wholly at or below a sink's progress.

    Args:
        session: the transaction.
        epoch: the one that ran before.
        progress: of the sinks.
    """
    session.rows(_BY_INDEX)
    batches = [number for (number,) in session.rows(_UNACCEPTED, epoch=epoch)]
    places = _document(progress)
    for begin in range(0, len(batches), PIECE):
        session.run(PROVE, batches=batches[begin : begin + PIECE], places=places)


def _document(offsets: OffsetMap) -> str:
    """Return offsets by partition, as the JSON in which `_PLACE` looks them up by `_NAME`; no topic has a space."""
    return document({f"{p.partition} {p.topic} {p.group}": offset for p, offset in offsets.items()})
