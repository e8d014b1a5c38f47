"""A batch's begin and end: a narrow read, the rule, a narrow write; under the region's shared lock.

These are the calls that every member makes every second or two, so they read what their rule needs and no more. The
event counter is read, never written: the region row stays free of contention. Permits of one member are one at a time
(a lock of its own, always taken after the region's), so that a repeated begin finds what the first one did, even where
its COMMIT is still on its way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from sqlalchemy import TextClause, text

from airflow_kcr.protocol.region import bounds
from airflow_kcr.protocol.region.rows import Batch, BoundOffset, Checkpoint, Claim
from airflow_kcr.protocol.region.state import BoundKey, Region
from airflow_kcr.protocol.values import BatchId, GroupPartition, MemberId, RegionName, Sequence
from airflow_kcr.store.postgres import ledger
from airflow_kcr.store.postgres.layouts import CHECKPOINTS, CLAIMS, LEASES, MEMBERS
from airflow_kcr.store.postgres.reading import HEAD_COLUMNS, region_from, select
from airflow_kcr.store.postgres.session import Found, Session


def _columns(alias: str, names: tuple[str, ...]) -> str:
    return ", ".join(f"{alias}.{name}" for name in names)


# name: permit_head — the clock, the region's row, whether any record is skipped, the member, its lease, and the running
# batch of this id.
_HEAD: Final = text(f"""
    SELECT clock_timestamp(), r.id, {_columns("r", HEAD_COLUMNS)},
           EXISTS (SELECT FROM kcr.skip s WHERE s.region_id = r.id),
           {_columns("m", MEMBERS.columns)}, {_columns("l", LEASES.columns)}, {_columns("b", ledger.BATCH_COLUMNS)}
    FROM kcr.region r
    LEFT JOIN kcr.member m ON m.region_id = r.id AND m.group_id = :group AND m.member_index = :index
    LEFT JOIN kcr.lease l ON l.region_id = r.id AND l.group_id = :group AND l.member_index = :index
    LEFT JOIN kcr.batch b ON b.region_id = r.id AND b.batch_id = :batch AND b.outcome IS NULL
    WHERE r.name = :name
""")  # noqa: S608 (constants of this package)

_SKIPS: Final = 2 + len(HEAD_COLUMNS)
"""Where in that row it says whether any record is skipped; the member's columns follow."""

_BOUND: Final = ("next_offset", "inexact", "leader_epoch")

# Both statements join their arrays with the claims as a whole, region included, behind a fence (OFFSET 0): on a table
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

# name: move_claims — what a begin or an end does to a claim, and nothing else of it.
MOVE: Final = text("""
    UPDATE kcr.claim c SET position = n.position, begun_to = n.begun_to
    FROM (SELECT CAST(:region AS bigint) AS region_id, u.*
          FROM unnest(CAST(:groups AS text[]), CAST(:topics AS text[]), CAST(:partitions AS bigint[]),
                      CAST(:positions AS bigint[]), CAST(:begun AS bigint[]))
              AS u (group_id, topic, partition, position, begun_to) OFFSET 0) n
    WHERE c.region_id = n.region_id AND c.group_id = n.group_id AND c.topic = n.topic AND c.partition = n.partition
""")

_CUT: Final[TextClause] = select(CHECKPOINTS, "sequence = :sequence")


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
    parts = _split(row)
    members = {} if parts[0][0] is None else dict([MEMBERS.join(parts[0])])
    leases = {} if parts[1][0] is None else dict([LEASES.join(parts[1])])
    running: dict[BatchId, Batch] = {}
    if parts[2][0] is not None:
        ranges = ledger.ranges_of(session, [parts[2][0]])
        running[batch] = ledger.batch_from(parts[2], ranges)
    if partitions is None:
        partitions = frozenset(running[batch].ranges) if running else frozenset()
    region = replace(region, members=members, leases=leases, running=running, checkpoints=_cut(session, region))
    if not row[_SKIPS]:
        region = replace(region, skips={})
    claims, located = _claims(session, region, partitions)
    region = replace(region, bound_offsets=located)
    return (region if region.rules.cut.records is not None else replace(region, claims=claims)), row[0]


def write(session: Session, before: Region, after: Region) -> None:
    """Write what a begin or an end decided: positions of claims, and the ledger."""
    moved = _moved(before.claims, after.claims)
    if moved:
        session.run(
            MOVE,
            groups=[p.group for p in moved],
            topics=[p.topic for p in moved],
            partitions=[p.partition for p in moved],
            positions=[c.position for c in moved.values()],
            begun=[c.begun_to for c in moved.values()],
        )
    ledger.apply(session, after.ledger)


def _split(row: Found) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]:
    """Return the columns of member, lease and batch."""
    first = _SKIPS + 1
    second = first + len(MEMBERS.columns)
    third = second + len(LEASES.columns)
    return tuple(row[first:second]), tuple(row[second:third]), tuple(row[third:])


def _cut(session: Session, region: Region) -> Mapping[Sequence, Checkpoint]:
    if region.open_cut is None:
        return {}
    return dict(map(CHECKPOINTS.join, session.rows(_CUT, sequence=region.open_cut)))


def _claims(
    session: Session, region: Region, partitions: frozenset[GroupPartition]
) -> tuple[dict[GroupPartition, Claim], dict[BoundKey, BoundOffset]]:
    if not partitions:
        return {}, {}
    limit = bounds.limit(region)
    rows = session.rows(
        CLAIMS_OF,
        groups=[p.group for p in partitions],
        topics=[p.topic for p in partitions],
        partitions=[p.partition for p in partitions],
        bound=limit,
    )
    width = len(CLAIMS.columns)
    claims: dict[GroupPartition, Claim] = {}
    located: dict[BoundKey, BoundOffset] = {}
    for row in rows:
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
