"""Reading a region: what decisions work on, as one value, in one statement (`sql/region.sql`).

The region's own row, the few wide rows (members, leases, the working rows of what grows with time), what there is a row
of for each partition, and the running batches. A member reads less, and a batch's start and finish less than that.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from airflow_kcr.protocol.offsets import OffsetMap, SeekMap, SeekSource, from_offsets
from airflow_kcr.protocol.region import boundaries
from airflow_kcr.protocol.region.commands import FinishBatch, StartBatch
from airflow_kcr.protocol.region.rows import RESET_STATES, BoundaryKey, BoundaryOffset, Claim, Contribution
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.values import CheckpointNumber, Epoch, GroupPartition, MemberId, Offset, RegionName, replace
from airflow_kcr.store.postgres import layouts, row_layout
from airflow_kcr.store.postgres.archive import PostgresArchive
from airflow_kcr.store.postgres.session import Found, Session
from airflow_kcr.store.postgres.statements import load

SQL: Final = load(
    "region",
    region=layouts.HEAD,
    head_columns=row_layout.named(layouts.HEAD_COLUMNS),
    given_head=row_layout.named(layouts.HEAD_COLUMNS, "n"),
    set_head=row_layout.assigned(layouts.HEAD_COLUMNS, "n"),
    set_moving=row_layout.assigned(layouts.MOVING_COLUMNS, "n"),
    claims=layouts.CLAIMS.gathered("t"),
    initial=layouts.INITIAL.gathered("t"),
    boundary_offsets=layouts.BOUNDARY_OFFSETS.gathered("t"),
    offsets=row_layout.arrays_of((*row_layout.PARTITION, "next_offset"), "t"),
    partitions=row_layout.arrays_of(row_layout.PARTITION, "t"),
    seeks=layouts.SEEKS.gathered("t"),
    batch=layouts.BATCH,
    batch_alone=layouts.BATCH_ALONE,
    ranges=row_layout.arrays_of((*row_layout.PARTITION, "from_offset", "to_offset"), "g"),
    claim_values=row_layout.arrays_of(layouts.CLAIMS.values, "t"),
    reset_states=row_layout.listed(f"'{state}'" for state in sorted(RESET_STATES)),
    **layouts.ROWS,
)

_HEAD: Final = 4
"""The columns of a head: the store's clock, the region's id, its own row, whether any record is skipped."""

_WIDE: Final = _HEAD + 7
"""Up to where the wide rows go."""


def region_of(session: Session, name: RegionName, row: Found) -> Region:
    """Return the region of a row of `region`, with all that decisions work on.

    Args:
        session: the transaction; from now on it is about this region.
        name: the region's.
        row: as it was read.
    """
    region = _with_wide_rows(session, name, row)
    found = iter(row[_WIDE:])

    def columns(*, of: int) -> list[Any]:
        return [next(found) for _ in range(of)]

    claims, initial = columns(of=len(layouts.CLAIMS.columns)), columns(of=len(layouts.INITIAL.columns))
    places = columns(of=len(layouts.BOUNDARY_OFFSETS.columns))
    offsets, read_backs, frozen = columns(of=4), columns(of=4), columns(of=3)
    seeks = columns(of=len(layouts.SEEKS.columns))
    contributed, running, _ = found
    open_checkpoint, held, read = region.open_checkpoint, _map_of(region, offsets), _map_of(region, read_backs)
    contributions = layouts.contributions_from(contributed)
    return replace(
        region,
        skips=_skips(session, row),
        running={b.batch: b for b in layouts.BATCHES.read(sorted(running or ())).values()},
        contributions={(open_checkpoint, m): part for m, part in contributions.items() if open_checkpoint is not None},
        claims=layouts.CLAIMS.read(claims),
        initial=layouts.INITIAL.read(initial),
        boundary_offsets=layouts.BOUNDARY_OFFSETS.read(places),
        offsets=held,
        read_backs={number: offsets for number, offsets in read.items() if offsets},
        frozen={}
        if open_checkpoint is None
        else {open_checkpoint: frozenset(GroupPartition(g, t, p) for g, t, p in row_layout.scattered(frozen))},
        seek_maps=_seek_maps(region, seeks),
    )


def without_skips(row: Found) -> Found:
    """Return a row of `regions` as if no record were skipped: those would be a statement more for each region."""
    return (*row[: _HEAD - 1], False, *row[_HEAD:])


def contributed(session: Session) -> dict[int, dict[tuple[CheckpointNumber, MemberId], Contribution]]:
    """Return what was contributed to the restore points of all regions, by the regions' ids."""
    return {
        region_id: {(sequence, member): part for member, part in layouts.contributions_from(found).items()}
        for region_id, sequence, found in session.rows(SQL["contributed"])
    }


def worked_at(row: Found) -> datetime | None:
    """Return when the batch that was started last began or ended, of a row of `region`; None: there was none."""
    instant: datetime | None = row[-1]
    return instant


def _map_of(region: Region, gathered: list[Any]) -> dict[CheckpointNumber, OffsetMap]:
    """Return the offsets that were read of the restore point, where it is a checkpoint."""
    checkpoint = region.restore_checkpoint
    return {} if checkpoint is None else {checkpoint.sequence: layouts.offset_map(row_layout.scattered(gathered))}


def _seek_maps(region: Region, gathered: list[Any]) -> dict[Epoch, SeekMap]:
    """Return the seek maps that are at work, also those without a row."""
    at_work = {region.restore_epoch, region.epoch if region.state in RESET_STATES else None}
    found = layouts.seek_maps(gathered)
    return {epoch: found.get(epoch, SeekMap({})) for epoch in at_work if epoch is not None}


def _with_wide_rows(session: Session, name: RegionName, row: Found) -> Region:
    groups, members, leases, checkpoints, requests, person_resets, resets = row[_HEAD:_WIDE]
    return replace(
        _region_from(session, name, row),
        clusters=groups or {},
        members=layouts.MEMBERS.read(members),
        leases=layouts.LEASES.read(leases),
        checkpoints=layouts.CHECKPOINTS.read(checkpoints),
        requests=layouts.REQUESTS.read(requests),
        person_resets=layouts.PERSON_RESETS.read(person_resets),
        resets=layouts.RESETS.read(resets),
    )


def _region_from(session: Session, name: RegionName, row: Found) -> Region:
    """Return the region of a row that begins with a head, its tables unread; the session is about it from now on."""
    _, session.region_id, head, *_ = row
    return layouts.region_from(name, head, session.read_rules, PostgresArchive(session))


def _skips(session: Session, row: Found) -> dict[GroupPartition, tuple[Offset, ...]]:
    """Return the records to step over, which most regions have none of."""
    rows = session.rows(SQL["skips"]) if row[_HEAD - 1] else []
    return {GroupPartition(g, t, p): tuple(held) for g, t, p, held in rows}


# As one member sees it


def region_of_member(session: Session, name: RegionName, member: MemberId, row: Found) -> Region:
    """Return the region of a row of `region_of_member` as one member reads it: with its claims, and what is theirs.

    A count is counted over all claims, and an open seek entry is answered from the whole map: then all is read.
    """
    region = _with_wide_rows(session, name, row)
    claims = layouts.CLAIMS.read(row[_WIDE:])
    if region.rules.checkpoint.records is not None or any(claim.resume is None for claim in claims.values()):
        return region_of(session, name, session.rows(SQL["region"], name=name)[0])
    region = replace(region, claims=claims, skips=_skips(session, row))
    checkpoint, limit = region.checkpoint, boundaries.limit(region)
    if checkpoint is not None:
        own = PostgresArchive(session).contribution_of(checkpoint.sequence, member)
        region = replace(region, contributions={(checkpoint.sequence, m): part for m, part in own.items()})
    if limit is None and region.uncommitted is None:
        return region
    return _with_places(session, region, member, limit)


def _with_places(session: Session, region: Region, member: MemberId, limit: datetime | None) -> Region:
    """Return the region with where restore point and boundary lie in one member's claims, and what Kafka holds."""
    rows = session.rows(
        SQL["places_of_member"],
        group=member.group,
        index=member.index,
        restore_point=None if region.restore_epoch is not None else region.restore_sequence,
        restore_point_epoch=region.restore_epoch,
        boundary=limit,
    )
    held: dict[GroupPartition, Offset] = {}
    known_read_back: dict[GroupPartition, Offset] = {}
    located: dict[BoundaryKey, BoundaryOffset] = {}
    for topic, partition, topic_id, offset, read_back, place, inexact, leader_epoch in rows:
        key = GroupPartition(member.group, topic, partition)
        if offset is not None:
            held[key] = offset
        if read_back is not None:
            known_read_back[key] = read_back
        if place is not None and limit is not None:
            located[key, topic_id, limit] = BoundaryOffset(offset=place, inexact=inexact, leader_epoch=leader_epoch)
    region = replace(region, boundary_offsets=located)
    point = region.restore_point
    if point is None:
        return region
    if point.epoch is not None:
        return replace(region, seek_maps={point.epoch: from_offsets(OffsetMap(held), SeekSource.MERGED)})
    known_read_backs = {point.sequence: OffsetMap(known_read_back)}
    return replace(region, offsets={point.sequence: OffsetMap(held)}, read_backs=known_read_backs)


# As a batch's start or finish needs it


_CLAIMED: Final = 5 + layouts.CLAIMS.values.index("incarnation")
"""A range whose partition has no claim any more has none of its columns."""


def region_for_batch(
    session: Session, name: RegionName, command: StartBatch | FinishBatch
) -> tuple[Region, datetime] | None:
    """Return the region as a start or a finish needs it, and the store's clock; None if there is no such region.

    A region that checkpoints by count counts over all claims, and is read as a whole.
    """
    member = command.member
    who = {"name": name, "group": member.group, "index": member.index, "batch": command.batch}
    if isinstance(command, FinishBatch):
        rows = session.rows(SQL["admit_finish"], **who)
    else:
        rows = session.rows(SQL["admit_start"], **who, **row_layout.partition_columns(command.ranges))
    if not rows:
        return None
    row = rows[0]
    region, now = _region_from(session, name, row), row[0]
    if region.rules.checkpoint.records is not None:
        row = session.rows(SQL["region"], name=name)[0]
        return region_of(session, name, row), row[0]
    member_row, lease, checkpoint, running, *gathered = row[_HEAD:]
    if isinstance(command, FinishBatch):
        found = list(row_layout.scattered(gathered))
        claimed = [(*columns[:3], *columns[5:]) for columns in found if columns[_CLAIMED] is not None]
        claims = layouts.CLAIMS.read(list(zip(*claimed, strict=True)))
        if running:
            running[layouts.BATCHES.columns.index("ranges")] = [columns[:5] for columns in found]
    else:
        claims = layouts.CLAIMS.read(gathered)
    region = replace(
        region,
        members=layouts.MEMBERS.read(_one(member_row)),
        leases=layouts.LEASES.read(_one(lease)),
        checkpoints=layouts.CHECKPOINTS.read(_one(checkpoint)),
        claims=claims,
        skips=_skips(session, row),
        running={b.batch: b for b in layouts.BATCHES.read(_one(running)).values()},
    )
    limit = boundaries.limit(region)
    return replace(region, boundary_offsets=_boundaries_in(session, claims, limit)), now


def _one(found: list[Any] | None) -> list[list[Any]]:
    return [] if found is None else [found]


def _boundaries_in(
    session: Session, claims: Mapping[GroupPartition, Claim], limit: datetime | None
) -> dict[BoundaryKey, BoundaryOffset]:
    """Return where the boundary that no batch may cross falls in claimed partitions, as far as that is known."""
    if limit is None:
        return {}
    topic_ids = [claim.topic_id for claim in claims.values()]
    rows = session.rows(
        SQL["boundaries_in"], boundary=limit, topic_ids=topic_ids, **row_layout.partition_columns(claims)
    )
    return layouts.BOUNDARY_OFFSETS.read(list(zip(*rows, strict=True)))
