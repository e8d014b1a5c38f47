"""Indexes of tables that programs write to meanwhile; an interrupted upgrade builds them again."""

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


def make(*indexes: str) -> None:
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
            _make(connection, index)
        connection.execute(_SET_LOCK_TIMEOUT, {"limit": before})


def _make(connection: Connection, index: str) -> None:
    name = index.split(maxsplit=1)[0]
    is_valid = connection.execute(_VALID, {"name": name}).scalar_one_or_none()
    if is_valid:
        return
    if is_valid is False:
        connection.exec_driver_sql(f"DROP INDEX CONCURRENTLY kcr.{name}")
    connection.exec_driver_sql(f"CREATE INDEX CONCURRENTLY {index}")
