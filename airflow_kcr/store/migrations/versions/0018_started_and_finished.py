"""Batches and resets start and finish, and a checkpoint is current: the words that the documentation has.

Columns, an index and a constraint are renamed, which touches no row. Kinds of events (`ResetBegun`, `DrainBegun`) and
their fields keep their names, as do the lines of archived history: certificates are digests of them.
"""

from __future__ import annotations

from typing import Final

from alembic import op

revision: Final = "0018"
down_revision: Final = "0017"
branch_labels: Final = None
depends_on: Final = None

COLUMNS: Final = (
    ("batch", "begun_at", "started_at"),
    ("batch", "begun_after", "started_after"),
    ("batch", "ended_at", "finished_at"),
    ("batch", "ended_after", "finished_after"),
    ("claim", "begun_to", "started_to"),
    ("checkpoint", "ended_at", "finished_at"),
    ("reset", "begun_at", "started_at"),
    ("person_reset", "ended_at", "finished_at"),
)


def upgrade() -> None:
    for table, old, new in COLUMNS:
        op.execute(f"ALTER TABLE kcr.{table} RENAME COLUMN {old} TO {new}")
    op.execute("ALTER TABLE kcr.claim RENAME CONSTRAINT claim_begun_to_not_negative TO claim_started_to_not_negative")
    op.execute("ALTER INDEX kcr.checkpoint_path RENAME TO checkpoint_current")
    op.execute("ALTER INDEX kcr.person_reset_not_begun RENAME TO person_reset_not_started")
    # A state is part of an index's condition; a region has few resets that persons asked for, and one that is active.
    op.execute("UPDATE kcr.person_reset SET state = 'started' WHERE state = 'begun'")
    op.execute("DROP INDEX kcr.person_reset_active")
    op.execute(
        "CREATE INDEX person_reset_active ON kcr.person_reset (region_id) "
        "WHERE state IN ('waiting', 'draining', 'started')"
    )


def downgrade() -> None:
    raise NotImplementedError("the store's migrations go forward only; go back by restoring a backup")
