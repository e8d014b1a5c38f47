"""Writing a decision: the difference between the region as it was and as it is, by arrays, all tables in one statement.

Nothing that the rule left alone is written: a mapping, or a row, that is the same object is unchanged.
A region is deleted in pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from functools import cache, lru_cache
from typing import Any, Final, Generic, TypeVar

from psycopg.sql import SQL, Composed, Identifier
from sqlalchemy import Table, TextClause, text

from airflow_kcr.protocol import documents
from airflow_kcr.protocol.observations import ForeignConsumer
from airflow_kcr.protocol.offsets import OffsetMap, SeekMap
from airflow_kcr.protocol.region.rows import Absence, Contribution, Halt, Lease, ResetAnswer, StartFailure
from airflow_kcr.protocol.region.state import Region, without_forgotten
from airflow_kcr.protocol.values import GroupPartition, MemberId, Offset, RegionName
from airflow_kcr.store.postgres import layouts, ledger, tables
from airflow_kcr.store.postgres.layouts import (
    BOUNDARY_OFFSETS,
    CHECKPOINTS,
    CLAIMS,
    CONTRIBUTED,
    CONTRIBUTORS,
    FROZEN,
    GROUPS,
    INITIAL,
    LEASES,
    MEMBERS,
    OFFSETS,
    PERSON_RESETS,
    READ_BACKS,
    REQUESTS,
    RESETS,
    SEEKS,
    ContributionKey,
    Contributor,
    MapLayout,
    Rows,
)
from airflow_kcr.store.postgres.region_reads import HEAD_COLUMNS
from airflow_kcr.store.postgres.row_layout import (
    Layout,
    Values,
    arrays,
    as_json,
    document,
    given_arrays,
    given_json,
    listed,
    name_of,
    named,
    record,
    unnested,
)
from airflow_kcr.store.postgres.session import Session, composed
from airflow_kcr.store.postgres.tables import PARTITION, event, skip

K = TypeVar("K")
V = TypeVar("V")
N = TypeVar("N", bound=int)
M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class Changes(Generic[K, V]):
    """What a decision changed in one table."""

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


_SETTLED: Final = frozenset({"uid", "spec", "spec_revision", "next_spec", "next_spec_revision"})
"""The columns of the region's own row that seldom change; a spec is long."""

_MOVING: Final = tuple(c for c in HEAD_COLUMNS if c not in _SETTLED)


def _update_head(columns: tuple[str, ...]) -> str:
    update = SQL(
        "UPDATE kcr.region r SET {values} FROM json_to_record(CAST(:head AS json)) AS {record} WHERE r.id = :region"
    )
    return update.format(values=_set(columns, "n"), record=record(tables.region, columns)).as_string()


def _set(columns: Iterable[str], alias: str) -> Composed:
    return listed(SQL("{} = {}").format(Identifier(c), Identifier(alias, c)) for c in columns)


# name: update_head — the region's own row.
_UPDATE_HEAD: Final = {columns: _update_head(columns) for columns in (_MOVING, HEAD_COLUMNS)}

# name: insert_head — a new region; its name is unique.
_INSERT_HEAD: Final = composed(
    SQL(
        "INSERT INTO kcr.region (name, {columns}) "
        "SELECT :name, {values} FROM json_to_record(CAST(:head AS json)) AS {record} RETURNING id"
    ).format(columns=named(HEAD_COLUMNS), values=named(HEAD_COLUMNS, "n"), record=record(tables.region, HEAD_COLUMNS))
)

# name: move_leases — only those that are still what the decision was made on; a renewal needs no region lock.
_MOVE_LEASES: Final = text("""
    UPDATE kcr.lease l SET incarnation = n.incarnation, valid_until = n.valid_until, lacks = ''
    FROM unnest(CAST(:groups AS text[]), CAST(:indexes AS bigint[]), CAST(:incarnations AS bigint[]),
                CAST(:untils AS timestamptz[]), CAST(:were AS timestamptz[]))
        AS n (group_id, member_index, incarnation, valid_until, was)
    WHERE l.region_id = :region AND l.group_id = n.group_id AND l.member_index = n.member_index
      AND l.valid_until = n.was
""")


@dataclass(frozen=True, slots=True)
class Write:
    """One table's part of what is written."""

    sql: str
    """It writes; its parameters are named after the table, so that no two parts of one decision share one."""

    values: Mapping[str, object]


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
        *_table(MEMBERS, changes(before.members, after.members)),
        *_table(CLAIMS, changes(before.claims, after.claims)),
        *_table(INITIAL, changes(before.initial, after.initial)),
        *_table(BOUNDARY_OFFSETS, changes(before.boundary_offsets, after.boundary_offsets)),
        *_table(REQUESTS, changes(before.requests, after.requests)),
        *_table(CHECKPOINTS, changes(before.checkpoints, after.checkpoints)),
        *_table(RESETS, changes(before.resets, after.resets)),
        *_table(PERSON_RESETS, changes(before.person_resets, after.person_resets)),
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
    return without_forgotten(after, after.ledger)


@lru_cache(maxsize=512)
def _all_of(parts: tuple[str, ...]) -> TextClause:
    """Return the one statement that does what all parts do; the rows of its last part are the statement's.

    Every part sees the tables as they were before it, which is why none may need what another writes; foreign keys are
    checked when all are done.
    """
    *first, last = parts
    named = ", ".join(f"w{number} AS ({part})" for number, part in enumerate(first))
    return text(f"WITH {named} {last}" if named else last)


def write_new(session: Session, region: Region) -> Region:
    """Write a new region, whatever it holds; the session is about it from now on."""
    session.region_id = session.rows(_INSERT_HEAD, name=region.name, head=document(head_values(region)))[0][0]
    for part in _table(GROUPS, Changes(written=region.own_groups)):
        session.run(text(part.sql), **part.values)
    # What has no rows yet; its own row and groups are there.
    bare = Region(name=region.name, spec=region.spec)
    empty = {f.name: getattr(bare, f.name) for f in fields(Region) if isinstance(getattr(bare, f.name), Mapping)}
    return write(session, replace(region, **{**empty, "clusters": region.clusters}), region)


def _head(before: Region, after: Region) -> Iterator[Write]:
    old, new = head_values(before), head_values(after)
    if old == new:
        return
    is_spec_new = any(old[c] != new[c] for c in HEAD_COLUMNS if c not in _MOVING)
    columns = HEAD_COLUMNS if is_spec_new else _MOVING
    yield Write(_UPDATE_HEAD[columns], {"head": document({c: new[c] for c in columns})})


_AS_JSON: Final = {"halt", "foreign_consumers", "start_failures", "unowned", "reset_answers"}


def head_values(region: Region) -> dict[str, object]:
    """Return the values of the region's own row, by column, as they are written in JSON."""
    return {
        **{c: getattr(region, c) for c in _MOVING if c not in _AS_JSON},
        "uid": region.region_id,
        "spec": region.spec.text,
        "spec_revision": region.spec.revision,
        "next_spec": region.next_spec and region.next_spec.text,
        "next_spec_revision": region.next_spec and region.next_spec.revision,
        "halt": None if region.halt is None else documents.write(region.halt, Halt),
        "foreign_consumers": documents.write(region.foreign_consumers, tuple[ForeignConsumer, ...])
        if region.foreign_consumers
        else None,
        "start_failures": documents.write(region.start_failures, tuple[StartFailure, ...])
        if region.start_failures
        else None,
        "reset_answers": documents.write(region.reset_answers, tuple[ResetAnswer, ...])
        if region.reset_answers
        else None,
        "unowned": documents.write({**region.unowned, **region.absent}, Mapping[GroupPartition, datetime | Absence])
        if region.unowned or region.absent
        else None,
    }


def _table(layout: Layout[K, V], changed: Changes[K, V]) -> Iterator[Write]:
    """Yield what writes the changed rows of one table."""
    if changed.written:
        rows = [layout.split(key, value) for key, value in changed.written.items()]
        yield Write(_upsert_rows(layout), layout.bound(rows))
    if changed.gone:
        yield _delete(layout.table, layout.key, zip(*map(layout.key_values, changed.gone), strict=True))


def _delete(table: Table, key: tuple[str, ...], columns: Iterable[tuple[object, ...]]) -> Write:
    return Write(_delete_sql(table, key), arrays(_gone(table), columns))


def _gone(table: Table) -> str:
    return f"{table.name}_gone"


def _insert(table: Table, columns: tuple[str, ...], given: Composed) -> Composed:
    """Return what stores new rows, and fails where one is there already."""
    return SQL("INSERT INTO {table} (region_id, {columns}) {given}").format(
        table=name_of(table), columns=named(columns), given=given
    )


def _upsert(table: Table, key: tuple[str, ...], columns: tuple[str, ...], given: Composed) -> str:
    """Return what stores rows, each new or in the place of the one with its key."""
    values = [c for c in columns if c not in key]
    replaced = SQL("DO UPDATE SET {}").format(_set(values, "excluded")) if values else SQL("DO NOTHING")
    upsert = SQL("{insert} ON CONFLICT ON CONSTRAINT {key} {replaced}").format(
        insert=_insert(table, columns, given), key=Identifier(f"{table.name}_pkey"), replaced=replaced
    )
    return upsert.as_string()


@cache
def _upsert_rows(layout: Layout[Any, Any]) -> str:
    return _upsert(layout.table, layout.key, layout.columns, layout.given())


def _upsert_map(layout: MapLayout) -> str:
    key = (layout.number, *PARTITION)
    columns = (*key, *layout.values)
    given = given_arrays(layout.table, columns, [made for _, made in layout.derived])
    return _upsert(layout.table, key, (*columns, *(name for name, _ in layout.derived)), given)


# name: upsert_map — of one table each.
_UPSERT_MAP: Final = {layout.table: _upsert_map(layout) for layout in (OFFSETS, FROZEN, READ_BACKS, SEEKS)}

_SKIP_KEY: Final = (*PARTITION, "skipped_offset")

# name: upsert_skips — records to step over.
_UPSERT_SKIPS: Final = _upsert(skip, _SKIP_KEY, _SKIP_KEY, given_arrays(skip, _SKIP_KEY))

_CONTRIBUTED: Final = (CONTRIBUTED.number, *PARTITION, *CONTRIBUTED.values)

# name: insert_contributed — by partition; that one has contributed for it already is refused by the table's key.
_INSERT_CONTRIBUTED: Final = _insert(
    CONTRIBUTED.table, _CONTRIBUTED, given_arrays(CONTRIBUTED.table, _CONTRIBUTED)
).as_string()

_EVENT: Final = ("number", "at", "epoch", "timeline", "kind", "body")

# name: insert_events — in the order of their numbers.
_INSERT_EVENTS: Final = _insert(event, _EVENT, given_json(event, _EVENT)).as_string()


@cache
def _delete_sql(table: Table, key: tuple[str, ...]) -> str:
    """Return what deletes rows by their keys, which are fenced as in `admission`: walked through once."""
    delete = SQL("""
        DELETE FROM {table} t USING (SELECT CAST(:region AS bigint) AS region_id, n.* FROM {gone} OFFSET 0) n
        WHERE {same}
    """)
    same = (SQL("{} = {}").format(Identifier("t", c), Identifier("n", c)) for c in ("region_id", *key))
    return delete.format(
        table=name_of(table), gone=unnested(table, key, _gone(table)), same=SQL(" AND ").join(same)
    ).as_string()


def _fresh(before: Mapping[MemberId, Lease], after: Mapping[MemberId, Lease]) -> Changes[MemberId, Lease]:
    """Return the leases of members that had none; a lease never goes."""
    written = changes(before, after).written
    return Changes(written={m: lease for m, lease in written.items() if m not in before})


def _move_leases(session: Session, before: Mapping[MemberId, Lease], after: Mapping[MemberId, Lease]) -> None:
    moved = {m: lease for m, lease in changes(before, after).written.items() if m in before}
    if not moved:
        return
    touched = session.run(
        _MOVE_LEASES,
        groups=[m.group for m in moved],
        indexes=[m.index for m in moved],
        incarnations=[lease.incarnation for lease in moved.values()],
        untils=[lease.until for lease in moved.values()],
        were=[before[m].until for m in moved],
    )
    if touched != len(moved):
        raise LeaseMovedError


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
        yield Write(_UPSERT_MAP[layout.table], arrays(layout.table.name, zip(*rows, strict=True)))
    if changed.gone:
        yield _delete(layout.table, (layout.number,), [tuple(changed.gone)])


def _offset_rows(before: OffsetMap | None, after: OffsetMap) -> Rows:
    known: Mapping[GroupPartition, Offset] = {} if before is None else before
    return {p: (o,) for p, o in after.items() if known.get(p) != o}


def _seek_rows(before: SeekMap | None, after: SeekMap) -> Rows:
    known = {} if before is None else before
    return {
        p: (entry.offset, str(entry.source), entry.current, entry.clamped_from, entry.recreated)
        for p, entry in after.items()
        if known.get(p) is not entry
    }


def _contributions(changed: Changes[ContributionKey, Contribution]) -> Iterator[Write]:
    """Yield what writes contributions, with the log bounds and committed offsets of their partitions."""
    if not changed.written:
        return
    by = {
        k: Contributor(incarnation=c.incarnation, contributed_at=c.contributed_at) for k, c in changed.written.items()
    }
    yield from _table(CONTRIBUTORS, Changes(written=by))
    rows: list[Values] = []
    for (sequence, member), part in changed.written.items():
        for p, offset in part.offsets.items():
            log = part.bounds.get(p)
            seen = (None,) * 4 if log is None else (log.start, log.end, log.topic_id, log.leader_epoch)
            rows.append((sequence, *p, member.index, offset, part.committed.get(p), *seen))
    if rows:
        yield Write(_INSERT_CONTRIBUTED, arrays(CONTRIBUTED.table.name, zip(*rows, strict=True)))


def _events(after: Region) -> Iterator[Write]:
    if not after.events:
        return
    rows: list[Values] = [
        (e.number, e.at, e.epoch, e.timeline, e.kind, documents.write(e.body, type(e.body))) for e in after.events
    ]
    yield Write(_INSERT_EVENTS, {event.name: as_json(_EVENT, rows)})


# -- deleting a region ---------------------------------------------------------------------------------------------
#
# In pieces: no statement grows with what the region has been through, and any may be the last.
#
# The first transaction takes the region's name and groups away, so that no verb finds it any more. What is left of it
# under `doomed` goes piece by piece; another deletion continues an interrupted one.

PIECE: Final = 10_000
"""Rows that a transaction deletes of one table."""

_DOOMED: Final = " (being deleted)"
"""No region that a spec declares has a space in its name."""

# name: doom — the region goes out of sight; its groups may be another's at once.
_DOOM: Final = (
    text("DELETE FROM kcr.consumer_group WHERE region_id = :region"),
    text("UPDATE kcr.region SET name = :doomed WHERE id = :region"),
)

_FIND: Final = text("SELECT id FROM kcr.region WHERE name = :doomed")

# name: doomed_batches — the next ones, which no foreign key leads to: their ranges go first.
_BATCHES: Final = text(
    "SELECT number FROM kcr.batch WHERE region_id = :region AND number > :after ORDER BY number LIMIT :limit"
)
_RANGES: Final = text("DELETE FROM kcr.batch_range WHERE batch_number = ANY (CAST(:batches AS bigint[]))")
_FORGET_BATCHES: Final = text("DELETE FROM kcr.batch WHERE number = ANY (CAST(:batches AS bigint[]))")

_FORGET: Final = text("DELETE FROM kcr.region WHERE id = :region")


def doomed(name: RegionName) -> str:
    """Return the name that the rest of a region has while it is deleted."""
    return f"{name}{_DOOMED}"


def is_doomed(name: str) -> bool:
    """Whether a name is that of what is left of a region."""
    return name.endswith(_DOOMED)


def doom(session: Session, name: RegionName) -> None:
    """Take a region out of sight, in the transaction that has found it deletable."""
    for statement in _DOOM:
        session.run(statement, doomed=doomed(name))


def find_doomed(session: Session, name: RegionName) -> bool:
    """Make the session about what is left of a region; False: nothing is."""
    found = session.rows(_FIND, doomed=doomed(name))
    if found:
        session.region_id = found[0][0]
    return bool(found)


class Deletion:
    """Deletes what is left of a region, a piece at a time; each piece needs a transaction of its own."""

    def __init__(self) -> None:
        self._left: Iterator[Table] = iter([t for t in reversed(tables.metadata.sorted_tables) if t not in _APART])
        self._table: Table | None = tables.batch
        self._after: tuple[object, ...] = (0,)
        self._width = 100
        """Ranges that the widest batch seen so far has."""

    def forget_some(self, session: Session) -> bool:
        """Delete the next piece; return whether there may be more."""
        session.rows(layouts.IN_ORDER)
        if self._table is None:
            session.run(_FORGET)
            return False
        more = self._forget_batches(session) if self._table is tables.batch else self._forget_rows(session, self._table)
        if not more:
            self._table, self._after = next(self._left, None), ()
        return True

    def _forget_batches(self, session: Session) -> bool:
        limit = max(PIECE // self._width, 1)
        batches = [number for (number,) in session.rows(_BATCHES, after=self._after[0], limit=limit)]
        if not batches:
            return False
        ranges = session.run(_RANGES, batches=batches)
        session.run(_FORGET_BATCHES, batches=batches)
        self._width = max(-(-ranges // len(batches)), 1)
        self._after = (batches[-1],)
        return len(batches) == limit

    def _forget_rows(self, session: Session, table: Table) -> bool:
        given = {f"after_{n}": value for n, value in enumerate(self._after)}
        found = session.rows(_piece(table, after=bool(given)), limit=PIECE, **given)
        self._after = tuple(found[0]) if found else ()
        return bool(found)


_APART: Final = {tables.region, tables.history_start, tables.batch, tables.batch_range}
"""Those deleted by themselves, and the one that goes with the region's row."""


def _piece(table: Table, *, after: bool) -> TextClause:
    """Return what deletes the next rows of a table in the order of its key, and answers with the key of the last one.

    Beyond those that were deleted before: to begin again with each piece would be to step over all of them each time.
    """
    columns = [c.name for c in table.primary_key.columns if c.name != "region_id"]
    key = named(columns)
    last = listed(SQL(f":after_{n}") for n in range(len(columns)))
    return composed(
        SQL("""
        WITH gone AS (
            DELETE FROM {table} WHERE ctid = ANY (ARRAY(
                SELECT ctid FROM {table} WHERE region_id = :region {beyond} ORDER BY {key} LIMIT :limit
            )) RETURNING {key}
        )
        SELECT {key} FROM gone ORDER BY {newest} LIMIT 1
    """).format(
            table=name_of(table),
            beyond=SQL("AND ({}) > ({})").format(key, last) if after else SQL(""),
            key=key,
            newest=listed(SQL("{} DESC").format(Identifier(c)) for c in columns),
        )
    )
