"""Reading a region: what decisions work on, as one value; nothing is read behind a rule's back.

One statement: the region's own row, the few wide rows (members, leases, the working rows of what grows with time), what
there is a row of for each partition, and the running batches. Which rows of what grows with time are working rows is
what `protocol.region.state.working` says in Python; the contract suite holds the two together. Each condition names
its rows by an index, so that what a decision reads does not depend on how long the region has lived.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Columns
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeVar

from psycopg.sql import SQL, Composable, Composed, Identifier, Literal
from sqlalchemy import TextClause, text

from airflow_kcr.protocol.observations import ForeignConsumer
from airflow_kcr.protocol.offsets import OffsetMap, SeekMap, SeekSource, from_offsets
from airflow_kcr.protocol.region import boundaries
from airflow_kcr.protocol.region.rows import (
    RESET_STATES,
    Absence,
    BoundaryKey,
    BoundaryOffset,
    Committed,
    Contribution,
    DesiredState,
    Halt,
    RegionState,
    ResetAnswer,
    StartFailure,
)
from airflow_kcr.protocol.region.state import Region, Spec
from airflow_kcr.protocol.values import (
    CheckpointNumber,
    Epoch,
    GroupPartition,
    MemberId,
    Offset,
    RegionId,
    RegionName,
    replace,
)
from airflow_kcr.store.codec import from_json
from airflow_kcr.store.postgres import archive, ledger
from airflow_kcr.store.postgres.layouts import (
    BOUNDARY_OFFSETS,
    CHECKPOINTS,
    CLAIMS,
    GROUPS,
    INITIAL,
    LEASES,
    MEMBERS,
    PERSON_RESETS,
    REQUESTS,
    RESETS,
    SEEKS,
    ContributionKey,
)
from airflow_kcr.store.postgres.row_layout import Layout, arrays_of, listed, named, partition_of
from airflow_kcr.store.postgres.session import Found, Session, composed
from airflow_kcr.store.postgres.tables import PARTITION, SCHEMA, USABLE

K = TypeVar("K")
V = TypeVar("V")

HEAD_COLUMNS: Final = (
    "uid",
    "spec",
    "spec_revision",
    "next_spec",
    "next_spec_revision",
    "state",
    "desired_state",
    "epoch",
    "timeline",
    "next_sequence",
    "counter",
    "recorded_at",
    "restore_point",
    "restore_point_epoch",
    "next_boundary",
    "held_boundary",
    "aligned",
    "failures",
    "open_checkpoint",
    "stopping",
    "halt",
    "reconcile_at",
    "retire_at",
    "initialised",
    "foreign_consumers",
    "start_failures",
    "unowned",
    "reset_answers",
)
"""The columns of the region's own row, after id and name."""

HEAD: Final = SQL("clock_timestamp(), r.id, {}, EXISTS (SELECT FROM kcr.skip s WHERE s.region_id = r.id)").format(
    named(HEAD_COLUMNS, "r")
)
"""What is read of a region at once: the store's clock, its id, its own row, and whether any record is skipped."""

HEAD_WIDTH: Final = 2 + len(HEAD_COLUMNS) + 1
"""How many columns that is."""

# -- the region's own row, and the few wide ones -----------------------------------------------------------------------

_WORKING: Final[Mapping[Layout[Any, Any], Composable]] = {
    GROUPS: SQL(" AND t.cluster_id <> ''"),
    MEMBERS: SQL(""),
    LEASES: SQL(""),
    CHECKPOINTS: SQL(""" AND t.sequence = ANY (
        ARRAY[r.open_checkpoint, r.restore_point, r.stopping, r.aligned]
        || ARRAY(SELECT o.sequence FROM kcr.checkpoint o WHERE o.region_id = r.id AND o.state = 'complete')
        || (SELECT max(o.sequence) FROM kcr.checkpoint o WHERE o.region_id = r.id AND {usable}))""").format(
        usable=SQL(USABLE)
    ),
    REQUESTS: SQL(" AND t.state IN ('queued', 'open')"),
    PERSON_RESETS: SQL(""" AND t.request_id = ANY (
        ARRAY(SELECT o.request_id FROM kcr.person_reset o
              WHERE o.region_id = r.id AND o.state IN ('waiting', 'draining', 'started'))
        || (SELECT o.person FROM kcr.reset o WHERE o.region_id = r.id AND o.epoch = r.restore_point_epoch))"""),
    RESETS: SQL(" AND t.epoch = ANY (ARRAY[r.epoch, r.restore_point_epoch])"),
}
"""The tables that are read with the region's own row, and which of their rows."""


_RESTORE_POINT: Final = SQL(" AND t.sequence = CASE WHEN r.restore_point_epoch IS NULL THEN r.restore_point END")

_BOUNDARIES: Final = SQL("""
    AND t.boundary = ANY (
        ARRAY[r.next_boundary]
        || ARRAY(SELECT o.boundary FROM kcr.checkpoint o WHERE o.region_id = r.id AND o.sequence = r.open_checkpoint)
        || ARRAY(SELECT o.boundary FROM kcr.checkpoint_request o
                 WHERE o.region_id = r.id AND o.state IN ('queued', 'open')))""")

_SEEK_COLUMNS: Final = ("epoch", *PARTITION, *SEEKS.values)
_OFFSET_COLUMNS: Final = (*PARTITION, "next_offset")

_MAPPED: Final = SQL(" AND t.epoch = ANY (ARRAY[r.restore_point_epoch, CASE WHEN r.state IN ({}) THEN r.epoch END])")

_ALL: Final = SQL("")
_FROZEN: Final = SQL(" AND t.sequence = r.open_checkpoint")


class _Part(NamedTuple):
    """What is read of one table beside the region's own row `r`: columns of its rows `t` in arrays."""

    table: str
    columns: Composable
    width: int
    condition: Composable = _ALL

    @property
    def joined(self) -> Composed:
        """Return what follows the FROM."""
        return SQL("CROSS JOIN LATERAL (SELECT {} FROM {} t WHERE t.region_id = r.id{}) {}").format(
            self.columns, Identifier(SCHEMA, self.table), self.condition, Identifier(self.table)
        )

    @property
    def chosen(self) -> Composed:
        """Return what follows the SELECT."""
        return SQL("{}.*").format(Identifier(self.table))


def _part(layout: Layout[Any, Any], condition: Composable = _ALL) -> _Part:
    return _Part(layout.table.name, layout.gathered("t"), layout.width, condition)


_BY_PARTITION: Final = (
    _part(CLAIMS),
    _part(INITIAL),
    _part(BOUNDARY_OFFSETS, _BOUNDARIES),
    _Part("checkpoint_offset", arrays_of(_OFFSET_COLUMNS, "t"), len(_OFFSET_COLUMNS), _RESTORE_POINT),
    _Part("read_back", arrays_of(_OFFSET_COLUMNS, "t"), len(_OFFSET_COLUMNS), _RESTORE_POINT),
    _Part("checkpoint_partition", arrays_of(PARTITION, "t"), len(PARTITION), _FROZEN),
    _Part(
        "seek_offset",
        arrays_of(_SEEK_COLUMNS, "t"),
        len(_SEEK_COLUMNS),
        _MAPPED.format(listed(Literal(str(state)) for state in sorted(RESET_STATES))),
    ),
)
"""Claims, beginnings, the boundaries in question, the restore point's map, what the open checkpoint froze, and the seek
maps that are at work."""


def _head_and(parts: Iterable[_Part], *expressions: Composable) -> TextClause:
    """Return the statement that reads `HEAD`, then tables, each one's rows gathered in one, and then expressions."""
    own = list(parts)
    whole = SQL("SELECT {chosen} FROM kcr.region r {joined} WHERE r.name = :name").format(
        chosen=listed([HEAD, *(part.chosen for part in own), *expressions]),
        joined=SQL(" ").join(part.joined for part in own),
    )
    return composed(whole)


# name: region — a statement of its own, after the one that waits.
REGION: Final = _head_and(
    [*(_part(layout, condition) for layout, condition in _WORKING.items()), *_BY_PARTITION],
    archive.contributions_to(SQL("r.open_checkpoint"), region=SQL("r.id")),
    ledger.RUNNING,
    ledger.WORKED_AT,
)

_OF_MEMBER: Final = {**_WORKING, CLAIMS: SQL(" AND t.group_id = :group AND t.owner_index = :index")}

# name: member_head — what one member sees; no lock before it.
MEMBERS_REGION: Final = _head_and(_part(layout, condition) for layout, condition in _OF_MEMBER.items())


def _beside(row: Found, layouts: Iterable[Layout[Any, Any]]) -> Iterator[dict[Any, Any]]:
    """Yield the rows that were read with a head, table by table."""
    begin = HEAD_WIDTH
    for layout in layouts:
        end = begin + layout.width
        yield rows_of(layout, row[begin:end])
        begin = end


def rows_of(layout: Layout[K, V], gathered: Columns[Any]) -> dict[K, V]:
    """Return a table's rows from what `Layout.gathered` has read of them."""
    return dict(map(layout.join, layout.scattered(gathered)))


# -- the rows by partition ---------------------------------------------------------------------------------------------


# name: member_by_partition — of the partitions that one member holds: the restore point, its commit read-back, and
# where a boundary falls. Each is looked up by itself (OFFSET 0), or a planner that takes the tables for short reads all
# of them for each claim.
_OF_CLAIMS: Final = text("""
    SELECT c.topic, c.partition, c.topic_id, coalesce(o.next_offset, s.next_offset), e.next_offset,
           b.next_offset, b.inexact, b.leader_epoch
    FROM kcr.claim c
    LEFT JOIN LATERAL (
        SELECT * FROM kcr.checkpoint_offset t WHERE t.region_id = c.region_id AND t.sequence = :restore_point
          AND t.group_id = c.group_id AND t.topic = c.topic AND t.partition = c.partition OFFSET 0
    ) o ON true
    LEFT JOIN LATERAL (
        SELECT * FROM kcr.read_back t WHERE t.region_id = c.region_id AND t.sequence = :restore_point
          AND t.group_id = c.group_id AND t.topic = c.topic AND t.partition = c.partition OFFSET 0
    ) e ON true
    LEFT JOIN LATERAL (
        SELECT * FROM kcr.seek_offset t WHERE t.region_id = c.region_id AND t.epoch = :restore_point_epoch
          AND t.group_id = c.group_id AND t.topic = c.topic AND t.partition = c.partition OFFSET 0
    ) s ON true
    LEFT JOIN LATERAL (
        SELECT * FROM kcr.boundary_offset t WHERE t.region_id = c.region_id AND t.boundary = :boundary
          AND t.group_id = c.group_id AND t.topic = c.topic AND t.partition = c.partition AND t.topic_id = c.topic_id
        OFFSET 0
    ) b ON true
    WHERE c.region_id = :region AND c.group_id = :group AND c.owner_index = :index
""")

# name: skips — the records to step over, by partition.
_SKIPS: Final = text(
    "SELECT group_id, topic, partition, array_agg(skipped_offset ORDER BY skipped_offset) "
    "FROM kcr.skip WHERE region_id = :region GROUP BY group_id, topic, partition"
)


def region_of(session: Session, name: RegionName, row: Found) -> Region:
    """Return the region of a row of `REGION`, with all that decisions work on.

    Args:
        session: the transaction; from now on it is about this region.
        name: the region's.
        row: as it was read.
    """
    region = _with_wide_rows(region_from(session, name, row), row)
    found = iter(row[HEAD_WIDTH + sum(layout.width for layout in _WORKING) :])

    def columns(width: int) -> list[Any]:
        return [next(found) for _ in range(width)]

    claims, initial, boundaries_, offsets, read_backs, frozen, seeks = [columns(p.width) for p in _BY_PARTITION]
    contributed, running, _ = found
    return replace(
        region,
        skips=skips(session, row),
        running={b.batch: b for b in ledger.running_from(running)},
        contributions=_to_open(region, contributed),
        claims=rows_of(CLAIMS, claims),
        initial=rows_of(INITIAL, initial),
        boundary_offsets=rows_of(BOUNDARY_OFFSETS, boundaries_),
        offsets=_of_restore_point(region, offsets),
        read_backs={s: held for s, held in _of_restore_point(region, read_backs).items() if held},
        frozen=_of_open(region, frozen),
        seek_maps=_seek_maps(seeks, _mapped(region)),
    )


def worked_at(row: Found) -> datetime | None:
    """Return when the batch that was started last began or ended, of a row of `REGION`; None: there was none."""
    instant: datetime | None = row[-1]
    return instant


def region_of_member(session: Session, name: RegionName, member: MemberId, row: Found) -> Region:
    """Return the region of a row of `MEMBERS_REGION` as one member reads it: with its claims, and what is theirs.

    A count is counted over all claims, and an open seek entry is answered from the whole map: then all is read.
    """
    region = _with_wide_rows(region_from(session, name, row), row)
    *_, claims = _beside(row, _OF_MEMBER)
    if region.rules.checkpoint.records is not None or any(claim.resume is None for claim in claims.values()):
        return region_of(session, name, session.rows(REGION, name=name)[0])
    region = replace(region, claims=claims, initial={}, skips=skips(session, row))
    checkpoint, limit = region.checkpoint, boundaries.limit(region)
    if checkpoint is not None and checkpoint.phase is not None:
        own = archive.contribution(session, checkpoint.sequence, member)
        region = replace(region, contributions={(checkpoint.sequence, m): part for m, part in own.items()})
    restore_point = (
        None
        if region.restore_point is None or region.restore_point_epoch is not None
        else region.checkpoints[region.restore_point]
    )
    if limit is None and (restore_point is None or restore_point.committed is not Committed.PENDING):
        return region
    return _with_places(session, region, member, limit)


def _with_places(session: Session, region: Region, member: MemberId, limit: datetime | None) -> Region:
    """Return the region with where restore point and boundary lie in one member's claims, and what Kafka holds."""
    rows = session.rows(
        _OF_CLAIMS,
        group=member.group,
        index=member.index,
        restore_point=region.restore_point if region.restore_point_epoch is None else None,
        restore_point_epoch=region.restore_point_epoch,
        boundary=limit,
    )
    held: dict[GroupPartition, Offset] = {}
    known_read_back: dict[GroupPartition, Offset] = {}
    located: dict[BoundaryKey, BoundaryOffset] = {}
    for topic, partition, topic_id, offset, read_back, place, inexact, leader_epoch in rows:
        key = partition_of(member.group, topic, partition)
        if offset is not None:
            held[key] = offset
        if read_back is not None:
            known_read_back[key] = read_back
        if place is not None and limit is not None:
            located[key, topic_id, limit] = BoundaryOffset(offset=place, inexact=inexact, leader_epoch=leader_epoch)
    region = replace(region, boundary_offsets=located)
    if region.restore_point is None:
        return region
    if region.restore_point_epoch is None:
        return replace(
            region,
            offsets={region.restore_point: OffsetMap(held)},
            read_backs={region.restore_point: OffsetMap(known_read_back)},
        )
    return replace(region, seek_maps={region.restore_point_epoch: from_offsets(OffsetMap(held), SeekSource.MERGED)})


def _with_wide_rows(region: Region, row: Found) -> Region:
    clusters, members, leases, checkpoints, requests, person_resets, resets = _beside(row, _WORKING)
    return replace(
        region,
        clusters=clusters,
        members=members,
        leases=leases,
        checkpoints=checkpoints,
        requests=requests,
        person_resets=person_resets,
        resets=resets,
    )


def _mapped(region: Region) -> list[Epoch]:
    """Return the epochs whose seek maps are at work."""
    restore_point = [] if region.restore_point_epoch is None else [region.restore_point_epoch]
    return [
        *restore_point,
        *([region.epoch] if region.state in RESET_STATES and region.epoch not in restore_point else []),
    ]


def _of_restore_point(region: Region, gathered: list[Any]) -> dict[CheckpointNumber, OffsetMap]:
    if region.restore_point is None or region.restore_point_epoch is not None:
        return {}
    return {region.restore_point: archive.offset_map(_scattered(gathered))}


def _to_open(region: Region, contributed: list[Any] | None) -> dict[ContributionKey, Contribution]:
    if region.open_checkpoint is None:
        return {}
    return {(region.open_checkpoint, member): part for member, part in archive.contributions_from(contributed).items()}


def _of_open(region: Region, gathered: list[Any]) -> dict[CheckpointNumber, frozenset[GroupPartition]]:
    if region.open_checkpoint is None:
        return {}
    return {region.open_checkpoint: frozenset(partition_of(g, t, p) for g, t, p in _scattered(gathered))}


def _seek_maps(gathered: list[Any], epochs: Iterable[Epoch]) -> dict[Epoch, SeekMap]:
    rows: dict[Epoch, list[Columns[Any]]] = {epoch: [] for epoch in epochs}
    for epoch, *columns in _scattered(gathered):
        rows[epoch].append(columns)
    return {epoch: archive.seek_map(columns) for epoch, columns in rows.items()}


def _scattered(gathered: list[Any]) -> Iterable[Columns[Any]]:
    return [] if gathered[0] is None else zip(*gathered, strict=True)


def region_from(session: Session, name: RegionName, row: Found) -> Region:
    """Return the region of a row that begins with `HEAD`, its tables unread.

    Args:
        session: the transaction; from now on it is about this region.
        name: the region's.
        row: begins with the columns of `HEAD`; more may follow.
    """
    session.region_id = row[1]
    (
        uid,
        spec,
        spec_revision,
        next_spec,
        next_spec_revision,
        state,
        desired_state,
        epoch,
        timeline,
        next_sequence,
        counter,
        recorded_at,
        restore_point,
        restore_point_epoch,
        next_boundary,
        held_boundary,
        aligned,
        failures,
        open_checkpoint,
        stopping,
        halt,
        reconcile_at,
        retire_at,
        initialised,
        foreign_consumers,
        start_failures,
        unowned,
        reset_answers,
    ) = row[2 : HEAD_WIDTH - 1]
    unclaimed: Mapping[GroupPartition, datetime | Absence] = (
        {} if unowned is None else from_json(unowned, Mapping[GroupPartition, datetime | Absence])  # type: ignore[type-abstract]
    )
    return Region(
        name=name,
        region_id=RegionId(uid),
        spec=Spec(text=spec, rules=session.read_rules(spec), revision=spec_revision),
        next_spec=None
        if next_spec is None
        else Spec(text=next_spec, rules=session.read_rules(next_spec), revision=next_spec_revision),
        state=RegionState(state),
        desired_state=DesiredState(desired_state),
        epoch=epoch,
        timeline=timeline,
        next_sequence=next_sequence,
        counter=counter,
        recorded_at=recorded_at,
        restore_point=restore_point,
        restore_point_epoch=restore_point_epoch,
        next_boundary=next_boundary,
        held_boundary=held_boundary,
        aligned=aligned,
        failures=failures,
        open_checkpoint=open_checkpoint,
        stopping=stopping,
        halt=None if halt is None else from_json(halt, Halt),
        reconcile_at=reconcile_at,
        initialised=initialised,
        foreign_consumers=()
        if foreign_consumers is None
        else from_json(foreign_consumers, tuple[ForeignConsumer, ...]),
        start_failures=() if start_failures is None else from_json(start_failures, tuple[StartFailure, ...]),
        unowned={p: row for p, row in unclaimed.items() if isinstance(row, datetime)},
        absent={p: row for p, row in unclaimed.items() if isinstance(row, Absence)},
        reset_answers=() if reset_answers is None else from_json(reset_answers, tuple[ResetAnswer, ...]),
        retire_at=retire_at,
        archive=archive.PostgresArchive(session),
    )


def skips(session: Session, row: Found) -> dict[GroupPartition, tuple[Offset, ...]]:
    """Return the records to step over, which most regions have none of."""
    is_any_skipped = row[HEAD_WIDTH - 1]
    rows = session.rows(_SKIPS) if is_any_skipped else []
    return {partition_of(g, t, p): tuple(held) for g, t, p, held in rows}
