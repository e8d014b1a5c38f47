"""Reading a region: its own row at once, everything else when a rule asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Columns
from dataclasses import fields, replace
from datetime import datetime
from functools import cache
from typing import Any, Final, TypeVar

from sqlalchemy import TextClause, text

from airflow_kcr.protocol.group_members import Outsider
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region import bounds
from airflow_kcr.protocol.region.rows import (
    Absence,
    BoundOffset,
    Contribution,
    Halt,
    RegionState,
    SpecCheck,
    Wanted,
)
from airflow_kcr.protocol.region.state import BoundKey, Region, Spec
from airflow_kcr.protocol.seek_map import SeekEntry, SeekMap, SeekSource
from airflow_kcr.protocol.values import Epoch, GroupPartition, MemberId, Offset, RegionName, Sequence
from airflow_kcr.store.codec import Unclaimed, from_json
from airflow_kcr.store.postgres import gathering, ledger
from airflow_kcr.store.postgres.gathering import HEAD_WIDTH, ClaimsAndCuts
from airflow_kcr.store.postgres.layouts import (
    BOUND_OFFSETS,
    CHECKPOINTS,
    CLAIMS,
    ECHOES,
    FROZEN,
    INITIAL,
    LEASES,
    MEMBERS,
    OFFSETS,
    PERSON_RESETS,
    REQUESTS,
    RESETS,
    SEEKS,
    ContributionKey,
    MapLayout,
)
from airflow_kcr.store.postgres.lazy import Parts, Whole
from airflow_kcr.store.postgres.row_layout import Layout, member_of, partition_of
from airflow_kcr.store.postgres.session import Found, Session

K = TypeVar("K")
V = TypeVar("V")
N = TypeVar("N", bound=int)
M = TypeVar("M")

# name: skips — the records to step over, by partition.
_SKIPS: Final = text(
    "SELECT group_id, topic, partition, array_agg(skipped_offset ORDER BY skipped_offset) "
    "FROM kcr.skip WHERE region_id = :region GROUP BY group_id, topic, partition"
)

# name: keys of the maps — which numbers have one, without reading it.
_OFFSET_KEYS: Final = text(
    "SELECT sequence FROM kcr.checkpoint WHERE region_id = :region AND state IN ('complete', 'published')"
)
_SEEK_KEYS: Final = text("SELECT epoch FROM kcr.reset WHERE region_id = :region")
_FROZEN_KEYS: Final = text(
    "SELECT sequence FROM kcr.checkpoint c WHERE c.region_id = :region AND EXISTS ("
    "SELECT FROM kcr.checkpoint_partition p WHERE p.region_id = c.region_id AND p.sequence = c.sequence)"
)
_ECHO_KEYS: Final = text(
    "SELECT sequence FROM kcr.checkpoint c WHERE c.region_id = :region AND EXISTS ("
    "SELECT FROM kcr.echo e WHERE e.region_id = c.region_id AND e.sequence = c.sequence)"
)
# name: bounds_of — where a bound falls in the partitions that one member holds.
_BOUNDS_OF: Final = text(
    f"SELECT {', '.join(BOUND_OFFSETS.selected('b'))} FROM kcr.claim c JOIN kcr.bound_offset b "  # noqa: S608
    "USING (region_id, group_id, topic, partition, topic_id) "
    "WHERE c.region_id = :region AND c.group_id = :group AND c.owner_index = :index AND b.bound = :bound"
)
_BOUND_KEYS: Final = text(
    "SELECT group_id, topic, partition, topic_id, bound FROM kcr.bound_offset WHERE region_id = :region"
)
_CONTRIBUTION_KEYS: Final = text(
    "SELECT sequence, group_id, member_index FROM kcr.contribution WHERE region_id = :region"
)
_HAS_CONTRIBUTION: Final = text(
    f"{_CONTRIBUTION_KEYS.text} AND sequence = :sequence AND group_id = :group AND member_index = :index"
)


def region_of(session: Session, name: RegionName, row: Found) -> Region:
    """Return the region of a row of `gathering.REGION`.

    Args:
        session: the transaction; from now on it is about this region.
        name: the region's.
        row: of `gathering.REGION` or `MEMBERS_REGION`.
    """
    members, leases, checkpoints, requests, person_resets = gathering.beside(row, gathering.BESIDE)
    return replace(
        region_from(session, name, row),
        members=members,
        leases=leases,
        checkpoints=checkpoints,
        requests=requests,
        person_resets=person_resets,
    )


def region_of_member(session: Session, name: RegionName, member: MemberId, row: Found) -> Region:
    """Return the region of a row of `gathering.MEMBERS_REGION`, with one member's claims.

    Of the bounds it has only where the next one falls in these; a count is counted over all claims.
    """
    region = region_of(session, name, row)
    if region.rules.cut.records is None:
        *_, claims = gathering.beside(row, (*gathering.BESIDE, CLAIMS))
        region = replace(region, claims=claims)
    limit = bounds.limit(region)

    def located() -> dict[BoundKey, BoundOffset]:
        rows = session.rows(_BOUNDS_OF, group=member.group, index=member.index, bound=limit)
        return dict(map(BOUND_OFFSETS.join, rows))

    return replace(region, bound_offsets={} if limit is None else Whole(located))


def region_from(session: Session, name: RegionName, row: Found) -> Region:
    """Return the region of a row that begins with `HEAD`, its tables unread.

    Args:
        session: the transaction; from now on it is about this region.
        name: the region's.
        row: begins with the columns of `HEAD`; more may follow.
    """
    session.region_id = row[1]
    (
        spec,
        spec_revision,
        next_spec,
        next_spec_revision,
        state,
        wanted,
        epoch,
        lineage,
        next_sequence,
        counter,
        base,
        base_epoch,
        next_bound,
        held_bound,
        failures,
        open_cut,
        stopping,
        halt,
        due_at,
        initialised,
        outsiders,
        spec_checks,
        unowned,
        is_any_skipped,
    ) = row[2:HEAD_WIDTH]
    around = ClaimsAndCuts(session, base, open_cut)
    unclaimed: Mapping[GroupPartition, datetime | Absence] = (
        {} if unowned is None else from_json(unowned, Mapping[GroupPartition, Unclaimed])  # type: ignore[type-abstract]
    )
    return Region(
        name=name,
        spec=Spec(text=spec, rules=session.read_rules(spec), revision=spec_revision),
        next_spec=None
        if next_spec is None
        else Spec(text=next_spec, rules=session.read_rules(next_spec), revision=next_spec_revision),
        state=RegionState(state),
        wanted=Wanted(wanted),
        epoch=epoch,
        lineage=lineage,
        next_sequence=next_sequence,
        counter=counter,
        base=base,
        base_epoch=base_epoch,
        next_bound=next_bound,
        held_bound=held_bound,
        failures=failures,
        open_cut=open_cut,
        stopping=stopping,
        halt=None if halt is None else from_json(halt, Halt),
        due_at=due_at,
        initialised=initialised,
        outsiders=() if outsiders is None else from_json(outsiders, tuple[Outsider, ...]),
        spec_checks=() if spec_checks is None else from_json(spec_checks, tuple[SpecCheck, ...]),
        unowned={p: row for p, row in unclaimed.items() if isinstance(row, datetime)},
        absent={p: row for p, row in unclaimed.items() if isinstance(row, Absence)},
        members=_whole(session, MEMBERS),
        leases=_whole(session, LEASES),
        claims=Whole(around.claims),
        running=Whole(lambda: {b.batch: b for b in ledger.running(session)} if around.does_any_batch_run() else {}),
        initial=_whole(session, INITIAL),
        bound_offsets=_bound_offsets(session),
        requests=_whole(session, REQUESTS),
        checkpoints=_whole(session, CHECKPOINTS),
        offsets=_maps(session, around, OFFSETS, _OFFSET_KEYS, Sequence, _offset_map),
        frozen=_maps(session, around, FROZEN, _FROZEN_KEYS, Sequence, _partitions),
        contributions=_contributions(session, around, next_sequence),
        echoes=_maps(session, around, ECHOES, _ECHO_KEYS, Sequence, _offset_map),
        resets=_whole(session, RESETS),
        seek_maps=_maps(session, around, SEEKS, _SEEK_KEYS, Epoch, _seek_map),
        person_resets=_whole(session, PERSON_RESETS),
        skips=Whole(lambda: _skips(session)) if is_any_skipped else {},
    )


def _skips(session: Session) -> dict[GroupPartition, tuple[Offset, ...]]:
    return {partition_of(g, t, p): tuple(held) for g, t, p, held in session.rows(_SKIPS)}


def preload(region: Region) -> None:
    """Read every table now, so that all are of one moment; of offsets and seek maps, which don't change, the keys."""
    for table in fields(region):
        held = getattr(region, table.name)
        if isinstance(held, Whole | Parts) and held is not region.bound_offsets:
            len(held)


@cache
def select(layout: Layout[Any, Any], condition: str = "") -> TextClause:
    """Return the statement that reads a table's rows of one region.

    Args:
        layout: the table.
        condition: what else has to hold; a constant of this package.
    """
    more = f" AND {condition}" if condition else ""
    chosen = ", ".join(layout.selected("t"))
    return text(f"SELECT {chosen} FROM kcr.{layout.table.name} t WHERE region_id = :region{more}")  # noqa: S608


@cache
def _select_map(layout: MapLayout) -> TextClause:
    columns = ", ".join(("group_id", "topic", "partition", *layout.values))
    return text(
        f"SELECT {columns} FROM kcr.{layout.table.name} "  # noqa: S608
        f"WHERE region_id = :region AND {layout.number} = :number ORDER BY group_id, topic, partition"
    )


@cache
def _select_maps(layout: MapLayout) -> TextClause:
    columns = ", ".join((layout.number, "group_id", "topic", "partition", *layout.values))
    return text(f"SELECT {columns} FROM kcr.{layout.table.name} WHERE region_id = :region")  # noqa: S608


def _whole(session: Session, layout: Layout[K, V], condition: str = "", **parameters: object) -> Whole[K, V]:
    join = layout.join
    return Whole(lambda: dict(map(join, session.rows(select(layout, condition), **parameters))))


def _maps(
    session: Session,
    around: ClaimsAndCuts,
    layout: MapLayout,
    keys: TextClause,
    number: Callable[[int], N],
    build: Callable[[Iterable[Columns[Any]]], M],
) -> Parts[N, M]:
    def has(key: object) -> bool:
        return bool(session.rows(_narrowed(keys, layout.number), number=key))

    def load(key: N) -> dict[N, M]:
        read = around.rows_of(layout, key)
        rows = session.rows(_select_map(layout), number=key) if read is None else read
        return {key: build(rows)} if rows or (layout.may_be_empty and has(key)) else {}

    def known() -> Iterable[N]:
        return [number(key) for (key,) in session.rows(keys)]

    def load_all() -> dict[N, M]:
        rows: dict[N, list[Columns[Any]]] = {key: [] for key in known()} if layout.may_be_empty else {}
        for key, *columns in session.rows(_select_maps(layout)):
            rows.setdefault(number(key), []).append(columns)
        return {key: build(held) for key, held in rows.items()}

    return Parts(keys=known, part=lambda key: key, load=load, load_all=load_all, has=has)


@cache
def _narrowed(keys: TextClause, number: str) -> TextClause:
    """Return the statement of the keys of the maps for one of them: there are as many as cuts and resets were kept."""
    return text(f"{keys.text} AND {number} = :number")


def _offset_map(rows: Iterable[Columns[Any]]) -> OffsetMap:
    return OffsetMap([(partition_of(g, t, p), Offset(o)) for g, t, p, o in rows])


def _partitions(rows: Iterable[Columns[Any]]) -> frozenset[GroupPartition]:
    return frozenset(partition_of(g, t, p) for g, t, p in rows)


def _seek_map(rows: Iterable[Columns[Any]]) -> SeekMap:
    sources = {str(source): source for source in SeekSource}
    return SeekMap(
        {
            partition_of(g, t, p): SeekEntry(
                offset=offset, source=sources[source], current=current, clamped_from=clamped_from
            )
            for g, t, p, offset, source, current, clamped_from in rows
        }
    )


def _bound_offsets(session: Session) -> Parts[BoundKey, BoundOffset]:
    def load(key: BoundKey) -> dict[BoundKey, BoundOffset]:
        return dict(map(BOUND_OFFSETS.join, session.rows(select(BOUND_OFFSETS, "bound = :bound"), bound=key[2])))

    def keys() -> Iterable[BoundKey]:
        return ((partition_of(g, t, p), topic_id, bound) for g, t, p, topic_id, bound in session.rows(_BOUND_KEYS))

    def load_all() -> dict[BoundKey, BoundOffset]:
        return dict(map(BOUND_OFFSETS.join, session.rows(select(BOUND_OFFSETS))))

    return Parts(keys=keys, part=lambda key: key[2], load=load, load_all=load_all)


def _contributions(session: Session, around: ClaimsAndCuts, unused: Sequence) -> Parts[ContributionKey, Contribution]:
    """Return the contributions; to a cut of a sequence that was not used when the region was read, there are none."""

    def keys() -> Iterable[ContributionKey]:
        return ((Sequence(s), member_of(g, i)) for s, g, i in session.rows(_CONTRIBUTION_KEYS))

    def has(key: ContributionKey) -> bool:
        sequence, member = key
        if sequence >= unused:
            return False
        return bool(session.rows(_HAS_CONTRIBUTION, sequence=sequence, group=member.group, index=member.index))

    return Parts(
        keys=keys,
        part=lambda key: key[0],
        load=lambda key: around.contributions(key[0]),
        load_all=around.all_contributions,
        has=has,
    )
