"""A batch's start and end: a narrow read, the rule, a narrow write; under the region's shared lock.

These are the calls that every member makes every second or two, so they read what their rule needs and no more. The
event counter is read, never written: the region row stays free of contention. Admissions of one member are one at a
time (a lock of its own, always taken after the region's), so that a repeated begin finds what the first one did, even
where its COMMIT is still on its way.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Rows
from datetime import datetime
from typing import Any, Final, TypeVar

from psycopg.sql import SQL, Composable, Composed, Identifier
from sqlalchemy import TextClause, text

from airflow_kcr.protocol.commands import FinishBatch, StartBatch
from airflow_kcr.protocol.region import boundaries
from airflow_kcr.protocol.region.rows import BoundaryKey, BoundaryOffset, Claim
from airflow_kcr.protocol.region.state import BatchClosed, BatchStarted, Region
from airflow_kcr.protocol.values import GroupPartition, RegionName, replace
from airflow_kcr.store.postgres import ledger
from airflow_kcr.store.postgres.layouts import BOUNDARY_OFFSETS, CHECKPOINTS, CLAIMS, LEASES, MEMBERS
from airflow_kcr.store.postgres.region_reads import HEAD, HEAD_WIDTH, REGION, region_from, region_of, skips
from airflow_kcr.store.postgres.row_layout import JsonLayout, arrays_of, named, partition_columns
from airflow_kcr.store.postgres.session import Session, composed

K = TypeVar("K")
V = TypeVar("V")


def _row_or_none(layout: JsonLayout[Any, Any], alias: str) -> Composed:
    return SQL("CASE WHEN {} IS NOT NULL THEN {} END").format(Identifier(alias, "region_id"), layout.selected(alias))


# name: admit — the region's head, the member, its lease, the open checkpoint, the running batch of this id, and claims.
_ADMISSION: Final = SQL("""
    SELECT {head}, {member}, {lease}, {checkpoint}, {batch}, c.*
    FROM kcr.region r
    LEFT JOIN kcr.member m ON m.region_id = r.id AND m.group_id = :group AND m.member_index = :index
    LEFT JOIN kcr.lease l ON l.region_id = r.id AND l.group_id = :group AND l.member_index = :index
    LEFT JOIN kcr.checkpoint k ON k.region_id = r.id AND k.sequence = r.open_checkpoint
    LEFT JOIN kcr.batch b ON b.region_id = r.id AND b.batch_id = :batch AND b.outcome IS NULL
    CROSS JOIN LATERAL ({claims}) c
    WHERE r.name = :name
""")


def _with_claims(claims: Composable) -> TextClause:
    """Return the statement that reads all of this with the claims that a query gathers."""
    return composed(
        _ADMISSION.format(
            head=HEAD,
            member=_row_or_none(MEMBERS, "m"),
            lease=_row_or_none(LEASES, "l"),
            checkpoint=_row_or_none(CHECKPOINTS, "k"),
            batch=named(ledger.BATCH_COLUMNS, "b"),
            claims=claims,
        )
    )


_BATCH: Final = HEAD_WIDTH + 3
_GATHERED: Final = _BATCH + len(ledger.BATCH_COLUMNS)

# Whatever takes arrays joins them with the claims as a whole, region included, behind a fence (OFFSET 0): on a table
# without statistics the planner would see the region's claims as few, and walk through the arrays once for each.

# name: admit_begin — with the claims of some partitions.
BEGIN: Final = _with_claims(
    SQL("""
        SELECT {claims}
        FROM (SELECT r.id AS region_id, u.*
              FROM unnest(CAST(:groups AS text[]), CAST(:topics AS text[]), CAST(:partitions AS bigint[]))
                  AS u (group_id, topic, partition) OFFSET 0) p
        JOIN kcr.claim c USING (region_id, group_id, topic, partition)
    """).format(claims=CLAIMS.gathered("c"))
)
_BEGIN: Final = BEGIN

# name: admit_end — with the ranges of the running batch, each with the claim under it.
_END: Final = _with_claims(
    SQL("""
        SELECT {ranges}, {claims}
        FROM kcr.batch_range g
        LEFT JOIN kcr.claim c ON c.region_id = g.region_id AND c.group_id = g.group_id AND c.topic = g.topic
                             AND c.partition = g.partition
        WHERE g.batch_number = b.number
    """).format(ranges=arrays_of(ledger.RANGE_COLUMNS, "g"), claims=CLAIMS.gathered("c"))
)

# name: bounds_in — where a boundary falls in some partitions, of the topics that their claims know.
_BOUNDS_IN: Final = composed(
    SQL("""
    SELECT {boundaries}
    FROM (SELECT CAST(:region AS bigint) AS region_id, CAST(:boundary AS timestamptz) AS boundary, u.*
          FROM unnest(CAST(:groups AS text[]), CAST(:topics AS text[]), CAST(:partitions AS bigint[]),
                      CAST(:topic_ids AS text[]))
              AS u (group_id, topic, partition, topic_id) OFFSET 0) p
    JOIN kcr.boundary_offset b USING (region_id, group_id, topic, partition, topic_id, boundary)
""").format(boundaries=BOUNDARY_OFFSETS.selected("b"))
)

# What the start or the finish of a batch does to a claim, and nothing else of it; part of their statements.
MOVE: Final = """
    UPDATE kcr.claim c SET position = n.position, started_to = n.started_to
    FROM (SELECT CAST(:region AS bigint) AS region_id, u.*
          FROM unnest(CAST(:groups AS text[]), CAST(:topics AS text[]), CAST(:partitions AS bigint[]),
                      CAST(:positions AS bigint[]), CAST(:started AS bigint[]))
              AS u (group_id, topic, partition, position, started_to) OFFSET 0) n
    WHERE c.region_id = n.region_id AND c.group_id = n.group_id AND c.topic = n.topic AND c.partition = n.partition
"""

# name: start_and_move — a batch starts, and its claims are marked with what it has started.
START_AND_MOVE: Final = text(f"WITH moved AS ({MOVE}), {ledger.START}")

# name: close_and_move — a batch ends, and the positions of its claims advance.
CLOSE_AND_MOVE: Final = text(f"WITH moved AS ({MOVE}) {ledger.CLOSE}")


def load(session: Session, name: RegionName, command: StartBatch | FinishBatch) -> tuple[Region, datetime] | None:
    """Return the region as a start or a finish needs it, and the store's clock; None if there is no such region.

    A region that checkpoints by count counts over all claims, and is read as a whole.
    """
    member, is_finish = command.member, isinstance(command, FinishBatch)
    who = {"name": name, "group": member.group, "index": member.index, "batch": command.batch}
    if isinstance(command, FinishBatch):
        rows = session.rows(_END, **who)
    else:
        rows = session.rows(_BEGIN, **who, **partition_columns(command.ranges))
    if not rows:
        return None
    row = rows[0]
    member_row, lease, checkpoint = row[HEAD_WIDTH:_BATCH]
    narrow = region_from(session, name, row)
    if narrow.rules.checkpoint.records is not None:
        whole = session.rows(REGION, name=name)[0]
        return region_of(session, name, whole), whole[0]
    region = replace(
        narrow,
        members=_one_row(MEMBERS, member_row),
        leases=_one_row(LEASES, lease),
        checkpoints=_one_row(CHECKPOINTS, checkpoint),
    )
    number, gathered = row[_BATCH], row[_GATHERED:]
    ranges: Rows[Rows[Any]] = []
    if is_finish:
        width = len(ledger.RANGE_COLUMNS)
        ranges, gathered = _ranges(gathered[:width]), gathered[width:]
    elif number is not None:  # it has started already
        ranges = ledger.ranges_of(session, [number])
    running = [] if number is None else [ledger.batch_from(row[_BATCH:_GATHERED], ranges)]
    # A range whose partition has no claim any more has none of its columns.
    claims = dict(CLAIMS.join(columns) for columns in CLAIMS.scattered(gathered) if columns[0] is not None)
    region = replace(
        region,
        claims=claims,
        skips=skips(session, row),
        running={one.batch: one for one in running},
        boundary_offsets=_bounds_in(session, claims, boundaries.limit(region)),
    )
    return region, row[0]


def write(session: Session, before: Region, after: Region) -> None:
    """Write what a start or an end decided: positions of claims, and the ledger; in one statement."""
    moved = _moved(before.claims, after.claims)
    match after.ledger:
        case (BatchStarted(batch=batch),) if moved.keys() == batch.ranges.keys():
            # One set of arrays for both: the claims that move are those of the ranges, in their order.
            moved = {partition: moved[partition] for partition in batch.ranges}
            session.run(START_AND_MOVE, **ledger.started_columns(batch), **_moved_columns(moved))
        case (BatchClosed() as change,):
            session.run(CLOSE_AND_MOVE, **ledger.closed_columns([change]), **_moved_columns(moved))
        case () if not moved:
            pass  # asked again: nothing is left to do
        case other:
            raise RuntimeError(f"an admission begins or ends one batch, and nothing else: {other}")


def _one_row(layout: JsonLayout[K, V], row: list[Any] | None) -> dict[K, V]:
    return {} if row is None else dict([layout.join((row,))])


def _ranges(gathered: Rows[Any]) -> Rows[Rows[Any]]:
    """Return the rows of a batch's ranges, in the order of their partitions."""
    return [] if gathered[0] is None else sorted(zip(*gathered, strict=True))


def _bounds_in(
    session: Session, claims: Mapping[GroupPartition, Claim], limit: datetime | None
) -> dict[BoundaryKey, BoundaryOffset]:
    """Return where the boundary that no batch may cross falls in claimed partitions, as far as that is known."""
    if limit is None:
        return {}
    topic_ids = [claim.topic_id for claim in claims.values()]
    rows = session.rows(_BOUNDS_IN, boundary=limit, topic_ids=topic_ids, **partition_columns(claims))
    return dict(map(BOUNDARY_OFFSETS.join, rows))


def _moved(
    before: Mapping[GroupPartition, Claim], after: Mapping[GroupPartition, Claim]
) -> dict[GroupPartition, Claim]:
    if after is before:
        return {}
    return {p: claim for p, claim in after.items() if before.get(p) is not claim}


def _moved_columns(moved: Mapping[GroupPartition, Claim]) -> dict[str, object]:
    return {
        **partition_columns(moved),
        "positions": [c.position for c in moved.values()],
        "started": [c.started_to for c in moved.values()],
    }
