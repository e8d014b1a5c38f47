"""A batch's begin and end: a narrow read, the rule, a narrow write; under the region's shared lock.

These are the calls that every member makes every second or two, so they read what their rule needs and no more. The
event counter is read, never written: the region row stays free of contention. Permits of one member are one at a time
(a lock of its own, always taken after the region's), so that a repeated begin finds what the first one did, even where
its COMMIT is still on its way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Rows
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, TypeAlias, TypeVar

from sqlalchemy import text

from airflow_kcr.protocol.region import bounds
from airflow_kcr.protocol.region.rows import Batch, BoundOffset, Claim
from airflow_kcr.protocol.region.state import BatchBegun, BatchClosed, BoundKey, Region
from airflow_kcr.protocol.values import BatchId, GroupPartition, MemberId, RegionName
from airflow_kcr.store.postgres import ledger
from airflow_kcr.store.postgres.gathering import HEAD, HEAD_WIDTH
from airflow_kcr.store.postgres.layouts import CHECKPOINTS, CLAIMS, LEASES, MEMBERS
from airflow_kcr.store.postgres.reading import region_from
from airflow_kcr.store.postgres.row_layout import JsonLayout
from airflow_kcr.store.postgres.session import Found, Session, positional

K = TypeVar("K")
V = TypeVar("V")


def _columns(alias: str, names: tuple[str, ...]) -> str:
    return ", ".join(f"{alias}.{name}" for name in names)


def _row_or_none(layout: JsonLayout[Any, Any], alias: str) -> str:
    (row,) = layout.selected(alias)
    return f"CASE WHEN {alias}.region_id IS NOT NULL THEN {row} END"


# name: permit_head — the region's head, the member, its lease, the open cut, and the running batch of this id.
_HEAD: Final = positional(
    text(f"""
    SELECT {HEAD}, {_row_or_none(MEMBERS, "m")}, {_row_or_none(LEASES, "l")}, {_row_or_none(CHECKPOINTS, "k")},
           {_columns("b", ledger.BATCH_COLUMNS)}
    FROM kcr.region r
    LEFT JOIN kcr.member m ON m.region_id = r.id AND m.group_id = :group AND m.member_index = :index
    LEFT JOIN kcr.lease l ON l.region_id = r.id AND l.group_id = :group AND l.member_index = :index
    LEFT JOIN kcr.checkpoint k ON k.region_id = r.id AND k.sequence = r.open_cut
    LEFT JOIN kcr.batch b ON b.region_id = r.id AND b.batch_id = :batch AND b.outcome IS NULL
    WHERE r.name = :name
"""),  # noqa: S608 (constants of this package)
    HEAD_WIDTH + 3 + len(ledger.BATCH_COLUMNS),
)

_BOUND: Final = ("next_offset", "inexact", "leader_epoch")

# Whatever takes arrays joins them with the claims as a whole, region included, behind a fence (OFFSET 0): on a table
# without statistics the planner would see the region's claims as few, and walk through the arrays once for each.

# name: permit_claims — the claims of some partitions, each with where the bound falls in it, as far as that is known.
CLAIMS_OF: Final = text(f"""
    SELECT {_columns("c", CLAIMS.columns)}, {_columns("b", _BOUND)}
    FROM (SELECT CAST(:region AS bigint) AS region_id, u.*
          FROM unnest(CAST(:groups AS text[]), CAST(:topics AS text[]), CAST(:partitions AS bigint[]))
              AS u (group_id, topic, partition) OFFSET 0) p
    JOIN kcr.claim c USING (region_id, group_id, topic, partition)
    LEFT JOIN kcr.bound_offset b ON b.region_id = c.region_id AND b.bound = CAST(:bound AS timestamptz)
                                AND b.group_id = c.group_id AND b.topic = c.topic AND b.partition = c.partition
                                AND b.topic_id = c.topic_id
""")  # noqa: S608 (constants of this package)

_CLAIMS_OF: Final = positional(CLAIMS_OF, len(CLAIMS.columns) + len(_BOUND))

# name: claims_under — the ranges of a running batch, each with the claim under it and where the bound falls in that.
_CLAIMS_UNDER: Final = positional(
    text(f"""
    SELECT {_columns("r", ledger.RANGE_COLUMNS)}, {_columns("c", CLAIMS.columns)}, {_columns("b", _BOUND)}
    FROM kcr.batch_range r
    LEFT JOIN kcr.claim c ON c.region_id = r.region_id AND c.group_id = r.group_id AND c.topic = r.topic
                         AND c.partition = r.partition
    LEFT JOIN kcr.bound_offset b ON b.region_id = c.region_id AND b.bound = CAST(:bound AS timestamptz)
                                AND b.group_id = c.group_id AND b.topic = c.topic AND b.partition = c.partition
                                AND b.topic_id = c.topic_id
    WHERE r.batch_number = :number
    ORDER BY r.group_id, r.topic, r.partition
"""),  # noqa: S608 (constants of this package)
    len(ledger.RANGE_COLUMNS) + len(CLAIMS.columns) + len(_BOUND),
)

# What a begin or an end does to a claim, and nothing else of it; part of their statements.
MOVE: Final = """
    UPDATE kcr.claim c SET position = n.position, begun_to = n.begun_to
    FROM (SELECT CAST(:region AS bigint) AS region_id, u.*
          FROM unnest(CAST(:groups AS text[]), CAST(:topics AS text[]), CAST(:partitions AS bigint[]),
                      CAST(:positions AS bigint[]), CAST(:begun AS bigint[]))
              AS u (group_id, topic, partition, position, begun_to) OFFSET 0) n
    WHERE c.region_id = n.region_id AND c.group_id = n.group_id AND c.topic = n.topic AND c.partition = n.partition
"""

# name: begin_and_move — a batch begins, and its claims are marked with what was begun.
BEGIN_AND_MOVE: Final = text(f"WITH moved AS ({MOVE}), {ledger.BEGIN}")

# name: close_and_move — a batch ends, and the positions of its claims advance.
CLOSE_AND_MOVE: Final = text(f"WITH moved AS ({MOVE}) {ledger.CLOSE}")


def load(
    session: Session,
    name: RegionName,
    member: MemberId,
    batch: BatchId,
    partitions: frozenset[GroupPartition] | None,
) -> tuple[Region, datetime] | None:
    """Return the region as a begin or an end needs it, and the store's clock; None where there is no such region.

    What it leaves out is read after all where a rule asks for it; a region that cuts by count asks for all claims.
    """
    found = session.rows(_HEAD, name=name, group=member.group, index=member.index, batch=batch)
    if not found:
        return None
    row = found[0]
    region = region_from(session, name, row)
    member_row, lease, cut = row[HEAD_WIDTH : HEAD_WIDTH + 3]
    region = replace(
        region,
        members=_one_row(MEMBERS, member_row),
        leases=_one_row(LEASES, lease),
        checkpoints=_one_row(CHECKPOINTS, cut),
    )
    limit = bounds.limit(region)
    running, claims, located = _work(session, row[HEAD_WIDTH + 3 :], partitions, limit)
    region = replace(region, running=running, bound_offsets=located)
    return (region if region.rules.cut.records is not None else replace(region, claims=claims)), row[0]


def write(session: Session, before: Region, after: Region) -> None:
    """Write what a begin or an end decided: positions of claims, and the ledger; in one statement."""
    moved = _moved(before.claims, after.claims)
    match after.ledger:
        case (BatchBegun(batch=batch),) if moved.keys() == batch.ranges.keys():
            # One set of arrays for both: the claims that move are those of the ranges, in their order.
            moved = {partition: moved[partition] for partition in batch.ranges}
            session.run(BEGIN_AND_MOVE, **ledger.begun_columns(batch), **_moved_columns(moved))
        case (BatchClosed() as change,):
            session.run(CLOSE_AND_MOVE, **ledger.closed_columns([change]), **_moved_columns(moved))
        case () if not moved:
            pass  # asked again: nothing is left to do
        case other:
            raise RuntimeError(f"a permit begins or ends one batch, and nothing else: {other}")


def _one_row(layout: JsonLayout[K, V], row: list[Any] | None) -> dict[K, V]:
    return {} if row is None else dict([layout.join((row,))])


Work: TypeAlias = tuple[dict[BatchId, Batch], dict[GroupPartition, Claim], dict[BoundKey, BoundOffset]]
"""The running batch, the claims that are asked for, and where the bound falls in them."""


def _work(
    session: Session, batch: tuple[Any, ...], partitions: frozenset[GroupPartition] | None, limit: datetime | None
) -> Work:
    """Return what a begin or an end decides on, of a batch's columns and partitions; None: those of the batch."""
    number = batch[0]
    ranges: Rows[Rows[Any]]
    if partitions is None:
        rows = [] if number is None else session.rows(_CLAIMS_UNDER, number=number, bound=limit)
        width = len(ledger.RANGE_COLUMNS)
        ranges = [row[:width] for row in rows]
        claims, located = _claims([row[width:] for row in rows], limit)
    else:
        ranges = [] if number is None else ledger.ranges_of(session, [number])
        claims, located = _claims(_claims_of(session, partitions, limit), limit)
    running = [] if number is None else [ledger.batch_from(batch, ranges)]
    return {one.batch: one for one in running}, claims, located


def _claims_of(session: Session, partitions: frozenset[GroupPartition], limit: datetime | None) -> Rows[Found]:
    return session.rows(_CLAIMS_OF, bound=limit, **ledger.partition_columns(partitions))


def _claims(
    rows: Iterable[Rows[Any]], limit: datetime | None
) -> tuple[dict[GroupPartition, Claim], dict[BoundKey, BoundOffset]]:
    """Return claims, and where the bound falls in them, from rows that have the columns of both."""
    width = len(CLAIMS.columns)
    claims: dict[GroupPartition, Claim] = {}
    located: dict[BoundKey, BoundOffset] = {}
    for row in rows:
        if row[0] is None:  # a range whose partition has no claim any more
            continue
        partition, claim = CLAIMS.join(row[:width])
        claims[partition] = claim
        offset, inexact, leader_epoch = row[width:]
        if limit is not None and offset is not None:
            key = (partition, claim.topic_id, limit)
            located[key] = BoundOffset(offset=offset, inexact=inexact, leader_epoch=leader_epoch)
    return claims, located


def _moved(
    before: Mapping[GroupPartition, Claim], after: Mapping[GroupPartition, Claim]
) -> dict[GroupPartition, Claim]:
    if after is before:
        return {}
    return {p: claim for p, claim in after.items() if before.get(p) is not claim}


def _moved_columns(moved: Mapping[GroupPartition, Claim]) -> dict[str, object]:
    return {
        **ledger.partition_columns(moved),
        "positions": [c.position for c in moved.values()],
        "begun": [c.begun_to for c in moved.values()],
    }
