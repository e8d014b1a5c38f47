"""Deleting a region, in pieces: no statement grows with what the region has been through, and any may be the last.

The first transaction takes the region's name and groups away, so that no verb finds it any more. What is left of it
under `doomed` goes piece by piece; another deletion continues an interrupted one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from psycopg.sql import SQL, Identifier
from sqlalchemy import Table, TextClause, text

from airflow_kcr.protocol.values import RegionName
from airflow_kcr.store.postgres import rewinds, tables
from airflow_kcr.store.postgres.row_layout import listed, name_of, named
from airflow_kcr.store.postgres.session import Session, composed

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


def find(session: Session, name: RegionName) -> bool:
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
        session.rows(rewinds.IN_ORDER)
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


_APART: Final = {tables.region, tables.batch, tables.batch_range}


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
