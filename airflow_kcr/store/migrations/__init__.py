"""The migrations of the region store: ordered, numbered, forward only, reviewed as SQL.

A new one is a file in `versions`, `NNNN_what_it_does.py`, with the next number as its revision. It changes
`store.postgres.tables`, and `HEAD` there, with it; `tests/migration` holds the three together and says how the
snapshot is renewed. A migration is a transaction, and what locks out programs that still run is at its end and short:
rows are converted before, in pieces that may be repeated, and indexes of tables that grow are built without blocking
writes (`build_indexes`).
"""

from __future__ import annotations

from typing import Final

from alembic import op
from sqlalchemy import Connection, text

_VALID: Final = text("""
    SELECT i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
    JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'kcr' AND c.relname = :name
""")

_LOCK_TIMEOUT: Final = text("SELECT current_setting('lock_timeout')")
_SET_LOCK_TIMEOUT: Final = text("SELECT set_config('lock_timeout', :limit, false)")


def build_indexes(*indexes: str) -> None:
    """Build indexes outside of the migration's transaction, which starts anew after them; existing ones are left alone.

    A plain `CREATE INDEX` blocks writes to its table until it is done, for minutes with a long ledger. A concurrent one
    waits for writers and blocks none. If it is interrupted, an invalid index of its name is left, which every write
    maintains and no read uses.

    Args:
        indexes: what follows `CREATE INDEX`: a name, and what it is on.
    """
    with op.get_context().autocommit_block():
        connection = op.get_bind()
        # It waits for all transactions that are older, and no program waits for it.
        before = connection.execute(_LOCK_TIMEOUT).scalar_one()
        connection.execute(_SET_LOCK_TIMEOUT, {"limit": "0"})
        for index in indexes:
            _build_index(connection, index)
        connection.execute(_SET_LOCK_TIMEOUT, {"limit": before})


def _build_index(connection: Connection, index: str) -> None:
    name = index.split(maxsplit=1)[0]
    is_valid = connection.execute(_VALID, {"name": name}).scalar_one_or_none()
    if is_valid:
        return
    if is_valid is False:
        connection.exec_driver_sql(f"DROP INDEX CONCURRENTLY kcr.{name}")
    connection.exec_driver_sql(f"CREATE INDEX CONCURRENTLY {index}")
