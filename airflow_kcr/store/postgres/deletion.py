"""Deleting a region in pieces: no statement grows with what it has been through, and any may be the last.

The first transaction takes the region's name and groups away, so that no verb finds it any more. What is left of it
under `doomed` goes piece by piece; another deletion continues an interrupted one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from airflow_kcr.protocol.values import RegionName
from airflow_kcr.store.postgres import ledger
from airflow_kcr.store.postgres.row_layout import listed, named
from airflow_kcr.store.postgres.session import Found, Session
from airflow_kcr.store.postgres.statements import Statement, load

PIECE: Final = 10_000
"""Rows that a transaction deletes of one table."""

SQL: Final = load("regions")

_DOOMED: Final = " (being deleted)"
"""No region that a spec declares has a space in its name."""


def doomed(name: RegionName) -> str:
    """Return the name that the rest of a region has while it is deleted."""
    return f"{name}{_DOOMED}"


def is_doomed(name: str) -> bool:
    """Return whether a name is that of what is left of a region."""
    return name.endswith(_DOOMED)


def doom(session: Session, name: RegionName) -> None:
    """Take a region out of sight, in the transaction that has found it deletable."""
    session.run(SQL["doom_groups"])
    session.run(SQL["doom"], name=doomed(name))


def find_doomed(session: Session, name: RegionName) -> bool:
    """Make the session about what is left of a region; False: nothing is."""
    found = session.rows(SQL["find"], name=doomed(name))
    if found:
        session.region_id = found[0][0]
    return bool(found)


class Deletion:
    """Deletes what is left of a region, a piece at a time; each piece needs a transaction of its own."""

    def __init__(self) -> None:
        self._left: Iterator[Found] | None = None
        self._table: str | None = "batch"
        self._key: tuple[str, ...] = ()
        self._after: tuple[object, ...] = (0,)
        self._width = 100
        """Ranges that the widest batch seen so far has."""

    def forget_some(self, session: Session) -> bool:
        """Delete the next piece; return whether there may be more."""
        session.rows(ledger.SQL["in_order"])
        if self._left is None:
            self._left = iter(session.rows(SQL["tables_of_regions"]))
        if self._table is None:
            session.run(SQL["delete_region"])
            return False
        more = self._forget_batches(session) if self._table == "batch" else self._forget_rows(session, self._table)
        if not more:
            (self._table, self._key), self._after = next(self._left, (None, ())), ()
        return True

    def _forget_batches(self, session: Session) -> bool:
        limit = max(PIECE // self._width, 1)
        batches = [number for (number,) in session.rows(SQL["doomed_batches"], after=self._after[0], limit=limit)]
        if not batches:
            return False
        ranges = ledger.delete(session, batches)
        self._width = max(-(-ranges // len(batches)), 1)
        self._after = (batches[-1],)
        return len(batches) == limit

    def _forget_rows(self, session: Session, table: str) -> bool:
        given = {f"after_{n}": value for n, value in enumerate(self._after)}
        found = session.rows(_piece(table, self._key, after=bool(given)), limit=PIECE, **given)
        self._after = tuple(found[0]) if found else ()
        return bool(found)


def _piece(table: str, columns: Sequence[str], *, after: bool) -> Statement:
    """Return what deletes the next rows of a table in the order of its key, and answers with the key of the last one.

    Beyond those that were deleted before: to begin again with each piece would be to step over all of them each time.
    """
    key = named(columns)
    last = listed(f":after_{n}" for n in range(len(columns)))
    beyond = f"AND ({key}) > ({last})" if after else ""
    return Statement(f"""
        WITH gone AS (
            DELETE FROM kcr.{table} WHERE ctid = ANY (ARRAY(
                SELECT ctid FROM kcr.{table} WHERE region_id = :region {beyond} ORDER BY {key} LIMIT :limit
            )) RETURNING {key}
        )
        SELECT {key} FROM gone ORDER BY {listed(f"{c} DESC" for c in columns)} LIMIT 1
    """)
