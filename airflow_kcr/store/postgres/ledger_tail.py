"""The newest batches of the ledger, read from its end.

What belongs to a checkpoint is there, however long the region ran.
"""

from __future__ import annotations

from itertools import groupby
from typing import Final

from sqlalchemy import text

from airflow_kcr.protocol.region.rows import Batch
from airflow_kcr.protocol.values import MAX_NUMBER, CheckpointNumber
from airflow_kcr.store.postgres import rewinds
from airflow_kcr.store.postgres.ledger import BATCH_COLUMNS, PAGE, batch_from, ranges_of
from airflow_kcr.store.postgres.session import Found, Session

_SEQUENCE: Final = BATCH_COLUMNS.index("sequence")

# name: page_back — from the newest batch on.
_PAGE_BACK: Final = text(
    f"SELECT {', '.join(BATCH_COLUMNS)} FROM kcr.batch WHERE region_id = :region AND number < :before "  # noqa: S608
    "ORDER BY number DESC LIMIT :page"
)


# name: newest_work — of the one batch at the end of the index.
NEWEST_WORK: Final = text("""
    SELECT (
        SELECT coalesce(b.finished_at, b.started_at) FROM kcr.batch b
        WHERE b.region_id = r.id ORDER BY b.number DESC LIMIT 1
    ) FROM kcr.region r WHERE r.name = :name
""")


def since(session: Session, after: CheckpointNumber) -> list[Batch]:
    """Return the batches of later sequences than this, oldest first.

    Sequences only grow, and a batch is numbered under the lock that stamps it, so those wanted are the last ones.
    """
    pages: list[list[Batch]] = []
    before = MAX_NUMBER
    while rows := session.rows(_PAGE_BACK, before=before, page=PAGE):
        later = [row for row in rows if row[_SEQUENCE] > after]
        pages.append(_read(session, later[::-1]))
        if len(later) < PAGE:
            break
        before = rows[-1][0]
    return [batch for page in reversed(pages) for batch in page]


def _read(session: Session, found: list[Found]) -> list[Batch]:
    if not found:
        return []
    rows = sorted(ranges_of(session, [row[0] for row in found]), key=lambda row: row[0])
    ranges = {number: list(group) for number, group in groupby(rows, key=lambda row: int(row[0]))}
    return rewinds.seen(session, [batch_from(row, ranges.get(row[0], [])) for row in found])
