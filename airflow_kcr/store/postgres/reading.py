"""Reading a region: its own row at once, everything else when a rule asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from functools import cache
from typing import Any, Final, TypeVar

from sqlalchemy import TextClause, text

from airflow_kcr.protocol.group_members import Outsider
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region import bounds
from airflow_kcr.protocol.region.rows import (
    BoundOffset,
    Contribution,
    Halt,
    RegionState,
    Wanted,
)
from airflow_kcr.protocol.region.state import BoundKey, Region, Spec
from airflow_kcr.protocol.seek_map import SeekEntry, SeekMap, SeekSource
from airflow_kcr.protocol.values import Epoch, GroupPartition, MemberId, Offset, RegionName, Sequence
from airflow_kcr.store.codec import from_json
from airflow_kcr.store.postgres import ledger
from airflow_kcr.store.postgres.layouts import (
    BOUND_OFFSETS,
    CHECKPOINTS,
    CLAIMS,
    CONTRIBUTED,
    CONTRIBUTORS,
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
    Contributor,
    MapLayout,
)
from airflow_kcr.store.postgres.lazy import Parts, Whole
from airflow_kcr.store.postgres.row_layout import Layout, member_of, partition_of
from airflow_kcr.store.postgres.session import Found, Session, positional

K = TypeVar("K")
V = TypeVar("V")
N = TypeVar("N", bound=int)
M = TypeVar("M")

HEAD_COLUMNS: Final = (
    "spec",
    "spec_revision",
    "next_spec",
    "next_spec_revision",
    "state",
    "wanted",
    "epoch",
    "lineage",
    "next_sequence",
    "counter",
    "base",
    "base_epoch",
    "next_bound",
    "held_bound",
    "failures",
    "open_cut",
    "stopping",
    "halt",
    "due_at",
    "initialised",
    "outsiders",
)
"""The columns of the region's own row, after id and name."""

HEAD: Final = (
    f"clock_timestamp(), r.id, {', '.join(f'r.{c}' for c in HEAD_COLUMNS)}, "
    "EXISTS (SELECT FROM kcr.skip s WHERE s.region_id = r.id)"
)
"""What is read of a region at once: the store's clock, its id, its own row, and whether any record is skipped."""

HEAD_WIDTH: Final = 2 + len(HEAD_COLUMNS) + 1
"""How many columns that is."""

# name: region_head — a statement of its own, after the one that waits.
_HEAD: Final = positional(text(f"SELECT {HEAD} FROM kcr.region r WHERE r.name = :name"), HEAD_WIDTH)  # noqa: S608 (a constant)

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
_OWNED: Final = "group_id = :group AND owner_index = :index"
_BOUNDS_OF: Final = text(
    f"SELECT {', '.join(f'b.{c}' for c in BOUND_OFFSETS.columns)} FROM kcr.claim c JOIN kcr.bound_offset b "  # noqa: S608
    "USING (region_id, group_id, topic, partition, topic_id) "
    "WHERE c.region_id = :region AND c.group_id = :group AND c.owner_index = :index AND b.bound = :bound"
)
_BOUND_KEYS: Final = text(
    "SELECT group_id, topic, partition, topic_id, bound FROM kcr.bound_offset WHERE region_id = :region"
)
_CONTRIBUTION_KEYS: Final = text(
    "SELECT sequence, group_id, member_index FROM kcr.contribution WHERE region_id = :region"
)


def head(session: Session, name: RegionName) -> Found | None:
    """Return the columns of `HEAD`; None where there is no such region."""
    found = session.rows(_HEAD, name=name)
    return found[0] if found else None


def region_from(session: Session, name: RegionName, row: Found) -> Region:
    """Return the region of a row of `head`, its tables unread.

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
        is_any_skipped,
    ) = row[2:HEAD_WIDTH]
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
        members=_whole(session, MEMBERS),
        leases=_whole(session, LEASES),
        claims=_whole(session, CLAIMS),
        running=Whole(lambda: {b.batch: b for b in ledger.running(session)}),
        initial=_whole(session, INITIAL),
        bound_offsets=_bound_offsets(session),
        requests=_whole(session, REQUESTS),
        checkpoints=_whole(session, CHECKPOINTS),
        offsets=_maps(session, OFFSETS, _OFFSET_KEYS, Sequence, _offset_map),
        frozen=_maps(session, FROZEN, _FROZEN_KEYS, Sequence, _partitions),
        contributions=_contributions(session),
        echoes=_maps(session, ECHOES, _ECHO_KEYS, Sequence, _offset_map),
        resets=_whole(session, RESETS),
        seek_maps=_maps(session, SEEKS, _SEEK_KEYS, Epoch, _seek_map),
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


def for_member(session: Session, region: Region, member: MemberId) -> Region:
    """Return the region with one member's claims, and of the bounds only where the next one falls in these."""
    if region.rules.cut.records is None:  # a count is counted over all claims
        region = replace(region, claims=_whole(session, CLAIMS, _OWNED, group=member.group, index=member.index))
    limit = bounds.limit(region)

    def located() -> dict[BoundKey, BoundOffset]:
        rows = session.rows(_BOUNDS_OF, group=member.group, index=member.index, bound=limit)
        return dict(map(BOUND_OFFSETS.join, rows))

    return replace(region, bound_offsets={} if limit is None else Whole(located))


@cache
def select(layout: Layout[Any, Any], condition: str = "") -> TextClause:
    """Return the statement that reads a table's rows of one region.

    Args:
        layout: the table.
        condition: what else has to hold; a constant of this package.
    """
    more = f" AND {condition}" if condition else ""
    columns = ", ".join(layout.columns)
    return text(f"SELECT {columns} FROM kcr.{layout.table.name} WHERE region_id = :region{more}")  # noqa: S608


@cache
def _select_map(layout: MapLayout) -> TextClause:
    columns = ", ".join(("group_id", "topic", "partition", *layout.values))
    return text(
        f"SELECT {columns} FROM kcr.{layout.table.name} "  # noqa: S608
        f"WHERE region_id = :region AND {layout.number} = :number ORDER BY group_id, topic, partition"
    )


def _whole(session: Session, layout: Layout[K, V], condition: str = "", **parameters: object) -> Whole[K, V]:
    join = layout.join
    return Whole(lambda: dict(map(join, session.rows(select(layout, condition), **parameters))))


def _maps(
    session: Session,
    layout: MapLayout,
    keys: TextClause,
    number: Callable[[int], N],
    build: Callable[[Iterable[Found]], M],
) -> Parts[N, M]:
    def has(key: object) -> bool:
        return bool(session.rows(_narrowed(keys, layout.number), number=key))

    def load(key: N) -> dict[N, M]:
        rows = session.rows(_select_map(layout), number=key)
        return {key: build(rows)} if rows or (layout.may_be_empty and has(key)) else {}

    return Parts(keys=lambda: [number(key) for (key,) in session.rows(keys)], part=lambda key: key, load=load, has=has)


@cache
def _narrowed(keys: TextClause, number: str) -> TextClause:
    """Return the statement of the keys of the maps for one of them: there are as many as cuts and resets were kept."""
    return text(f"{keys.text} AND {number} = :number")


def _offset_map(rows: Iterable[Found]) -> OffsetMap:
    return OffsetMap([(partition_of(g, t, p), Offset(o)) for g, t, p, o in rows])


def _partitions(rows: Iterable[Found]) -> frozenset[GroupPartition]:
    return frozenset(partition_of(g, t, p) for g, t, p in rows)


def _seek_map(rows: Iterable[Found]) -> SeekMap:
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

    return Parts(keys=keys, part=lambda key: key[2], load=load)


def _contributions(session: Session) -> Parts[ContributionKey, Contribution]:
    def keys() -> Iterable[ContributionKey]:
        return ((Sequence(s), member_of(g, i)) for s, g, i in session.rows(_CONTRIBUTION_KEYS))

    def load(key: ContributionKey) -> dict[ContributionKey, Contribution]:
        rows: dict[MemberId, list[tuple[GroupPartition, Found]]] = {}
        for row in session.rows(_select_map(CONTRIBUTED), number=key[0]):
            partition = partition_of(row[0], row[1], row[2])
            rows.setdefault(MemberId(partition.group, row[3]), []).append((partition, row))
        members = session.rows(select(CONTRIBUTORS, "sequence = :sequence"), sequence=key[0])
        found = dict(map(CONTRIBUTORS.join, members))
        return {k: _contribution(by, rows.get(k[1], [])) for k, by in found.items()}

    return Parts(keys=keys, part=lambda key: key[0], load=load)


def _contribution(by: Contributor, rows: list[tuple[GroupPartition, Found]]) -> Contribution:
    return Contribution(
        incarnation=by.incarnation,
        contributed_at=by.contributed_at,
        offsets=OffsetMap([(p, row[4]) for p, row in rows]),
        committed=OffsetMap([(p, row[5]) for p, row in rows if row[5] is not None]),
        bounds={
            p: LogBounds(start=row[6], end=row[7], topic_id=row[8], leader_epoch=row[9])
            for p, row in rows
            if row[6] is not None
        },
    )
