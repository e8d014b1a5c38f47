"""Writing a decision: the difference between the region as it was and as it is, by arrays, all tables in one statement.

Nothing that the rule left alone is written: a mapping, or a row, that is the same object is unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, Final, Generic, TypeVar

from airflow_kcr.protocol.offsets import OffsetMap, SeekMap
from airflow_kcr.protocol.region.rows import Batch, Claim, Contribution, Lease
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.values import ClusterId, Epoch, GroupId, GroupPartition, MemberId, Offset
from airflow_kcr.store.postgres import history, layouts, leases, ledger, row_layout
from airflow_kcr.store.postgres.region_reads import SQL
from airflow_kcr.store.postgres.session import Session
from airflow_kcr.store.postgres.statements import Statement

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


_TABLES: Final[tuple[tuple[str, row_layout.Layout[Any, Any]], ...]] = (
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
        *_groups(changes(before.own_groups, after.own_groups)),
        *_rows(layouts.LEASES, _fresh(before.leases, after.leases)),
        *(
            part
            for name, layout in _TABLES
            for part in _rows(layout, changes(getattr(before, name), getattr(after, name)))
        ),
        *_skips(before.skips, after.skips),
        *_map(layouts.OFFSETS, before.offsets, after.offsets, _moved),
        *_map(layouts.FROZEN, before.frozen, after.frozen, lambda _, held: dict.fromkeys(held, ())),
        *_map(layouts.READ_BACKS, before.read_backs, after.read_backs, _moved),
        *_seeks(before.seek_maps, after.seek_maps),
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
    head = row_layout.document(layouts.head_values(region))
    session.region_id = session.rows(SQL["insert_head"], name=region.name, head=head)[0][0]
    for part in _groups(Changes(written=region.own_groups)):
        session.run(Statement(part.sql), **part.values)
    # What has no rows yet; its own row and groups are there.
    bare = Region(name=region.name, region_id=region.region_id, spec=region.spec)
    empty = {f.name: getattr(bare, f.name) for f in fields(Region) if isinstance(getattr(bare, f.name), Mapping)}
    return write(session, replace(region, **{**empty, "clusters": region.clusters}), region)


def write_batch(session: Session, before: Region, after: Region) -> None:
    """Write what a batch's start or finish decided: positions of claims, and the ledger; in one statement."""
    moved = changes(before.claims, after.claims).written
    match after.ledger:
        case (Batch(outcome=None) as batch,) if moved.keys() == batch.ranges.keys():
            # One set of arrays for both: the claims that move are those of the ranges, in their order.
            moved = {partition: moved[partition] for partition in batch.ranges}
            session.run(ledger.SQL["start_and_move"], **layouts.started_columns(batch), **_moved_columns(moved))
        case (Batch() as batch,) if batch.outcome is not None:
            session.run(ledger.SQL["close_and_move"], **ledger.closed_columns([batch]), **_moved_columns(moved))
        case () if not moved:
            pass  # asked again: nothing is left to do
        case other:
            raise RuntimeError(f"an admission begins or ends one batch, and nothing else: {other}")


def _moved_columns(moved: Mapping[GroupPartition, Claim]) -> dict[str, object]:
    return {
        **row_layout.partition_columns(moved),
        "positions": [c.position for c in moved.values()],
        "started": [c.started_to for c in moved.values()],
    }


def _head(before: Region, after: Region) -> Iterator[Write]:
    old, new = layouts.head_values(before), layouts.head_values(after)
    if any(old[c] != new[c] for c in layouts.SPEC_COLUMNS):
        yield Write(SQL["update_head"].sql, {"head": row_layout.document(new)})
    elif old != new:
        yield Write(
            SQL["update_moving"].sql, {"head": row_layout.document({c: new[c] for c in layouts.MOVING_COLUMNS})}
        )


# Tables by their layouts


def _changed(
    table: row_layout.TableLayout, columns: row_layout.Columns, key: tuple[str, ...], gone: row_layout.Columns
) -> Iterator[Write]:
    """Yield what writes rows of a table, and what deletes those of some keys; without rows, there are no columns."""
    if columns:
        yield Write(table.upsert, table.bound(columns))
    if gone:
        yield Write(table.delete(key), row_layout.arrays(f"{table.name}_gone", gone))


def _rows(layout: row_layout.Layout[K, V], changed: Changes[K, V]) -> Iterator[Write]:
    """Yield what writes the changed rows of a mapping."""
    columns = layout.split(changed.written) if changed.written else ()
    return _changed(layout, columns, layout.key, layout.split_keys(changed.gone) if changed.gone else ())


def _map(
    table: row_layout.TableLayout,
    before: Mapping[N, M],
    after: Mapping[N, M],
    rows_of: Callable[[M | None, M], Mapping[GroupPartition, row_layout.Values]],
) -> Iterator[Write]:
    """Yield what writes the changed entries of the changed maps; a map that is gone takes its rows with it.

    A map that was not read with the region is written whole: to ask what is there already would be one more question.
    """
    changed = changes(before, after)
    rows = [
        (number, *p, *values)
        for number, held in changed.written.items()
        for p, values in rows_of(before.get(number), held).items()
    ]
    return _changed(table, list(zip(*rows, strict=True)), table.key[:1], [[*changed.gone]] if changed.gone else ())


def _moved(before: OffsetMap | None, after: OffsetMap) -> dict[GroupPartition, row_layout.Values]:
    known: Mapping[GroupPartition, Offset] = {} if before is None else before
    return {p: (o,) for p, o in after.items() if known.get(p) != o}


def _seeks(before: Mapping[Epoch, SeekMap], after: Mapping[Epoch, SeekMap]) -> Iterator[Write]:
    changed = changes(before, after)
    rows = {
        (epoch, p): entry
        for epoch, held in changed.written.items()
        for p, entry in held.items()
        if (known := before.get(epoch)) is None or known.get(p) is not entry
    }
    columns = layouts.SEEKS.split(rows) if rows else ()
    return _changed(layouts.SEEKS, columns, ("epoch",), [[*changed.gone]] if changed.gone else ())


def _groups(changed: Changes[GroupId, ClusterId]) -> Iterator[Write]:
    columns = list(zip(*changed.written.items(), strict=True))
    return _changed(layouts.GROUPS, columns, layouts.GROUPS.key, [[*changed.gone]] if changed.gone else ())


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


def _skips(
    before: Mapping[GroupPartition, tuple[Offset, ...]], after: Mapping[GroupPartition, tuple[Offset, ...]]
) -> Iterator[Write]:
    changed = changes(before, after)
    rows = [(*p, offset) for p, offsets in changed.written.items() for offset in offsets]
    gone = [
        (*p, offset)
        for p in (*changed.gone, *changed.written)
        for offset in before.get(p, ())
        if offset not in after.get(p, ())
    ]
    return _changed(layouts.SKIPS, list(zip(*rows, strict=True)), layouts.SKIPS.key, list(zip(*gone, strict=True)))


def _contributions(changed: Changes[layouts.ContributionKey, Contribution]) -> Iterator[Write]:
    """Yield what writes contributions, with the log bounds and committed offsets of their partitions.

    That one has contributed for a partition already is refused by the table's key.
    """
    yield from _rows(layouts.CONTRIBUTORS, Changes(written=changed.written))
    rows = [row for (n, member), part in changed.written.items() for row in layouts.contributed_rows(n, member, part)]
    if rows:
        yield Write(layouts.CONTRIBUTED.insert, layouts.CONTRIBUTED.bound(zip(*rows, strict=True)))


def _events(after: Region) -> Iterator[Write]:
    if after.events:
        rows = map(layouts.event_values, after.events)
        yield Write(history.SQL["insert"].sql, {"event": row_layout.as_json(layouts.EVENT_COLUMNS, rows)})
