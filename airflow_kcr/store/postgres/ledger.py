"""The ledger: batches with their ranges, and what became of them.

What a reset has undone of a batch is stored nowhere, and found out when the batch is read (`layouts`).
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, assert_never

from psycopg.sql import SQL, Literal
from sqlalchemy import text

from airflow_kcr.protocol import documents
from airflow_kcr.protocol.region.rows import Batch, Outcome
from airflow_kcr.protocol.region.state import (
    BatchClosed,
    BatchesProven,
    BatchQuiescedAfter,
    BatchStarted,
    BoundariesForgotten,
    CheckpointsUndone,
    LedgerChange,
    OffsetsForgotten,
)
from airflow_kcr.protocol.values import (
    MAX_NUMBER,
    BatchId,
    CheckpointNumber,
    GroupId,
    GroupPartition,
    Incarnation,
    MemberId,
    Offset,
    Range,
    TopicPartition,
)
from airflow_kcr.store.codec import from_json
from airflow_kcr.store.postgres import layouts
from airflow_kcr.store.postgres.row_layout import document, member_of, named, partition_columns, partition_of
from airflow_kcr.store.postgres.session import Found, Session, composed
from airflow_kcr.store.postgres.tables import WIDTH

PAGE: Final = 500
"""Batches per page of the whole ledger: a page's ranges are in memory at once."""

PIECE: Final = 10_000
"""Ranges that a statement reads: some tenths of a second at most."""

BATCH_COLUMNS: Final = (
    "number",
    "batch_id",
    "group_id",
    "member_index",
    "incarnation",
    "epoch",
    "timeline",
    "sequence",
    "started_at",
    "started_after",
    "outcome",
    "finished_at",
    "finished_after",
    "quiesced_after",
    "proven_in",
)

RANGE_COLUMNS: Final = (
    "batch_number",
    "group_id",
    "topic",
    "partition",
    "from_offset",
    "to_offset",
)

_INSTANTS: Final = frozenset(map(BATCH_COLUMNS.index, ("started_at", "finished_at", "quiesced_after")))
"""Where the instants are, which are texts in JSON."""

_BATCH: Final = named(BATCH_COLUMNS)
# name: start_batch — its row, and one for each range; what follows a WITH.
START: Final = """
    started AS (
        INSERT INTO kcr.batch (region_id, batch_id, group_id, member_index, incarnation, epoch, timeline, sequence,
                               started_at, started_after)
        VALUES (:region, :batch, :group, :index, :incarnation, :epoch, :timeline, :sequence,
                :started_at, :started_after)
        RETURNING number
    )
    INSERT INTO kcr.batch_range (batch_number, region_id, group_id, topic, partition, from_offset, to_offset)
    SELECT started.number, :region, r.group_id, r.topic, r.partition, r.from_offset, r.to_offset
    FROM started, unnest(CAST(:groups AS text[]), CAST(:topics AS text[]), CAST(:partitions AS bigint[]),
                         CAST(:froms AS bigint[]), CAST(:tos AS bigint[]))
        AS r (group_id, topic, partition, from_offset, to_offset)
"""
_START: Final = text(f"WITH {START}")

# name: close_batches — a batch has one outcome; the first one stands.
CLOSE: Final = """
    UPDATE kcr.batch b SET outcome = c.outcome, finished_at = c.finished_at, finished_after = c.finished_after
    FROM unnest(CAST(:batches AS text[]), CAST(:outcomes AS text[]), CAST(:finished_at AS timestamptz[]),
                CAST(:finished_after AS bigint[])) AS c (batch_id, outcome, finished_at, finished_after)
    WHERE b.region_id = :region AND b.batch_id = c.batch_id AND b.outcome IS NULL
"""
_CLOSE: Final = text(CLOSE)

# name: quiesced_batches — from when on a superseded incarnation can't write any more.
_QUIESCED: Final = text("""
    UPDATE kcr.batch b SET quiesced_after = c.quiesced_after
    FROM unnest(CAST(:batches AS text[]), CAST(:quiesced_after AS timestamptz[])) AS c (batch_id, quiesced_after)
    WHERE b.region_id = :region AND b.batch_id = c.batch_id
""")

# name: unaccepted_batches — those of an epoch that ended without being accepted, with how many ranges each has.
_UNACCEPTED: Final = text("""
    SELECT b.number, (SELECT count(*) FROM kcr.batch_range r WHERE r.batch_number = b.number) FROM kcr.batch b
    WHERE b.region_id = :region AND b.epoch = :epoch AND b.outcome IN ('unknown', 'discarded')
""")

# name: prove_batches — a sink's progress says that they were done, whatever was heard of them. The places are in a
# query of their own, or their text would be read again for every row once the statement is prepared.
_PROVE: Final = text("""
    UPDATE kcr.batch b SET outcome = 'done', proven_in = :proven_in
    WHERE b.number = ANY (CAST(:batches AS bigint[])) AND coalesce((
        SELECT bool_and(coalesce(p.place >= r.to_offset, true)) AND bool_or(p.place IS NOT NULL)
        FROM kcr.batch_range r CROSS JOIN LATERAL (
            SELECT CAST((SELECT CAST(:places AS jsonb))
                ->> (CAST(r.partition AS text) || ' ' || r.topic || ' ' || r.group_id) AS bigint) AS place
        ) p WHERE r.batch_number = b.number
    ), true)
""")

# name: forget_offsets — retired checkpoints keep their row and digest.
_FORGET: Final = (
    text("DELETE FROM kcr.checkpoint_offset WHERE region_id = :region AND sequence = ANY (CAST(:gone AS bigint[]))"),
    text("DELETE FROM kcr.read_back WHERE region_id = :region AND sequence = ANY (CAST(:gone AS bigint[]))"),
    text("DELETE FROM kcr.contribution_offset WHERE region_id = :region AND sequence = ANY (CAST(:gone AS bigint[]))"),
    text("DELETE FROM kcr.contribution WHERE region_id = :region AND sequence = ANY (CAST(:gone AS bigint[]))"),
    text("DELETE FROM kcr.checkpoint_partition WHERE region_id = :region AND sequence = ANY (CAST(:gone AS bigint[]))"),
)

# name: forget_boundaries — the oldest, in the order of the key, so that a piece reads no more than it deletes.
_FORGET_BOUNDARIES: Final = text("""
    DELETE FROM kcr.boundary_offset WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM kcr.boundary_offset WHERE region_id = :region AND boundary <= :up_to
        ORDER BY boundary, group_id, topic, partition, topic_id LIMIT :limit))
""")

# name: undo_checkpoints — the first timeline that took one off the current timeline did.
_UNDO: Final = text(
    "UPDATE kcr.checkpoint SET undone_by = :by WHERE region_id = :region "
    "AND sequence = ANY (CAST(:sequences AS bigint[])) AND undone_by IS NULL"
)

UNDO_PIECE: Final = 10_000
"""Checkpoints that one statement takes off the current timeline: some tenths of a second."""


# The batches of a region `r` that have started and not ended, as JSON. In no order: asked for one, a planner without
# statistics walks the whole ledger in the order of its index.
RUNNING: Final = SQL("""(
        SELECT json_agg(json_build_array({batch}, (
            SELECT json_agg(json_build_array({ranges})) FROM kcr.batch_range q WHERE q.batch_number = b.number)))
        FROM kcr.batch b WHERE b.region_id = r.id AND b.outcome IS NULL)""").format(
    batch=named(BATCH_COLUMNS, "b"), ranges=named(RANGE_COLUMNS, "q")
)

# When the batch at the end of the index of a region `r` began, or ended.
WORKED_AT: Final = SQL("""(
        SELECT coalesce(b.finished_at, b.started_at) FROM kcr.batch b
        WHERE b.region_id = r.id ORDER BY b.number DESC LIMIT 1)""")

_ONE: Final = composed(
    SQL("SELECT {batch} FROM kcr.batch WHERE region_id = :region AND batch_id = :batch").format(batch=_BATCH)
)
_PAGE: Final = composed(
    SQL("""
    SELECT {batch} FROM kcr.batch WHERE region_id = :region AND number > :after ORDER BY number LIMIT {page}
""").format(batch=_BATCH, page=Literal(PAGE))
)
# name: containing — for each width of a range the few that end near enough beyond the record. As arrays, or
# a planner that knows little of the tables joins all ranges of the partition, or the whole ledger.
_CONTAINING: Final = composed(
    SQL("""
    SELECT {batch} FROM kcr.batch WHERE region_id = :region AND number = ANY (ARRAY(
        SELECT unnest(ARRAY(
            SELECT batch_number FROM kcr.batch_range
            WHERE region_id = :region AND group_id = :group AND topic = :topic AND partition = :partition
              AND {width} = w.width AND to_offset > :offset AND to_offset <= w.furthest AND from_offset <= :offset
        )) FROM unnest(CAST(:widths AS integer[]), CAST(:furthest AS bigint[])) AS w (width, furthest)
    )) ORDER BY number
""").format(batch=_BATCH, width=SQL(WIDTH))
)

_WIDTHS: Final = range(2, 65)
"""Of ranges that can be stored."""

# name: readers — whose batches have a partition of this topic and number; one probe for each group of the ledger.
_READERS: Final = text("""
    WITH RECURSIVE known AS (
        (SELECT group_id FROM kcr.batch_range WHERE region_id = :region ORDER BY group_id LIMIT 1)
        UNION ALL
        SELECT (SELECT r.group_id FROM kcr.batch_range r WHERE r.region_id = :region AND r.group_id > k.group_id
                ORDER BY r.group_id LIMIT 1)
        FROM known k WHERE k.group_id IS NOT NULL
    )
    SELECT k.group_id FROM known k WHERE (
        SELECT true FROM kcr.batch_range r
        WHERE r.region_id = :region AND r.group_id = k.group_id AND r.topic = :topic AND r.partition = :partition
        LIMIT 1
    )
""")

# name: registered — how the process of an incarnation called itself.
_REGISTERED: Final = text("""
    SELECT body ->> 'label' FROM kcr.event
    WHERE region_id = :region AND kind = 'MemberRegistered'
      AND body -> 'member' = CAST(:member AS jsonb) AND body -> 'incarnation' = to_jsonb(CAST(:incarnation AS bigint))
""")

# name: ranges — of several batches, in the order of the partitions.
_RANGES: Final = composed(
    SQL("""
    SELECT {ranges} FROM kcr.batch_range
    WHERE batch_number = ANY (CAST(:numbers AS bigint[])) ORDER BY group_id, topic, partition
""").format(ranges=named(RANGE_COLUMNS))
)


def apply(session: Session, changes: tuple[LedgerChange, ...]) -> None:
    """Write a decision's ledger changes, in their order; neighbours of one kind in one statement."""
    for kind, group in groupby(changes, key=type):
        alike = list(group)
        if kind is BatchClosed:
            _close(session, [c for c in alike if isinstance(c, BatchClosed)])
        elif kind is BatchQuiescedAfter:
            _quiesced(session, [c for c in alike if isinstance(c, BatchQuiescedAfter)])
        else:
            for change in alike:
                _apply_one(session, change)


def _apply_one(session: Session, change: LedgerChange) -> None:
    match change:
        case BatchStarted(batch=batch):
            _begin(session, batch)
        case BatchClosed():
            _close(session, [change])
        case BatchQuiescedAfter():
            _quiesced(session, [change])
        case BatchesProven():
            _prove(session, change)
        case OffsetsForgotten(sequences=sequences):
            for statement in _FORGET:
                session.run(statement, gone=list(sequences))
        case BoundariesForgotten(up_to=up_to, limit=limit):
            session.rows(layouts.IN_ORDER)
            session.run(_FORGET_BOUNDARIES, up_to=up_to, limit=limit)
        case CheckpointsUndone(sequences=sequences, by=by):
            for begin in range(0, len(sequences), UNDO_PIECE):
                session.run(_UNDO, by=by, sequences=list(sequences[begin : begin + UNDO_PIECE]))
        case _:
            assert_never(change)


def running_from(found: list[list[Any]] | None) -> list[Batch]:
    """Return the batches that `RUNNING` has read, oldest first."""
    return [_from_json(row) for row in sorted(found or [], key=itemgetter(0))]


def _from_json(row: list[Any]) -> Batch:
    *columns, ranges = row
    read = [from_json(c, datetime) if n in _INSTANTS and c is not None else c for n, c in enumerate(columns)]
    return batch_from(read, sorted(ranges or []))


def one(session: Session, batch: BatchId) -> Batch | None:
    """Return one row of the ledger."""
    return next(iter(_with_ranges(session, session.rows(_ONE, batch=batch))), None)


def containing(session: Session, partition: GroupPartition, offset: Offset) -> list[Batch]:
    """Return the batches whose ranges contain an offset, oldest first."""
    return _with_ranges(session, session.rows(_CONTAINING, **near(partition, offset)))


def near(partition: GroupPartition, offset: Offset) -> dict[str, object]:
    """Return the parameters of whatever looks for ranges that contain an offset."""
    return {
        "group": partition.group,
        "topic": partition.topic,
        "partition": partition.partition,
        "offset": offset,
        "widths": list(_WIDTHS),
        # One that has the record and is of this width ends at most its length beyond it.
        "furthest": [min(offset + 2 ** (65 - width) - 1, MAX_NUMBER) for width in _WIDTHS],
    }


def readers(session: Session, partition: TopicPartition) -> list[GroupPartition]:
    """Return the partitions of that topic and number of which a batch was started, of whatever group."""
    found = session.rows(_READERS, topic=partition.topic, partition=partition.partition)
    return sorted(GroupPartition(GroupId(group), *partition) for (group,) in found)


def registered(session: Session, member: MemberId, incarnation: Incarnation) -> str:
    """Return how the process of an incarnation called itself; empty: no event tells of it."""
    found = session.rows(_REGISTERED, member=document(documents.write(member, MemberId)), incarnation=incarnation)
    return found[0][0] if found else ""


def page(session: Session, after: int) -> tuple[list[Batch], int | None]:
    """Return the next batches of the ledger beyond a number, and the number to continue after; None: no more."""
    found = session.rows(_PAGE, after=after)
    return _with_ranges(session, found), found[-1][0] if len(found) == PAGE else None


def batch_from(row: Rows[Any], ranges: Rows[Rows[Any]]) -> Batch:
    """Return a batch, as it is stored, from its columns and those of its ranges."""
    _, batch, group, index, incarnation, epoch, timeline, sequence, started_at, started_after, *rest = row
    outcome, finished_at, finished_after, quiesced_after, proven_in = rest
    return Batch(
        batch=batch,
        member=member_of(group, index),
        incarnation=incarnation,
        epoch=epoch,
        timeline=timeline,
        sequence=sequence,
        ranges={partition_of(group_id, topic, number): Range(a, b) for _, group_id, topic, number, a, b in ranges},
        started_at=started_at,
        started_after=started_after,
        outcome=None if outcome is None else Outcome(outcome),
        finished_at=finished_at,
        finished_after=finished_after,
        proven_in=proven_in,
        quiesced_after=quiesced_after,
    )


def ranges_of(session: Session, numbers: list[int]) -> Rows[Found]:
    """Return the rows of the ranges of these batches."""
    return session.rows(_RANGES, numbers=numbers)


def _with_ranges(session: Session, found: Rows[Found]) -> list[Batch]:
    if not found:
        return []
    ranges: dict[int, list[Found]] = {}
    for row in ranges_of(session, [b[0] for b in found]):
        ranges.setdefault(row[0], []).append(row)
    return layouts.seen(session, [batch_from(b, ranges.get(b[0], [])) for b in found])


def started_columns(batch: Batch) -> dict[str, object]:
    """Return the parameters of `START`, but for the partitions of the ranges: `groups`, `topics` and `partitions`."""
    return {
        "batch": batch.batch,
        "group": batch.member.group,
        "index": batch.member.index,
        "incarnation": batch.incarnation,
        "epoch": batch.epoch,
        "timeline": batch.timeline,
        "sequence": batch.sequence,
        "started_at": batch.started_at,
        "started_after": batch.started_after,
        "froms": [r.from_ for r in batch.ranges.values()],
        "tos": [r.to for r in batch.ranges.values()],
    }


def closed_columns(closed: list[BatchClosed]) -> dict[str, object]:
    """Return the parameters of `CLOSE`."""
    return {
        "batches": [c.batch for c in closed],
        "outcomes": [str(c.outcome) for c in closed],
        "finished_at": [c.at for c in closed],
        "finished_after": [c.after for c in closed],
    }


def _begin(session: Session, batch: Batch) -> None:
    session.run(_START, **started_columns(batch), **partition_columns(batch.ranges))


def _close(session: Session, closed: list[BatchClosed]) -> None:
    session.run(_CLOSE, **closed_columns(closed))


def _quiesced(session: Session, quiesced: list[BatchQuiescedAfter]) -> None:
    session.run(_QUIESCED, batches=[c.batch for c in quiesced], quiesced_after=[c.at for c in quiesced])


def _prove(session: Session, change: BatchesProven) -> None:
    """Mark the unaccepted batches of an epoch as done that lie wholly at or below the sinks' progress.

    They are few, as a batch that is not accepted is followed by a reset; in pieces all the same.
    """
    # No topic has a space.
    places = document({f"{p.partition} {p.topic} {p.group}": offset for p, offset in change.progress.items()})
    piece: list[int] = []
    ranges = 0
    for number, width in session.rows(_UNACCEPTED, epoch=change.epoch):
        if piece and ranges + width > PIECE:
            session.run(_PROVE, batches=piece, places=places, proven_in=change.proven_in)
            piece, ranges = [], 0
        piece.append(number)
        ranges += width
    if piece:
        session.run(_PROVE, batches=piece, places=places, proven_in=change.proven_in)


_SEQUENCE: Final = BATCH_COLUMNS.index("sequence")

# name: page_back — from the newest batch on.
_PAGE_BACK: Final = composed(
    SQL("""
    SELECT {batch} FROM kcr.batch WHERE region_id = :region AND number < :before ORDER BY number DESC LIMIT :page
""").format(batch=_BATCH)
)


# name: newest_work — of the one batch at the end of the index.
NEWEST_WORK: Final = composed(SQL("SELECT {} FROM kcr.region r WHERE r.name = :name").format(WORKED_AT))


def since(session: Session, after: CheckpointNumber) -> list[Batch]:
    """Return the batches of later sequences than this, oldest first.

    Sequences only grow, and a batch is numbered under the lock that stamps it, so those wanted are the last ones.
    """
    pages: list[list[Batch]] = []
    before = MAX_NUMBER
    while rows := session.rows(_PAGE_BACK, before=before, page=PAGE):
        later = [row for row in rows if row[_SEQUENCE] > after]
        pages.append(_read(session, later[::-1]))
        if len(later) < PAGE:
            break
        before = rows[-1][0]
    return [batch for page in reversed(pages) for batch in page]


def _read(session: Session, found: list[Found]) -> list[Batch]:
    if not found:
        return []
    rows = sorted(ranges_of(session, [row[0] for row in found]), key=lambda row: row[0])
    ranges = {number: list(group) for number, group in groupby(rows, key=lambda row: int(row[0]))}
    return layouts.seen(session, [batch_from(row, ranges.get(row[0], [])) for row in found])
