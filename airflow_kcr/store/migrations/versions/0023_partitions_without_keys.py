"""Tables with a row for each partition of a checkpoint or reset have no foreign key to it.

They are written in one transaction with it, and deleted with it. The check of each row took the server a third of a
completion.
"""

from __future__ import annotations

from typing import Final

from alembic import op

revision: Final = "0023"
down_revision: Final = "0022"
branch_labels: Final = None
depends_on: Final = None

_KEYS: Final = (
    ("checkpoint_partition", "checkpoint"),
    ("checkpoint_offset", "checkpoint"),
    ("contribution_offset", "contribution"),
    ("read_back", "checkpoint"),
    ("seek_offset", "reset"),
)


def upgrade() -> None:
    for table, parent in _KEYS:
        op.execute(f"ALTER TABLE kcr.{table} DROP CONSTRAINT IF EXISTS {table}_{parent}_fkey")


def downgrade() -> None:
    raise NotImplementedError("the store's migrations go forward only; go back by restoring a backup")
