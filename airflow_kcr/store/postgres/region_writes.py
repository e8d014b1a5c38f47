"""Writing a decision: the difference between the region as it was and as it is, by arrays, all tables in one statement.

Nothing that the rule left alone is written: a mapping, or a row, that is the same object is unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from airflow_kcr.protocol.offsets import OffsetMap, SeekMap
from airflow_kcr.protocol.region.rows import Claim, Contribution, Lease
from airflow_kcr.protocol.region.state import BatchClosed, BatchStarted, Region
from airflow_kcr.protocol.values import GroupPartition, MemberId, Offset
from airflow_kcr.store.postgres import layouts, leases, ledger, tables
from airflow_kcr.store.postgres.layouts import (
    CONTRIBUTED,
    CONTRIBUTORS,
    EVENT_COLUMNS,
    FROZEN,
    GROUPS,
    HEAD_COLUMNS,
    LEASES,
    OFFSETS,
    READ_BACKS,
    SEEKS,
    SPEC_COLUMNS,
    ContributionKey,
    Contributor,
    head_values,
)
from airflow_kcr.store.postgres.row_layout import (
    Layout,
    MapLayout,
    Rows,
    Values,
    arrays,
    as_json,
    assigned,
    delete,
    document,
    given_arrays,
    given_json,
    insert,
    named,
    partition_columns,
    record,
    upsert,
)
from airflow_kcr.store.postgres.session import Session
from airflow_kcr.store.postgres.statements import Statement
from airflow_kcr.store.postgres.tables import PARTITION, event, skip

if TYPE_CHECKING:
    from sqlalchemy import Table

K = TypeVar("K")
V = TypeVar("V")
N = TypeVar("N", bound=int)
M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class Changes(Generic[K, V]):
    """The rows of one table that a decision changed."""

    written: Mapping[K, V] = field(default_factory=dict)
    gone: frozenset[K] = frozenset()


def changes(before: Mapping[K, V], after: Mapping[K, V]) -> Changes[K, V]:
    """Return what `after`, a decision's mapping, has changed in `before`, the store's.

    A mapping, or a row, that is the same object is unchanged, whatever it costs to compare; an equal row is, too.
    """
    if after is before:
        return Changes()
    written = {k: v for k, v in after.items() if (held := before.get(k)) is not v and held != v}
    return Changes(written=written, gone=frozenset(before.keys() - after.keys()))


class LeaseMovedError(Exception):
    """A lease was renewed between its reading and its writing; the decision was made on what is no longer so."""


@dataclass(frozen=True, slots=True)
class Write:
    """One table's part of what is written."""

    sql: str
    """It writes; its parameters are named after the table, so that no two parts of one decision share one."""

    values: Mapping[str, object]


_TABLES: Final[tuple[tuple[str, Layout[Any, Any]], ...]] = (
    ("members", layouts.MEMBERS),
    ("claims", layouts.CLAIMS),
    ("initial", layouts.INITIAL),
    ("boundary_offsets", layouts.BOUNDARY_OFFSETS),
    ("requests", layouts.REQUESTS),
    ("checkpoints", layouts.CHECKPOINTS),
    ("resets", layouts.RESETS),
    ("person_resets", layouts.PERSON_RESETS),
)
"""Mappings of a region that are written as they are, row by row."""


def write(session: Session, before: Region, after: Region, *then: Write) -> Region:
    """Write what a decision changed, its events and its ledger changes; return the region without what was forgotten.

    Args:
        session: the transaction.
        before: the region as read.
        after: the region as decided.
        then: another statement to send along; rows that it returns are ignored.

    Raises:
        LeaseMovedError: a lease that the decision replaces was renewed meanwhile; roll back and decide again.
    """
    _move_leases(session, before.leases, after.leases)
    parts = [
        *_head(before, after),
        # Each group of a cluster is in one region; in one order, so that two declarations can't deadlock.
        *_table(GROUPS, changes(before.own_groups, after.own_groups)),
        *_table(LEASES, _fresh(before.leases, after.leases)),
        *(
            part
            for name, layout in _TABLES
            for part in _table(layout, changes(getattr(before, name), getattr(after, name)))
        ),
        *_skips(before.skips, after.skips),
        *_map(OFFSETS, before.offsets, after.offsets, _offset_rows),
        *_map(FROZEN, before.frozen, after.frozen, lambda _, held: dict.fromkeys(held, ())),
        *_map(READ_BACKS, before.read_backs, after.read_backs, _offset_rows),
        *_map(SEEKS, before.seek_maps, after.seek_maps, _seek_rows),
        *_contributions(changes(before.contributions, after.contributions)),
        *_events(after),
        *then,
    ]
    if parts:
        values = {name: value for part in parts for name, value in part.values.items()}
        session.run(_all_of(tuple(part.sql for part in parts)), **values)
    ledger.apply(session, after.ledger)
    return after.without_forgotten(after.ledger)


@lru_cache(maxsize=512)
def _all_of(parts: tuple[str, ...]) -> Statement:
    """Return the one statement that does what all parts do; the rows of its last part are the statement's.

    Every part sees the tables as they were before it, which is why none may need what another writes; foreign keys are
    checked when all are done.
    """
    *first, last = parts
    named = ", ".join(f"w{number} AS ({part})" for number, part in enumerate(first))
    return Statement(f"WITH {named} {last}" if named else last)


def write_new(session: Session, region: Region) -> Region:
    """Write a new region, whatever it holds; the session is about it from now on."""
    session.region_id = session.rows(_INSERT_HEAD, name=region.name, head=document(head_values(region)))[0][0]
    for part in _table(GROUPS, Changes(written=region.own_groups)):
        session.run(Statement(part.sql), **part.values)
    # What has no rows yet; its own row and groups are there.
    bare = Region(name=region.name, region_id=region.region_id, spec=region.spec)
    empty = {f.name: getattr(bare, f.name) for f in fields(Region) if isinstance(getattr(bare, f.name), Mapping)}
    return write(session, replace(region, **{**empty, "clusters": region.clusters}), region)


def write_batch(session: Session, before: Region, after: Region) -> None:
    """Write what a batch's start or finish decided: positions of claims, and the ledger; in one statement."""
    moved = changes(before.claims, after.claims).written
    match after.ledger:
        case (BatchStarted(batch=batch),) if moved.keys() == batch.ranges.keys():
            # One set of arrays for both: the claims that move are those of the ranges, in their order.
            moved = {partition: moved[partition] for partition in batch.ranges}
            session.run(ledger.SQL["start_and_move"], **layouts.started_columns(batch), **_moved_columns(moved))
        case (BatchClosed() as change,):
            session.run(ledger.SQL["close_and_move"], **ledger.closed_columns([change]), **_moved_columns(moved))
        case () if not moved:
            pass  # asked again: nothing is left to do
        case other:
            raise RuntimeError(f"an admission begins or ends one batch, and nothing else: {other}")


def _moved_columns(moved: Mapping[GroupPartition, Claim]) -> dict[str, object]:
    return {
        **partition_columns(moved),
        "positions": [c.position for c in moved.values()],
        "started": [c.started_to for c in moved.values()],
    }


# The region's own row

_MOVING: Final = tuple(c for c in HEAD_COLUMNS if c not in SPEC_COLUMNS)


def _update_head(columns: tuple[str, ...]) -> str:
    given = f"json_to_record(CAST(:head AS json)) AS {record(tables.region, columns)}"
    return f"UPDATE kcr.region r SET {assigned(columns, 'n')} FROM {given} WHERE r.id = :region"


_UPDATE_HEAD: Final = {columns: _update_head(columns) for columns in (_MOVING, HEAD_COLUMNS)}

_INSERT_HEAD: Final = Statement(
    f"INSERT INTO kcr.region (name, {named(HEAD_COLUMNS)}) SELECT :name, {named(HEAD_COLUMNS, 'n')} "
    f"FROM json_to_record(CAST(:head AS json)) AS {record(tables.region, HEAD_COLUMNS)} RETURNING id"
)
"""A new region; its name is unique."""


def _head(before: Region, after: Region) -> Iterator[Write]:
    old, new = head_values(before), head_values(after)
    if old == new:
        return
    columns = HEAD_COLUMNS if any(old[c] != new[c] for c in SPEC_COLUMNS) else _MOVING
    yield Write(_UPDATE_HEAD[columns], {"head": document({c: new[c] for c in columns})})


# Tables by their layouts


def _table(layout: Layout[K, V], changed: Changes[K, V]) -> Iterator[Write]:
    """Yield what writes the changed rows of one table."""
    if changed.written:
        rows = [layout.split(key, value) for key, value in changed.written.items()]
        yield Write(_upsert_rows(layout), layout.bound(rows))
    if changed.gone:
        yield _delete(layout.table, layout.key, zip(*map(layout.key_values, changed.gone), strict=True))


@cache
def _upsert_rows(layout: Layout[Any, Any]) -> str:
    return upsert(layout.table, layout.key, layout.columns, layout.given())


def _delete(table: Table, key: tuple[str, ...], columns: Iterable[tuple[object, ...]]) -> Write:
    return Write(delete(table, key), arrays(f"{table.name}_gone", columns))


def _map(
    layout: MapLayout, before: Mapping[N, M], after: Mapping[N, M], rows_of: Callable[[M | None, M], Rows]
) -> Iterator[Write]:
    """Yield what writes the changed entries of the changed maps; a map that is gone takes its rows with it.

    A map that was not read with the region is written whole: to ask what is there already would be one more question.
    """
    changed = changes(before, after)
    rows: list[Values] = []
    for number, held in changed.written.items():
        rows += [(number, *p, *values) for p, values in rows_of(before.get(number), held).items()]
    if rows:
        yield Write(_upsert_map(layout), arrays(layout.table.name, zip(*rows, strict=True)))
    if changed.gone:
        yield _delete(layout.table, (layout.number,), [tuple(changed.gone)])


@cache
def _upsert_map(layout: MapLayout) -> str:
    key = (layout.number, *PARTITION)
    columns = (*key, *layout.values)
    given = given_arrays(layout.table, columns, [made for _, made in layout.derived])
    return upsert(layout.table, key, (*columns, *(name for name, _ in layout.derived)), given)


def _offset_rows(before: OffsetMap | None, after: OffsetMap) -> Rows:
    known: Mapping[GroupPartition, Offset] = {} if before is None else before
    return {p: (o,) for p, o in after.items() if known.get(p) != o}


def _seek_rows(before: SeekMap | None, after: SeekMap) -> Rows:
    known = {} if before is None else before
    return {p: layouts.seek_values(entry) for p, entry in after.items() if known.get(p) is not entry}


# Leases, skips, contributions, events


def _fresh(before: Mapping[MemberId, Lease], after: Mapping[MemberId, Lease]) -> Changes[MemberId, Lease]:
    """Return the leases of members that had none; a lease never goes."""
    written = changes(before, after).written
    return Changes(written={m: lease for m, lease in written.items() if m not in before})


def _move_leases(session: Session, before: Mapping[MemberId, Lease], after: Mapping[MemberId, Lease]) -> None:
    moved = {m: lease for m, lease in changes(before, after).written.items() if m in before}
    if not moved:
        return
    touched = session.run(
        leases.SQL["move"],
        groups=[m.group for m in moved],
        indexes=[m.index for m in moved],
        incarnations=[lease.incarnation for lease in moved.values()],
        untils=[lease.until for lease in moved.values()],
        were=[before[m].until for m in moved],
    )
    if touched != len(moved):
        raise LeaseMovedError


_SKIP_KEY: Final = (*PARTITION, "skipped_offset")
_UPSERT_SKIPS: Final = upsert(skip, _SKIP_KEY, _SKIP_KEY, given_arrays(skip, _SKIP_KEY))


def _skips(
    before: Mapping[GroupPartition, tuple[Offset, ...]], after: Mapping[GroupPartition, tuple[Offset, ...]]
) -> Iterator[Write]:
    changed = changes(before, after)
    rows = [(*p, offset) for p, offsets in changed.written.items() for offset in offsets]
    if rows:
        yield Write(_UPSERT_SKIPS, arrays(skip.name, zip(*rows, strict=True)))
    gone = [
        (*p, offset)
        for p in (*changed.gone, *changed.written)
        for offset in before.get(p, ())
        if offset not in after.get(p, ())
    ]
    if gone:
        yield _delete(skip, _SKIP_KEY, zip(*gone, strict=True))


_CONTRIBUTED: Final = (CONTRIBUTED.number, *PARTITION, *CONTRIBUTED.values)
_INSERT_CONTRIBUTED: Final = insert(CONTRIBUTED.table, _CONTRIBUTED, given_arrays(CONTRIBUTED.table, _CONTRIBUTED))
"""By partition; that one has contributed for it already is refused by the table's key."""


def _contributions(changed: Changes[ContributionKey, Contribution]) -> Iterator[Write]:
    """Yield what writes contributions, with the log bounds and committed offsets of their partitions."""
    if not changed.written:
        return
    by = {
        k: Contributor(incarnation=c.incarnation, contributed_at=c.contributed_at) for k, c in changed.written.items()
    }
    yield from _table(CONTRIBUTORS, Changes(written=by))
    rows = [row for (n, member), part in changed.written.items() for row in layouts.contributed_rows(n, member, part)]
    if rows:
        yield Write(_INSERT_CONTRIBUTED, arrays(CONTRIBUTED.table.name, zip(*rows, strict=True)))


_INSERT_EVENTS: Final = insert(event, EVENT_COLUMNS, given_json(event, EVENT_COLUMNS))
"""In the order of their numbers."""


def _events(after: Region) -> Iterator[Write]:
    if after.events:
        yield Write(_INSERT_EVENTS, {event.name: as_json(EVENT_COLUMNS, map(layouts.event_values, after.events))})
