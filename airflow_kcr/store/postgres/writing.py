"""Writing a decision: the difference between the region as it was and as it is, by arrays, one statement a table.

Nothing that the rule left alone is written, or even read: a mapping that is the same object is unchanged (`lazy`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Final, TypeVar

from sqlalchemy import Table, TextClause, text

from airflow_kcr.protocol.group_members import Outsider
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region.rows import Contribution, Halt, Lease
from airflow_kcr.protocol.region.state import OffsetsForgotten, Region, without
from airflow_kcr.protocol.seek_map import SeekMap
from airflow_kcr.protocol.values import GroupPartition, MemberId, Offset
from airflow_kcr.store.codec import to_json
from airflow_kcr.store.postgres import ledger, tables
from airflow_kcr.store.postgres.columns import PARTITION
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
    Rows,
)
from airflow_kcr.store.postgres.lazy import Changes, changes
from airflow_kcr.store.postgres.reading import HEAD_COLUMNS
from airflow_kcr.store.postgres.row_layout import Layout, Values, array_type, document, is_document
from airflow_kcr.store.postgres.session import Session
from airflow_kcr.store.postgres.tables import event, skip

K = TypeVar("K")
V = TypeVar("V")
N = TypeVar("N", bound=int)
M = TypeVar("M")


class LeaseMovedError(Exception):
    """A lease was renewed between its reading and its writing; the decision was made on what is no longer so."""


_HEAD_VALUES: Final = {c: f"CAST(:{c} AS jsonb)" if is_document(tables.region, c) else f":{c}" for c in HEAD_COLUMNS}
_BOUND_HEAD: Final = ", ".join(f"{c} = {value}" for c, value in _HEAD_VALUES.items())

# name: update_head — the region's own row.
_UPDATE_HEAD: Final = text(f"UPDATE kcr.region SET {_BOUND_HEAD} WHERE id = :region")  # noqa: S608

# name: insert_head — a new region; its name is unique.
_INSERT_HEAD: Final = text(
    f"INSERT INTO kcr.region (name, {', '.join(HEAD_COLUMNS)}) "  # noqa: S608
    f"VALUES (:name, {', '.join(_HEAD_VALUES.values())}) RETURNING id"
)

# name: take_groups — each group is in one region; in one order, so that two declarations can't deadlock.
_TAKE_GROUPS: Final = text(
    "INSERT INTO kcr.consumer_group (region_id, group_id) "
    "SELECT :region, g FROM unnest(CAST(:groups AS text[])) AS g ORDER BY g"
)
_LEAVE_GROUPS: Final = text(
    "DELETE FROM kcr.consumer_group WHERE region_id = :region AND group_id = ANY (CAST(:groups AS text[]))"
)

# name: move_leases — only those that are still what the decision was made on; a renewal needs no region lock.
_MOVE_LEASES: Final = text("""
    UPDATE kcr.lease l SET incarnation = n.incarnation, valid_until = n.valid_until
    FROM unnest(CAST(:groups AS text[]), CAST(:indexes AS bigint[]), CAST(:incarnations AS bigint[]),
                CAST(:untils AS timestamptz[]), CAST(:were AS timestamptz[]))
        AS n (group_id, member_index, incarnation, valid_until, was)
    WHERE l.region_id = :region AND l.group_id = n.group_id AND l.member_index = n.member_index
      AND l.valid_until = n.was
""")


def write(session: Session, before: Region, after: Region) -> Region:
    """Write what a decision changed, its events and its ledger changes; return the region without what was forgotten.

    Raises:
        LeaseMovedError: a lease that the decision replaces was renewed meanwhile; roll back and decide again.
    """
    # What a map was is asked before anything is written: the row of its number would make one that is new seem to be
    # there, without entries.
    maps = (
        _changed_map(OFFSETS, before.offsets, after.offsets, _offset_rows),
        _changed_map(FROZEN, before.frozen, after.frozen, lambda _, held: dict.fromkeys(held, ())),
        _changed_map(ECHOES, before.echoes, after.echoes, _offset_rows),
        _changed_map(SEEKS, before.seek_maps, after.seek_maps, _seek_rows),
    )
    old, new = head_values(before), head_values(after)
    if old != new:
        session.run(_UPDATE_HEAD, **new)
    if before.rules is not after.rules:
        _write_groups(session, before, after)
    _write_leases(session, before.leases, after.leases)
    write_table(session, MEMBERS, changes(before.members, after.members))
    write_table(session, CLAIMS, changes(before.claims, after.claims))
    write_table(session, INITIAL, changes(before.initial, after.initial))
    write_table(session, BOUND_OFFSETS, changes(before.bound_offsets, after.bound_offsets))
    write_table(session, REQUESTS, changes(before.requests, after.requests))
    write_table(session, CHECKPOINTS, changes(before.checkpoints, after.checkpoints))
    write_table(session, RESETS, changes(before.resets, after.resets))
    write_table(session, PERSON_RESETS, changes(before.person_resets, after.person_resets))
    _write_skips(session, changes(before.skips, after.skips))
    for one in maps:
        _write_map(session, one)
    _write_contributions(session, changes(before.contributions, after.contributions))
    _write_events(session, after)
    ledger.apply(session, after.ledger)
    return _forgotten(after)


def write_new(session: Session, region: Region) -> Region:
    """Write a new region, whatever it holds; the session is about it from now on."""
    session.region_id = session.rows(_INSERT_HEAD, name=region.name, **head_values(region))[0][0]
    session.run(_TAKE_GROUPS, groups=sorted(region.rules.groups))
    # What has no rows yet; its own row and groups are there.
    bare = Region(name=region.name, spec=region.spec)
    empty = {f.name: getattr(bare, f.name) for f in fields(Region) if isinstance(getattr(bare, f.name), Mapping)}
    return write(session, replace(region, **empty), region)


def head_values(region: Region) -> dict[str, object]:
    """Return the values of the region's own row, by column."""
    held: dict[str, object] = {
        c: getattr(region, c) for c in HEAD_COLUMNS if not c.startswith(("spec", "next_spec", "halt", "outsiders"))
    }
    return {
        **held,
        "spec": region.spec.text,
        "spec_revision": region.spec.revision,
        "next_spec": region.next_spec and region.next_spec.text,
        "next_spec_revision": region.next_spec and region.next_spec.revision,
        "halt": None if region.halt is None else document(to_json(region.halt, Halt)),
        "outsiders": document(to_json(region.outsiders, tuple[Outsider, ...])) if region.outsiders else None,
    }


def write_table(session: Session, layout: Layout[K, V], changed: Changes[K, V]) -> None:
    """Write the changed rows of one table."""
    if changed.written:
        rows = [layout.split(key, value) for key, value in changed.written.items()]
        _upsert(session, layout.table, layout.key, layout.columns, rows)
    if changed.gone:
        columns = zip(*map(layout.key_values, changed.gone), strict=True)
        session.run(_delete(layout.table, layout.key), **_arrays(columns))


def _upsert(
    session: Session, table: Table, key: tuple[str, ...], columns: tuple[str, ...], rows: Iterable[Values]
) -> None:
    session.run(_upsert_statement(table, key, columns), **_arrays(zip(*rows, strict=True)))


def _insert(session: Session, table: Table, columns: tuple[str, ...], rows: Iterable[Values]) -> None:
    session.run(_insert_statement(table, columns), **_arrays(zip(*rows, strict=True)))


def _arrays(columns: Iterable[tuple[object, ...]]) -> dict[str, object]:
    """Return columns of values as the parameters `c0`, `c1`, … of a statement."""
    return {f"c{n}": list(column) for n, column in enumerate(columns)}


def _unnested(table: Table, columns: tuple[str, ...]) -> str:
    arrays = ", ".join(f"CAST(:c{n} AS {array_type(table, c)})" for n, c in enumerate(columns))
    return f"unnest({arrays}) AS n ({', '.join(columns)})"


def _insertion(table: Table, columns: tuple[str, ...]) -> str:
    chosen = ", ".join(f"CAST(n.{c} AS jsonb)" if is_document(table, c) else f"n.{c}" for c in columns)
    return (
        f"INSERT INTO kcr.{table.name} (region_id, {', '.join(columns)}) "  # noqa: S608 (names of our own tables)
        f"SELECT :region, {chosen} FROM {_unnested(table, columns)}"
    )


@cache
def _insert_statement(table: Table, columns: tuple[str, ...]) -> TextClause:
    """Return the statement that stores new rows, and fails where one is there already."""
    return text(_insertion(table, columns))


@cache
def _upsert_statement(table: Table, key: tuple[str, ...], columns: tuple[str, ...]) -> TextClause:
    """Return the statement that stores rows, each new or in the place of the one with its key."""
    values = [c for c in columns if c not in key]
    replaced = f"DO UPDATE SET {', '.join(f'{c} = excluded.{c}' for c in values)}" if values else "DO NOTHING"
    return text(f"{_insertion(table, columns)} ON CONFLICT ON CONSTRAINT {table.name}_pkey {replaced}")


@cache
def _delete(table: Table, key: tuple[str, ...]) -> TextClause:
    """Return the statement that deletes rows by their keys."""
    same = " AND ".join(f"t.{c} = n.{c}" for c in key)
    return text(f"DELETE FROM kcr.{table.name} t USING {_unnested(table, key)} WHERE t.region_id = :region AND {same}")  # noqa: S608


def _write_groups(session: Session, before: Region, after: Region) -> None:
    gone = sorted(before.rules.groups.keys() - after.rules.groups.keys())
    fresh = sorted(after.rules.groups.keys() - before.rules.groups.keys())
    if gone:
        session.run(_LEAVE_GROUPS, groups=gone)
    if fresh:
        session.run(_TAKE_GROUPS, groups=fresh)


def _write_leases(session: Session, before: Mapping[MemberId, Lease], after: Mapping[MemberId, Lease]) -> None:
    changed = changes(before, after)
    if not changed.written:
        return
    fresh = {m: lease for m, lease in changed.written.items() if m not in before}
    write_table(session, LEASES, Changes(written=fresh))
    moved = {m: lease for m, lease in changed.written.items() if m in before}
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


def _write_skips(session: Session, changed: Changes[GroupPartition, tuple[Offset, ...]]) -> None:
    rows = [(*p, offset) for p, offsets in changed.written.items() for offset in offsets]
    if rows:
        key = (*PARTITION, "skipped_offset")
        _upsert(session, skip, key, key, rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChangedMap:
    """What a decision changed in the maps of one table: rows, by their columns, and the numbers of maps that went."""

    layout: MapLayout
    rows: list[Values]
    gone: tuple[int, ...]


def _changed_map(
    layout: MapLayout, before: Mapping[N, M], after: Mapping[N, M], rows_of: Callable[[M | None, M], Rows]
) -> _ChangedMap:
    """Return the changed entries of the changed maps."""
    changed = changes(before, after)
    rows: list[Values] = []
    for number, held in changed.written.items():
        # Asked for by its key first: to look for the rows of a map that is new would be one more question.
        known = before[number] if number in before else None  # noqa: SIM401
        rows += [(number, *p, *values) for p, values in rows_of(known, held).items()]
    return _ChangedMap(layout=layout, rows=rows, gone=tuple(changed.gone))


def _write_map(session: Session, changed: _ChangedMap) -> None:
    """Write changed entries; a map that is gone takes its rows with it."""
    layout = changed.layout
    key = (layout.number, *PARTITION)
    if changed.rows:
        _upsert(session, layout.table, key, (*key, *layout.values), changed.rows)
    if changed.gone:
        session.run(_delete(layout.table, (layout.number,)), **_arrays([changed.gone]))


def _offset_rows(before: OffsetMap | None, after: OffsetMap) -> Rows:
    known: Mapping[GroupPartition, Offset] = {} if before is None else before
    return {p: (o,) for p, o in after.items() if known.get(p) != o}


def _seek_rows(before: SeekMap | None, after: SeekMap) -> Rows:
    known = {} if before is None else before
    return {
        p: (entry.offset, str(entry.source), entry.current, entry.clamped_from)
        for p, entry in after.items()
        if known.get(p) is not entry
    }


def _write_contributions(session: Session, changed: Changes[ContributionKey, Contribution]) -> None:
    """Write contributions. Bounds and committed offsets are kept for the partitions that were contributed."""
    if not changed.written:
        return
    by = {
        k: Contributor(incarnation=c.incarnation, contributed_at=c.contributed_at) for k, c in changed.written.items()
    }
    write_table(session, CONTRIBUTORS, Changes(written=by))
    rows: list[Values] = []
    for (sequence, member), part in changed.written.items():
        for p, offset in part.offsets.items():
            log = part.bounds.get(p)
            seen = (None,) * 4 if log is None else (log.start, log.end, log.topic_id, log.leader_epoch)
            rows.append((sequence, *p, member.index, offset, part.committed.get(p), *seen))
    if rows:
        _insert(session, CONTRIBUTED.table, (CONTRIBUTED.number, *PARTITION, *CONTRIBUTED.values), rows)


def _write_events(session: Session, after: Region) -> None:
    if not after.events:
        return
    columns = ("number", "at", "epoch", "lineage", "kind", "body")
    rows: list[Values] = [
        (e.number, e.at, e.epoch, e.lineage, e.kind, document(to_json(e.body, type(e.body)))) for e in after.events
    ]
    _insert(session, event, columns, rows)


def _forgotten(region: Region) -> Region:
    """Return the region without the offsets of retired checkpoints, as the ledger's change has deleted them."""
    gone = frozenset(s for c in region.ledger if isinstance(c, OffsetsForgotten) for s in c.sequences)
    if not gone:
        return region
    parts = frozenset(key for key in region.contributions if key[0] in gone)
    return replace(
        region,
        offsets=without(region.offsets, gone),
        echoes=without(region.echoes, gone),
        contributions=without(region.contributions, parts),
    )
